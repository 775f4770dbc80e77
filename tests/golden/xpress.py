"""Training steps of DFlash with XPress' head, by the classes of the speculators library 0.9.0.

Writes `xpress.safetensors` and `xpress.json`; see README.md. The blocks are those of dflash.py; the head, what is made of its
drafts and the loss are `XPressDraftModel.forward`, to which they are given as the library's own layers would give them. What a
decoder makes of the same blocks is computed beside it, slot by slot.
"""

import json
from dataclasses import asdict, dataclass, field
from types import MethodType, SimpleNamespace

import torch
from dflash import CAPTURED, HERE, MASK, SEED, block_hidden, choose, parameters
from heads import BATCH, D_MODEL, SEQ, VOCAB, make_data
from safetensors.torch import save_file
from speculators.losses import resolve_loss_config
from speculators.models.xpress.core import XPressDraftModel
from speculators.models.xpress.model_definitions import XPressRefinerHead


@dataclass
class Case:
    """One way of training; the fields are the recipe's keys."""

    block_size: int
    divergence: dict | str
    # The library's names of its terms, with their factors.
    losses: str
    markov_rank: int
    markov_d_ff: int
    markov_passes: int
    consistency_passes: int = 3
    consistency_weight: float = 0.3
    guess_weight: float = 0.6
    decay_slots: float = 4.0
    markov: str = "xpress"
    anchors: int = 9
    label_weight: float = 0.0
    teacher_weight: float = 1.0
    slot_weights: str = "exponential"
    divide_by_count: bool = True
    window: int = 0
    causal: bool = False
    full_layers: tuple = field(default_factory=tuple)
    full_layers_see_block: bool = False


CASES = {
    "xpress": Case(5, {"sum": {"ce": 0.1, "tv": 0.9}}, '{"ce": 0.1, "tv": 0.9}', 3, 6, 2, decay_slots=2.0),
    "xpress-kl": Case(
        4, "kl", "kl_div", 2, 6, 6, consistency_passes=1, consistency_weight=0.5, guess_weight=0.0, causal=True, window=4
    ),
}

HERE_OF = {"token_embed": "markov_w1", "readout": "markov_w2"}


def name_of(parameter):
    """What the program calls a parameter of the head."""
    first, *rest = parameter.split(".")
    part = HERE_OF.get(first)
    return ".".join(["markov_head", *([part, *rest] if part else ["refiner", parameter])])


def head_of(case, generator):
    head = XPressRefinerHead(
        verifier_vocab_size=VOCAB,
        draft_vocab_size=VOCAB,
        hidden_size=D_MODEL,
        block_size=case.block_size,
        rank=case.markov_rank,
        mlp_ratio=case.markov_d_ff // case.markov_rank,
    )
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.copy_(0.6 * torch.randn(parameter.shape, generator=generator))
    return head


def trained(case, head, blocks, given):
    """The loss of `XPressDraftModel.forward` on these blocks."""
    ids, documents = given["ids"], given["documents"]
    size = case.block_size
    model = XPressDraftModel.__new__(XPressDraftModel)
    torch.nn.Module.__init__(model)
    model.refiner_head, model.block_size, model.d2t = head, size, None
    model.config = SimpleNamespace(sample_from_anchor=False)
    places = torch.tensor([[row * SEQ + anchor + place for place in range(size)] for row, _, anchor in blocks])
    places = places.clamp(max=BATCH * SEQ - 1).flatten()
    made = (given["hidden"].flatten(0, 1)[None], given["base"].flatten(0, 1)[None], given["targets"], given["counts"], places)
    model._backbone_forward = MethodType(lambda *_, **__: made, model)
    _, loss, _ = model.forward(
        torch.zeros(1),
        ids[None],
        torch.zeros(1),
        torch.zeros(1),
        documents[None],
        loss_config=resolve_loss_config(case.losses, "eager"),
        gamma=case.decay_slots,
        max_anchors=len(blocks),
        consistency_weight=case.consistency_weight,
        consistency_passes=case.consistency_passes,
        base_anchor_weight=case.guess_weight,
    )
    return loss


def decoded(case, head, hidden, base, text):
    """Logits of the slots of a block behind the text's tokens, as a decoder drafts them, and its draft. It has the anchor in place of
    the token before it, and reads what the last pass has read where the text is what was drafted."""

    def behind(tokens):
        before = torch.cat([text[:1], text[:1], tokens])[None]
        return (base + head.block_bias(before, hidden_states=hidden[None])[0])[1:]

    of_text = behind(text[1:-1])
    drafted = base[1:].argmax(1)
    for _ in range(case.markov_passes):
        of_draft = behind(drafted[:-1])
        drafted = of_draft.argmax(1)
    rows = []
    for slot in range(case.block_size - 1):
        same = torch.equal(text[1 : 1 + slot], drafted[:slot])
        rows.append(of_draft[slot] if same else of_text[slot])
    return of_text, torch.stack(rows), drafted


def write_drafts(case, w, head, data):
    """Makes the text behind the first block of each row what is drafted there, and the target's favourite: other texts leave a draft
    before its passes have left anything unsettled."""
    rows = {row: (row, start, anchor) for row, start, anchor in reversed(choose(case, data))}
    for row, start, anchor in rows.values():
        hidden = block_hidden(case, w, data, row, start, anchor)
        base = hidden @ data["target_lm_head.weight"].T
        text = torch.full((case.block_size,), data["input_ids"][row, anchor].item())
        *_, drafted = decoded(case, head, hidden, base, text)
        for slot, token in enumerate(drafted.tolist()):
            at = anchor + 1 + slot
            if at < SEQ and data["documents"][row, at] == data["documents"][row, anchor]:
                data["input_ids"][row, at] = token
                favourite = data["target_lm_head.weight"][token]
                data["last"][row, at - 1] = 4 * favourite / favourite.norm()


def run(case, w, head, data):
    documents, mask = data["documents"], data["loss_mask"].bool()
    size, blocks = case.block_size, choose(case, data)
    ids = data["input_ids"].flatten()
    flat = torch.cat([ids, torch.zeros(size, dtype=ids.dtype)])
    hidden = torch.stack([block_hidden(case, w, data, *block) for block in blocks])
    base = hidden @ data["target_lm_head.weight"].T
    counts, targets = torch.zeros(len(blocks), size), torch.zeros(len(blocks), size, VOCAB)
    for block, (row, _, anchor) in enumerate(blocks):
        for place in range(1, size):
            at = anchor + place
            if at < SEQ and documents[row, at] == documents[row, anchor] and mask[row, anchor : at + 1].all():
                counts[block, place] = 1
                targets[block, place] = data["target_lm_head.weight"] @ data["last"][row, at - 1]
    own = documents + SEQ * torch.arange(BATCH)[:, None]
    given = {
        "ids": ids,
        "documents": own.flatten(),
        "hidden": hidden,
        "base": base,
        "targets": targets.flatten(0, 1)[None],
        "counts": counts.flatten()[None],
    }
    total = trained(case, head, blocks, given)
    logits, counted, right, apart = [], [0] * (size - 1), [0] * (size - 1), 0
    for block, (row, _, anchor) in enumerate(blocks):
        text = flat[row * SEQ + anchor :][:size]
        with torch.no_grad():
            of_text, rows, _ = decoded(case, head, hidden[block], base[block], text)
        logits.append(of_text)
        for slot in range(size - 1):
            if counts[block, slot + 1]:
                favourite = targets[block, slot + 1].argmax()
                counted[slot] += 1
                right[slot] += int(rows[slot].argmax() == favourite)
                apart += int(rows[slot].argmax() == favourite) != int(of_text[slot].argmax() == favourite)
    return total, torch.stack(logits), blocks, counted, right, apart


# Gradients of these are kept beside those of the head.
KEPT = ("fc.weight", "layers.0.self_attn.v_proj.weight", "layers.1.mlp.down_proj.weight", "norm.weight")


def main():
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(89)
    data = make_data(generator)
    del data["draft_vocab"]
    data["captured"] = torch.randn(BATCH, SEQ, CAPTURED * D_MODEL, generator=generator)
    shared = parameters(generator)
    heads = {name: head_of(case, generator) for name, case in CASES.items()}
    with torch.no_grad():
        write_drafts(CASES["xpress"], shared, heads["xpress"], data)
    tensors, summary = data | {f"parameters.{name}": value for name, value in shared.items()}, {}
    for name, case in CASES.items():
        head = heads[name]
        own = dict(head.named_parameters())
        tensors |= {f"{name}.parameters.{name_of(key)}": value.detach().clone() for key, value in own.items()}
        w = {key: value.clone().requires_grad_() for key, value in shared.items()}
        total, logits, blocks, counted, right, apart = run(case, w, head, data)
        total.backward()
        for key, parameter in (w | {name_of(key): value for key, value in own.items()}).items():
            assert parameter.grad.abs().max() > 1e-6, (name, key)
            if key in KEPT or key.startswith("markov_head."):
                tensors[f"{name}.gradient.{key}"] = parameter.grad
        tensors[f"{name}.logits"] = logits
        anchors = [row * SEQ + anchor for row, _, anchor in blocks]
        figures = {"total": total.item(), "blocks": anchors, "counted": counted, "right": right}
        summary[name] = asdict(case) | figures
        print(name, "slots that are right in a draft or behind their text alone:", apart, json.dumps(summary[name]))
        assert bool(apart) == (name == "xpress"), apart
    save_file({key: value.contiguous() for key, value in tensors.items()}, HERE / "xpress.safetensors")
    figures = {"seed": SEED, "mask_token": MASK, "cases": summary}
    (HERE / "xpress.json").write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
