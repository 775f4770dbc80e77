"""The curves of a training: python3 metrics.py runs/NAME/train/events/metrics.jsonl"""

import json
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    lines = [json.loads(line) for line in file]


def curve(tag):
    """The steps and values of a tag. A value that was no finite number is None."""
    return [(line["step"], line[tag]) for line in lines if tag in line]


def shown(value):
    return "not finite" if value is None else f"{value:.4f}"


for step, loss in curve("train/loss"):
    print(f"step {step} loss {shown(loss)}")
for line in lines:
    if "validation/tau" in line:
        tau, low, high = (line[f"validation/{key}"] for key in ("tau", "tau_low", "tau_high"))
        print(f"step {line['step']} validation tau {tau:.3f} [{low:.2f}, {high:.2f}]")
print("tags:", *sorted({tag for line in lines for tag in line} - {"step", "time"}))
