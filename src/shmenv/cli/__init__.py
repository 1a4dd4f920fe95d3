"""The commands of `python -m shmenv`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib.util import find_spec

import shmenv


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command.

    Args:
        arguments: what stands behind `python -m shmenv`; None takes it from the command line.

    Raises:
        SystemExit: the arguments are wrong (2), a package that the command needs is missing (1), or Ctrl-C (130).
    """
    parser = argparse.ArgumentParser(prog="python -m shmenv", description="Steps environments through shared memory.")
    parser.add_argument("--version", action="version", version=f"shmenv {shmenv.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser("demo", help="step CartPole and Atari's Pong next to Gymnasium's vector envs")
    demo.add_argument("--seconds", type=_seconds, default=3.0, help="length of one measurement, of 18 (default: 3)")
    chosen = parser.parse_args(arguments)

    missing = [name for name in ("gymnasium", "ale_py", "rich") if find_spec(name) is None]
    if missing:
        sys.exit(f"The demo needs {' and '.join(missing)}, not installed here: pip install 'shmenv[demo]'")
    try:
        from shmenv.cli.demo import run

        run(chosen.seconds)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)  # 128 + SIGINT, as shells have it


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no positive number of seconds")
    return value
