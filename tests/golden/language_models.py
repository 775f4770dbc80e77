"""Independent training steps of DistillSpec (https://arxiv.org/abs/2310.08461) and of PARD and PARD-2
(https://arxiv.org/abs/2504.18583, https://arxiv.org/abs/2605.08632) on drafters that transformers computes.

Writes `language_models/NAME/{config.json, model.safetensors}`, and `distill` and `pard`, a `.safetensors` and a `.json`
each; see README.md. Nothing is packed here and no mask is made: DistillSpec runs every document by itself, and PARD
every row (b, p) by itself, as a document that is cut after x_{p-b} and goes on with b mask tokens.
"""

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

HERE = Path(__file__).resolve().parent
BATCH, SEQ = 2, 16
VOCAB, SMALL_VOCAB, MASK_TOKEN = 32, 24, 31
TARGET_D_MODEL, TARGET_LAYERS = 10, 8
FEATURE_SCALE = 0.02
LEAST_DEVIATION = 1e-2

SHARED = {
    "vocab_size": VOCAB,
    "hidden_size": 12,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
    "attention_bias": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}

# name -> (config class, model class, its own settings)
MODELS = {
    "llama": (
        transformers.LlamaConfig,
        transformers.LlamaForCausalLM,
        {"tie_word_embeddings": False},
    ),
    "qwen3": (
        transformers.Qwen3Config,
        transformers.Qwen3ForCausalLM,
        {"tie_word_embeddings": True},
    ),
    "small": (
        transformers.LlamaConfig,
        transformers.LlamaForCausalLM,
        {"tie_word_embeddings": True, "vocab_size": SMALL_VOCAB},
    ),
}


@dataclass
class Case:
    """A drafter and how it is trained; `objective` and `lora` have the recipe's keys."""

    model: str
    objective: dict
    lora: dict | None = None
    target_features: bool = False
    seed: int | None = None  # of the rows that PARD draws


def distill(model, lora=None, **changes):
    keys = {"divergence": "kl", "teacher_weight": 1.0, "label_weight": 0.0}
    keys |= {"temperature": 1.0, "average": "tokens"}
    return Case(model, keys | changes, lora)


def pard(model, seed, target_features=False, **changes):
    keys = {"draft_tokens": 4, "keep": 0.7, "keep_least": 0.2, "label_weight": 1.0}
    keys |= {"teacher_weight": 0.0, "divergence": "kl", "confidence_weights": False}
    return Case(model, keys | changes, None, target_features, seed)


DISTILL = {
    "kl": distill("llama"),
    "mixed": distill("qwen3", teacher_weight=0.75, label_weight=0.5),
    "softened": distill("llama", divergence="reverse_kl", temperature=2.0, average="samples"),
    "tv-plus-plus": distill("qwen3", divergence="tv_plus_plus"),
    "fewer-tokens": distill("small", label_weight=0.25),
    "lora": distill("llama", lora={"rank": 3, "alpha": 5.0}),
}

PARD = {
    "pard": pard("qwen3", seed=5, keep=0.8, keep_least=0.4),
    "pard-2": pard(
        "llama",
        seed=11,
        target_features=True,
        keep=0.9,
        keep_least=0.5,
        label_weight=0.1,
        teacher_weight=1.0,
        confidence_weights=True,
    ),
}


# Models


def make_models():
    """Random drafters as transformers saves and loads them."""
    models = {}
    for seed, (name, (config_class, model_class, settings)) in enumerate(MODELS.items()):
        generator = torch.Generator().manual_seed(300 + seed)
        config = config_class(**{**SHARED, **settings})
        config._attn_implementation = "eager"
        model = model_class(config)
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                noise = torch.randn(parameter.shape, generator=generator)
                if "norm" in parameter_name:
                    parameter.copy_(1 + 0.3 * noise)
                elif "embed_tokens" in parameter_name:
                    parameter.copy_(0.7 * noise)
                else:
                    parameter.copy_(1.3 * noise / parameter.shape[-1] ** 0.5)
        folder = HERE / "language_models" / name
        shutil.rmtree(folder, ignore_errors=True)
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        models[name] = model_class.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
    return models


def program_name(name):
    """What the program calls one of transformers' parameters: its head is part of the decoder."""
    return f"model.{name}" if name.startswith("lm_head.") else name


class Drafter:
    """A model with what is trained of it and beside it."""

    def __init__(self, model, case, generator):
        self.model = model
        weights = {name: value.detach().clone() for name, value in model.named_parameters()}
        self.scale = 0.0
        self.beside = {}
        if case.lora:
            self.scale = case.lora["alpha"] / case.lora["rank"]
            for name, weight in weights.items():
                if not name.endswith("_proj.weight"):
                    continue
                (d_out, d_in), rank = weight.shape, case.lora["rank"]
                path = name.removesuffix("weight")
                down = torch.randn(d_in, rank, generator=generator) / d_in**0.5
                up = 0.5 * torch.randn(rank, d_out, generator=generator)
                self.beside |= {f"{path}lora.down": down, f"{path}lora.up": up}
        if case.target_features:
            width = 4 * TARGET_D_MODEL
            self.beside["target_proj.weight"] = 0.3 * torch.randn(
                SHARED["hidden_size"], width, generator=generator
            )
        for value in self.beside.values():
            value.requires_grad_()
        self.weights = weights
        self.trained = dict(self.beside)
        if not case.lora:
            for name, value in weights.items():
                self.trained[program_name(name)] = value.requires_grad_()

    def logits(self, **inputs):
        """Logits of one sequence, [length, vocab], by transformers."""
        weights = dict(self.weights)
        for name in self.weights:
            path = name.removesuffix("weight")
            if f"{path}lora.down" in self.beside:
                change = self.beside[f"{path}lora.down"] @ self.beside[f"{path}lora.up"]
                weights[name] = self.weights[name] + self.scale * change.T
        inputs = {key: value[None] for key, value in inputs.items()}
        output = torch.func.functional_call(
            self.model, weights, kwargs={**inputs, "use_cache": False}, tie_weights=True
        )
        return output.logits[0]

    def embed(self, tokens):
        return self.weights["model.embed_tokens.weight"][tokens]

    def gradients(self):
        return {name: value.grad for name, value in self.trained.items()}


# Losses at one position


def kl(a, b):
    return (a * (a.log() - b.log())).sum()


def tv_plus_plus(p, q):
    """The value of total variation, and the gradient of its policy-gradient form with whitened rewards."""
    held = q.detach()
    reward = (held < p).float() + 0.5 * (held == p).float()
    mean = (held * reward).sum()
    deviation = (held * (reward - mean) ** 2).sum().sqrt().clamp(min=LEAST_DEVIATION)
    surrogate = -(q * (reward - mean) / deviation).sum()
    return (1 - torch.minimum(p, held).sum()) + surrogate - surrogate.detach()


DIVERGENCES = {
    "kl": kl,
    "reverse_kl": lambda p, q: kl(q, p),
    "tv_plus_plus": tv_plus_plus,
}


def judge(case, logits, target_logits, label, temperature):
    """What one position contributes: (teacher's part or None, label's part or None, acceptance, agreement)."""
    vocab = logits.shape[0]
    teacher_part = label_part = None
    if label < vocab:
        label_part = -logits.log_softmax(0)[label]
    best, guess = target_logits.argmax().item(), logits.argmax().item()
    if best < vocab:
        full = (target_logits / temperature).softmax(0)[:vocab]
        p, q = full / full.sum(), (logits / temperature).softmax(0)
        teacher_part = DIVERGENCES[case.objective["divergence"]](p, q)
    if case.objective["teacher_weight"]:
        # Acceptance and agreement are of the target's whole distribution.
        q = (logits / temperature).softmax(0)
        full = (target_logits / temperature).softmax(0)[:vocab]
        return teacher_part, label_part, torch.minimum(full, q).sum(), guess == best
    return None, label_part, logits.softmax(0)[min(label, vocab - 1)], guess == label


def average(pairs):
    """The mean of (weight, value), over those that are there."""
    pairs = [(weight, value) for weight, value in pairs if value is not None]
    return sum(w * value for w, value in pairs) / sum(w for w, _ in pairs)


def total_loss(case, weighted):
    """`weighted`: pairs of a weight and what `judge` returned."""
    total = 0.0
    if case.objective["teacher_weight"]:
        teacher = average([(weight, parts[0]) for weight, parts in weighted])
        total = total + case.objective["teacher_weight"] * teacher
    if case.objective["label_weight"]:
        label = average([(weight, parts[1]) for weight, parts in weighted])
        total = total + case.objective["label_weight"] * label
    return total


def report(case, judged):
    """Sums over positions of what is reported: the teacher's part where there is one."""
    which = 0 if case.objective["teacher_weight"] else 1
    there = [parts for parts in judged if parts[which] is not None]
    return {
        "counted": len(there),
        "left_out": len(judged) - len(there),
        "loss": sum(parts[which].item() for parts in there),
        "acceptance": sum(parts[2].item() for parts in there),
        "agreement": sum(parts[3] for parts in there),
    }


# Texts


class Texts:
    """The documents of the packed rows, by their places in the flattened batch."""

    def __init__(self, data):
        self.ids = data["input_ids"].flatten()
        self.mask = data["loss_mask"].flatten().bool().tolist()
        rows = torch.arange(BATCH).repeat_interleave(SEQ)
        documents = data["documents"].flatten()
        self.document = [
            None if d < 0 else (r, d) for r, d in zip(rows.tolist(), documents.tolist())
        ]
        self.size = len(self.document)

    def together(self, *places):
        """Whether all places are in the batch and in one document."""
        inside = all(0 <= place < self.size for place in places)
        found = {self.document[place] for place in places} if inside else {None}
        return len(found) == 1 and None not in found

    def start(self, place):
        return self.document.index(self.document[place])

    def places(self, document):
        return [place for place in range(self.size) if self.document[place] == document]

    def documents(self):
        return sorted({document for document in self.document if document is not None})


def run_distill(case, drafter, data):
    texts, target = Texts(data), data["target_logits"]
    temperature = case.objective["temperature"]
    logits = torch.zeros(texts.size, drafter.model.config.vocab_size)
    judged = []
    for document in texts.documents():
        places = texts.places(document)
        # A token that the drafter does not know is read as its last one.
        known = texts.ids[places].clamp(max=drafter.model.config.vocab_size - 1)
        rows = drafter.logits(input_ids=known)
        logits[places] = rows.detach()
        # Row t predicts x_{t+1}; a decoder drafts it unless it is the first of a reply.
        for place, row in zip(places, rows):
            follows = texts.together(place, place + 1)
            if follows and texts.mask[place] and texts.mask[place + 1]:
                label = texts.ids[place + 1].item()
                parts = judge(case, row, target[place], label, temperature)
                judged.append((document, parts))
    sizes = {}
    for document, _ in judged:
        sizes[document] = sizes.get(document, 0) + 1
    by_sample = case.objective["average"] == "samples"
    weighted = [(1 / sizes[d] if by_sample else 1.0, parts) for d, parts in judged]
    figures = {"steps": [report(case, [parts for _, parts in judged])]}
    return total_loss(case, weighted), {"logits": logits}, figures


def splitmix(seed, index):
    """Number `index` of the SplitMix64 sequence from `seed`."""
    full = (1 << 64) - 1
    z = (seed + (index + 1) * 0x9E3779B97F4A7C15) & full
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & full
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & full
    return z ^ (z >> 31)


def trained(texts, block, place):
    """Whether row (block, place) counts: it predicts a token of a reply, and so is the last token it has seen."""
    one = texts.together(place - block, place, place + 1)
    return one and all(texts.mask[place - block : place + 2])


def kept_rows(case, texts):
    """Conditional drop: rows (block, place) drawn from the seed, padding left out."""
    blocks = case.objective["draft_tokens"]

    def useful(block, place):
        return any(trained(texts, block + n, place + n) for n in range(blocks - block))

    text = [place for place in range(texts.size) if texts.document[place] is not None]
    rows, before, all_useful = [(0, place) for place in text], text, 0
    for block in range(1, blocks):
        share = max(case.objective["keep"] ** block, case.objective["keep_least"])
        wanted = int(share * sum(useful(block, place) for place in text))
        seed = splitmix(case.seed, block)
        following = [place + 1 for place in before if texts.together(place, place + 1)]
        possible = [place for place in following if useful(block, place)]
        drawn = sorted(possible, key=lambda place: splitmix(seed, place))[:wanted]
        before = sorted(drawn)
        rows += [(block, place) for place in before]
        all_useful += sum(useful(block, place) for place in text)
    assert len(rows) - len(text) < all_useful, "nothing was dropped"
    return rows


def run_pard(case, drafter, data):
    texts, target = Texts(data), data["target_logits"]
    rows = kept_rows(case, texts)
    logits, weighted, by_block = [], [], {}
    for block, place in rows:
        seen = list(range(texts.start(place), place - block + 1))
        tokens = torch.cat([texts.ids[seen], torch.full((block,), MASK_TOKEN)])
        if case.target_features:
            last, low, middle, high = data["last"], *data["captured"].split(TARGET_D_MODEL, -1)
            features = torch.cat([last, high, middle, low], -1).flatten(0, 1)
            added = FEATURE_SCALE * features @ drafter.beside["target_proj.weight"].T
            # A token reads the feature of the token before it; the first has none; a mask reads what the last token
            # before the masks reads.
            nothing = torch.zeros(added.shape[1])
            read = [nothing] + [added[t - 1] for t in seen[1:]]
            read += [read[-1]] * block
            found = drafter.logits(inputs_embeds=drafter.embed(tokens) + torch.stack(read))
        else:
            found = drafter.logits(input_ids=tokens)
        logits.append(found[-1].detach())
        if not trained(texts, block, place):
            continue
        weight = 1.0
        if case.objective["confidence_weights"]:
            for s in range(1, block + 1):
                under = place + 1 - s
                weight *= target[under - 1].softmax(0)[texts.ids[under]].item()
        label = texts.ids[place + 1].item()
        parts = judge(case, found[-1], target[place], label, 1.0)
        weighted.append((weight, parts))
        by_block.setdefault(block, []).append(parts)
    blocks = range(case.objective["draft_tokens"])
    figures = {"rows": rows, "steps": [report(case, by_block[block]) for block in blocks]}
    return total_loss(case, weighted), {"logits": torch.stack(logits)}, figures


def make_data(generator):
    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    documents = torch.tensor([[0] * 14 + [-1] * 2, [0] * 8 + [1] * 6 + [-1] * 2])
    # Any token but the mask's.
    input_ids = torch.randint(0, MASK_TOKEN, (BATCH, SEQ), generator=generator)
    input_ids[documents < 0] = 0
    # Two turns, the second shorter than a draft; one document ends in a reply and the next begins with one.
    loss_mask = [
        [0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 0, 0],
        [0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0],
    ]
    data = {
        "input_ids": input_ids,
        "loss_mask": torch.tensor(loss_mask),
        "documents": documents,
        "positions": torch.tensor([[*range(14), 0, 0], [*range(8), *range(6), 0, 0]]),
        # Large, so that features count beside embeddings at their scale of 0.02.
        "last": 6 * normal(BATCH, SEQ, TARGET_D_MODEL),
        "captured": 6 * normal(BATCH, SEQ, 3 * TARGET_D_MODEL),
        "target_lm_head.weight": 0.12 * normal(VOCAB, TARGET_D_MODEL),
    }
    target_logits = data["last"] @ data["target_lm_head.weight"].T
    return data, data | {"target_logits": target_logits.flatten(0, 1)}


def main():
    torch.set_num_threads(1)
    models = make_models()
    for file, cases, run in (("distill", DISTILL, run_distill), ("pard", PARD, run_pard)):
        generator = torch.Generator().manual_seed(13)
        stored, data = make_data(generator)
        tensors, summary = dict(stored), {}
        for name, case in cases.items():
            drafter = Drafter(models[case.model], case, generator)
            for key, value in drafter.beside.items():
                tensors[f"{name}.parameters.{key}"] = value.detach().clone()
            total, outputs, figures = run(case, drafter, data)
            total.backward()
            for key, gradient in drafter.gradients().items():
                assert gradient is not None and gradient.abs().max() > 1e-4, (name, key)
                tensors[f"{name}.gradient.{key}"] = gradient
            tensors |= {f"{name}.{key}": value for key, value in outputs.items()}
            summary[name] = {**asdict(case), "total": total.item(), **figures}
            steps = summary[name]["steps"]
            assert all(step["counted"] >= 3 for step in steps), (name, steps)
            left_out = sum(step["left_out"] for step in steps)
            assert (left_out > 0) == (case.model == "small"), (name, steps)
            print(name, total.item(), json.dumps(steps))
        save_file(
            {key: value.detach().contiguous() for key, value in tensors.items()},
            HERE / f"{file}.safetensors",
        )
        sizes = {
            "vocab": VOCAB,
            "mask_token": MASK_TOKEN,
            "target_d_model": TARGET_D_MODEL,
            "target_layers": TARGET_LAYERS,
        }
        text = json.dumps({"sizes": sizes, "cases": summary})
        (HERE / f"{file}.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
