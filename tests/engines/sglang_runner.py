"""A job in SGLang on the CPU, one prompt after the other; `algorithm` of the job is SGLang's name of the method, with `own_layer` the target
drafts by the layer in its own checkpoint."""
import os

import job as jobs

os.environ["SGLANG_USE_CPU_ENGINE"] = "1"


def run(job):
    import sglang

    settings = {}
    if job["drafter"]:
        settings = {
            "speculative_algorithm": job["algorithm"],
            "speculative_draft_model_path": None if job.get("own_layer") else job["drafter"],
            "speculative_num_steps": job["length"],
            "speculative_eagle_topk": 1,
            "speculative_num_draft_tokens": job["length"] + 1,
        }
    engine = sglang.Engine(
        model_path=job["target"],
        device="cpu",
        dtype="float32",
        skip_tokenizer_init=True,
        attention_backend="torch_native",
        prefill_attention_backend="intel_amx",
        decode_attention_backend="intel_amx",
        sampling_backend="pytorch",
        disable_cuda_graph=True,
        disable_overlap_schedule=True,
        disable_radix_cache=True,
        context_length=jobs.longest(job),
        max_total_tokens=4096,
        mem_fraction_static=0.2,
        log_level="error",
        **settings,
    )
    greedy = {"temperature": 0.0, "max_new_tokens": job["max_new"], "ignore_eos": True}
    result = jobs.Result()
    for prompt in job["prompts"]:
        [output] = engine.generate(input_ids=[prompt], sampling_params=greedy)
        said = output["meta_info"]
        counts = ("spec_verify_ct", "spec_draft_token_num", "spec_num_correct_drafts")
        result.add(output["output_ids"], *(said.get(name, 0) for name in counts))
    engine.shutdown()
    return result


if __name__ == "__main__":  # its workers are spawned, and import this file
    jobs.run_all(run)
