"""Folders that other trainers write, and the logits that their own code computes with them.

`python published.py [speculators] [specforge] [modelopt]`: one folder for each kind of drafter under `published/TRAINER-KIND`, as the
trainer's own code writes it for the target `targets/llama`, with random weights in the place of trained ones. Where this program has
a model of the kind, `published/TRAINER-KIND.safetensors` holds what that code makes of random features with it, in f32.
"""
import json
import os
import shutil
import sys
import tempfile
from copy import deepcopy
from pathlib import Path

HERE = Path(__file__).resolve().parent
os.chdir(HERE)  # the target is named relative to it
os.environ["HF_HUB_OFFLINE"] = "1"
import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402

TARGET = "targets/llama"
VOCAB, WIDTH, LENGTH, STEPS, BLOCK, WINDOW, MASK = 61, 32, 8, 3, 4, 5, 60
# Indices of the layers whose outputs are read, and the same as layers that have run.
TAKEN, RUN = [0, 1, 2], [1, 2, 3]
DRAFTED = [2 * token for token in range(24)]
SIZES = dict(intermediate_size=40, num_attention_heads=4, num_key_value_heads=2, head_dim=8)


def vocabulary():
    t2d = torch.zeros(VOCAB, dtype=torch.bool)
    t2d[DRAFTED] = True
    return {"t2d": t2d, "d2t": torch.tensor(DRAFTED) - torch.arange(len(DRAFTED))}


def randomised(model, seed, prefix=""):
    """Weights that matter, such as bf16 holds: fresh ones are too small to tell one from another, and some are zeros and ones."""
    torch.manual_seed(seed)
    for name, weight in model.named_parameters():
        frozen = name.startswith(("embed_tokens", "verifier_")) or (name == "lm_head.weight" and weight.shape[0] == VOCAB)
        if name.startswith(prefix) and not frozen:
            norm = (weight.dim() == 1 and name.endswith("weight")) or name.endswith("base_kernel")
            weight.data = (torch.randn_like(weight) * 0.3 + float(norm)).bfloat16().to(weight.dtype)
    return model


def folder_for(name):
    folder = HERE / "published" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(exist_ok=True)
    return folder


def finish(folder):
    # In the place of a library's own source, which nothing may run.
    if (folder / "config.py").exists():
        (folder / "config.py").write_text("raise SystemExit('this file was run')\n")
    for path in folder.iterdir():
        path.chmod(0o644)


def inputs(length=LENGTH):
    torch.manual_seed(5)
    return torch.randint(1, VOCAB - 1, (length + 1,)), torch.randn(length, len(TAKEN) * WIDTH)


def of_target():
    tensors = load_file(HERE / TARGET / "model.safetensors")
    return tensors["model.embed_tokens.weight"].float(), tensors["lm_head.weight"].float()


def save(name, tensors):
    path = HERE / "published" / f"{name}.safetensors"
    save_file({key: tensor.detach().contiguous() for key, tensor in tensors.items()}, path)
    path.chmod(0o644)


def save_steps(name, logits):
    """Logits of step j behind each prefix, `logits.j`. Step j is given the text's tokens, and token 0 behind them."""
    tokens, features = inputs()
    save(name, {"input_ids": tokens, "features": features, **{f"logits.{step}": rows for step, rows in enumerate(logits)}})


def following(tokens):
    """The tokens of each block, from the one that opens it on; token 0 behind the text."""
    padded = torch.cat([tokens, torch.zeros(BLOCK, dtype=torch.long)])
    return torch.stack([padded[known : known + BLOCK] for known in range(1, LENGTH + 1)])


# --- the speculators library ---


def layer(arch, full, layers):
    from speculators.train.cli import create_transformer_layer_config

    return create_transformer_layer_config(
        verifier_name_or_path=TARGET,
        num_layers=layers,
        draft_arch=arch,
        hidden_act=None,
        sliding_window=WINDOW,
        full_attention_indices=full,
    )


def trained(kind, arch="llama", seed=0, full=None, layers=1, maps=None, **more):
    """A drafter as its trainer makes it, with its defaults but for `more`. Unless `full` names layers they all slide."""
    from speculators.model import SpeculatorModel

    settings = dict(
        verifier_name_or_path=TARGET,
        target_layer_ids=RUN,
        draft_attn_impl="eager",
        draft_vocab_size=VOCAB,
        norm_before_residual=True,
        norm_before_fc=False,
        fc_norm=True,
        norm_output=True,
        embed_requires_grad=False,
        ttt_steps=STEPS,
        block_size=BLOCK,
        mask_token_id=MASK,
    )
    decoder = layer(arch, full or [], layers)
    model = SpeculatorModel.registry[kind].from_training_args(decoder, **(maps or {}), **{**settings, **more})
    return randomised(model, seed)


def written(name, model):
    folder = folder_for(f"speculators-{name}")
    model.bfloat16().save_pretrained(folder)
    finish(folder)
    return folder


def read(folder):
    """What the library makes of a folder, in f32, with the target's own embedding."""
    from speculators.config import SpeculatorModelConfig
    from speculators.model import SpeculatorModel

    config = SpeculatorModelConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    model = SpeculatorModel.from_pretrained(folder, config=config, dtype=torch.float32).eval()
    model.embed_tokens.weight.data, _ = of_target()
    return model


def with_steps(name, model):
    model = read(written(name, model))
    tokens, features = inputs()
    logits = []
    model.lm_head.register_forward_hook(lambda module, given, out: logits.append(out.detach()[0]))
    with torch.no_grad():
        model(features[None], tokens[None, 1:], torch.zeros(1, LENGTH, dtype=torch.long), ttt_steps=STEPS)
    save_steps(f"speculators-{name}", logits)


def blocks(model):
    """Of a block behind each prefix: the hidden states of its places, and the logits that the target's head makes of them."""
    # The library takes no anchors from the last places, and the first has no prefix.
    length = LENGTH + BLOCK + 1
    tokens, features = inputs(length)
    loss_mask = torch.ones(1, length)
    loss_mask[:, 0] = 0
    last, documents = torch.zeros(1, length, WIDTH), torch.zeros(1, length, dtype=torch.long)
    with torch.no_grad():
        hidden, logits, _, _, places = model._backbone_forward(
            features[None], tokens[None, :length], loss_mask, last, documents, max_anchors=LENGTH
        )
    assert places.view(LENGTH, BLOCK)[:, 0].tolist() == list(range(1, LENGTH + 1)), places
    tokens = tokens[: LENGTH + 1]
    given = {"input_ids": tokens, "features": features[:LENGTH]}
    return given, hidden[0].view(LENGTH, BLOCK, -1), logits[0].view(LENGTH, BLOCK, -1), following(tokens)


def with_blocks(name, model):
    """Logits of the masks of a block behind each prefix."""
    given, _, logits, _ = blocks(read(written(name, model)))
    save(f"speculators-{name}", {**given, "logits": logits[:, 1:]})


def with_candidates(name, model):
    """The same of the selector's candidates alone: all other tokens are at minus infinity."""
    model = read(written(name, model))
    given, hidden, unary, before = blocks(model)
    selector = model.candidate_selector
    unary, hidden = unary[:, 1:], hidden[:, 1:]
    candidates = unary.topk(selector.top_k, dim=-1).indices

    def flat(rows):
        return rows.reshape(1, -1, *rows.shape[2:])

    with torch.no_grad():
        scores = selector.score_candidates(flat(unary), flat(hidden), flat(before[:, :-1]), flat(candidates))
    nothing = torch.full_like(unary, float("-inf"))
    save(f"speculators-{name}", {**given, "logits": nothing.scatter(-1, candidates, scores.view(candidates.shape))})


def with_bias(name, model):
    """Logits of every place of a block, the first included, with the bias by the token before."""
    model = read(written(name, model))
    given, hidden, logits, before = blocks(model)
    with torch.no_grad():
        logits = logits + model.markov_head.block_bias(prev_token_ids=before, hidden_states=hidden)
    save(f"speculators-{name}", {**given, "logits": logits})


def with_refiner(name, model):
    """Logits of the masks of a block behind each prefix, with the bias by all tokens before. As in decoding, the anchor stands in
    for the token before it."""
    model = read(written(name, model))
    given, hidden, logits, before = blocks(model)
    behind = torch.cat([before[:, :1], before[:, :-1]], dim=1)
    # No folder has this buffer, and the library does not fill it again behind loading one.
    model.refiner_head.causal_tril = torch.tril(torch.ones(BLOCK, BLOCK))
    with torch.no_grad():
        logits = logits + model.refiner_head.block_bias(behind, hidden_states=hidden)
    save(f"speculators-{name}", {**given, "logits": logits[:, 1:]})


def with_masks(name, model):
    """Logits of masks behind each prefix, `logits.j` those of `j` masks; not a number where the library has drawn none."""
    from speculators.config import SpeculatorModelConfig
    from speculators.model import SpeculatorModel
    from speculators.models.peagle import core

    folder = written(name, model)
    config = SpeculatorModelConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    model = SpeculatorModel.from_pretrained(folder, config=config, dtype=torch.float32).eval()
    tokens, features = inputs()
    rows = torch.full((STEPS, LENGTH, VOCAB), float("nan"))

    def keep(logits, anchor_pos, depth, **_):
        # The first position opens rows of masks that stand behind nothing.
        known = anchor_pos >= 0
        rows[depth[known], anchor_pos[known]] = logits[0, known].detach()
        return torch.tensor(0.0), {}

    core.compute_metrics = keep
    torch.manual_seed(0)
    with torch.no_grad():
        model(
            features[None],
            tokens[None, 1:],
            torch.zeros(1, LENGTH, dtype=torch.long),
            verifier_last_hidden_states=torch.zeros(1, LENGTH, WIDTH),
            num_depths=STEPS,
            down_sample_ratio=1.0,
            down_sample_ratio_min=1.0,
        )
    save_steps(f"speculators-{name}", list(rows))


def mtp():
    # Its weights come from targets that have such a layer, which none of the tests' has.
    from speculators.config import SpeculatorsConfig, VerifierConfig
    from speculators.model import SpeculatorModel
    from speculators.models.mtp.config import MTPSpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig

    speculation = SpeculatorsConfig(
        algorithm="mtp",
        proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=STEPS)],
        default_proposal_method="greedy",
        verifier=VerifierConfig.from_pretrained(TARGET),
    )
    config = MTPSpeculatorConfig(transformer_layer_config=layer("qwen3", [0], 1), speculators_config=speculation)
    return randomised(SpeculatorModel.registry["mtp"](config=config), 19)


def speculators():
    with_steps("eagle3", trained("eagle3", seed=11))
    plain = dict(norm_before_residual=False, fc_norm=False, norm_output=False)
    with_steps(
        "eagle3-full",
        trained("eagle3", seed=12, full=[0], maps=vocabulary(), draft_vocab_size=len(DRAFTED), **plain),
    )
    # A norm of all captured layers together, which the trainer has unless it is told otherwise.
    with_steps("eagle3-before-fc", trained("eagle3", seed=22, full=[0], fc_norm=False, norm_before_fc=True))
    with_steps("eagle3-qwen3", trained("eagle3", "qwen3", seed=13, full=[0]))
    with_masks("peagle", trained("peagle", seed=14, full=[0, 1], layers=2))
    # As the trainer makes it unless it is told otherwise, but for the width of its window.
    with_masks("peagle-qwen3", trained("peagle", "qwen3", seed=23, fc_norm=False, norm_output=False))
    with_blocks("dflash", trained("dflash", "qwen3", seed=15, full=[0, 1], layers=2))
    # As the trainer writes it unless it is told otherwise.
    written("dflash-sliding", trained("dflash", "qwen3", seed=20))
    written("dflash-vocabulary", trained("dflash", "qwen3", seed=21, full=[0], maps=vocabulary(), draft_vocab_size=len(DRAFTED)))
    small = dict(selector_rank=4, selector_top_k=5, conv_group_size=4)
    with_candidates("dflash2", trained("dflash2", "qwen3", seed=16, full=[0], **small))
    with_bias("dspark", trained("dspark", "qwen3", seed=17, full=[0], markov_rank=4))
    with_refiner("xpress", trained("xpress", "qwen3", seed=18, full=[0], xpress_rank=4))
    written("mtp", mtp())


# --- SpecForge ---

OF_TARGET = ("hidden_size", "vocab_size", "max_position_embeddings", "rms_norm_eps", "rope_parameters", "bos_token_id", "eos_token_id")


def specforge_draft(name, seed, settings):
    """The drafter of a configuration such as its users write, exported from a checkpoint."""
    from specforge.export.to_hf import export_to_hf
    from specforge.modeling.auto import AutoDraftModel, AutoDraftModelConfig

    target = json.loads((HERE / TARGET / "config.json").read_text())
    settings = {**{key: target[key] for key in OF_TARGET}, **SIZES, "hidden_act": "silu", **settings}
    with tempfile.TemporaryDirectory() as work:
        work = Path(work)
        (work / "draft.json").write_text(json.dumps(settings))
        model = AutoDraftModel.from_config(AutoDraftModelConfig.from_file(work / "draft.json"))
        randomised(model, seed)
        if hasattr(model, "d2t") and len(model.d2t) < VOCAB:
            model.load_state_dict(vocabulary(), strict=False)
        tensors = {key: value for key, value in model.state_dict().items() if not key.startswith("embed_tokens")}
        torch.save({"draft_state_dict": tensors}, work / "training_state.pt")
        folder = folder_for(f"specforge-{name}")
        export_to_hf(str(work), str(work / "draft.json"), str(folder), embedding_source=TARGET)
    finish(folder)
    return model.float().eval()


def specforge_block(architecture, layers, more):
    return {
        "architectures": [architecture],
        "model_type": "qwen3",
        "num_hidden_layers": layers,
        "layer_types": ["full_attention"] * layers,
        "block_size": BLOCK,
        "num_target_layers": 4,
        "dflash_config": {"mask_token_id": MASK, "target_layer_ids": TAKEN, **more},
    }


def specforge():
    eagle3 = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "draft_vocab_size": len(DRAFTED),
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": TAKEN, "use_aux_hidden_state": True},
        "pad_token_id": 0,
    }
    model = specforge_draft("eagle3", 31, eagle3)
    tokens, features = inputs()
    embedding, head = of_target()
    places = torch.arange(LENGTH)[None]
    logits, cache, read = [], [[], []], torch.cat([tokens[1:], torch.zeros(STEPS, dtype=torch.long)])
    with torch.no_grad():
        hidden = model.project_hidden_states(features[None])
        mask = model.prepare_decoder_attention_mask(torch.ones(1, LENGTH, dtype=torch.bool), hidden, 1, LENGTH, 0)
        for step in range(STEPS):
            embedded = embedding[read[step : step + LENGTH]][None]
            hidden = model.backbone(embedded, hidden, cache, mask, places)
            logits.append(model.compute_logits(hidden)[0])
    save_steps("specforge-eagle3", logits)

    def seen(known):
        """What a block behind `known` positions sees in each type of layer, by the masks of its training."""
        from specforge.algorithms.common.dflash_family_model import create_dflash_sdpa_mask

        anchor, kept = torch.tensor([[known]]), torch.ones(1, 1, dtype=torch.bool)
        windows = {"full_attention": None, "sliding_attention": WINDOW}
        return {kind: create_dflash_sdpa_mask(anchor, kept, known, BLOCK, "cpu", window) for kind, window in windows.items()}

    def domino_loss(model):
        """The loss of a training step, 0.3 of it without Domino's head, on the text with a block behind every token but the last."""
        from specforge.algorithms.common.dflash_family_model import OnlineDominoModel

        settings = dict(block_size=BLOCK, attention_backend="sdpa", num_anchors=64, loss_decay_gamma=3.0, shift_label=True)
        table = torch.nn.Embedding.from_pretrained(embedding)
        last = torch.nn.Linear(WIDTH, VOCAB, bias=False)
        last.weight.data = head
        trained = OnlineDominoModel(model, last, table, MASK, **settings)
        # What stands behind the last token of the text is never read.
        read = torch.cat([features, torch.zeros(1, features.shape[1])])[None]
        loss, _, _ = trained(tokens[None], read, torch.ones(1, len(tokens)), lambda_base=0.3)
        return loss[None]

    def each(model, first, masks=lambda known: None):
        """The last states of a block behind each prefix, one prefix at a time."""
        before = following(tokens)
        masked = torch.full_like(before, MASK)
        masked[:, 0] = before[:, 0]
        with torch.no_grad():
            rows = [
                model(
                    position_ids=torch.arange(known + BLOCK)[None],
                    noise_embedding=embedding[masked[known - 1]][None],
                    target_hidden=features[None, :known],
                    attention_mask=masks(known),
                )
                for known in range(1, LENGTH + 1)
            ]
        return torch.cat(rows)[:, first:], before

    given = {"input_ids": tokens, "features": features}
    model = specforge_draft("dflash", 32, specforge_block("DFlashDraftModel", 2, {}))
    hidden, _ = each(model, 1)
    save("specforge-dflash", {**given, "logits": hidden @ head.T})
    # As in z-lab's drafters for Qwen3.6: all layers slide but the last.
    mixed = {"layer_types": ["sliding_attention"] * 2 + ["full_attention"], "sliding_window": WINDOW, "use_sliding_window": True}
    model = specforge_draft("dflash-mixed", 36, {**specforge_block("DFlashDraftModel", 3, {}), **mixed})
    hidden, _ = each(model, 1, seen)
    save("specforge-dflash-mixed", {**given, "logits": hidden @ head.T})
    heads = dict(markov_rank=4, markov_head_type="gated", enable_confidence_head=True, confidence_head_with_markov=True)
    model = specforge_draft("dspark", 33, specforge_block("DSparkDraftModel", 1, heads))
    hidden, before = each(model, 0)
    with torch.no_grad():
        logits = model.apply_logits_head(hidden @ head.T, prev_token_ids=before, hidden_states=hidden)
    save("specforge-dspark", {**given, "logits": logits})
    for name, seed, more in [("domino", 34, {}), ("domino-served", 37, dict(pure_draft_prefix_len=1))]:
        more = dict(emb_dim=8, gru_hidden_dim=6, shift_label=True, **more)
        model = specforge_draft(name, seed, specforge_block("DominoDraftModel", 1, more))
        hidden, before = each(model, 0)
        with torch.no_grad():
            logits = model.apply_logits_head(
                (hidden @ head.T)[None], prev_token_embeddings=embedding[before][None], hidden_states=hidden[None]
            )[0]
        save(f"specforge-{name}", {**given, "logits": logits, "loss": domino_loss(model)})
    specforge_draft("peagle", 35, {**eagle3, "architectures": ["PEagleDraftModel"], "mask_token_id": MASK})


# --- ModelOpt ---


def converted(kind, config):
    import modelopt.torch.speculative as mtsp
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32, attn_implementation="eager")
    return mtsp.convert(model, [(kind, config)]).eval()


def modelopt_export(name, model):
    folder = folder_for(f"modelopt-{name}")
    model.get_exporter().export(folder, dtype=torch.bfloat16)
    finish(folder)


def modelopt():
    from modelopt.torch.speculative.config import EAGLE3_DEFAULT_CFG

    tokens, features = inputs()
    embedding, head = of_target()
    causal = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)[None, None]
    settings = deepcopy(EAGLE3_DEFAULT_CFG["config"])
    settings["eagle_architecture_config"].update(
        SIZES,
        draft_vocab_size=len(DRAFTED),
        eagle_aux_hidden_state_layer_ids=TAKEN,
        rope_scaling=json.loads((HERE / TARGET / "config.json").read_text())["rope_parameters"],
    )
    stretched = deepcopy(EAGLE3_DEFAULT_CFG["config"])
    settings["eagle_export_rope_scaling"] = {}
    model = randomised(converted("eagle", settings), 41, "eagle_module.")
    module = model.eagle_module
    module.load_state_dict({"d2t": vocabulary()["d2t"]}, strict=False)
    # The library's own forward pass also sends the hidden states through the norm of the embeddings, which no engine does; a
    # norm after it undoes that where the weights are all alike.
    module.layers[0].input_layernorm.weight.data.fill_(0.75)
    modelopt_export("eagle3", model)
    module._maybe_init_rope()
    with torch.no_grad():
        first, _, _ = module(module.fc(features[None]), embedding[tokens[1:]][None], causal, torch.arange(LENGTH)[None])
        # The library runs further steps only together with the target.
        save_steps("modelopt-eagle3", [module.lm_head(first)[0]])

    # As it is exported unless it is told otherwise: trained with plain positions, and stretched for the engine.
    stretched["eagle_architecture_config"].update(SIZES, draft_vocab_size=VOCAB, eagle_aux_hidden_state_layer_ids=TAKEN)
    modelopt_export("eagle3-yarn", randomised(converted("eagle", stretched), 42, "eagle_module."))

    def block(seed, layers, more, **settings):
        # The trainer captures a layer for each of the drafter's.
        architecture = {
            **SIZES,
            "num_hidden_layers": layers,
            "target_layer_ids": TAKEN[:layers],
            "_attn_implementation": "eager",
            # The target's scaling would be trained with, and left out of the folder.
            "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
            **more,
        }
        settings = dict(dflash_block_size=BLOCK, dflash_mask_token_id=MASK, dflash_architecture_config=architecture, **settings)
        return randomised(converted("dflash", settings), seed, "dflash_module.")

    def each(model, layers, first):
        read = features[:, : layers * WIDTH]
        before = following(tokens)
        masked = torch.full_like(before, MASK)
        masked[:, 0] = before[:, 0]
        with torch.no_grad():
            rows = [
                model.dflash_module(embedding[masked[known - 1]][None], read[None, :known], torch.arange(known + BLOCK)[None])
                for known in range(1, LENGTH + 1)
            ]
        given = {"input_ids": tokens, "features": read}
        return given, torch.cat(rows)[:, first:], before

    model = block(43, 2, {})
    modelopt_export("dflash", model)
    given, hidden, _ = each(model, 2, 1)
    save("modelopt-dflash", {**given, "logits": hidden @ head.T})
    model = block(44, 1, dict(projector_type="dspark", markov_rank=4, markov_head_type="rnn", use_confidence_head=True))
    modelopt_export("dspark", model)
    given, hidden, before = each(model, 1, 0)
    with torch.no_grad():
        bias = model.dflash_module.compute_markov_bias(before[None], hidden[None])[0]
    save("modelopt-dspark", {**given, "logits": hidden @ head.T + bias})
    modelopt_export("domino", block(45, 1, dict(projector_type="domino", emb_dim=8, gru_hidden_dim=8)))
    model = block(46, 1, {}, dflash_attention_sink=True)
    modelopt_export("dflash-sink", model)
    given, hidden, _ = each(model, 1, 1)
    save("modelopt-dflash-sink", {**given, "logits": hidden @ head.T})


if __name__ == "__main__":
    torch.set_num_threads(1)
    for trainer in sys.argv[1:] or ("speculators", "specforge", "modelopt"):
        globals()[trainer]()
    for path in sorted((HERE / "published").glob("*")):
        print(path.name, sum(file.stat().st_size for file in [path, *path.rglob("*")] if file.is_file()))
