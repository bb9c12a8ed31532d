"""Rows of the ledger on the three optima: the mean, the optima and the tail."""

import itertools
import math

import numpy as np

from experiments.ledger import Claim, at_least, at_most, law, near, published
from experiments.lib.figure import Data

PAGE = "docs/annealed.md"
ENERGIES = ("derrida1981", "derrida2015", "bovier2002")  # the random-energy model
CURVE = 1024
CURVE_DIM = 128
OF_TWO = 0.5 / math.cosh(0.7717) ** 2  # α(1 − Σp²) over α at the best α of two scores, where x tanh x = 1/2
STEPS = np.array([0.1, 0.5, 0.7, 1.0, 2.0, 20.0])  # over the critical scale: where the rise is looked at
COSINE_RISE = np.array([20.0, 40, 80, 400])


def claims(data: Data) -> list[Claim]:
    """The mean's rise, plateau and limit; the typical and the row's own optimum beside the annealed one; the tail."""
    return [*_mean_claims(data), *_plateau_rows(data), *_optimum_claims(data), _tail_claim(data)]


def _mean_claims(data: Data) -> list[Claim]:
    x, mean, error = data["alpha"], data["mean"], data["mean_error"]
    # rises between chosen multiples of the critical scale
    at = [int(np.argmin(np.abs(x - step))) for step in STEPS]
    cosine, cosine_error = data["cosine_rise"], data["cosine_rise_error"]
    return [
        law(
            "three-mean-rises",
            "The mean gradient over rows of standard normal scores, d/dα E log Z, rises with α and has "
            "no finite maximiser, unlike its annealed form.",
            np.diff(mean[at]),
            at_least(0),
            proof="proved",
            place=PAGE,
            hypotheses=f"{CURVE} independent standard normal scores",
            interval_from="the sign",
            neighbours=ENERGIES,
            standard_error=np.hypot(error[at][1:], error[at][:-1]),
            reads=[x],
            where=[f"{a:g} … {b:g} α_c" for a, b in itertools.pairwise(STEPS)],
            note="measured: rises between multiples of α_c = √(2 log n); the identity is the random-energy model's",
        ),
        law(
            "three-cosine-rises",
            "The mean gradient over rows of cosines in more than three dimensions rises with α and "
            "has no finite maximiser.",
            np.diff(cosine),
            at_least(0),
            proof="proved",
            place=PAGE,
            hypotheses=f"{CURVE} independent cosines, d = {CURVE_DIM}",
            neighbours=["su2023scale"],
            interval_from="the sign",
            standard_error=np.hypot(cosine_error[1:], cosine_error[:-1]),
            where=[f"{a:g} … {b:g}" for a, b in itertools.pairwise(COSINE_RISE)],
            note="measured: rises between values of α",
        ),
    ]


def _plateau_rows(data: Data) -> list[Claim]:
    # the mean at its largest, in units of E max s
    mean, error = data["mean"], data["mean_error"]
    plateau, top = float(data["plateau"]), int(np.argmax(mean))
    return [
        published(
            "scale-gaussian-bounded",
            "Even at its maximum the gradient stays bounded, so it cannot explode.",
            [mean[top] / plateau, OF_TWO * data["drawn"].max() / plateau],
            at_most(1.005),
            formula=True,
            always=False,
            source="su2023scale-comments",
            place="reply of 2024-04-26",
            where=["mean over rows", "the row of the largest best scale"],
            hypotheses=f"{CURVE} independent standard normal scores, before annealing",
            interval_from="E max s, which bounds the mean; our tolerance of half a per cent for the sampling",
            standard_error=[error[top] / plateau, 0],
            note="measured: the largest mean over α, and the largest gradient of a row drawn, over E max s; two close "
            "scores let a row's gradient grow with its best scale α, as 0.293 α",
        ),
    ]


def _optimum_claims(data: Data) -> list[Claim]:
    n, typical, error = data["n"], data["typical"], data["typical_error"]
    laws = ["Gaussian", *(f"d = {d}" for d in data["dims"])]
    where = [f"{scores}, n = {count}" for scores in laws for count in n]
    # every law of scores and every n
    lower = data["annealed"] / typical
    return [
        law(
            "three-annealed-lowest",
            "The annealed optimum lies below the α that maximises the mean logarithm of the gradient.",
            lower.ravel(),
            at_most(1),
            proof="measured",
            place=PAGE,
            neighbours=["su2023scale"],
            where=where,
            hypotheses="independent standard normal scores, and cosines",
            interval_from="the sign",
            standard_error=(lower * error / typical).ravel(),
            note="measured: annealed over typical",
        ),
    ]


def _tail_claim(data: Data) -> Claim:
    far = data["level"] > 1e4
    # means over far levels, each with the weight of its own relative precision
    ratios, errors = [], []
    for name in ("", "cosine_"):
        tail, error, expected = (data[f"{name}{each}"][far] for each in ("tail", "tail_error", "tail_law"))
        weights = (expected / error) ** 2
        ratios.append((weights * tail / expected).sum() / weights.sum())
        errors.append((error / expected).mean())
    return law(
        "three-tail-gaussian",
        "The chance that a row's own best scale exceeds a falls like 1.543 ρ/a, ρ the density at 0 "
        "of the gap between its two largest scores.",
        ratios,
        near(1, 0.1),
        proof="derived",
        place=PAGE,
        hypotheses=f"{CURVE} independent scores; for standard normal scores ρ = E max s",
        neighbours=["david2003"],
        interval_from="our tolerance: a tenth, on the mean for a > 10⁴",
        standard_error=errors,
        where=["Gaussian", f"cosines, d = {CURVE_DIM}"],
        note="measured: importance sampling over that; the standard errors are those of one a: all share rows",
    )
