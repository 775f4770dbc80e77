"""How fast a device copies and multiplies: what speeds of training are to be held against.

    python ceilings.py --device cuda:0 --width 8192
"""

import argparse
import time

import torch


def seconds(device, work, repeat=10):
    """Of one time, the best of some."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    work()
    wait()
    found = []
    for _ in range(3):
        started = time.perf_counter()
        for _ in range(repeat):
            work()
        wait()
        found.append((time.perf_counter() - started) / repeat)
    return min(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", type=torch.device, default=torch.device("cuda:0"))
    parser.add_argument("--width", type=int, default=8192, help="of the square matrices")
    given = parser.parse_args()
    source = torch.ones(given.width, given.width, device=given.device)
    into = torch.empty_like(source)
    copied = 2 * source.numel() * source.element_size() / seconds(given.device, lambda: into.copy_(source))
    said = [f"copy {copied / 1e9:.3g} GB/s"]
    for name, dtype in [("f32", torch.float32), ("bf16", torch.bfloat16)]:
        left, right = (torch.randn(given.width, given.width, device=given.device).to(dtype) for _ in range(2))
        took = seconds(given.device, lambda: torch.mm(left, right), repeat=3)
        said.append(f"{given.width}³ {name} {2 * given.width**3 / took / 1e12:.3g} TFLOP/s")
    print(", ".join(said))


if __name__ == "__main__":
    main()
