"""Stored features: python3 features.py runs/NAME/features (with numpy and pyarrow)"""

import json
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa

folder = Path(sys.argv[1])
index = json.loads((folder / "features.json").read_text(encoding="utf-8"))
assert index["version"] == 1 and index["complete"], "expected whole features of version 1"
layers, width = index["header"]["captured_layers"], index["header"]["d_model"]


def states(row, name, seq):
    """A line a token. The bits of bf16 are the upper half of those of a 32-bit float; in eight bits they are scales."""
    column = lambda part: row[name + part][0].values.to_numpy().reshape(1 if part == "_exponents" else seq, -1)
    floats = lambda bits: (bits.astype(np.uint32) << 16).view(np.float32)
    if index["header"].get("dtype") != "int8":
        return floats(column(""))
    scales = np.repeat(floats(column("_scales")), 64, axis=1)[:, : column("").shape[1]]
    return np.ldexp(column("") * scales, column("_exponents"))


tokens = squares = 0
for shard in index["shards"]:
    with pa.memory_map(str(folder / shard["file"])) as file:
        reader = pa.ipc.open_file(file)
        for row in map(reader.get_batch, range(reader.num_record_batches)):
            both = np.hstack([states(row, name, len(row["tokens"][0])) for name in ("captured", "last")])
            squares += np.square(both.reshape(len(both), -1, width), dtype=np.float64).sum(axis=(0, 2))
            tokens += len(both)
print(sum(shard["samples"] for shard in index["shards"]), "samples,", tokens, "tokens")
for name, total in zip([*(f"layer {layer}" for layer in layers), "last"], squares):
    print(f"{name}: root mean square {np.sqrt(total / tokens / width):.4f}")
