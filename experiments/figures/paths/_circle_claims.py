"""Rows of the ledger on the circle: whether points meet, how trained layers step, and what weights by hand can do."""

import math
from functools import partial

import numpy as np

from experiments.figures.paths._circle import (
    COLLAPSED,
    FATES,
    LABELS,
    LEARNT,
    ON,
    SWITCHES,
    Data,
    first_events,
    radii,
    share_of,
)
from experiments.figures.paths._circle_built import HEADS, SHARPNESS, SLOPE
from experiments.ledger import Claim, at_least, at_most, law, near, published

PAGE = "docs/circle.md"
WIDE = 128  # the width at which the paper shows next to no collapse
EXACT = 1e-3
RETURNED = 1e-3
THEIRS = (
    "one layer of two heads, trained to next to no loss; here by L-BFGS, and without skip connections nothing is added "
    "anywhere"
)
ELSEWHERE = (
    "the weights at the start decide, which are not known of the paper: from small ones layers with skip connections "
    "stay on the circle (circle-stays), from larger ones few"
)
HALF = "our tolerance: at least half of the layers"
COUNTED = f"of layers with a loss below {LEARNT:g} squared radii"


def learnt_by(data: Data) -> np.ndarray:
    """The layers that learnt the step and count: width, seed, switch."""
    return data["error"][..., -1] < LEARNT


def kinds(data: Data) -> list[str]:
    """Width and first weights of every group of layers, as text."""
    sizes = ["usual weights" if gain == 1 else f"{gain:g} × weights" for gain in data["gains"]]
    return [f"d = {dim}, {size}" for dim, size in zip(data["dims"], sizes, strict=True)]


def _every(data: Data) -> list[str]:
    return [f"{LABELS[name]}, {width}" for name in SWITCHES for width in kinds(data)]


def before_roll_outs(data: Data) -> list[Claim]:
    """How many layers learn the step, and whether the points meet under random layers."""
    path, learnt, widths = data["path"], learnt_by(data), kinds(data)
    # The share of layers before training (record 0) that bring the points together before one of them has left.
    everyone = np.ones(learnt.shape, bool)
    met = first_events(path[..., 0, :, :, :])[0] == FATES.index("collapsed")  # width, seed, switch
    untrained, of_untrained, _ = share_of(met, everyone, axis=1)
    return [
        law(
            "circle-untrained",
            "Two opposite points become one under most random layers of attention alone that are applied again and "
            "again.",
            untrained[:, 0], at_least(0.5), standard_error=of_untrained[:, 0], proof="measured", place=PAGE,
            neighbours=["dong2021"], hypotheses="no skip connections, no MLP; the same weights in every step",
            interval_from=HALF, where=widths, reads=[path],
            note="measured is the share of layers whose points meet within two radii",
        ),
    ]  # fmt: skip


def meeting(data: Data) -> list[Claim]:
    """Whether the two points become one under trained layers."""
    path, learnt, widths = data["path"][..., -1, :, :, :], learnt_by(data), kinds(data)
    met = first_events(path)[0] == FATES.index("collapsed")  # width, seed, switch
    share, error, of_difference = share_of(met, learnt, axis=1)  # width, switch
    # The shares of all switches, for the note of the row on their differences.
    shares = "; ".join(
        f"{width}: " + ", ".join(f"{LABELS[name]} {value:.2g}" for name, value in zip(SWITCHES, row, strict=True))
        for width, row in zip(widths, share, strict=True)
    )
    reads = [data["path"], data["error"]]
    fewer = (share[:, 1:] - share[:, :1]).T.ravel()  # not known where no layer learnt
    of_paper = partial(
        published, source="dong2021-section4", place="the layer that goes round a circle", hypotheses=THEIRS,
        reads=reads, elsewhere=ELSEWHERE,
    )  # fmt: skip
    return [
        of_paper(
            "circle-neither",
            "A layer without skip connections and MLP, trained to step round a circle and then fed its own answers, "
            "lets the two points converge to one.",
            share[:, 0], at_least(0.5), standard_error=error[:, 0], where=widths, applies=data["dims"] < WIDE,
            interval_from=HALF + "; the paper shows one for each width",
            note=f"measured is the share, {COUNTED}, whose points meet within two radii",
        ),
        of_paper(
            "circle-skip",
            "Skip connections or MLPs prevent the collapse of one layer applied again and again, or delay it greatly.",
            fewer, at_most(0.0),
            standard_error=np.hypot(of_difference[:, 1:], of_difference[:, :1]).T.ravel(),
            where=_every(data)[len(widths):],
            applies=np.tile(data["dims"] < WIDE, len(SWITCHES) - 1) & np.isfinite(fewer),
            interval_from="our reading: the points of fewer layers meet than with attention alone",
            note=f"measured is the difference of the shares, {COUNTED}, whose points meet within two radii; shares "
            f"that meet: {shares}",
        ),
    ]  # fmt: skip


def stability(data: Data) -> list[Claim]:
    """Whether roll-outs stay on the circle, for how long, and how fast errors grow there."""
    path, learnt, widths = data["path"], learnt_by(data), kinds(data)
    # A point is off the circle where its radius is wrong by more than a factor of two; the first such step ends a
    # roll-out's time on the circle.
    with np.errstate(divide="ignore"):  # a point at the centre
        off = np.abs(np.log(radii(path[..., -1, :, :, :]))).max(axis=-1) > math.log(ON)
    log_steps = np.log(np.where(off.any(axis=-1), off.argmax(axis=-1), off.shape[-1] - 1))
    # Skip connections against none, without MLPs and with them: differences of the mean logarithm of these times, over
    # layers that learnt.
    pairs = [(w, on, out) for on, out in ((1, 0), (3, 2)) for w in range(len(widths))]
    stays, of_stays, _ = share_of(~off.any(axis=-1), learnt, axis=1)  # width, switch
    skips = [index for index, (skip, _) in enumerate(SWITCHES.values()) if skip]
    small = tuple(np.array([(w, on) for w in range(len(widths)) if data["gains"][w] < 1 for on in skips]).T)
    others = [index for index in range(len(SWITCHES)) if index not in skips]
    counts = learnt[..., others]
    alone = np.sum(~off.any(axis=-1)[..., others] & counts) / max(np.sum(counts), 1)
    later, later_error = np.array([_difference(log_steps[w], learnt[w], on, out) for w, on, out in pairs]).T
    return [
        law(
            "circle-later",
            "Layers with skip connections stay on the circle for more steps than layers without, in geometric mean.",
            later, at_least(0.0), standard_error=later_error, proof="measured", place=PAGE, neighbours=["dong2021"],
            hypotheses=f"layers trained by L-BFGS on the circle itself to a loss below {LEARNT:g} squared radii",
            interval_from="more: a difference of mean logarithms above 0",
            where=[f"{LABELS[list(SWITCHES)[on]]} against {LABELS[list(SWITCHES)[out]]}, {widths[w]}"
                   for w, on, out in pairs],
            reads=[path, data["error"]], applies=np.isfinite(later),
            note="measured is the difference of mean log steps until a point is off by a factor of two; a roll-out "
            "that never leaves counts with its length",
        ),
        law(
            "circle-stays",
            "From small weights, layers with a skip connection learn a step that keeps the points on the circle for "
            "the whole roll-out.",
            stays[small], at_least(0.5), standard_error=of_stays[small], proof="measured", place=PAGE,
            neighbours=["dong2021"], interval_from=HALF,
            hypotheses=f"trained by L-BFGS from 0.1 times usual weights to a loss below {LEARNT:g} squared radii",
            where=[f"{LABELS[list(SWITCHES)[on]]}, {widths[w]}" for w, on in zip(*small, strict=True)],
            reads=[path, data["error"]],
            note=f"measured is the share, {COUNTED}, whose points are never off by a factor of two; of those without "
            f"a skip connection it is {alone:.2g}",
        ),
    ]  # fmt: skip


def _difference(values: np.ndarray, counts: np.ndarray, one: int, other: int) -> tuple[float, float]:
    """Mean over the layers that count (seed, switch) of one switch less that of another; its standard error."""
    samples = [values[counts[:, switch], switch] for switch in (one, other)]
    if min(map(len, samples)) < 2:
        return math.nan, math.nan
    return (
        float(samples[0].mean() - samples[1].mean()),
        math.hypot(*(float(sample.std(ddof=1)) / len(sample) ** 0.5 for sample in samples)),
    )


def by_hand(data: Data) -> list[Claim]:
    """What one head cannot do and two heads can."""
    # A point x sees itself and −x with logits ±y, y = c r², so a head of gain g answers g tanh(y) x, turned. With
    # g = 1/tanh y it keeps the radius, and d log|answer|/d log r is 1 + 4y/sinh 2y. Two heads keep it if
    # Σ g_h tanh y_h = 1, and their gains solve this together with d log|answer|/d log r = SLOPE < 1.
    theory = 1 + 4 * SHARPNESS / np.sinh(2 * SHARPNESS)
    y = np.array(HEADS)
    gains = np.linalg.solve([np.tanh(y), np.tanh(y) + 2 * y / np.cosh(y) ** 2], [1, SLOPE])
    # The four factors of a disturbance: 1, 1/2, Σg and Σg − 1/4.
    moduli = np.sort(np.abs([1, SLOPE, gains.sum(), gains.sum() - (1 - SLOPE) / 2]))
    two = (
        "no skip connection, no MLP; W_Q W_Kᵀ = c I, W_V W_O = g times a rotation, y = c r² = 2 and 1; opposite points"
    )
    return [
        law(
            "circle-pure-growth",
            "One head that keeps opposite points on a circle is unstable: each step multiplies a relative error of "
            "the radius by 1 + 4y/sinh 2y > 1.",
            data["growth"] / theory, near(1, EXACT), proof="proved", place=PAGE, where=list(SHARPNESS.round(3)),
            hypotheses="one head with W_Q W_Kᵀ = c I, no skip connection, no MLP; two opposite points; y = c r²",
            interval_from="the formula is exact; the error of a difference quotient and of float32",
            note=f"measured over the formula; from {theory[0]:.3f} at small y to {theory[-1]:.3f}",
        ),
        law(
            "circle-two-heads",
            "Two heads with values of opposite sign keep two opposite points on a circle stably: a step multiplies "
            "small disturbances by 0.500, 0.517, 0.767, and by 1 along the circle.",
            data["moduli"], near(moduli, 0.1 * EXACT), proof="proved", place=PAGE, hypotheses=two,
            where=["radius", "centre, along", "centre, across", "rotation"], neighbours=["dong2021"],
            interval_from="the formulas 1/2, Σg − 1/4, Σg and 1 are exact; rounding of float32",
            note="moduli in the frame that rotates with the points; "
            f"c = {HEADS[0]:g}/r² and {HEADS[1]:g}/r², g = {gains[0]:.3f} and {gains[1]:.3f}; c and g nearby do the "
            "same at a radius nearby",
        ),
        law(
            "circle-two-heads-right-angle",
            "The two heads that keep opposite points on the circle do not keep others: two points 90° apart become "
            "one.",
            float(data["right_angle"][-1]), at_most(COLLAPSED), proof="measured", place=PAGE, hypotheses=two,
            interval_from="one point in a drawing: 1 % of the distance at the start",
            note="measured is their distance at the end over that at the start",
        ),
    ]  # fmt: skip
