"""What a pool has open lets nobody in: no names, no inherited descriptors, no listening sockets, sealed memory."""

from __future__ import annotations

import fcntl
import os
import subprocess
from collections.abc import Callable

import pytest
from envs import ScriptedEnv, actions

import shmenv

MakePool = Callable[..., shmenv.Pool]
SIZE_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def open_files(pid: int | str = "self") -> dict[int, str]:
    found = {}
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue  # the one that listed the folder
    return found


def listening(pids: list[int]) -> list[str]:
    """The sockets that these processes listen on: lines of the kernel's tables."""
    inodes = {
        target[len("socket:[") : -1]
        for pid in pids
        for target in open_files(pid).values()
        if target.startswith("socket:[")
    }
    found = []
    for table, state, inode, listens in (("tcp", 3, 9, "0A"), ("tcp6", 3, 9, "0A"), ("unix", 3, 6, "00010000")):
        with open(f"/proc/net/{table}") as lines:
            rows = [line.split() for line in lines][1:]
        found += [" ".join(row) for row in rows if row[inode] in inodes and row[state] == listens]
    return found


def test_nobody_else_gets_at_what_a_pool_has_open(make_pool: MakePool, context: str) -> None:
    make_pool([ScriptedEnv], context=context).close()  # what multiprocessing keeps is there from now on
    names, before = os.listdir("/dev/shm"), open_files()
    pool = make_pool([ScriptedEnv] * 4, num_workers=2, context=context)
    pool.reset()
    pool.step(actions(4))
    ours = {fd: target for fd, target in open_files().items() if before.get(fd) != target}
    assert ours and os.listdir("/dev/shm") == names
    for fd in ours:
        assert not os.get_inheritable(fd), ours[fd]
    memory = [fd for fd, target in ours.items() if target.startswith("/memfd:shmenv")]
    assert len(memory) >= 2 and all(os.fstat(fd).st_mode & 0o777 == 0o600 for fd in memory)
    (segment,) = [fd for fd in memory if os.fstat(fd).st_size == pool.stats()["segment_bytes"]]
    assert fcntl.fcntl(segment, fcntl.F_GET_SEALS) & SIZE_SEALS == SIZE_SEALS
    with pytest.raises(PermissionError):
        os.ftruncate(segment, 0)
    assert not listening([os.getpid(), *(worker["pid"] for worker in pool.stats()["workers"])])


@pytest.mark.parametrize("who", ["the manager", "an env"])
def test_a_program_that_is_started_meanwhile_inherits_nothing(make_pool: MakePool, context: str, who: str) -> None:
    """Also one that asks for all that can be inherited."""
    pool = make_pool([ListingEnv] * 2, num_workers=2, context=context)
    found = descriptors_of_a_child() if who == "the manager" else pool.call("children")[0]
    assert len(found) >= 3
    assert not [line for line in found if any(word in line for word in ("memfd:", "socket:", "anon_inode:"))]


def descriptors_of_a_child() -> list[str]:
    listing = ["ls", "-l", "/proc/self/fd"]
    return subprocess.check_output(listing, stdin=subprocess.DEVNULL, close_fds=False, text=True).splitlines()


class ListingEnv(ScriptedEnv):
    """Starts a program and asks what that has inherited."""

    def children(self) -> list[str]:
        return descriptors_of_a_child()
