"""The same training step in spectrain and in PyTorch, in turn, and the ratios of time and memory.

    python tests/bench/compare.py target/release/spectrain medium --rounds 3
    python tests/bench/compare.py target/release/spectrain small --family medusa dflash pard
    python tests/bench/compare.py target/release/spectrain medium --bf16

Each round runs both, one after the other, in processes of their own; machines that are shared are noisy, so ratios
of medians over the rounds are what to quote. Needs the packages that eagle3_pytorch.py needs.
"""

import argparse
import itertools
import json
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).parent


FAMILIES = ["eagle3", "medusa", "dflash", "pard"]


def spectrain(program, family, size, repeat, bf16):
    """Milliseconds of a step and MiB above the start of the process."""
    task = "train" if family == "eagle3" else f"train-{family}"
    command = [program, "bench", "--task", task, "--size", size, "--repeat", str(repeat)]
    command += ["--bf16"] if bf16 else []
    line = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1].split()
    return float(line[3]), float(line[4])


def pytorch(family, size, repeat, bf16):
    """Milliseconds of a step and MiB above what the process takes once PyTorch is imported."""
    script = ["eagle3_pytorch.py"] if family == "eagle3" else ["drafters_pytorch.py", family]
    command = [sys.executable, HERE / script[0], *script[1:], size, "--updates", str(repeat), "--warm-up", "1"]
    command += ["--dtype", "bf16"] if bf16 else []
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found["ms_per_update_median"], found["peak_above_import_mib"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="the built spectrain")
    parser.add_argument("size", nargs="+", choices=["small", "medium", "large"])
    parser.add_argument("--family", nargs="+", choices=FAMILIES, default=["eagle3"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=3, help="timed steps of a round")
    parser.add_argument("--bf16", action="store_true", help="both multiply in bf16")
    given = parser.parse_args()
    print("family   size     spectrain ms   PyTorch ms   speed-up   spectrain MiB   PyTorch MiB   memory")
    for family, size in itertools.product(given.family, given.size):
        ours, theirs = [], []
        for _ in range(given.rounds):
            ours.append(spectrain(given.program, family, size, given.repeat, given.bf16))
            theirs.append(pytorch(family, size, given.repeat, given.bf16))
        (our_ms, our_mib), (their_ms, their_mib) = (
            [statistics.median(column) for column in zip(*runs)] for runs in (ours, theirs)
        )
        print(
            f"{family:<8} {size:<8} {our_ms:>12.0f} {their_ms:>12.0f} {their_ms / our_ms:>9.2f}x"
            f" {our_mib:>15.0f} {their_mib:>13.0f} {our_mib / their_mib:>7.2f}x",
            flush=True,
        )


if __name__ == "__main__":
    main()
