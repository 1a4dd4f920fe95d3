"""The start of a pool: what is refused, constructors that fail or hang, start methods, what a worker is given."""

from __future__ import annotations

import errno
import logging
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from envs import OnlyInWorkersEnv, ScriptedEnv, actions
from support import Script, eventually, is_gone

import shmenv
from shmenv.adapters.gymnasium import ShmVectorEnv
from shmenv.handle import Handle
from shmenv.supervisor import Supervisor

MakePool = Callable[..., shmenv.Pool]


@pytest.mark.parametrize(
    ("env_fns", "what"),
    [
        ([], "there is none"),
        (lambda: ScriptedEnv(), "in a list; it is <function"),
        (ScriptedEnv, "in a list; it is <class"),
        ([ScriptedEnv, ScriptedEnv()], "item 1 is <envs.ScriptedEnv .* put `lambda:` before"),
        (["CartPole-v1"], "item 0 is 'CartPole-v1'"),
    ],
)
def test_what_is_no_list_of_functions_is_named(env_fns: Any, what: str) -> None:
    for make in (shmenv.Pool, shmenv.SyncSubprocessEnvManager):
        with pytest.raises(
            shmenv.UsageError, match=f"env_fns? must be one or more functions that return an env.*{what}"
        ):
            make(env_fns)


@pytest.mark.parametrize(
    ("env_fns", "options"),
    [
        ([], {}),
        ([1, 2], {}),
        (ScriptedEnv, {}),
        ([ScriptedEnv], {"num_workers": 0}),
        ([ScriptedEnv], {"num_workers": -1}),
        ([ScriptedEnv] * 2, {"batch_size": 0}),
        ([ScriptedEnv] * 2, {"batch_size": 3}),
        ([ScriptedEnv], {"slots": 3}),
        ([ScriptedEnv], {"slots": 1}),
        ([ScriptedEnv], {"autoreset": "sometimes"}),
        ([ScriptedEnv], {"context": "thread"}),
        ([ScriptedEnv], {"on_error": "ignore"}),
        ([ScriptedEnv], {"affinity": "everywhere"}),
        ([ScriptedEnv], {"affinity": [10**6]}),
        ([ScriptedEnv], {"start_timeout": -1.0}),
        ([ScriptedEnv], {"copy": "yes"}),
        ([ScriptedEnv], {"worker_init": 3}),
        ([ScriptedEnv], {"on_restart": "log"}),
        ([ScriptedEnv], {"step_timeout": 0}),
        ([ScriptedEnv], {"max_retry": 0}),
        ([ScriptedEnv], {"retry_type": "again"}),
    ],
    ids=str,
)
def test_arguments_without_sense_are_usage_errors(env_fns: Any, options: dict[str, Any]) -> None:
    with pytest.raises(shmenv.UsageError):
        shmenv.Pool(env_fns, **{"context": "fork", **options})


def test_an_unknown_argument_is_refused() -> None:
    """Covers arguments that are accepted and have no effect."""
    with pytest.raises(TypeError):
        shmenv.Pool([ScriptedEnv], seed=3)  # type: ignore[call-arg]


def test_env_factories_may_be_closures(make_pool: MakePool, context: str) -> None:
    """Covers factories that only some start methods can carry: lambdas, closures, classes made in a function."""

    class LocalEnv(ScriptedEnv):
        pass

    lengths = [1, 2]
    pool = make_pool([lambda i=i: LocalEnv(length=lengths[i]) for i in range(2)], context=context)
    pool.reset()
    assert pool.step(actions(2)).terminated.tolist() == [True, False]


def test_no_env_is_built_in_the_managers_process(make_pool: MakePool, context: str) -> None:
    """Covers a throw-away env that is built in the parent for its spaces, and takes ports or a GPU there."""
    pool = make_pool([partial(OnlyInWorkersEnv, os.getpid())] * 3, num_workers=2, context=context)
    pool.reset()
    assert os.getpid() not in pool.call("pid")


@pytest.mark.parametrize(
    ("fault", "says"), [("raise", "missing asset"), ("sys_exit", "SystemExit"), ("raise_odd", "odd")]
)
def test_a_constructor_that_raises_is_told_with_its_env(context: str, fault: str, says: str) -> None:
    """Covers an exception while an env is built, which hangs the start or ends in a ConnectionResetError."""
    env_fns: list[Any] = [ScriptedEnv, ScriptedEnv, partial(ScriptedEnv, at_start=fault), ScriptedEnv]
    with pytest.raises(shmenv.EnvError, match=says) as caught:
        shmenv.Pool(env_fns, num_workers=2, context=context)
    error = caught.value
    assert (error.env_id, error.worker_id, error.command) == (2, 1, "construct")
    assert "env 2" in str(error) and "envs.py" in error.traceback_text
    if fault == "raise":
        assert isinstance(error.__cause__, KeyError)


@pytest.mark.parametrize(("fault", "exitcode"), [("kill", -9), ("exit", 3), ("segfault", -11)])
def test_a_constructor_that_kills_its_worker_is_told_with_its_env(context: str, fault: str, exitcode: int) -> None:
    with pytest.raises(shmenv.WorkerDiedError) as caught:
        shmenv.Pool([ScriptedEnv, partial(ScriptedEnv, at_start=fault)], num_workers=2, context=context)
    error = caught.value
    assert error.worker_id == 1 and error.env_ids == (1,) and error.exitcode == exitcode
    assert "construct" in str(error) and "env 1" in str(error)


@pytest.mark.parametrize(
    ("method", "fault", "seconds"),
    [("fork", "hang", 0.5), ("fork", "hang_native", 0.5), ("spawn", "hang_native", 5.0), ("forkserver", "hang", 5.0)],
)
def test_a_constructor_that_hangs_is_told_with_its_stack(method: str, fault: str, seconds: float) -> None:
    """Covers a start that waits for ever for a worker stuck in an env's constructor."""
    env_fns: list[Any] = [ScriptedEnv, ScriptedEnv, partial(ScriptedEnv, at_start=fault)]
    with pytest.raises(shmenv.WorkerTimeoutError) as caught:
        shmenv.Pool(env_fns, num_workers=2, context=method, start_timeout=seconds, close_timeout=0.1)
    text = str(caught.value)
    for part in ("env 2", "construct", "envs.py", f"in _{fault}"):
        assert part in text
    assert isinstance(caught.value, TimeoutError)


def test_factories_that_make_no_env_are_told(make_pool: MakePool) -> None:
    with pytest.raises(shmenv.EnvError, match="reset") as caught:
        make_pool([ScriptedEnv, dict], num_workers=1)
    assert caught.value.env_id == 1 and caught.value.command == "construct"


def test_a_start_that_fails_before_there_is_hold_of_its_process_is_told_as_any_other(
    monkeypatch: pytest.MonkeyPatch, context: str
) -> None:
    """Covers a worker that ends sooner than the manager opens its process."""
    take_hold = Handle.take_hold

    def take_hold_late(handle: Handle) -> bool:
        eventually(lambda: handle.process.exitcode is not None, 30)
        return take_hold(handle)

    monkeypatch.setattr(Handle, "take_hold", take_hold_late)
    with pytest.raises(shmenv.EnvError, match="reset"):
        shmenv.Pool([dict], context=context)
    with pytest.raises(shmenv.WorkerDiedError, match="exit code 3"):
        shmenv.Pool([partial(os._exit, 3)], context=context)


def test_factories_that_cannot_travel_are_a_usage_error(context: str) -> None:
    lock = threading.Lock()
    with pytest.raises(shmenv.UsageError, match="pickle"):
        shmenv.Pool([lambda: lock and ScriptedEnv()], context=context)


def test_too_little_memory_is_told_at_construction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers segments that turn out too small later, as a bus error without a message."""
    monkeypatch.setattr("shmenv.segment.available_memory", lambda root: 4096)
    with pytest.raises(shmenv.ResourceError) as caught:
        shmenv.Pool([ScriptedEnv] * 3, context="fork")
    for part in ("3 envs with slots=2", "4,096 bytes are available", "fewer envs", "smaller observations"):
        assert part in str(caught.value)


def test_each_worker_is_prepared_before_its_envs(make_pool: MakePool, tmp_path: Path, context: str) -> None:
    """Covers workers that need their own variables (a GPU's number) before the first env is built."""

    def prepare(worker_id: int) -> None:
        os.environ["PREPARED"] = str(worker_id)

    pool = make_pool([ReadsAtStartEnv] * 3, num_workers=2, worker_init=prepare, context=context)
    found = pool.get_attr("prepared")
    assert set(found) == {"0", "1"} and list(found) == sorted(found)


class ReadsAtStartEnv(ScriptedEnv):
    """Notes what stands in the environment when it is built."""

    def __init__(self) -> None:
        super().__init__()
        self.prepared = os.environ.get("PREPARED")


def test_workers_use_one_thread_unless_told_otherwise(make_pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Covers workers that each start as many numeric threads as there are cores."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("MKL_NUM_THREADS", "3")
    for name in ("fork", "spawn"):
        found = make_pool([ScriptedEnv], context=name).call("environment")[0]
        assert found["OMP_NUM_THREADS"] == "1" and found["MKL_NUM_THREADS"] == "3"
    assert "OMP_NUM_THREADS" not in os.environ


def test_the_users_own_signal_handlers_and_affinity_stay(make_pool: MakePool) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)]
    cores = os.sched_getaffinity(0)
    make_pool([ScriptedEnv] * 2, affinity="spread").reset()
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)] == handlers
    assert os.sched_getaffinity(0) == cores


def test_fork_with_live_threads_warns(caplog: pytest.LogCaptureFixture) -> None:
    """Covers a fork from a process with threads, which deadlocks now and then."""
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    thread.start()
    try:
        with caplog.at_level(logging.WARNING, "shmenv"), shmenv.Pool([ScriptedEnv], context="fork") as pool:
            pool.reset()
        assert any("thread" in record.getMessage() for record in caplog.records)
    finally:
        go.set()
        thread.join()


def test_the_default_start_method_does_not_fork_this_process(make_pool: MakePool) -> None:
    """Covers start methods that change with the Python version: ours is the same everywhere, and no plain fork."""
    import psutil

    pool = make_pool([ScriptedEnv], context=None)
    pid = pool.call("pid")[0]
    assert psutil.Process(pid).ppid() != os.getpid()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_missing_main_guard_is_one_clear_line(start_script: Callable[..., Script], method: str) -> None:
    """Covers scripts without the guard, which start themselves again and again, or hang."""
    script = start_script(
        f"""
        import shmenv
        from envs import ScriptedEnv
        shmenv.Pool([ScriptedEnv] * 2, num_workers=2, context="{method}")
        """
    )
    code, _, errors = script.finish(30)
    assert code != 0
    last = errors.strip().splitlines()[-1]
    assert "if __name__ == '__main__'" in last.replace('"', "'")
    assert errors.count("Traceback") == 1, errors


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_envs_defined_in_the_main_program_work(start_script: Callable[..., Script], method: str) -> None:
    """Covers env classes and registrations that exist in the main program alone."""
    script = start_script(
        f"""
        import gymnasium, shmenv
        from envs import ScriptedEnv

        class MyEnv(ScriptedEnv):
            pass

        gymnasium.register("Mine-v0", MyEnv)

        if __name__ == "__main__":
            spec = gymnasium.spec("Mine-v0")
            with shmenv.Pool([MyEnv, lambda: gymnasium.make(spec)], context="{method}") as pool:
                print(pool.reset().obs.tolist())
        """
    )
    code, out, errors = script.finish(30)
    assert (code, out.strip(), errors) == (0, "[[0.0, 0.0], [0.0, 0.0]]", "")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_traceback_of_an_env_of_the_main_program_names_its_file(
    start_script: Callable[..., Script], method: str
) -> None:
    """Covers tracebacks that end in an unnamed file, because the class travelled by value."""
    script = start_script(
        """
        import sys
        import shmenv

        class Env:
            def reset(self, seed=None, options=None):
                return 0.0, {}

            def step(self, action):
                raise KeyError("missing asset")  # this very line

        if __name__ == "__main__":
            with shmenv.Pool([Env], context=sys.argv[1]) as pool:
                pool.reset()
                try:
                    pool.step([0])
                except shmenv.EnvError as error:
                    print(__file__ in str(error), "# this very line" in str(error))
        """,
        method,
    )
    assert script.finish(30) == (0, "True True\n", "")


def test_a_main_script_that_raises_on_import_is_hinted_at(start_script: Callable[..., Script]) -> None:
    script = start_script(
        """
        import shmenv
        if __name__ != "__main__":
            raise RuntimeError("not to be imported")
        try:
            shmenv.Pool([dict], context="spawn")
        except shmenv.WorkerDiedError as error:
            print("imports the main script" in str(error))
        """
    )
    code, out, errors = script.finish(30)
    assert (code, out) == (0, "True\n") and "not to be imported" in errors


def test_a_worker_imports_no_framework_of_its_own(start_script: Callable[..., Script]) -> None:
    """Covers gigabytes in each worker, because the worker's module imports what only the trainer needs."""
    script = start_script(
        """
        import sys
        import shmenv

        class Bare:
            def reset(self):
                return 0.0
            def step(self, action):
                raise AssertionError
            def modules(self):
                return sorted(sys.modules)

        if __name__ == "__main__":
            with shmenv.Pool([Bare], context="spawn") as pool:
                found = set(pool.call("modules")[0])
                print(sorted(found & {"gymnasium", "torch", "gym", "ding", "rich", "psutil"}), "numpy" in found)
        """
    )
    assert script.finish(30)[1].strip() == "[] True"


def test_envs_may_have_processes_of_their_own(make_pool: MakePool, context: str) -> None:
    """Covers daemonic workers, which may not have children; and grandchildren that stay behind."""
    pool = make_pool([ScriptedEnv] * 2, num_workers=2, context=context)
    pool.reset()
    pool.step(actions(2, {0: "leak", 1: "leak"}))
    leaked = [pid for pids in pool.call("leaked_pids") for pid in pids]
    assert len(leaked) == 2 and not any(map(is_gone, leaked))
    pool.call("start_child")
    pool.close()
    eventually(lambda: all(map(is_gone, leaked)))


class PoolEnv(ScriptedEnv):
    """Has a pool of its own inside."""

    def __init__(self, method: str) -> None:
        super().__init__()
        self.pool = shmenv.Pool([ScriptedEnv] * 2, num_workers=2, context=method)
        self.pool.reset()

    def step(self, action: Any) -> Any:
        batch = self.pool.step(actions(2))
        return (batch.obs[1].copy(), *super().step(action)[1:])

    def inner(self) -> list[int]:
        return list(self.pool.call("pid"))

    def close(self) -> None:
        if self.close_mark:
            return
        self.pool.close()


@pytest.mark.parametrize("end", ["close", "forget", "kill"])
def test_an_env_may_have_a_pool_of_its_own(make_pool: MakePool, context: str, end: str) -> None:
    """Covers workers that may not start processes, and processes two levels down that stay behind."""
    pool = make_pool([partial(PoolEnv, context)] * 2, num_workers=2, context=context)
    pool.reset()
    for t in range(1, 4):
        assert pool.step(actions(2)).obs.tolist() == [[0, t]] * 2
    inner = [pid for pids in pool.call("inner") for pid in pids]
    if end == "forget":
        pool.set_attr("close_mark", "forgotten")
    if end == "kill":
        for worker in pool.stats()["workers"]:
            os.kill(worker["pid"], signal.SIGKILL)
    pool.close()
    eventually(lambda: all(map(is_gone, inner)))


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_the_default_start_method_stays_the_users_choice(start_script: Callable[..., Script], method: str) -> None:
    """Covers a library after whose use `multiprocessing.set_start_method` fails."""
    script = start_script(
        f"""
        import multiprocessing, shmenv
        from envs import ScriptedEnv

        if __name__ == "__main__":
            with shmenv.Pool([ScriptedEnv], context="{method}"):
                print(multiprocessing.get_start_method(allow_none=True))
            multiprocessing.set_start_method("spawn")
            with shmenv.Pool([ScriptedEnv], context="{method}"):
                print(multiprocessing.get_start_method(allow_none=True))
        """
    )
    code, out, errors = script.finish(30)
    assert (code, out.split(), errors) == (0, ["None", "spawn"], "")


def test_too_few_descriptors_are_a_resource_error_that_leaves_no_process(start_script: Callable[..., Script]) -> None:
    script = start_script(
        """
        import resource, psutil, shmenv
        from envs import ScriptedEnv

        if __name__ == "__main__":
            shmenv.Pool([ScriptedEnv], context="fork").close()
            most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            refused = 0
            for limit in range(3, 20):
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
                try:
                    shmenv.Pool([ScriptedEnv] * 3, num_workers=3, context="fork")
                except shmenv.ResourceError:
                    refused += 1
                resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
                left = [child for child in psutil.Process().children(recursive=True) if child.status() != "zombie"]
                assert not left, (limit, left)
            with shmenv.Pool([ScriptedEnv] * 3, num_workers=3, context="fork") as pool:
                print(refused, pool.reset().obs.tolist())
        """
    )
    assert script.finish(60)[1:] == ("17 [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]\n", "")


@pytest.mark.parametrize(
    "options",
    [{"slots": 2.0}, {"close_timeout": float("inf")}, {"retry_waiting_time": 1e300}, {"strict_dtype": "no"}],
)
def test_an_option_that_is_of_no_use_is_refused_before_anything_starts(options: dict[str, Any]) -> None:
    with pytest.raises(shmenv.UsageError, match=next(iter(options))):
        shmenv.Pool([ScriptedEnv], context="fork", **options)


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_preloaded_modules_are_imported_once_for_all_workers(tmp_path: Path, method: str) -> None:
    (tmp_path / "slow_library.py").write_text("import os\nPID = os.getpid()\n")
    (tmp_path / "program.py").write_text(f"""
import os
import shmenv

class Env:
    def reset(self):
        import slow_library
        return [slow_library.PID == os.getpid()]

    def step(self, action):
        return self.reset(), 0.0, False, {{}}

if __name__ == "__main__":
    shmenv.preload("slow_library", "no_such_library")
    with shmenv.Pool([Env] * 2, num_workers=2, context={method!r}) as pool:
        print(pool.reset().obs.tolist())
""")
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == str([[method == "spawn"]] * 2), done.stderr


def test_a_worker_is_told_nothing_of_the_mpi_program_that_started_the_pool(
    make_pool: MakePool, context: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "OTHER_RANK"):
        monkeypatch.setenv(name, "1")
    found = make_pool([ScriptedEnv], context=context).call("environment")[0]
    assert [name for name in found if name.endswith("_RANK")] in ([], ["OTHER_RANK"])
    assert os.environ["OMPI_COMM_WORLD_RANK"] == "1"


class Holder:
    """Makes envs, and holds what cannot travel."""

    def __init__(self, deep: bool) -> None:
        self.held = {"locks": [1, threading.Lock()]} if deep else threading.Lock()

    def make(self) -> ScriptedEnv:
        return ScriptedEnv()


def closing_over_a_lock() -> Callable[[], ScriptedEnv]:
    my_lock = threading.Lock()

    def env_fn() -> ScriptedEnv:
        with my_lock:
            return ScriptedEnv()

    return env_fn


def with_default(lock: Any = None) -> Callable[[], ScriptedEnv]:
    return partial(lambda held: ScriptedEnv(), threading.Lock())


WAYS: dict[str, tuple[Callable[[], Any], str]] = {
    "closure": (closing_over_a_lock, r"It holds a lock: .*variable 'my_lock'"),
    "attribute": (lambda: Holder(False).make, r"It holds a lock: .*self -> attribute 'held'"),
    "deep": (lambda: Holder(True).make, r"It holds a lock: .*self -> attribute 'held' -> \['locks'\] -> \[1\]"),
    "argument": (with_default, r"It holds a lock: .*arguments -> \[0\]"),
    "around": (
        lambda: partial(lambda make: make(), closing_over_a_lock()),
        r"arguments -> \[0\] -> variable 'my_lock'",
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_env_function_that_cannot_travel_is_named_with_the_variable_that_holds_it_back(way: str) -> None:
    make, words = WAYS[way]
    for build in (
        lambda env_fns: shmenv.Pool(env_fns, num_workers=2),
        lambda env_fns: ShmVectorEnv(env_fns, num_workers=2),
        lambda env_fns: shmenv.SyncSubprocessEnvManager(env_fns).launch(),
    ):
        with pytest.raises(shmenv.UsageError, match=rf"env_fns\[4\]: cannot send .*{words}"):
            build([ScriptedEnv] * 4 + [make()])


def test_what_a_call_cannot_send_is_named_too(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv])
    with pytest.raises(shmenv.UsageError, match=r"the arguments of 'add'.*\['lock'\]"):
        pool.call("add", {"lock": threading.Lock()})


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_too_few_descriptors_are_found_before_a_worker_starts(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Supervisor, "start", None)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, before[1]))
    try:
        with pytest.raises(
            shmenv.ResourceError, match=r"40 workers need \d+ file descriptors.* of the 64 .*ulimit -n"
        ) as told:
            shmenv.Pool([ScriptedEnv] * 40, num_workers=40, context=method)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert told.value.errno == errno.EMFILE


def test_as_many_workers_as_the_descriptors_allow_can_be_had(make_pool: MakePool) -> None:
    """The number that the error names is right: one more would fail amid the start."""
    before, used = resource.getrlimit(resource.RLIMIT_NOFILE), len(os.listdir("/proc/self/fd")) - 1
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, before[1]))
    try:
        with pytest.raises(shmenv.ResourceError, match="or take fewer workers: 3 would do"):
            shmenv.Pool([ScriptedEnv] * 4, num_workers=4, context="fork")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    make_pool([ScriptedEnv] * 3, num_workers=3)


def test_more_workers_than_envs_are_as_many_as_envs(make_pool: MakePool) -> None:
    assert make_pool([ScriptedEnv] * 2, num_workers=np.int64(64)).num_workers == 2
