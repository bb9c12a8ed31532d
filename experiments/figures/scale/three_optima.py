"""Three averages, three optimal scales: annealed, typical and row by row; and the mean, which has none."""

import jax
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import experiments.lib.figure
from experiments.figures.scale.parts._three_optima_rows import COSINE_RISE, CURVE, CURVE_DIM, ROWS
from experiments.lib import style
from experiments.lib.figure import About, Data
from rc_jax import scale
from rc_jax.scale.quadrature import mean_largest, tie_density

PAIR = 1.5434046384182085  # 2x with x tanh x = 1/2
BLOCK = 11  # scales in one call
MARKED = np.array([0.5, 0.7, 1.0, 2.0])
KEYS = "n, number of keys"
ABOUT = About(
    title="Which α lets most gradient through? Three answers, and a mean without one",
    caption=(
        "Top: the annealed optimum (line), the maximiser of the mean logarithm (points, with standard errors) and the "
        "median of the best scale of each row (band: quartiles), for Gaussian scores and for cosines divided by √d. "
        "Below left: the true mean gradient of 1024 Gaussian scores begins as α, rises at every α and tends to the "
        "mean of the largest score. Only the annealed curve falls. Below right: how often the best scale of a row "
        "exceeds a, by drawing rows and by importance sampling, and its law."
    ),
    formula="E α(1 − Σp²) = E Σ p s = d/dα E log Z;  P(α* > a) → 1.543 E[max s]/a",
    topic="scale",
    minutes={"smoke": 0.5, "quick": 0.85, "full": 20},
)
__all__ = ["ABOUT", "PRESETS", "ROWS", "Spec", "compute", "plot"]


class Spec(experiments.lib.figure.Spec):
    """Sizes and dimensions compared, rows for each mean, for each median, for the curves and for the tail."""

    powers: tuple[int, ...] = (3, 5, 7, 10, 13, 16, 20)
    dims: tuple[int, ...] = (8, 128, 4096)
    typical_rows: int = 1024
    median_rows: int = 500
    curve_rows: int = 32_768
    curve_points: int = 40
    tail_rows: int = 512
    plain_rows: int = 2000


PRESETS = {
    "smoke": Spec(
        powers=(3, 10, 20), dims=(128,), typical_rows=64, median_rows=100, curve_rows=256, curve_points=12,
        tail_rows=32, plain_rows=200,
    ),
    "quick": Spec(),
    "full": Spec(
        powers=tuple(range(3, 21)), dims=(3, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096), typical_rows=20_000,
        median_rows=10_000, curve_rows=400_000, curve_points=80, tail_rows=20_000, plain_rows=50_000,
    ),
}  # fmt: skip


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """The three optima over sizes and dimensions, the mean's curves, and the tail."""
    key = jax.random.key(spec.seed)
    n = 2 ** np.asarray(spec.powers)
    return {
        "n": n,
        "dims": np.asarray(spec.dims),
        **_optima(jax.random.fold_in(key, 0), spec, n),
        **_curves(jax.random.fold_in(key, 1), spec),
        **_tails(jax.random.fold_in(key, 2), spec),
    }


def _optima(key: jax.Array, spec: Spec, n: np.ndarray) -> dict[str, np.ndarray]:
    """Rows: Gaussian scores, then each dimension; in units of √d for cosines."""
    # every law and n: the annealed scale, the typical one with its error, and quartiles over rows
    laws = [None, *(float(d) for d in spec.dims)]
    shape = (len(laws), len(n))
    annealed, typical, error, quartiles = np.zeros(shape), np.zeros(shape), np.zeros(shape), np.zeros((*shape, 3))
    for i, dim in enumerate(laws):
        unit = 1 if dim is None else np.sqrt(dim)
        annealed[i] = np.asarray(scale.optimal_scale(n, dim)) / unit
        for j, count in enumerate(n):
            own = jax.random.fold_in(key, 100 * i + j)
            optimum = scale.typical_optimum(jax.random.fold_in(own, 0), int(count), dim, spec.typical_rows)
            typical[i, j] = np.where(optimum.converged, optimum.scale, np.nan) / unit
            error[i, j] = np.asarray(optimum.standard_error, float) / unit
            best = scale.sample_scales(
                jax.random.fold_in(own, 1), int(count), dim, spec.median_rows // (1 if dim is None else 4)
            )
            quartiles[i, j] = np.quantile(best, [0.25, 0.5, 0.75]) / unit
    return {
        "annealed": annealed, "typical": typical, "typical_error": error, "quartiles": quartiles,
    }  # fmt: skip


def _curves(key: jax.Array, spec: Spec) -> dict[str, np.ndarray]:
    critical = float(np.sqrt(2 * np.log(CURVE)))
    grid = np.geomspace(0.1 * critical, 20 * critical, spec.curve_points - MARKED.size)
    alpha = np.sort(np.concatenate([grid, MARKED * critical]))
    fine = np.linspace(0.1, 0.72, 125)  # in units of α_c; falls below 0 beyond
    mean, error = _expected(key, alpha, CURVE, None, spec.curve_rows, spec.dtype)
    rise, rise_error = _expected(key, COSINE_RISE, CURVE, float(CURVE_DIM), spec.curve_rows, spec.dtype)
    return {
        "alpha": alpha / critical,
        "mean": mean,
        "mean_error": error,
        "annealed_alpha": fine,
        "annealed_curve": np.asarray(scale.annealed_objective(fine * critical, float(CURVE)), float),
        "plateau": np.array(mean_largest(CURVE)),
        "cosine_rise": rise,
        "cosine_rise_error": rise_error,
    }


def _expected(
    key: jax.Array, alpha: np.ndarray, n: int, dim: float | None, samples: int, dtype: str
) -> tuple[np.ndarray, np.ndarray]:
    """`expected_objective` in blocks of one length, so that one program serves all."""
    blocks = [alpha[i : i + BLOCK] for i in range(0, alpha.size, BLOCK)]
    full = [np.pad(each, (0, BLOCK - each.size), mode="edge").astype(dtype) for each in blocks]
    means = [scale.expected_objective(key, each, n, dim, samples) for each in full]
    mean, error = (np.concatenate([np.asarray(each[i], float) for each in means])[: alpha.size] for i in (0, 1))
    return mean, error


def _tails(key: jax.Array, spec: Spec) -> dict[str, np.ndarray]:
    # probabilities by importance sampling for both laws of scores, and plain draws of Gaussian rows
    level = np.geomspace(2, 1e6, 24)
    chance, error = scale.scale_tail(key, level.astype(spec.dtype), CURVE, samples=spec.tail_rows)
    cosine, cosine_error = scale.scale_tail(
        key, (level * np.sqrt(CURVE_DIM)).astype(spec.dtype), CURVE, float(CURVE_DIM), spec.tail_rows
    )
    own = [jax.random.fold_in(key, 1 + i) for i in range(-(-spec.plain_rows // spec.median_rows))]
    drawn = np.concatenate([scale.sample_scales(each, CURVE, samples=spec.median_rows) for each in own])
    return {
        "level": level,
        "tail": np.asarray(chance, float),
        "tail_error": np.asarray(error, float),
        "tail_law": PAIR * tie_density(CURVE) / level,
        "cosine_tail": np.asarray(cosine, float),
        "cosine_tail_error": np.asarray(cosine_error, float),
        "cosine_tail_law": PAIR * tie_density(CURVE, CURVE_DIM) / level / np.sqrt(CURVE_DIM),
        "drawn": np.sort(np.asarray(drawn, float)),
    }


def plot(data: Data) -> Figure:
    """Optima for Gaussian scores and for cosines; the mean's curve; the tail."""
    drawing, axes = style.figure(columns=2, rows=2)
    _gaussian(axes[0], data)
    _cosine(axes[1], data)
    _mean(axes[2], data)
    _tail(axes[3], data)
    return drawing


def _gaussian(ax: Axes, data: Data) -> None:
    n, (low, median, high) = data["n"], data["quartiles"][0].T
    style.bands(ax, n, low, median, high, meaning="corrected", label="row by row: median, quartiles", marker="s")
    ax.errorbar(
        n, data["typical"][0], 2 * data["typical_error"][0], fmt="o", color=style.colour("measured"),
        label="typical: most E log",
    )  # fmt: skip
    ax.plot(n, data["annealed"][0], color=style.colour("published"), dashes=(5, 2), label="annealed")
    ax.plot(n, np.sqrt(2 * np.log(n)), color=style.colour("theory"), lw=1.1, label="α$_c$ = √(2 log n)")
    ax.set_yscale("log")
    ax.set_ylim(0.8, 5 * high.max())
    ax.set_yticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
    ax.set_yticks([], minor=True)
    scale_label = "optimal scale α of unit-variance logits"
    style.panel(ax, KEYS, scale_label, "Gaussian scores", log="x", base=2, legend="upper left", columns=2)


def _cosine(ax: Axes, data: Data) -> None:
    n, dims = data["n"], data["dims"]
    some = np.unique(np.linspace(0, len(dims) - 1, 4).astype(int))
    for tint, i in zip(style.sequence(len(some)), some, strict=True):
        ax.plot(n, data["quartiles"][i + 1, :, 1], "s", mfc="none", color=tint)
        ax.plot(n, data["typical"][i + 1], "o", color=tint, label=f"d = {dims[i]}")
        ax.plot(n, data["annealed"][i + 1], color=tint, dashes=(5, 2))
    grey = style.colour("reference")
    ax.plot([], [], "s", mfc="none", color=grey, label="row by row: median")
    ax.plot([], [], "o", color=grey, label="typical")
    ax.plot([], [], color=grey, dashes=(5, 2), label="annealed")
    ax.set_yscale("log")
    title = "Cosines in d dimensions"
    style.panel(ax, KEYS, "optimal scale / √d", title, log="x", base=2, legend="upper left")


def _mean(ax: Axes, data: Data) -> None:
    x, critical = data["alpha"], np.sqrt(2 * np.log(CURVE))
    shown = data["annealed_curve"] > 0
    fine = data["annealed_alpha"][shown]
    ax.plot(x, np.minimum(x, 1) * critical, color=style.colour("theory"), lw=1.2, label="n → ∞: min(α, α$_c$)")
    ax.plot(fine, data["annealed_curve"][shown], color=style.colour("published"), dashes=(5, 2), label="annealed")
    ax.plot(x, data["mean"], "o", ms=4, color=style.colour("measured"), label="true mean")
    style.reference(ax, y=float(data["plateau"]), text="E max s")
    title = f"The mean has no maximum, n = {CURVE}"
    style.panel(ax, "α/α$_c$", "mean gradient α(1 − E Σp²)", title, log="x", legend="lower right")
    ax.set_ylim(0, 1.15 * critical)
    ax.xaxis.set_major_formatter("{x:g}")


def _tail(ax: Axes, data: Data) -> None:
    level, drawn = data["level"], data["drawn"]
    ax.plot(level, data["tail_law"], color=style.colour("theory"), label="1.543 E[max s]/a")
    share = 1 - np.arange(drawn.size) / drawn.size
    ax.step(drawn, share, color=style.colour("corrected"), alpha=0.7, label=f"{drawn.size} rows drawn")
    ax.errorbar(
        level, data["tail"], 2 * data["tail_error"], fmt="o", ms=4, color=style.colour("measured"),
        label="importance sampling",
    )  # fmt: skip
    at, title = "a, scale of unit-variance logits", "No mean row by row, n = 1024"
    style.panel(ax, at, "P(best scale of a row > a)", title, log="xy", legend="upper right")
    ax.set_xlim(1, 2e6)
    ax.set_ylim(0.3 * data["tail_law"][-1], 2)
