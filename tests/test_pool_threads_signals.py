"""One thread at a time, and Ctrl-C."""

from __future__ import annotations

import contextlib
import gc
import linecache
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import FrameType
from typing import Any

import pytest
from envs import Gate, ScriptedEnv, act, actions
from support import Script, eventually, is_gone

import shmenv
from shmenv.seeds import Seeds

MakePool = Callable[..., shmenv.Pool]
HOUSE = os.path.dirname(shmenv.__file__)


class Call:
    """Calls something in a thread of its own and keeps what came of it."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, args=(function,))
        self.thread.start()

    def _run(self, function: Callable[[], Any]) -> None:
        try:
            self.result = function()
        except BaseException as error:
            self.error = error

    def join(self, timeout: float = 30.0) -> None:
        self.thread.join(timeout)
        assert not self.thread.is_alive()


@pytest.fixture
def blocked(make_pool: MakePool, gate: Callable[[int], Gate]) -> tuple[shmenv.Pool, Call, int]:
    """A pool of two, a thread that waits in recv() for env 0, and the descriptor that lets env 0 go on."""
    pool = make_pool([partial(ScriptedEnv, gate=gate(i).path) for i in range(2)], num_workers=2, close_timeout=0.2)
    pool.reset()
    pool.send(actions(2, {0: "slow"}))
    call = Call(pool.recv)
    return pool, call, eventually(gate(0).try_hold)


def in_use(pool: shmenv.Pool) -> bool:
    """Whether another thread is inside a call, seen by a question that changes nothing."""
    try:
        pool.call("where", env_id=1)
    except shmenv.UsageError as error:
        return "thread" in str(error)
    return False


def test_a_second_thread_is_a_usage_error(blocked: tuple[shmenv.Pool, Call, int]) -> None:
    pool, call, held = blocked
    eventually(lambda: in_use(pool))
    for attempt in (
        lambda: pool.step(actions(2)),
        lambda: pool.send(actions(1), env_id=[1]),
        pool.recv,
        pool.reset,
        lambda: pool.call("where"),
        lambda: pool.set_attr("t", 0),
    ):
        with pytest.raises(shmenv.UsageError, match="thread"):
            attempt()
    os.close(held)
    call.join()
    assert call.error is None and call.result.obs.tolist() == [[0, 1]] * 2
    assert pool.step(actions(2)).obs.tolist() == [[0, 2]] * 2


def test_stats_may_be_asked_from_another_thread(blocked: tuple[shmenv.Pool, Call, int]) -> None:
    pool, call, held = blocked
    eventually(lambda: in_use(pool))
    eventually(lambda: pool.stats()["steps"] == 1)
    assert pool.num_envs == 2 and not pool.closed
    os.close(held)
    call.join()


def test_close_from_another_thread_ends_a_blocked_call(blocked: tuple[shmenv.Pool, Call, int]) -> None:
    pool, call, held = blocked
    eventually(lambda: in_use(pool))
    pool.close()
    call.join(10)
    os.close(held)
    assert isinstance(call.error, shmenv.ClosedError)
    assert pool.closed


def test_two_threads_may_close_at_once(make_pool: MakePool) -> None:
    for _ in range(5):
        pool = make_pool([ScriptedEnv] * 2, num_workers=2)
        calls = [Call(pool.close) for _ in range(2)]
        for call in calls:
            call.join()
            assert call.error is None
        assert pool.closed


def test_threads_may_take_turns(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 2)
    pool.reset()
    for t in range(1, 4):
        call = Call(lambda: pool.step(actions(2)))
        call.join()
        assert call.result.obs.tolist() == [[0, t]] * 2


def test_a_pool_may_be_made_and_closed_in_a_thread(make_pool: MakePool) -> None:
    def work() -> Any:
        with shmenv.Pool([ScriptedEnv] * 2, context="forkserver") as pool:
            pool.reset()
            return pool.step(actions(2)).obs.tolist()

    call = Call(work)
    call.join()
    assert call.error is None and call.result == [[0, 1]] * 2


def test_ctrl_c_ends_the_call_and_loses_nothing(make_pool: MakePool, gate: Callable[[int], Gate]) -> None:
    """Covers an interrupt after which no call works, and one that a waiting call does not notice."""
    pool = make_pool([partial(ScriptedEnv, gate=gate(i).path) for i in range(2)], num_workers=2)
    pool.reset()
    held: list[int] = []

    def interrupt() -> None:
        held.append(eventually(gate(0).try_hold))
        os.kill(os.getpid(), signal.SIGINT)

    call = Call(interrupt)
    with pytest.raises(KeyboardInterrupt):
        pool.step(actions(2, {0: "slow"}))
    call.join()
    assert pool.pending == 2
    with pytest.raises(shmenv.UsageError):
        pool.step(actions(2))
    os.close(held[0])
    batch = pool.recv(timeout=10)
    assert batch.env_id.tolist() == [0, 1] and batch.obs.tolist() == [[0, 1]] * 2
    assert pool.step(actions(2)).obs.tolist() == [[0, 2]] * 2


def test_ctrl_c_does_not_end_close(make_pool: MakePool, gate: Callable[[int], Gate]) -> None:
    pool = make_pool([partial(ScriptedEnv, gate=gate(0).path)], num_workers=1)
    pool.reset()
    pool.send([act("slow")])
    held = eventually(gate(0).try_hold)

    def interrupt() -> None:
        eventually(lambda: pool.closed)
        os.kill(os.getpid(), signal.SIGINT)

    call = Call(interrupt)
    with pytest.raises(KeyboardInterrupt):
        pool.close()
        call.join()
        threading.Event().wait(10)  # the signal may come only after a quick close
    call.join()
    os.close(held)
    pool.close()
    assert pool.closed


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_ctrl_c_at_the_terminal_is_one_keyboard_interrupt(
    start_script: Callable[..., Script], gate: Callable[[int], Gate], method: str
) -> None:
    """Covers a wall of tracebacks of workers, whose last line is not the interrupt."""
    script = start_script(
        f"""
        import sys
        from functools import partial
        import shmenv
        from envs import ScriptedEnv, actions

        if __name__ == "__main__":
            env_fns = [partial(ScriptedEnv, gate=sys.argv[1])] * 2
            pool = shmenv.Pool(env_fns, num_workers=2, context="{method}", close_timeout=0.2)
            pool.reset()
            try:
                pool.step(actions(2, {{1: "slow"}}))
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            print(pool.recv().obs.tolist(), pool.step(actions(2)).obs.tolist(), flush=True)
            pool.step(actions(2, {{1: "slow"}}))
        """,
        gate(1).path,
    )
    held = eventually(gate(1).try_hold, 30)
    os.killpg(script.process.pid, signal.SIGINT)
    assert script.line() == "interrupted"
    os.close(held)
    assert script.line() == "[[0.0, 1.0], [0.0, 1.0]] [[0.0, 2.0], [0.0, 2.0]]"
    held = eventually(gate(1).try_hold, 30)
    os.killpg(script.process.pid, signal.SIGINT)
    code, _, errors = script.finish(30)
    os.close(held)
    assert code == -signal.SIGINT
    assert errors.strip().splitlines()[-1] == "KeyboardInterrupt"
    assert errors.count("Traceback") == 1, errors


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_ctrl_c_while_workers_import_is_one_keyboard_interrupt(
    start_script: Callable[..., Script], gate: Callable[[int], Gate], method: str
) -> None:
    """Covers workers that print tracebacks from amid the imports of the main program."""
    script = start_script(
        f"""
        import sys
        import shmenv
        from envs import Gate, ScriptedEnv

        if __name__ == "__main__":
            shmenv.Pool([ScriptedEnv], context="{method}", close_timeout=0.2)
        else:
            Gate(sys.argv[1]).wait()  # stands for long imports
        """,
        gate(0).path,
    )
    held = eventually(gate(0).try_hold, 30)
    os.killpg(script.process.pid, signal.SIGINT)
    code, _, errors = script.finish(30)
    os.close(held)
    assert code == -signal.SIGINT
    assert errors.strip().splitlines()[-1] == "KeyboardInterrupt"
    assert errors.count("Traceback") == 1, errors


def test_ctrl_c_while_the_fork_server_imports_is_one_keyboard_interrupt(
    start_script: Callable[..., Script],
) -> None:
    """Covers the fork server's own traceback; its other children still get Ctrl-C as they would without a pool."""
    script = start_script(
        """
        import multiprocessing, signal, sys, time
        import shmenv
        from envs import ScriptedEnv

        def blocked():
            sys.exit(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()) or signal.getsignal(signal.SIGINT)
                     is not signal.default_int_handler)

        if __name__ == "__main__":
            try:
                print("starting", flush=True)
                shmenv.Pool([ScriptedEnv], context="forkserver")
                print("started", flush=True)
                time.sleep(30)
            except KeyboardInterrupt:
                print("interrupted", flush=True)
            child = multiprocessing.get_context("forkserver").Process(target=blocked)
            child.start()
            child.join()
            print(child.exitcode)
        """
    )
    assert script.line() == "starting"
    os.killpg(script.process.pid, signal.SIGINT)
    code, out, errors = script.finish(30)
    assert (code, errors) == (0, "")
    assert out.split()[-2:] == ["interrupted", "0"]


def test_a_pool_outlives_the_thread_that_made_it() -> None:
    """Covers workers tied to the thread that started them, not to its process."""
    call = Call(lambda: shmenv.Pool([ScriptedEnv] * 2, context="forkserver", num_workers=2))
    call.join()
    with call.result as pool:
        pool.reset()
        assert pool.step(actions(2)).obs.tolist() == [[0, 1]] * 2


def test_stats_may_be_asked_at_any_moment_of_a_pools_life(make_pool: MakePool) -> None:
    pool = make_pool([ScriptedEnv] * 2, num_workers=2)
    done = threading.Event()

    def ask() -> int:
        last = 0
        while not done.is_set():
            stats = pool.stats()
            assert stats["num_envs"] == 2 and stats["steps"] >= last
            last = stats["steps"]
        return last

    call = Call(ask)
    pool.reset()
    for _ in range(200):
        pool.step(actions(2))
    pool.close()
    done.set()
    call.join()
    assert call.error is None
    assert pool.stats()["steps"] == 400


def test_a_signal_handler_may_close_the_pool(blocking_signal: int, gate: Callable[[int], Gate]) -> None:
    """Covers a handler of SIGTERM that ends a run while a call waits."""
    pool = shmenv.Pool([partial(ScriptedEnv, gate=gate(0).path)], context="fork", close_timeout=0.2)
    pool.reset()
    signal.signal(blocking_signal, lambda *_: pool.close())
    pool.send([act("slow")])
    held = eventually(gate(0).try_hold)
    call = Call(lambda: os.kill(os.getpid(), blocking_signal))
    with pytest.raises(shmenv.ClosedError):
        pool.recv(timeout=30)
    call.join()
    os.close(held)
    assert pool.closed
    pool.close()


def test_a_signal_handler_may_not_use_the_pool_inside_a_call(
    make_pool: MakePool, blocking_signal: int, gate: Callable[[int], Gate]
) -> None:
    pool = make_pool([partial(ScriptedEnv, gate=gate(0).path)])
    pool.reset()
    told: list[str] = []

    def handler(*_: Any) -> None:
        with pytest.raises(shmenv.UsageError) as caught:
            pool.step(actions(1))
        told.append(str(caught.value))

    def interrupt() -> bool:
        os.kill(os.getpid(), blocking_signal)
        return any("handler" in text for text in told)  # the first may come before the call

    signal.signal(blocking_signal, handler)
    pool.send([act("slow")])
    held = eventually(gate(0).try_hold)

    def interrupt_then_go_on() -> None:
        eventually(interrupt)
        os.close(held)

    call = Call(interrupt_then_go_on)
    assert pool.recv(timeout=30).obs.tolist() == [[0, 1]]
    call.join()
    assert call.error is None


@pytest.fixture
def blocking_signal() -> Iterator[int]:
    """A signal whose handler the test may set."""
    before = signal.getsignal(signal.SIGUSR1)
    yield signal.SIGUSR1
    signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("policy", ["raise", "restart"])
def test_a_handler_that_raises_amid_a_death_leaves_it_sorted_out(
    policy: str, make_pool: MakePool, blocking_signal: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C is not the only signal whose handler raises: timeouts in Python are made of SIGALRM."""

    class Alarm(Exception):
        pass

    def alarm(*_: object) -> None:
        raise Alarm

    def lose(seeds: Seeds, ids: Iterable[int]) -> None:
        lose_process(seeds, ids)
        signal.raise_signal(blocking_signal)

    lose_process = Seeds.lose_process
    signal.signal(blocking_signal, alarm)
    pool = make_pool([ScriptedEnv] * 2, num_workers=2, on_error=policy)
    pool.reset()
    with monkeypatch.context() as patched, pytest.raises(Alarm):
        patched.setattr(Seeds, "lose_process", lose)
        os.kill(pool.stats()["workers"][0]["pid"], signal.SIGKILL)
        while True:  # until the death is noticed
            pool.step(actions(2))
    pool.reset()
    assert pool.step(actions(2)).obs[:, 1].tolist() == [1, 1]
    assert pool.stats()["restarts"] == 1


def test_a_program_may_end_while_a_thread_waits(start_script: Callable[..., Script]) -> None:
    """Covers an exit that hangs, or crashes, on a background thread inside a call."""
    script = start_script(
        """
        import threading
        import shmenv
        from envs import ScriptedEnv, actions

        if __name__ == "__main__":
            pool = shmenv.Pool([ScriptedEnv] * 2, num_workers=2, close_timeout=0.2)
            pool.reset()
            pool.send(actions(2, {0: "hang"}))
            threading.excepthook = lambda args: None
            threading.Thread(target=pool.recv, daemon=True).start()
            print(*[worker["pid"] for worker in pool.stats()["workers"]])
        """
    )
    code, out, errors = script.finish(30)
    assert (code, errors) == (0, "")
    eventually(lambda: all(is_gone(int(pid)) for pid in out.split()))


@pytest.fixture
def _no_garbage() -> Iterator[None]:
    """No garbage collection: in its callbacks, some of our tools have one, Ctrl-C is swallowed with a warning."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_garbage")
@pytest.mark.parametrize(("mode", "policy"), [("same_step", "raise"), ("disabled", "restart")])
def test_a_pool_goes_on_after_ctrl_c_at_any_instant(mode: str, policy: str, make_pool: MakePool) -> None:
    rng = random.Random(mode)
    pool = make_pool([lambda: ScriptedEnv(length=7)] * 4, num_workers=2, autoreset=mode, on_error=policy)

    def send_and_recv() -> None:
        pool.send(actions(4))
        pool.recv(min_envs=2)

    uses: list[Callable[[], object]] = [
        lambda: pool.step(actions(4)),
        send_and_recv,
        lambda: pool.call("where"),
        lambda: pool.reset(env_id=[1, 2]),
    ]
    for use in uses:  # what numpy imports when it is first used shall not be interrupted
        pool.reset()
        use()
    before = signal.signal(signal.SIGALRM, lambda number, frame: signal.raise_signal(signal.SIGINT))
    interrupted = 0
    try:
        while interrupted < 400:
            pool.reset()
            use = rng.choice(uses)
            try:
                signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, 3e-4))
                use()
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                interrupted += 1
            pool.reset()
            assert pool.step(actions(4)).obs[:, 1].tolist() == [1] * 4
            assert len(pool.call("where")) == 4 and pool.pending == 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Interrupter:
    """Sends this process Ctrl-C at the n-th line that shmenv runs.

    The line of a `with` comes again when its block is left. There, other than a tracer, Python looks for no signal.
    """

    def __init__(self, n: int) -> None:
        self.left = n

    def during(self, use: Callable[[], shmenv.Batch]) -> shmenv.Batch:
        sys.settrace(self._enter)
        try:
            return use()
        finally:
            sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, arg: object) -> Any:
        if os.path.dirname(frame.f_code.co_filename) != HOUSE:
            return None
        entered = set[int]()

        def line(frame: FrameType, event: str, arg: object) -> Any:
            if event == "line" and frame.f_lineno not in entered:
                if linecache.getline(frame.f_code.co_filename, frame.f_lineno).lstrip().startswith("with "):
                    entered.add(frame.f_lineno)
                self.left -= 1
                if self.left == 0:
                    signal.raise_signal(signal.SIGINT)
            return line

        return line


@pytest.mark.parametrize("how", ["step", "send_and_recv", "out", "reset_some"])
@pytest.mark.parametrize(("policy", "fault"), [("raise", "ok"), ("raise", "raise"), ("restart", "raise")])
def test_ctrl_c_at_any_line_leaves_each_row_to_be_delivered_once(
    policy: str, fault: str, how: str, make_pool: MakePool
) -> None:
    """Covers rows that count as delivered, but which no caller has got."""
    pool = make_pool([ScriptedEnv] * 3, num_workers=2, on_error=policy)
    pool.reset()
    out, given = pool.step(actions(3)).copy(), actions(3, {1: fault})

    def send_and_recv(min_envs: int, out: shmenv.Batch | None) -> shmenv.Batch:
        pool.send(given)
        return pool.recv(min_envs=min_envs, out=out)

    use: Callable[[], shmenv.Batch] = {
        "step": lambda: pool.step(given),
        "send_and_recv": lambda: send_and_recv(2, None),
        "out": lambda: send_and_recv(3, out),
        "reset_some": lambda: pool.reset(env_id=[0, 1, 2]),
    }[how]
    rows: dict[int, Any] = {}
    errors: list[shmenv.EnvError] = []

    def take(receive: Callable[[], shmenv.Batch]) -> None:
        try:
            batch = receive()
        except shmenv.EnvError as error:
            errors.append(error)
            return
        for k, i in enumerate(batch.env_id.tolist()):
            assert i not in rows, "a row came twice"
            rows[i] = int(batch.obs[k, 1]), "abnormal" in batch.info[k]

    for n in range(1, 10_000):
        pool.reset()
        rows.clear()
        errors.clear()
        interrupter = Interrupter(n)
        with contextlib.suppress(KeyboardInterrupt):
            take(partial(interrupter.during, use))
        while pool.pending:
            take(lambda: pool.recv(min_envs=1, timeout=30))
        answer = (0, False) if how == "reset_some" else (1, False)
        failed = fault == "raise" and how != "reset_some"
        wanted = {0: answer, 1: (0, True) if failed else answer, 2: answer}
        if failed and policy == "raise":
            del wanted[1]
        if rows or errors:
            assert rows == wanted and len(errors) == (failed and policy == "raise")
        else:  # interrupted before anything was sent
            assert pool.call("where") == ((pool.call("where")[0][0], 0),) * 3
        if interrupter.left > 0:
            break  # there are no more lines
    assert n > 20


@pytest.mark.parametrize("how", ["recv", "step", "reset"])
def test_a_batch_that_is_interrupted_on_its_way_back_is_the_last_batch(how: str, make_pool: MakePool) -> None:
    class Alarm(Exception):
        pass

    pool = make_pool([ScriptedEnv] * 3, num_workers=2)
    assert pool.last_batch is None
    before = pool.reset()
    assert pool.last_batch is before
    if how == "recv":
        pool.send(actions(3))
    call = {"recv": pool.recv, "step": partial(pool.step, actions(3)), "reset": pool.reset}[how]
    code = getattr(shmenv.Pool, how).__code__

    def raise_at_return(frame: Any, event: str, value: Any) -> Any:
        if frame.f_code is code and event == "return" and value is not None:
            raise Alarm
        return raise_at_return

    tracing = sys.gettrace()
    sys.settrace(raise_at_return)
    try:
        with pytest.raises(Alarm):
            call()
    finally:
        sys.settrace(tracing)
    lost = pool.last_batch
    assert pool.pending == 0 and lost is not None and lost is not before
    assert lost.obs[:, 1].tolist() == [0 if how == "reset" else 1] * 3
    pool.close()
    assert pool.last_batch is None


def test_a_signal_handler_may_close_the_pool_at_any_instant_of_a_call(make_pool: MakePool) -> None:
    rng, pools = random.Random(0), list[shmenv.Pool]()
    before = signal.signal(signal.SIGALRM, lambda number, frame: pools[-1].close())
    try:
        while len(pools) < 30:
            pool = make_pool([ScriptedEnv] * 2, num_workers=2)
            pool.reset()
            pools.append(pool)
            signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 1e-3))
            with pytest.raises(shmenv.ClosedError):
                while True:
                    pool.call("where")
                    pool.step(actions(2))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
