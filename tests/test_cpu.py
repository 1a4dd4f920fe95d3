import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import shmenv.cpu
from shmenv.cpu import (
    THREAD_VARIABLES,
    Spreader,
    Waits,
    choose_waits,
    cpu_quota,
    limit_threads,
    limited_threads,
    pin_plan,
    usable_cores,
)  # fmt: skip
from shmenv.errors import UsageError

V2_MOUNT = "30 20 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw,nsdelegate"


def machine(root: Path, cgroup: str, mountinfo: str, files: dict[str, str]) -> Path:
    """A made-up /proc and /sys under `root`."""
    for name, text in {"proc/self/cgroup": cgroup, "proc/self/mountinfo": mountinfo, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2, 3, 8, 9, 10, 11})


def test_without_a_quota_the_affinity_mask_counts_and_not_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 999)
    assert usable_cores(tmp_path) == 8


def test_a_version_2_quota_cuts_the_usable_cores(tmp_path: Path) -> None:
    machine(tmp_path, "0::/job", V2_MOUNT, {"sys/fs/cgroup/job/cpu.max": "300000 100000"})
    assert cpu_quota(tmp_path) == 3.0
    assert usable_cores(tmp_path) == 3


def test_the_smallest_quota_of_all_ancestors_counts(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/a/cpu.max": "700000 100000",
        "sys/fs/cgroup/a/b/cpu.max": "200000 100000",
        "sys/fs/cgroup/a/b/c/cpu.max": "max 100000",
    }
    machine(tmp_path, "0::/a/b/c", V2_MOUNT, files)
    assert usable_cores(tmp_path) == 2


def test_a_quota_above_the_mount_point_is_not_looked_for(tmp_path: Path) -> None:
    machine(tmp_path, "0::/job", V2_MOUNT, {"sys/fs/cgroup/job/cpu.max": "max 100000", "sys/cpu.max": "1 1"})
    assert cpu_quota(tmp_path) is None


def test_a_version_1_quota_cuts_the_usable_cores(tmp_path: Path) -> None:
    mounts = (
        "31 20 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "32 20 0:28 / /sys/fs/cgroup/cpu,cpuacct rw shared:7 - cgroup cgroup rw,cpu,cpuacct"
    )
    files = {
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1",
        "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000",
        "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "125000",
        "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "50000",
    }
    machine(tmp_path, "5:memory:/job\n4:cpu,cpuacct:/job\n0::/", mounts, files)
    assert cpu_quota(tmp_path) == 2.5
    assert usable_cores(tmp_path) == 3


def test_a_container_that_sees_only_its_own_part_of_the_hierarchy_finds_its_quota(tmp_path: Path) -> None:
    mount = "32 20 0:28 /docker/abc /sys/fs/cgroup/cpu ro - cgroup cgroup rw,cpu"
    files = {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}
    machine(tmp_path, "4:cpu:/docker/abc", mount, files)
    assert usable_cores(tmp_path) == 1


def test_a_group_that_is_not_visible_falls_back_to_the_mount_point(tmp_path: Path) -> None:
    machine(tmp_path, "0::/../elsewhere", V2_MOUNT, {"sys/fs/cgroup/cpu.max": "400000 100000"})
    assert usable_cores(tmp_path) == 4


def test_a_quota_above_the_affinity_mask_changes_nothing(tmp_path: Path) -> None:
    machine(tmp_path, "0::/", V2_MOUNT, {"sys/fs/cgroup/cpu.max": "6400000 100000"})
    assert usable_cores(tmp_path) == 8


def test_this_machine_grants_between_one_core_and_its_affinity_mask() -> None:
    assert 1 <= usable_cores() <= 8


def test_threads_are_limited_to_one_in_every_library() -> None:
    environ = {"HOME": "/"}
    assert limit_threads(environ) == list(THREAD_VARIABLES)
    assert environ == {"HOME": "/"} | dict.fromkeys(THREAD_VARIABLES, "1")


def test_a_number_that_the_user_chose_for_one_library_stays() -> None:
    environ = {"MKL_NUM_THREADS": "4"}
    limit_threads(environ)
    assert environ == dict.fromkeys(THREAD_VARIABLES, "1") | {"MKL_NUM_THREADS": "4"}


def test_a_number_that_the_user_chose_for_openmp_holds_for_the_libraries_that_fall_back_to_it() -> None:
    environ = {"OMP_NUM_THREADS": "4"}
    assert limit_threads(environ) == []
    assert environ == {"OMP_NUM_THREADS": "4"}


def test_the_environment_is_as_before_after_a_block_with_limited_threads() -> None:
    environ = {"MKL_NUM_THREADS": "4"}
    with pytest.raises(KeyError), limited_threads(environ):
        assert environ["OMP_NUM_THREADS"] == "1"
        raise KeyError
    assert environ == {"MKL_NUM_THREADS": "4"}


def test_no_affinity_leaves_every_worker_to_the_kernel() -> None:
    assert pin_plan(None, 3) == [None, None, None]


def test_spread_gives_each_worker_one_core_in_turn_over_the_allowed_ones() -> None:
    assert pin_plan("spread", 10) == [{0}, {1}, {2}, {3}, {8}, {9}, {10}, {11}, {0}, {1}]


def test_named_cores_are_taken_in_turn_in_the_order_given() -> None:
    assert pin_plan([9, 2], 3) == [{9}, {2}, {9}]


@pytest.mark.parametrize(
    ("affinity", "message"),
    [
        ("compact", "must be None"),
        ([0, "1"], "must be None"),
        (3, "must be None"),
        ([], "names no core"),
        ([0, 5, 7], r"\[5, 7\].*may run on \[0, 1, 2, 3, 8, 9, 10, 11\]"),
    ],
)
def test_an_affinity_that_cannot_be_is_a_usage_error(affinity: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        pin_plan(affinity, 2)  # type: ignore[arg-type]


class Cores:
    """Stands in for the system's calls: three cores, and who was sent where."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.calls = 100.0, list[tuple[int, set[int]]]()
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1, 2})
        monkeypatch.setattr(os, "sched_setaffinity", lambda pid, cores: self.calls.append((pid, set(cores))))
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


def test_a_worker_that_shares_a_core_is_moved_to_a_free_one_and_not_kept_there(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = Cores(monkeypatch)
    Spreader().spread([11, 12, 13], [1, 1, 0])
    assert cores.calls == [(11, {2}), (11, {0, 1, 2})]


def test_more_workers_than_cores_are_spread_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = Cores(monkeypatch)
    Spreader().spread([11, 12, 13, 14, 15], [1, 1, 1, 1, 0])
    assert [(pid, to) for pid, to in cores.calls if len(to) == 1] == [(11, {2}), (12, {0})]


def test_workers_that_share_stay_where_they_are_if_no_core_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    cores = Cores(monkeypatch)
    Spreader().spread([11, 12, 13, 14], [1, 1, 0, 2])
    assert not cores.calls


def test_moves_that_do_not_hold_become_rare(monkeypatch: pytest.MonkeyPatch) -> None:
    cores, spreader = Cores(monkeypatch), Spreader()
    for _ in range(1000):  # once a millisecond, and the kernel always moves it back
        spreader.spread([11, 12], [1, 1])
        cores.now += 0.001
    assert 5 <= len(cores.calls) // 2 <= 12
    cores.now += 60
    cores.calls.clear()
    for _ in range(4):
        spreader.spread([11, 12], [1, 1])
        cores.now += 0.0011
    assert len(cores.calls) // 2 >= 2  # long after the last one, it is tried as readily as at first


def test_a_worker_that_has_just_ended_is_not_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    Spreader().spread([os.getpid(), child.pid], [0, 0])


def test_a_moved_process_may_run_wherever_it_might_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        before = os.sched_getaffinity(child.pid)
        Spreader().spread([os.getpid(), child.pid], [min(before), min(before)])
        assert os.sched_getaffinity(child.pid) == before
        child.communicate(b"\n", timeout=60)


def test_nobody_spins_through_a_policy_on_a_core_that_others_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shmenv.cpu, "usable_cores", lambda: 2)
    quota: list[float | None] = [None]
    monkeypatch.setattr(shmenv.cpu, "cpu_quota", lambda: quota[0])
    assert choose_waits(2) == Waits()
    assert choose_waits(3).patience_ns == 0
    quota[0] = 3.0
    assert choose_waits(2) == Waits()
    quota[0] = 1.5  # two workers and the caller would use three cores' time
    assert choose_waits(2) == Waits(patience_ns=0)
