"""An independent EAGLE-3 training step (https://arxiv.org/abs/2503.01840) on random features.

Writes `eagle3.safetensors` and `eagle3.json`; see README.md. Position t of step j reads the token
x_{t+1+j}, predicts x_{t+2+j} and is judged by the target's distribution of row t+1+j.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

HERE = Path(__file__).resolve().parent
BATCH, SEQ, CAPTURED = 2, 10, 3
D_TARGET, D_MODEL, D_FF = 16, 16, 24
HEADS, KV_HEADS, D_HEAD = 4, 2, 8
VOCAB, DRAFT_VOCAB = 40, 24
EPSILON, THETA = 1e-6, 10000.0


@dataclass
class Case:
    """One way of training the drafter; the fields are the recipe's keys."""

    steps: int
    decay: float
    mask_align: str  # "label" or "feature"
    divergence: str  # "kl" or "soft_ce"
    loss_reduction: str  # "masked_mean" or "all_positions"
    norm_before_residual: bool = False
    norm_output: bool = False
    fc_norm: bool = False
    layers: int = 1


CASES = {
    "label": Case(4, 0.8, "label", "kl", "masked_mean"),
    "feature": Case(4, 0.8, "feature", "soft_ce", "all_positions"),
    "speculators": Case(
        3,
        1.0,
        "label",
        "kl",
        "masked_mean",
        norm_before_residual=True,
        norm_output=True,
        fc_norm=True,
    ),
    "deep": Case(4, 0.8, "label", "kl", "masked_mean", layers=3),
}


class RmsNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON)


def rotate(x, positions):
    """Half-split rotary embedding. x [batch, heads, seq, d_head], positions [batch, seq]."""
    half = x.shape[-1] // 2
    frequencies = THETA ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = (positions[..., None].double() * frequencies).to(x.dtype)[:, None]
    cos, sin = angles.cos(), angles.sin()
    low, high = x[..., :half], x[..., half:]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


class Attention(nn.Module):
    def __init__(self, d_input):
        super().__init__()
        self.q_proj = nn.Linear(d_input, HEADS * D_HEAD, bias=False)
        self.k_proj = nn.Linear(d_input, KV_HEADS * D_HEAD, bias=False)
        self.v_proj = nn.Linear(d_input, KV_HEADS * D_HEAD, bias=False)
        self.o_proj = nn.Linear(HEADS * D_HEAD, D_MODEL, bias=False)

    def project(self, u, positions):
        batch, seq, _ = u.shape

        def split(x, heads):
            return x.view(batch, seq, heads, D_HEAD).transpose(1, 2)

        repeat = HEADS // KV_HEADS
        q = rotate(split(self.q_proj(u), HEADS), positions)
        k = rotate(split(self.k_proj(u), KV_HEADS), positions).repeat_interleave(repeat, 1)
        v = split(self.v_proj(u), KV_HEADS).repeat_interleave(repeat, 1)
        return q, k, v

    def forward(self, u, positions, visible, cache):
        """Step-0 keys under `visible` [batch, seq, seq], and later keys of the same index only."""
        q, k, v = self.project(u, positions)
        cache.append((k, v))
        (k0, v0), later = cache[0], cache[1:]
        scores = q @ k0.transpose(-1, -2) / D_HEAD**0.5
        scores = scores.masked_fill(~visible[:, None], float("-inf"))
        columns = [(q * k_i).sum(-1, keepdim=True) / D_HEAD**0.5 for k_i, _ in later]
        weights = torch.cat([scores, *columns], -1).softmax(-1)
        seq = k0.shape[2]
        mixed = weights[..., :seq] @ v0
        for i, (_, v_i) in enumerate(later):
            mixed = mixed + weights[..., seq + i, None] * v_i
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_proj = nn.Linear(D_MODEL, D_FF, bias=False)
        self.up_proj = nn.Linear(D_MODEL, D_FF, bias=False)
        self.down_proj = nn.Linear(D_FF, D_MODEL, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    """The first layer reads an embedding beside a hidden state, a further one the output of that before it."""

    def __init__(self, is_first, norm_before_residual):
        super().__init__()
        self.norm_before_residual = norm_before_residual
        self.input_layernorm = RmsNorm(D_MODEL)
        if is_first:
            self.hidden_norm = RmsNorm(D_MODEL)
        self.self_attn = Attention(2 * D_MODEL if is_first else D_MODEL)
        self.post_attention_layernorm = RmsNorm(D_MODEL)
        self.mlp = Mlp()

    def first(self, embedding, hidden, attend):
        normed = self.hidden_norm(hidden)
        residual = normed if self.norm_before_residual else hidden
        u = torch.cat([self.input_layernorm(embedding), normed], -1)
        return self.finish(residual, attend(self.self_attn, u))

    def further(self, x, attend):
        return self.finish(x, attend(self.self_attn, self.input_layernorm(x)))

    def finish(self, residual, attended):
        x = residual + attended
        return x + self.mlp(self.post_attention_layernorm(x))


class Eagle3(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.case = case
        self.embed_tokens = nn.Embedding(VOCAB, D_TARGET)
        self.embed_tokens.weight.requires_grad_(False)
        self.fc = nn.Linear(CAPTURED * D_TARGET, D_MODEL, bias=False)
        if case.fc_norm:
            self.fc_norm = nn.ModuleList(RmsNorm(D_TARGET) for _ in range(CAPTURED))
        layers = [Layer(number == 0, case.norm_before_residual) for number in range(case.layers)]
        self.layers = nn.ModuleList(layers)
        self.norm = RmsNorm(D_MODEL)
        self.lm_head = nn.Linear(D_MODEL, DRAFT_VOCAB, bias=False)

    def fuse(self, features):
        if self.case.fc_norm:
            parts = features.split(D_TARGET, -1)
            normed = [norm(x) for norm, x in zip(self.fc_norm, parts, strict=True)]
            features = torch.cat(normed, -1)
        return self.fc(features)

    def step(self, tokens, hidden, attend):
        """One draft step: (what the next step reads as hidden state, draft logits)."""
        a = self.layers[0].first(self.embed_tokens(tokens), hidden, attend)
        for layer in self.layers[1:]:
            a = layer.further(a, attend)
        normed = self.norm(a)
        return (normed if self.case.norm_output else a), self.lm_head(normed)


def shift_left(x, by, documents):
    """x_{t+by} where t+by lies in the document of t, else zero."""
    shifted, inside = torch.zeros_like(x), torch.zeros_like(documents, dtype=torch.bool)
    if by < SEQ:
        kept = SEQ - by
        same = (documents[:, by:] == documents[:, :kept]) & (documents[:, :kept] >= 0)
        inside[:, :kept] = same
        shifted[:, :kept] = x[:, by:]
    mask = inside.view(*inside.shape, *[1] * (x.dim() - 2))
    return shifted.masked_fill(~mask, 0), inside


def run(case, model, data):
    """Unrolls the drafter; returns the total loss and what each step saw and gave."""
    documents, loss_mask = data["documents"], data["loss_mask"].bool()
    draft_vocab = data["draft_vocab"]
    in_draft_vocab = torch.zeros(VOCAB, dtype=torch.bool)
    in_draft_vocab[draft_vocab] = True
    target_logits = data["last"] @ data["target_lm_head.weight"].T
    index = torch.arange(SEQ)
    visible = (index[:, None] >= index[None]) & (documents[:, :, None] == documents[:, None])

    hidden, steps, total = model.fuse(data["features"]), [], 0.0
    caches = {layer.self_attn: [] for layer in model.layers}
    for j in range(case.steps):
        tokens, _ = shift_left(data["input_ids"], 1 + j, documents)
        teacher, judged = shift_left(target_logits, 1 + j, documents)

        def attend(attention, u, step=j):
            return attention(u, data["positions"] + step, visible, caches[attention])

        hidden, logits = model.step(tokens, hidden, attend)

        best = teacher.argmax(-1)
        if case.mask_align == "label":
            # x_{t+1} was generated, so a decoder drafts from there, and all it drafts up to the label is of the same reply.
            _, counted = shift_left(loss_mask, 2 + j, documents)
            for k in range(1, 3 + j):
                counted = counted & shift_left(loss_mask, k, documents)[0]
        else:
            # The reference's mask is not pre-shifted: at step 0 it is the feature's own token.
            counted, _ = shift_left(loss_mask, j, documents)
        aligned = counted & judged
        counted = aligned & in_draft_vocab[best]

        p = teacher[..., draft_vocab].softmax(-1)
        log_q = logits.log_softmax(-1)
        distance = -(p * log_q).sum(-1)
        if case.divergence == "kl":
            distance = distance + (p * p.log()).sum(-1)
        positions = counted.sum() if case.loss_reduction == "masked_mean" else BATCH * SEQ
        loss = (distance * counted).sum() / positions
        total = total + case.decay**j * loss
        hits = (draft_vocab[logits.argmax(-1)] == best) & counted
        steps.append(
            {
                "loss": loss,
                "logits": logits,
                "hidden": hidden,
                "judged": judged,
                "counted": counted,
                "outside": (aligned & ~counted).sum(),
                "accuracy": hits.sum() / counted.sum(),
            }
        )
    return total, steps


@torch.no_grad()
def decode_step(model, data, row, start, end, steps):
    """Logits a decoder gets: true features up to `end` of one document, then `steps` forced tokens.

    Plain causal attention over a growing sequence, no diagonal columns: what the unrolled
    attention has to reproduce.
    """
    fed = model.fuse(data["features"][row : row + 1, start : end + 1])
    tokens = data["input_ids"][row : row + 1]
    logits = None
    for _ in range(steps + 1):
        length = fed.shape[1]
        ids = tokens[:, start + 1 : start + 1 + length]
        causal = torch.ones(1, length, length, dtype=torch.bool).tril()

        def attend(attention, u, causal=causal, length=length):
            return attention(u, torch.arange(length)[None], causal, [])

        hidden, logits = model.step(ids, fed, attend)
        fed = torch.cat([fed, hidden[:, -1:]], 1)
    return logits[0, -1]


def check_decoder_geometry(model, data, steps):
    """Step j at index t equals decoding after the prefix t with j forced tokens."""
    documents, compared = data["documents"], 0
    for j, step in enumerate(steps):
        for row in range(BATCH):
            for t in range(SEQ):
                if not step["judged"][row, t]:
                    continue
                start = int((documents[row] == documents[row, t]).nonzero()[0])
                decoded = decode_step(model, data, row, start, t, j)
                assert torch.allclose(decoded, step["logits"][row, t], atol=1e-5), (j, row, t)
                compared += 1
    return compared


def make_data(generator):
    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    documents = torch.tensor([[0] * 10, [0] * 6 + [1] * 3 + [-1]])
    positions = torch.tensor([list(range(10)), [*range(6), *range(3), 0]])
    loss_mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 0, 1, 1], [0, 1, 1, 1, 1, 1, 0, 1, 1, 0]])
    input_ids = torch.randint(0, VOCAB, (BATCH, SEQ), generator=generator)
    input_ids[documents < 0] = 0
    draft_vocab = torch.randperm(VOCAB, generator=generator)[:DRAFT_VOCAB].sort().values
    t2d = torch.zeros(VOCAB, dtype=torch.bool)
    t2d[draft_vocab] = True
    return {
        "input_ids": input_ids,
        "loss_mask": loss_mask,
        "documents": documents,
        "positions": positions,
        # Captured layers of very different scale, so that fc_norm and their order matter.
        "features": torch.cat([scale * normal(BATCH, SEQ, D_TARGET) for scale in (0.5, 1, 2)], -1),
        "last": normal(BATCH, SEQ, D_TARGET),
        "target_lm_head.weight": 0.6 * normal(VOCAB, D_TARGET),
        "draft_vocab": draft_vocab,
        "d2t": draft_vocab - torch.arange(DRAFT_VOCAB),
        "t2d": t2d,
    }


def make_parameters(generator):
    """Random values for every parameter any case has; the cases share them."""
    deepest = max(case.layers for case in CASES.values())
    # Further layers come last, so that they change nothing of the others' values.
    named = [
        parameter
        for layers in (1, deepest)
        for parameter in Eagle3(
            Case(1, 1.0, "label", "kl", "masked_mean", fc_norm=True, layers=layers)
        ).named_parameters()
    ]
    values = {}
    for name, parameter in named:
        if name in values:
            continue
        noise = torch.randn(parameter.shape, generator=generator)
        if "norm" in name:
            values[name] = 1 + 0.3 * noise
        elif name == "embed_tokens.weight":
            values[name] = noise
        else:
            values[name] = 1.2 * noise / parameter.shape[-1] ** 0.5
    return values


def main():
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(1299)
    data, parameters = make_data(generator), make_parameters(generator)
    tensors, summary = dict(data), {}
    tensors |= {f"parameters.{name}": value for name, value in parameters.items()}
    for name, case in CASES.items():
        model = Eagle3(case)
        wanted = [key for key, _ in model.named_parameters()]
        model.load_state_dict({key: parameters[key] for key in wanted})
        total, steps = run(case, model, data)
        total.backward()
        for key, parameter in model.named_parameters():
            if parameter.requires_grad:
                assert parameter.grad.abs().max() > 1e-4, (name, key)
                tensors[f"{name}.gradient.{key}"] = parameter.grad
        for j, step in enumerate(steps):
            assert step["counted"].sum() >= 2, (name, j)
            for key in ("logits", "hidden", "judged", "counted"):
                value = step[key].detach()
                tensors[f"{name}.{key}.{j}"] = value.to(
                    torch.int64 if value.dtype == torch.bool else value.dtype
                )
        assert sum(step["outside"] for step in steps) > 0, name
        compared = check_decoder_geometry(model, data, steps)
        summary[name] = {
            **asdict(case),
            "total": total.item(),
            "losses": [step["loss"].item() for step in steps],
            "counted": [step["counted"].sum().item() for step in steps],
            "outside_draft_vocab": [step["outside"].item() for step in steps],
            "accuracy": [step["accuracy"].item() for step in steps],
        }
        print(name, f"(equal to decoding at {compared} positions)", json.dumps(summary[name]))
    save_file(
        {key: value.detach().contiguous() for key, value in tensors.items()},
        HERE / "eagle3.safetensors",
    )
    sizes = {
        "batch": BATCH,
        "seq": SEQ,
        "captured_layers": CAPTURED,
        "d_target": D_TARGET,
        "d_model": D_MODEL,
        "d_ff": D_FF,
        "heads": HEADS,
        "kv_heads": KV_HEADS,
        "d_head": D_HEAD,
        "vocab": VOCAB,
        "draft_vocab": DRAFT_VOCAB,
        "rms_norm_eps": EPSILON,
        "rope_theta": THETA,
    }
    text = json.dumps({"sizes": sizes, "cases": summary}, indent=1)
    (HERE / "eagle3.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
