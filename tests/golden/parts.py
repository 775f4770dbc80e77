"""What a drafter shares of targets of many architectures: embedding, final norm, head, and the logits they come to.

Writes `parts/NAME/{config.json, model.safetensors.index.json, model-*.safetensors, golden.safetensors}`; see README.md.
"""

import json
import shutil
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

HERE = Path(__file__).resolve().parent / "parts"
VOCAB, SEQ = 61, 7

TEXT = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "pad_token_id": None,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
LINEAR = {
    "layer_types": ["linear_attention", "full_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
}
# Attention through latents, where `head_dim` is no setting.
LATENT = {
    **{key: value for key, value in TEXT.items() if key != "head_dim"},
    "num_key_value_heads": 4,
    "kv_lora_rank": 8,
    "q_lora_rank": 8,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 4,
    "v_head_dim": 8,
    "tie_word_embeddings": False,
}
# name -> (class of the model, its settings)
TARGETS = {
    "qwen3_moe": ("Qwen3MoeForCausalLM", {**TEXT, **EXPERTS, "tie_word_embeddings": False}),
    "qwen3_next": (
        "Qwen3NextForCausalLM",
        {**TEXT, **EXPERTS, **LINEAR, "shared_expert_intermediate_size": 8, "tie_word_embeddings": False},
    ),
    "qwen3_5": ("Qwen3_5ForCausalLM", {**TEXT, **LINEAR, "tie_word_embeddings": True}),
    "gpt_oss": (
        "GptOssForCausalLM",
        {**TEXT, "num_local_experts": 4, "num_experts_per_tok": 2, "tie_word_embeddings": False},
    ),
    "gemma3": ("Gemma3ForCausalLM", {**TEXT, "query_pre_attn_scalar": 8}),
    "gemma4": ("Gemma4ForCausalLM", {**TEXT, "final_logit_softcapping": 3.0, "vocab_size_per_layer_input": VOCAB, "hidden_size_per_layer_input": 4}),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM",
        {
            **LATENT,
            "n_routed_experts": 4,
            "n_group": 2,
            "topk_group": 1,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 8,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
        },
    ),
    "glm4_moe": (
        "Glm4MoeForCausalLM",
        {
            **TEXT,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 8,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "tie_word_embeddings": False,
        },
    ),
    "llama4": (
        "Llama4ForCausalLM",
        {**TEXT, "intermediate_size_mlp": 24, "num_local_experts": 2, "tie_word_embeddings": False},
    ),
    "ministral3": ("Ministral3ForCausalLM", {**TEXT, "tie_word_embeddings": False}),
    "phi3": ("Phi3ForCausalLM", {**TEXT, "tie_word_embeddings": False}),
    "granite": (
        "GraniteForCausalLM",
        {
            **TEXT,
            "logits_scaling": 4.0,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.5,
            "attention_multiplier": 0.25,
            "tie_word_embeddings": True,
        },
    ),
    "minimax_m2": (
        "MiniMaxM2ForCausalLM",
        {**TEXT, "num_local_experts": 4, "num_experts_per_tok": 2, "tie_word_embeddings": False},
    ),
    "hyperclovax": ("HyperCLOVAXForCausalLM", {**TEXT, "logits_scaling": 4.0, "tie_word_embeddings": False}),
    "vaultgemma": ("VaultGemmaForCausalLM", {**TEXT, "query_pre_attn_scalar": 8, "final_logit_softcapping": 3.0}),
    "minicpm3": ("MiniCPM3ForCausalLM", {**LATENT, "dim_model_base": 4}),
    "inkling": (
        "InklingForCausalLM",
        {
            **TEXT,
            **EXPERTS,
            "unpadded_vocab_size": VOCAB - 4,
            "logits_mup_width_multiplier": 3.0,
            "tie_word_embeddings": False,
        },
    ),
    "muse_glimmer": (
        "MuseGlimmerForConditionalGeneration",
        {
            "text_config": {**TEXT, "final_logit_softcapping": 3.0, "tie_word_embeddings": False},
            "vision_config": {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2},
            "out_hidden_size": 16,
            "projector_hidden_size": 16,
        },
    ),
    "minimax_m3": (
        "MiniMaxM3VLForCausalLM",
        {
            **TEXT,
            "dense_intermediate_size": 24,
            "shared_intermediate_size": 24,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "tie_word_embeddings": False,
        },
    ),
}


def final_norm(model):
    """The norm before the head: the one that stands beside the embedding."""
    for module in model.modules():
        if hasattr(module, "embed_tokens") and hasattr(module, "norm"):
            return module.norm
    raise ValueError("no norm beside an embedding")


def write(name, model_class, settings):
    model_class = getattr(transformers, model_class)
    torch.manual_seed(7)
    model = model_class(model_class.config_class(**settings)).eval().float()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3)
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    held = {}
    final_norm(model).register_forward_pre_hook(lambda _, inputs: held.update(state=inputs[0]))
    tokens = torch.randint(3, VOCAB, (1, SEQ), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        logits = model(tokens).logits
    rows = model.get_input_embeddings().weight[tokens[0]]

    # Of the weights the three are kept in one shard; the other one is named and not there.
    tensors = load_file(folder / "model.safetensors")
    parts = {key: value for key, value in tensors.items() if key.endswith(("embed_tokens.weight", "model.norm.weight", "lm_head.weight"))}
    (folder / "model.safetensors").unlink()
    (folder / "generation_config.json").unlink(missing_ok=True)
    save_file(parts, folder / "model-00001-of-00002.safetensors", metadata={"format": "pt"})
    places = {key: f"model-0000{1 if key in parts else 2}-of-00002.safetensors" for key in sorted(tensors)}
    index = {"metadata": {}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")
    golden = {"tokens": tokens[0], "state": held["state"][0], "logits": logits[0], "embedded": rows}
    save_file({key: value.detach().contiguous() for key, value in golden.items()}, folder / "golden.safetensors")
    print(name, sorted(parts), f"largest logit {logits.abs().max():.2f}")


if __name__ == "__main__":
    for name, (model_class, settings) in TARGETS.items():
        write(name, model_class, settings)
