"""Rows of the ledger on the circle: whether points meet, how trained layers step, and what weights by hand can do."""

import functools
import math

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
from experiments.ledger import Measured, at_least, at_most, law, near, published

PAGE = "docs/path_effectiveness.md, The circle"
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


def _meet(path: np.ndarray) -> np.ndarray:
    """Whether the points become one before one of them has left, by roll-out."""
    return first_events(path)[0] == FATES.index("collapsed")


def _met_untrained(data: Data) -> Measured:
    """The share of layers before training (record 0), of attention alone, that bring the points together."""
    met = _meet(data["path"][..., 0, :, :, :])  # width, seed, switch
    share, error = share_of(met, np.ones(met.shape, bool), axis=1)
    return Measured(
        share[:, 0],
        standard_error=error[:, 0],
        where=kinds(data),
        reads=[data["path"]],
        numbers={"seeds": met.shape[1]},
    )


def _met_alone(data: Data) -> Measured:
    """The share of trained layers of attention alone whose points meet, by width."""
    share, error = share_of(_meet(data["path"][..., -1, :, :, :]), learnt_by(data), axis=1)  # width, switch
    return Measured(
        share[:, 0],
        standard_error=error[:, 0],
        where=kinds(data),
        applies=data["dims"] < WIDE,
        reads=[data["path"], data["error"]],
    )


def _off(data: Data) -> np.ndarray:
    """Where a point of a trained layer is off the circle, its radius wrong by more than `ON`: (…, time)."""
    with np.errstate(divide="ignore"):  # a point at the centre
        return np.abs(np.log(radii(data["path"][..., -1, :, :, :]))).max(axis=-1) > math.log(ON)


def _later(data: Data) -> Measured:
    """Mean log steps on the circle with skip connections less that without, over layers that learnt."""
    off, learnt, widths, switches = _off(data), learnt_by(data), kinds(data), list(SWITCHES)
    # The first step off the circle ends a roll-out's time on it.
    log_steps = np.log(np.where(off.any(axis=-1), off.argmax(axis=-1), off.shape[-1] - 1))
    # Skip connections against none, without MLPs and with them.
    pairs = [(w, on, out) for on, out in ((1, 0), (3, 2)) for w in range(len(widths))]
    later, error = np.array([_difference(log_steps[w], learnt[w], on, out) for w, on, out in pairs]).T
    return Measured(
        later,
        standard_error=error,
        where=[f"{LABELS[switches[on]]} against {LABELS[switches[out]]}, {widths[w]}" for w, on, out in pairs],
        applies=np.isfinite(later),
        reads=[data["path"], data["error"]],
    )


def _difference(values: np.ndarray, counts: np.ndarray, one: int, other: int) -> tuple[float, float]:
    """Mean over the layers that count (seed, switch) of one switch less that of another; its standard error."""
    samples = [values[counts[:, switch], switch] for switch in (one, other)]
    if min(map(len, samples)) < 2:
        return math.nan, math.nan
    return (
        float(samples[0].mean() - samples[1].mean()),
        math.hypot(*(float(sample.std(ddof=1)) / len(sample) ** 0.5 for sample in samples)),
    )


def _stays(data: Data) -> Measured:
    """The share of layers with skip connections, from small weights, that never leave the circle."""
    learnt, widths, switches = learnt_by(data), kinds(data), list(SWITCHES)
    stayed = np.asarray(~_off(data).any(axis=-1))
    skips = [index for index, (skip, _) in enumerate(SWITCHES.values()) if skip]
    others = [index for index in range(len(SWITCHES)) if index not in skips]
    small = [(w, on) for w in range(len(widths)) if data["gains"][w] < 1 for on in skips]
    chosen = tuple(np.array(small).T)
    share, error = share_of(stayed, learnt, axis=1)  # width, switch
    return Measured(
        share[chosen],
        standard_error=error[chosen],
        where=[f"{LABELS[switches[on]]}, {widths[w]}" for w, on in small],
        reads=[data["path"], data["error"]],
        numbers={"alone": np.sum((stayed & learnt)[..., others]) / max(np.sum(learnt[..., others]), 1)},
    )


MEETING = "whose points meet within two radii"
TRAINED = f"to a loss below {LEARNT:g} squared radii"
measured_here = functools.partial(law, proof="measured", place=PAGE)

# By hand. A point x sees itself and −x with logits ±y, y = c r², so a head of gain g answers g tanh(y) x, turned. With
# g = 1/tanh y it keeps the radius, and d log|answer|/d log r is 1 + 4y/sinh 2y. Two heads keep it if
# Σ g_h tanh y_h = 1, and their gains solve this together with d log|answer|/d log r = SLOPE < 1.
ONE_HEAD = 1 + 4 * SHARPNESS / np.sinh(2 * SHARPNESS)
LOGITS = np.array(HEADS)
GAINS = np.linalg.solve([np.tanh(LOGITS), np.tanh(LOGITS) + 2 * LOGITS / np.cosh(LOGITS) ** 2], [1, SLOPE])
# The four factors of a disturbance: 1, 1/2, Σg and Σg − 1/4.
MODULI = np.sort(np.abs([1, SLOPE, GAINS.sum(), GAINS.sum() - (1 - SLOPE) / 2]))
TWO_HEADS = (
    r"no skip connection, no MLP; $W_Q\thinspace W_K^{\top}=c\thinspace I$, $W_V\thinspace W_O=g$ times a "
    r"rotation, $y=c\thinspace r^{2}=2$ and $1$"
)

ROWS = (
    measured_here(
        "circle-untrained",
        "Two opposite points become one under most random layers of attention alone that are applied again and again.",
        _met_untrained,
        at_least(0.5),
        neighbours=["dong2021"],
        hypotheses="no skip connections, no MLP; the same weights in every step; weights of usual size or a tenth of "
        "it, <seeds> layers each",
        after_result=True,
        interval_from=f"{HALF}; the sizes of weights were named when the numbers were known",
        note=f"measured is the share of layers {MEETING}; of layers with weights of four times the usual size many let "
        "their points leave instead",
    ),
    published(
        "circle-neither",
        "A layer without skip connections and MLP, trained to step round a circle and then fed its own answers, "
        "lets the two points converge to one.",
        _met_alone,
        at_least(0.5),
        source="dong2021-section4",
        place="the layer that goes round a circle",
        hypotheses=THEIRS,
        elsewhere=ELSEWHERE,
        interval_from=f"{HALF}; the paper shows one for each width",
        note=f"measured is the share, {COUNTED}, {MEETING}",
    ),
    measured_here(
        "circle-later",
        "Layers with skip connections stay on the circle for more steps than layers without, in geometric mean.",
        _later,
        at_least(0),
        neighbours=["dong2021"],
        hypotheses=f"layers trained by L-BFGS on the circle itself {TRAINED}",
        interval_from="more: a difference of mean logarithms above 0",
        note="measured is the difference of mean log steps until a point is off by a factor of two; a roll-out "
        "that never leaves counts with its length",
    ),
    measured_here(
        "circle-stays",
        "From small weights, layers with a skip connection learn a step that keeps the points on the circle for "
        "the whole roll-out.",
        _stays,
        at_least(0.5),
        neighbours=["dong2021"],
        hypotheses=f"trained by L-BFGS from 0.1 times usual weights {TRAINED}",
        interval_from=HALF,
        note=f"measured is the share, {COUNTED}, whose points are never off by a factor of two; of those without "
        "a skip connection it is <alone:.2g>",
    ),
    law(
        "circle-pure-growth",
        "One head that keeps opposite points on a circle is unstable: each step multiplies a relative error of "
        r"the radius by $1+4y/\sinh2y\gt1$.",
        lambda data: Measured(data["growth"] / ONE_HEAD, where=list(SHARPNESS.round(3))),
        near(1, EXACT),
        proof="proved",
        place=PAGE,
        hypotheses=r"one head with $W_Q\thinspace W_K^{\top}=c\thinspace I$, no skip connection, no MLP; two opposite "
        r"points; $y=c\thinspace r^{2}$",
        interval_from="the formula is exact; the error of a difference quotient and of float32",
        note=f"measured over the formula; from {ONE_HEAD[0]:.3f} at small $y$ to {ONE_HEAD[-1]:.3f}",
    ),
    law(
        "circle-two-heads",
        "Two heads with values of opposite sign keep two opposite points on a circle stably: a step multiplies "
        "small disturbances by 0.500, 0.517, 0.767, and by 1 along the circle.",
        lambda data: Measured(data["moduli"], where=["radius", "centre, along", "centre, across", "rotation"]),
        near(MODULI, 0.1 * EXACT),
        proof="proved",
        place=PAGE,
        hypotheses=f"{TWO_HEADS}; opposite points",
        neighbours=["dong2021"],
        interval_from=r"the formulas $1/2$, $\sum g-1/4$, $\sum g$ and 1 are exact; rounding of float32",
        note=f"moduli in the frame that rotates with the points; $c={HEADS[0]:g}/r^{{2}}$ and ${HEADS[1]:g}/r^{{2}}$, "
        f"$g={GAINS[0]:.3f}$ and ${GAINS[1]:.3f}$; $c$ and $g$ nearby do the same at a radius nearby",
    ),
    measured_here(
        "circle-two-heads-right-angle",
        "The two heads that keep opposite points on the circle do not keep others: two points 90° apart become one.",
        lambda data: data["right_angle"][-1],
        at_most(COLLAPSED),
        hypotheses=f"{TWO_HEADS}; points 90° apart",
        interval_from="one point in a drawing: 1 % of the distance at the start",
        note="measured is their distance at the end over that at the start",
    ),
)
