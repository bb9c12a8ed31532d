"""The scale that maximises softmax's annealed gradient for Gaussian scores, against the published square-root law."""

import functools

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import experiments.lib.figure
from experiments.ledger import Measured, at_least, law, near, printed, published
from experiments.lib import style
from experiments.lib.figure import About, Data
from rc_jax import scale

SU, PAGE = "su2023scale", "docs/scale.md"
PUBLISHED = 0.84
BLIND = 2.5  # over √d, the article's compromise
LOW, HIGH = 2.0, 3.0  # between which the article sees the optimum
MOST = 0.9  # of the article's own n: a wide range; of the best gradient: nearly all of it
SETTING = r"$n$ standard normal scores; the annealed gradient $\alpha(1-e^{\alpha^{2}}/n)$"
ABOUT = About(
    title="α*, Gaussian scores: 0.84 √log n on the article's range",
    caption=(
        "The logit scale that maximises the annealed softmax gradient of n Gaussian scores: found by gradient "
        "(points), in closed form (line), and the published fit over n = 40 … 20 000 (shaded). First, the source's "
        "own plot: all its points on a linear axis. The ratio α*/√log n "
        "drifts through 0.84 on its way to 1: the coefficient belongs to the range that the article gives it for. The "
        "annealed mean is itself an approximation that fails near these scales."
    ),
    formula="α* = argmax α(1 − e^{α²}/n) = √(W₀(n√e/2) − ½)",
    topic="scale",
    minutes={"smoke": 0.07, "quick": 0.07, "full": 0.1},
    core=True,
)


class Spec(experiments.lib.figure.Spec):
    """The published grid n = step·(1 … points), and how far beyond it the law is followed."""

    dtype: str = "float64"
    step: int = 40
    points: int = 500
    decades: int = 250
    far_points: int = 600
    doublings: int = 40


PRESETS = {"smoke": Spec(far_points=60), "quick": Spec(), "full": Spec(far_points=3000)}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Optima on the published grid, on powers of two and far beyond, by gradient and by Lambert's W."""
    # one search for the grid and the powers of two: one program
    grid = (spec.step * np.arange(1, spec.points + 1)).astype(float)
    doubling = 2.0 ** np.arange(1, spec.doublings + 1)
    near, far = np.logspace(np.log10(2), 6, 200), 10 ** np.geomspace(np.log10(2), spec.decades, spec.far_points)
    optimum = scale.optimise_scale(np.concatenate([grid, doubling]))
    alpha, at_doublings = np.split(np.where(optimum.converged, optimum.scale, np.nan), [grid.size])
    return {
        "n": grid,
        "alpha": alpha,
        "exact": np.asarray(scale.optimal_scale_exact(grid)),
        "coefficient": np.asarray(scale.fit_coefficient(grid, alpha, "sqrt_log")),
        "misfit": np.sqrt(np.mean((PUBLISHED * np.sqrt(np.log(grid)) / alpha - 1) ** 2)),
        "best": np.asarray(optimum.value)[: grid.size],
        "blind": np.asarray(scale.annealed_objective(BLIND, grid)),
        "usual": np.asarray(scale.annealed_objective(1.0, grid)),
        "doubling_n": doubling,
        "doubling_alpha": at_doublings,
        "near_n": near,
        "near_exact": np.asarray(scale.optimal_scale_exact(near)),
        "far_n": far,
        "far_exact": np.asarray(scale.optimal_scale_exact(far)),
    }


def plot(data: Data) -> Figure:
    """Optimum against n as the source draws it and further, and its ratio to √log n against a much longer range."""
    drawing, (drawn, left, right) = style.figure(columns=3, width=4.8)
    _as_drawn(drawn, data)
    _optimum(left, data)
    _ratio(right, data)
    return drawing


def _as_drawn(ax: Axes, data: Data) -> None:
    """The source's plot: all its n on a linear axis, and its fit."""
    n = data["n"]
    ax.plot(n, data["alpha"], ".", markersize=3, color=style.colour("measured"), label=f"α*, all {n.size} points")
    ax.plot(n, PUBLISHED * np.sqrt(np.log(n)), color=style.colour("published"), label="0.84 √log n")
    style.panel(ax, "n", "α*", "As the source draws it", legend="lower right")
    style.ticks(ax.xaxis, np.linspace(0, data["n"][-1], 5))  # more of them run into each other


def _optimum(ax: Axes, data: Data) -> None:
    n, line = data["doubling_n"], data["near_n"]
    shown = n <= line[-1]
    ax.axhspan(LOW, HIGH, color=style.colour("published"), alpha=0.1, linewidth=0)
    ax.annotate("“between 2 and 3”", (2.2, 2.93), color=style.colour("published"), fontsize=9, va="top")
    ax.plot(line, data["near_exact"], color=style.colour("theory"), label="Lambert W")
    law_line = PUBLISHED * np.sqrt(np.log(line))
    ax.plot(line, law_line, color=style.colour("published"), dashes=(5, 2), label="0.84 √log n")
    ax.plot(n[shown], data["doubling_alpha"][shown], "o", color=style.colour("measured"), label="maximised by gradient")
    height, title = "α*, scale of unit-variance logits", "The optimal scale grows slowly"
    style.panel(ax, "n, number of keys", height, title, log="x", legend="lower right")


def _ratio(ax: Axes, data: Data) -> None:
    """Against the logarithm of n on a logarithmic axis: the approach to 1 takes hundreds of decades."""
    ax.axvspan(*np.log10(data["n"][[0, -1]]), color=style.colour("reference"), alpha=0.18, linewidth=0)
    ax.annotate("fitted here", (np.log10(data["n"][0]) * 1.1, 0.62), color=style.colour("reference"), fontsize=9)
    far, n = data["far_n"], data["doubling_n"]
    ax.plot(np.log10(far), data["far_exact"] / np.sqrt(np.log(far)), color=style.colour("theory"), label="Lambert W")
    some = np.unique(np.geomspace(1, n.size, 14).astype(int)) - 1
    ratio = data["doubling_alpha"] / np.sqrt(np.log(n))
    ax.plot(np.log10(n[some]), ratio[some], "o", color=style.colour("measured"), label="maximised by gradient")
    # guides, and ticks at powers of ten whose exponents are themselves on a logarithmic axis
    style.reference(ax, y=PUBLISHED, text="published: 0.84", meaning="published")
    style.reference(ax, y=1.0, text="limit: 1", meaning="corrected")
    title = "The coefficient drifts to 1"
    style.panel(ax, "n, number of keys (axis in log log n)", "α* / √log n", title, log="x", legend=(0.55, 0.2))
    powers = [p for p in (1, 2, 4, 10, 30, 100, 250) if p <= np.log10(far[-1]) * 1.01]
    ax.set_xticks(powers, [f"$10^{{{p}}}$" for p in powers])
    ax.set_xticks([], minor=True)
    ax.set_ylim(0.6, 1.03)


def _fit(data: Data) -> Measured:
    """The coefficient of the fit, with its misfit and the range of α*/√log n."""
    ratio = data["alpha"] / np.sqrt(np.log(data["n"]))
    numbers = {"misfit": float(data["misfit"]), "lowest": ratio.min(), "highest": ratio.max()}
    return Measured(data["coefficient"], numbers=numbers)


def _share_in_range(data: Data) -> Measured:
    """The share of n whose optimum lies where the article sees it."""
    alpha = data["alpha"]
    return Measured(np.mean((alpha >= LOW) & (alpha <= HIGH)), reads=[alpha])


def _share_better(data: Data) -> Measured:
    """The share of n at which the compromise has a larger gradient than 1/√d."""
    n, blind, usual = data["n"], data["blind"], data["usual"]
    # the first n from which the compromise has nearly all of the best gradient
    nearly = np.flatnonzero(blind < MOST * data["best"])
    enough = float(n[min(nearly[-1] + 1, n.size - 1)]) if nearly.size else float(n[0])
    return Measured(
        np.mean(blind > usual),
        reads=[blind, usual],
        numbers={"negative": int((blind < 0).sum()), "enough": enough},
    )


said = functools.partial(published, source=SU, formula=True)
own = functools.partial(law, proof="proved", place=PAGE)
GRID = rf"{SETTING}; $n=40\thinspace\ldots\thinspace20000$ in steps of 40, as in the article"
LARGE_RANGE = f"our tolerance: a share of {MOST:g} of the article's own $n$ is a large range"
ROWS = (
    said(
        "scale-gaussian-fit",
        r"On a certain range of $n$ the best scale roughly follows $0.84\thinspace\sqrt{\log n}$.",
        _fit,
        printed("0.84"),
        place="section on the normal distribution, 2023-10-22",
        hypotheses=rf"{GRID}; least squares for $c$ in $c\thinspace\sqrt{{\log n}}$",
        interval_from="the printed digits",
        note=r"relative misfit of $0.84\thinspace\sqrt{\log n}$ <misfit:.1%>, root mean square; "
        r"$\alpha^{\ast}/\sqrt{\log n}$ runs from <lowest:.3f> to <highest:.3f>",
    ),
    said(
        "scale-gaussian-2-to-3",
        "On a considerably large range of $n$ the best scale lies between 2 and 3.",
        _share_in_range,
        at_least(MOST),
        place="section on the normal distribution, below the plot, 2023-10-22",
        hypotheses=GRID,
        interval_from=LARGE_RANGE,
        note="measured: the share of the 500 $n$",
    ),
    said(
        "scale-gaussian-blind",
        r"As a compromise on a considerably large range of $n$, $2.5/\sqrt{d}$ taken blindly is in theory better for "
        "optimisation.",
        _share_better,
        at_least(MOST),
        place="last sentence of the section on the normal distribution, 2023-10-22",
        hypotheses=GRID,
        interval_from=LARGE_RANGE,
        note=r"measured: the share of $n$ with $f(2.5)\gt f(1)$, $f$ the article's own objective; against "
        r"$1/\sqrt{d}$; below $n=862$, so at 512 too, $1/\sqrt{d}$ is better; $f(2.5)$ is negative at <negative> $n$ "
        f"below 518, and at least {MOST:.0%} of the best from $n=<enough:g>$ on",
    ),
    # Both ends of what was computed: the closed form on the article's n, the limit at the largest n of all.
    own(
        "scale-gaussian-limit",
        r"The coefficient $\alpha^{\ast}/\sqrt{\log n}$ of the annealed optimum tends to 1 as the number of keys "
        "grows.",
        lambda data: data["far_exact"][-1] / np.sqrt(np.log(data["far_n"][-1])),
        near(1, 0.01),
        hypotheses=SETTING,
        interval_from="our tolerance: one per cent at the largest $n$",
        note="at $n=10^{250}$; outside the range of the article's 0.84",
    ),
    own(
        "scale-gaussian-lambert",
        r"The annealed optimum for normal scores is $\sqrt{W_0(n\sqrt{e}/2)-\frac{1}{2}}$, $W_0$ Lambert's function.",
        lambda data: np.abs(data["alpha"] / data["exact"] - 1).max(),
        near(0, 1e-10),
        hypotheses=GRID,
        interval_from="rounding of float64",
        neighbours=[SU],
        note="measured: largest relative gap to the optimum found by search; the "
        "article calls a closed form for given scores seemingly impossible, and this maximum not easy to find",
    ),
)
