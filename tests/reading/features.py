"""Stored features: python3 features.py runs/NAME/features (with numpy and pyarrow)"""

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa

folder = Path(sys.argv[1])
index = json.loads((folder / "features.json").read_text(encoding="utf-8"))
if index["version"] != 1 or not index["complete"]:
    sys.exit("expected whole features of version 1")
layers, width = index["header"]["captured_layers"], index["header"]["d_model"]
in_eight_bits = index["header"].get("dtype") == "int8"


def floats(bits):
    """The bits of bf16 are the upper half of those of a 32-bit float."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def states(row, name, seq):
    """The hidden states of a row, a line for each of its `seq` tokens."""
    values = row[name][0].values.to_numpy().reshape(seq, -1)
    if not in_eight_bits:
        return floats(values)
    scales = floats(row[f"{name}_scales"][0].values.to_numpy()).reshape(seq, -1)
    powers = row[f"{name}_exponents"][0].values.to_numpy()
    return np.ldexp(values * np.repeat(scales, 64, axis=1)[:, : values.shape[1]], powers)


squares = np.zeros(len(layers) + 1)
tokens = 0
for shard in index["shards"]:
    with pa.memory_map(str(folder / shard["file"])) as file:
        reader = pa.ipc.open_file(file)
        for row in map(reader.get_batch, range(reader.num_record_batches)):
            seq = len(row["tokens"][0])
            both = np.concatenate([states(row, "captured", seq), states(row, "last", seq)], axis=1)
            squares += np.square(both.reshape(seq, -1, width), dtype=np.float64).sum(axis=(0, 2))
            tokens += seq
print(sum(shard["samples"] for shard in index["shards"]), "samples,", tokens, "tokens")
for name, total in zip([f"layer {layer}" for layer in layers] + ["last"], squares):
    print(f"{name}: root mean square {np.sqrt(total / tokens / width):.4f}")
