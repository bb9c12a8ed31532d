"""Two ways to fail: logits too small and all tokens become one, logits too large and each token sees one other."""

import dataclasses
import functools
import itertools
from collections.abc import Mapping

import numpy as np
import scipy.special
from matplotlib.figure import Figure as Drawing

from experiments.ledger import Measured, at_least, at_most, near, published
from experiments.lib import figure, style
from rc_jax import collapse

ABOUT = figure.About(
    title="Two failure modes",
    caption=(
        "A network of attention layers X ← λX + SA(X) starts from orthogonal tokens and brings them back to length 1 "
        "after each layer. Its width is infinite: the T × T matrix of inner products is simulated. The logits of the "
        "first layer have standard deviation β√(log T). Above: mean correlation of tokens, and mean Σp² of a row, at "
        "the last layer; dashed: β = √2. Below: Σp² of single rows of independent logits at several T against its "
        "limit (line). Last: where the median sum of exponentials has fallen to half its mean, which marks the "
        "transition (points, ± 2 standard errors; squares: far larger T, through the largest logits alone)."
    ),
    formula="σ_a = β√(log T);  E Σp² → max(0, 1 − √2/β);  entropy/log T → max(0, 1 − β²/2)",
    topic="later",
    minutes={"smoke": 0.1, "quick": 0.45, "full": 25.0},
)
CRITICAL = 2**0.5

# Fixed in advance: tokens have collapsed into one when their correlation is 0.9 and have not below one half. A limit is
# reached when 0.02 away, at the largest T of the extreme logits; this was set after a trial of the method.
ONE, APART, LESS, AT_LIMIT = 0.9, 0.5, 0.1, 0.02
WEAK, STRONG = 0.25, 4.0  # strengths of skips
SWEPT = (2.0, 3.0)  # β of ever more tokens
LIMIT_BETA = np.array([1.0, 1.5, 2.0, 2.5, 3.0])


class Spec(figure.Spec):
    """Tokens, layers and networks of the map and its two axes; sizes of single rows and logits drawn for each."""

    dtype: str = "float64"
    tokens: int = 256
    layers: int = 8
    networks: int = 4
    betas: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 2.75, 3.0)
    strengths: tuple[float, ...] = (0.0, 0.25, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)
    row_tokens: tuple[int, ...] = (64, 256, 1024, 4096, 16384)
    logits: int = 2**20
    rows: int = 32
    more_rows: int = 16
    groups: int = 8
    sweep: tuple[int, ...] = (64, 256, 1024)
    log_tokens: tuple[float, ...] = (10.0, 100.0, 1000.0, 10_000.0)
    extreme_rows: int = 2048
    extremes: int = 64


PRESETS = {
    "smoke": Spec(
        tokens=32,
        layers=4,
        networks=2,
        strengths=(0.0, 0.25, 1.0, 4.0),
        row_tokens=(32, 128, 512),
        sweep=(16, 32, 64),
        logits=2**16,
        more_rows=2,
        extreme_rows=64,
    ),
    "quick": Spec(),
    "full": Spec(
        tokens=2048,
        betas=(0.0, 0.5, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0),
        strengths=(0.0, 0.25, 0.5, 1.0, 2.0, 4.0),
        row_tokens=(64, 256, 1024, 4096, 16384, 65536),
        logits=2**23,
        extreme_rows=4096,
    ),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """The map: correlation and Σp² at the last layer; single rows: Σp² and the crossing that marks the transition."""
    rng, pairs = np.random.default_rng(spec.seed), list(itertools.product(spec.strengths, spec.betas))
    shape = len(spec.strengths), len(spec.betas)
    drawn = [[_network(rng, spec, *at[::-1]) for _ in range(spec.networks)] for at in pairs]
    correlation, participation = np.moveaxis(np.array(drawn), 2, 0)
    data = {
        "beta": np.array(spec.betas), "strength": np.array(spec.strengths),
        **{key: each.reshape(shape) for key, each in _mean_and_error("correlation", correlation).items()},
        "participation": participation.mean(axis=1).reshape(shape),
        "map_tokens": np.array(spec.tokens), "map_layers": np.array(spec.layers),
    }  # fmt: skip
    # weak skips in the regime of high variance, for ever more tokens, from draws of their own
    swept = np.random.default_rng([spec.seed, 1])
    larger = [dataclasses.replace(spec, tokens=n) for n in spec.sweep]
    high = [[[_network(swept, each, b, WEAK)[0] for _ in range(spec.networks)] for b in SWEPT] for each in larger]
    mean, error = _mean_and_error("swept", np.array(high).reshape(-1, spec.networks)).values()
    data |= {"sweep": np.array(spec.sweep), "swept": mean.reshape(-1, len(SWEPT)),
             "swept_error": error.reshape(-1, len(SWEPT))}  # fmt: skip
    return data | _rows(rng, spec) | _limits(rng, spec)


def _network(rng: np.random.Generator, spec: Spec, beta: float, strength: float) -> tuple[float, float]:
    """Correlation of the tokens after the last layer, and mean Σp² in it; K is the matrix of their inner products.

    Infinitely wide layers: logits σ F G Fᵀ with F Fᵀ = K and G Gaussian, values' inner products P K Pᵀ.
    """
    n = spec.tokens
    sigma, gram, p = beta * np.sqrt(np.log(n)), np.eye(n), np.eye(n)
    for _ in range(spec.layers):
        factor = np.linalg.cholesky(gram + 1e-9 * np.eye(n))
        p = scipy.special.softmax(sigma * (factor @ rng.normal(size=(n, n)) @ factor.T), axis=1)
        gram = strength**2 * gram + p @ gram @ p.T
        size = np.sqrt(np.diag(gram))
        gram = gram / size[:, None] / size
    return (gram.sum() - n) / (n * (n - 1)), float(np.sum(p * p) / n)


def _mean_and_error(name: str, values: np.ndarray) -> dict[str, np.ndarray]:
    """Mean over groups, the second axis, and its standard error."""
    error = values.std(axis=1, ddof=1) / np.sqrt(values.shape[1])
    return {name: values.mean(axis=1), f"{name}_standard_error": error}


def _rows(rng: np.random.Generator, spec: Spec) -> dict[str, np.ndarray]:
    """By T and β: mean Σp² of rows of independent logits; by T: the β at which the median of Z/EZ is one half."""
    beta, near = np.arange(1, 31) / 10, np.array([1.2, 1.3, 1.4, 1.5])
    square = np.zeros((len(spec.row_tokens), spec.groups, beta.size))
    crossing = np.zeros((len(spec.row_tokens), spec.groups))
    for index, n in enumerate(spec.row_tokens):
        count = max(spec.logits // spec.groups // n, spec.rows)
        for group in range(spec.groups):
            normals = rng.normal(size=(count, n))
            square[index, group] = [_row_statistics(normals, b)[0].mean() for b in beta]
            # More rows for the median of Z, which is read off near the transition only.
            logs = []
            for _ in range(spec.more_rows):
                normals = rng.normal(size=(count, n))
                logs.append([_row_statistics(normals, b)[1] for b in near])
            crossing[index, group] = _crossing(near, np.median(np.concatenate(logs, axis=1), axis=1))
    return {
        "row_beta": beta, "row_tokens": np.array(spec.row_tokens, float),
        "row_limit": np.asarray(collapse.random_energy_participation(beta)),
        **_mean_and_error("row_participation", square), **_mean_and_error("crossing", crossing),
    }  # fmt: skip


def _row_statistics(normals: np.ndarray, beta: float) -> tuple[np.ndarray, np.ndarray]:
    """Σp² and log(Z/EZ) of rows of logits, their standard deviation β√(log T)."""
    n, top = normals.shape[1], normals.max(axis=1, keepdims=True)
    sigma = beta * np.sqrt(np.log(n))
    weights = np.exp(sigma * (normals - top))
    total = weights.sum(axis=1)
    square = np.einsum("ij,ij->i", weights, weights) / total**2
    return square, np.log(total / n) + sigma * top[:, 0] - sigma**2 / 2


def _crossing(beta: np.ndarray, log_ratio: np.ndarray) -> float:
    """The first β at which a falling curve passes log ½, by linear interpolation."""
    below = np.flatnonzero(log_ratio < -np.log(2))
    if not below.size or below[0] == 0:
        return np.nan
    i = below[0]
    part = (log_ratio[i - 1] + np.log(2)) / (log_ratio[i - 1] - log_ratio[i])
    return float(beta[i - 1] + part * (beta[i] - beta[i - 1]))


def _limits(rng: np.random.Generator, spec: Spec) -> dict[str, np.ndarray]:
    """By log T, far beyond what can be drawn in full: the crossing and mean Σp², from the largest logits of a row."""
    shape = len(spec.log_tokens), spec.groups
    crossing, share = np.zeros(shape), np.zeros((*shape, LIMIT_BETA.size))
    for index, log_n in enumerate(spec.log_tokens):
        for group in range(spec.groups):
            largest = _largest(rng, log_n, spec.extreme_rows, spec.extremes)
            share[index, group] = [_extreme_statistics(largest, log_n, b)[0].mean() for b in LIMIT_BETA]
            crossing[index, group] = _bisected(largest, log_n)
    means = _mean_and_error("limit_crossing", crossing) | _mean_and_error("limit_participation", share)
    return {"log_tokens": np.array(spec.log_tokens), "limit_beta": LIMIT_BETA} | means


def _largest(rng: np.random.Generator, log_n: float, rows: int, count: int) -> np.ndarray:
    """The `count` largest of T normals, largest first: their tail probabilities times T are a Poisson process."""
    arrivals = np.cumsum(rng.exponential(size=(rows, count)), axis=1)
    return -scipy.special.ndtri_exp(np.log(arrivals) - log_n)


def _extreme_statistics(largest: np.ndarray, log_n: float, beta: float) -> tuple[np.ndarray, np.ndarray]:
    """Σp² and log(Z/EZ) of rows, all smaller logits at their mean share of Z."""
    sigma = beta * np.sqrt(log_n)
    terms = sigma * largest - sigma**2 / 2 - log_n
    rest = scipy.special.log_ndtr(largest[:, -1] - sigma)
    total = np.asarray(scipy.special.logsumexp(np.column_stack([terms, rest]), axis=1))
    return np.exp(2 * (terms - total[:, None])).sum(axis=1), total


def _bisected(largest: np.ndarray, log_n: float) -> float:
    """The β between 1 and 2 at which the median of log(Z/EZ) passes log ½."""
    low, high = 1.0, 2.0
    for _ in range(16):
        middle = (low + high) / 2
        above = np.median(_extreme_statistics(largest, log_n, middle)[1]) > -np.log(2)
        low, high = (middle, high) if above else (low, middle)
    return (low + high) / 2


def plot(data: Mapping[str, np.ndarray]) -> Drawing:
    """The map twice; single rows; the transition's place by T."""
    drawing, (correlation, participation, rows, transition) = style.figure(columns=2, rows=2, height=4.2)
    n, layers = int(data["map_tokens"]), int(data["map_layers"])
    columns, lines = np.arange(data["beta"].size), np.arange(data["strength"].size)
    for ax, name, title, bar in (
        (correlation, "correlation", "Rank collapse", f"correlation of tokens after {layers} layers"),
        (participation, "participation", "Entropy collapse", f"mean Σp² of a row in layer {layers}"),
    ):
        image = ax.pcolormesh(columns, lines, data[name], vmin=0, vmax=1, cmap="viridis", shading="nearest")
        drawing.colorbar(image, ax=ax, label=bar)
        ax.axvline(np.interp(CRITICAL, data["beta"], columns), color="white", linestyle=style.DASHES[1])
        ax.set_xticks(columns[::2], [f"{b:g}" for b in data["beta"][::2]])
        ax.set_yticks(lines, [f"{s:g}" for s in data["strength"]])
        ax.grid(visible=False)
        style.panel(ax, "β = σ_a/√(log T)", "λ, strength of the skip connection", f"{title}, T = {n}")
    # Single rows, and the place of the transition against 1/log T.
    sizes = data["row_tokens"]
    for index, color in enumerate(style.sequence(sizes.size)):
        rows.plot(data["row_beta"], data["row_participation"][index], style.MARKERS[index % len(style.MARKERS)],
                  color=color, markersize=4, label=f"T = {sizes[index]:g}")  # fmt: skip
    rows.plot(data["row_beta"], data["row_limit"], color=style.colour("theory"), label="T → ∞")
    style.reference(rows, x=CRITICAL)
    style.panel(rows, "β", "mean Σp² of a row", "Concentration of single rows", legend="upper left")
    transition.errorbar(1 / np.log(sizes), data["crossing"], 2 * data["crossing_standard_error"], fmt="o",
                        color=style.colour("measured"))  # fmt: skip
    transition.errorbar(1 / data["log_tokens"], data["limit_crossing"], 2 * data["limit_crossing_standard_error"],
                        fmt="s", color=style.colour("theory"), markerfacecolor="none")  # fmt: skip
    style.reference(transition, y=CRITICAL, text="√2", meaning="published")
    transition.set_xlim(0, None)
    transition.set_ylim(1.2, 1.5)
    style.panel(transition, "1/log T", "β where the median of Z is half its mean", "Place of the transition")
    return drawing


def _transition(data: Mapping[str, np.ndarray]) -> Measured:
    """The β at which the median sum of exponentials is half its mean, at the largest T of the extreme logits."""
    return Measured(
        data["limit_crossing"][-1],
        standard_error=data["limit_crossing_standard_error"][-1],
        reads=[data[name] for name in SINGLE_ROWS],
        numbers={"tokens": data["row_tokens"][-1], "crossing": data["crossing"][-1]},
    )


def _less_limit(data: Mapping[str, np.ndarray]) -> Measured:
    """Mean Σp² of a row less its limit, at the largest T of the extreme logits."""
    beta = data["limit_beta"]
    return Measured(
        data["limit_participation"][-1] - np.maximum(0.0, 1 - CRITICAL / beta),
        standard_error=data["limit_participation_standard_error"][-1],
        where=[f"β = {each:g}" for each in beta],
        reads=[data[name] for name in SINGLE_ROWS],
        numbers={
            "tokens": data["row_tokens"][-1],
            "off": data["row_participation"][-1, -1] - data["row_limit"][-1],
        },
    )


def _with_skips(data: Mapping[str, np.ndarray], strength: float) -> np.ndarray:
    """Correlation of the tokens at the last layer and its error, by β, under the skips nearest to this strength."""
    at = int(np.argmin(np.abs(data["strength"] - strength)))
    return np.stack([data["correlation"][at], data["correlation_standard_error"][at]])


def _rank_collapse(data: Mapping[str, np.ndarray]) -> Measured:
    """The least correlation at low β under weak skips, and what it has above that at the largest β."""
    beta, (correlation, error) = data["beta"], _with_skips(data, WEAK)
    at = int(np.argmin(np.where(beta <= 1, correlation, np.inf)))
    return Measured(
        [correlation[at], correlation[at] - correlation[-1]],
        standard_error=[error[at], np.hypot(error[at], error[-1])],
        where=["β ≤ 1", f"β ≤ 1 less β = {beta[-1]:g}"],
        reads=[beta, data["strength"]],
        numbers=_network_size(data),
    )


def _correlation(data: Mapping[str, np.ndarray], strength: float, low: float, high: float) -> Measured:
    """Correlation of the tokens under skips of this strength, at β from low to high."""
    beta = data["beta"]
    between = (beta >= low) & (beta <= high)
    correlation, error = _with_skips(data, strength)[:, between]
    return Measured(
        correlation,
        standard_error=error,
        where=[f"β = {each:g}" for each in beta[between]],
        reads=[beta, data["strength"]],
        numbers=_network_size(data),
    )


def _preserved(data: Mapping[str, np.ndarray]) -> Measured:
    """Change of the correlation from the fewest to the most tokens, by β, and the correlation with the most."""
    swept, error = data["swept"], data["swept_error"]
    low, high = (", ".join(f"{value:.3f}" for value in column) for column in swept.T)
    return Measured(
        np.append(swept[-1] - swept[0], swept[-1, -1]),
        standard_error=np.append(np.hypot(error[0], error[-1]), error[-1, -1]),
        where=[*(f"change with T, β = {each:g}" for each in SWEPT), f"β = {SWEPT[-1]:g}, T = {data['sweep'][-1]}"],
        reads=[swept],
        numbers={"low": low, "high": high, "least": data["sweep"][0], "most": data["sweep"][-1],
                 "layers": int(data["map_layers"])},
    )  # fmt: skip


def _network_size(data: Mapping[str, np.ndarray]) -> dict[str, int]:
    """Tokens and layers, for texts."""
    return {"tokens": int(data["map_tokens"]), "layers": int(data["map_layers"])}


SINGLE_ROWS = ("row_tokens", "row_participation", "row_limit", "crossing")
NETWORK = "here <tokens> orthogonal tokens, <layers> layers of infinite width, no MLP"
goldt = functools.partial(published, source="giorlandino2025")
of_rows = functools.partial(
    goldt,
    place="two regimes: abstract of version 1; √2 and 1 − √2/β: released code",
    hypotheses=r"orthogonal tokens, logits of standard deviation $\beta\sqrt{\log T}$, $T\to\infty$",
    formula=True,
    after_result=True,
    interval_from=r"our tolerance, set after a trial of the method, at $\log T=10000$",
)
of_tokens = functools.partial(goldt, place="abstract of version 1")
ROWS = (
    of_rows(
        "failures-transition",
        r"Attention changes from uniform to concentrated rows at $\beta=\sqrt{2}$.",
        _transition,
        near(CRITICAL, AT_LIMIT),
        note=r"as in the random-energy model of Derrida 1981; $\beta$ where the median sum of exponentials is half its "
        "mean; at $T=<tokens:g>$ it is <crossing:.3f>",
    ),
    of_rows(
        "failures-above",
        r"The mean $\sum p^{2}$ of a row tends to 0 below $\beta=\sqrt{2}$ and to $1-\sqrt{2}/\beta$ above.",
        _less_limit,
        near(0, AT_LIMIT),
        note=r"as in the random-energy model of Derrida 1981; measured less the limit; at $T=<tokens:g>$ and $\beta=3$ "
        "it is <off:.3f> off",
    ),
    of_tokens(
        "failures-rank",
        "Queries and keys of low variance recover the known rank collapse: tokens become alike.",
        _rank_collapse,
        at_least([ONE, LESS]),
        formula=True,
        hypotheses=rf"$\beta\leq1$, skips of strength {WEAK:g}; {NETWORK}",
        interval_from="our tolerance",
        note=r"correlation of the tokens, its least at $\beta\leq1$; last point: that less the one at the largest "
        r"$\beta$",
    ),
    of_tokens(
        "failures-skip",
        "A residual connection of enough strength keeps the signal where the variance is low.",
        lambda data: _correlation(data, STRONG, 0, 1),
        at_most(APART),
        formula=True,
        hypotheses=rf"$\beta\leq1$, skips of strength {STRONG:g}; {NETWORK}",
        interval_from="our tolerance",
        note="correlation of the tokens",
    ),
    of_tokens(
        "failures-no-rank",
        "In the regime of high variance, where the entropy collapses (failures-above), the signal is preserved.",
        _preserved,
        (np.array([-np.inf, -np.inf, -np.inf]), np.array([0, 0, APART])),
        hypotheses=rf"$\beta=2$ and 3, skips of strength {WEAK:g}, <least> to <most> orthogonal tokens, <layers> "
        rf"layers of "
        "infinite width, no MLP; the theory is one of $T\\to\\infty$",
        after_result=True,
        interval_from="the sign of the change with $T$, and our tolerance, that of a strong skip connection "
        "(failures-skip), at the larger $\\beta$ and the largest $T$; chosen when numbers at three $T$ were known",
        note="correlation of the tokens: 1 is rank collapse; $\\beta=2$: <low>; $\\beta=3$: <high>; rows of few "
        "tokens are far "
        "from their limit (failures-above)",
    ),
)
