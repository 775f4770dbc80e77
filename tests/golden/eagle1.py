"""Independent training steps of EAGLE-1 (https://arxiv.org/abs/2401.15077) and HASS
(https://arxiv.org/abs/2408.15766) on random features.

Writes `eagle1.safetensors` and `eagle1.json`; see README.md. Everything is in the papers' own
coordinates: row r of any pass reads the token x_{r+1}, predicts the feature f_{r+1} and the token
x_{r+2}, and is judged by f_{r+1} and the target's distribution of row r+1. From the second pass on
a row's hidden state is what the pass before predicted for it, one row to the left.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F

HERE = Path(__file__).resolve().parent
BATCH, SEQ = 2, 10
D_MODEL, D_FF, HEADS, KV_HEADS, D_HEAD = 16, 24, 4, 2, 8
VOCAB = 40
EPSILON, THETA = 1e-6, 10000.0
SEED = 77


@dataclass
class Case:
    """One way of training the drafter; the fields are the recipe's keys."""

    passes: int
    detach: bool
    bias: bool
    mask_align: str  # "label" or "feature"
    divergence: str  # "kl" or "soft_ce"
    class_weight: float
    top_k: int
    top_k_weight: float
    noise_std: float
    noise_length_ref: int  # 0: the same noise whatever the length


CASES = {
    "eagle1": Case(1, True, False, "label", "kl", 0.1, 10, 0.0, 0.2, 512),
    "bias": Case(1, True, True, "feature", "soft_ce", 0.1, 10, 0.0, 0.0, 512),
    "hass": Case(3, True, False, "label", "soft_ce", 0.1, 10, 1.0, 0.2, 0),
    "attached": Case(3, False, True, "feature", "kl", 0.3, 4, 0.5, 0.0, 512),
}


class RmsNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(D_MODEL))

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON)


def rotate(x, positions):
    """Half-split rotary embedding. x [batch, heads, seq, d_head], positions [batch, seq]."""
    half = x.shape[-1] // 2
    frequencies = THETA ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = (positions[..., None].double() * frequencies).to(x.dtype)[:, None]
    low, high = x[..., :half], x[..., half:]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q_proj = nn.Linear(D_MODEL, HEADS * D_HEAD, bias=False)
        self.k_proj = nn.Linear(D_MODEL, KV_HEADS * D_HEAD, bias=False)
        self.v_proj = nn.Linear(D_MODEL, KV_HEADS * D_HEAD, bias=False)
        self.o_proj = nn.Linear(HEADS * D_HEAD, D_MODEL, bias=False)

    def forward(self, sources, positions, visible):
        """From the newest of `sources` to all of them, under one softmax.

        visible: for each source [batch, seq, seq].
        """
        batch, seq, _ = sources[0].shape

        def split(x, heads):
            return x.view(batch, seq, heads, D_HEAD).transpose(1, 2)

        group = HEADS // KV_HEADS
        query = rotate(split(self.q_proj(sources[-1]), HEADS), positions)
        keys, values = [], []
        for x in sources:
            key = rotate(split(self.k_proj(x), KV_HEADS), positions)
            keys.append(key.repeat_interleave(group, 1))
            values.append(split(self.v_proj(x), KV_HEADS).repeat_interleave(group, 1))
        scores = query @ torch.cat(keys, 2).transpose(-1, -2) / D_HEAD**0.5
        hidden = ~torch.cat(visible, 2)[:, None]
        weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
        mixed = weights @ torch.cat(values, 2)
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
    """The first layer: no norm before the attention."""

    def __init__(self):
        super().__init__()
        self.self_attn = Attention()
        self.post_attention_layernorm = RmsNorm()
        self.mlp = Mlp()

    def forward(self, sources, positions, visible):
        x = sources[-1] + self.self_attn(sources, positions, visible)
        return x + self.mlp(self.post_attention_layernorm(x))


class Eagle1(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, D_MODEL)
        self.embed_tokens.weight.requires_grad_(False)
        self.fc = nn.Linear(2 * D_MODEL, D_MODEL, bias=bias)
        self.layers = nn.ModuleList([Layer()])

    def forward(self, tokens, hidden_states, positions, visible):
        """Predicted features. One source for each of `hidden_states`, the newest last."""
        embedded = self.embed_tokens(tokens)
        sources = [self.fc(torch.cat([embedded, hidden], -1)) for hidden in hidden_states]
        return self.layers[0](sources, positions, visible)


def next_in_document(x, documents, by=1):
    """x[r + by] where r + by lies in the document of r, else zero; and whether it does."""
    moved, inside = torch.zeros_like(x), torch.zeros_like(documents, dtype=torch.bool)
    kept = SEQ - by
    inside[:, :kept] = (documents[:, by:] == documents[:, :kept]) & (documents[:, :kept] >= 0)
    moved[:, :kept] = x[:, by:]
    return moved.masked_fill(~inside.view(*inside.shape, *[1] * (x.dim() - 2)), 0), inside


def visible_of(pass_number, documents):
    """What the rows of a pass see of each source, [batch, seq, seq] per source."""
    rows, columns = torch.arange(SEQ)[:, None], torch.arange(SEQ)[None]
    same = documents[:, :, None] == documents[:, None]
    visible = [(columns <= rows - pass_number) & same]
    for source in range(1, pass_number + 1):
        visible.append((columns == rows - (pass_number - source)) & same)
    return visible


def uniform(count):
    """SplitMix64 started at SEED; the upper 24 bits of each number, in [0, 1)."""
    with np.errstate(over="ignore"):
        step = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        z = np.uint64(SEED) + step
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z = z ^ (z >> np.uint64(31))
    return torch.from_numpy((z >> np.uint64(40)).astype(np.float64) / 2**24)


def noised(case, data):
    """Features with noise in ±std/2 · length_ref / T, T being the length of the document."""
    if case.noise_std == 0.0:
        return data["last"]
    documents = data["documents"]
    lengths = (documents[:, :, None] == documents[:, None]).sum(-1).double()
    scale = case.noise_length_ref / lengths if case.noise_length_ref else torch.ones_like(lengths)
    scale = scale.masked_fill(documents < 0, 0) * case.noise_std
    noise = (uniform(data["last"].numel()).view_as(data["last"]) - 0.5) * scale[..., None]
    return data["last"] + noise.float()


def run(case, model, data):
    """All passes, with their gradients left in the parameters."""
    documents, positions = data["documents"], data["positions"]
    loss_mask, head = data["loss_mask"].bool(), data["target_lm_head.weight"]
    tokens, has_next = next_in_document(data["input_ids"], documents)
    true_next, _ = next_in_document(data["last"], documents)
    label, has_label = next_in_document(loss_mask, documents, 2)

    hidden_states, passes, losses = [noised(case, data)], [], []
    for m in range(case.passes):
        predicted = model(tokens, hidden_states, positions, visible_of(m, documents))
        # Row r continues a draft that began after the true features up to r - m.
        judged = has_next & (positions >= m)
        if case.mask_align == "label":
            # x_{r-m+1} was generated, so a decoder drafts from there, and all it drafts up to x_{r+2} is of the same reply.
            counted = judged & has_label & label
            for back in range(m - 1, -2, -1):
                counted = counted & torch.roll(loss_mask, back, 1)
        else:
            counted = judged & loss_mask
        rows = counted.sum()

        regression = F.smooth_l1_loss(predicted, true_next, reduction="none").mean(-1)
        log_q = (predicted @ head.T).log_softmax(-1)
        p = (true_next @ head.T).softmax(-1)
        soft_ce = -(p * log_q).sum(-1)
        if case.divergence == "kl":
            soft_ce = soft_ce + (p * p.log()).sum(-1)
        largest = p.topk(case.top_k, -1)
        top_k = -(largest.values * log_q.gather(-1, largest.indices)).sum(-1)

        def mean(x, counted=counted, rows=rows):
            return x.masked_fill(~counted, 0).sum() / rows

        loss = mean(regression) + case.class_weight * mean(soft_ce)
        loss = loss + case.top_k_weight * mean(top_k)
        losses.append(loss)
        if case.detach:
            loss.backward()
        passes.append(
            {
                "predicted": predicted.detach(),
                "judged": judged,
                "counted": counted,
                "regression": mean(regression).item(),
                "class": mean(soft_ce).item(),
                "most_likely": mean(top_k).item(),
            }
        )
        fed = predicted.detach() if case.detach else predicted
        first = (positions == 0)[..., None]
        hidden_states.append(torch.where(first, hidden_states[-1], fed.roll(1, 1)))
    if not case.detach:
        sum(losses).backward()
    return sum(losses), passes


@torch.no_grad()
def decode(model, features, data, row, start, end, steps):
    """What a decoder predicts from the true features start..=end of a row and forced tokens.

    Plain causal attention over a growing sequence: what the passes have to reproduce.
    """
    fed = features[row : row + 1, start : end + 1]
    predicted = None
    for _ in range(steps + 1):
        length = fed.shape[1]
        tokens = data["input_ids"][row : row + 1, start + 1 : start + 1 + length]
        causal = torch.ones(1, length, length, dtype=torch.bool).tril()
        predicted = model(tokens, [fed], torch.arange(length)[None], [causal])[:, -1:]
        fed = torch.cat([fed, predicted], 1)
    return predicted[0, 0]


def check_decoder_geometry(case, model, data, passes):
    """Row r of pass m equals decoding after the prefix r - m with m forced tokens."""
    features, compared = noised(case, data), 0
    for m, found in enumerate(passes):
        for row, r in found["judged"].nonzero().tolist():
            start = r - int(data["positions"][row, r])
            decoded = decode(model, features, data, row, start, r - m, m)
            expected = found["predicted"][row, r]
            assert torch.allclose(decoded, expected, atol=1e-5), (m, row, r)
            compared += 1
    return compared


def make_data(generator):
    documents = torch.tensor([[0] * 10, [0] * 6 + [1] * 3 + [-1]])
    input_ids = torch.randint(0, VOCAB, (BATCH, SEQ), generator=generator)
    input_ids[documents < 0] = 0
    # Features of such a size that both branches of the regression loss are taken.
    last = 1.5 * torch.randn(BATCH, SEQ, D_MODEL, generator=generator)
    last[documents < 0] = 0
    return {
        "input_ids": input_ids,
        "loss_mask": torch.tensor(
            [[0, 0, 1, 1, 1, 1, 1, 0, 1, 1], [0, 1, 1, 1, 1, 1, 0, 1, 1, 0]]
        ),
        "documents": documents,
        "positions": torch.tensor([list(range(10)), [*range(6), *range(3), 0]]),
        "last": last,
        "target_lm_head.weight": 0.5 * torch.randn(VOCAB, D_MODEL, generator=generator),
    }


def make_parameters(generator):
    """Random values for every parameter any case has; the cases share them."""
    values = {}
    for name, parameter in Eagle1(bias=True).named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if "norm" in name:
            values[name] = 1 + 0.3 * noise
        elif name in ("embed_tokens.weight", "fc.bias"):
            values[name] = noise
        else:
            values[name] = 1.2 * noise / parameter.shape[-1] ** 0.5
    return values


def main():
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(2401)
    data, parameters = make_data(generator), make_parameters(generator)
    tensors, summary = dict(data), {}
    tensors |= {f"parameters.{name}": value for name, value in parameters.items()}
    for name, case in CASES.items():
        model = Eagle1(case.bias)
        wanted = [key for key, _ in model.named_parameters()]
        model.load_state_dict({key: parameters[key] for key in wanted})
        total, passes = run(case, model, data)
        for key, parameter in model.named_parameters():
            if parameter.requires_grad:
                assert parameter.grad.abs().max() > 1e-4, (name, key)
                tensors[f"{name}.gradient.{key}"] = parameter.grad
        for m, found in enumerate(passes):
            assert found["counted"].sum() >= 2, (name, m)
            tensors[f"{name}.predicted.{m}"] = found["predicted"]
            tensors[f"{name}.judged.{m}"] = found["judged"].to(torch.int64)
        compared = check_decoder_geometry(case, model, data, passes)
        summary[name] = {
            **asdict(case),
            "total": total.item(),
            "counted": [found["counted"].sum().item() for found in passes],
            "regression": [found["regression"] for found in passes],
            "class": [found["class"] for found in passes],
            "most_likely": [found["most_likely"] for found in passes],
        }
        print(name, f"(equal to decoding at {compared} positions)", json.dumps(summary[name]))
    save_file(
        {key: value.detach().contiguous() for key, value in tensors.items()},
        HERE / "eagle1.safetensors",
    )
    sizes = {
        "batch": BATCH,
        "seq": SEQ,
        "d_model": D_MODEL,
        "d_ff": D_FF,
        "heads": HEADS,
        "kv_heads": KV_HEADS,
        "d_head": D_HEAD,
        "vocab": VOCAB,
        "rms_norm_eps": EPSILON,
        "rope_theta": THETA,
        "seed": SEED,
    }
    text = json.dumps({"sizes": sizes, "cases": summary}, indent=1)
    (HERE / "eagle1.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
