"""Tokens as particles: one cosine for all pairs, clusters on the circle, and norms as the speed of one flow."""

import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from scipy.special import ive

from experiments.figures._replicates import mean_and_error
from experiments.figures.particles import _circle_flow, _claims, _layers
from experiments.figures.particles._layers import LABELS, NORMS, Norm
from experiments.lib import figure, style
from rc_jax.collapse import clustering

ABOUT = figure.About(
    title="Tokens as particles: clusters, and norms as speed",
    caption=(
        "Tokens of length 1 under x + h SA(x) with identity weights and logits β⟨x, y⟩. First: cosines of pairs of "
        "uniform tokens (dots: means; bars: ± one deviation of a pair) and the curve of orthogonal ones. Second: "
        "largest deviation of a pair from the curve. Third: mean 1 − cos by layer under five norms (points: uniform "
        "tokens, exact mean–residual arithmetic; lines: tokens of one cosine). The others: particles on the circle "
        "with the Fourier modes of N independent tokens. Fourth: one run, as angles. Fifth: number of clusters a time "
        "4 after the linear stage (points: means ± 2 standard errors). Sixth: share of runs with as many clusters as "
        "the fastest mode has periods."
    ),
    formula=(
        "ρ̇ = 2e^{βρ}(1 − ρ)((n − 1)ρ + 1)/(e^β + (n − 1)e^{βρ});   end: (1 + h)^(−2L) or 1/L²;   "
        "circle: σ_k = k² I_k(β)/(β I₀(β)), k* ≈ √(2β)"
    ),
    topic="later",
    minutes={"smoke": 0.4, "quick": 0.7, "full": 8.0},
)

AFTER = 4.0  # of time, from the end of the linear stage to the count of clusters
FINE = 4  # layers of orthogonal tokens for one of uniform ones
SLOW = 0.01  # step of the layers whose first speeds are measured
Data = Mapping[str, np.ndarray]


class Spec(figure.Spec):
    """Tokens on the sphere of growing dimension; layers under five norms; particles on the circle."""

    tokens: int = 8
    beta: float = 2.0
    dimensions: tuple[int, ...] = (32, 128, 512)
    draws: int = 128
    step: float = 0.1
    depth: int = 80
    norm_tokens: int = 32
    norm_dimension: int = 64
    norm_draws: int = 16
    norm_step: float = 0.5
    norm_depth: int = 256
    circle_betas: tuple[float, ...] = (2.0, 5.0, 7.0, 12.0, 20.0, 40.0)
    circle_tokens: tuple[float, ...] = (2e4, 1e6, 1e8)
    circle_draws: int = 256
    carriers: int = 128
    width: float = 0.5


PRESETS = {
    "smoke": Spec(
        dimensions=(16, 64), draws=4, depth=20, norm_tokens=4, norm_dimension=8, norm_draws=4, norm_depth=64,
        circle_betas=(5.0, 7.0), circle_tokens=(2e4, 1e6), circle_draws=8, carriers=64,
    ),
    "quick": Spec(),
    "full": Spec(
        dimensions=(32, 128, 512, 1024), draws=128, norm_draws=128, norm_depth=2048, circle_draws=1024,
        circle_betas=(2.0, 3.5, 5.0, 7.0, 9.0, 12.0, 16.0, 20.0, 28.0, 40.0), width=0.25, carriers=256,
    ),
}  # fmt: skip


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Cosines in high dimension, gaps by layer under each norm, and clusters on the circle."""
    key = jax.random.key(spec.seed)
    parts = (_compute_sphere, _compute_norms, _compute_circle)
    return {
        name: each for at, part in enumerate(parts) for name, each in part(jax.random.fold_in(key, at), spec).items()
    }


def _compute_sphere(key: jax.Array, spec: Spec) -> dict[str, np.ndarray]:
    """Deviations of the cosines of uniform tokens from the law of the same layers, and orthogonal tokens."""
    run = functools.partial(_layers.cosines, beta=spec.beta)
    law = -np.expm1(clustering.equiangular_layers(np.full(spec.depth, spec.step), spec.tokens, spec.beta).log_gap)
    mean, spread, deviations = [], [], []
    for dimension in spec.dimensions:
        x = _layers.tokens(jax.random.fold_in(key, dimension), spec.draws, spec.tokens, dimension, spec.dtype)
        cosines = np.asarray(run(x, spec.step, depth=spec.depth), float)
        mean.append(cosines.mean(axis=(0, 2)))
        spread.append(cosines.std(axis=(0, 2)))
        deviations.append(np.abs(cosines - law[:, None]).max(axis=(1, 2)))
    worst, worst_error = mean_and_error(deviations, axis=1)
    # Orthogonal tokens at a small step and at half of it: the error of first order in h cancels in 2ρ(h/2) − ρ(h).
    x = math.sqrt(spec.tokens) * np.eye(spec.tokens, dtype=spec.dtype)[None]
    fine = functools.partial(run, depth=FINE * spec.depth)
    whole = np.asarray(fine(x, spec.step / FINE), float)[0, ::FINE]
    half = np.asarray(run(x, spec.step / FINE / 2, depth=2 * FINE * spec.depth), float)[0, :: 2 * FINE]
    times = spec.step * np.arange(spec.depth + 1)
    return {
        "dimensions": np.asarray(spec.dimensions), "times": times, "layers": law,
        "flow": -np.expm1(clustering.equiangular_flow(times, spec.tokens, spec.beta).log_gap),
        "mean": np.array(mean), "spread": np.array(spread), "worst": worst, "worst_error": worst_error,
        "orthogonal": 2 * half.mean(axis=1) - whole.mean(axis=1), "apart": np.ptp(half, axis=1),
        "setting": np.array([spec.tokens, spec.beta]),
    }  # fmt: skip


def _compute_norms(key: jax.Array, spec: Spec) -> dict[str, np.ndarray]:
    """Gaps and lengths by layer under each norm, of uniform tokens and of the law; first speeds of orthogonal ones."""
    x = _layers.tokens(key, spec.norm_draws, spec.norm_tokens, spec.norm_dimension, spec.dtype)
    steps = np.full(spec.norm_depth, spec.norm_step)
    gaps = [_layers.log_gaps(x, _layers.schedule(norm, steps, spec.dtype), spec.beta) for norm in NORMS]
    logs, lengths = (np.stack([np.asarray(each[at], float) for each in gaps]) for at in (0, 1))  # norm, draw, layer
    start = float(logs[0, :, 0].mean())
    # The first of slow layers on orthogonal tokens; as many draws and layers as above, for one compiled program.
    orthogonal = math.sqrt(spec.norm_dimension) * np.eye(spec.norm_tokens, spec.norm_dimension, dtype=spec.dtype)
    first = []
    for norm in NORMS:
        slow = _layers.schedule(norm, np.full(spec.norm_depth, SLOW), spec.dtype)
        log_gap = np.asarray(_layers.log_gaps(np.broadcast_to(orthogonal, x.shape), slow, spec.beta)[0], float)[0]
        first.append(-math.expm1(log_gap[1] - log_gap[0]) / SLOW)
    mean, error = mean_and_error(logs, axis=1)
    slope, slope_error = mean_and_error(logs[..., -1] - logs[..., -2], axis=1)
    products = logs + 2 * np.log(lengths)
    product, product_error = mean_and_error(products[..., -1] - products[..., -(spec.norm_depth // 4)], axis=1)
    return {
        "norm_log_gap": mean, "norm_error": error, "norm_slope": slope, "norm_slope_error": slope_error,
        "norm_product": product, "norm_product_error": product_error,
        "norm_law": np.array([_law(norm, steps, spec, start) for norm in NORMS]),
        "norm_first": np.array(first), "norm_late": _late_exponents(spec),
        "norm_setting": np.array([spec.norm_tokens, spec.beta, spec.norm_step, spec.norm_dimension]),
    }  # fmt: skip


def _late_exponents(spec: Spec) -> np.ndarray:
    """In the flow, late d log(1 − ρ)/dt of Post-LN, d log(1 − ρ)/d log t of Pre-LN and Peri-LN, /d√t for steps 1/√t."""
    flow = functools.partial(clustering.equiangular_flow, tokens=spec.norm_tokens, beta=spec.beta)
    post = np.diff(flow(np.array([100.0, 101.0])).log_gap)
    late = np.array([1e6, 1.01e6])
    powers = [np.diff(flow(late, norm=norm).log_gap) / math.log(1.01) for norm in ("pre", "peri")]
    # Steps of 1/√(t + 1) are Post-LN by the clock 2√(t + 1) − 2.
    roots = np.sqrt(np.array([1e4, 1.01e4]))
    clock = 2 * np.sqrt(roots**2 + 1) - 2
    return np.concatenate([post, *powers, np.diff(flow(clock).log_gap) / np.diff(roots)])


def _law(norm: Norm, steps: np.ndarray, spec: Spec, start: float) -> np.ndarray:
    """log(1 − ρ) of tokens with one cosine; Mix-LN is Post-LN, and Pre-LN from there."""
    run = functools.partial(clustering.equiangular_layers, tokens=spec.norm_tokens, beta=spec.beta)
    if norm != "mix":
        return run(steps, norm=norm, start=start).log_gap
    half = len(steps) // 2
    early = run(steps[:half], norm="post", start=start).log_gap
    return np.concatenate([early, run(steps[half:], norm="pre", start=float(early[-1])).log_gap[1:]])


def _compute_circle(key: jax.Array, spec: Spec) -> dict[str, np.ndarray]:
    """Numbers of clusters, growth of the modes and maxima of the linear stage, by β and by number of tokens."""
    betas, sizes = np.array(spec.circle_betas), np.array(spec.circle_tokens)
    fastest = clustering.fastest_circle_mode(betas)
    growth = clustering.circle_mode_growth(fastest, betas)
    modes = math.ceil(3 + 6.5 * math.sqrt(betas.max()))
    linear = np.log(sizes) / (2 * growth[:, None])  # when modes of 1/√N are of order one
    read = np.ceil((linear + AFTER) / spec.width).astype(int)
    # Early enough for modes of the N^(−1/4): from a time of 1 to half the linear stage of most tokens.
    early = np.stack([np.full(len(betas), round(1 / spec.width)), (linear[:, -1] / 2 / spec.width).astype(int)])
    run = functools.partial(_circle_flow.run, width=spec.width, carriers=spec.carriers, steps=int(read.max()))
    keys = jax.random.split(key, spec.circle_draws)
    count = np.empty((len(betas), len(sizes), spec.circle_draws))
    rates, maxima, shown = [], [], np.empty(0)
    for at, beta in enumerate(betas):
        kernel = np.where(np.arange(modes + 1) > 0, 2, 1) * ive(np.arange(modes + 1), beta) / ive(0, beta)
        runs = [[np.asarray(each, float) for each in run(keys, beta, kernel.astype(spec.dtype), n)] for n in sizes]
        count[at] = [maxima_of_run[:, step] for (_, maxima_of_run, _), step in zip(runs, read[at], strict=True)]
        # The last size is the largest: its linear stage is the longest.
        angles, maxima_of_run, logs = runs[-1]
        first, last = early[:, at]
        rates.append((logs[:, last] - logs[:, first]) / ((last - first) * spec.width))
        maxima.append(maxima_of_run[:, last])
        shown = angles[0] if at == len(betas) // 2 else shown
    (rate, rate_error), (mean_maxima, maxima_error) = (mean_and_error(each, axis=1) for each in (rates, maxima))
    return {
        "betas": betas, "sizes": sizes, "fastest": fastest, "count": count, "shown": shown,
        "shown_at": np.array([betas[len(betas) // 2], spec.width]),
        "rate": rate, "rate_error": rate_error,
        "growth": clustering.circle_mode_growth(np.arange(modes + 1), betas[:, None]),
        "maxima": mean_maxima, "maxima_error": maxima_error,
        "expected": clustering.expected_circle_clusters(betas, early[1] * spec.width),
    }  # fmt: skip


def plot(data: Data) -> Drawing:
    """Cosines, deviations and gaps on the sphere; angles, numbers and shares on the circle."""
    drawing, panels = style.figure(columns=3, rows=2, width=4.8, height=4.1)
    fills = (_plot_cosines, _plot_deviations, _plot_norms, _plot_angles, _plot_numbers, _plot_shares)
    for ax, fill in zip(panels, fills, strict=True):
        fill(ax, data)
    return drawing


def _plot_cosines(ax: Axes, data: Data) -> None:
    every = max(1, len(data["times"]) // 12)
    for at, colour in enumerate(style.sequence(len(data["dimensions"]))):
        shift = at * every // len(data["dimensions"])
        where = slice(shift, None, every)
        ax.errorbar(data["times"][where], data["mean"][at][where], data["spread"][at][where], fmt="o", color=colour,
                    markersize=4, capsize=2, linewidth=1, label=f"d = {data['dimensions'][at]}")  # fmt: skip
    ax.plot(data["times"], data["layers"], color=style.colour("theory"), label="orthogonal tokens")
    ax.plot(data["times"], data["flow"], ":", color=style.colour("published"), label="… with weak layers: the ODE")
    tokens, beta = data["setting"]
    style.panel(ax, "time", "cosine of a pair", f"Uniform tokens, n = {tokens:g}, β = {beta:g}", legend="lower right")


def _plot_deviations(ax: Axes, data: Data) -> None:
    d = data["dimensions"].astype(float)
    ax.errorbar(d, data["worst"], 2 * data["worst_error"], fmt="o", color=style.colour("measured"), label="measured")
    fine = np.geomspace(d[0], d[-1], 100)
    guide = np.sqrt(np.log(fine) / fine)
    ax.plot(fine, guide * data["worst"][0] / guide[0], "--", color=style.colour("published"), label="∝ √(log d / d)")
    ax.plot(fine, data["worst"][0] * (fine / d[0]) ** -0.5, ":", color=style.colour("reference"), label="∝ 1/√d")
    title = "Deviation over pairs and time"
    style.panel(ax, "dimension d", "largest |cos − curve|", title, log="xy", legend="lower left")
    ax.set_xticks(d, [f"{each:g}" for each in d])
    ax.set_yticks([0.1, 0.2, 0.3, 0.5], ["0.1", "0.2", "0.3", "0.5"])
    ax.minorticks_off()


def _plot_norms(ax: Axes, data: Data) -> None:
    depth = data["norm_law"].shape[1]
    layers = np.arange(depth)
    dots = np.unique(np.geomspace(1, depth - 1, 14).astype(int))
    for at, norm in enumerate(NORMS):
        look = style.cycle(at)
        ax.plot(layers[1:], data["norm_law"][at][1:] / math.log(10), color=look["color"])
        ax.plot(layers[dots], data["norm_log_gap"][at][dots] / math.log(10), color=look["color"], label=LABELS[norm],
                marker=look["marker"], linestyle="none", markersize=4)  # fmt: skip
    ax.set_xscale("log")
    ax.set_yscale("symlog", linthresh=10, linscale=2)
    ax.set_ylim(top=1)
    title = f"Norms as speed, h = {data['norm_setting'][2]:g}"
    style.panel(ax, "layer", "log₁₀ of mean 1 − cos", title, legend="lower left")


def _plot_angles(ax: Axes, data: Data) -> None:
    beta, width = data["shown_at"]
    shown = np.unwrap(data["shown"], axis=0)[:, ::2]
    times = width * np.arange(len(shown))
    # Angles that leave the panel on one side come back on the other.
    for turn in (-1, 0, 1):
        ax.plot(times, shown + 2 * math.pi * turn, color=style.colour("measured"), linewidth=0.4, alpha=0.6)
    ax.set_ylim(0, 2 * math.pi)
    ax.set_yticks([0, math.pi, 2 * math.pi], ["0", "π", "2π"])
    style.panel(ax, "time", "angle", f"On the circle, β = {beta:g}, N = {_claims.power(data['sizes'][-1])}")


def _plot_numbers(ax: Axes, data: Data) -> None:
    betas = data["betas"]
    fine = np.geomspace(betas[0] / 1.1, betas[-1] * 1.1, 200)
    ax.step(fine, clustering.fastest_circle_mode(fine), where="mid", color=style.colour("theory"), linewidth=1.2,
            label="fastest mode k*")  # fmt: skip
    ax.plot(fine, np.sqrt(2 * fine), "--", color=style.colour("published"), label="√(2β)")
    ax.plot(fine, np.sqrt(1.5 * fine), ":", color=style.colour("reference"), label="√(3β/2), at first")
    for which in (0, -1):
        mean, error = mean_and_error(data["count"][:, which], axis=1)
        look = style.cycle(0 if which == 0 else 2)
        ax.errorbar(betas * (1.03 if which else 0.97), mean, 2 * error, fmt=look["marker"], color=look["color"],
                    markersize=4, label=f"N = {_claims.power(data['sizes'][which])}")  # fmt: skip
    style.panel(ax, "β", "clusters", "Number of clusters", log="xy", legend="upper left")
    ax.set_xticks(betas, [f"{beta:g}" for beta in betas])
    ax.set_yticks([2, 3, 4, 6, 9], ["2", "3", "4", "6", "9"])
    ax.minorticks_off()


def _plot_shares(ax: Axes, data: Data) -> None:
    shares, errors = _claims.shares(data)
    for at, beta in enumerate(data["betas"]):
        look: dict[str, Any] = style.cycle(at)
        ax.errorbar(data["sizes"], shares[at], errors[at], **look, markersize=4, linewidth=1,
                    label=f"β = {beta:g}: {data['fastest'][at]}")  # fmt: skip
    ax.set_ylim(0, 1.05)
    style.panel(ax, "tokens N", "share of runs", "As many clusters as the fastest mode", log="x", legend="lower right",
                columns=2)  # fmt: skip


# The curve of one cosine, norms as speed, and clusters on the circle.
ROWS = (*_claims.SPHERE, *_claims.SPEEDS, *_claims.CIRCLE)
