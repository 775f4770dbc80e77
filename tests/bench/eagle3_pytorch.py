"""EAGLE-3 training in eager PyTorch on random data, to compare the trainer's speed with.

One update: unroll the drafter `--steps` times (training-time test), soft cross-entropy against the
target's distribution on the draft vocabulary at every position, clip the gradient norm, AdamW.

    python eagle3_pytorch.py small --updates 5
    python eagle3_pytorch.py medium --seq 256 --steps 3
    python eagle3_pytorch.py qwen3-8b --device cuda:0 --dtype bf16 --compile

With bf16 the trained weights stay in f32 and are cast where they are multiplied with (autocast); what is frozen is held
in bf16.
"""

import argparse
import json
import os
import resource
import time

import torch
from torch import nn
from torch.nn import functional as F


def peak_mib():
    """Peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def peak_on_device_mib(device):
    """Peak memory of tensors on a GPU."""
    return torch.cuda.max_memory_allocated(device) / 1024**2 if device.type == "cuda" else None


SIZES = {
    "small": {
        "d_model": 256,
        "d_ff": 768,
        "heads": 8,
        "kv_heads": 4,
        "d_head": 32,
        "target_vocab": 4096,
        "draft_vocab": 4096,
    },
    "medium": {
        "d_model": 512,
        "d_ff": 1536,
        "heads": 8,
        "kv_heads": 4,
        "d_head": 64,
        "target_vocab": 32000,
        "draft_vocab": 32000,
    },
    "large": {
        "d_model": 1024,
        "d_ff": 3072,
        "heads": 16,
        "kv_heads": 8,
        "d_head": 64,
        "target_vocab": 32000,
        "draft_vocab": 32000,
    },
    "qwen3-8b": {
        "d_model": 4096,
        "d_ff": 12288,
        "heads": 32,
        "kv_heads": 8,
        "d_head": 128,
        "target_vocab": 151936,
        "draft_vocab": 32000,
        "batch": 4,
        "seq": 2048,
    },
}
SHARED = {"batch": 1, "seq": 512, "steps": 7, "threads": 2}
DECAY, CAPTURED, EPSILON, THETA, CLIP = 0.8, 3, 1e-6, 10000.0, 0.5


class RmsNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPSILON))


class Rope(nn.Module):
    """Half-split rotary table for `positions` consecutive positions."""

    def __init__(self, d_head, positions):
        super().__init__()
        frequencies = THETA ** (-torch.arange(0, d_head, 2).float() / d_head)
        angles = torch.outer(torch.arange(positions).float(), frequencies)
        angles = torch.cat([angles, angles], -1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, x, offset):
        seq = x.shape[-2]
        cos, sin = self.cos[offset : offset + seq], self.sin[offset : offset + seq]
        low, high = x.chunk(2, -1)
        return x * cos + torch.cat([-high, low], -1) * sin


class Attention(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.heads, self.kv_heads, self.d_head = size.heads, size.kv_heads, size.d_head
        d_in = 2 * size.d_model
        self.q_proj = nn.Linear(d_in, size.heads * size.d_head, bias=False)
        self.k_proj = nn.Linear(d_in, size.kv_heads * size.d_head, bias=False)
        self.v_proj = nn.Linear(d_in, size.kv_heads * size.d_head, bias=False)
        self.o_proj = nn.Linear(size.heads * size.d_head, size.d_model, bias=False)
        self.rope = Rope(size.d_head, size.seq + size.steps)

    def forward(self, u, step, mask, cache):
        batch, seq, _ = u.shape
        repeat = self.heads // self.kv_heads
        q = self.q_proj(u).view(batch, seq, self.heads, self.d_head).transpose(1, 2)
        k = self.k_proj(u).view(batch, seq, self.kv_heads, self.d_head).transpose(1, 2)
        v = self.v_proj(u).view(batch, seq, self.kv_heads, self.d_head).transpose(1, 2)
        q, k = self.rope(q, step), self.rope(k, step)
        cache.append((k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)))

        scale = self.d_head**-0.5
        k0, v0 = cache[0]
        scores = torch.matmul(q, k0.transpose(-1, -2)) * scale + mask
        later = [(q * key).sum(-1, keepdim=True) * scale for key, _ in cache[1:]]
        weights = torch.cat([scores, *later], -1).softmax(-1, dtype=torch.float32)
        mixed = torch.matmul(weights[..., :seq], v0)
        for index, (_, value) in enumerate(cache[1:]):
            mixed = mixed + weights[..., seq + index, None] * value
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, seq, -1))


class Drafter(nn.Module):
    def __init__(self, size):
        super().__init__()
        d_model, d_ff = size.d_model, size.d_ff
        self.embed_tokens = nn.Embedding(size.target_vocab, d_model)
        self.embed_tokens.weight.requires_grad_(False)
        self.fc = nn.Linear(CAPTURED * d_model, d_model, bias=False)
        self.input_layernorm = RmsNorm(d_model)
        self.hidden_norm = RmsNorm(d_model)
        self.self_attn = Attention(size)
        self.post_attention_layernorm = RmsNorm(d_model)
        self.gate_proj = nn.Linear(d_model, d_ff, bias=False)
        self.up_proj = nn.Linear(d_model, d_ff, bias=False)
        self.down_proj = nn.Linear(d_ff, d_model, bias=False)
        self.norm = RmsNorm(d_model)
        self.lm_head = nn.Linear(d_model, size.draft_vocab, bias=False)

    def layer(self, embedding, hidden, step, mask, cache):
        u = torch.cat([self.input_layernorm(embedding), self.hidden_norm(hidden)], -1)
        hidden = hidden + self.self_attn(u, step, mask, cache)
        x = self.post_attention_layernorm(hidden)
        return hidden + self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Frozen:
    """What the target gives: its head, and which of its tokens the drafter can say."""

    def __init__(self, size, dtype):
        self.lm_head = torch.randn(size.target_vocab, size.d_model, dtype=dtype) * size.d_model**-0.5
        self.whole = size.draft_vocab == size.target_vocab
        self.draft_vocab = torch.randperm(size.target_vocab)[: size.draft_vocab].sort().values
        self.in_draft_vocab = torch.zeros(size.target_vocab, dtype=torch.bool)
        self.in_draft_vocab[self.draft_vocab] = True

    @torch.no_grad()
    def teach(self, last, pad):
        """Draft-vocabulary distributions and which positions count, padded by `pad` at the end."""
        logits = last @ self.lm_head.T
        counted = self.in_draft_vocab[logits.argmax(-1)].float()
        if not self.whole:
            logits = logits[..., self.draft_vocab]
        p = F.pad(logits.float().softmax(-1), (0, 0, 0, pad))
        return p, F.pad(counted, (0, pad))


def loss_of(drafter, frozen, batch, steps, mask):
    tokens, features, last = batch
    seq = tokens.shape[1]
    p, counted = frozen.teach(last, steps)
    tokens = F.pad(tokens, (0, steps))
    hidden, cache, total = drafter.fc(features), [], 0.0
    for step in range(steps):
        window = slice(step + 1, step + 1 + seq)
        embedding = drafter.embed_tokens(tokens[:, window])
        hidden = drafter.layer(embedding, hidden, step, mask, cache)
        log_q = drafter.lm_head(drafter.norm(hidden)).float().log_softmax(-1)
        loss = -(counted[:, window] * (p[:, window] * log_q).sum(-1)).mean()
        total = total + DECAY**step * loss
    return total


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("size", choices=SIZES, help="named size; the options below override it")
    for name in [*SHARED, *SIZES["small"]]:
        parser.add_argument(f"--{name.replace('_', '-')}", type=int)
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32", help="what is multiplied in")
    parser.add_argument("--compile", action="store_true", help="torch.compile the loss")
    parser.add_argument("--updates", type=int, default=5, help="timed updates (default 5)")
    parser.add_argument("--warm-up", type=int, default=2, help="untimed updates (default 2)")
    given = parser.parse_args()
    for name, value in {**SHARED, **SIZES[given.size]}.items():
        if getattr(given, name) is None:
            setattr(given, name, value)
    return given


def main():
    baseline = peak_mib()
    size = arguments()
    torch.set_num_threads(size.threads)
    torch.manual_seed(0)
    torch.set_default_device(size.device)
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[size.dtype]
    drafter, frozen = Drafter(size), Frozen(size, dtype)
    trained = [parameter for parameter in drafter.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(
        trained, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.0, fused=False
    )
    mask = torch.full((size.seq, size.seq), float("-inf")).triu(1)
    measured = torch.compile(loss_of) if size.compile else loss_of
    cast = torch.autocast(size.device.type, dtype, enabled=size.dtype != "f32")

    def update():
        batch = (
            torch.randint(0, size.target_vocab, (size.batch, size.seq)),
            torch.randn(size.batch, size.seq, CAPTURED * size.d_model, dtype=dtype),
            torch.randn(size.batch, size.seq, size.d_model, dtype=dtype),
        )
        start, cpu = time.perf_counter(), time.process_time()
        with cast:
            loss = measured(drafter, frozen, batch, size.steps, mask)
        loss.backward()
        nn.utils.clip_grad_norm_(trained, CLIP)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        value = loss.item()
        return time.perf_counter() - start, time.process_time() - cpu, value

    for _ in range(size.warm_up):
        update()
    timed = [update() for _ in range(size.updates)]
    seconds = sorted(elapsed for elapsed, _, _ in timed)
    median = seconds[len(seconds) // 2]
    tokens = size.batch * size.seq
    peak = peak_mib()
    print(
        json.dumps(
            {
                "size": size.size,
                "tokens": tokens,
                "steps": size.steps,
                "trained_parameters": sum(parameter.numel() for parameter in trained),
                "tokens_per_second": round(tokens / median, 1),
                "tokens_per_second_best": round(tokens / seconds[0], 1),
                "ms_per_update_median": round(1000 * median, 1),
                "ms_per_update_best": round(1000 * seconds[0], 1),
                "cpu_ms_per_update_best": round(1000 * min(cpu for _, cpu, _ in timed), 1),
                "peak_rss_mib": round(peak),
                "rss_after_import_mib": round(baseline),
                "peak_above_import_mib": round(peak - baseline),
                "peak_on_device_mib": peak_on_device_mib(size.device),
                "loss": round(timed[-1][2], 4),
                "device": str(size.device),
                "dtype": size.dtype,
                "threads": size.threads,
                "torch": torch.__version__,
                "load_average": os.getloadavg()[0],
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
