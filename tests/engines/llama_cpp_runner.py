"""A job in llama.cpp: its converter makes files of target and drafter, and its server decodes; `type` of the job is its name
of the method. `SPECTRAIN_LLAMA_CPP` names its sources, with `build/bin/llama-server` in them.

The converter knows tokenizers by what they make of one text, and ours is not among them. So the files get a vocabulary of
names without a meaning: prompts and outputs are ids. Its end token is `unused` of the job, an id that no text holds.
"""
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import job as jobs

SOURCES = os.environ["SPECTRAIN_LLAMA_CPP"]
sys.path[:0] = [SOURCES, os.path.join(SOURCES, "gguf-py")]
import convert_hf_to_gguf  # noqa: E402 (found by the line before)
import gguf  # noqa: E402
from conversion.base import TextModel  # noqa: E402


def names(model, unused):
    """Writes a vocabulary of names."""
    count = model.hparams["vocab_size"]
    writer = model.gguf_writer
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"t{id}" for id in range(count)])
    writer.add_token_types([gguf.TokenType.NORMAL] * count)
    writer.add_token_merges(["t 0"])
    for add in (writer.add_bos_token_id, writer.add_eos_token_id):
        add(unused)
    writer.add_add_bos_token(False)


def converted(folder, to, *more):
    sys.argv = ["convert_hf_to_gguf.py", folder, "--outfile", to, "--outtype", "f32", *more]
    convert_hf_to_gguf.main()
    return to


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def asked(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def ready(server, url):
    for _ in range(600):
        if server.poll() is not None:
            raise RuntimeError(f"llama-server ended with {server.returncode}")
        try:
            return asked(url + "/health")
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("llama-server does not answer")


def run(job):
    TextModel._set_vocab_sentencepiece = lambda model: names(model, job["unused"])
    with tempfile.TemporaryDirectory() as folder:
        target = converted(job["target"], os.path.join(folder, "target.gguf"))
        port = free_port()
        words = [os.path.join(SOURCES, "build/bin/llama-server"), "-m", target, "--port", port, "--ctx-size", jobs.longest(job)]
        words += ["--parallel", 1, "--threads", 1, "--flash-attn", "off", "--cache-type-k", "f32", "--cache-type-v", "f32"]
        words += ["--no-warmup", "--log-verbosity", 2, "--batch-size", 4096, "--ubatch-size", 4096]
        if job["drafter"]:
            more = ["--target-model-dir", job["target"]] if job["type"] != "draft-simple" else []
            drafter = converted(job["drafter"], os.path.join(folder, "drafter.gguf"), *more)
            words += ["--spec-type", job["type"], "--model-draft", drafter, "--spec-draft-n-max", job["length"]]
            words += ["--spec-draft-type-k", "f32", "--spec-draft-type-v", "f32"]
        server = subprocess.Popen([str(word) for word in words], stdout=sys.stderr)
        try:
            url = f"http://127.0.0.1:{port}"
            ready(server, url)
            result = jobs.Result()
            for prompt in job["prompts"]:
                greedy = {"prompt": prompt, "n_predict": job["max_new"], "temperature": 0, "return_tokens": True, "cache_prompt": False}
                said = asked(url + "/completion", greedy)
                counted = said["timings"]
                accepted = counted.get("draft_n_accepted", 0)
                # It does not count passes: each gives a token besides those accepted, and the prompt's gives the first.
                passes = len(said["tokens"]) - 1 - accepted
                result.add(said["tokens"], passes, counted.get("draft_n", 0), accepted)
            return result
        finally:
            server.kill()
            server.wait()


if __name__ == "__main__":
    jobs.run_all(run)
