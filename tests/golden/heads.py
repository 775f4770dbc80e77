"""Independent training steps of Medusa (https://arxiv.org/abs/2401.10774), Hydra (https://arxiv.org/abs/2402.05109) and
ReDrafter (https://arxiv.org/abs/2403.09919).

Writes `medusa.safetensors`, `hydra.safetensors`, `redrafter.safetensors` and a `.json` beside each; see README.md. Every position and head is
computed by itself, from the formulas: head k at position t reads the target's last hidden state of x_t (for Hydra and
ReDrafter also the embeddings of x_{t+1}..x_{t+1+k}), predicts x_{t+2+k} and is judged by that token or by the target's distribution
of row t+1+k.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn import functional as F

HERE = Path(__file__).resolve().parent
BATCH, SEQ = 2, 10
D_MODEL, D_FF = 8, 12
HEADS, KV_HEADS, D_HEAD = 4, 2, 4
VOCAB, DRAFT_VOCAB = 40, 24
EPSILON, THETA = 1e-6, 10000.0
DRAFT_HEADS = 3


@dataclass
class Case:
    """One way of training the heads; the fields are the recipe's keys."""

    family: str
    layers: int
    label_weight: float
    teacher_weight: float
    divergence: str  # "kl" or "soft_ce", of the teacher's part
    decay: float
    draft_vocab: bool = False
    shared_head: bool = False
    prefix_layer: bool = False
    recurrent: bool = True


CASES = {
    "medusa-hard": Case("medusa", 2, 1.0, 0.0, "kl", 0.8),
    "medusa-soft": Case("medusa", 1, 0.0, 1.0, "kl", 1.0, draft_vocab=True),
    "medusa-shared": Case("medusa", 1, 0.5, 2.0, "soft_ce", 0.8, shared_head=True),
    "hydra-hard": Case("hydra", 1, 1.0, 0.0, "kl", 1.0),
    "hydra-plus-plus": Case("hydra", 2, 0.0, 1.0, "soft_ce", 1.0, prefix_layer=True),
    "redrafter": Case("redrafter", 2, 1.0, 0.0, "kl", 1.0),
    "redrafter-sums": Case("redrafter", 1, 0.25, 0.75, "kl", 0.9, recurrent=False),
    "hydra-mixed": Case("hydra", 2, 0.25, 0.75, "kl", 0.9, draft_vocab=True, prefix_layer=True),
}


def rms_norm(x, weight):
    return weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + EPSILON)


def rotate(x):
    """Half-split rotary embedding of x [heads, length, d_head] at positions 0, 1, ..."""
    half = D_HEAD // 2
    frequencies = THETA ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = (torch.arange(x.shape[1])[:, None].double() * frequencies).to(x.dtype)
    cos, sin = angles.cos(), angles.sin()
    low, high = x[..., :half], x[..., half:]
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


def prefix_layer(w, x):
    """A one-layer Llama with its final norm over one document, x [length, d_model]."""
    length = x.shape[0]
    weight = {name.removeprefix("prefix_layer."): v for name, v in w.items()}
    u = rms_norm(x, weight["input_layernorm.weight"])

    def project(name, heads):
        return (u @ weight[f"self_attn.{name}.weight"].T).view(length, heads, D_HEAD).transpose(0, 1)

    q, k, v = project("q_proj", HEADS), project("k_proj", KV_HEADS), project("v_proj", KV_HEADS)
    repeat = HEADS // KV_HEADS
    q, k, v = rotate(q), rotate(k).repeat_interleave(repeat, 0), v.repeat_interleave(repeat, 0)
    scores = q @ k.transpose(1, 2) / D_HEAD**0.5
    scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf"))
    mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(length, HEADS * D_HEAD)
    x = x + mixed @ weight["self_attn.o_proj.weight"].T
    u = rms_norm(x, weight["post_attention_layernorm.weight"])
    gate = F.silu(u @ weight["mlp.gate_proj.weight"].T) * (u @ weight["mlp.up_proj.weight"].T)
    return rms_norm(x + gate @ weight["mlp.down_proj.weight"].T, w["prefix_norm.weight"])


def shapes(case):
    """Name and shape of every parameter."""
    found, vocab = {}, DRAFT_VOCAB if case.draft_vocab else VOCAB
    if case.family == "redrafter":
        if case.recurrent:
            found |= {"rnn_u.weight": (D_MODEL, D_MODEL), "rnn_u.bias": (D_MODEL,), "rnn_w.weight": (D_MODEL, D_MODEL)}
        for layer in range(case.layers):
            found |= {f"blocks.{layer}.weight": (2 * D_MODEL, 2 * D_MODEL), f"blocks.{layer}.bias": (2 * D_MODEL,)}
        return found | {"lm_heads.0.weight": (vocab, 2 * D_MODEL)}
    for head in range(DRAFT_HEADS):
        for layer in range(case.layers):
            if case.family == "medusa":
                found[f"blocks.{head}.layers.{layer}.weight"] = (D_MODEL, D_MODEL)
                found[f"blocks.{head}.layers.{layer}.bias"] = (D_MODEL,)
                continue
            width = (head + 2) * D_MODEL if layer == 0 else D_MODEL
            found[f"blocks.{head}.layers.{layer}.weight"] = (D_MODEL, width)
            found[f"blocks.{head}.layers.{layer}.bias"] = (D_MODEL,)
            if layer == 0:
                found[f"blocks.{head}.res_connection.weight"] = (D_MODEL, width)
                found[f"blocks.{head}.res_connection.bias"] = (D_MODEL,)
        if not case.shared_head:
            found[f"lm_heads.{head}.weight"] = (vocab, D_MODEL)
            if case.family == "hydra":
                found[f"lm_heads.{head}.bias"] = (vocab,)
    if case.prefix_layer:
        for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)):
            found[f"prefix_layer.self_attn.{name}_proj.weight"] = (heads * D_HEAD, D_MODEL)
        found["prefix_layer.self_attn.o_proj.weight"] = (D_MODEL, HEADS * D_HEAD)
        found["prefix_layer.mlp.gate_proj.weight"] = (D_FF, D_MODEL)
        found["prefix_layer.mlp.up_proj.weight"] = (D_FF, D_MODEL)
        found["prefix_layer.mlp.down_proj.weight"] = (D_MODEL, D_FF)
        found["prefix_layer.input_layernorm.weight"] = (D_MODEL,)
        found["prefix_layer.post_attention_layernorm.weight"] = (D_MODEL,)
        found["prefix_norm.weight"] = (D_MODEL,)
    return found


def head_logits(case, w, data, head, hidden, embedded):
    """Logits of one head from one hidden state [d_model] and the embeddings of the tokens after it [k + 1, d_model]."""
    if case.family == "redrafter":
        state = torch.zeros(D_MODEL)
        for token in embedded:
            state = F.silu(w["rnn_w.weight"] @ token + w["rnn_u.weight"] @ state + w["rnn_u.bias"]) if case.recurrent else state + token
        x = torch.cat([hidden, state])
        for layer in range(case.layers):
            x = x + F.silu(w[f"blocks.{layer}.weight"] @ x + w[f"blocks.{layer}.bias"])
        return w["lm_heads.0.weight"] @ x
    first = 0
    if case.family == "hydra":
        x = torch.cat([hidden, embedded.reshape(-1)])
        name = f"blocks.{head}"
        straight = w[f"{name}.res_connection.weight"] @ x + w[f"{name}.res_connection.bias"]
        x = straight + F.silu(w[f"{name}.layers.0.weight"] @ x + w[f"{name}.layers.0.bias"])
        first = 1
    else:
        x = hidden
    for layer in range(first, case.layers):
        name = f"blocks.{head}.layers.{layer}"
        x = x + F.silu(w[f"{name}.weight"] @ x + w[f"{name}.bias"])
    if case.shared_head:
        return data["target_lm_head.weight"] @ x
    logits = w[f"lm_heads.{head}.weight"] @ x
    return logits + w[f"lm_heads.{head}.bias"] if case.family == "hydra" else logits


def run(case, w, data):
    """Total loss, and for each head its logits and the positions that were computed and counted."""
    ids, mask, documents = data["input_ids"], data["loss_mask"].bool(), data["documents"]
    draft = data["draft_vocab"] if case.draft_vocab else torch.arange(VOCAB)
    place = {token.item(): i for i, token in enumerate(draft)}
    hidden = data["last"].clone()
    if case.prefix_layer:
        rows = []
        for row in range(BATCH):
            parts = []
            for document in documents[row].unique_consecutive():
                inside = documents[row] == document
                parts.append(prefix_layer(w, data["last"][row][inside]))
            rows.append(torch.cat(parts))
        hidden = torch.stack(rows)
    total, heads = 0.0, []
    for k in range(DRAFT_HEADS):
        out = {
            "logits": torch.zeros(BATCH, SEQ, len(draft)),
            "judged": torch.zeros(BATCH, SEQ, dtype=torch.int64),
            "counted": torch.zeros(BATCH, SEQ, dtype=torch.int64),
        }
        soft_losses, hard_losses, right, outside = [], [], 0, 0
        for row in range(BATCH):
            for t in range(SEQ - 2 - k):
                one = documents[row, t] == documents[row, t + 2 + k]
                if not one or documents[row, t] < 0:
                    continue
                embedded = data["embed_tokens.weight"][ids[row, t + 1 : t + 2 + k]]
                logits = head_logits(case, w, data, k, hidden[row, t], embedded)
                out["logits"][row, t] = logits.detach()
                out["judged"][row, t] = 1
                if not mask[row, t + 1 : t + 3 + k].all():
                    continue
                teacher = data["target_lm_head.weight"] @ data["last"][row, t + 1 + k]
                label, best = ids[row, t + 2 + k].item(), teacher.argmax().item()
                log_q = logits.log_softmax(0)
                # Each part leaves out where what it asks for cannot be proposed: the token of the text, or the
                # target's favourite.
                if label in place:
                    hard_losses.append(-log_q[place[label]])
                if best in place:
                    p = teacher[draft].softmax(0)
                    soft = -(p * log_q).sum()
                    if case.divergence == "kl":
                        soft = soft + (p * p.log()).sum()
                    soft_losses.append(soft)
                # What is reported is the target's part where there is one.
                asked = best if case.teacher_weight else label
                if asked in place:
                    out["counted"][row, t] = 1
                    right += int(draft[logits.argmax()].item() == asked)
                else:
                    outside += 1
        soft, hard = torch.stack(soft_losses).mean(), torch.stack(hard_losses).mean()
        loss = 0.0
        if case.teacher_weight:
            loss = loss + case.teacher_weight * soft
        if case.label_weight:
            loss = loss + case.label_weight * hard
        total = total + case.decay**k * loss
        out |= {"loss": loss, "outside": outside, "accuracy": right / int(out["counted"].sum())}
        heads.append(out)
    return total, heads


def make_data(generator):
    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    documents = torch.tensor([[0] * 10, [0] * 6 + [1] * 3 + [-1]])
    input_ids = torch.randint(0, VOCAB, (BATCH, SEQ), generator=generator)
    input_ids[documents < 0] = 0
    return {
        "input_ids": input_ids,
        "loss_mask": torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 0, 1, 1, 0]]),
        "documents": documents,
        "positions": torch.tensor([list(range(10)), [*range(6), *range(3), 0]]),
        "last": normal(BATCH, SEQ, D_MODEL),
        "target_lm_head.weight": 0.6 * normal(VOCAB, D_MODEL),
        "embed_tokens.weight": normal(VOCAB, D_MODEL),
        "draft_vocab": torch.randperm(VOCAB, generator=generator)[:DRAFT_VOCAB].sort().values,
    }


def make_parameters(case, generator):
    values = {}
    for name, shape in shapes(case).items():
        noise = torch.randn(shape, generator=generator)
        if "norm" in name:
            values[name] = 1 + 0.3 * noise
        elif len(shape) == 1:
            values[name] = 0.3 * noise
        else:
            values[name] = 1.2 * noise / shape[-1] ** 0.5
    return values


def main():
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(2403)
    data = make_data(generator)
    for family in ("medusa", "hydra", "redrafter"):
        tensors, summary = dict(data), {}
        for name, case in CASES.items():
            if case.family != family:
                continue
            parameters = make_parameters(case, generator)
            tensors |= {f"{name}.parameters.{key}": value for key, value in parameters.items()}
            w = {key: value.clone().requires_grad_() for key, value in parameters.items()}
            total, heads = run(case, w, data)
            total.backward()
            for key, parameter in w.items():
                assert parameter.grad.abs().max() > 1e-4, (name, key)
                tensors[f"{name}.gradient.{key}"] = parameter.grad
            for k, head in enumerate(heads):
                assert head["counted"].sum() >= 2, (name, k)
                tensors[f"{name}.logits.{k}"] = head["logits"]
                tensors[f"{name}.judged.{k}"] = head["judged"]
            summary[name] = {
                **asdict(case),
                "total": total.item(),
                "losses": [head["loss"].item() for head in heads],
                "counted": [head["counted"].sum().item() for head in heads],
                "outside_draft_vocab": [head["outside"] for head in heads],
                "accuracy": [head["accuracy"] for head in heads],
            }
            assert (sum(summary[name]["outside_draft_vocab"]) > 0) == case.draft_vocab, name
            print(name, json.dumps(summary[name]))
        save_file(
            {key: value.detach().contiguous() for key, value in tensors.items()},
            HERE / f"{family}.safetensors",
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
            "draft_vocab": DRAFT_VOCAB,
            "draft_heads": DRAFT_HEADS,
            "rms_norm_eps": EPSILON,
            "rope_theta": THETA,
        }
        text = json.dumps({"sizes": sizes, "cases": summary}, indent=1)
        (HERE / f"{family}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
