#!/usr/bin/env bash
# Trains on the 8 GPUs of each of 2 nodes that see the same folder: 16 ranks, of which rank 0 alone does the other
# stages. `train.gradient_accumulation` is the batches of a step of all ranks together.
#
#     sbatch --time=12:00:00 recipes/jobs/train.sh
#
# Five minutes before the time is up Slurm sends SIGTERM to the ranks, which save their state and end with the exit
# status 130. The job is then queued again and goes on from there, as it does after a node failed or another job took
# it.
#SBATCH --job-name=spectrain
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gres=gpu:8
#SBATCH --cpus-per-task=8
#SBATCH --requeue
#SBATCH --signal=TERM@300
#SBATCH --open-mode=append
set -euo pipefail

export MASTER_ADDR MASTER_PORT
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# Jobs that share a node have ports of their own.
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
status=0
# Slurm sets what is in single quotes for each process. A rank that has ended must not end the one that is saving.
srun --kill-on-bad-exit=0 --cpus-per-task="$SLURM_CPUS_PER_TASK" bash -c \
  'RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID WORLD_SIZE=$SLURM_NTASKS exec spectrain recipe \
  recipes/eagle3-qwen3-8b.toml --set train.gradient_accumulation=16 --device cuda' || status=$?
if ((status == 130)); then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
