"""Feeds each decoder of memory that another process wrote with bytes that no worker would write.

usage: python tests/fuzz/decoders.py TARGET [libFuzzer's options]

Each decoder may answer or raise what it documents; anything else, and whatever AddressSanitizer or
UndefinedBehaviorSanitizer finds in the compiled modules, ends the run with the input that did it. `make fuzz` builds
the modules for this and runs every target for a minute. Pickles are read by an unpickler that knows no names: what
they may do is not a decoder's to judge (see docs/reliability.md).
"""

from __future__ import annotations

import io
import pickle
import sys
import types
from collections.abc import Callable

import atheris
import numpy as np

from shmenv import _info, _port, codec
from shmenv._turn import Turn
from shmenv.errors import ShmenvError
from shmenv.info import Infos
from shmenv.layout import ArrayNode, ObjectNode
from shmenv.plan import Plan, split
from shmenv.rows import Rows
from shmenv.segment import REGION_BYTES, Segment, Spill

N = 3
ALL = np.arange(N, dtype=np.uint32)


class _Nameless(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> object:
        raise pickle.UnpicklingError(f"{module}.{name} is not known here")


def _loads(data: bytes | bytearray | memoryview) -> object:
    return _Nameless(io.BytesIO(data)).load()


codec.pickle = types.SimpleNamespace(loads=_loads, dumps=pickle.dumps)  # type: ignore[assignment, attr-defined]


def info(data: bytes) -> None:
    """Info records: whole, one key, and as columns of a batch."""
    for decode in (
        _info.unpack_info,
        lambda record: _info.find_value(record, "lives"),
        lambda record: Infos([record, record[::-1], b""]).column("lives"),
    ):
        try:
            decode(data)
        except ValueError:
            pass


def error(data: bytes) -> None:
    """Error records, and the pair that a row holds: these are never refused, for an error is told in any case."""
    assert isinstance(codec.load_error(data).message, str)
    command, record = codec.load_failure(data)
    assert command in ("step", "reset") and type(record) is bytes


class _Pool:
    """The manager's end of a pool that has no workers, but rows full of what they might have written."""

    def __init__(self, autoreset: str) -> None:
        self.plan = Plan(N, split(N, 2), 2, autoreset, ArrayNode(np.dtype("f4"), (2,)), ObjectNode(), ())
        self.segment, self.spill = Segment("fuzz"), Spill(self.plan.regions_for(N, 2))
        self.segment.allocate(self.plan.layout.size, "a fuzzer")
        buffer = self.segment.buffer
        self.port = _port.Port(
            buffer, self.plan.places(), [self.plan.places(w) for w in range(2)], Turn(), num_envs=N, planes=2,
            note_bytes=1024, first_command=0, waits=(0, 0, 0, 10**8), cores=2,
        )  # fmt: skip
        self.rows = Rows(self.plan, buffer, self.port, self.spill)
        self.calls = self.plan.mail("call", buffer, self.spill)
        names = ["flags", "heads", "call_heads", "rsp/0", "ended/0", "worker/0", "rsp/1"]
        names += ["final_heads"] * (autoreset == "same_step")
        self.words = [self.plan.array(name, buffer).reshape(-1).view(np.uint32) for name in names]
        self.notes = [self.plan.array(name, buffer).reshape(-1) for name in ("notes", "call_notes")]
        self.small = np.array([0, 1, 8, 63, 1023, 1024, 1025, 4096, 65535, 2**31, 2**32 - 1], np.uint32)


_pools: list[_Pool] = []


def slots(data: bytes) -> None:
    """Flags, heads and side areas of rows and calls; rsp, ended and the worker's words."""
    if not _pools:
        _pools.extend(map(_Pool, ("same_step", "disabled")))
    take = atheris.FuzzedDataProvider(data)
    pool = _pools[take.ConsumeBool()]
    for words in pool.words:
        for k in range(len(words)):
            words[k] = (
                pool.small[take.ConsumeIntInRange(0, 10)] if take.ConsumeBool() else take.ConsumeInt(4) & 2**32 - 1
            )
    for notes in pool.notes:
        part = np.frombuffer(take.ConsumeBytes(take.ConsumeIntInRange(0, 64)), np.uint8)
        notes[: len(part)] = part
    port = pool.port
    out = np.empty(N, np.uint32)
    port.ready(out)
    for env_id in range(N):
        port.is_unanswered(env_id), port.has_ended(env_id), port.flags_of(env_id)
        one = np.array([env_id], np.uint32)
        for final in (False, True):
            try:
                infos, _ = pool.rows.notes(one, final, 1)
                Infos(infos)[0]
            except (ValueError, ShmenvError):
                pass
        try:
            pool.calls.read(env_id)
        except ShmenvError:
            pass
    port.account(0)


_spill: Spill | None = None


def spill(data: bytes) -> None:
    """Payloads in the spill: any length announced, any bytes there."""
    global _spill
    file = _spill = _spill or Spill(3)
    take = atheris.FuzzedDataProvider(data)
    region = take.ConsumeIntInRange(0, 2)
    announced = take.ConsumeIntInRange(-2, 20000) if take.ConsumeBool() else take.ConsumeIntInRange(-2, REGION_BYTES)
    payload = take.ConsumeBytes(20000)
    file.write(region, payload)
    try:
        found = file.read(region, announced)
    except ShmenvError:
        return
    assert len(found) == announced and found[: len(payload)] == payload[: len(found)]


TARGETS: dict[str, Callable[[bytes], None]] = {"info": info, "error": error, "slots": slots, "spill": spill}


def main() -> None:
    """Run one target for as long as libFuzzer's options say."""
    target = TARGETS[sys.argv.pop(1)]
    atheris.Setup(sys.argv, target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
