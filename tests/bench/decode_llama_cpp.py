"""Greedy decoding in spectrain and in llama.cpp, of the same sizes in f32, in turn.

    python tests/bench/decode_llama_cpp.py target/release/spectrain LLAMA_CPP small medium large

LLAMA_CPP is the sources of llama.cpp with `build/bin/llama-bench` in them; a model of each size, of the architecture of Qwen3 and of random
numbers, is written by its own Python package. Both read a prompt of 128 tokens and make 64 more, in two threads; llama.cpp keeps keys and
values in f16. Prints medians of the rounds: milliseconds for all of it.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile

from eagle3_pytorch import EPSILON, SIZES, THETA

LAYERS, PROMPT, MADE, THREADS = 8, 128, 64, 2


def write(gguf, path, size):
    import numpy

    draw = numpy.random.default_rng(1)
    writer = gguf.GGUFWriter(path, "qwen3")
    d_model, d_ff, d_head, vocab = size["d_model"], size["d_ff"], size["d_head"], size["target_vocab"]
    writer.add_block_count(LAYERS)
    writer.add_context_length(1024)
    writer.add_embedding_length(d_model)
    writer.add_feed_forward_length(d_ff)
    writer.add_head_count(size["heads"])
    writer.add_head_count_kv(size["kv_heads"])
    writer.add_key_length(d_head)
    writer.add_value_length(d_head)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_freq_base(THETA)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"t{token}" for token in range(vocab)])
    writer.add_token_types([gguf.TokenType.NORMAL] * vocab)
    writer.add_token_merges(["t 0"])
    writer.add_eos_token_id(0)

    def matrix(name, rows, columns):
        writer.add_tensor(name, draw.normal(0, columns**-0.5, (rows, columns)).astype(numpy.float32))

    def norm(name, width):
        writer.add_tensor(name, numpy.ones(width, numpy.float32))

    queries, keys = size["heads"] * d_head, size["kv_heads"] * d_head
    matrix("token_embd.weight", vocab, d_model)
    for layer in range(LAYERS):
        at = f"blk.{layer}."
        norm(at + "attn_norm.weight", d_model)
        matrix(at + "attn_q.weight", queries, d_model)
        matrix(at + "attn_k.weight", keys, d_model)
        matrix(at + "attn_v.weight", keys, d_model)
        matrix(at + "attn_output.weight", d_model, queries)
        norm(at + "attn_q_norm.weight", d_head)
        norm(at + "attn_k_norm.weight", d_head)
        norm(at + "ffn_norm.weight", d_model)
        matrix(at + "ffn_gate.weight", d_ff, d_model)
        matrix(at + "ffn_up.weight", d_ff, d_model)
        matrix(at + "ffn_down.weight", d_model, d_ff)
    norm("output_norm.weight", d_model)
    matrix("output.weight", vocab, d_model)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def spectrain(program, size, repeat):
    """Milliseconds for prompt and tokens."""
    command = [program, "bench", "--task", "plain", "--size", size, "--repeat", str(repeat)]
    line = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
    return float(line.split()[3])


def llama_cpp(sources, model, repeat):
    """The same."""
    command = [sources / "build/bin/llama-bench", "-m", model, "-t", THREADS, "-p", 0, "-n", 0, "-pg", f"{PROMPT},{MADE}"]
    command += ["-r", repeat, "-o", "json"]
    found = subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout
    return json.loads(found)[0]["avg_ns"] / 1e6


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="the built spectrain")
    parser.add_argument("sources", type=pathlib.Path, help="llama.cpp")
    parser.add_argument("size", nargs="+", choices=["small", "medium", "large"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=3, help="timed repetitions of a round")
    given = parser.parse_args()
    sys.path.insert(0, str(given.sources / "gguf-py"))
    import gguf

    print("size     spectrain ms   llama.cpp ms   speed-up")
    for size in given.size:
        with tempfile.TemporaryDirectory() as folder:
            model = pathlib.Path(folder) / "model.gguf"
            write(gguf, model, SIZES[size])
            ours, theirs = [], []
            for _ in range(given.rounds):
                ours.append(spectrain(given.program, size, given.repeat))
                theirs.append(llama_cpp(given.sources, model, given.repeat))
        ours, theirs = statistics.median(ours), statistics.median(theirs)
        print(f"{size:<8} {ours:>12.0f} {theirs:>14.0f} {theirs / ours:>9.2f}x", flush=True)


if __name__ == "__main__":
    main()
