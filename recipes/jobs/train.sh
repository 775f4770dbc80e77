#!/usr/bin/env bash
# Trains on the 8 GPUs of each of 2 nodes that see the same folder: 16 ranks, of which rank 0 alone does the other stages.
# `train.gradient_accumulation` is the batches of a step of all ranks together.
#
#     sbatch recipes/jobs/train.sh
#SBATCH --job-name=spectrain
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gres=gpu:8
#SBATCH --cpus-per-task=8
set -euo pipefail

export MASTER_ADDR MASTER_PORT=29500
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# Slurm sets what is in single quotes for each process.
exec srun bash -c 'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS exec spectrain recipe \
  recipes/eagle3-qwen3-8b.toml --set train.gradient_accumulation=16 --device cuda'
