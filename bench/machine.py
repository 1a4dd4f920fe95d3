"""One line about where and of what a measurement was taken."""

import os
import platform
import subprocess
from pathlib import Path

import gymnasium
import numpy as np

from shmenv.cpu import usable_cores


def commit() -> str:
    """The checkout's commit, with a + if files differ from it; "unknown" outside of one."""
    describe = ["git", "describe", "--always", "--abbrev=10", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run(describe, cwd=Path(__file__).parent, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return done.stdout.strip()


def processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(": ")[2]
    return platform.machine()


def describe() -> str:
    return (
        f"{usable_cores()} usable cores of {processor()}, load {os.getloadavg()[0]:.1f}, Linux {os.uname().release}, "
        f"Python {platform.python_version()}, numpy {np.__version__}, Gymnasium {gymnasium.__version__}, "
        f"shmenv commit {commit()}"
    )
