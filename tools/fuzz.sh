#!/usr/bin/env bash
# usage: fuzz.sh [SECONDS [TARGET...]]
# Runs each target of tests/fuzz/decoders.py for so many seconds (60), with the compiled modules under AddressSanitizer
# and UndefinedBehaviorSanitizer and with coverage for libFuzzer, built in build/fuzz beside the ordinary ones. What it
# learns stays in build/fuzz/corpus; an input that breaks something is left in build/fuzz.
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
targets=("${@:2}")
[ ${#targets[@]} != 0 ] || targets=(info error slots spill)
python=$PWD/.venv/bin/python
base=$PWD/build/fuzz
bash tools/packages.sh clang:clang
"$python" -m pip install --quiet --group fuzz
CC=clang LDSHARED="clang -shared" SHMENV_SANITIZE=address,undefined,fuzzer-no-link \
    "$python" setup.py -q build --build-base "$base" --build-lib "$base/lib"

preload=$("$python" -c 'import atheris, os; print(os.path.join(atheris.path(), "asan_with_fuzzer.so"))')
# No leak report: CPython keeps memory until its end. Too large an allocation is a MemoryError, as it is without ASan.
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:max_allocation_size_mb=1000 UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
for target in "${targets[@]}"; do
    mkdir -p "$base/corpus/$target"
    LD_PRELOAD=$preload PYTHONPATH=$base/lib "$python" tests/fuzz/decoders.py "$target" "$base/corpus/$target" \
        -max_total_time="$seconds" -artifact_prefix="$base/$target-" -print_final_stats=1 -verbosity=0 \
        > "$base/$target.log" 2>&1 || { cat "$base/$target.log" >&2; exit 1; }
    echo "$target: $(sed -n 's/^stat::number_of_executed_units: *//p' "$base/$target.log") inputs, nothing found"
done
