"""Builds the compiled modules; everything else about the package stands in pyproject.toml."""

import glob
import os
import sys

from Cython.Build import cythonize
from setuptools import Extension, setup

if not sys.platform.startswith("linux"):
    sys.exit("shmenv needs Linux (x86-64 or aarch64): it is built on futex, memfd and pidfd.")

HEADERS = sorted(glob.glob("src/shmenv/core/*.h"))
MODULES = sorted(glob.glob("src/shmenv/*.pyx"))
FLAGS = ["-std=gnu11", "-O3", "-fvisibility=hidden", "-Wall", "-Wno-unused-function"]
SANITIZE = os.environ.get("SHMENV_SANITIZE")  # for example "address,undefined"; set by `make sanitize` only
if SANITIZE:
    FLAGS = ["-std=gnu11", "-O1", "-g", "-fno-omit-frame-pointer", f"-fsanitize={SANITIZE}"]

setup(
    ext_modules=cythonize(
        [
            Extension(
                "shmenv." + os.path.basename(module)[: -len(".pyx")],
                [module],
                include_dirs=["src/shmenv/core"],
                depends=HEADERS,
                extra_compile_args=FLAGS,
                extra_link_args=[f"-fsanitize={SANITIZE}"] if SANITIZE else [],
                libraries=["pthread"],
            )
            for module in MODULES
        ],
        compiler_directives={
            "language_level": 3,
            "boundscheck": False,
            "wraparound": False,
            "initializedcheck": False,
            "cdivision": True,
            "binding": False,
            "embedsignature": True,
            "embedsignature.format": "clinic",  # what `inspect.signature` reads, and so the check of the stubs
            "autotestdict": False,
        },
    )
)
