"""What a report says: python3 report.py runs/NAME/evaluate/report.json"""

import json
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    report = json.load(file)
if report["schema"] != 1:
    sys.exit(f"expected a report of schema 1, found {report['schema']}")


def figure(values, key):
    """A figure with its 95 % interval. What nothing tells is left out of a report."""
    if key not in values:
        return f"{key} unknown"
    interval = values.get(f"{key}_ci95")
    return f"{key} {values[key]:.2f}" + (" [{:.2f}, {:.2f}]".format(*interval) if interval else "")


print(report["drafter"]["kind"], "drafter for", report["target"]["model"])
for setting in report["settings"]:
    draft = setting["draft"]
    who = setting.get("drafter", "the drafter")
    how = f"{setting['verifier']}, {draft['shape']} {draft.get('length', '')}"
    print(f"{who}: T={setting['temperature']:g}, {how}")
    for part in [*setting["datasets"], setting["overall"]]:
        print(f"  {part['name']}: {part['prompts']} prompts, {part['tokens']} tokens, {part['passes']} passes")
        speedup = part.get("speedup", {})
        print("    " + "  ".join([figure(part, "tau"), figure(part, "alpha"), figure(speedup, "wall")]))
        print("    at least 1, 2, ... accepted:", *(f"{share:.2f}" for share in part["survival"]))
lossless = report["lossless"]
print(lossless["greedy_mismatches"], "of", lossless["greedy_outputs"], "greedy outputs differ")
