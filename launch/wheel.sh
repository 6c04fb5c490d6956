#!/usr/bin/env bash
# Builds the wheel, installs it into a clean environment, and trains the quick start there for a few steps.
#
#   bash launch/wheel.sh [--clean]
#
# What ds_dip needs (torch is half a gigabyte) comes from .venv by a path file in the new environment, so that this takes
# a minute; ds_dip itself comes from the wheel alone, and ds-dip doctor checks its requirements. With --clean everything
# is installed anew, from the package index.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$DS_DIP_ROOT"

fail() {
    echo "wheel: $1" >&2
    exit 1
}

clean=false
[[ "${1:-}" != --clean ]] || clean=true
folder="$(mktemp -d)"
port="${DS_DIP_TEST_PORT:-29617}"
trap 'rm -rf "$folder"; remove_buffers "$port"' EXIT

# From a copy of what git has or would take: files that were built in the checkout do not get in.
mkdir "$folder/source"
git ls-files -z --cached --others --exclude-standard | tar -c --null --ignore-failed-read -T - | tar -x -C "$folder/source"
python -m build --wheel --no-isolation --outdir "$folder/dist" "$folder/source" >"$folder/build.log" 2>&1 || {
    tail -n 20 "$folder/build.log" >&2
    fail "the wheel could not be built"
}
wheel="$(ls "$folder"/dist/*.whl)"
echo "wheel: $(basename "$wheel"), $(du -h "$wheel" | cut -f1)"

python -m venv "$folder/venv"
pip=("$folder/venv/bin/python" -m pip --disable-pip-version-check --quiet)
if "$clean"; then
    "${pip[@]}" install -c launch/constraints.txt "$wheel" ninja scikit-learn
else
    site="$("$folder/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
    # All of .venv but ds_dip: its own path file, which leads to this checkout, is not processed from there.
    .venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/zz_requirements.pth"
    "${pip[@]}" install --no-deps "$wheel"
fi

export PATH="$folder/venv/bin:$DS_DIP_ROOT/.venv/bin:$PATH"
unset PYTHONPATH
mkdir "$folder/elsewhere"
cd "$folder/elsewhere"
where="$(python -c 'import ds_dip; print(ds_dip.__file__)')"
[[ "$where" == "$folder"/venv/* ]] || fail "ds_dip is imported from $where, not from the wheel"
ds-dip --help >/dev/null
ds-dip doctor >"$folder/doctor.log" || { cat "$folder/doctor.log" >&2 && fail "ds-dip doctor finds that training cannot work"; }
ds-dip example work
cd work
ds-dip partition --model quickstart --ranks 2 --device h800 --batch-size 16 --microbatches 4 --batches 1 \
    --evaluations 20 --dataset ds_dip.data.digits:Digits --dataset-options '{"samples": 320}' --out partition.json
cat >problem.json <<'PROBLEM'
{"format": "ds-dip/problem", "version": 1, "ranks": 1, "memory_capacity": [null],
 "tasks": [{"id": 0, "rank": 0, "kind": "F", "module": "m", "chunk": 0, "segment": 0, "microbatch": 0, "duration": 1.0}],
 "edges": []}
PROBLEM
ds-dip solve problem.json --evaluations 10 --out plan.json
ds-dip check problem.json plan.json
ds-dip report plan.json --problem problem.json --out report.html
export OMP_NUM_THREADS=1
# By this environment's Python: the launcher's own script may be another's.
python -m deepspeed.launcher.runner --num_gpus 2 --master_port "$port" launch/train.py --steps 4 --evaluate 0 \
    --deepspeed --deepspeed_config launch/quickstart_ds_config.json >"$folder/train.log" 2>&1 || {
    tail -n 30 "$folder/train.log" >&2
    fail "the quick start did not train"
}
ds-dip watch runs/quickstart --once
ds-dip report runs/quickstart --out report.html
ds-dip trace runs/quickstart --out trace.json
echo "wheel: $(basename "$wheel") installs and trains"
