#!/bin/bash
#SBATCH --job-name=ds_dip
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=TERM@300
#SBATCH --requeue
set -euo pipefail

# One task a node starts torchrun, which starts a rank a GPU. Five minutes before the time is up Slurm sends SIGTERM
# to the tasks: torchrun passes it on, the ranks end their step and save within torchrun's 30 seconds.
nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))
export OMP_NUM_THREADS=$((SLURM_CPUS_PER_TASK / 8))

srun --kill-on-bad-exit=1 torchrun \
    --nnodes "$SLURM_NNODES" --nproc_per_node 8 \
    --rdzv_id "$SLURM_JOB_ID" --rdzv_backend c10d --rdzv_endpoint "${nodes[0]}:29500" \
    launch/train.py --pipeline-ranks 8 --checkpoints checkpoints --save-every 500 \
    --deepspeed --deepspeed_config ds_config.json
