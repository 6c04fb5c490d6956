#!/usr/bin/env bash
# Sets everything up and fine-tunes a model of transformers on two ranks; the end says where it is saved.
#
#   bash launch/finetune.sh [--master_port PORT] --model FOLDER --data FILE [launch/finetune.py arguments]
#
# The trained model goes to runs/finetuned unless --out names another folder. --deepspeed_config replaces
# launch/finetune_ds_config.json (launch/finetune_images_ds_config.json for a pipeline of diffusers), and RANKS=N the
# number of ranks.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/setup.sh"

port=29600
if [[ "${1:-}" == --master_port ]]; then
    [[ "${2:-}" =~ ^[0-9]+$ ]] || setup_fail "--master_port needs a port number"
    port="$2"
    shift 2
fi

ranks="${RANKS:-2}"
cores="$(nproc)"
threads=$((cores / ranks > 0 ? cores / ranks : 1))
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-$threads}"
trap 'remove_buffers "$port"' EXIT

deepspeed --num_gpus "$ranks" --master_port "$port" "$DS_DIP_ROOT/launch/finetune.py" --out runs/finetuned \
    --deepspeed --deepspeed_config "$DS_DIP_ROOT/launch/finetune_ds_config.json" "$@"
