"""Values and gradients of the loss library on three rows of logits, in f64.

Writes `divergences.json`; see README.md. p is the target, q the drafter, both at temperature 1.
"""

import json
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
ROWS, VOCAB, TOP_K = 3, 7, 3
LEAST_DEVIATION = 1e-2


def kl(a, b):
    """KL(a || b) of two distributions."""
    return (a * (a.log() - b.log())).sum(-1)


def acceptance(p, q):
    """Probability that a token drawn from q is accepted under p."""
    return torch.minimum(p, q).sum(-1)


def fkl(p, q):
    return kl(p, q)


def rkl(p, q):
    return kl(q, p)


def jsd(beta):
    def distance(p, q):
        mixture = beta * p + (1 - beta) * q
        return beta * kl(p, mixture) + (1 - beta) * kl(q, mixture)

    return distance


def ce(p, q):
    """Cross-entropy with the target's most likely token as a hard label."""
    return -q.log().gather(-1, p.argmax(-1, keepdim=True)).squeeze(-1)


def tempered(temperature):
    def distance(p, q):
        return kl(torch.softmax(p.log() / temperature, -1), q)

    return distance


def tv(p, q):
    return 1 - acceptance(p, q)


def advantages(p, q):
    """TVD++'s rewards less their mean under q, and their standard deviation."""
    reward = (q < p).double() + 0.5 * (q == p).double()
    mean = (q * reward).sum(-1, keepdim=True)
    spread = (q * (reward - mean).square()).sum(-1, keepdim=True).sqrt()
    return reward - mean, spread.clamp(min=LEAST_DEVIATION)


def tv_plus_plus(p, q):
    """The value of tv, and the gradient of the expected whitened reward of a token drawn from q."""
    advantage, scale = advantages(p, q.detach())
    surrogate = -(q * advantage / scale).sum(-1)
    return tv(p, q).detach() + surrogate - surrogate.detach()


def nla(p, q):
    return -acceptance(p, q).clamp(min=1e-5).log()


def lk_hybrid(p, q):
    weight = torch.exp(-3 * acceptance(p, q).detach())
    return weight * kl(p, q) + (1 - weight) * tv(p, q)


def topk_ce(p, q):
    """Soft cross-entropy over the target's K most likely tokens, neither side renormalised."""
    top = p.topk(TOP_K, dim=-1)
    return -(top.values * q.log().gather(-1, top.indices)).sum(-1)


DIVERGENCES = {
    "fkl": fkl,
    "rkl": rkl,
    "jsd_0.5": jsd(0.5),
    "jsd_0.1": jsd(0.1),
    "ce": ce,
    "tv": tv,
    "tv_plus_plus": tv_plus_plus,
    "nla": nla,
    "lk_hybrid": lk_hybrid,
    "topk_ce_3": topk_ce,
    "tempered_kl_0.5": tempered(0.5),
}


def finite_difference(function, draft, target):
    """Central differences of the summed distance; what autograd must agree with."""
    step, gradient = 1e-6, torch.zeros_like(draft)
    for index in range(draft.numel()):
        shift = torch.zeros_like(draft).view(-1)
        shift[index] = step
        shift = shift.view_as(draft)
        up, down = function(draft + shift, target), function(draft - shift, target)
        gradient.view(-1)[index] = (up.sum() - down.sum()) / (2 * step)
    return gradient


def main():
    generator = torch.Generator().manual_seed(7)
    # Rounded, so that the JSON holds the inputs exactly.
    draft = (1.5 * torch.randn(ROWS, VOCAB, generator=generator, dtype=torch.float64)).round(
        decimals=3
    )
    target = (1.5 * torch.randn(ROWS, VOCAB, generator=generator, dtype=torch.float64)).round(
        decimals=3
    )
    p = target.softmax(-1)
    cases = {}
    for name, distance in DIVERGENCES.items():

        def of_logits(draft, target, distance=distance):
            return distance(target.softmax(-1), draft.softmax(-1))

        logits = draft.clone().requires_grad_()
        value = of_logits(logits, target)
        (gradient,) = torch.autograd.grad(value.sum(), logits)
        if name != "lk_hybrid":
            # lk_hybrid's weight is a constant for the gradient, so differences do not apply.
            reference = finite_difference(of_logits, draft, target)
            if name == "tv_plus_plus":
                # Whitening scales each row of tv's gradient, and does no more.
                reference = reference / advantages(p, draft.softmax(-1))[1]
            assert torch.allclose(gradient, reference, atol=1e-7), name
        cases[name] = {"value": value.tolist(), "gradient": gradient.tolist()}
    alpha = acceptance(p, draft.softmax(-1))
    text = json.dumps(
        {
            "draft_logits": draft.tolist(),
            "target_logits": target.tolist(),
            "alpha": alpha.tolist(),
            "divergences": cases,
        },
        indent=1,
    )
    (HERE / "divergences.json").write_text(text + "\n")
    print(f"{len(cases)} divergences, alpha {alpha.tolist()}")


if __name__ == "__main__":
    main()
