"""A job in vLLM on the CPU, one prompt after the other; `speculative` of the job is further keys of `speculative_config`, `overrides`
change the target's configuration."""
import os

import job as jobs

os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind", VLLM_LOGGING_LEVEL="ERROR")
from vllm import LLM, SamplingParams  # noqa: E402 (reads the environment)


def counters(engine):
    """Drafts, drafted and accepted tokens up to now."""
    values = {metric.name: getattr(metric, "value", 0) for metric in engine.get_metrics()}
    return [values.get(f"vllm:spec_decode_num_{name}", 0) for name in ("drafts", "draft_tokens", "accepted_tokens")]


def run(job):
    speculative = None
    if job["drafter"]:
        speculative = {"model": job["drafter"], "num_speculative_tokens": job["length"], **job["speculative"]}
    engine = LLM(
        model=job["target"],
        speculative_config=speculative,
        dtype="float32",
        skip_tokenizer_init=True,
        enforce_eager=True,
        disable_log_stats=False,
        enable_prefix_caching=False,
        max_model_len=jobs.longest(job),
        max_num_seqs=1,
        gpu_memory_utilization=0.2,
        hf_overrides=job.get("overrides", {}),
    )
    greedy = SamplingParams(temperature=0.0, max_tokens=job["max_new"], ignore_eos=True, detokenize=False)
    result = jobs.Result()
    before = counters(engine)
    for prompt in job["prompts"]:
        [output] = engine.generate([{"prompt_token_ids": prompt}], greedy, use_tqdm=False)
        after = counters(engine)
        result.add(output.outputs[0].token_ids, *(b - a for a, b in zip(before, after)))
        before = after
    return result


jobs.run_all(run)
