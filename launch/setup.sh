#!/usr/bin/env bash
# Makes .venv in the repository's root and installs the project into it; source it, or run it.
#
# Run again, it does nothing unless what it installs from has changed. Settings, all optional:
#   PYTHON            the interpreter to make .venv with (default python3; at least 3.10)
#   TORCH_INDEX_URL   where to take torch from, for a machine without a GPU whose package index
#                     serves only the much larger CUDA build
set -euo pipefail

DS_DIP_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"

setup_fail() {
    echo "setup: $1" >&2
    exit 1
}

# Prints the version of a torch outside .venv that drives this machine's GPU, or nothing.
system_torch() {
    nvidia-smi -L >/dev/null 2>&1 || return 0
    "$1" - 2>/dev/null <<'PYTHON' || true
import torch
if torch.cuda.is_available() and tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 4):
    print(torch.__version__)
PYTHON
}

setup_environment() {
    local python="${PYTHON:-python3}" venv="$DS_DIP_ROOT/.venv" constraints="$DS_DIP_ROOT/launch/constraints.txt"
    command -v "$python" >/dev/null || setup_fail "$python is not on the PATH; install Python 3.10 or newer, or set PYTHON"
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
        setup_fail "$python is $("$python" --version 2>&1), needed is 3.10 or newer; set PYTHON to one"

    local stamp="$venv/.ds_dip-setup" wanted
    wanted="$(cd "$DS_DIP_ROOT" && cat setup.cfg launch/constraints.txt | sha256sum)"
    wanted="${wanted%% *} $DS_DIP_ROOT"
    if [[ -x "$venv/bin/python" && "$(cat "$stamp" 2>/dev/null)" == "$wanted" ]]; then
        return 0
    fi
    if [[ -f "$stamp" && "$(cut -d' ' -f2- "$stamp")" != "$DS_DIP_ROOT" ]]; then
        echo "setup: $venv was made for another folder; making it anew"
        rm -rf "$venv"
    fi

    local gpu_torch pip
    gpu_torch="$(system_torch "$python")"
    if [[ ! -x "$venv/bin/python" ]]; then
        echo "setup: making $venv with $("$python" --version 2>&1)"
        local -a options=()
        [[ -z "$gpu_torch" ]] || options+=(--system-site-packages)
        "$python" -m venv ${options[@]+"${options[@]}"} "$venv" || {
            rm -rf "$venv"
            setup_fail "$python cannot make a virtual environment; install its venv module (python3-venv on Debian)"
        }
    fi
    pip=("$venv/bin/python" -m pip --disable-pip-version-check --quiet install)

    # torch first: DeepSpeed looks at it when it is built.
    local pinned="$venv/constraints.txt"
    if [[ -n "$gpu_torch" ]]; then
        echo "setup: using the installed torch $gpu_torch"
        { grep -v '^torch==' "$constraints"; echo "torch==$gpu_torch"; } >"$pinned"
    else
        cp "$constraints" "$pinned"
        local -a index=()
        [[ -z "${TORCH_INDEX_URL:-}" ]] || index+=(--extra-index-url "$TORCH_INDEX_URL")
        echo "setup: installing $(grep '^torch==' "$pinned")"
        "${pip[@]}" ${index[@]+"${index[@]}"} -c "$pinned" torch || setup_fail "torch could not be installed (see above)"
    fi
    echo "setup: installing ds_dip and what it needs"
    "${pip[@]}" -c "$pinned" setuptools wheel ninja py-cpuinfo || setup_fail "the build tools could not be installed (see above)"
    "${pip[@]}" -c "$pinned" --no-build-isolation -e "$DS_DIP_ROOT[exact,dev,docs,hf,video,audio,parquet]" ||
        setup_fail "ds_dip's requirements could not be installed (see above)"
    echo "setup: compiling the kernels"
    (cd "$DS_DIP_ROOT" && "$venv/bin/python" -c 'from ds_dip import balancing, scheduling; scheduling.warm(); balancing.warm()') ||
        setup_fail "the kernels could not be compiled (see above)"
    echo "$wanted" >"$stamp"
}

setup_environment
export PATH="$DS_DIP_ROOT/.venv/bin:$PATH"

# Without a GPU for each of two ranks, everything runs on the CPU (gloo), through the same code.
if [[ -z "${DS_ACCELERATOR:-}" && "$(nvidia-smi -L 2>/dev/null | wc -l)" -lt 2 ]]; then
    export DS_ACCELERATOR=cpu
fi

# DeepSpeed compiles an operation for the CPU when it is first used. Here it is compiled ahead, for this
# environment alone: a rank that is killed while it builds or loads it leaves a lock that every later run would
# wait for, so locks that nobody can hold any more go.
export TORCH_EXTENSIONS_DIR="$DS_DIP_ROOT/.venv/torch_extensions"
build_operations() {
    find "$TORCH_EXTENSIONS_DIR" -name lock -mmin +10 -delete 2>/dev/null || true
    [[ "${DS_ACCELERATOR:-}" == cpu && ! -e "$TORCH_EXTENSIONS_DIR/deepspeed_shm_comm/deepspeed_shm_comm.so" ]] || return 0
    echo "setup: compiling DeepSpeed's operation for the CPU"
    rm -f "$TORCH_EXTENSIONS_DIR/deepspeed_shm_comm/lock"
    timeout 900 python -c 'from deepspeed.comm.torch import build_shm_op; build_shm_op()' >"$DS_DIP_ROOT/.venv/build.log" 2>&1 || {
        tail -n 20 "$DS_DIP_ROOT/.venv/build.log" >&2
        setup_fail "DeepSpeed's operation could not be compiled; install a C++ compiler (g++) and run again"
    }
}
build_operations

# DeepSpeed's shared-memory buffers outlive a run on the CPU: 66 MB a rank and port.
remove_buffers() {
    rm -f /dev/shm/deepspeed_allreduce_buffer_*_"$1"_*
}
