"""Independent training steps of DFlash (https://arxiv.org/abs/2602.06036).

Writes `dflash.safetensors` and `dflash.json`; see README.md. Every block is computed by itself, from the formulas: the
features of what stands before its anchor are fused and normed, and are keys and values of each layer beside those of the
block's own places; slot k predicts the token k places behind the anchor.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from heads import BATCH, D_FF, D_HEAD, D_MODEL, HEADS, KV_HEADS, SEQ, THETA, VOCAB, make_data, rms_norm
from safetensors.torch import save_file
from torch.nn import functional as F

HERE = Path(__file__).resolve().parent
LAYERS, CAPTURED, MASK = 2, 2, 39
SEED = 11


@dataclass
class Case:
    """One way of training; the fields are the recipe's keys."""

    block_size: int
    anchors: int
    label_weight: float
    teacher_weight: float
    divergence: str
    slot_weights: str
    decay_slots: float = 0.0
    certainty: float = 0.5
    divide_by_count: bool = False
    window: int = 0
    causal: bool = False
    full_layers: tuple = ()
    full_layers_see_block: bool = False


CASES = {
    "paper": Case(4, 3, 1.0, 0.0, "kl", "exponential", decay_slots=2.0),
    "sliding": Case(4, 9, 0.0, 1.0, "kl", "uniform", divide_by_count=True, window=4, causal=True),
    "favourite": Case(3, 9, 0.5, 1.0, "ce", "exponential", window=3),
    "d-pace": Case(5, 9, 1.0, 0.0, "kl", "d_pace"),
    "auf": Case(5, 9, 1.0, 0.0, "kl", "auf"),
    "mixed": Case(
        4, 9, 1.0, 0.0, "kl", "uniform", window=3, causal=True, full_layers=(1,), full_layers_see_block=True
    ),
    "mixed-causal": Case(4, 9, 0.0, 1.0, "kl", "uniform", window=3, causal=True, full_layers=(0,)),
}


def mix(seed, index):
    """Number `index` of the SplitMix64 sequence that starts at `seed`."""
    ones = (1 << 64) - 1
    state = (seed + (index + 1) * 0x9E3779B97F4A7C15) & ones
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & ones
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & ones
    return state ^ (state >> 31)


def rotate(x, positions):
    """Half-split rotary embedding of x [heads, length, d_head]."""
    half = D_HEAD // 2
    frequencies = THETA ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = (positions[:, None].double() * frequencies).to(x.dtype)
    low, high = x[..., :half], x[..., half:]
    return torch.cat([low * angles.cos() - high * angles.sin(), high * angles.cos() + low * angles.sin()], -1)


def block_hidden(case, w, data, row, start, anchor, read=None, around=None, tokens=None):
    """What the head reads of the block behind `anchor`, [block_size, d_model]; with `start` it counts within the row.

    `read` is what the context is made of, `around(name, u, part)` what stands around each part of a layer, and `tokens` is
    what stands in the block if not the anchor and masks.
    """
    before = torch.arange(start, anchor)
    read = data["captured"] if read is None else read
    around = around or (lambda name, u, part: part(u))
    context = rms_norm(read[row, before] @ w["fc.weight"].T, w["hidden_norm.weight"])
    tokens = tokens or [data["input_ids"][row, anchor].item()] + [MASK] * (case.block_size - 1)
    x = data["embed_tokens.weight"][torch.tensor(tokens)]
    places = torch.arange(anchor, anchor + len(tokens)) - start
    everywhere = torch.cat([before - start, places])
    for layer in range(LAYERS):
        name = f"layers.{layer}."

        def project(of, kind, heads):
            return (of @ w[f"{name}self_attn.{kind}_proj.weight"].T).view(len(of), heads, D_HEAD).transpose(0, 1)

        def attend(u):
            q = rotate(rms_norm(project(u, "q", HEADS), w[name + "self_attn.q_norm.weight"]), places)
            both = torch.cat([context, u])
            k = rotate(rms_norm(project(both, "k", KV_HEADS), w[name + "self_attn.k_norm.weight"]), everywhere)
            v = project(both, "v", KV_HEADS)
            k, v = (x.repeat_interleave(HEADS // KV_HEADS, 0) for x in (k, v))
            scores = q @ k.transpose(1, 2) / D_HEAD**0.5
            full = layer in case.full_layers
            causal = case.causal and not (full and case.full_layers_see_block)
            for at, position in enumerate(places.tolist()):
                for key, other in enumerate(everywhere.tolist()):
                    hidden = causal and key >= len(before) and other > position
                    if hidden or (case.window and not full and position - other >= case.window):
                        scores[:, at, key] = float("-inf")
            sinks = w.get(name + "self_attn.attention_sink_bias")
            if sinks is not None:
                scores = torch.cat([scores, sinks[:, None, None].expand(HEADS, len(tokens), 1)], -1)
            mixed = (scores.softmax(-1)[..., : len(everywhere)] @ v).transpose(0, 1).reshape(len(tokens), HEADS * D_HEAD)
            return mixed @ w[name + "self_attn.o_proj.weight"].T

        def feed(u):
            gate = F.silu(u @ w[name + "mlp.gate_proj.weight"].T) * (u @ w[name + "mlp.up_proj.weight"].T)
            return gate @ w[name + "mlp.down_proj.weight"].T

        x = x + around(name + "attention_conv.", rms_norm(x, w[name + "input_layernorm.weight"]), attend)
        x = x + around(name + "mlp_conv.", rms_norm(x, w[name + "post_attention_layernorm.weight"]), feed)
    return rms_norm(x, w["norm.weight"])


def block_logits(case, w, data, row, start, anchor):
    """Logits [block_size, vocab] of the block behind `anchor`."""
    return block_hidden(case, w, data, row, start, anchor) @ data["target_lm_head.weight"].T


def choose(case, data):
    """Row, start of the document and anchor of every block, as the program draws them."""
    documents, mask, found = data["documents"], data["loss_mask"].bool(), []
    for row in range(BATCH):
        may = [
            at
            for at in range(SEQ - 1)
            if documents[row, at] >= 0 and documents[row, at] == documents[row, at + 1] and mask[row, at] and mask[row, at + 1]
        ]
        may = sorted(sorted(may, key=lambda at: mix(SEED, row * SEQ + at))[: case.anchors])
        found += [(row, at - int(data["positions"][row, at]), at) for at in may]
    return found


def run(case, w, data):
    """Total loss, logits of every place of every block, and for each slot what is reported."""
    ids, documents, mask = data["input_ids"], data["documents"], data["loss_mask"].bool()
    blocks = choose(case, data)
    logits, judged = [], []
    for block, (row, start, anchor) in enumerate(blocks):
        of_block = block_logits(case, w, data, row, start, anchor)
        logits.append(of_block)
        for slot in range(1, case.block_size):
            at = anchor + slot
            if at >= SEQ or documents[row, at] != documents[row, anchor] or not mask[row, anchor : at + 1].all():
                continue
            log_q = of_block[slot].log_softmax(0)
            teacher = (data["target_lm_head.weight"] @ data["last"][row, at - 1]).softmax(0)
            label = ids[row, at].item()
            hard = -log_q[label]
            soft = -log_q[teacher.argmax()] if case.divergence == "ce" else (teacher * (teacher.log() - log_q)).sum()
            right = of_block[slot].argmax().item() == (teacher.argmax().item() if case.teacher_weight else label)
            judged.append([block, slot, hard, soft, right])
    weights = []
    for block, slot, hard, soft, _ in judged:
        of_block = {s: (h, r) for b, s, h, _, r in judged if b == block}
        if case.slot_weights == "exponential":
            weight = torch.tensor(-(slot - 1) / case.decay_slots if case.decay_slots else -(slot - 1) / 4).exp()
        elif case.slot_weights == "uniform":
            weight = torch.tensor(1.0)
        elif case.slot_weights == "d_pace":
            q = [
                (1 - case.certainty) * (-of_block[s][0]).exp().detach() + case.certainty
                if s in of_block
                else torch.tensor(1.0)
                for s in range(1, case.block_size)
            ]
            weight = sum(torch.stack(q[:m]).prod() for m in range(slot, case.block_size) if m in of_block)
        else:
            weight = torch.tensor(float(all(of_block[s][1] for s in range(1, slot) if s in of_block)))
        weights.append(weight)
    weights = torch.stack(weights)
    divisor = len(judged) if case.divide_by_count else weights.sum()
    losses = torch.stack([case.label_weight * hard + case.teacher_weight * soft for _, _, hard, soft, _ in judged])
    counted = [sum(slot == k for _, slot, *_ in judged) for k in range(1, case.block_size)]
    right = [sum(r for _, slot, _, _, r in judged if slot == k) for k in range(1, case.block_size)]
    return (weights * losses).sum() / divisor, torch.stack(logits), blocks, counted, right


def parameters(generator):
    shapes = {"fc.weight": (D_MODEL, CAPTURED * D_MODEL), "hidden_norm.weight": (D_MODEL,), "norm.weight": (D_MODEL,)}
    for layer in range(LAYERS):
        of_layer = {
            "input_layernorm": (D_MODEL,),
            "post_attention_layernorm": (D_MODEL,),
            "self_attn.q_proj": (HEADS * D_HEAD, D_MODEL),
            "self_attn.k_proj": (KV_HEADS * D_HEAD, D_MODEL),
            "self_attn.v_proj": (KV_HEADS * D_HEAD, D_MODEL),
            "self_attn.o_proj": (D_MODEL, HEADS * D_HEAD),
            "self_attn.q_norm": (D_HEAD,),
            "self_attn.k_norm": (D_HEAD,),
            "mlp.gate_proj": (D_FF, D_MODEL),
            "mlp.up_proj": (D_FF, D_MODEL),
            "mlp.down_proj": (D_MODEL, D_FF),
        }
        shapes |= {f"layers.{layer}.{name}.weight": shape for name, shape in of_layer.items()}
    noise = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    return {name: 1 + 0.3 * x if "norm" in name else 1.2 * x / x.shape[-1] ** 0.5 for name, x in noise.items()}


def main():
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(2602)
    data = make_data(generator)
    del data["draft_vocab"]
    data["captured"] = torch.randn(BATCH, SEQ, CAPTURED * D_MODEL, generator=generator)
    values = parameters(generator)
    tensors, summary = data | {f"parameters.{name}": value for name, value in values.items()}, {}
    for name, case in CASES.items():
        w = {key: value.clone().requires_grad_() for key, value in values.items()}
        total, logits, blocks, counted, right = run(case, w, data)
        total.backward()
        for key, parameter in w.items():
            assert parameter.grad.abs().max() > 1e-5, (name, key)
            tensors[f"{name}.gradient.{key}"] = parameter.grad
        tensors[f"{name}.logits"] = logits.detach()[:, 1:]
        anchors = [row * SEQ + anchor for row, _, anchor in blocks]
        summary[name] = asdict(case) | {"total": total.item(), "blocks": anchors, "counted": counted, "right": right}
        print(name, json.dumps(summary[name]))
    save_file({key: value.contiguous() for key, value in tensors.items()}, HERE / "dflash.safetensors")
    (HERE / "dflash.json").write_text(json.dumps({"seed": SEED, "mask_token": MASK, "cases": summary}, indent=1) + "\n")


if __name__ == "__main__":
    main()
