"""Takes something away from this process, for good, by name."""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import struct
import subprocess
from collections.abc import Callable

X86 = platform.machine() == "x86_64"
MEMFD_CREATE, PIDFD_OPEN = 319 if X86 else 279, 434
ENOSYS = 38


def refuse(*numbers: int) -> None:
    """These system calls do not exist any more: a filter of the kernel's answers, as some containers have it."""
    # load the number; each comparison jumps to the last line but one; allow; refuse
    lines = [struct.pack("HBBI", 0x20, 0, 0, 0)]
    for k, number in enumerate(numbers):
        lines.append(struct.pack("HBBI", 0x15, len(numbers) - k, 0, number))
    lines += [struct.pack("HBBI", 6, 0, 0, 0x7FFF0000), struct.pack("HBBI", 6, 0, 0, 0x50000 | ENOSYS)]
    code = ctypes.create_string_buffer(b"".join(lines))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(lines), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, ctypes.addressof(program), 0, 0) == 0  # PR_SET_SECCOMP, SECCOMP_MODE_FILTER


def mounted(*commands: str) -> None:
    """A name space of this process's own, in which these commands are run."""
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    assert libc.unshare(0x10000000 | 0x00020000) == 0, os.strerror(ctypes.get_errno())  # CLONE_NEWUSER, CLONE_NEWNS
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    for command in commands:
        subprocess.run(command, shell=True, check=True)


def few_descriptors() -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))


def no_more_processes() -> None:
    """As an ordinary user, for root has no such limit."""
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    if os.getuid() == 0:
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)


def no_shared_memory() -> None:
    mounted("mount -t tmpfs -o ro none /dev/shm")
    refuse(MEMFD_CREATE)


def join_cgroup(folder: str) -> None:
    with open(f"{folder}/cgroup.procs", "w") as procs:
        procs.write(str(os.getpid()))


POOR: dict[str, Callable[..., None]] = {
    "small /dev/shm": lambda: mounted("mount -t tmpfs -o size=64k none /dev/shm"),
    "full /dev/shm": lambda: mounted(
        "mount -t tmpfs -o size=64k none /dev/shm", "head -c 65536 /dev/zero > /dev/shm/full"
    ),
    "no /dev/shm": lambda: mounted("mount -t tmpfs -o ro none /dev/shm"),
    "read-only /tmp": lambda: mounted("mount --rbind /tmp /tmp", "mount -o remount,bind,ro /tmp"),
    "no /proc": lambda: mounted("mount -t tmpfs -o ro none /proc"),
    "no memfd_create": lambda: refuse(MEMFD_CREATE),
    "64 descriptors": few_descriptors,
    "no pidfd_open": lambda: refuse(PIDFD_OPEN),
    "no shared memory at all": no_shared_memory,
    "memory cgroup": join_cgroup,
}
ALREADY_IMPORTED = {"no more processes": no_more_processes}  # what is installed may be for root's eyes only
