import errno
import gc
import mmap
import os
import subprocess
import sys

import numpy as np
import pytest
from started import fork

from shmenv import UsageError
from shmenv.errors import ResourceError, ShmenvError
from shmenv.segment import Spill

MIB = 1 << 20


@pytest.mark.parametrize("length", [0, 1, 4096, 100_000, 5 * MIB])
def test_a_payload_comes_back_as_it_went(length: int) -> None:
    spill = Spill(3)
    data = np.random.default_rng(length).bytes(length)
    for region, kind in enumerate((bytes, bytearray, memoryview)):
        spill.write(region, kind(data))
        assert spill.read(region, length) == data


def test_regions_do_not_touch() -> None:
    spill = Spill(3)
    for region in range(3):
        spill.write(region, bytes([region]) * 10_000)
    for region in range(3):
        assert spill.read(region, 10_000) == bytes([region]) * 10_000


@pytest.mark.parametrize("region", [-1, 3, 2**40])
def test_a_region_that_is_not_there_is_refused(region: int) -> None:
    spill = Spill(3)
    for call in (lambda: spill.write(region, b"x"), lambda: spill.read(region, 1)):
        with pytest.raises(UsageError, match=r"not in 0\.\.2"):
            call()


@pytest.mark.parametrize("length", [-1, 4, 5000, 2**32 - 1, 2**32, 2**70])
def test_a_length_that_nobody_wrote_is_an_error_and_no_crash(length: int) -> None:
    spill = Spill(2)
    spill.write(0, b"abc")
    spill.write(1, b"abc")
    if length == 4:  # inside the page: such a length can only be told by what is decoded
        assert spill.read(0, length) == b"abc\0"
        return
    for region in (0, 1):
        with pytest.raises(ShmenvError, match="payload"):
            spill.read(region, length)


def test_a_payload_of_four_gib_is_refused() -> None:
    spill = Spill(1)
    with mmap.mmap(-1, 2**32) as huge:  # addresses alone
        with pytest.raises(ResourceError, match=r"less than 4,096\.0 MiB fit"):
            spill.write(0, memoryview(huge))
        gc.collect()  # the traceback's view of it
    assert os.fstat(spill.fileno()).st_blocks == 0


def test_too_little_memory_for_a_payload_is_said_before_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    spill = Spill(1)
    monkeypatch.setattr("shmenv.segment.available_memory", lambda root: 10 * MIB)
    with pytest.raises(ResourceError, match=r"20\.0 MiB are needed for a pickled payload"):
        spill.write(0, bytes(20 * MIB))
    assert os.fstat(spill.fileno()).st_blocks == 0


def test_what_a_much_larger_payload_left_behind_is_given_back() -> None:
    spill = Spill(2)
    spill.write(1, b"y" * 10_000)
    spill.write(0, b"x" * (8 * MIB))
    spill.write(0, b"x" * (6 * MIB))
    assert os.fstat(spill.fileno()).st_blocks * 512 >= 8 * MIB  # not worth a system call yet
    spill.write(0, b"abc")
    assert os.fstat(spill.fileno()).st_blocks * 512 <= 5 * 4096
    assert (spill.read(0, 3), spill.read(1, 10_000)) == (b"abc", b"y" * 10_000)


def test_what_a_killed_predecessor_left_behind_is_given_back() -> None:
    spill = Spill(1)
    pid = fork(spill.write, 0, b"x" * (8 * MIB))
    assert os.waitpid(pid, 0)[1] == 0
    spill.write(0, b"abc")
    assert os.fstat(spill.fileno()).st_blocks * 512 == 4096
    assert spill.read(0, 3) == b"abc"


def test_nobody_can_take_the_pages_away() -> None:
    spill = Spill(1)
    with pytest.raises(PermissionError):
        os.ftruncate(spill.fileno(), 0)


@pytest.mark.parametrize("regions", [0, -1, 2**31])
def test_a_wrong_number_of_regions_is_refused(regions: int) -> None:
    with pytest.raises(UsageError, match="regions"):
        Spill(regions)


def test_a_spill_too_large_for_the_system_is_a_resource_error() -> None:
    limited = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))\n"
    program = limited + (
        "from shmenv.errors import ResourceError\n"
        "from shmenv.segment import Segment, Spill\n"
        "for make in (lambda: Spill(1), lambda: Segment('x').allocate(2 << 20, 'a test')):\n"
        "    try:\n"
        "        make()\n"
        "    except ResourceError as error:\n"
        "        print(error.errno)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30, env=_with_path())
    assert (done.stdout.split(), done.stderr) == ([str(errno.EFBIG)] * 2, "")


def _with_path() -> dict[str, str]:
    return dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path))
