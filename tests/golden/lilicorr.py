"""Independent training steps of DFlash with a lattice of paths (LiLiCorr, https://arxiv.org/abs/2608.20530).

Writes `lilicorr.safetensors` and `lilicorr.json`; see README.md. The blocks are those of dflash.py. The lattice is computed with
PyTorch's own attention, for each block by itself, and its scores are compared with those of vLLM's class for it; the losses are those of
Model Optimizer, from their formulas, over all slots that count, in blocks that the text's end cuts too.
"""

import json
from dataclasses import asdict, dataclass, field

import torch
from dflash import CAPTURED, HERE, MASK, SEED, block_hidden, choose, parameters
from heads import BATCH, D_MODEL, EPSILON, SEQ, VOCAB, make_data, rms_norm
from safetensors.torch import save_file
from torch import nn
from torch.nn import functional as F


@dataclass
class Case:
    """One way of training; the fields are the recipe's keys."""

    block_size: int
    lattice: dict
    paths: dict
    label_weight: float
    teacher_weight: float
    anchors: int = 9
    divergence: str = "kl"
    slot_weights: str = "uniform"
    divide_by_count: bool = True
    window: int = 0
    causal: bool = False
    full_layers: tuple = field(default_factory=tuple)
    full_layers_see_block: bool = False


CASES = {
    "lilicorr": Case(
        4,
        {"top_k": 4, "d_model": 6, "layers": 2, "heads": 2, "d_ff": 9, "rank": 5, "scale": 8.0, "epsilon": 1e-4},
        {"weight": 0.25, "hinge_weight": 0.0, "hinge": 2.0, "penalty_weight": 0.25},
        0.0,
        1.0,
    ),
    "lilicorr-margin": Case(
        5,
        {"top_k": 8, "d_model": 8, "layers": 1, "heads": 4, "d_ff": 16, "rank": 3, "scale": 5.0, "epsilon": 1e-3},
        {"weight": 0.5, "hinge_weight": 0.75, "hinge": 3.0, "penalty_weight": 0.0},
        1.0,
        0.0,
    ),
}


class FeedForward(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.up_proj, self.down_proj = nn.Linear(sizes[0], sizes[1]), nn.Linear(sizes[1], sizes[2])

    def forward(self, x):
        return self.down_proj(F.silu(self.up_proj(x)))


class Layer(nn.Module):
    def __init__(self, width, heads, d_ff):
        super().__init__()
        self.attn_norm, self.mlp_norm = (nn.RMSNorm(width, EPSILON) for _ in range(2))
        self.attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.mlp = FeedForward((width, d_ff, width))

    def forward(self, x, bias):
        u = self.attn_norm(x)
        x = x + self.attn(u, u, u, attn_mask=bias, need_weights=False)[0]
        return x + self.mlp(self.mlp_norm(x))


class Lattice(nn.Module):
    """The parameters go by the names of engines' files."""

    def __init__(self, block_size, lattice):
        super().__init__()
        self.block_size, self.sizes = block_size, lattice
        width, rank = lattice["d_model"], lattice["rank"]
        self.token_proj = nn.Identity() if width == D_MODEL else nn.Linear(D_MODEL, width)
        self.pass_hidden_proj, self.context_proj = (nn.Linear(D_MODEL, width) for _ in range(2))
        self.feature_norm, self.feature_mlp = nn.LayerNorm(5), FeedForward((5, width, width))
        self.slot_embedding = nn.Parameter(torch.zeros(1, 1, block_size - 1, 1, width))
        self.rank_embedding = nn.Parameter(torch.zeros(1, 1, 1, lattice["top_k"], width))
        self.relative_slot_bias = nn.Parameter(torch.zeros(lattice["heads"], 2 * block_size - 1))
        self.same_slot_bias = nn.Parameter(torch.zeros(lattice["heads"]))
        self.layers = nn.ModuleList(Layer(width, lattice["heads"], lattice["d_ff"]) for _ in range(lattice["layers"]))
        self.output_norm, self.anchor_norm = (nn.RMSNorm(width, EPSILON) for _ in range(2))
        self.factor_input_proj = nn.Linear(3 * width, width)
        self.out_head, self.in_head, self.anchor_out_head = (nn.Linear(width, rank) for _ in range(3))

    def forward(self, embedded, log_p, hidden, before):
        """Logits of the candidates of each slot: of the first [1, top_k], of others behind each candidate of the slot before, [top_k,
        top_k]. `embedded` is [slots, top_k, d_model], `log_p` [slots, top_k], `hidden` [slots, d_model], and `before` [d_model], or
        nothing where nothing stands before the anchor."""
        slots, top_k = log_p.shape
        rank = torch.arange(top_k).expand(slots, top_k)
        features = [log_p, log_p.exp(), log_p - log_p.max(-1, keepdim=True).values, rank / (top_k - 1), (rank == 0).float()]
        x = self.token_proj(embedded) + self.pass_hidden_proj(hidden)[:, None]
        x = x + self.feature_mlp(self.feature_norm(torch.stack(features, -1)))
        x = (x + self.slot_embedding[0, 0, :slots] + self.rank_embedding[0, 0]).flatten(0, 1)
        place = torch.arange(slots).repeat_interleave(top_k)
        apart = place[:, None] - place[None]
        bias = self.relative_slot_bias[:, apart + self.block_size - 1] + (apart == 0) * self.same_slot_bias[:, None, None]
        for layer in self.layers:
            x = layer(x[None], bias)[0]
        x = self.output_norm(x)
        context = torch.zeros(x.shape[-1]) if before is None else self.context_proj(before)
        context = self.anchor_norm(context)
        factors = F.silu(self.factor_input_proj(torch.cat([x, context.expand_as(x), x * context], -1)))
        normed = lambda x: F.normalize(x, dim=-1, eps=self.sizes["epsilon"])
        out, into = (normed(head(factors)).view(slots, top_k, -1) for head in (self.out_head, self.in_head))
        first = normed(self.anchor_out_head(context)) @ into[0].T
        pairs = [out[slot - 1] @ into[slot].T for slot in range(1, slots)]
        return [self.sizes["scale"] * scores for scores in [first[None], *pairs]]


def as_vllm_has_it(lattice, *read):
    """The same by vLLM's class."""
    from vllm.config import CompilationConfig, DeviceConfig, VllmConfig, set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.model_executor.models.lilicorr import LiLiCorrHead

    sizes = lattice.sizes
    names = {
        "candidate_topk": "top_k",
        "hidden_size": "d_model",
        "num_layers": "layers",
        "num_heads": "heads",
        "factor_dim": "rank",
        "vector_eps": "epsilon",
        "logit_scale": "scale",
    }
    config = {f"lilicorr_{there}": sizes[here] for there, here in names.items()}
    config["lilicorr_mlp_ratio"] = sizes["d_ff"] / sizes["d_model"]
    settings = VllmConfig(device_config=DeviceConfig("cpu"), compilation_config=CompilationConfig(mode=0))
    with set_current_vllm_config(settings), torch.no_grad():
        if not torch.distributed.is_initialized():
            init_distributed_environment(1, 0, "tcp://127.0.0.1:29577", 0, "gloo")
            initialize_model_parallel()
        head = LiLiCorrHead(
            model_hidden_size=D_MODEL, block_size=lattice.block_size, rms_norm_eps=EPSILON, config=config
        )
        assert not head.load_state_dict(lattice.state_dict(), strict=True).missing_keys
        head.materialize_inference_buffers(torch.device("cpu"), torch.float32)
        for part in head.modules():
            if hasattr(part, "quant_method"):
                part.quant_method.process_weights_after_loading(part)
        embedded, log_p, hidden, before = (None if part is None else part.detach()[None] for part in read)
        is_there = torch.tensor([before is not None])
        before = torch.zeros(1, D_MODEL) if before is None else before
        first, *pairs = head(embedded, log_p, hidden, before, is_there)[0]
        return [first[:1], *pairs]


def blocks_of(case, lattice, w, data):
    """Of each block what the head makes of its slots, its candidates, their scores, and the rows that count."""
    ids, documents, mask, head = (data[key] for key in ("input_ids", "documents", "loss_mask", "target_lm_head.weight"))
    mask = mask.bool()
    for row, start, anchor in choose(case, data):
        hidden = block_hidden(case, w, data, row, start, anchor)[1:]
        logits = hidden @ head.T
        candidates = logits.topk(case.lattice["top_k"]).indices
        log_p = logits.log_softmax(-1).gather(1, candidates)
        before = None
        if anchor > start:
            before = rms_norm(data["captured"][row, anchor - 1] @ w["fc.weight"].T, w["hidden_norm.weight"])
        read = (data["embed_tokens.weight"][candidates], log_p, hidden, before)
        scores = lattice(*read)
        for own, other in zip(scores, as_vllm_has_it(lattice, *read)):
            torch.testing.assert_close(own.detach(), other, atol=2e-5, rtol=1e-4)
        rows = []
        for slot in range(case.block_size - 1):
            at = anchor + 1 + slot
            if at < SEQ and documents[row, at] == documents[row, anchor] and mask[row, anchor : at + 1].all():
                rows.append((slot, ids[row, at].item(), head @ data["last"][row, at - 1]))
        yield row * SEQ + anchor, logits, candidates.tolist(), log_p, scores, rows


def run(case, lattice, w, data):
    """Total loss, and what is reported."""
    on_slots, parts, total = [], [], torch.zeros(())
    anchors, logits, counted, right = [], [], [0] * (case.block_size - 1), [0] * (case.block_size - 1)
    for anchor, of_slots, candidates, log_p, scores, rows in blocks_of(case, lattice, w, data):
        anchors.append(anchor)
        logits.append(of_slots)
        is_path, before = True, None
        for slot, token, of_target in rows:
            log_q, teacher = of_slots[slot].log_softmax(0), of_target.softmax(0)
            on_slots.append(
                case.label_weight * -log_q[token] + case.teacher_weight * (teacher * (teacher.log() - log_q)).sum()
            )
            there = candidates[slot].index(token) if token in candidates[slot] else None
            # Behind what is no candidate a decoder has a slot's own guesses.
            by_path = slot == 0 or before is not None
            node = scores[slot][0 if slot == 0 else before] if by_path else log_p[slot]
            counted[slot] += 1
            favourite = of_target.argmax().item() if case.teacher_weight else token
            right[slot] += candidates[slot][node.argmax()] == favourite
            is_path = is_path and there is not None
            if is_path:
                others = torch.cat([node[:there], node[there + 1 :]])
                lacking = (of_target[token] - of_target[candidates[slot]]).clamp_min(0)
                parts.append(
                    (
                        -node.log_softmax(0)[there],
                        (case.paths["hinge"] - (node[there] - others.max())).clamp_min(0),
                        (node.softmax(0) * lacking).sum(),
                    )
                )
            before = there
    total = total + torch.stack(on_slots).sum() / len(on_slots)
    weights = [case.paths[key] for key in ("weight", "hinge_weight", "penalty_weight")]
    for weight, part in zip(weights, zip(*parts)):
        total = total + weight * torch.stack(part).mean()
    return total, torch.stack(logits), anchors, counted, right, len(parts)


def write_paths(case, w, data, generator):
    """Makes texts go along paths: behind blocks that do not overlap, each slot's token becomes one of its candidates, but for the last
    slot of every second block. Random texts would leave the lattice at once."""
    documents, ids = data["documents"], data["input_ids"]
    done = (0, 0)
    for number, (row, start, anchor) in enumerate(choose(case, data)):
        if (row, anchor) < done:
            continue
        hidden = block_hidden(case, w, data, row, start, anchor)[1:]
        candidates = (hidden @ data["target_lm_head.weight"].T).topk(case.lattice["top_k"]).indices
        for slot in range(case.block_size - 1 - number % 2):
            at = anchor + 1 + slot
            if at < SEQ and documents[row, at] == documents[row, anchor]:
                ids[row, at] = candidates[slot, torch.randint(case.lattice["top_k"], (), generator=generator)]
        done = (row, anchor + case.block_size)


def name_of(parameter):
    """What the program calls a parameter of the lattice."""
    return "lattice." + parameter.replace(".in_proj_", ".in_proj.")


# Gradients of these are kept beside those of the lattice.
KEPT = ("fc.weight", "layers.0.self_attn.v_proj.weight", "layers.1.mlp.down_proj.weight", "norm.weight")


def main():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(97)
    data = make_data(generator)
    del data["draft_vocab"]
    data["captured"] = torch.randn(BATCH, SEQ, CAPTURED * D_MODEL, generator=generator)
    shared = parameters(generator)
    with torch.no_grad():
        write_paths(CASES["lilicorr"], shared, data, generator)
    tensors, summary = data | {f"parameters.{name}": value for name, value in shared.items()}, {}
    for name, case in CASES.items():
        lattice = Lattice(case.block_size, case.lattice)
        with torch.no_grad():
            for key, parameter in lattice.named_parameters():
                noise = 0.6 * torch.randn(parameter.shape, generator=generator)
                parameter.copy_(noise + float("norm.weight" in key))
        own = {name_of(key): parameter for key, parameter in lattice.named_parameters()}
        tensors |= {f"{name}.parameters.{key}": value.detach().clone() for key, value in own.items()}
        w = {key: value.clone().requires_grad_() for key, value in shared.items()}
        total, logits, blocks, counted, right, along = run(case, lattice, w, data)
        total.backward()
        for key, parameter in (w | own).items():
            assert parameter.grad is not None and parameter.grad.abs().max() > 1e-6, (name, key)
            if key in KEPT or key in own:
                tensors[f"{name}.gradient.{key}"] = parameter.grad
        tensors[f"{name}.logits"] = logits.detach()
        figures = {"total": total.item(), "blocks": blocks, "counted": counted, "right": right}
        summary[name] = asdict(case) | figures
        print(name, "slots along paths:", along, json.dumps(summary[name]))
        assert along >= 6, along
    save_file({key: value.contiguous() for key, value in tensors.items()}, HERE / "lilicorr.safetensors")
    figures = {"seed": SEED, "mask_token": MASK, "cases": summary}
    (HERE / "lilicorr.json").write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
