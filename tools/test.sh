#!/usr/bin/env bash
# The tests, in two processes side by side, each with its half of the files: they mostly wait for processes they start.
# With arguments, one pytest with those. (pytest-xdist would run them amid threads of its own, which tests that fork
# and count threads cannot have.)
set -u
cd "$(dirname "$0")/.."
python=.venv/bin/python
if [ $# -gt 0 ]; then
    exec $python -m pytest "$@"
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
$python -m pytest -q tests/test_[n-z]*.py > "$log" 2>&1 &
second=$!
$python -m pytest -q tests/test_[!n-z]*.py
first_code=$?
wait $second
second_code=$?
cat "$log"
[ $first_code -eq 0 ] && [ $second_code -eq 0 ]
