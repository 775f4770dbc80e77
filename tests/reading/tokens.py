"""The tokens of a run: python3 tokens.py runs/NAME/prepare/train (with pyarrow)"""

import json
import sys
from collections import Counter
from pathlib import Path

import pyarrow.parquet as parquet

folder = Path(sys.argv[1])
index = json.loads((folder / "tokens.json").read_text(encoding="utf-8"))
if index["version"] != 1:
    sys.exit(f"expected tokens of version 1, found {index['version']}")

samples = 0
trained_on = Counter()
for shard in index["shards"]:
    table = parquet.read_table(folder / shard["file"])
    samples += table.num_rows
    for tokens, mask in zip(table["tokens"].to_pylist(), table["loss_mask"].to_pylist()):
        trained_on.update(token for token, is_trained in zip(tokens, mask) if is_trained)

trained = sum(trained_on.values())
if (samples, trained) != (index["samples"], index["trained_tokens"]):
    sys.exit("the shards are not those of tokens.json")
print(samples, "samples,", index["tokens"], "tokens,", trained, "of them trained on")
for token, count in sorted(trained_on.items(), key=lambda item: (-item[1], item[0]))[:5]:
    print(f"token {token}: {count} times")
