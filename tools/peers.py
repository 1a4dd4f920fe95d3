"""Makes the environments of the libraries that `make compare` measures: one each below .peers, with pinned versions.

    python3.11 tools/peers.py [name ...]

What can't be installed leaves its reason in .peers/NAME.missing, which the comparison reports; the next call tries
again. An environment that is complete, and as it is described below, is left alone. They need about 6 GB, mostly for
torch.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

PEERS = Path(__file__).resolve().parent.parent / ".peers"
GYMNASIUM = "gymnasium==1.4.0"
TORCH = "torch==2.13.0"
MINUTES = 15  # that one pip may take

# PufferLib's setup.py asks for this name where it is told to leave its own games out, and has not given it a value.
PUFFER_BUILD = "import builtins\n\nbuiltins.c_extension_paths = []\n"


@dataclass(frozen=True)
class Environment:
    """What to install.

    Attributes:
        steps: arguments of one `pip install` after the other.
        check: what must be importable then.
        build: a sitecustomize.py for the time of the installation.
        variables: of the shell, for the time of the installation.
    """

    steps: list[str]
    check: str
    build: str = ""
    variables: dict[str, str] = field(default_factory=dict)


ENVIRONMENTS = {
    "sb3": Environment([TORCH, f"stable-baselines3==2.9.2 {GYMNASIUM}"], "stable_baselines3"),
    "tianshou": Environment([TORCH, f"tianshou==2.0.1 {GYMNASIUM}"], "tianshou.env"),
    # Its own pins, but for Gymnasium's, and without wandb and yapf, which its managers do without.
    "ding": Environment(
        [
            f"{TORCH} numpy==1.26.4",
            f"numpy==1.26.4 setuptools==66.1.1 gym==0.25.1 {GYMNASIUM} DI-treetensor==0.5.0 DI-toolkit==0.3.0"
            " easydict==1.14 hickle==5.0.3 flask==2.0.3 werkzeug==2.0.3 pyyaml requests responses URLObject"
            " tensorboardX trueskill tabulate click mpire pynng sniffio redis einops enum-tools matplotlib",
            "--no-deps DI-engine==0.5.3",
        ],
        "ding.envs.env_manager",
    ),
    # Only a source distribution, which wants torch at hand to be built. It pins Gymnasium 0.29, but works with ours.
    "pufferlib": Environment(
        [
            f"{TORCH} numpy==1.26.4 setuptools wheel Cython psutil",
            f"--no-deps {GYMNASIUM} Farama-Notifications gym==0.23.0 gym-notices pettingzoo==1.24.1",
            "--no-deps --no-build-isolation pufferlib==3.0.0",
        ],
        "pufferlib.vector",
        build=PUFFER_BUILD,
        variables={"NO_OCEAN": "1", "NO_TRAIN": "1"},
    ),
    # The oldest that shmenv.adapters.gymnasium takes. For `make frameworks`; nothing is measured in it.
    "gymnasium11": Environment(["gymnasium==1.1.1"], "gymnasium.vector"),
    "envpool": Environment([f"envpool==1.2.5 {GYMNASIUM}"], "envpool"),
}


def make(name: str) -> str | None:
    """Makes the environment of that name; the reason if it can't."""
    environment, folder = ENVIRONMENTS[name], PEERS / name
    python = folder / "bin" / "python"
    variables = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    variables |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", **environment.variables}
    with tempfile.TemporaryDirectory() as site:
        if environment.build:
            Path(site, "sitecustomize.py").write_text(environment.build)
            variables["PYTHONPATH"] = site
        commands = [[sys.executable, "-m", "venv", "--clear", str(folder)]]
        commands += [[str(python), "-m", "pip", "install", "--quiet", *step.split()] for step in environment.steps]
        # The child of each contestant needs this one besides.
        commands += [[str(python), "-m", "pip", "install", "--quiet", "cloudpickle"]]
        commands += [[str(python), "-c", f"import {environment.check}"]]
        for command in commands:
            try:
                done = subprocess.run(
                    command, env=variables, cwd=site, capture_output=True, text=True, timeout=60 * MINUTES
                )
            except subprocess.TimeoutExpired:
                return f"{' '.join(command[2:])} took more than {MINUTES} minutes"
            if done.returncode:
                errors = [line for line in done.stderr.splitlines() if "rror" in line] or done.stderr.splitlines()[-1:]
                reason = errors[-1] if errors else f"exit code {done.returncode}"
                return f"{' '.join(command[2:])}: {reason}".replace(str(PEERS), PEERS.name)
    return None


def main() -> None:
    """Make all environments that are asked for and not there."""
    if sys.version_info[:2] != (3, 11):
        print("The comparison was made on Python 3.11, on which all its peers can be installed.", file=sys.stderr)
    PEERS.mkdir(exist_ok=True)
    for name in sys.argv[1:] or ENVIRONMENTS:
        complete, missing = PEERS / f"{name}.complete", PEERS / f"{name}.missing"
        wanted = repr(ENVIRONMENTS[name])
        if complete.exists() and complete.read_text() == wanted and (PEERS / name).exists():
            continue
        print(f"making .peers/{name} ...", flush=True)
        for mark in (complete, missing):
            mark.unlink(missing_ok=True)
        reason = make(name)
        if reason is None:
            complete.write_text(wanted)
            continue
        shutil.rmtree(PEERS / name, ignore_errors=True)
        missing.write_text(reason)
        print(f"  missing: {reason}", flush=True)


if __name__ == "__main__":
    main()
