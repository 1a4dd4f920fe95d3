"""The core in C: what the explorer finds, that it would find more, threads, and what the headers' comments promise."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "core"))

from build import HEADERS, TOPICS, build_explorer, build_model, build_threads  # noqa: E402
from mutants import EQUIVALENT, all_mutants  # noqa: E402
from mutate import try_mutant  # noqa: E402

PAIR = re.compile(r'PAIRS WITH ((?:shm_\w+ "[^"]+"(?:,[\s*]+)?)+)')
END = re.compile(r'(shm_\w+) "([^"]+)"')
FUNCTION = re.compile(r"^static inline [\w *]*?\b(shm_\w+)\([^;{]*\{", re.MULTILINE)
ATOMICS = re.compile(
    r"\b(memory_order\w*|atomic_\w+|stdatomic|__(?:atomic|sync)\w*|SHM_(?:LOAD|STORE|ADD|SWAP|FENCE))\b"
)
STRONG = re.compile(r"\b(?:acquire|release|acq_rel|seq_cst)\)")

CAUGHT_IN_SHORT = [
    "shm_push: SHM_STORE(&r->tail, tail + 1, seq_cst) -> release",
    "shm_push: SHM_LOAD(&r->head, acquire) -> relaxed",
    "shm_await_counter: last look before the flag",
    "shm_write_cell: SHM_FENCE(release) -> relaxed",
    "shm_read_cell: SHM_FENCE(acquire) -> relaxed",
    "shm_read_cell: one lap too generous",
    "shm_post: SHM_ADD(&s->posted, n, seq_cst) -> acq_rel",
    "shm_await: the hint after the truth",
    "shm_alert: wakes, then closes the gate",
    "shm_await_bell: no last look",
    "shm_respond: SHM_STORE(rsp, n, release) -> relaxed",
    "shm_reset_channel: leaves the lost command",
]
"""One mutant of each kind; `make explore` tries all of them."""


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for what the tests of this file compile."""
    return tmp_path_factory.mktemp("core")


@pytest.fixture(scope="module")
def model(scratch: Path) -> list[Path]:
    """The explorer's objects, which do not depend on the core."""
    return build_model(scratch)


@pytest.mark.parametrize("topic", TOPICS)
def test_no_interleaving_stale_read_or_kill_breaks_the_core(topic: str, scratch: Path, model: list[Path]) -> None:
    program = build_explorer(scratch, topic, model)
    run = subprocess.run([program, "--trace"], capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stdout[-4000:] + run.stderr
    assert run.stdout.count("ok ") >= 3


@pytest.mark.parametrize("name", CAUGHT_IN_SHORT)
def test_the_explorer_notices_what_is_taken_away(name: str, scratch: Path, model: list[Path]) -> None:
    (mutant,) = [mutant for mutant in all_mutants(HEADERS) if mutant.name == name]
    assert try_mutant(mutant, scratch, model, full=False)


def test_each_mutant_still_fits_the_headers() -> None:
    names = [mutant.name for mutant in all_mutants(HEADERS)]
    assert len(names) > 100
    assert not set(EQUIVALENT) & set(CAUGHT_IN_SHORT)


def test_threads_over_the_core_lose_tear_and_double_nothing(scratch: Path) -> None:
    run = subprocess.run([build_threads(scratch), "4000"], capture_output=True, text=True, timeout=100)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "no lost wake-up" in run.stdout


def test_both_ends_of_each_memory_order_name_each_other() -> None:
    ends: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for header in sorted(HEADERS.glob("*.h")):
        text = header.read_text()
        functions = [(match.start(), match.group(1)) for match in FUNCTION.finditer(text)]
        for comment in PAIR.finditer(text):
            here = [name for start, name in functions if start < comment.start()][-1]
            for partner, label in END.findall(comment.group(1)):
                ends[label].append((here, partner))
    assert len(ends) > 10
    for label, found in ends.items():
        assert len(found) == 2, f'label "{label}" stands {len(found)} times: {found}'
        assert found[0] == found[1][::-1], f'the two ends of "{label}" do not name each other: {found}'
    written = sum(header.read_text().count("PAIRS WITH") for header in HEADERS.glob("*.h"))
    read = sum(len(PAIR.findall(header.read_text())) for header in HEADERS.glob("*.h"))
    assert written == read, 'a PAIRS WITH is not written as: PAIRS WITH shm_function "label"'


def test_memory_orders_stand_in_the_core_alone() -> None:
    sources = [*ROOT.glob("src/shmenv/*.pyx"), *ROOT.glob("src/shmenv/*.pxd"), *ROOT.glob("src/shmenv/*.py")]
    assert len(sources) > 5
    strays = [f"{source.name}: {word}" for source in sources for word in ATOMICS.findall(source.read_text())]
    assert not strays


def test_each_strong_order_in_the_headers_has_a_partner() -> None:
    silent = []
    for header in sorted(HEADERS.glob("*.h")):
        text = header.read_text()
        starts = [match.start() for match in FUNCTION.finditer(text)] + [len(text)]
        for start, end in pairwise(starts):
            body = text[start:end]
            if STRONG.search(body) and "PAIRS WITH" not in body:
                silent.append(body.splitlines()[0])
    assert not silent
