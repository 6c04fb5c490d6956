#!/usr/bin/env bash
# Sets everything up and trains a small vision-language model on two ranks; the end says where its summary is.
#
#   bash launch/quickstart.sh [--master_port PORT] [launch/train.py arguments]
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"
cd "$DS_DIP_ROOT"

port=29600
if [[ "${1:-}" == --master_port ]]; then
    [[ "${2:-}" =~ ^[0-9]+$ ]] || setup_fail "--master_port needs a port number"
    port="$2"
    shift 2
fi

ranks=2
cores="$(nproc)"
threads=$((cores / ranks > 0 ? cores / ranks : 1))
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$threads}"
trap 'remove_buffers "$port"' EXIT

deepspeed --num_gpus "$ranks" --master_port "$port" launch/train.py \
    --deepspeed --deepspeed_config launch/quickstart_ds_config.json "$@"
