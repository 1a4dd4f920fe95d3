"""One block of shared memory: check, allocate, seal, attach, hand over to a process that is being started."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from multiprocessing import context, reduction
from pathlib import Path
from typing import Any, Protocol

from shmenv import _memory
from shmenv.errors import ClosedError, ResourceError, ShmenvError, UsageError

KNOBS = "fewer envs, fewer `slots`, smaller observations"
REGION_BYTES = 2**32  # of a spill; lengths of payloads are 32 bit words
CHECKED_PAYLOAD = 16 << 20  # bytes: below it a look at the system's free memory costs more than the payload
UNLIMITED = 1 << 60  # bytes: cgroup v1 writes "no limit" as a number about as large as an address space


class _DupFd(Protocol):
    """What `multiprocessing.reduction.DupFd` makes: a descriptor on its way to a process."""

    def detach(self) -> int: ...


def available_memory(root: Path = Path("/")) -> int:
    """Bytes that can still be allocated here: what the system has, or what the tightest memory cgroup leaves.

    Looked at before an allocation, because inside a full cgroup an allocation is answered by SIGKILL, not by an error.

    Args:
        root: where /proc and the cgroups' mount points are looked up; tests put made-up files there.

    Returns:
        MemAvailable, or the limit less the usage (file cache that can be dropped not counted) of this process's memory
        cgroup or one of its ancestors, version 1 or 2, whichever is least. Swap is not counted.
    """
    found = [UNLIMITED]
    with contextlib.suppress(OSError, ValueError):
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                found.append(int(line.split()[1]) << 10)
    for folder, limit_name, usage_name, cache_names in _memory_cgroups(root):
        with contextlib.suppress(OSError, ValueError):  # the root cgroup has no such files, and "max" is no number
            limit = int((folder / limit_name).read_text())
            usage = int((folder / usage_name).read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            cache = sum(int(stat.get(name, 0)) for name in cache_names)
            if limit < UNLIMITED:
                found.append(limit - max(0, usage - cache))
    return max(0, min(found))


def _memory_cgroups(root: Path) -> Iterator[tuple[Path, str, str, tuple[str, str]]]:
    """Each memory cgroup of this process and its ancestors: folder, and the names of limit, usage and file cache."""
    try:
        memberships = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = [line.split() for line in (root / "proc/self/mountinfo").read_text().splitlines()]
    except OSError:
        return
    for membership in memberships:
        _, controllers, path = membership.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        for fields in mounts:
            kind, options = fields[fields.index("-") + 1], fields[-1].split(",")
            if kind != ("cgroup" if controllers else "cgroup2") or (controllers and "memory" not in options):
                continue
            top = root / fields[4].lstrip("/")
            # The mount may show a part of the hierarchy only (a container's); a path outside of it is at its top.
            below = os.path.relpath(path, fields[3])
            parts = [] if below.startswith("..") else [part for part in below.split("/") if part != "."]
            for depth in range(len(parts), -1, -1):
                folder = top.joinpath(*parts[:depth])
                if controllers:
                    yield (
                        folder,
                        "memory.limit_in_bytes",
                        "memory.usage_in_bytes",
                        (
                            "total_inactive_file",
                            "total_active_file",
                        ),
                    )
                else:
                    yield folder, "memory.max", "memory.current", ("inactive_file", "active_file")


def check_memory(size: int, purpose: Callable[[], str] | str, root: Path = Path("/")) -> None:
    """Raise ResourceError unless `size` more bytes can be allocated; `purpose` completes "for ..." in its text."""
    need = size + size // 16  # the kernel's own tables, and not to leave the process with nothing
    there = available_memory(root)
    if need > there:
        raise ResourceError(errno.ENOMEM, _shortage(size, purpose, f"{_bytes(there)} are available"))


def _shortage(size: int, purpose: Callable[[], str] | str, why: str) -> str:
    what = purpose if isinstance(purpose, str) else purpose()
    return f"shared memory: {_bytes(size)} are needed for {what}, but {why}. What lowers the need: {KNOBS}"


def _bytes(count: int) -> str:
    return f"{count / (1 << 20):,.1f} MiB" if count >= 1 << 20 else f"{count:,} bytes"


def only_at_process_start(thing: object) -> None:
    """Raise TypeError unless the arguments of a process that is being started are pickled right now."""
    try:
        context.assert_spawning(thing)
    except RuntimeError:
        raise TypeError(
            f"a {type(thing).__name__} travels only as an argument of a process start, for example "
            "multiprocessing.Process(args=...): what it stands for has no name, so it cannot be pickled or copied"
        ) from None


class Descriptor:
    """A file descriptor that travels to a process that is being started, and in no other way."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        """Return the descriptor. Raises ClosedError after close()."""
        if self._fd < 0:
            raise ClosedError(f"this {type(self).__name__} is closed")
        return self._fd

    def close(self) -> None:
        """Close the descriptor. Idempotent. What is mapped stays so until the last view of it is gone."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        only_at_process_start(self)
        return _arrive, (type(self), reduction.DupFd(self.fileno()), self._luggage())

    def _luggage(self) -> dict[str, object]:
        """Attributes that travel beside the descriptor."""
        return {}


def _arrive(kind: type[Descriptor], fd: _DupFd, luggage: dict[str, object]) -> Descriptor:
    """Called by: the started process, while it unpickles its arguments."""
    arrived = kind.__new__(kind)
    arrived._fd = fd.detach()
    os.set_inheritable(arrived._fd, False)  # the start made it inheritable, and envs may start programs
    arrived.__dict__.update(luggage)
    return arrived


class ProcessHandle(Descriptor):
    """This very process as a handle that others can watch: unlike its id, it never comes to mean another process."""

    def __init__(self) -> None:
        try:
            super().__init__(_memory.pidfd_open(os.getpid()))
        except OSError as error:
            raise ResourceError(error.errno, f"this process cannot be watched: {error.strerror}") from error


class _Memory(Descriptor):
    """Nameless shared memory."""

    def __init__(self, label: str) -> None:
        try:
            super().__init__(_memory.create_memory(f"shmenv-{label}"))
        except OSError as error:
            raise ResourceError(error.errno, f"no shared memory to be had: {error.strerror}") from error

    def _seal(self) -> None:
        try:
            _memory.seal(self._fd)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.EINVAL):  # no memfd here: shm_open, whose name is gone
                raise


class Segment(_Memory):
    """One block of shared memory: made without a size, later allocated once, then mapped by all who hold it.

    Args:
        label: what it is for; shows in /proc only.
    """

    _mapping: _memory.Mapping | None = None

    def allocate(self, size: int, purpose: Callable[[], str] | str) -> None:
        """Reserve `size` bytes, all zero, make the size final, and map them.

        Args:
            size: bytes, at least 1.
            purpose: completes "for ..." in the error's text; a callable is called only then.

        Raises:
            ResourceError: that much is not to be had. Nothing changed.
            UsageError: it has its size already.
        """
        if os.fstat(self.fileno()).st_size:
            raise UsageError("this Segment has been allocated before")
        check_memory(size, purpose)
        try:
            _memory.allocate(self._fd, size)
        except OSError as error:
            raise ResourceError(error.errno, _shortage(size, purpose, f"the system says: {error.strerror}")) from error
        self._seal()
        self.attach()

    def attach(self) -> None:
        """Map what another process has allocated. Idempotent.

        Raises:
            UsageError: it is not allocated yet.
            ResourceError: there is no address space for it.
        """
        if self._mapping is not None:
            return
        size = os.fstat(self.fileno()).st_size
        if not size:
            raise UsageError("this Segment is not allocated yet")
        try:
            self._mapping = _memory.Mapping(self._fd, size)
        except OSError as error:
            raise ResourceError(error.errno, f"cannot map {_bytes(size)} of shared memory: {error.strerror}") from error

    @property
    def buffer(self) -> _memory.Mapping:
        """The bytes, writable. Stays valid while it or a view of it lives, also after close()."""
        if self._mapping is None:
            raise UsageError("this Segment is not mapped: call allocate() or attach() first")
        return self._mapping

    @property
    def size(self) -> int:
        """Bytes; 0 before it is mapped."""
        return 0 if self._mapping is None else self._mapping.size


class Spill(_Memory):
    """Room for payloads too long for their slot: one sparse file in memory, a region of 2**32 addresses a writer.

    Written and read by system calls and never mapped, so whatever a broken writer does to it, a reader gets an error
    and no SIGBUS. Where a payload lies is fixed, and how long it is stands in the slot: the commit is the slot's.

    Args:
        regions: how many; each has one writer at a time.
    """

    def __init__(self, regions: int) -> None:
        if not 1 <= regions < 2**31:
            raise UsageError(f"regions must be in 1..2**31 - 1, not {regions}")
        super().__init__("spill")
        self.regions = regions
        self._filled: dict[int, int] = {}  # region -> bytes that it may occupy, as far as this process knows
        try:
            _memory.resize(self._fd, regions * REGION_BYTES)
        except OSError as error:
            self.close()
            raise ResourceError(error.errno, f"no room for {regions} spill regions: {error.strerror}") from error
        self._seal()

    def _luggage(self) -> dict[str, object]:
        return {"regions": self.regions, "_filled": {}}

    def _start(self, region: int) -> int:
        if not 0 <= region < self.regions:
            raise UsageError(f"spill region {region} is not in 0..{self.regions - 1}")
        return region * REGION_BYTES

    def write(self, region: int, data: bytes | bytearray | memoryview) -> None:
        """Put `data` at the start of the region, and give back what a much larger payload before it took.

        Raises:
            ResourceError: 2**32 bytes or more, or not enough memory. The region's content is undefined.
        """
        start, view = self._start(region), memoryview(data).cast("B")
        length = view.nbytes
        if length >= REGION_BYTES:
            raise ResourceError(
                errno.EFBIG, f"a pickled payload of {_bytes(length)} is too long: less than {_bytes(REGION_BYTES)} fit"
            )
        if length >= CHECKED_PAYLOAD:
            check_memory(length - self._filled.get(region, 0), "a pickled payload")
        try:
            done = 0
            while done < length:
                done += os.pwrite(self.fileno(), view[done:], start + done)
            # A predecessor in this region may have left anything: what this process never wrote counts as full.
            filled = self._filled.get(region, REGION_BYTES)
            if filled - length > max(length, 1 << 20):
                page = -(-length // 4096) * 4096
                _memory.release(self._fd, start + page, filled - page)
                filled = length
            self._filled[region] = max(filled, length)
        except OSError as error:
            raise ResourceError(
                error.errno, _shortage(length, "a pickled payload", f"the system says: {error.strerror}")
            ) from error

    def read(self, region: int, length: int) -> bytes:
        """Return the first `length` bytes of the region.

        Raises:
            UsageError: there is no such region.
            ShmenvError: nobody wrote that much: whoever gave the length is broken.
        """
        start = self._start(region)
        if not 0 <= length < REGION_BYTES:
            raise ShmenvError(f"spill region {region}: {length} is no length of a payload")
        # Ask before reading: a made-up length would make this process hold up to 4 GiB of zeros.
        if length and os.lseek(self.fileno(), start, os.SEEK_HOLE) < start + length:
            raise ShmenvError(f"spill region {region}: a payload of {length} bytes was announced, but never written")
        parts = []
        while length:
            part = os.pread(self.fileno(), length, start)
            if not part:
                raise ShmenvError(f"spill region {region}: {length} bytes of the payload are missing")
            parts.append(part)
            start, length = start + len(part), length - len(part)
        return b"".join(parts) if len(parts) != 1 else parts[0]


class StackLog(_Memory):
    """A file in memory to which dying or hanging workers append the stacks that faulthandler prints."""

    def __init__(self) -> None:
        super().__init__("stacks")
        flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
        fcntl.fcntl(self._fd, fcntl.F_SETFL, flags | os.O_APPEND)  # of the open file, so in every process

    def size(self) -> int:
        """Bytes so far."""
        return os.fstat(self.fileno()).st_size

    def forget(self, end: int) -> None:
        """Give the memory of what stands before byte `end` back: crashes for months must not add up."""
        if pages := end - end % 4096:
            _memory.release(self.fileno(), 0, pages)

    def text(self, start: int) -> str:
        """What was appended from byte `start` on, at most 64 KiB of it."""
        return os.pread(self.fileno(), 1 << 16, start).decode(errors="replace")
