"""Published forms of the logit scale: what each puts on scores of variance one, and what gradient that lets through."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy import interpolate, stats

from experiments.figures._peaks import peaks
from rc_jax import scale

GRID = np.geomspace(0.25, 64, 97)  # α on standardised scores
SWIN, CLAMP, LEARNED, TRAINED_AT, YARN_AT = 10.0, 100.0, 0.43, 512, 4096
NODES = 64  # lengths of a query in an average over them
GAUSSIAN = 1e6  # cosines of so many dimensions, times its root, are standard normal to 1e-5


def log_pairs(n: Any) -> Any:
    """log₂ of the number of entries off the diagonal."""
    return np.log2(n * (n - 1.0))


def yarn(factor: Any) -> Any:
    """The factor of YaRN on the logits, for texts `factor` times as long as those of training."""
    return (1 + 0.1 * np.log(np.maximum(factor, 1))) ** 2


LAWS: dict[str, Callable[[Any], Any]] = {
    "constant": np.ones_like, "√log n": lambda n: np.sqrt(np.log(n)), "log n": np.log,
}  # fmt: skip


class Form(NamedTuple):
    """A form of the scale: `alpha(n, d)` is its factor on √d q·k/(|q||k|) where `cosine`, else on q·k/√d."""

    key: str
    name: str
    source: str
    cosine: bool
    alpha: Callable[[Any, int], Any]


FORMS = (
    Form("dot", "1/√d", "Vaswani et al. 2017", False, lambda n, d: np.ones(np.shape(n))),
    Form(
        "unit-gain", "QK-norm, gain 1; nGPT, √d", "Dehghani et al. 2023, Loshchilov et al. 2024", True,
        lambda n, d: np.ones(np.shape(n)),
    ),
    Form("swin", "Swin v2, 10", "Liu et al. 2022", True, lambda n, d: SWIN * d**-0.5 + 0 * n),
    Form("log-pairs", "QKNorm, log₂(n² − n)", "Henry et al. 2020", True, lambda n, d: log_pairs(n) * d**-0.5),
    Form(
        "log512", "log₅₁₂ n/√d", "Su Jianlin 2021", False,
        lambda n, d: np.log(n) / np.log(TRAINED_AT),
    ),
    Form("ssmax-learned", "SSMax, 0.43 log n", "Nakanishi 2025", False, lambda n, d: LEARNED * np.log(n)),
    Form("ssmax-one", "SSMax, log n", "Nakanishi 2025", False, lambda n, d: np.log(n)),
    Form(
        "yarn", f"YaRN, trained on {YARN_AT}", "Peng et al. 2023", False, lambda n, d: yarn(n / YARN_AT)
    ),
    Form(
        "annealed", "α*(n)/√d", "Su Jianlin 2023", False,
        lambda n, d: np.asarray(scale.optimal_scale_exact(np.asarray(n, float))),
    ),
)  # fmt: skip


def typical_curves(key: jax.Array, n: np.ndarray, dims: tuple[int, ...], samples: int) -> np.ndarray:
    """E log α(1 − Σp²) of standardised scores: (law, width, n, α); law 0 is dot, 1 cosine.

    Cosines are independent. Inner products of a row share their query, of squared length d τ², τ² ~ χ²_d/d: given it
    they are independent normals of standard deviation τ, and softmax of α τ s has the gradient of scale α τ over τ.
    """

    def simulated(dim: float) -> np.ndarray:
        curves = [scale.typical_objective(key, GRID * dim**0.5, int(count), dim, samples)[0] for count in n]
        return np.asarray(curves, float) - np.log(dim) / 2

    normal = simulated(GAUSSIAN)
    dots, cosines = [shared_query(normal, dim) for dim in dims], [simulated(float(dim)) for dim in dims]
    return np.stack([np.stack(dots), np.stack(cosines)])


def shared_query(normal: np.ndarray, dim: int) -> np.ndarray:
    """Curves of independent normal scores averaged over the length of the query: (n, α)."""
    lengths = np.sqrt(stats.chi2.ppf((np.arange(NODES) + 0.5) / NODES, dim) / dim)
    curve = interpolate.CubicSpline(np.log(GRID), normal, axis=-1)
    return np.mean([curve(np.log(GRID * length)) - np.log(length) for length in lengths], axis=0)


def at_scale(curves: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    """Each curve over the grid (last axis) at its own α, one for each curve."""
    flat = [interpolate.CubicSpline(np.log(GRID), curve)(np.log(each))
            for curve, each in zip(curves.reshape(-1, GRID.size), np.ravel(alpha), strict=True)]  # fmt: skip
    return np.reshape(flat, alpha.shape)


def tops(curves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Maximiser of each curve over the grid, and the curve there."""
    alpha = peaks(GRID, curves)
    return alpha, at_scale(curves, alpha)


def growth_laws(
    curves: np.ndarray, n: np.ndarray, ends: tuple[int, int], middle_alpha: np.ndarray
) -> dict[str, np.ndarray]:
    """The least share of the largest typical gradient over the n between two ends, for α = c·law(n).

    `law_least`: (law, scores, width, α), α the one at the geometric middle of the ends; and `law_worst` its
    largest value, (law, scores, width).
    """
    inside = (n >= ends[0]) & (n <= ends[1])
    places = n[inside].astype(float)
    middle = np.sqrt(np.array(ends, float).prod())
    growth = np.array([law(places) / law(middle) for law in LAWS.values()])

    def shares(row: np.ndarray) -> np.ndarray:
        """Logarithms of the least shares for one kind of scores and width, whose curves these are: (law, α)."""
        most = tops(row)[1]
        splines = [interpolate.CubicSpline(np.log(GRID), curve) for curve in row]
        every = [[spline(np.log(middle_alpha * by)) - top for spline, by, top in zip(splines, law, most, strict=True)]
                 for law in growth]  # fmt: skip
        return np.min(every, axis=1)

    # Of each law the factor whose worst length is best (a maximin over n).
    least = np.moveaxis(np.array([[shares(row[inside]) for row in law] for law in curves]), 2, 0)
    return {"law_least": np.exp(least), "law_worst": np.exp(least.max(-1))}
