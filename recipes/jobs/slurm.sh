#!/usr/bin/env bash
# Captures features with 16 jobs of Slurm on a file system that all nodes see, then trains. Features of Qwen3-8B take 32 KiB a token, so
# 8 TB for 250 million tokens. Each job may be stopped and started again: it goes on with its part. Where nodes share an object store
# only, add `--parts s3://BUCKET/PREFIX`, and let each job make the stage `prepare` first. PARTS says how many parts there are, 16 if it
# is unset, so `--array=3,7` makes two of them again. For another number export PARTS and give the same number to `--array`.
#
#     spectrain recipe recipes/eagle3-qwen3-8b.toml --set features.mode=stored --stage prepare
#     part=$(sbatch --parsable --array=1-16 recipes/jobs/slurm.sh)
#     sbatch --dependency=afterok:$part --export=ALL,TRAIN=1 recipes/jobs/slurm.sh
#SBATCH --job-name=spectrain
#SBATCH --gres=gpu:1
#SBATCH --cpus-per-task=8
#SBATCH --requeue
set -euo pipefail

recipe=(spectrain recipe recipes/eagle3-qwen3-8b.toml --set features.mode=stored --device cuda:0)
if [[ -n ${TRAIN:-} ]]; then
  # All parts are there: they become the stage `features`, and the other stages follow.
  exec "${recipe[@]}"
fi
exec "${recipe[@]}" --stage features --part "$SLURM_ARRAY_TASK_ID/${PARTS:-16}"
