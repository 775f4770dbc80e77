"""Training steps of Medusa, DFlash and PARD in eager PyTorch on random data, to compare the trainer's speed with.

One update does what `spectrain bench` does at the same size: the same parameters, positions and losses, AdamW behind a clipped gradient norm.
Attention is `scaled_dot_product_attention`, with a mask where the family needs one; rows that no loss asks for never reach the head.

    python drafters_pytorch.py medusa small --updates 5
    python drafters_pytorch.py dflash medium
    python drafters_pytorch.py pard large
"""

import argparse
import json
import statistics
import time
from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F

from eagle3_pytorch import CAPTURED, CLIP, SHARED, SIZES, THETA, RmsNorm, peak_mib

LAYERS = 2
HEADS = 4  # of Medusa
ANCHORS, BLOCK = 32, 8  # of DFlash
DRAFTED, KEEP, LEAST = 8, 0.7, 0.2  # of PARD


def turned(x, positions):
    """Half-split rotary positions, one for each row of `x`."""
    half = x.shape[-1] // 2
    frequencies = THETA ** (-torch.arange(half).float() / half)
    angles = positions[:, None].float() * frequencies
    cos, sin = angles.cos().repeat(1, 2), angles.sin().repeat(1, 2)
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat([-high, low], -1) * sin


class Attention(nn.Module):
    """With norms of heads, over one sequence."""

    def __init__(self, size):
        super().__init__()
        self.heads, self.kv_heads, self.d_head = size.heads, size.kv_heads, size.d_head
        self.q_proj = nn.Linear(size.d_model, size.heads * size.d_head, bias=False)
        self.k_proj = nn.Linear(size.d_model, size.kv_heads * size.d_head, bias=False)
        self.v_proj = nn.Linear(size.d_model, size.kv_heads * size.d_head, bias=False)
        self.o_proj = nn.Linear(size.heads * size.d_head, size.d_model, bias=False)
        self.q_norm, self.k_norm = RmsNorm(size.d_head), RmsNorm(size.d_head)

    def queries(self, x, positions):
        query = self.q_norm(self.q_proj(x).view(len(x), self.heads, self.d_head)).transpose(0, 1)
        return turned(query, positions)

    def keys_and_values(self, x, positions):
        key = self.k_norm(self.k_proj(x).view(len(x), self.kv_heads, self.d_head)).transpose(0, 1)
        value = self.v_proj(x).view(len(x), self.kv_heads, self.d_head).transpose(0, 1)
        return turned(key, positions), value

    def forward(self, query, keys, values, mask):
        mixed = F.scaled_dot_product_attention(query[None], keys[None], values[None], mask, enable_gqa=True)[0]
        return self.o_proj(mixed.transpose(0, 1).reshape(query.shape[1], -1))


class Layer(nn.Module):
    def __init__(self, size):
        super().__init__()
        d_model, d_ff = size.d_model, size.d_ff
        self.input_layernorm, self.post_attention_layernorm = RmsNorm(d_model), RmsNorm(d_model)
        self.self_attn = Attention(size)
        self.gate_proj = nn.Linear(d_model, d_ff, bias=False)
        self.up_proj = nn.Linear(d_model, d_ff, bias=False)
        self.down_proj = nn.Linear(d_ff, d_model, bias=False)

    def forward(self, x, positions, mask, context=None):
        """`context`: states and positions that are seen beside `x`, before it."""
        normed = self.input_layernorm(x)
        keys, values = self.self_attn.keys_and_values(normed, positions)
        if context is not None:
            before = self.self_attn.keys_and_values(*context)
            keys, values = torch.cat([before[0], keys], 1), torch.cat([before[1], values], 1)
        x = x + self.self_attn(self.self_attn.queries(normed, positions), keys, values, mask)
        normed = self.post_attention_layernorm(x)
        return x + self.down_proj(F.silu(self.gate_proj(normed)) * self.up_proj(normed))


class Medusa(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(size.d_model, size.d_model) for _ in range(HEADS))
        self.lm_heads = nn.ModuleList(nn.Linear(size.d_model, size.target_vocab, bias=False) for _ in range(HEADS))

    def loss(self, given):
        """Head k reads the state of a token and predicts the one k + 2 places behind."""
        total = 0.0
        for number, (block, head) in enumerate(zip(self.blocks, self.lm_heads)):
            labels = given.tokens[2 + number :]
            hidden = given.last[: len(labels)]
            logits = head(hidden + F.silu(block(hidden)))
            total = total + 0.8**number * F.cross_entropy(logits, labels)
        return total


class DFlash(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.embed_tokens = nn.Embedding(size.target_vocab, size.d_model).requires_grad_(False)
        self.fc = nn.Linear(CAPTURED * size.d_model, size.d_model, bias=False)
        self.hidden_norm, self.norm = RmsNorm(size.d_model), RmsNorm(size.d_model)
        self.layers = nn.ModuleList(Layer(size) for _ in range(LAYERS))
        self.lm_head = nn.Linear(size.d_model, size.target_vocab, bias=False).requires_grad_(False)

    def loss(self, given):
        """Blocks behind anchors see the context before them and themselves; each slot predicts the next token."""
        seq = len(given.tokens)
        context = self.hidden_norm(self.fc(given.captured)), torch.arange(seq)
        anchors = torch.randperm(seq - BLOCK)[:ANCHORS].sort().values
        ids = torch.zeros(ANCHORS, BLOCK, dtype=torch.long)
        ids[:, 0] = given.tokens[anchors]
        positions = (anchors[:, None] + torch.arange(BLOCK)).flatten()
        of_block = torch.arange(ANCHORS).repeat_interleave(BLOCK)
        before = torch.arange(seq) < anchors[of_block][:, None]
        mask = torch.cat([before, of_block[:, None] == of_block], 1)
        x = self.embed_tokens(ids.flatten())
        for layer in self.layers:
            x = layer(x, positions, mask, context)
        read = self.norm(x).view(ANCHORS, BLOCK, -1)[:, 1:].flatten(0, 1)
        labels = given.tokens[anchors[:, None] + torch.arange(1, BLOCK)].flatten()
        weights = torch.exp(-torch.arange(BLOCK - 1) / 4.0).repeat(ANCHORS)
        losses = F.cross_entropy(self.lm_head(read), labels, reduction="none")
        return (losses * weights).sum() / weights.sum()


class Pard(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.embed_tokens = nn.Embedding(size.target_vocab, size.d_model)
        self.layers = nn.ModuleList(Layer(size) for _ in range(LAYERS))
        self.norm = RmsNorm(size.d_model)

    def loss(self, given):
        """The text and blocks of masks behind it, of which fewer are kept the later they are; the head is the embedding."""
        seq = len(given.tokens)
        kept = [torch.arange(seq)]
        for block in range(1, DRAFTED):
            wanted = int((seq - block) * max(KEEP**block, LEAST))
            candidates = kept[-1] + 1
            candidates = candidates[candidates < seq]
            kept.append(candidates[torch.randperm(len(candidates))[:wanted]].sort().values)
        positions = torch.cat(kept)
        blocks = torch.cat([torch.full_like(at, block) for block, at in enumerate(kept)])
        # A row sees the text up to its own start, and the chain of masks before it.
        start = positions - blocks
        text = (blocks == 0) & (positions <= start[:, None])
        chain = (blocks > 0) & (start == start[:, None]) & (blocks <= blocks[:, None])
        ids = torch.where(blocks == 0, given.tokens[positions], 0)
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, positions, text | chain)
        counted = positions + 1 < seq
        read = self.norm(x[counted])
        return F.cross_entropy(read @ self.embed_tokens.weight.T, given.tokens[positions[counted] + 1])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("family", choices=["medusa", "dflash", "pard"])
    parser.add_argument("size", choices=[size for size in SIZES if size != "qwen3-8b"])
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="f32", help="what is multiplied in; with bf16 by autocast")
    parser.add_argument("--updates", type=int, default=5)
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--threads", type=int, default=SHARED["threads"])
    given = parser.parse_args()
    baseline = peak_mib()
    torch.set_num_threads(given.threads)
    torch.manual_seed(0)
    size = SimpleNamespace(**SIZES[given.size])
    drafter = {"medusa": Medusa, "dflash": DFlash, "pard": Pard}[given.family](size)
    trained = [parameter for parameter in drafter.parameters() if parameter.requires_grad]
    optimiser = torch.optim.AdamW(trained, lr=1e-4, betas=(0.9, 0.95), weight_decay=0.0, fused=False)
    seq = SHARED["seq"]

    def update():
        batch = SimpleNamespace(
            tokens=torch.randint(0, size.target_vocab, (seq,)),
            captured=torch.randn(seq, CAPTURED * size.d_model),
            last=torch.randn(seq, size.d_model),
        )
        began = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=given.dtype == "bf16"):
            loss = drafter.loss(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(trained, CLIP)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
        assert loss.isfinite().item()
        return time.perf_counter() - began

    for _ in range(given.warm_up):
        update()
    seconds = statistics.median(update() for _ in range(given.updates))
    said = {
        "family": given.family,
        "size": given.size,
        "trained_parameters": sum(parameter.numel() for parameter in trained),
        "ms_per_update_median": round(1000 * seconds, 1),
        "peak_above_import_mib": round(peak_mib() - baseline),
        "torch": torch.__version__,
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main()
