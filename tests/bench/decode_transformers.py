"""Greedy decoding by Transformers on the CPU, one prompt at a time, to compare a plain pass of ours with.

    python tests/bench/decode_transformers.py TARGET PROMPTS --count 8 --max-new-tokens 64

PROMPTS are conversations in lines of JSON; each is asked its first turn. Prints a line of JSON: tokens, seconds without the
prompts' own, and milliseconds for each token. `spectrain evaluate` with the same prompts and `--temperature 0` reports
its own in `seconds.autoregressive`, of `tokens`.
"""

import argparse
import json
import os
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("prompts")
    parser.add_argument("--count", type=int, default=8)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    tokenizer = AutoTokenizer.from_pretrained(given.target)
    model = AutoModelForCausalLM.from_pretrained(given.target, dtype=torch.float32).eval()
    tokens, seconds = 0, 0.0
    for line in list(open(given.prompts, encoding="utf-8"))[: given.count]:
        asked = json.loads(line)["messages"][:1]
        prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=True, return_tensors="pt")
        with torch.no_grad():
            took = []
            for longest in (1, given.max_new_tokens):
                began = time.perf_counter()
                found = model.generate(**prompt, do_sample=False, max_new_tokens=longest)
                took.append(time.perf_counter() - began)
        tokens += found.shape[1] - prompt["input_ids"].shape[1] - 1
        seconds += took[1] - took[0]
    print(json.dumps({"tokens": tokens, "seconds": round(seconds, 3), "ms_per_token": round(1e3 * seconds / tokens, 3)}))


if __name__ == "__main__":
    main()
