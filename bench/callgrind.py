"""How many instructions does the core take for an env step? A second opinion that no other program can disturb.

callgrind counts each part of callgrind.c by itself, twice: the counts must be equal to the instruction. They say
nothing about caches, waiting and what the memory orders cost; bench/profile_batch.py measures that.

    make callgrind
"""

import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "core"))

from build import HEADERS, compile_c  # noqa: E402

ENVS, WORKERS, BATCHES = 64, 2, 1000
PARTS = {  # functions of callgrind.c
    "give_commands": "manager: give the commands",
    "ring_bells": "manager: ring the bells, one a worker",
    "take_commands": "worker: find and take the commands",
    "answer": "worker: publish the answers, post",
    "find_none": "worker: look again, find nothing",
    "account": "worker: keep its counters, once a batch",
    "await_answers": "manager: scan the answers",
}


def count(program: Path, part: str) -> int:
    """Instructions of one part, with all that it calls, in BATCHES batches."""
    out = program.with_name("counts")
    command = ["valgrind", "--tool=callgrind", f"--toggle-collect={part}", f"--callgrind-out-file={out}"]
    run = subprocess.run([*command, program, str(BATCHES)], capture_output=True, text=True)
    found = re.search(r"^summary: (\d+)$", out.read_text(), re.MULTILINE) if run.returncode == 0 else None
    if found is None:
        raise RuntimeError(f"callgrind counted nothing in {part}:\n{run.stdout}{run.stderr}")
    return int(found[1])


def main() -> int:
    """Print a line for each part; 0 if both runs agree."""
    with tempfile.TemporaryDirectory() as scratch:
        program = Path(scratch) / "callgrind"
        source = Path(__file__).with_suffix(".c")
        # As setup.py compiles the product.
        compile_c(program, [source], "-O3", f"-DENVS={ENVS}", f"-DWORKERS={WORKERS}", f"-I{HEADERS}", "-pthread")
        first, second = ({part: count(program, part) for part in PARTS} for _ in range(2))
    print(f"Instructions per env step on {platform.machine()}, {ENVS} envs in {WORKERS} workers, without env and rows:")
    for part, title in PARTS.items():
        print(f"  {title:42}{first[part] / BATCHES / ENVS:8.2f}")
    print(f"  {'all':42}{sum(first.values()) / BATCHES / ENVS:8.2f}")
    different = [part for part in PARTS if first[part] != second[part]]
    print(f"two runs differ: {', '.join(different)}" if different else "two runs: equal to the instruction")
    return len(different) > 0


if __name__ == "__main__":
    sys.exit(main())
