"""Runs the tests, or the examples, of adapters whose frameworks are heavy, in environments of their own below .peers.

    .venv/bin/python tools/frameworks.py tests [argument of pytest ...]
    .venv/bin/python tools/frameworks.py examples [argument of the examples ...]

`make test` leaves them out where the framework is not installed.
"""

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TOOLS = ["pytest>=8", "pytest-timeout>=2.3", "hypothesis>=6.100", "psutil>=6"]


@dataclass(frozen=True)
class Framework:
    """What runs in the environment of that name.

    Attributes:
        tests: files of tests.
        examples: programs that check themselves.
        packages: what the examples need besides.
    """

    tests: list[str]
    examples: list[str] = field(default_factory=list)
    packages: list[str] = field(default_factory=list)


FRAMEWORKS = {
    "gymnasium11": Framework(
        ["tests/test_adapter_gymnasium.py", "tests/test_adapter_gymnasium_calls.py"], ["examples/gymnasium_first_k.py"]
    ),
    "sb3": Framework(
        ["tests/test_adapter_sb3.py", "tests/test_torch.py"], ["examples/train_ppo.py", "examples/train_sb3.py"]
    ),
    "ding": Framework(["tests/test_adapter_ding.py"], ["examples/train_ding.py"], ["yapf==0.29.0"]),
    "tianshou": Framework(["tests/test_adapter_tianshou.py"]),
}


def run(name: str, what: str, arguments: list[str]) -> int:
    """Run one framework's tests or examples; the first exit code that is not 0, else 0."""
    python = str(ROOT / ".peers" / name / "bin" / "python")
    framework = FRAMEWORKS[name]
    commands = [[python, "-m", "pip", "install", "--quiet", *TOOLS, *framework.packages]]
    if what == "tests":
        commands += [[python, "-m", "pytest", "-q", *framework.tests, *arguments]]
    else:
        commands += [[python, example, *arguments] for example in framework.examples]
    for command in commands:
        print(f"{name}: {' '.join(command[1:])}", flush=True)
        code = subprocess.call(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "src")})
        if code:
            return code
    return 0


def main(what: str, *arguments: str) -> int:
    """Make the environments that are missing, and run all tests or all examples in them."""
    subprocess.check_call([sys.executable, "tools/peers.py", *FRAMEWORKS], cwd=ROOT)
    return max(run(name, what, list(arguments)) for name in FRAMEWORKS)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
