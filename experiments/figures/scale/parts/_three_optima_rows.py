"""Rows of the ledger on the three optima: the mean, the optima and the tail."""

import itertools

import numpy as np

from experiments.ledger import Measured, at_least, at_most, law, near, published
from experiments.lib.figure import Data

PAGE = "docs/annealed.md"
ENERGIES = ("derrida1981", "derrida2015", "bovier2002")  # the random-energy model
CURVE = 1024
CURVE_DIM = 128
STEPS = np.array([0.1, 0.5, 0.7, 1.0, 2.0, 20.0])  # over the critical scale: where the rise is looked at
COSINE_RISE = np.array([20.0, 40, 80, 400])


def _rises(data: Data) -> Measured:
    """Rises of the mean between chosen multiples of the critical scale."""
    chosen = [int(np.argmin(np.abs(data["alpha"] - step))) for step in STEPS]
    mean, error = data["mean"][chosen], data["mean_error"][chosen]
    return Measured(
        np.diff(mean),
        standard_error=np.hypot(error[1:], error[:-1]),
        where=[f"{low:g} … {high:g} α_c" for low, high in itertools.pairwise(STEPS)],
        reads=[data["alpha"]],
    )


def _cosine_rises(data: Data) -> Measured:
    """Rises of the mean over rows of cosines between values of α."""
    error = data["cosine_rise_error"]
    return Measured(
        np.diff(data["cosine_rise"]),
        standard_error=np.hypot(error[1:], error[:-1]),
        where=[f"{low:g} … {high:g}" for low, high in itertools.pairwise(COSINE_RISE)],
    )


def _largest(data: Data) -> Measured:
    """The mean gradient at the largest α, over E max s; the largest of all noisy means would be too large."""
    plateau = float(data["plateau"])
    return Measured(
        data["mean"][-1] / plateau,
        standard_error=data["mean_error"][-1] / plateau,
        reads=[data["alpha"]],
        numbers={"top": data["alpha"][-1]},
    )


def _over_typical(data: Data) -> Measured:
    """The annealed optimum over the typical one, for every law of scores and every n."""
    lower = data["annealed"] / data["typical"]
    laws = ["Gaussian", *(f"d = {d}" for d in data["dims"])]
    return Measured(
        lower.ravel(),
        standard_error=(lower * data["typical_error"] / data["typical"]).ravel(),
        where=[f"{scores}, n = {count}" for scores in laws for count in data["n"]],
    )


def _tail_over_law(data: Data) -> Measured:
    """Importance sampling over the law: means over far levels, each with the weight of its own relative precision."""
    far = data["level"] > 1e4
    ratios, errors = [], []
    for name in ("", "cosine_"):
        tail, error, expected = (data[f"{name}{each}"][far] for each in ("tail", "tail_error", "tail_law"))
        weights = (expected / error) ** 2
        ratios.append((weights * tail / expected).sum() / weights.sum())
        errors.append((error / expected).mean())
    return Measured(ratios, standard_error=errors, where=["Gaussian", f"cosines, d = {CURVE_DIM}"])


ROWS = (
    law(
        "three-mean-rises",
        r"The mean gradient over rows of standard normal scores, $d/d\alpha\thinspace E\log Z$, rises with $\alpha$ "
        "and has no finite maximiser, unlike its annealed form.",
        _rises,
        at_least(0),
        proof="proved",
        place=PAGE,
        hypotheses=f"{CURVE} independent standard normal scores",
        interval_from="the sign",
        neighbours=ENERGIES,
        note=r"measured: rises between multiples of $\alpha_c=\sqrt{2\log n}$; the identity is the random-energy "
        "model's",
    ),
    law(
        "three-cosine-rises",
        r"The mean gradient over rows of cosines in more than three dimensions rises with $\alpha$ and "
        "has no finite maximiser.",
        _cosine_rises,
        at_least(0),
        proof="proved",
        place=PAGE,
        hypotheses=f"{CURVE} independent cosines, $d={CURVE_DIM}$",
        neighbours=["su2023scale"],
        interval_from="the sign",
        note=r"measured: rises between values of $\alpha$",
    ),
    published(
        "scale-gaussian-bounded",
        "Even at its maximum the gradient stays bounded, so it cannot explode.",
        _largest,
        at_most(1.005),
        formula=True,
        after_result=True,
        source="su2023scale-comments",
        place="reply of 2024-04-26",
        hypotheses=f"{CURVE} independent standard normal scores, before annealing",
        interval_from=r"$E\max s$, which bounds the mean; our tolerance of half a per cent for the sampling",
        note=r"measured: the mean, which rises with $\alpha$ (three-mean-rises), at the largest $\alpha$, "
        r"$<top:g>\thinspace\alpha_c$, over $E\max s$; at the $\alpha$ that is chosen no row "
        r"exceeds $\alpha(1-1/n)$; only at a row's own best $\alpha$, which is not the reply's, do two close scores "
        r"let its gradient grow, as $0.290\thinspace\alpha$",
    ),
    law(
        "three-annealed-lowest",
        r"The annealed optimum lies below the $\alpha$ that maximises the mean logarithm of the gradient.",
        _over_typical,
        at_most(1),
        proof="measured",
        place=PAGE,
        neighbours=["su2023scale"],
        hypotheses="independent standard normal scores, and cosines",
        interval_from="the sign",
        note="measured: annealed over typical",
    ),
    law(
        "three-tail-gaussian",
        r"The chance that a row's own best scale exceeds $a$ falls like $1.543\thinspace\rho/a$, $\rho$ the density "
        "at 0 of the gap between its two largest scores.",
        _tail_over_law,
        near(1, 0.1),
        proof="derived",
        place=PAGE,
        hypotheses=rf"{CURVE} independent scores; for standard normal scores $\rho=E\max s$",
        neighbours=["david2003"],
        interval_from=r"our tolerance: a tenth, on the mean for $a\gt10^{4}$",
        note="measured: importance sampling over that; the standard errors are those of one $a$: all share rows",
    ),
)
