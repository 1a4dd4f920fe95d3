"""Says in one message what this machine lacks to build shmenv. Parses on any Python 3: it judges the version too."""

import os
import shlex
import subprocess
import sys
import sysconfig

# Includes something from each package that brings headers.
PROGRAM = "#include <stdatomic.h>\n#include <linux/futex.h>\nint main(void) { return 0; }\n"


def debian_package(part: str) -> str:
    """The Debian package that brings `part` ("dev" or "venv") of this interpreter."""
    plain = os.path.basename(sys.executable or "python3") == "python3"
    return f"python3-{part}" if plain else f"python{sys.version_info[0]}.{sys.version_info[1]}-{part}"


def missing() -> "list[tuple[str, list[str]]]":
    """Pairs of what is missing and the Debian packages that bring it."""
    if tuple(sys.version_info) < (3, 11):
        version = f"Python 3.11 or newer (this is {sys.version.split()[0]}; make PYTHON=... takes another)"
        return [(version, ["python3", "python3-dev", "python3-venv"])]
    found = []
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        found.append(("the modules venv and ensurepip", [debian_package("venv")]))
    include = sysconfig.get_path("include")
    if not os.path.exists(os.path.join(include, "Python.h")):
        found.append((f"Python's C headers ({include}/Python.h)", [debian_package("dev")]))
    # The compiler that setuptools will take.
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    try:
        subprocess.run(
            [compiler, "-fsyntax-only", "-x", "c", "-"], input=PROGRAM, text=True, capture_output=True, check=True
        )
    except OSError:
        found.append((f"a C compiler ({compiler})", ["gcc", "libc6-dev"]))
    except subprocess.CalledProcessError as error:
        message = error.stderr.strip().partition("\n")[0]
        found.append((f"headers of the C library ({message})", ["libc6-dev"]))
    return found


def main() -> None:
    """Exit with the message if anything is missing."""
    if not sys.platform.startswith("linux"):
        sys.exit("shmenv needs Linux (x86-64 or aarch64): it is built on futex, memfd and pidfd.")
    found = missing()
    if found:
        packages = list(dict.fromkeys(package for _, bring in found for package in bring))
        parts = "\n  ".join(what for what, _ in found)
        sys.exit(
            f"shmenv cannot be built with {sys.executable}. This is missing:\n  {parts}\n"
            f"On Debian or Ubuntu: apt-get install {' '.join(packages)}"
        )


if __name__ == "__main__":
    main()
