"""The tests, in two processes side by side, each with its half of the files: they mostly wait for what they start.

With arguments, one pytest with those. pytest-xdist would run the tests amid threads of its own, which tests that fork
and count threads cannot have.
"""

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).parent.parent / "tests"


def main() -> int:
    pytest = [sys.executable, "-m", "pytest"]
    # Who was started in the background of a script inherits that Ctrl-C is ignored, and tests are about Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if sys.argv[1:]:
        return subprocess.call([*pytest, *sys.argv[1:]])
    files = sorted(TESTS.glob("test_*.py"))
    halves = [[str(path) for path in files if (path.stem > "test_n") is late] for late in (False, True)]
    with tempfile.TemporaryFile("w+") as output:
        second = subprocess.Popen([*pytest, "-q", *halves[1]], stdout=output, stderr=subprocess.STDOUT)
        try:
            code = subprocess.call([*pytest, "-q", *halves[0]])
            code = max(code, second.wait())
        finally:
            second.kill()
            second.wait()
        output.seek(0)
        print(output.read(), end="", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
