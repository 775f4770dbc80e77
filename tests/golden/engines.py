"""Logits that the engines' own libraries compute with drafters that this program exported.

`PROGRAM=path/of/spectrain python engines.py [KIND...]`, with speculators 0.9, transformers 5.19 and vLLM 0.32 for CPUs. Writes
the folders and the files of `engines/`: the drafters as exported, and what the libraries make of random features with them,
or vLLM of the states that it has of the target.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
# vLLM's drafter is then in this process.
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind")
import torch  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402
from transformers import AutoModel  # noqa: E402

HERE = Path(__file__).resolve().parent / "engines"
LENGTH, STEPS = 8, 3
RECIPE = """recipe = "{kind}"
name = "{kind}"

[synthetic]
conversations = 200
held_out = 24
vocab = 320
layers = 5
d_model = 32
d_ff = 48
heads = 2
kv_heads = 1
d_head = 16
steps = 120
warmup_steps = 5
learning_rate = 1e-2
batch_tokens = 512
max_length = 256

[data]
max_length = 256

{more}
[train]
steps = 80
batch_tokens = 256
learning_rate = 1e-2
warmup_steps = 2
"""
KINDS = {
    "eagle3": ("[drafter]\ndraft_vocab = 260\n", "speculators"),
    "dflash": ("[drafter]\nlayers = 2\nblock_size = 5\nmask_token = 0\nd_ff = 48\n\n[objective]\nanchors = 8\n", "hf"),
    "eagle1": ("", None),
    "medusa": (f"[drafter]\nmedusa_heads = {STEPS}\n", None),
    "mtp": None,
    "mtp_qwen": None,
    "mtp_qwen_moe": None,
    "mtp_qwen_next": None,
    "mtp_glm": None,
    "mtp_deepseek": None,
    "eagle3_latent": None,
}


def exported(work, kind, d_head=16):
    """The folder of an exported drafter, its target's tensors, and the library's folder of the same if it has another."""
    program = [os.environ["PROGRAM"]]
    more, layout = KINDS[kind]
    (work / "recipe.toml").write_text(RECIPE.format(kind=kind, more=more).replace("d_head = 16", f"d_head = {d_head}"))
    for stage in ("synthetic", "prepare", "train", "export"):
        subprocess.run([*program, "recipe", "recipe.toml", "--stage", stage, "--quiet"], cwd=work, check=True)
    if layout:
        subprocess.run([*program, "export", kind, "--to", layout, "--out", f"their-{kind}"], cwd=work, check=True)
    folder = HERE / kind
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(work / "runs" / kind / "export" / "drafter" / name, folder / name)
    return load_file(work / "runs" / kind / "synthetic" / "target" / "model.safetensors"), work / f"their-{kind}"


def owned(target):
    """What a drafter takes from its target."""
    head = target.get("lm_head.weight", target["model.embed_tokens.weight"])
    # Rounded, as they take half the room then.
    return {"embed_tokens.weight": target["model.embed_tokens.weight"].bfloat16(), "lm_head.weight": head.bfloat16()}


def inputs(captured):
    torch.manual_seed(5)
    return torch.randint(1, 320, (LENGTH + 1,)), torch.randn(LENGTH, captured * 32)


def check(found):
    wrong = {name: sorted(keys) for name, keys in found.items() if keys}
    assert not wrong, wrong


def eagle3(work):
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig

    target, folder = exported(work, "eagle3")
    os.chdir(work)  # the target is named relative to it
    config = Eagle3SpeculatorConfig.from_pretrained(folder)
    config.transformer_layer_config._attn_implementation = "eager"
    tensors = load_file(folder / "model.safetensors")
    model = Eagle3DraftModel(config)
    left = model.load_state_dict(tensors, strict=False)
    missing = [name for name in left.missing_keys if not name.startswith(("verifier_", "embed_tokens"))]
    check({"missing": missing, "unexpected": left.unexpected_keys})
    own = owned(target)
    model.embed_tokens.weight.data = own["embed_tokens.weight"].float()
    model = model.float().eval()
    tokens, features = inputs(features_of(model))
    logits = []
    model.lm_head.register_forward_hook(lambda module, given, out: logits.append(out.detach()[0].float()))
    with torch.no_grad():
        model(features[None], tokens[None, 1:], torch.zeros(1, LENGTH, dtype=torch.long), ttt_steps=STEPS)
    save("eagle3", tokens, features, own, {f"logits.{step}": rows.contiguous() for step, rows in enumerate(logits)})


def features_of(model):
    return model.fc.in_features // 32


def dflash(work):
    target, folder = exported(work, "dflash")
    model, found = AutoModel.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    check(found)
    model.eval()
    own = owned(target)
    tokens, features = inputs(len(model.config.target_layer_ids))
    logits = []
    for known in range(1, LENGTH + 1):  # features of the tokens before `known`, and the block that token opens
        block = torch.full((model.config.block_size,), model.config.mask_token_id)
        block[0] = tokens[known]
        with torch.no_grad():
            out = model(
                noise_embeds=own["embed_tokens.weight"].float()[block][None],
                context_hidden_states=features[None, :known],
                position_ids=torch.arange(known + len(block))[None],
                attention_mask=None,
                past_key_values=fresh_cache(model, known),
            )
        logits.append(out.last_hidden_state[0, 1:] @ own["lm_head.weight"].float().T)
    save("dflash", tokens, features, own, {"logits": torch.stack(logits)})


def fresh_cache(model, known):
    from transformers.cache_utils import DFlashCache

    cache = DFlashCache(config=model.config)
    cache.activate_past_recording()
    cache.set_previous_accepted_tokens(known)
    return cache


def served(work, kind, method):
    """What vLLM drafts behind some prompts, as it serves them: the tokens and states that it gives the drafter, the logits of
    each step, which continues with the likeliest token of the step before."""
    target, _ = exported(work, kind, d_head=32)
    root = work / "runs" / kind
    rounded = {name: tensor.bfloat16().float() for name, tensor in target.items()}  # as it is stored, see `owned`
    save_file(rounded, root / "synthetic" / "target" / "model.safetensors", {"format": "pt"})
    drafter = {"method": method, "model": str(root / "export" / "drafter")}
    write(kind, {**owned(target), **drafted(root / "synthetic" / "target", drafter)})


def drafted(target, drafter):
    from vllm import LLM, SamplingParams

    engine = LLM(
        model=str(target),
        speculative_config={**drafter, "num_speculative_tokens": STEPS},
        dtype="float32",
        skip_tokenizer_init=True,
        enforce_eager=True,
        enable_prefix_caching=False,
        max_model_len=64,
        max_num_seqs=1,
        gpu_memory_utilization=0.2,
    )
    drafter = engine.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner.drafter.model
    read, logits = [], []
    forward, compute = drafter.forward, drafter.compute_logits

    def note_read(*given, **named):
        read.append({name: value.clone() for name, value in named.items() if torch.is_tensor(value)} or given[0].clone())
        return forward(*given, **named)

    def note_logits(states, *more):
        out = compute(states, *more)
        logits.extend(rows[-1].clone() for rows in (out if isinstance(out, (list, tuple)) else [out]))
        return out

    drafter.forward, drafter.compute_logits = note_read, note_logits
    captured = []
    if drafter_reads_layers := hasattr(drafter, "combine_hidden_states"):
        combine = drafter.combine_hidden_states

        def note_captured(states):
            captured.append(states.clone())
            return combine(states)

        drafter.combine_hidden_states = note_captured
    torch.manual_seed(5)
    cases = {}
    for number, length in enumerate((1, 4, LENGTH)):
        prompt = torch.randint(1, 320, (length,)).tolist()
        read.clear(), logits.clear(), captured.clear()
        greedy = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True, detokenize=False)
        [output] = engine.generate([{"prompt_token_ids": prompt}], greedy, use_tqdm=False)
        first = read[0]
        if isinstance(first, dict):
            states = (captured[0] if drafter_reads_layers else first["hidden_states"])[:length]
            assert first["input_ids"][:length].tolist() == [*prompt, output.outputs[0].token_ids[0]][1:]
        else:  # the last state alone, which is all that is read
            states = torch.cat([torch.zeros(length - 1, 32), first[-1:]])
        cases[f"tokens.{number}"] = torch.tensor([*prompt, output.outputs[0].token_ids[0]])
        cases[f"features.{number}"] = states.float()
        cases[f"logits.{number}"] = torch.stack(logits[:STEPS]).float()
    return cases


def eagle1(work):
    served(work, "eagle1", "eagle")


def medusa(work):
    served(work, "medusa", "medusa")


def mtp(work):
    """A checkpoint of MiMo's class with random weights, its layer of multi-token prediction among them."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(11)
    # vLLM's attention on the CPU has no narrower heads, and Qwen2's are as wide as its model together.
    sizes = dict(hidden_size=32, intermediate_size=48, num_attention_heads=1, num_key_value_heads=1, num_hidden_layers=2)
    config = Qwen2Config(vocab_size=320, max_position_embeddings=128, tie_word_embeddings=False, **sizes)
    names = {name: tensor.shape for name, tensor in Qwen2ForCausalLM(config).state_dict().items()}
    inside = [name.removeprefix("model.layers.0.") for name in names if name.startswith("model.layers.0.")]
    of_layer = {name: names[f"model.layers.0.{name}"] for name in inside}
    of_layer |= {f"{name}_layernorm.weight": (32,) for name in ("token", "hidden", "final")}
    of_layer["input_proj.weight"] = (32, 64)
    names |= {f"model.mtp_layers.0.{name}": shape for name, shape in of_layer.items()}

    tensors = {name: drawn(name, shape) for name, shape in names.items()}
    checkpoint("mtp", "MiMoForCausalLM", config, tensors, num_nextn_predict_layers=1)


def mtp_qwen(work):
    """A checkpoint of Qwen3.5's class with random weights, its layer of multi-token prediction among them."""
    from transformers.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    torch.manual_seed(12)
    qwen("mtp_qwen", Qwen3_5ForCausalLM, Qwen3_5TextConfig(**QWEN, intermediate_size=48))


def mtp_qwen_moe(work):
    """The same with experts, each kind of whose matrices is one tensor."""
    from transformers.models.qwen3_5_moe import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig

    torch.manual_seed(13)
    qwen("mtp_qwen_moe", Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig(**QWEN, **EXPERTS))


def mtp_qwen_next(work):
    """A checkpoint of Qwen3-Next's class, in whose files each expert is by itself."""
    from transformers.models.qwen3_next import Qwen3NextConfig, Qwen3NextForCausalLM

    torch.manual_seed(14)
    qwen("mtp_qwen_next", Qwen3NextForCausalLM, Qwen3NextConfig(**QWEN, **EXPERTS, intermediate_size=48, norm_topk_prob=True))


# vLLM's linear attention on the CPU computes in bf16 alone.
QWEN = dict(
    vocab_size=320,
    max_position_embeddings=128,
    hidden_size=32,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=32,
    num_hidden_layers=2,
    layer_types=["full_attention", "full_attention"],
)
EXPERTS = dict(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=32)


def qwen(kind, model, config):
    names = {name: tensor.shape for name, tensor in model(config).state_dict().items()}
    if kind.endswith("next"):
        names = dict(one_by_one(names))
    inside = "model.layers.1."
    names |= {name.replace(inside, "mtp.layers.0."): shape for name, shape in names.items() if name.startswith(inside)}
    names |= {f"mtp.{name}.weight": (32,) for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")}
    names["mtp.fc.weight"] = (32, 64)

    # Norms too: their parameters are the weights less 1.
    tensors = {name: (0.3 * torch.randn(shape)).bfloat16() for name, shape in names.items()}
    layers = dict(mtp_num_hidden_layers=1)
    if kind.endswith("next"):
        layers["num_nextn_predict_layers"] = 1
    checkpoint(kind, model.__name__, config, tensors, **layers)


def mtp_glm(work):
    """A checkpoint of GLM-4.5's class with random weights, whose layer of multi-token prediction is its last layer."""
    from transformers.models.glm4_moe import Glm4MoeConfig, Glm4MoeForCausalLM

    torch.manual_seed(15)
    sizes = dict(num_key_value_heads=1, head_dim=32, attention_bias=True, use_qk_norm=True, **SIGMOID)
    behind_layers("mtp_glm", Glm4MoeForCausalLM, Glm4MoeConfig, dict(n_group=1, topk_group=1, **sizes))


def mtp_deepseek(work):
    """The same of DeepSeek-V3's class: latent attention with YaRN, experts in groups."""
    from transformers.models.deepseek_v3 import DeepseekV3Config, DeepseekV3ForCausalLM

    torch.manual_seed(16)
    groups = dict(n_group=3, topk_group=2)
    behind_layers("mtp_deepseek", DeepseekV3ForCausalLM, DeepseekV3Config, {**latent_sizes(), **groups, **SIGMOID})


def latent_sizes():
    yarn = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, original_max_position_embeddings=32, mscale=1.0)
    yarn |= dict(mscale_all_dim=0.7, beta_fast=32, beta_slow=1)
    # vLLM's latent attention on the CPU has states of this width alone.
    latent = dict(q_lora_rank=24, kv_lora_rank=512, qk_nope_head_dim=16, qk_rope_head_dim=64, v_head_dim=24)
    return dict(num_key_value_heads=2, rope_parameters=yarn, **latent)


def eagle3_latent(work):
    """EAGLE-3 with latent attention and random weights, in a folder as TorchSpec's are, for the target of `mtp_deepseek`."""
    from transformers.models.deepseek_v3 import DeepseekV3Config, DeepseekV3ForCausalLM

    torch.manual_seed(17)
    sizes = dict(num_hidden_layers=1, first_k_dense_replace=1, **{key: SIGMOID[key] for key in DENSE}, **latent_sizes())
    config = DeepseekV3Config(**sizes)
    own = "model.layers.0."
    layer = {name: tensor.shape for name, tensor in DeepseekV3ForCausalLM(config).state_dict().items() if name.startswith(own)}
    names = {name.replace(own, "midlayer."): shape for name, shape in layer.items()}
    for name in ("q_a_proj", "kv_a_proj_with_mqa"):  # read embeddings beside states
        rows, width = names[f"midlayer.self_attn.{name}.weight"]
        names[f"midlayer.self_attn.{name}.weight"] = (rows, 2 * width)
    names |= {"midlayer.hidden_norm.weight": (32,), "norm.weight": (32,), "fc_norm.0.weight": (32,)}
    names |= {"fc.weight": (32, 32), "lm_head.weight": (320, 32)}
    folder = HERE / "eagle3_latent"
    shutil.rmtree(folder, ignore_errors=True)
    config.architectures = ["Eagle3DeepseekV2ForCausalLM"]
    layers = dict(num_aux_hidden_states=1, eagle_aux_hidden_state_layer_ids=[1])
    layers["eagle_config"] = dict(use_aux_hidden_state=True, eagle_aux_hidden_state_layer_ids=[0])
    config.update(dict(draft_vocab_size=320, fc_norm=True, tie_word_embeddings=False, **layers))
    config.save_pretrained(folder)
    # Published ones say so. One that says "deepseek_v3", vLLM takes for a layer of multi-token prediction.
    said = json.loads((folder / "config.json").read_text()) | {"model_type": "kimi_k2"}
    (folder / "config.json").write_text(json.dumps(said, indent=2))
    save_file({name: drawn(name, shape) for name, shape in names.items()}, folder / "model.safetensors", {"format": "pt"})
    write("eagle3_latent", drafted(HERE / "mtp_deepseek", {"method": "eagle3", "model": str(folder)}))


SIGMOID = dict(
    vocab_size=320,
    max_position_embeddings=128,
    hidden_size=32,
    intermediate_size=48,
    num_attention_heads=2,
    n_routed_experts=6,
    num_experts_per_tok=2,
    moe_intermediate_size=16,
    n_shared_experts=2,
    routed_scaling_factor=1.5,
    first_k_dense_replace=1,
    norm_topk_prob=True,
)


DENSE = ("vocab_size", "max_position_embeddings", "hidden_size", "intermediate_size", "num_attention_heads")


def behind_layers(kind, model, config, sizes):
    # The last one is the layer of multi-token prediction.
    names = dict(one_by_one({name: tensor.shape for name, tensor in model(config(num_hidden_layers=3, **sizes)).state_dict().items()}))
    own = "model.layers.2."
    names |= {f"{own}{name}.weight": (32,) for name in ("enorm", "hnorm", "shared_head.norm")}
    names |= {f"{own}eh_proj.weight": (32, 64), f"{own}embed_tokens.weight": (320, 32), f"{own}shared_head.head.weight": (320, 32)}

    tensors = {name: drawn(name, shape) for name, shape in names.items()}
    # What such checkpoints hold twice.
    tensors[f"{own}embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors[f"{own}shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    said = dict(num_nextn_predict_layers=1)
    if kind == "mtp_deepseek":
        # What vLLM asks for of DeepSeek-V3, and Transformers takes for granted.
        said |= dict(topk_method="noaux_tc", scoring_func="sigmoid")
    checkpoint(kind, model.__name__, config(num_hidden_layers=2, **sizes), tensors, **said)


def drawn(name, shape):
    values = 0.3 * torch.randn(shape)
    if name.endswith("e_score_correction_bias"):
        return values
    return (1 + values if "norm" in name else values).bfloat16()


def checkpoint(kind, architecture, config, tensors, **said):
    """Writes the folder of a target with a layer of multi-token prediction, and what vLLM drafts with that."""
    folder = HERE / kind
    shutil.rmtree(folder, ignore_errors=True)
    config.architectures = [architecture]
    config.update(said)
    config.save_pretrained(folder)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    write(kind, drafted(folder, {"method": "mtp"}))


def one_by_one(names):
    """The matrices of experts as published files have them."""
    for name, shape in names.items():
        before, found, joint = name.partition(".experts.gate_up_proj")
        down = name.partition(".experts.down_proj")
        if found:
            for expert in range(shape[0]):
                for part in ("gate_proj", "up_proj"):
                    yield f"{before}.experts.{expert}.{part}.weight", (shape[1] // 2, shape[2])
        elif down[1]:
            for expert in range(shape[0]):
                yield f"{down[0]}.experts.{expert}.down_proj.weight", shape[1:]
        else:
            yield name, shape


def save(kind, tokens, features, own, logits):
    write(kind, {"input_ids": tokens, "features": features, **own, **logits})


def write(kind, tensors):
    path = HERE / f"{kind}.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path)
    path.chmod(0o644)


if __name__ == "__main__":
    torch.set_num_threads(1)
    kinds = sys.argv[1:] or list(KINDS)
    if len(kinds) == 1:
        with tempfile.TemporaryDirectory() as work:
            globals()[kinds[0]](Path(work))
    else:
        # Each by itself: a process sets vLLM up once, for targets with experts or for targets without.
        for kind in kinds:
            subprocess.run([sys.executable, __file__, kind], check=True)
    for path in sorted(HERE.rglob("*.*")):
        print(path.relative_to(HERE), path.stat().st_size)
