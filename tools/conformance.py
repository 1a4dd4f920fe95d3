"""Runs frameworks' own tests of their subprocess vectorisers with shmenv's classes in place of theirs, and beside them.

    .venv/bin/python tools/conformance.py [ding] [sb3]

Downloads the source releases, which carry the tests, into a temporary folder. Each test is told twice: as it went with
the framework's own class, and with shmenv's. Fails if one fails with shmenv's only.
"""

import os
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MINUTES = 20  # that one run of tests may take
TOOLS = ["pytest>=8", "pytest-timeout>=2.3", "ale-py==0.12.1"]  # the last for an import in Stable-Baselines3's tests


@dataclass(frozen=True)
class Suite:
    """A framework's tests.

    Attributes:
        release: what to download.
        swaps: the framework's class, and shmenv's.
        tests: files or single tests, relative to the release.
    """

    release: str
    swaps: dict[str, str]
    tests: list[str]


MANAGERS = "ding.envs.env_manager.subprocess_env_manager"
SUITES = {
    "ding": Suite(
        "DI-engine==0.5.3",
        {
            f"{MANAGERS}:AsyncSubprocessEnvManager": "shmenv.adapters.ding:ShmAsyncSubprocessEnvManager",
            f"{MANAGERS}:SyncSubprocessEnvManager": "shmenv.adapters.ding:ShmSubprocessEnvManager",
        },
        [
            "ding/envs/env_manager/tests/test_subprocess_env_manager.py",
            "ding/worker/collector/tests/test_sample_serial_collector.py",
            "ding/worker/collector/tests/test_episode_serial_collector.py",
        ],
    ),
    "sb3": Suite(
        "stable-baselines3==2.9.2",
        {"stable_baselines3.common.vec_env.subproc_vec_env:SubprocVecEnv": "shmenv.adapters.sb3:ShmVecEnv"},
        [
            "tests/test_vec_envs.py",
            "tests/test_dict_env.py::test_multiprocessing",
            "tests/test_her.py::test_multiprocessing",
            "tests/test_utils.py::test_make_vec_env",
            "tests/test_utils.py::test_custom_vec_env",
            "tests/test_utils.py::test_evaluate_policy_monitors",
        ],
    ),
}


def clean_environment() -> dict[str, str]:
    """This process's, without what would lead another interpreter astray."""
    return {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}


def unpacked(python: str, release: str, folder: Path) -> Path:
    """Download a source release and unpack it; its folder."""
    pip = [python, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", ":all:", "--dest", str(folder)]
    subprocess.run([*pip, release], check=True, env=clean_environment(), cwd=folder)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


def outcomes(python: str, source: Path, suite: Suite, swapped: bool) -> dict[str, str]:
    """What became of each test: "passed", "failed" or "skipped"."""
    report = source.parent / f"{'ours' if swapped else 'theirs'}.xml"
    environment = {**clean_environment(), "PYTHONPATH": os.pathsep.join(map(str, (ROOT / "src", ROOT / "tools")))}
    if swapped:
        environment["SHMENV_SWAP"] = " ".join(f"{theirs}={ours}" for theirs, ours in suite.swaps.items())
    command = [python, "-m", "pytest", "-q", "-p", "swapped_classes", "-p", "no:cacheprovider", "-W", "ignore"]
    command += ["--continue-on-collection-errors", "--timeout=300", f"--junit-xml={report}", *suite.tests]
    with open(report.with_suffix(".log"), "w") as log:
        subprocess.run(command, cwd=source, env=environment, stdout=log, stderr=log, timeout=60 * MINUTES)
    if not report.exists():
        sys.exit(f"the tests did not run:\n{report.with_suffix('.log').read_text()[-3000:]}")
    found = {}
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        name = f"{case.get('classname', '').rpartition('tests.')[2]}::{case.get('name')}"
        for theirs, ours in suite.swaps.items():  # the classes' names are part of the tests'
            name = name.replace(ours.rpartition(":")[2], theirs.rpartition(":")[2])
        kinds = {child.tag for child in case}
        found[name] = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
    return found


def compare(name: str) -> bool:
    """Run one framework's tests both ways and print them; whether all is as it should be."""
    suite, python = SUITES[name], str(ROOT / ".peers" / name / "bin" / "python")
    subprocess.run([python, "-m", "pip", "install", "--quiet", *TOOLS], check=True, env=clean_environment())
    with tempfile.TemporaryDirectory(prefix="shmenv-conformance-") as folder:
        source = unpacked(python, suite.release, Path(folder))
        theirs, ours = (outcomes(python, source, suite, swapped) for swapped in (False, True))
        log = (source.parent / "ours.log").read_text()
    print(f"\n{suite.release}\n{'theirs':8} {'shmenv':8}")
    wrong = []
    for test in sorted(theirs.keys() | ours.keys()):
        before, now = theirs.get(test, "-"), ours.get(test, "-")
        print(f"{before:8} {now:8} {test}", flush=True)
        if now in ("failed", "-") and before not in ("failed", "-"):
            wrong.append(test)
    for title, results in (("theirs", theirs), ("shmenv", ours)):
        counts = {kind: list(results.values()).count(kind) for kind in ("passed", "failed", "skipped")}
        print(f"{title}: " + ", ".join(f"{count} {kind}" for kind, count in counts.items()))
    if wrong:
        print(f"{log[-6000:]}\nnot as it should be: {', '.join(wrong)}")
    if "passed" not in ours.values():
        print(f"{log[-6000:]}\nnothing was tested")
    return not wrong and "passed" in ours.values()


def main() -> int:
    """Compare what is asked for, or all."""
    names = sys.argv[1:] or list(SUITES)
    subprocess.check_call([sys.executable, "tools/peers.py", *names], cwd=ROOT)
    results = [compare(name) for name in names]  # all of them, whatever the first shows
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
