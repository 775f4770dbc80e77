#!/usr/bin/env bash
# Trains on the GPUs 4 to 7 of a node from the hidden states that vLLM computes on its GPUs 0 to 3. The section
# "Training for a target that vLLM serves" of recipes/README.md says what to change for another target.
#
#     sbatch --time=12:00:00 recipes/jobs/served.sh
#
# Five minutes before the time is up Slurm sends SIGTERM to the training, which saves its state and ends with the exit
# status 130. The job is then queued again and goes on from there, as it does after the node failed or another job
# took it.
#SBATCH --job-name=spectrain
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --exclusive
#SBATCH --gres=gpu:8
#SBATCH --cpus-per-task=32
#SBATCH --requeue
#SBATCH --signal=TERM@300
#SBATCH --open-mode=append
set -euo pipefail

recipe=recipes/eagle3-served-qwen3-8b.toml
port=8000               # of `target.server`
states=/dev/shm/states  # `target.server_folder`

# A run that was killed may have left files that nobody reads.
rm -rf "$states"
# `spectrain recipe "$recipe" --plan` prints this command with the layers that its drafter reads.
CUDA_VISIBLE_DEVICES=0,1,2,3 vllm serve Qwen/Qwen3-8B --data-parallel-size 4 --port "$port" \
  --no-enable-chunked-prefill --no-enable-prefix-caching \
  --speculative-config '{"method":"extract_hidden_states","num_speculative_tokens":1,"draft_model_config":{"hf_config":{"eagle_aux_hidden_state_layer_ids":[2,18,33,36]}}}' \
  --kv-transfer-config '{"kv_connector":"ExampleHiddenStatesConnector","kv_role":"kv_producer","kv_connector_extra_config":{"shared_storage_path":"'"$states"'"}}' \
  >>"vllm-$SLURM_JOB_ID.log" 2>&1 &
server=$!
stop_server() {
  kill "$server" 2>/dev/null || true
  # Slurm ends the job soon.
  (sleep 60; kill -9 "$server" 2>/dev/null) &
  wait "$server" || true
  rm -rf "$states"
}
trap stop_server EXIT

# vLLM answers once the target is loaded.
until curl --noproxy "*" --silent --fail --output /dev/null "http://localhost:$port/v1/models"; do
  if ! kill -0 "$server" 2>/dev/null; then
    echo "vLLM has ended; vllm-$SLURM_JOB_ID.log says why" >&2
    exit 1
  fi
  sleep 5
done

# A step of its own, because Slurm signals steps and not this script.
status=0
srun --ntasks=1 --cpus-per-task="$SLURM_CPUS_PER_TASK" \
  spectrain recipe "$recipe" --devices cuda:4,cuda:5,cuda:6,cuda:7 || status=$?
stop_server
if ((status == 130)); then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$status"
