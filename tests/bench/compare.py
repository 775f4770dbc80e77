"""The same EAGLE-3 training step in spectrain and in PyTorch, in turn, and the ratios of time and memory.

    python tests/bench/compare.py target/release/spectrain medium --rounds 3

Each round runs both, one after the other, in processes of their own; machines that are shared are noisy, so ratios
of medians over the rounds are what to quote. Needs the packages that eagle3_pytorch.py needs.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).parent


def spectrain(program, size, repeat):
    """Milliseconds of a step and MiB above the start of the process."""
    command = [program, "bench", "--task", "train", "--size", size, "--repeat", str(repeat)]
    line = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1].split()
    return float(line[3]), float(line[4])


def pytorch(size, repeat):
    """Milliseconds of a step and MiB above what the process takes once PyTorch is imported."""
    command = [sys.executable, HERE / "eagle3_pytorch.py", size, "--updates", str(repeat), "--warm-up", "1"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found["ms_per_update_median"], found["peak_above_import_mib"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program", help="the built spectrain")
    parser.add_argument("size", nargs="+", choices=["small", "medium", "large"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=3, help="timed steps of a round")
    given = parser.parse_args()
    print("size     spectrain ms   PyTorch ms   speed-up   spectrain MiB   PyTorch MiB   memory")
    for size in given.size:
        ours, theirs = [], []
        for _ in range(given.rounds):
            ours.append(spectrain(given.program, size, given.repeat))
            theirs.append(pytorch(size, given.repeat))
        (our_ms, our_mib), (their_ms, their_mib) = (
            [statistics.median(column) for column in zip(*runs)] for runs in (ours, theirs)
        )
        print(
            f"{size:<8} {our_ms:>12.0f} {their_ms:>12.0f} {their_ms / our_ms:>9.2f}x"
            f" {our_mib:>15.0f} {their_mib:>13.0f} {our_mib / their_mib:>7.2f}x",
            flush=True,
        )


if __name__ == "__main__":
    main()
