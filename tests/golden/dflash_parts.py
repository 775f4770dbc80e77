"""Independent training steps of DFlash 2, of DSpark (https://arxiv.org/abs/2607.05147), of Domino
(https://arxiv.org/abs/2605.29707), and of blocks masked as by DEER (https://arxiv.org/abs/2512.15176).

Writes `dflash-parts.safetensors` and `dflash-parts.json`; see README.md. The block is that of dflash.py; here are what stands
around the parts of its layers and what is made of its last hidden states, each slot by itself.
"""

import json
from dataclasses import asdict, dataclass

import torch
from dflash import CAPTURED, HERE, LAYERS, MASK, SEED, block_hidden, choose, mix, parameters
from heads import BATCH, D_MODEL, HEADS, SEQ, VOCAB, make_data
from safetensors.torch import save_file
from torch.nn import functional as F


@dataclass
class Case:
    """One way of training; the fields are the recipe's keys."""

    block_size: int
    label_weight: float
    teacher_weight: float
    divergence: str
    slot_weights: str
    decay_slots: float = 0.0
    certainty: float = 0.5
    anchors: int = 9
    window: int = 0
    causal: bool = False
    sinks: bool = False
    context: str = "features"
    sample_from_anchor: bool = False
    conv_taps: int = 0
    conv_group: int = 4
    selector_rank: int = 0
    selector_top_k: int = 5
    selector_weight: float = 1.0
    inject: bool = True
    markov_rank: int = 0
    markov: str = "vanilla"
    confidence: bool = False
    confidence_weight: float = 1.0
    masking: str = "all"
    growth: float = 1.01
    full_layers: tuple = ()
    full_layers_see_block: bool = False
    markov_state: int = 5
    markov_from: int = 1
    base_weight: float = 0.0
    base_until: float = 0.5
    # Number of the training step, and how many there are.
    step: tuple = ()


CASES = {
    "dflash-2": Case(4, 1.0, 0.0, "kl", "exponential", decay_slots=2.0, conv_taps=2, selector_rank=3),
    "dflash-2-excluding": Case(
        5, 0.5, 1.0, "kl", "uniform", conv_taps=3, conv_group=2, selector_rank=3, selector_weight=0.5, inject=False
    ),
    "dspark": Case(
        3, 0.1, 1.8, "tv", "exponential", decay_slots=3.0, sample_from_anchor=True, markov_rank=3, confidence=True
    ),
    "dspark-gated": Case(4, 1.0, 0.0, "kl", "uniform", markov_rank=2, markov="gated"),
    "dspark-rnn": Case(
        4, 0.0, 1.0, "kl", "uniform", sample_from_anchor=True, markov_rank=2, markov="rnn", confidence=True, confidence_weight=0.3
    ),
    "some": Case(5, 1.0, 0.0, "kl", "uniform", masking="some"),
    "some-from-anchor": Case(4, 0.0, 1.0, "kl", "uniform", masking="some", sample_from_anchor=True),
    "last": Case(5, 1.0, 0.0, "kl", "rising", masking="last", growth=1.5, conv_taps=2),
    "tokens": Case(4, 1.0, 0.0, "kl", "uniform", context="tokens", confidence=True),
    "sinks": Case(4, 1.0, 0.0, "kl", "uniform", window=4, sinks=True),
    "domino": Case(
        4,
        1.0,
        0.0,
        "kl",
        "exponential",
        decay_slots=3.0,
        sample_from_anchor=True,
        markov_rank=3,
        markov="domino",
        base_weight=1.0,
        step=(3, 21),
    ),
    "domino-target": Case(
        5, 0.3, 1.0, "kl", "uniform", markov_rank=2, markov="domino", markov_from=0, base_weight=0.5, base_until=1.0, step=(4, 8)
    ),
    "last-from-anchor": Case(4, 0.0, 1.0, "kl", "rising", masking="last", growth=1.5, sample_from_anchor=True),
    "dflash-2-pace": Case(5, 1.0, 0.0, "kl", "d_pace", selector_rank=3, confidence=True),
    "dflash-2-sure": Case(4, 0.3, 1.0, "kl", "exponential", decay_slots=2.0, selector_rank=3, inject=False, confidence=True),
}


def convolve(base, changed, group, x):
    """One side of a convolution over a block, place by place and channel by channel."""
    rows = []
    for t in range(len(x)):
        row = []
        for channel in range(x.shape[1]):
            taps = range(min(base.shape[0], t + 1))
            row.append(sum((base[tap, channel] + changed[t, tap, channel // group]) * x[t - tap, channel] for tap in taps))
        rows.append(torch.stack(row))
    return torch.stack(rows)


def draw(seed, index):
    """A number from 0 to below 1."""
    return (mix(seed, index) >> 11) / 2**53


def cover(case, row, anchor):
    """Which places of a block are masked, how many it has, and the factor on the loss of what is masked."""
    seed, size, first = mix(SEED, row * SEQ + anchor), case.block_size, 0 if case.sample_from_anchor else 1
    if case.masking == "last":
        return [True] * size, 1 + first + int(draw(seed, 0) * (size - first)), 1.0
    if case.masking == "some":
        t = 1 - draw(seed, 0)
        return [draw(seed, place) < t for place in range(size)], size, 1 / t
    return [True] * size, size, 1.0


def hidden_of(case, w, data, row, start, anchor, masked, length):
    def around(name, u, part):
        if not case.conv_taps:
            return part(u)
        changed = u @ w[name + "kernel_projection.weight"].T
        changed = changed.view(len(u), 2, case.conv_taps, D_MODEL // case.conv_group)
        base = w[name + "base_kernel"]
        inner = convolve(base[0], changed[:, 0], case.conv_group, u)
        return convolve(base[1], changed[:, 1], case.conv_group, part(inner))

    read = data["embed_tokens.weight"][data["input_ids"]] if case.context == "tokens" else None
    tokens = [data["input_ids"][row, anchor].item()]
    for place in range(1, length):
        at = anchor + place
        text = at < SEQ and data["documents"][row, at] == data["documents"][row, anchor]
        tokens.append(data["input_ids"][row, at].item() if text and not masked[place] else MASK)
    return block_hidden(case, w, data, row, start, anchor, read, around, tokens)


def domino_states(case, w, hidden, embedded):
    """What Domino's bias is made of at each slot, [slots, rank], by the library's own recurrent unit."""
    unit = torch.nn.GRU(D_MODEL, case.markov_state, bias=False, batch_first=True)
    weights = {f"weight_{kind}_l0": w[f"markov_head.prefix_gru.{part}.weight"] for kind, part in (("ih", "input"), ("hh", "hidden"))}
    prefixes, _ = torch.func.functional_call(unit, weights, (embedded[None],))
    states = F.silu(torch.cat([hidden, prefixes[0]], 1) @ w["markov_head.joint_proj.weight"].T)
    return torch.cat([torch.zeros_like(states[: case.markov_from]), states[case.markov_from :]])


def markov_states(case, w, data, hidden, previous):
    """What the bias is made of at each slot, [slots, rank]."""
    if case.markov == "domino":
        return domino_states(case, w, hidden, data["embed_tokens.weight"][previous])
    codes = w["markov_head.markov_w1.weight"][previous]
    if case.markov == "vanilla":
        return codes
    if case.markov == "gated":
        z = torch.cat([hidden, codes], 1) @ w["markov_head.gate_proj.weight"].T + w["markov_head.gate_proj.bias"]
        return z.sigmoid() * codes
    state, out = torch.zeros(case.markov_rank), []
    for h, code in zip(hidden, codes):
        z = w["markov_head.joint_proj.weight"] @ torch.cat([state, code, h]) + w["markov_head.joint_proj.bias"]
        gate, candidate, output = z.chunk(3)
        state = gate.sigmoid() * state + (1 - gate.sigmoid()) * candidate.tanh()
        out.append(output.tanh())
    return torch.stack(out)


def run(case, w, data):
    """Total loss, logits and guesses of every slot of every block, and for each slot what is reported."""
    ids, documents, mask = data["input_ids"], data["documents"], data["loss_mask"].bool()
    flat = torch.cat([ids.flatten(), torch.zeros(case.block_size + 1, dtype=ids.dtype)])
    first = 0 if case.sample_from_anchor else 1
    slots = case.block_size - first
    blocks, logits, guesses, judged = choose(case, data), [], [], []
    for row, start, anchor in blocks:
        masked, length, factor = cover(case, row, anchor)
        hidden = hidden_of(case, w, data, row, start, anchor, masked, length)[first:]
        previous = flat[row * SEQ + anchor :][: len(hidden)]
        base = u = hidden @ data["target_lm_head.weight"].T
        if case.markov_rank:
            u = u + markov_states(case, w, data, hidden, previous) @ w["markov_head.markov_w2.weight"].T
        whole = hidden_of(case, w, data, row, start, anchor, [True] * case.block_size, case.block_size)[first:]
        logits.append(u if case.markov_rank else whole @ data["target_lm_head.weight"].T)
        sure = None
        if case.confidence:
            read = torch.cat([hidden, w["markov_head.markov_w1.weight"][previous]], 1) if case.markov_rank else hidden
            sure = read @ w["confidence_head.proj.weight"][0] + w["confidence_head.proj.bias"][0]
            guesses.append(sure)
        for slot in range(slots):
            at = anchor + 1 + slot
            if at >= SEQ or documents[row, at] != documents[row, anchor] or not mask[row, anchor : at + 1].all():
                continue
            place = slot + 1
            if not (masked[place] if place < length else place == length and case.sample_from_anchor):
                continue
            label = ids[row, at].item()
            log_q = u[slot].log_softmax(0)
            p = (data["target_lm_head.weight"] @ data["last"][row, at - 1]).softmax(0)
            q = log_q.exp()
            hard = -log_q[label]
            soft = (p - q).abs().sum() / 2 if case.divergence == "tv" else (p * (p.log() - log_q)).sum()
            loss = case.label_weight * hard + case.teacher_weight * soft
            if case.step:
                number, of = case.step
                share = case.base_weight * (1 - min(1, number / max(1, int(of * case.base_until))))
                log_q_base = base[slot].log_softmax(0)
                without = case.label_weight * -log_q_base[label] + case.teacher_weight * (p * (p.log() - log_q_base)).sum()
                loss = (1 - share) * loss + share * without
            found = {"block": (row, anchor), "slot": slot, "slots": loss, "alpha": kept(case, p, q, label)}
            drafted, chosen = q, None
            if case.selector_rank:
                scores = selector_scores(w, hidden[slot], previous[slot], u[slot])
                best = u[slot].topk(case.selector_top_k).indices.tolist()
                # What it does not choose from, it does not draft.
                drafted = torch.zeros_like(q).index_add(0, torch.tensor(best), scores[best].softmax(0))
                if label not in best and case.inject:
                    best[-1] = label
                if label in best:
                    chosen = -scores[best].log_softmax(0)[best.index(label)]
            found |= {"choice": chosen, "drafted": kept(case, p, drafted, label)}
            if case.confidence:
                z, alpha = sure[slot].sigmoid(), found["drafted"]
                found["guess"] = -(alpha * z.log() + (1 - alpha) * (1 - z).log())
            # The token behind a block is never shown.
            found["weight"] = factor if place < length else 1.0
            if case.slot_weights == "rising":
                found["weight"] *= case.growth ** (length - first - 1 - slot)
            if case.slot_weights == "exponential":
                found["weight"] *= decay(slot, case.decay_slots)
            found["right"] = drafted.argmax().item() == (p.argmax().item() if case.teacher_weight else label)
            judged.append(found)
    counted = [sum(row["slot"] == k for row in judged) for k in range(slots)]
    right = [sum(row["right"] for row in judged if row["slot"] == k) for k in range(slots)]
    return total_of(case, judged), torch.stack(logits), guesses, blocks, counted, right


def kept(case, p, q, label):
    """How likely a slot's token is kept. Where only the text judges, its token is all of the target."""
    return (torch.minimum(p, q).sum() if case.teacher_weight else q[label]).item()


def decay(slot, slots):
    return torch.tensor(-slot / slots).exp().item()


def selector_scores(w, hidden, previous, logits):
    """The logits of all tokens with what the selector adds."""
    context = w["candidate_selector.predecessor_codebook"][previous]
    context = context * (w["candidate_selector.hidden_projection.weight"] @ hidden)
    return logits + w["candidate_selector.successor_codebook"] @ context


def paces(case, judged, key):
    """D-PACE's weights by these probabilities: how many tokens a decoder is expected to keep from each slot on."""
    weights = []
    for row in judged:
        reached, product = {}, 1.0
        for other in judged:
            if other["block"] == row["block"]:
                product *= (1 - case.certainty) * other[key] + case.certainty
                reached[other["slot"]] = product
        weights.append(row["weight"] * sum(reach for slot, reach in reached.items() if slot >= row["slot"]))
    return weights


def total_of(case, judged):
    """The sum of the means of all terms. With D-PACE each part is weighed by what it makes of the slots itself, and guesses by a
    fixed rule."""
    by_slots = by_choice = by_guess = [row["weight"] for row in judged]
    if case.slot_weights == "d_pace":
        by_slots, by_choice = paces(case, judged, "alpha"), paces(case, judged, "drafted")
        by_guess = [decay(row["slot"], 4.0) for row in judged]

    def mean(weights, key):
        return sum(weight * row[key] for weight, row in zip(weights, judged) if row[key] is not None) / sum(weights)

    total = mean(by_slots, "slots")
    if case.confidence:
        total = total + case.confidence_weight * mean(by_guess, "guess")
    if case.selector_rank:
        total = total + case.selector_weight * mean(by_choice, "choice")
    return total


def of_parts(case, generator):
    """Parameters of what dflash.py knows nothing of."""
    shapes = {}
    if case.conv_taps:
        for layer in range(LAYERS):
            for part in ("attention_conv", "mlp_conv"):
                name = f"layers.{layer}.{part}."
                shapes[name + "base_kernel"] = (2, case.conv_taps, D_MODEL)
                shapes[name + "kernel_projection.weight"] = (2 * case.conv_taps * D_MODEL // case.conv_group, D_MODEL)
    if case.selector_rank:
        for book in ("predecessor_codebook", "successor_codebook"):
            shapes["candidate_selector." + book] = (VOCAB, case.selector_rank)
        shapes["candidate_selector.hidden_projection.weight"] = (case.selector_rank, D_MODEL)
    rank = case.markov_rank
    if rank and case.markov != "domino":
        shapes["markov_head.markov_w1.weight"] = (VOCAB, rank)
    if rank:
        shapes["markov_head.markov_w2.weight"] = (VOCAB, rank)
    if case.markov == "domino":
        for part, width in (("input", D_MODEL), ("hidden", case.markov_state)):
            shapes[f"markov_head.prefix_gru.{part}.weight"] = (3 * case.markov_state, width)
        shapes["markov_head.joint_proj.weight"] = (rank, D_MODEL + case.markov_state)
    if case.markov == "gated":
        shapes |= {"markov_head.gate_proj.weight": (rank, D_MODEL + rank), "markov_head.gate_proj.bias": (rank,)}
    if case.markov == "rnn":
        shapes["markov_head.joint_proj.weight"] = (3 * rank, 2 * rank + D_MODEL)
        shapes["markov_head.joint_proj.bias"] = (3 * rank,)
    if case.confidence:
        shapes |= {"confidence_head.proj.weight": (1, D_MODEL + rank), "confidence_head.proj.bias": (1,)}
    if case.sinks:
        shapes |= {f"layers.{layer}.self_attn.attention_sink_bias": (HEADS,) for layer in range(LAYERS)}
    return {name: 0.6 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


# Gradients of these are kept of every case; of what dflash.py covers, only a few.
KEPT = ("fc.weight", "layers.0.self_attn.v_proj.weight", "layers.1.mlp.down_proj.weight", "norm.weight")


def main():
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(2607)
    data = make_data(generator)
    del data["draft_vocab"]
    data["captured"] = torch.randn(BATCH, SEQ, CAPTURED * D_MODEL, generator=generator)
    shared = parameters(generator)
    tensors, summary = data | {f"parameters.{name}": value for name, value in shared.items()}, {}
    for name, case in CASES.items():
        own = of_parts(case, generator)
        if case.context == "tokens":
            own["fc.weight"] = torch.randn((D_MODEL, D_MODEL), generator=generator) / D_MODEL**0.5
        tensors |= {f"{name}.parameters.{key}": value for key, value in own.items()}
        w = {key: value.clone().requires_grad_() for key, value in (shared | own).items()}
        total, logits, guesses, blocks, counted, right = run(case, w, data)
        total.backward()
        for key, parameter in w.items():
            assert parameter.grad.abs().max() > 1e-6, (name, key)
            if key in own or key in KEPT:
                tensors[f"{name}.gradient.{key}"] = parameter.grad
        tensors[f"{name}.logits"] = logits.detach()
        if guesses:
            tensors[f"{name}.guesses"] = torch.stack(guesses).detach()
        anchors = [row * SEQ + anchor for row, _, anchor in blocks]
        summary[name] = asdict(case) | {"total": total.item(), "blocks": anchors, "counted": counted, "right": right}
        print(name, json.dumps(summary[name]))
    save_file({key: value.contiguous() for key, value in tensors.items()}, HERE / "dflash-parts.safetensors")
    figures = {"seed": SEED, "mask_token": MASK, "cases": summary}
    (HERE / "dflash-parts.json").write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
