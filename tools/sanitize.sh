#!/usr/bin/env bash
# Runs the tests with the compiled modules under AddressSanitizer and UndefinedBehaviorSanitizer, built in
# build/sanitize beside the ordinary ones. Arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."

python=$PWD/.venv/bin/python
lib=$PWD/build/sanitize/lib
SHMENV_SANITIZE=address,undefined "$python" setup.py -q build --build-base build/sanitize --build-lib "$lib"

# The runtime must be loaded before the interpreter, which is not built with it. The C++ library comes along, else
# exceptions of C++ modules that are loaded later (ale-py) are not intercepted.
preload=
for library in libasan.so libubsan.so libstdc++.so; do
    preload+="$("${CC:-gcc}" -print-file-name="$library") "
done
# No leak report: CPython keeps memory until its end. Descriptors, processes and mappings the leak guard counts.
# SIGSEGV is left as it is: tests have envs that crash, and look at what their workers' ends are told as.
export ASAN_OPTIONS=detect_leaks=0:abort_on_error=1:handle_segv=0
export UBSAN_OPTIONS=halt_on_error=1:abort_on_error=1:print_stacktrace=1
LD_PRELOAD=$preload PYTHONPATH=$lib "$python" tools/test.py --timeout=600 "$@" # Ctrl-C reaches it in the background, too

# ThreadSanitizer cannot see what other processes do, so it gets the core between threads, without Python.
"$python" tests/core/build.py tsan
