"""What does each part of a step cost, by itself and without workers, beside the plain way to do the same?"""

import pickle
import signal
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shmenv import _port
from shmenv._info import pack_info, pack_object, unpack_info
from shmenv._port import Port
from shmenv._turn import Turn
from shmenv.action import ActionWriter
from shmenv.batch import Batch
from shmenv.cpu import Waits
from shmenv.info import Infos
from shmenv.layout import ArrayNode
from shmenv.plan import NOTE_BYTES, Plan, split
from shmenv.segment import Segment
from shmenv.timestep import BaseEnvTimestep, TimestepReader
from shmenv.unbroken import Unbroken

N = 64
OBS = ArrayNode(np.dtype("f4"), (4,))
INFO = {"x": 0.5, "y": -1.5, "lives": 3, "frame": 17, "score": 34.0}
Packing = tuple[Callable[[Any], bytes], Callable[[bytes], Any]]
PACKED: dict[str, Packing] = {"shmenv": (pack_info, unpack_info), "pickle": (pickle.dumps, pickle.loads)}


@pytest.mark.parametrize("name", PACKED)
def test_pack_an_info(name: str, benchmark: Any) -> None:
    benchmark.group = "info of five numbers: pack"
    pack, unpack = PACKED[name]
    assert unpack(benchmark(pack, INFO)) == INFO


@pytest.mark.parametrize("name", PACKED)
def test_unpack_an_info(name: str, benchmark: Any) -> None:
    benchmark.group = "info of five numbers: unpack"
    pack, unpack = PACKED[name]
    assert benchmark(unpack, pack(INFO)) == INFO


@pytest.mark.parametrize("name", PACKED)
def test_pack_an_action(name: str, benchmark: Any) -> None:
    benchmark.group = "an int64 action as an object: pack"
    action = np.int64(3)
    got = PACKED[name][1](benchmark(pack_object if name == "shmenv" else pickle.dumps, action))
    assert got == action and type(got) is np.int64


@pytest.mark.parametrize("name", ["shmenv.ActionWriter", "numpy"])
@pytest.mark.parametrize(
    "leaf", [ArrayNode(np.dtype("i8"), ()), ArrayNode(np.dtype("f4"), (17,))], ids=["Discrete", "Box"]
)
def test_write_actions(leaf: ArrayNode, name: str, benchmark: Any) -> None:
    benchmark.group = f"{N} actions {leaf} into their rows"
    rows = np.zeros((N, *leaf.shape), leaf.dtype)
    action = np.random.default_rng(0).integers(9, size=rows.shape).astype(leaf.dtype)
    writer = ActionWriter(leaf, [rows], N)

    def assign() -> None:
        rows[...] = action

    write: Callable[[], object] = assign if name == "numpy" else lambda: writer.write(action, None)
    assert benchmark(write) is None
    np.testing.assert_array_equal(rows, action)


class Channels:
    """The manager's end of a pool whose workers never take anything up."""

    def __init__(self) -> None:
        self.plan = Plan(N, split(N, 2), 2, "same_step", OBS, ArrayNode(np.dtype("i8"), ()), ())
        segment = Segment("bench")
        segment.allocate(self.plan.layout.size, "a benchmark")
        self.buffer = segment.buffer
        segment.close()
        places = [self.plan.places(worker_id) for worker_id in range(2)]
        self.port = Port(
            self.buffer, self.plan.places(), places, Turn(), num_envs=N, planes=2, note_bytes=NOTE_BYTES,
            first_command=0, waits=Waits(0, 0), cores=2,
        )  # fmt: skip


@pytest.fixture
def channels() -> Channels:
    return Channels()


@pytest.mark.parametrize("name", ["Port.command", "numpy"])
def test_give_commands(name: str, channels: Channels, benchmark: Any) -> None:
    """The plain way is the numbers alone: no bell, and nothing said of who sees them when."""
    benchmark.group = f"{N} commands"
    words = [channels.plan.array(f"{field}/{worker}", channels.buffer) for field in ("op", "cmd") for worker in (0, 1)]
    port, count = channels.port, 0

    def command() -> None:
        nonlocal count
        port.command(None, _port.STEP, count & 1, True, True)
        count += 1

    def assign() -> None:
        nonlocal count
        count += 1
        for op, cmd in (words[::2], words[1::2]):
            op[...] = _port.STEP
            cmd[...] = count

    benchmark(command if name == "Port.command" else assign)
    if name == "Port.command":
        assert port.pending == N
        np.testing.assert_array_equal(np.concatenate(words[2:]), np.full(N, count))


@pytest.mark.parametrize("name", ["Port.await_answers", "numpy"])
def test_scan_answers(name: str, channels: Channels, benchmark: Any) -> None:
    """All are in, as at the end of a wait."""
    benchmark.group = f"scan of {N} answers"
    ids, answered, given = np.arange(N, dtype=np.uint32), np.zeros(N, np.uint32), np.zeros(N, np.uint32)
    if name == "numpy":
        assert benchmark(lambda: (answered == given).all())
    else:
        assert benchmark(channels.port.await_answers, ids, N, 0) == _port.READY


@pytest.mark.parametrize("name", ["Port.gather", "numpy"])
def test_gather_rows(name: str, channels: Channels, benchmark: Any) -> None:
    benchmark.group = f"{N // 2} scattered rows of {N}, 16 B each"
    (obs,) = channels.plan.rows("obs", channels.buffer)
    obs[...] = np.arange(obs.size).reshape(obs.shape)
    ids = np.arange(0, N, 2, dtype=np.uint32)
    out, at = np.empty((len(ids), 4), "f4"), channels.plan.layout.offset("obs/0")
    if name == "numpy":
        benchmark(np.take, obs[0], ids, 0, out)
    else:
        benchmark(channels.port.gather, ids, at, out)
    np.testing.assert_array_equal(out, obs[0, ids])


def whole_batch(channels: Channels) -> Batch:
    obs, reward, flags = np.ones((N, 4), "f4"), np.ones(N), np.zeros(N, bool)
    env_id, none = np.arange(N, dtype=np.int32), Infos.empty(N)
    return Batch(env_id, obs, reward, flags, flags, none, obs, none, channels.port, 0)


@pytest.mark.parametrize("name", ["shmenv.Batch", "SimpleNamespace"])
def test_make_a_batch(name: str, channels: Channels, benchmark: Any) -> None:
    benchmark.group = "the object that holds a batch's arrays"
    batch = whole_batch(channels)
    names = ("env_id", "obs", "reward", "terminated", "truncated", "info", "final_obs", "final_info")
    values = [getattr(batch, each) for each in names]
    if name == "shmenv.Batch":
        made = benchmark(Batch, *values, channels.port, 0)
    else:
        fields = dict(zip(names, values, strict=True))
        made = benchmark(lambda: SimpleNamespace(**fields))
    assert made.obs is batch.obs


@pytest.mark.parametrize("name", ["TimestepReader", "a loop"])
def test_make_timesteps(name: str, channels: Channels, benchmark: Any) -> None:
    benchmark.group = f"timesteps of {N} rows"
    batch, reader = whole_batch(channels), TimestepReader(OBS, copies=True)
    observations = reader.observations(batch.obs, N)

    def loop() -> tuple[list[Any], None]:
        rows = zip(observations, batch.reward, batch.terminated, strict=True)
        return [BaseEnvTimestep(obs, float(reward), bool(done), {}) for obs, reward, done in rows], None

    timesteps, _ = benchmark(loop) if name == "a loop" else benchmark(reader.timesteps, batch, observations)
    assert [timestep[1:] for timestep in timesteps] == [(1.0, False, {})] * N


@pytest.mark.parametrize("name", ["shmenv.Unbroken", "signal.signal"])
def test_hold_back_an_interrupt(name: str, benchmark: Any) -> None:
    benchmark.group = "Ctrl-C held back and let through again"
    turn, before = Turn(), signal.getsignal(signal.SIGINT)
    unbroken = Unbroken(lambda: turn)

    def hold_back() -> None:
        with unbroken:
            pass

    def swap() -> None:
        signal.signal(signal.SIGINT, signal.signal(signal.SIGINT, signal.SIG_IGN))

    benchmark(hold_back if name == "shmenv.Unbroken" else swap)
    with unbroken:
        assert signal.getsignal(signal.SIGINT) is not before
    assert signal.getsignal(signal.SIGINT) is before
