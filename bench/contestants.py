"""The contestants of compare.py: which module of peers/ starts them, in which environment."""

import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PEERS = ROOT / ".peers"  # what tools/peers.py makes


@dataclass(frozen=True)
class Contestant:
    """One row of the comparison.

    Attributes:
        name: in tables.
        module: in peers/.
        kind: what the module is to start, if it knows several.
        venv: its environment below .peers; None: that of shmenv.
        package: what is measured, as package registries call it.
    """

    name: str
    module: str
    kind: str | None = None
    venv: str | None = None
    package: str = "shmenv"

    @property
    def called(self) -> str:
        """By a user who chooses it, in whatever workloads."""
        return self.name.replace(" in a loop", "")

    @property
    def missing(self) -> str | None:
        """Why its environment isn't there."""
        if self.python.exists():
            return None
        note = PEERS / f"{self.venv}.missing"
        return note.read_text() if note.exists() else "not installed: run tools/peers.py"

    @property
    def python(self) -> Path:
        return PEERS / self.venv / "bin" / "python" if self.venv else Path(sys.executable)


LIMIT, COPYING = "the limit", "the limit, copying"
POOL, SPREAD, MANAGER, ASYNC_MANAGER = "Pool", "Pool, spread", "subprocess manager", "async manager"
SYNC, ASYNC = "Gymnasium Sync", "Gymnasium Async"
SB3, TIANSHOU, PUFFER, ENVPOOL = "SB3 Subproc", "tianshou Shmem", "PufferLib", "EnvPool (C++)"
DING, ASYNC_DING = "DI-engine subprocess", "DI-engine async"


def _looping(name: str, kind: str, package: str, venv: str = "sb3") -> Contestant:
    return Contestant(name, "loop", kind, venv, package)


# What has torch beside it has an environment of its own, and with it another name.
LOOP_LIMIT, LOOP_POOL = "two that never talk", "Pool in a loop"
LOOP_SHM, LOOP_SYNC, LOOP_ASYNC = "ShmVectorEnv", "SyncVectorEnv", "AsyncVectorEnv"
LOOPERS = [
    _looping(LOOP_LIMIT, "limit", "gymnasium"),
    _looping(LOOP_POOL, "pool", "shmenv"),
    _looping(f"{LOOP_POOL}, torch's threads", "pool+", "shmenv"),
    _looping(LOOP_SHM, "shm", "shmenv"),
    _looping(f"{LOOP_SHM}, torch's threads", "shm+", "shmenv"),
    _looping(LOOP_SYNC, "sync", "gymnasium"),
    _looping(f"{LOOP_SYNC}, torch's threads", "sync+", "gymnasium"),
    _looping(LOOP_ASYNC, "async", "gymnasium"),
    _looping("ShmVecEnv", "vec", "shmenv"),
    _looping("SubprocVecEnv", "subproc", "stable-baselines3"),
    _looping("DummyVecEnv", "dummy", "stable-baselines3"),
    _looping("PufferLib in a loop", "puffer", "pufferlib", "pufferlib"),
]

CONTESTANTS = [
    Contestant(LIMIT, "limit", "plain", package="gymnasium"),
    Contestant(COPYING, "limit", "copies", package="gymnasium"),
    Contestant(POOL, "ours", "pool"),
    Contestant(SPREAD, "ours", "spread"),
    Contestant(MANAGER, "ours", "subprocess"),
    Contestant(ASYNC_MANAGER, "ours", "async_subprocess"),
    Contestant(SYNC, "gym", "sync", package="gymnasium"),
    Contestant(ASYNC, "gym", "async", package="gymnasium"),
    Contestant(SB3, "sb3", venv="sb3", package="stable-baselines3"),
    Contestant(TIANSHOU, "tianshou", venv="tianshou", package="tianshou"),
    Contestant(DING, "ding", "subprocess", venv="ding", package="DI-engine"),
    Contestant(ASYNC_DING, "ding", "async_subprocess", venv="ding", package="DI-engine"),
    Contestant(PUFFER, "puffer", venv="pufferlib", package="pufferlib"),
    Contestant(ENVPOOL, "envpool", venv="envpool", package="envpool"),
]
