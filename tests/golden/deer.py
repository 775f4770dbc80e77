"""Independent training steps of DEER (https://arxiv.org/abs/2512.15176): a masked-diffusion language model in its three
stages, written from the formulas.

Writes `deer.safetensors` and `deer.json`; see README.md. The drafters are those of language_models.py, in a decoder of its
own that runs one text at a time: nothing is packed. What a place sees is a list of places, by their definition.
"""

import json
from dataclasses import asdict, dataclass

import torch
from safetensors.torch import load_file, save_file

from language_models import (
    BATCH,
    HERE,
    MASK_TOKEN,
    SEQ,
    SHARED,
    TARGET_D_MODEL,
    TARGET_LAYERS,
    VOCAB,
    Texts,
    judge,
    make_data,
    program_name,
    report,
    splitmix,
)

SEPARATOR_TOKEN = 30
AMOUNT, TOKENS = 1, 2


@dataclass
class Case:
    """A drafter and a stage; `objective` has the recipe's keys."""

    model: str
    stage: str
    context: str
    objective: dict
    seed: int
    lora: None = None


def case(model, stage, context, seed, **changes):
    keys = {"label_weight": 1.0, "teacher_weight": 0.0, "divergence": "kl"}
    keys |= {"cuts": 1, "least_masked": 0.3, "span": 6, "alpha": 1.2}
    return Case(model, stage, context, keys | changes, seed)


CASES = {
    "adapt": case("llama", "adapt", "bidirectional", 3),
    "adapt-causal": case("qwen3", "adapt", "causal", 4),
    "align": case("qwen3", "align", "bidirectional", 6),
    "align-causal": case("llama", "align", "causal", 19, label_weight=0.5, teacher_weight=0.75),
    "refine": case("llama", "refine", "bidirectional", 7, cuts=2),
    "refine-causal": case(
        "qwen3", "refine", "causal", 22, label_weight=0.25, teacher_weight=1.0, cuts=3
    ),
}


# The decoder


def rms(x, weight):
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + SHARED["rms_norm_eps"]) * weight


def rotate(x, positions):
    """x: [heads, length, width]"""
    half = x.shape[-1] // 2
    base = SHARED["rope_parameters"]["rope_theta"]
    angle = positions[:, None] / base ** (torch.arange(half) / half)
    cos, sin = angle.cos(), angle.sin()
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


def logits(weights, tokens, sees):
    """Logits of every place of one text; `sees[i]` lists the places that place i sees."""
    length, width = len(tokens), SHARED["head_dim"]
    positions = torch.arange(length).float()
    hidden = torch.ones(length, length, dtype=torch.bool)
    for place, seen in enumerate(sees):
        hidden[place, seen] = False
    x = weights["model.embed_tokens.weight"][torch.tensor(tokens)]

    def heads(values, count):
        return values.view(length, count, width).transpose(0, 1)

    for layer in range(SHARED["num_hidden_layers"]):
        w = {
            name.removeprefix(f"model.layers.{layer}."): value
            for name, value in weights.items()
            if name.startswith(f"model.layers.{layer}.")
        }
        y = rms(x, w["input_layernorm.weight"])
        q = heads(y @ w["self_attn.q_proj.weight"].T, SHARED["num_attention_heads"])
        k = heads(y @ w["self_attn.k_proj.weight"].T, SHARED["num_key_value_heads"])
        v = heads(y @ w["self_attn.v_proj.weight"].T, SHARED["num_key_value_heads"])
        if "self_attn.q_norm.weight" in w:
            q = rms(q, w["self_attn.q_norm.weight"])
            k = rms(k, w["self_attn.k_norm.weight"])
        q, k = rotate(q, positions), rotate(k, positions)
        groups = q.shape[0] // k.shape[0]
        k, v = k.repeat_interleave(groups, 0), v.repeat_interleave(groups, 0)
        scores = (q @ k.transpose(1, 2) / width**0.5).masked_fill(hidden, float("-inf"))
        y = (scores.softmax(-1) @ v).transpose(0, 1).reshape(length, -1)
        x = x + y @ w["self_attn.o_proj.weight"].T
        y = rms(x, w["post_attention_layernorm.weight"])
        gate = torch.nn.functional.silu(y @ w["mlp.gate_proj.weight"].T)
        x = x + (gate * (y @ w["mlp.up_proj.weight"].T)) @ w["mlp.down_proj.weight"].T
    head = weights.get("lm_head.weight", weights["model.embed_tokens.weight"])
    return rms(x, weights["model.norm.weight"]) @ head.T


def what_is_seen(case, length, block):
    """`block` is where the block begins."""
    everything = list(range(length))
    if case.context == "bidirectional":
        return [everything] * length
    return [everything if place >= block else everything[: place + 1] for place in everything]


# The stages


def unit(bits):
    return ((bits >> 11) + 1) / 2**53


def share(case, seed):
    least = case.objective["least_masked"]
    return least + (1 - least) * unit(splitmix(seed, AMOUNT))


def cuts_of(case, texts, places):
    """Where a text is cut, with the seed of each block."""
    seed = splitmix(case.seed, places[0])
    behind = places[1:]
    if case.stage == "adapt":
        cuts = [place for place in behind if texts.mask[place]][:1]
    else:
        cuts = [place for place in behind if texts.mask[place - 1] and texts.mask[place]]
        cuts = sorted(sorted(cuts, key=lambda cut: splitmix(seed, cut))[: case.objective["cuts"]])
    return [(cut, splitmix(seed, cut)) for cut in cuts]


def cut_and_mask(case, texts, places, cut, seed):
    """A cut text: (tokens, where the block begins, masks as (place in it, token's place, weight), whole)."""
    ids = texts.ids.tolist()
    if case.stage == "adapt":
        block, separator = [place for place in places if place >= cut], []
        candidates = [place for place in block if texts.mask[place]]
    else:
        block, separator = [], [SEPARATOR_TOKEN]
        for place in places:
            if place >= cut and texts.mask[place] and (not block or block[-1] == place - 1):
                block.append(place)
        candidates = block
    tokens = [ids[place] for place in places if place < cut]
    begins = len(tokens)
    tokens += separator
    masks = []
    if case.stage == "refine":
        count = 1 + splitmix(seed, AMOUNT) % case.objective["span"]
        for i in range(1, count + 1):
            if i <= len(block):
                masks.append((len(tokens), block[i - 1], case.objective["alpha"] ** (count - i)))
            tokens.append(MASK_TOKEN)
        return tokens, begins, masks, sum(weight for _, _, weight in masks)
    t, drawn = share(case, seed), splitmix(seed, TOKENS)
    for place in block:
        if place in candidates and unit(splitmix(drawn, place)) <= t:
            masks.append((len(tokens), place, 1 / t))
            tokens.append(MASK_TOKEN)
        else:
            tokens.append(ids[place])
    return tokens, begins, masks, len(candidates)


def run(case, weights, data):
    texts, target = Texts(data), data["target_logits"]
    found, predicted, weighted, by_step, whole = [], [], [], {}, 0
    blocks = [
        (texts.places(document), *cut)
        for document in texts.documents()
        for cut in cuts_of(case, texts, texts.places(document))
    ]
    for places, cut, seed in blocks:
        tokens, begins, masks, of_text = cut_and_mask(case, texts, places, cut, seed)
        whole += of_text
        rows = logits(weights, tokens, what_is_seen(case, len(tokens), begins))
        for at, place, weight in masks:
            parts = judge(case, rows[at], target[place - 1], texts.ids[place].item(), 1.0)
            found.append(rows[at].detach())
            predicted.append(place)
            weighted.append((weight, parts))
            step = place - cut if case.stage == "refine" else 0
            by_step.setdefault(step, []).append(parts)
    total = 0.0
    for key, which in (("teacher_weight", 0), ("label_weight", 1)):
        if case.objective[key]:
            sums = sum(weight * parts[which] for weight, parts in weighted)
            total = total + case.objective[key] * sums / whole
    steps = [report(case, by_step[step]) for step in range(max(by_step) + 1)]
    return total, torch.stack(found), {"predicted": predicted, "steps": steps}


def main():
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(17)
    stored, data = make_data(generator)
    # No text holds the separator.
    stored["input_ids"][stored["input_ids"] == SEPARATOR_TOKEN] = 1
    tensors, summary = dict(stored), {}
    for name, case in CASES.items():
        weights = load_file(HERE / "language_models" / case.model / "model.safetensors")
        for value in weights.values():
            value.requires_grad_()
        total, found, figures = run(case, weights, data)
        total.backward()
        for key, value in weights.items():
            assert value.grad is not None and value.grad.abs().max() > 1e-4, (name, key)
            tensors[f"{name}.gradient.{program_name(key)}"] = value.grad
        tensors[f"{name}.logits"] = found
        summary[name] = {**asdict(case), "total": total.item(), **figures}
        assert len(figures["predicted"]) >= 5, (name, figures)
        print(name, total.item(), json.dumps(figures))
    save_file(
        {key: value.detach().contiguous() for key, value in tensors.items()},
        HERE / "deer.safetensors",
    )
    sizes = {
        "vocab": VOCAB,
        "mask_token": MASK_TOKEN,
        "separator_token": SEPARATOR_TOKEN,
        "target_d_model": TARGET_D_MODEL,
        "target_layers": TARGET_LAYERS,
    }
    assert stored["input_ids"].shape == (BATCH, SEQ)
    (HERE / "deer.json").write_text(json.dumps({"sizes": sizes, "cases": summary}) + "\n")


if __name__ == "__main__":
    main()
