"""Four steps of torch.optim.Muon on a wide, a tall and a square matrix.

Writes `muon.json`; see README.md. PyTorch iterates in bf16 (`bf16`); `f32` is the same code with the conversion left out, and
`matched` that with the rates of `match_rms_adamw`.
"""

import json
from pathlib import Path
from unittest import mock

import torch

HERE = Path(__file__).resolve().parent
SHAPES = {"wide": (5, 12), "tall": (11, 4), "square": (6, 6)}
STEPS, SETTINGS = 4, dict(lr=0.02, momentum=0.95, weight_decay=0.1)


def listed(tensor):
    """The numbers of a matrix, row by row."""
    return [round(float(value), 7) for value in tensor.flatten()]


def trained(weight, gradients, rates=None):
    parameter = torch.nn.Parameter(weight.clone())
    optimizer = torch.optim.Muon([parameter], adjust_lr_fn=rates, **SETTINGS)
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    return listed(parameter.detach())


def main():
    torch.manual_seed(17)
    cases = {}
    for name, shape in SHAPES.items():
        weight = torch.randn(shape).mul(100).round() / 100
        gradients = [torch.randn(shape).mul(100).round() / 100 for _ in range(STEPS)]
        with mock.patch.object(torch.Tensor, "bfloat16", lambda self: self.clone()):
            f32 = trained(weight, gradients)
            matched = trained(weight, gradients, "match_rms_adamw")
        cases[name] = {
            "shape": shape,
            "weight": listed(weight),
            "gradients": [listed(gradient) for gradient in gradients],
            "f32": f32,
            "matched": matched,
            "bf16": trained(weight, gradients),
        }
    golden = {"settings": SETTINGS, "cases": cases}
    (HERE / "muon.json").write_text(json.dumps(golden) + "\n")


if __name__ == "__main__":
    main()
