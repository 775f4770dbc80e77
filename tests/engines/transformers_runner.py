"""A job in Transformers; `speculation` of the job is null for a language model, or `"dflash"`.

Transformers drafts before the target has read the prompt, one pass earlier than the other engines and spectrain.

At every pass after the first, Transformers 5.19 hands a language model the whole text again, on top of what its cache holds, so
that it attends to most tokens twice. With `mended` the drafter starts each draft with an empty cache.
"""
import job as jobs  # first, as it sets what the others read

import torch
from transformers import AutoModel, AutoModelForCausalLM
from transformers.generation import candidate_generator


def count(generator, passes, mended):
    """Lets `generator` note how many tokens it drafted and how many of them were kept."""
    propose, update = generator.get_candidates, generator.update_candidate_strategy

    def get_candidates(self, input_ids, *args, **named):
        if mended:
            for name in ("past_key_values", "position_ids"):
                self.assistant_kwargs.pop(name, None)
            self.assistant_kwargs["attention_mask"] = torch.ones_like(input_ids)
        out = propose(self, input_ids, *args, **named)
        passes.append([out[0].shape[1] - input_ids.shape[1], 0])
        return out

    def update_candidate_strategy(self, input_ids, scores, matches, *args, **named):
        passes[-1][1] = int(matches)
        return update(self, input_ids, scores, matches, *args, **named)

    generator.get_candidates = get_candidates
    generator.update_candidate_strategy = update_candidate_strategy


def run(job):
    torch.set_grad_enabled(False)
    target = AutoModelForCausalLM.from_pretrained(job["target"], dtype=torch.float32)
    settings, passes = {}, []
    if job["drafter"]:
        kind = AutoModel if job["speculation"] else AutoModelForCausalLM
        drafter, found = kind.from_pretrained(job["drafter"], dtype=torch.float32, output_loading_info=True)
        wrong = {name: list(keys) for name, keys in found.items() if keys}
        if wrong:
            raise SystemExit(f"Transformers does not take the drafter as it is: {wrong}")
        settings["assistant_model"] = drafter
        if job["speculation"]:
            settings["speculation_type"] = job["speculation"]
        else:
            drafter.generation_config.update(
                num_assistant_tokens=job["length"],
                num_assistant_tokens_schedule="constant",
                assistant_confidence_threshold=0.0,
                eos_token_id=None,  # else drafts end there
            )
        for name, member in vars(candidate_generator).items():
            if isinstance(member, type) and "get_candidates" in vars(member):
                count(member, passes, job.get("mended"))
    result = jobs.Result()
    for prompt in job["prompts"]:
        del passes[:]
        ids = torch.tensor([prompt])
        out = target.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=job["max_new"], do_sample=False, eos_token_id=None, **settings)
        counted = passes[1:] if job.get("speculation") else passes  # DFlash drafts nothing before the target has read the prompt
        result.add(out[0, len(prompt):], len(counted), sum(drafted for drafted, _ in counted), sum(kept for _, kept in counted))
    return result


jobs.run_all(run)
