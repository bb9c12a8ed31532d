"""Two tokens: how fast they meet under weights with and without a sum, and when random values drive them apart."""

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure as Drawing

from experiments.ledger import Measured, at_least, law, near, published
from experiments.lib import figure, style

ABOUT = figure.About(
    title="Two tokens: a faster flow, and random values",
    caption=(
        "Tokens of length 1 with logits β⟨x, y⟩. First: 1 − ρ, ρ the common cosine, under softmax weights and under "
        "weights e^{β⟨x, y⟩}/n without a sum. Second: two tokens near opposite places in layers whose values are a new "
        "Gaussian matrix each; drift of log(1 + ρ) in a unit of time, measured (points) and to first order (lines). "
        "Third: share of pairs that start at ρ = −0.98 and end as opposites, against β over its threshold."
    ),
    formula="1 − ρ ~ e^{−2t}, e^{−2e^β t};   E d log(1 + ρ)/dt = (d − 1)/cosh²β − 2;   cosh²β* = (d − 1)/2",
    topic="later",
    minutes={"smoke": 0.1, "quick": 1.2, "full": 2.0},
)
PAGE = "docs/clustering.md"
START = 1e-6  # 1 + ρ at first where a drift is measured
# Fixed before the run: of an exponent, of a drift, which layers of step h change in proportion to h, and of a share.
EXPONENT, DRIFT, SOME = 0.02, 0.3, 0.05
OPPOSITE = 0.1  # 1 + ρ of opposites
STORED = 20  # one layer in so many is stored
Data = Mapping[str, np.ndarray]


class Spec(figure.Spec):
    """Tokens and β of the flows; dimensions, β over the threshold and pairs of the noisy layers, and their steps."""

    dtype: str = "float64"
    tokens: int = 8
    betas: tuple[float, ...] = (0.5, 1.0, 2.0)
    step: float = 1e-3
    time: float = 8.0
    dimensions: tuple[int, ...] = (4, 10)
    ratios: tuple[float, ...] = (0.6, 0.8, 1.0, 1.2, 1.5)
    pairs: int = 4096
    noisy_step: float = 1e-3
    noisy_steps: int = 400
    late_pairs: int = 4096  # a share of 0.08 is known to 0.004
    late_steps: int = 4000
    late_step: float = 2e-3


PRESETS = {
    "smoke": Spec(pairs=256, time=6.0, late_pairs=64, late_steps=500, noisy_steps=50),
    "quick": Spec(),
    "full": Spec(dimensions=(4, 10, 32), pairs=32768, noisy_step=5e-4, noisy_steps=800, late_steps=16000),
}


def threshold(dimension: int) -> float:
    """β* with cosh²β* = (d − 1)/2."""
    return float(np.arccosh(np.sqrt((dimension - 1) / 2)))


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Gaps of the two flows by β and time; drifts (dimension, ratio); shares of opposites (dimension, ratio)."""
    steps = round(spec.time / spec.step)
    flows = np.array([[_flow(spec, beta, steps, unit=unit) for beta in spec.betas] for unit in (True, False)])
    key = jax.random.key(spec.seed)
    drift, error, share, apart = (np.empty((len(spec.dimensions), len(spec.ratios))) for _ in range(4))
    for i, dimension in enumerate(spec.dimensions):
        for j, ratio in enumerate(spec.ratios):
            beta, one = ratio * threshold(dimension), jax.random.fold_in(jax.random.fold_in(key, i), j)
            run = functools.partial(_noisy, one, beta, dimension=dimension)
            change = np.log(run(START, spec.noisy_step, spec.noisy_steps, pairs=spec.pairs) / START)
            time = spec.noisy_step * spec.noisy_steps
            drift[i, j], error[i, j] = change.mean() / time, change.std(ddof=1) / time / spec.pairs**0.5
            apart[i, j] = np.mean(run(1.0, spec.late_step, spec.late_steps, pairs=spec.late_pairs) < OPPOSITE)
            share[i, j] = np.mean(run(0.02, spec.late_step, spec.late_steps, pairs=spec.late_pairs) < OPPOSITE)
    return {
        "betas": np.array(spec.betas), "times": spec.step * np.arange(steps + 1)[::STORED],
        "gap": flows[..., ::STORED],
        "dimensions": np.array(spec.dimensions), "ratios": np.array(spec.ratios), "drift": drift,
        "drift_error": error, "share": share, "apart": apart, "pairs": np.array(spec.late_pairs),
        "late_time": np.array(spec.late_step * spec.late_steps), "tokens": np.array(spec.tokens),
    }  # fmt: skip


def _flow(spec: Spec, beta: float, steps: int, *, unit: bool) -> np.ndarray:
    """1 − ρ by step of tokens that are orthogonal at first; `unit`: rows of weights sum to one."""
    count = spec.tokens

    @jax.jit
    def run(x: jax.Array) -> jax.Array:
        def layer(x: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            weights = jnp.exp(beta * jnp.matmul(x, x.T, precision="highest")) / count
            weights = weights / jnp.sum(weights, axis=1, keepdims=True) if unit else weights
            moved = x + spec.step * jnp.matmul(weights, x, precision="highest")
            moved = moved / jnp.linalg.norm(moved, axis=1, keepdims=True)
            return moved, jnp.sum(jnp.square(moved[0] - moved[1])) / 2

        return jax.lax.scan(layer, x, length=steps)[1]

    return np.append(1.0, run(jnp.eye(count, dtype=spec.dtype)))


@functools.partial(jax.jit, static_argnames=("pairs", "dimension", "steps"))
def _noisy(
    key: jax.Array, beta: float, gap: float, step: float, steps: int, *, pairs: int, dimension: int
) -> jax.Array:
    """1 + ρ of pairs after layers x ← N(x + √h V Σ p x) with a new Gaussian V each, from 1 + ρ = `gap`.

    With a and b the two mixtures, a + b = x + y and a − b are at right angles. So V(a + b) and V(a − b) are independent
    Gaussian vectors of their lengths, which are drawn in place of V.
    """
    cosine = gap - 1
    x = jnp.zeros((pairs, dimension)).at[:, 0].set(1.0)
    y = jnp.zeros((pairs, dimension)).at[:, 0].set(cosine).at[:, 1].set(jnp.sqrt(gap * (2 - gap)))

    def layer(pair: tuple[jax.Array, jax.Array], at: jax.Array) -> tuple[tuple[jax.Array, jax.Array], None]:
        x, y = pair
        own = jnp.tanh(
            beta * (1 - jnp.sum(x * y, axis=-1, keepdims=True)) / 2
        )  # weight of the own token less the other
        drawn = jax.random.normal(jax.random.fold_in(key, at), (2, pairs, dimension))
        both = drawn[0] * jnp.linalg.norm(x + y, axis=-1, keepdims=True)
        apart = drawn[1] * own * jnp.linalg.norm(x - y, axis=-1, keepdims=True)
        moved = x + jnp.sqrt(step) * (both + apart) / 2, y + jnp.sqrt(step) * (both - apart) / 2
        first, second = (each / jnp.linalg.norm(each, axis=-1, keepdims=True) for each in moved)
        return (first, second), None

    (x, y), _ = jax.lax.scan(layer, (x, y), jnp.arange(steps))
    return jnp.sum(jnp.square(x + y), axis=-1) / 2


def predicted(dimension: np.ndarray, beta: np.ndarray) -> np.ndarray:
    """The drift of log(1 + ρ) in a unit of time, to first order in 1 + ρ."""
    return (dimension - 1) / np.cosh(beta) ** 2 - 2


def plot(data: Data) -> Drawing:
    """The two flows, the drift near opposites, and where pairs end."""
    drawing, (flows, drift, share) = style.figure(columns=3, width=4.6)
    colours = style.sequence(len(data["betas"]))
    for index, (beta, color) in enumerate(zip(data["betas"], colours, strict=True)):
        for row, dash in zip(data["gap"], style.DASHES, strict=False):
            flows.plot(data["times"], row[index], color=color, linestyle=dash,
                       label=f"β = {beta:g}" if dash == style.DASHES[0] else None)  # fmt: skip
    flows.plot([], [], color=style.colour("theory"), linestyle=style.DASHES[1], label="without a sum")
    fine = np.linspace(data["ratios"][0], data["ratios"][-1], 200)
    for index, dimension in enumerate(data["dimensions"]):
        look, beta = style.cycle(index), threshold(int(dimension))
        drift.plot(fine, predicted(dimension, fine * beta), color=look["color"])
        drift.errorbar(data["ratios"], data["drift"][index], 2 * data["drift_error"][index], linestyle="none",
                       marker=look["marker"], color=look["color"], label=f"d = {dimension}")  # fmt: skip
        share.plot(data["ratios"], data["share"][index], label=f"d = {dimension}", **look)
    style.reference(drift, y=0.0)
    for ax in (drift, share):
        style.reference(ax, x=1.0, text="threshold")
    flows.set_ylim(1e-6, 2)
    style.panel(flows, "t, time", "1 − ρ", "Eight orthogonal tokens", log="y", legend="best")
    style.panel(drift, "β/β*", "drift of log(1 + ρ)", "Near opposite places", legend="best")
    style.panel(share, "β/β*", "share of opposites", f"After a time of {float(data['late_time']):g}", legend="best")
    return drawing


def _rates(data: Data) -> Measured:
    """Exponents from the last gaps that are far above rounding, over the printed rates: (with a sum and without, β)."""
    betas, gaps = data["betas"], data["gap"]
    used = (gaps < 1e-3) & (gaps > 1e-12)
    rate = [
        [_slope(data["times"], gap, use) for gap, use in zip(*flow, strict=True)]
        for flow in zip(gaps, used, strict=True)
    ]
    stated = 2 * np.stack([np.ones_like(betas), np.exp(betas)])
    names = [f"{name}, β = {each:g}" for name in ("softmax", "without a sum") for each in betas]
    return Measured((np.array(rate) / stated).ravel(), where=names)


def _slope(times: np.ndarray, gap: np.ndarray, use: np.ndarray) -> float:
    """The rate at which a gap falls, from the last half of those that are used."""
    chosen = np.flatnonzero(use)
    if chosen.size < 4:
        return float("nan")
    late = chosen[chosen.size // 2 :]
    return float(-np.log(gap[late[-1]] / gap[late[0]]) / (times[late[-1]] - times[late[0]]))


def _opposites(data: Data) -> Measured:
    """Share of pairs that end as opposites above the threshold, and that share less the one below, by dimension."""
    above, below = (int(np.argmin(np.abs(data["ratios"] - ratio))) for ratio in (1.2, 0.8))
    share = data["share"]
    error = np.sqrt(share * (1 - share) / data["pairs"])
    return Measured(
        np.concatenate([share[:, above], share[:, above] - share[:, below]]),
        standard_error=np.concatenate([error[:, above], np.hypot(error[:, above], error[:, below])]),
        where=[f"{what}, d = {each}" for what in ("above", "above less below") for each in data["dimensions"]],
        reads=[share, data["ratios"]],
        numbers={"pairs": int(data["pairs"])},
    )


def _not_one(data: Data) -> Measured:
    """Share of pairs at right angles at first that end as opposites, far above the threshold, by dimension."""
    share = data["apart"][:, int(np.argmin(np.abs(data["ratios"] - 1.5)))]
    return Measured(
        share,
        standard_error=np.sqrt(share * (1 - share) / data["pairs"]),
        where=[f"d = {each}" for each in data["dimensions"]],
        reads=[data["apart"], data["ratios"]],
        numbers={"pairs": int(data["pairs"])},
    )


def _drift(data: Data) -> Measured:
    """The drift near opposite places less the law, by dimension and β."""
    dimensions, ratios = data["dimensions"], data["ratios"]
    beta = ratios * np.array([threshold(int(each)) for each in dimensions])[:, None]
    return Measured(
        (data["drift"] - predicted(dimensions[:, None], beta)).ravel(),
        standard_error=data["drift_error"].ravel(),
        where=[f"d = {each}, β = {ratio:g} β*" for each in dimensions for ratio in ratios],
        reads=[ratios],
    )


ROWS = (
    published(
        "pair-unnormalised",
        r"In the end $1-\rho$ falls like $e^{-2t}$ under softmax weights, and like $e^{-2e^{\beta}\thinspace t}$ "
        "under the same weights without their sum.",
        _rates,
        near(1, EXPONENT),
        formula=True,
        source="rigollet2025-rates",
        place="equiangular model, as others restate it",
        hypotheses=r"$W_Q=W_K=W_V=I$, 8 tokens of length 1, orthogonal at first; weights $e^{\beta\langle "
        r"x,y\rangle}/n$",
        interval_from="our tolerance: 0.02",
        note="measured: exponent in layers of a small step, over the printed rate",
    ),
    published(
        "pair-opposites",
        "With values drawn at random, opposite places of two tokens attract with positive probability where the "
        "interaction is strong enough for the dimension.",
        _opposites,
        at_least(SOME),
        source="fedorov2026",
        place="abstract",
        hypotheses=r"queries and keys the tokens, RMS norm, many layers of small steps; from $\rho=-0.98$, at 1.2 and "
        "0.8 of the threshold of pair-threshold",
        interval_from="positive: a share of 0.05 counts, our tolerance",
        note="measured: share of <pairs> pairs that are opposites in the end",
    ),
    published(
        "pair-not-one",
        "Random values keep two tokens from always ending in the one cluster that deterministic models predict.",
        _not_one,
        at_least(SOME),
        source="fedorov2026",
        place="abstract",
        hypotheses="two tokens, at right angles at first; queries and keys the tokens, RMS norm, many layers of small "
        "steps, 1.5 times the threshold of pair-threshold",
        interval_from="our tolerance: a share of 0.05 ends elsewhere than in one cluster",
        note="measured: share of <pairs> pairs that are opposites in the end; the others meet: noise prevents the "
        "collapse "
        "with some probability",
    ),
    law(
        "pair-threshold",
        r"Near opposite places the drift of $\log(1+\rho)$ is $(d-1)/\cosh^{2}\beta-2$, so that they attract where "
        r"$\cosh^{2}\beta\gt(d-1)/2$.",
        _drift,
        near(0, DRIFT),
        proof="derived",
        place=PAGE,
        hypotheses=r"values of independent entries of variance $h$ in layers of step $h\to0$, queries and keys the "
        "tokens",
        interval_from="our tolerance: 0.3 in a unit of time",
        neighbours=["fedorov2026"],
        note="measured less the law; known: Fedorov et al. prove a transition governed by the strength of the "
        "interaction and the dimension; ours: the drift as a formula",
    ),
)
