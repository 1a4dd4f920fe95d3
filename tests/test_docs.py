import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
HEAVY = re.findall(r"examples/(train_\w+\.py)", (ROOT / "tools/frameworks.py").read_text())  # run by `make examples`
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.name not in HEAVY)
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def run(path: Path, folder: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(path)], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_runs_and_says_something(path: Path, tmp_path: Path) -> None:
    assert run(path, tmp_path).strip()


def test_the_lines_to_paste_from_the_readme_run(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    program = tmp_path / "pasted.py"
    program.write_text(block)
    assert run(program, tmp_path) == "(64, 4) 64.0\n"


@pytest.mark.parametrize("guide", ["docs/pool.md", "docs/policies.md", "docs/managers.md", "docs/adapters.md"])
def test_the_pieces_of_code_in_a_guide_are_one_program_that_runs(guide: str, tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / guide).read_text(), re.DOTALL)
    body = textwrap.indent("\n".join(blocks) + "print('done')", "    ")
    program = tmp_path / "guide.py"
    program.write_text(
        f"import gymnasium, logging, numpy as np, os, shmenv, signal\n\nif __name__ == '__main__':\n{body}\n"
    )
    assert run(program, tmp_path) == "done\n"


def test_each_example_of_the_parts_is_a_program_that_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/parts.md").read_text(), re.DOTALL)
    assert len(blocks) == 4
    for number, block in enumerate(blocks):
        program = tmp_path / f"part{number}.py"
        program.write_text(block)
        assert run(program, tmp_path) == ""


def test_the_program_that_measures_whether_workers_pay_runs(tmp_path: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/when.md").read_text(), re.DOTALL)
    program = tmp_path / "when.py"
    program.write_text(block)
    said = run(program, tmp_path)
    assert said.count("one process: ") == said.count("workers: ") == 3


def test_what_is_said_to_show_a_promise_is_there() -> None:
    page, makefile = (ROOT / "docs/reliability.md").read_text(), (ROOT / "Makefile").read_text()
    tests, targets = set(re.findall(r"tests/\w+\.py", page)), set(re.findall(r"`make (\w+)", page))
    assert len(tests) > 10 and len(targets) > 5
    assert not [test for test in tests if not (ROOT / test).exists()]
    assert not [target for target in targets if not re.search(rf"^{target}:", makefile, re.MULTILINE)]


def test_each_defect_of_the_managers_has_its_tests() -> None:
    tests = set(re.findall(r"^def (test_\d\d_\w+)", (ROOT / "tests/test_manager_defects.py").read_text(), re.MULTILINE))
    rows = re.findall(r"^\| (\d+) \|.*\|(.*)\|$", (ROOT / "docs/defects.md").read_text(), re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 47))
    named = {int(number): re.findall(r"`(test_\w+)`", cell) for number, cell in rows}
    assert all(name.startswith(f"test_{number:02}_") for number, names in named.items() for name in names)
    assert {name for names in named.values() for name in names} == tests


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_link_to_a_file_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


def test_every_make_target_that_a_text_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in PAGES:
        for named in re.findall(r"(?:`|^)make ([a-z -]+?)(?:`| +#| [A-Z]|$)", page.read_text(), re.MULTILINE):
            assert set(named.split()) <= targets, (page.name, named)
