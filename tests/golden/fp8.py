"""Targets whose matrices are in FP8 (E4M3), in the layouts that checkpoints have, and what transformers computes with them.

Writes `targets/NAME/{config.json, model*.safetensors, golden.safetensors}`; see README.md.
"""

import json
import shutil
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from targets import BATCH, EXPERTS, HERE, SEQ, SHARED, VOCAB, golden, randomise, write_golden

LARGEST = torch.finfo(torch.float8_e4m3fn).max
PLAIN = {"rope_type": "default", "rope_theta": 1000.0}
BLOCK = [16, 9]

# name -> (config class, its own settings, what config.json says of the quantisation, layout)
TARGETS = {
    "qwen3_fp8": (
        transformers.Qwen3Config,
        {"head_dim": 10, "tie_word_embeddings": False, "rope_parameters": PLAIN},
        {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": BLOCK},
        "blocks",
    ),
    "qwen3_moe_fp8": (
        transformers.Qwen3MoeConfig,
        {**EXPERTS, "norm_topk_prob": True, "tie_word_embeddings": False},
        {
            "quant_method": "compressed-tensors",
            "format": "float-quantized",
            "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "strategy": "channel"}}},
        },
        "rows",
    ),
    "llama_fp8": (
        transformers.LlamaConfig,
        {"head_dim": 6, "tie_word_embeddings": True, "rope_parameters": PLAIN},
        {"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
        "whole",
    ),
}


def quantised(weight, layout):
    """The elements in eight bits and the scales, for blocks with a last row and column that are not whole."""
    rows, columns = weight.shape
    high, wide = {"blocks": BLOCK, "rows": [1, columns], "whole": [rows, columns]}[layout]
    down, across = -(-rows // high), -(-columns // wide)
    scales = torch.empty(down, across)
    for i in range(down):
        for j in range(across):
            scales[i, j] = weight[i * high : (i + 1) * high, j * wide : (j + 1) * wide].abs().max() / LARGEST
    scales = scales.to(torch.float32 if layout == "whole" else torch.bfloat16)
    spread = scales.float().repeat_interleave(high, 0)[:rows].repeat_interleave(wide, 1)[:, :columns]
    elements = (weight / spread).clamp(-LARGEST, LARGEST).to(torch.float8_e4m3fn)
    return elements, scales, (elements.float() * spread).bfloat16()


def stored(tensors, layout):
    """The tensors of the checkpoint, and those that it stands for."""
    inside, meant = {}, {}
    for name, tensor in tensors.items():
        meant[name] = tensor.bfloat16()
        if not name.endswith("_proj.weight"):
            inside[name] = meant[name]
            continue
        inside[name], scales, meant[name] = quantised(tensor.float(), layout)
        module = name.removesuffix(".weight")
        inside[f"{name}_scale_inv" if layout == "blocks" else f"{name}_scale"] = scales.squeeze() if layout == "whole" else scales
        if layout == "whole":
            inside[f"{module}.input_scale"] = torch.tensor(0.02)
        if layout == "whole" and module.endswith(("k_proj", "v_proj")):
            inside[f"{module}.{module[-6]}_scale"] = torch.tensor(0.05)
    return inside, meant


def write(folder, inside, layout):
    if layout != "blocks":
        save_file(inside, folder / "model.safetensors")
        return
    # Scales in another shard than their matrices.
    shards = {"model-1.safetensors": {}, "model-2.safetensors": {}}
    for name, tensor in inside.items():
        shards[f"model-{2 if name.endswith('_inv') else 1}.safetensors"][name] = tensor
    for file, tensors in shards.items():
        save_file(tensors, folder / file)
    size = sum(tensor.nbytes for tensor in inside.values())
    index = {"metadata": {"total_size": size}, "weight_map": {name: file for file, tensors in shards.items() for name in tensors}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1))


def main():
    torch.set_num_threads(1)
    for seed, (name, (config_class, settings, quantisation, layout)) in enumerate(TARGETS.items()):
        folder = HERE / "targets" / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        generator = torch.Generator().manual_seed(200 + seed)
        config = config_class(**{**SHARED, **settings})
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
        randomise(model, generator)
        with tempfile.TemporaryDirectory() as work:
            work = Path(work)
            model.save_pretrained(work)
            inside, meant = stored(load_file(work / "model.safetensors"), layout)
            save_file(meant, work / "model.safetensors", metadata={"format": "pt"})
            config = json.loads((work / "config.json").read_text())
            (folder / "config.json").write_text(json.dumps({**config, "quantization_config": quantisation}, indent=1))
            write(folder, inside, layout)
            model = transformers.AutoModelForCausalLM.from_pretrained(
                work, dtype=torch.float32, attn_implementation="eager", experts_implementation="eager"
            ).eval()
        input_ids = torch.randint(0, VOCAB, (BATCH, SEQ), generator=generator)
        hidden, last, logits, _ = golden(model, input_ids)
        write_golden(folder, input_ids, hidden, last, logits)
        print(f"{name}: {sum(file.stat().st_size for file in folder.iterdir())} bytes, logits std {logits.std():.2f}")


if __name__ == "__main__":
    main()
