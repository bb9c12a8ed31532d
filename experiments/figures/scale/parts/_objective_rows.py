"""Rows of the ledger on other objectives: the largest entry, the sixth power, both ends."""

import functools

import numpy as np

from experiments.ledger import Claim, at_least, at_most, law, near, published
from experiments.lib.figure import Data

SU, COMMENTS, PAGE = "su2023scale", "su2023scale-comments", "docs/scale_objectives.md"
reader = functools.partial(published, source=COMMENTS, place="reader's comment, 2024-01-31")
NAMES = ("½‖J‖₁, trace", "largest entry", "Frobenius norm", "spectral norm")
LOW, HIGH = 1.0, 5.0  # “the optimum is between 1 and 5”
CLEAN = 0.016  # relative misfit of a law that may be called clean
FLAT = 0.05  # relative change below which a gradient does not depend on n
VANISHED = 0.01  # of its largest value over the scales
LINEAR_FLOOR = float(np.sqrt(2 / np.pi))  # the least sparsity E|a|/√E a² of linear attention over normal keys

BY_INPUT = 1 / 3 - 1  # relative change of ∂y/∂x where x is scaled by 3: y(αx) = y(x), so ∂y/∂x falls as 1/α


def claims(data: Data) -> list[Claim]:
    """Statements of the article and of its readers on both ends, the largest entry, the sixth power and the means."""
    return [_half_l1_row(data), *_largest_entry(data), *_sixth_power(data), _sparsity_row(data), _ends_row(data)]


def _half_l1_row(data: Data) -> Claim:
    # the article's central formula, against derivatives that do not use it
    return published(
        "objectives-half-l1",
        "Half of the ℓ₁ norm of softmax's Jacobian ∂p/∂s is α(1 − Σp²).",
        np.abs(data["half_l1"] - 1).max(),
        at_most(1e-4),
        formula=True,
        source="su2023scale",
        place="section on the gradient",
        hypotheses="p = softmax(αs); rows of 64 normal scores, α = 0.1, 2 and 8",
        interval_from="the formula is exact; rounding of float32",
        reads=[data["half_l1"]],
        note="identity; measured: largest relative difference to automatic differentiation",
    )


def _largest_entry(data: Data) -> list[Claim]:
    # order of the norms as in NAMES: index 1 is the largest entry
    n, typical, error = data["n"], data["typical"], data["typical_error"]
    return [
        reader(
            "objectives-quarter",
            "The largest value that an entry of softmax's Jacobian takes is 0.25.",
            data["bound"] / 4,
            near(0.25, 1e-3),
            formula=True,
            hypotheses="entries over α; random rows",
            interval_from="our tolerance: the rows that were drawn",
            note="identity",
        ),
        reader(
            "objectives-entry-1-to-5",
            "The scale that is best for the largest entry of softmax's Jacobian is about 1 to 5.",
            typical[1],
            (LOW, HIGH),
            always=False,
            where=n,
            hypotheses="the reader names neither n nor the law of scores; here typical rows of normal scores",
            interval_from="the printed range",
            standard_error=error[1],
            note="labels are n",
        ),
        reader(
            "objectives-entry-law",
            "The scale that is best for the largest entry follows no clear log n law.",
            data["misfit"],
            at_least(CLEAN),
            hypotheses=f"typical rows of normal scores, n = {n[0]} … {n[-1]}",
            standard_error=data["misfit_error"],
            interval_from=f"our tolerance: a law that misses by {CLEAN:.1%}, as the article's own fit, is clear",
            note="measured: relative misfit of the better of c log n and c √log n",
        ),
        law(
            "objectives-entry-mean",
            "The mean of the largest entry over rows of normal scores is larger at α = 20 than at α = 5.",
            data["later"][-2],
            at_least(0),
            proof="measured",
            place=PAGE,
            hypotheses=f"n = {n[-2]}",
            interval_from="the sign",
            standard_error=data["later_error"][-2],
            note="it rises towards half of E max s",
        ),
    ]


def _sixth_power(data: Data) -> list[Claim]:
    n, power, error = data["n"], data["power"], data["power_error"]
    # over softmax at its annealed optimum, and from the fewest keys to the most
    ratio = power / data["softmax"]
    grown = power[-1] / power[0] - 1
    return [
        reader(
            "objectives-power-scale",
            "x⁶/Σx⁶ is blind to a scaling of its input forwards, and so is its gradient.",
            np.array([float(data["homogeneous"]), BY_INPUT]),
            near(0, 1e-4),
            formula=True,
            always=False,
            where=["gradient by the scores s of x = αs", "gradient by the input x"],
            hypotheses="nothing is added to the denominator",
            interval_from="rounding of float32",
            note="relative change under α = 3; by the input the gradient falls as 1/α, which is exact",
        ),
        reader(
            "objectives-power-n",
            "A change of length cannot influence the gradient of x⁶/Σx⁶.",
            [data["homogeneous"], grown],
            near(0, [1e-4, FLAT]),
            always=False,
            where=["length of the input", f"{n[0]} … {n[-1]} keys"],
            hypotheses="standard normal scores, mean ½‖J‖₁; length read in both ways",
            interval_from="rounding of float32; our tolerance of a twentieth",
            standard_error=[0, (1 + grown) * np.hypot(error[0] / power[0], error[-1] / power[-1])],
            reads=[power, error],
            note=f"measured: relative change, {grown:.0%} with the keys, which tends to a constant: much weaker than "
            "a power of n",
        ),
        reader(
            "objectives-power-larger",
            "The gradient of x⁶/Σx⁶ is larger than softmax's most of the time.",
            ratio,
            at_least(1),
            always=False,
            where=n,
            hypotheses="standard normal scores, mean ½‖J‖₁, softmax at its annealed optimum",
            interval_from="the sign",
            standard_error=ratio * np.hypot(error / power, data["softmax_error"] / data["softmax"]),
            note="measured: the ratio; softmax's grows with n and passes it for more keys",
        ),
    ]


def _sparsity_row(data: Data) -> Claim:
    least = data["sixth_sparsity"].min()
    return published(
        "objectives-power-sparse",
        "Weights in proportion to x⁶ can very probably guarantee sparsity too.",
        least,
        at_most(LINEAR_FLOOR),
        formula=True,
        source=COMMENTS,
        place="reply of 2024-01-31",
        hypotheses="the measure E|a|/√E a² that the reply refers to; normal scores of any mean and spread",
        interval_from="the floor √(2/π) of linear attention",
        reads=[data["sixth_sparsity"]],
        note=f"its floor is {least:.3f}; softmax has none",
    )


def _ends_row(data: Data) -> Claim:
    # the larger of both ends over the rows
    ends = data["ends"]
    return published(
        "objectives-ends",
        "The gradient of softmax vanishes as α goes to 0, and as α goes to infinity where the largest score is unique.",
        ends.max(1),
        at_most(VANISHED),
        formula=True,
        source=SU,
        place="section on the gradient, below its matrix, 2023-10-22",
        where=["α = 0.001", "α = 40/top gap"],
        hypotheses=f"½‖J‖₁ of {ends.shape[1]} rows of 64 normal scores",
        interval_from="our tolerance: a hundredth of a row's largest gradient",
        note="measured: largest over rows",
    )
