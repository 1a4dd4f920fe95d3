import errno
import os
from pathlib import Path
from typing import Any

import pytest

from shmenv import _memory
from shmenv.errors import ResourceError
from shmenv.segment import Segment, available_memory, check_memory

MIB = 1 << 20


def write_files(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


MEMINFO = {"proc/meminfo": f"MemTotal: 999999999 kB\nMemFree: 1 kB\nMemAvailable: {1000 * 1024} kB\n"}
VERSION_2 = MEMINFO | {
    "proc/self/cgroup": "0::/job/step\n",
    "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
    "sys/fs/cgroup/memory.stat": "inactive_file 0\n",
}
VERSION_1 = MEMINFO | {
    "proc/self/cgroup": "12:cpu,cpuacct:/\n7:memory:/job/step\n0::/\n",
    "proc/self/mountinfo": (
        "40 32 0:35 / /sys/fs/cgroup/cpu rw shared:14 - cgroup cgroup rw,cpu,cpuacct\n"
        "41 32 0:36 / /sys/fs/cgroup/memory rw shared:15 - cgroup cgroup rw,memory\n"
    ),
}


def group(version: int, limit: str, usage: int, inactive: int = 0, active: int = 0) -> dict[str, str]:
    if version == 2:
        stat = f"anon 5\ninactive_file {inactive}\nactive_file {active}\n"
        return {"memory.max": f"{limit}\n", "memory.current": f"{usage}\n", "memory.stat": stat}
    stat = f"inactive_file 1\ntotal_inactive_file {inactive}\ntotal_active_file {active}\n"
    return {"memory.limit_in_bytes": f"{limit}\n", "memory.usage_in_bytes": f"{usage}\n", "memory.stat": stat}


def at(folder: str, files: dict[str, str]) -> dict[str, str]:
    return {f"{folder}/{name}": text for name, text in files.items()}


TOP_1, TOP_2, NONE_1 = "sys/fs/cgroup/memory", "sys/fs/cgroup", str(2**63 - 4096)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        pytest.param(MEMINFO, 1000 * MIB, id="no cgroups"),
        pytest.param(VERSION_2 | at(f"{TOP_2}/job/step", group(2, "max", 5)), 1000 * MIB, id="v2 without limit"),
        pytest.param(VERSION_2 | at(f"{TOP_2}/job/step", group(2, str(90 * MIB), 30 * MIB)), 60 * MIB, id="v2"),
        pytest.param(VERSION_2 | at(f"{TOP_2}/job", group(2, str(90 * MIB), 30 * MIB)), 60 * MIB, id="v2 ancestor"),
        pytest.param(
            VERSION_2 | at(TOP_2, group(2, str(90 * MIB), 30 * MIB)), 60 * MIB, id="v2 top, as in a container"
        ),
        pytest.param(
            VERSION_2 | at(f"{TOP_2}/job/step", group(2, str(90 * MIB), 80 * MIB, 15 * MIB, 5 * MIB)),
            30 * MIB,
            id="cache",
        ),
        pytest.param(VERSION_2 | at(f"{TOP_2}/job/step", group(2, str(90 * MIB), 95 * MIB)), 0, id="v2 over its limit"),
        pytest.param(
            VERSION_2
            | at(f"{TOP_2}/job/step", group(2, str(900 * MIB), 1 * MIB))
            | at(f"{TOP_2}/job", group(2, str(500 * MIB), 100 * MIB)),
            400 * MIB,
            id="the tightest",
        ),
        pytest.param(VERSION_2 | at(f"{TOP_2}/job/step", group(2, str(9000 * MIB), 0)), 1000 * MIB, id="v2 is wider"),
        pytest.param(
            VERSION_2 | {"proc/self/cgroup": "0::/../../other\n"} | at(TOP_2, group(2, str(70 * MIB), 0)),
            70 * MIB,
            id="v2 outside of the mount",
        ),
        pytest.param(VERSION_1 | at(f"{TOP_1}/job/step", group(1, NONE_1, 5)), 1000 * MIB, id="v1 without limit"),
        pytest.param(
            VERSION_1 | at(f"{TOP_1}/job/step", group(1, str(90 * MIB), 30 * MIB, 2 * MIB, 1 * MIB)), 63 * MIB, id="v1"
        ),
        pytest.param(VERSION_1 | at(f"{TOP_1}/job", group(1, str(90 * MIB), 30 * MIB)), 60 * MIB, id="v1 ancestor"),
        pytest.param(
            VERSION_1
            | {"proc/self/cgroup": "7:memory:/docker/abc\n"}
            | {"proc/self/mountinfo": "41 32 0:36 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"}
            | at(TOP_1, group(1, str(50 * MIB), 0)),
            50 * MIB,
            id="v1 in a container",
        ),
    ],
)
def test_available_memory_is_what_the_system_and_all_cgroups_leave(
    tmp_path: Path, files: dict[str, str], expected: int
) -> None:
    write_files(tmp_path, files)
    assert available_memory(tmp_path) == expected


def test_without_any_file_memory_counts_as_available(tmp_path: Path) -> None:
    assert available_memory(tmp_path) >= 1 << 60


def test_here_there_is_memory() -> None:
    assert MIB < available_memory() < 1 << 60


def test_too_little_memory_says_how_much_for_what_and_what_helps(tmp_path: Path) -> None:
    write_files(tmp_path, VERSION_2 | at(f"{TOP_2}/job/step", group(2, str(90 * MIB), 30 * MIB)))
    check_memory(50 * MIB, "8 envs", tmp_path)
    with pytest.raises(ResourceError) as caught:
        check_memory(59 * MIB, lambda: "8 envs", tmp_path)  # the kernel's own tables would fill the rest
    for part in (
        "59.0 MiB are needed for 8 envs",
        "60.0 MiB are available",
        "fewer envs",
        "slots",
        "smaller observations",
    ):
        assert part in str(caught.value)
    assert caught.value.errno == errno.ENOMEM


def test_an_allocation_that_cannot_be_is_refused_before_it_begins() -> None:
    segment = Segment("test")
    with pytest.raises(ResourceError, match=r"1,048,576\.0 MiB are needed for a dream"):
        segment.allocate(1 << 40, "a dream")
    assert os.fstat(segment.fileno()).st_size == 0
    segment.allocate(10, "a test")


def test_a_refusal_by_the_system_is_a_resource_error_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(_memory, "allocate", refuse)
    with pytest.raises(ResourceError, match="needed for a test, but the system says: No space left") as caught:
        Segment("test").allocate(10, "a test")
    assert caught.value.errno == errno.ENOSPC
