#!/usr/bin/env bash
# Sets up and runs every check: ruff, mypy, the documentation, and the tests.
#
#   bash launch/test.sh [--nightly] [pytest arguments]
#
# --nightly also runs the tests that take minutes.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$DS_DIP_ROOT"

selection=(-m "not nightly")
if [[ "${1:-}" == --nightly ]]; then
    selection=()
    shift
fi

export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
# The ports of tests/distributed/ranks.py: a run that is cut short leaves buffers named after them.
trap 'for n in {0..9}; do remove_buffers "$((${DS_DIP_TEST_PORT:-29617} + n))"; done' EXIT

ruff check .
ruff format --check .
mypy ds_dip
bash launch/docs.sh
if [[ $# -gt 0 ]]; then
    pytest ${selection[@]+"${selection[@]}"} "$@"
    exit
fi
# Tests of one process share the cores, file by file, one file more than cores since many wait for processes; those that
# start ranks have them for themselves.
status=0
pytest ${selection[@]+"${selection[@]}"} --ignore tests/distributed -n 3 --dist loadfile || status=$?
pytest ${selection[@]+"${selection[@]}"} tests/distributed || status=$?
exit "$status"
