"""Tiny random targets of every supported family, and what transformers computes with them.

Writes `targets/NAME/{config.json, model*.safetensors, golden.safetensors}`; see README.md.
"""

import shutil
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file

HERE = Path(__file__).resolve().parent
VOCAB, BATCH, SEQ = 61, 2, 12

SHARED = {
    "vocab_size": VOCAB,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
    "attn_implementation": "eager",
}

EXPERTS = {
    "hidden_size": 20,
    "head_dim": 6,
    "intermediate_size": 34,
    "moe_intermediate_size": 14,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
}

YARN = {
    "rope_type": "yarn",
    "rope_theta": 100.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}

STRETCHED = {
    "head_dim": 8,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "max_position_embeddings": 256,
}

# name -> (config class, its own settings, stored dtype, shard size)
TARGETS = {
    "llama": (
        transformers.LlamaConfig,
        {
            "num_hidden_layers": 4,
            "hidden_size": 32,
            "head_dim": 8,
            "max_position_embeddings": 256,
            "tie_word_embeddings": False,
            # With theta 100 and head_dim 8 the wavelengths 6.3, 19.9, 62.8, 198.7 meet all three
            # branches: kept (< 32 / 4), interpolated smoothly, divided by the factor (> 32 / 1).
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 100.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
        torch.float32,
        None,
    ),
    "llama_linear": (
        transformers.LlamaConfig,
        {
            "attention_bias": False,
            "mlp_bias": False,
            "rms_norm_eps": 1e-5,
            "tie_word_embeddings": False,
            "rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
        },
        torch.float32,
        None,
    ),
    "mistral": (
        transformers.MistralConfig,
        {
            "sliding_window": 5,
            "head_dim": 6,
            "tie_word_embeddings": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        },
        torch.float16,
        None,
    ),
    "qwen2": (
        transformers.Qwen2Config,
        {
            "tie_word_embeddings": True,
            "use_sliding_window": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        },
        torch.float32,
        "24KB",
    ),
    "qwen3": (
        transformers.Qwen3Config,
        {
            "head_dim": 10,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
        },
        torch.float32,
        None,
    ),
    "qwen3_yarn": (
        transformers.Qwen3Config,
        {
            **STRETCHED,
            # The ramp runs over frequency indices 0..3, so two of four are true mixtures.
            "rope_parameters": YARN,
        },
        torch.bfloat16,
        None,
    ),
    "qwen3_moe": (
        transformers.Qwen3MoeConfig,
        {
            **EXPERTS,
            "norm_topk_prob": True,
            "mlp_only_layers": [1],
            "tie_word_embeddings": False,
        },
        torch.float32,
        "48KB",
    ),
    "qwen3_moe_step": (
        transformers.Qwen3MoeConfig,
        {
            **EXPERTS,
            "norm_topk_prob": False,
            "decoder_sparse_step": 2,
            "tie_word_embeddings": True,
        },
        torch.bfloat16,
        None,
    ),
    "qwen3_yarn_mscale": (
        transformers.Qwen3Config,
        {
            **STRETCHED,
            # Corrections by DeepSeek's names, of which cosines and sines get the quotient (1.075, where the factor alone makes
            # 1.139), and both bounds of the ramp at one number of rotations, as Kimi K2 has them.
            "rope_parameters": {
                **YARN,
                "beta_fast": 1.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 0.425,
            },
        },
        torch.bfloat16,
        None,
    ),
}


@torch.no_grad()
def randomise(model, generator):
    """Gives every parameter a value that a wrong or missing load would change visibly."""
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if "norm" in name:
            parameter.copy_(1.0 + 0.3 * noise)
        elif parameter.dim() == 1:
            parameter.copy_(0.3 * noise)
        elif "embed_tokens" in name:
            parameter.copy_(noise)
        else:
            # Scores need a spread of a few units, or attention is close to a plain mean.
            gain = 1.6 if "q_proj" in name or "k_proj" in name else 1.0
            parameter.copy_(gain * noise / parameter.shape[-1] ** 0.5)


@torch.no_grad()
def golden(model, input_ids):
    """Runs the model; `hidden.l` is what decoder layer l returns, before the final norm."""
    layers = model.model.layers
    hidden = [None] * len(layers)

    def keep(index):
        def hook(_module, _inputs, output):
            hidden[index] = (output[0] if isinstance(output, tuple) else output).clone()

        return hook

    handles = [layer.register_forward_hook(keep(index)) for index, layer in enumerate(layers)]
    output = model(
        input_ids=input_ids,
        output_hidden_states=True,
        output_attentions=True,
        use_cache=False,
    )
    for handle in handles:
        handle.remove()
    states = output.hidden_states
    # What this format names must agree with transformers' own list wherever the two overlap.
    for index in range(len(layers) - 1):
        assert torch.equal(states[index + 1], hidden[index])
    assert torch.equal(states[-1], model.model.norm(hidden[-1]))
    assert torch.equal(output.logits, model.lm_head(states[-1]))
    return hidden, states[-1], output.logits, output.attentions


def write_golden(folder, input_ids, hidden, last, logits):
    tensors = {"input_ids": input_ids, "last": last, "logits": logits}
    tensors |= {f"hidden.{index}": state for index, state in enumerate(hidden)}
    tensors = {key: value.contiguous() for key, value in tensors.items()}
    save_file(tensors, folder / "golden.safetensors")


def main():
    torch.set_num_threads(1)
    # A seed is a place in this table, so new targets go to its end.
    for seed, (name, (config_class, settings, dtype, shard)) in enumerate(TARGETS.items()):
        folder = HERE / "targets" / name
        shutil.rmtree(folder, ignore_errors=True)
        generator = torch.Generator().manual_seed(100 + seed)
        config = config_class(**{**SHARED, **settings})
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.float32, attn_implementation="eager"
        )
        randomise(model, generator)
        model = model.to(dtype)
        extra = {"max_shard_size": shard} if shard else {}
        model.save_pretrained(folder, **extra)
        # Nothing here generates text, so the file would only be read by accident.
        (folder / "generation_config.json").unlink(missing_ok=True)

        # The golden values come from the stored (rounded) weights, computed in f32.
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=torch.float32,
            attn_implementation="eager",
            # The grouped products want widths that are multiples of 16 bytes.
            experts_implementation="eager",
        ).eval()
        input_ids = torch.randint(0, VOCAB, (BATCH, SEQ), generator=generator)
        hidden, last, logits, attentions = golden(model, input_ids)
        write_golden(folder, input_ids, hidden, last, logits)

        # Largest attention weight of the last row: 1 / visible keys would mean a plain mean.
        peak = torch.stack([weights[:, :, -1].max(-1).values.mean() for weights in attentions])
        visible = (attentions[0][0, 0, -1] > 0).sum().item()
        size = sum(file.stat().st_size for file in folder.iterdir())
        print(
            f"{name}: {size} bytes, keys seen by the last query {visible},"
            f" largest weight per layer {[round(value, 2) for value in peak.tolist()]},"
            f" logits std {logits.std():.2f}"
        )


if __name__ == "__main__":
    main()
