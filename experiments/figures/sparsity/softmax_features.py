"""Softmax as linear attention with ever more features: Taylor polynomials and random features."""

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from experiments.figures.sparsity import _random_feature_samples as samples
from experiments.figures.sparsity._random_feature_samples import Spec
from experiments.ledger import Measured, law, near, published
from experiments.lib import style
from experiments.lib.figure import About
from rc_jax import sparsity

ABOUT = About(
    title="Softmax from finitely many features",
    caption=(
        "The first panel shows the sparsity S by Taylor polynomials T_K of the exponential (β = 0). The second shows "
        "the even order K that brings S within 1 % of softmax's S₀ = e^{−γ²/2}, with a law. The third shows how often "
        "trigonometric features give a negative weight. The others are about random features in d dimensions, for "
        "‖q‖² = d σ² and k ~ N(0, σ²I), σ² = γ/√d. The fourth shows S over S₀ against their number m, as median and "
        "quartiles over draws. The fifth shows the deviation of the mean of S, ± 2 standard errors, and its first "
        "order in 1/m (lines). The sixth shows the variance of S with directions orthogonal in blocks of d over that "
        "with independent ones."
    ),
    formula="K ≈ 2γ² + 2.31·√3 γ;  E S/S₀ − 1 ≈ −[(D − 1)/2 − …]/m,  D = (1 − 2σ²)^(−d/2) e^{(1+2σ²)²‖q‖²/(1−2σ²)}",
    topic="sparsity",
    minutes={"smoke": 0.1, "quick": 0.3, "full": 10},
)
TOLERANCE = 0.01  # of S₀
ORDERS_SHOWN = (1, 2, 3, 4, 8, 16)
Data = Mapping[str, np.ndarray]


PRESETS = {
    "smoke": Spec(draws=8, counts=(4, 16), sampled_draws=2, keys=64, largest_order=8),
    "quick": Spec(),
    "full": Spec(draws=8192, counts=(4, 8, 16, 32, 64, 128, 256, 512, 1024), sampled_draws=512, largest_order=64),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Closed forms of every order; S of random features for every draw and number of features."""
    key = jax.random.key(spec.seed)
    gamma = np.linspace(0.05, 4, 80)
    orders = np.arange(0, spec.largest_order + 1)
    shown = [order for order in ORDERS_SHOWN if order <= spec.largest_order]
    even, taylor = (
        np.asarray(sparsity.taylor_exponential(0.0, gamma[None], np.asarray(which)[:, None]), float)
        for which in (orders[::2], shown)
    )
    rates = [sparsity.positive_features_rate(g, (g / spec.width**0.5) ** 0.5, spec.width) for g in spec.gammas]
    return {
        "gamma": gamma, "even": even, "orders": orders[::2], "shown": np.asarray(shown),
        "taylor": taylor,
        "softmax": np.exp(-(gamma**2) / 2), "gammas": np.asarray(spec.gammas), "counts": np.asarray(spec.counts),
        "width": np.asarray(spec.width), "rates": np.asarray(rates, float),
    } | samples.positive(key, spec) | samples.trigonometric(key, spec)  # fmt: skip


def _needed(data: Data) -> np.ndarray:
    """Least even order from which on S stays within 1 % of softmax's; NaN beyond the largest."""
    far = np.abs(data["even"] / data["softmax"][None] - 1) > TOLERANCE
    last = np.where(far.any(0), len(far) - 1 - far[::-1].argmax(0), -1) + 1
    return np.where(last < len(far), data["orders"][np.minimum(last, len(far) - 1)], np.nan)


def _means(data: Data) -> tuple[np.ndarray, np.ndarray]:
    """E S/S₀ − 1 and its standard error, (kind, γ, m): the first-order part, whose mean is 0, is regressed out."""
    s, known = data["ratio"] - 1, data["first_order"]
    slope = (s * known).mean(2) / (known**2).mean(2)
    rest = s - slope[:, :, None] * known
    return rest.mean(2), rest.std(2, ddof=1) / s.shape[2] ** 0.5


def _variances(data: Data) -> tuple[np.ndarray, np.ndarray]:
    """Variance of S/S₀ and its standard error from the fourth moment, (kind, γ, m)."""
    squares = (data["ratio"] - data["ratio"].mean(2, keepdims=True)) ** 2
    return squares.mean(2), squares.std(2, ddof=1) / squares.shape[2] ** 0.5


def plot(data: Data) -> Figure:
    """Taylor above, random features below."""
    drawing, axes = style.figure(columns=3, rows=2, width=5.2, height=4.2)
    for panel, ax in zip((_taylor, _order, _negative, _ratio, _bias, _variance), axes, strict=True):
        panel(ax, data)
    return drawing


def _taylor(ax: Axes, data: Data) -> None:
    tints = style.sequence(len(data["shown"]))
    for order, line, tint in zip(data["shown"], data["taylor"], tints, strict=True):
        ax.plot(data["gamma"], line, color=tint, linestyle=style.DASHES[order % 2], label=f"K = {order}")
    ax.plot(data["gamma"], data["softmax"], color=style.colour("theory"), label="softmax")
    ax.set_ylim(3e-4, 1.5)
    style.panel(ax, "γ, spread of the logits (nats)", "sparsity S", "Taylor polynomials T_K focus up to a point",
                log="y", legend="lower left")  # fmt: skip


def _order(ax: Axes, data: Data) -> None:
    ax.plot(data["gamma"], _needed(data), ".", color=style.colour("measured"), label="least even order")
    ax.plot(
        data["gamma"], sparsity.taylor_order(data["gamma"]), color=style.colour("theory"), label="2γ² + 2.31·√3 γ + 0.7"
    )
    style.panel(ax, "γ, spread of the logits (nats)", "order K for S within 1 %", "Order needed grows as γ²",
                legend="upper left")  # fmt: skip


def _negative(ax: Axes, data: Data) -> None:
    for index, gamma in enumerate(data["gammas"]):
        share = data["negative"][index]
        error = share.std(0) / len(share) ** 0.5
        ax.errorbar(data["counts"], 100 * share.mean(0), 200 * error, label=f"γ = {gamma:g}", **style.cycle(index))
    style.panel(ax, "m, number of directions", "negative weights (%)", "Trigonometric features change sign", log="x",
                legend="upper right")  # fmt: skip


def _ratio(ax: Axes, data: Data) -> None:
    m = data["counts"]
    for index, gamma in enumerate(data["gammas"]):
        look = style.cycle(index)
        low, middle, high = np.quantile(data["ratio"][0, index], (0.25, 0.5, 0.75), axis=0)
        style.bands(ax, m, low, middle, high, color=look["color"], label=f"γ = {gamma:g}", marker=look["marker"])
        ax.plot(m, np.median(data["waves"][index], axis=0), color=look["color"], linestyle=style.DASHES[2])
    ax.plot([], [], color=style.colour("reference"), label="positive (quartiles)")
    ax.plot([], [], color=style.colour("reference"), linestyle=style.DASHES[2], label="trigonometric")
    style.reference(ax, y=1.0)
    style.panel(ax, "m, number of features", "S/S₀, S₀ = exp(−γ²/2)", f"Random features, d = {int(data['width'])}",
                log="x", legend="below", columns=3)  # fmt: skip


def _bias(ax: Axes, data: Data) -> None:
    mean, error = _means(data)
    m = data["counts"]
    for index, gamma in enumerate(data["gammas"]):
        for kind, (name, fill) in enumerate((("independent", None), ("orthogonal", "none"))):
            look: dict[str, Any] = style.cycle(index) | {"linestyle": "none"}
            low = np.minimum(2 * error[kind, index], 0.9 * np.abs(mean[kind, index]))
            ax.errorbar(
                m, np.abs(mean[kind, index]), [low, 2 * error[kind, index]], mfc=fill or look["color"],
                label=f"γ = {gamma:g}, {name}", **look,
            )  # fmt: skip
        law = np.abs(data["rates"][index, 0]) / m
        ax.plot(m, np.where(law < 3, law, np.nan), color=style.cycle(index)["color"])
    ax.set_ylim(1e-3, 3)
    style.panel(ax, "m, number of features", "|E S/S₀ − 1|", "Bias of S: 1/m once m ≫ D (lines)", log="xy",
                legend="below", columns=2)  # fmt: skip


def _variance(ax: Axes, data: Data) -> None:
    variance, error = _variances(data)
    ratio = variance[1] / variance[0]
    spread = ratio * np.hypot(error[1] / variance[1], error[0] / variance[0])
    for index, gamma in enumerate(data["gammas"]):
        ax.errorbar(data["counts"], ratio[index], 2 * spread[index], label=f"γ = {gamma:g}", **style.cycle(index))
    style.reference(ax, y=1.0)
    ax.set_ylim(0, 3)
    style.panel(ax, "m, number of features", "Var S orthogonal / independent",
                "Orthogonal against independent directions", log="x", legend="below", columns=2)  # fmt: skip


def _gaps(data: Data) -> Measured:
    """S over softmax's, less 1: order 0 near γ = 1, order 8 there and at the largest γ."""
    gamma, orders = data["gamma"], data["orders"]
    few, one = int(np.argmin(np.abs(orders - 8))), int(np.argmin(np.abs(gamma - 1)))
    chosen = [0, few, few], [one, one, -1]
    gap = (data["even"] / data["softmax"] - 1)[chosen]
    points = [f"order {order}, γ = {at:.2g}" for order, at in zip(orders[chosen[0]], gamma[chosen[1]], strict=True)]
    gaps = [
        f"{value:.2g} ({sign} {TOLERANCE:g}; {point})"
        for value, sign, point in zip(gap, ("≥", "within ±", "≥"), points, strict=True)
    ]
    return Measured(gap, where=points, reads=[data["even"], gamma], numbers={"gaps": ", ".join(gaps)})


def _order_less_formula(data: Data) -> Measured:
    """The least even order that brings S within 1 % of softmax's, less the formula rounded up, where γ ≥ ½."""
    needed, gamma = _needed(data), data["gamma"]
    rounded = 2 * np.ceil(sparsity.taylor_order(gamma) / 2)
    some = (gamma >= 0.5) & (rounded <= int(data["orders"][-1]) - 2)
    off = needed[some] - rounded[some]
    return Measured(
        off,
        where=[f"γ = {each:.3g}" for each in gamma[some]],
        reads=[data["even"], data["softmax"]],
        numbers={
            "exact": np.sum(off == 0),
            "points": off.size,
            "others": ", ".join(f"{each:g} at {np.sum(off == each)}" for each in np.unique(off[off != 0])),
        },
    )


def _bias_over_rate(data: Data) -> Measured:
    """The bias of S over its first-order rate, less 1, where that is below 3 %: the next order hardly matters there."""
    mean, error = _means(data)
    rate = data["rates"][:, :1] / data["counts"]
    close = np.abs(rate) <= 0.03
    over = (mean[0] / rate - 1)[close]
    names = np.array([[f"γ = {gamma:g}, m = {m}" for m in data["counts"]] for gamma in data["gammas"]])
    return Measured(
        over,
        standard_error=(error[0] / np.abs(rate))[close],
        where=names[close],
        reads=[data["ratio"], data["first_order"]],
        numbers={"width": int(data["width"]), "ratios": ", ".join(f"{each:.2f}" for each in over)},
    )


ROWS = (
    published(
        "features-limit",
        "Softmax attention can also be seen as linear attention of infinitely many features, so that in theory "
        r"only $d\to\infty$ closes the gap.",
        _gaps,
        ([TOLERANCE, -TOLERANCE, TOLERANCE], [np.inf, TOLERANCE, np.inf]),
        formula=True,
        source="su2023concentrate",
        place="section on general linear attention",
        hypotheses=r"features: Taylor's monomials; $\beta=0$",
        interval_from=f"a gap in $S$ of {TOLERANCE:.0%} counts as closed, our choice",
        note="$S$ over softmax's, less 1, and what it should be: <gaps>; more orders close it, but at any order it is "
        r"open where $\gamma$ is large",
    ),
    law(
        "features-taylor-order",
        "The least even Taylor order that brings $S$ within 1 % of softmax's is "
        r"$2\gamma^{2}+2.31\cdot\sqrt{3}\thinspace\gamma+0.7$, rounded up, within 2.",
        _order_less_formula,
        near(0, 2),
        proof="derived",
        place="docs/feature_attention.md",
        neighbours=["su2023concentrate", "alman2023"],
        hypotheses=r"$\beta=0$, $\gamma\geq\frac{1}{2}$",
        interval_from="our tolerance, one even order",
        note="order needed less formula: 0 at <exact> of <points> points, <others>",
    ),
    law(
        "features-bias",
        "The relative bias of $S$ by $m$ positive random features is the first-order rate over $m$, within 25 % "
        "wherever that is below 3 %.",
        _bias_over_rate,
        near(0, 0.25),
        proof="derived",
        place="docs/feature_attention.md",
        neighbours=["choromanski2021"],
        hypotheses=r"$q$ of length $\sqrt{d}\thinspace\sigma$, $k\sim N(0,\sigma^{2}I)$, "
        r"$\sigma^{2}=\gamma/\sqrt{d}$, $d=<width>$; independent directions",
        interval_from="our tolerance",
        note="measured over formula, less 1: <ratios>, of the next order",
    ),
)
