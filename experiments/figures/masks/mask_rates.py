"""Collapse under masks: one factor per layer, and which."""

import functools
import itertools
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import MaxNLocator

from experiments.figures._samples import draw
from experiments.ledger import Measured, at_least, at_most, law, near, published
from experiments.lib import figure, style
from rc_jax import attention, collapse, network
from rc_jax.attention import masks
from rc_jax.collapse import mask_rates

ABOUT = figure.About(
    title="Masks: the rate of collapse",
    caption=(
        "Pure attention with Gaussian weights under masks (bands: 5–95 % of initialisations; lines: medians). Where "
        "all tokens see the same tokens the fall triples with every layer; under any other mask it tends to a "
        "constant, the logarithm of the second eigenvalue of the mask's own uniform averaging. Blocks have none below "
        "1 and stay apart. Third: causal windows fall as fast as causal attention in the end, but only from the layer "
        "on where the last token depends on the first. Exact mean–residual arithmetic; the weights' own growth is "
        "taken off."
    ),
    formula="log ‖res(X^(l+1))‖ − log ‖res(X^l)‖ → log |λ₂(D⁻¹A)| + ψ(d/2) − log(d/2),   A the mask, D its row sums",
    topic="masks",
    minutes={"smoke": 0.15, "quick": 1.1, "full": 12.0},
)

LEVELS = (0.05, 0.5, 0.95)
FULL_DEPTH = 8
FAMILIES = ("window", "causal", "causal window", "random", "block", "global token")

# By theory, whatever is measured: the weights' growth of a residual of any rank lies in [ψ(d/2) − log(d/2), 0], an
# interval 1/d wide, so a rate is confirmed to 1/d. A ratio of rates says something where the rate is far above that.
RATIO, FAST = 0.1, 0.1
ENOUGH = 8  # draws with a fast mask
EXPONENTIAL = 0.8, 1.25  # of a ratio of two falls: it rounds to 1


class Averages(NamedTuple):
    """By mask: mean rate and its error, mean predicted rate, and in how many draws the mask is fast."""

    rate: np.ndarray
    error: np.ndarray
    predicted: np.ndarray
    fast: np.ndarray


class Spec(figure.Spec):
    """Shape of the networks, the masks, and the number of random initialisations."""

    dtype: str = "float64"  # triangular averaging amplifies roundings: float32 loses causal windows after 40 layers
    d_model: int = 64
    heads: int = 4
    tokens: int = 32
    depth: int = 40
    count: int = 96
    radii: tuple[int, ...] = (1, 2, 4, 8, 16)
    causal_radii: tuple[int, ...] = (4, 8)
    densities: tuple[float, ...] = (0.1, 0.3, 0.6)
    block: int = 8


PRESETS = {
    "smoke": Spec(d_model=16, heads=2, tokens=8, depth=16, count=16, radii=(1, 4), causal_radii=(4,),
                  densities=(0.5,), block=4),
    "quick": Spec(),
    "full": Spec(count=1024, depth=64),
}  # fmt: skip


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """By mask and layer: quantiles of log ‖res‖; by mask and draw: the late rate, and what the eigenvalue says."""
    key = jax.random.fold_in(jax.random.key(spec.seed), 0)
    stats = draw(functools.partial(_network, spec=spec), key, spec.count, batch_size=24, progress=True)
    mean, error, quantiles = stats.mean, stats.standard_error, stats.quantile(LEVELS)
    # Sample i of an ensemble has the key fold_in(key, i), and so the same random masks.
    keys = [jax.random.fold_in(key, i) for i in range(spec.count)]
    fixed = np.array([mask_rates.log_second_eigenvalue(mask) for mask in _fixed(spec).values()])
    drawn = np.array([[mask_rates.log_second_eigenvalue(mask) for mask in _drawn(spec, each)] for each in keys])
    predicted = np.concatenate([np.repeat(fixed[:, None], spec.count, axis=1), drawn.T])
    growth = np.asarray(mask_rates.log_gaussian_gain(np.array(spec.d_model, float)))
    return {
        "log": quantiles["log"], "full": quantiles["full"],
        "names": np.array([*_fixed(spec), *(f"random {density:g}" for density in spec.densities)]),
        "depth": np.arange(spec.depth + 1), "rate": stats.samples["rate"].T - growth, "predicted": predicted,
        "causal_exponent": np.array([mean["causal_exponent"], error["causal_exponent"]]),
        "growth": growth, "shape": np.array([spec.tokens, spec.d_model]), "radii": np.array(spec.radii),
        "causal_radii": np.array(spec.causal_radii),
        "nonfinite": np.sum(stats.left_out["log"]) + np.sum(stats.left_out["full"]),
    }  # fmt: skip


def _fixed(spec: Spec) -> dict[str, jax.Array]:
    """The masks that are the same in every initialisation, by name: a family, then its number."""
    n = spec.tokens
    return {
        "causal": masks.causal(n),
        **{f"window {radius}": masks.window(n, radius) for radius in spec.radii},
        **{f"causal window {radius}": masks.causal(n) & masks.window(n, radius) for radius in spec.causal_radii},
        f"block {spec.block}": masks.block(n, spec.block),
        "global token + window 1": masks.window_with_global(n, 1, 1),
    }


def _drawn(spec: Spec, key: jax.Array) -> list[jax.Array]:
    """The random masks of one initialisation."""
    return [masks.random(jax.random.fold_in(key, 2), spec.tokens, density) for density in spec.densities]


def _network(key: jax.Array, spec: Spec) -> dict[str, jax.Array]:
    """One initialisation under every mask: change of log ‖res‖ by layer, and its mean fall in the second half."""
    x = jax.random.normal(jax.random.fold_in(key, 0), (spec.tokens, spec.d_model), spec.dtype)
    layer = attention.AttentionSpec(d_model=spec.d_model, heads=spec.heads)
    stack = network.StackSpec(attention=layer, depth=spec.depth)
    layers = network.random_layers(jax.random.fold_in(key, 1), stack, dtype=spec.dtype)
    seen = jnp.stack([*_fixed(spec).values(), *_drawn(spec, key), masks.window(spec.tokens, spec.tokens)])
    log = jax.lax.map(lambda mask: collapse.log_residuals(layers, x, stack, mask=mask), seen)
    log = log - log[:, :1]
    half, three = spec.depth // 2, (3 * spec.depth) // 4
    # The fall per layer of causal attention in the last quarter of the layers over that in the quarter before.
    late, before = (log[0, -1] - log[0, three]) / (spec.depth - three), (log[0, three] - log[0, half]) / (three - half)
    rate = (log[:-1, -1] - log[:-1, half]) / (spec.depth - half)
    return {"log": log[:-1], "rate": rate, "causal_exponent": late / before, "full": log[-1, : FULL_DEPTH + 1]}


def _family(name: str) -> str:
    return next(family for family in sorted(FAMILIES, key=len, reverse=True) if name.startswith(family))


def _averages(data: Mapping[str, np.ndarray]) -> Averages:
    """Of every mask. A random one counts in the draws in which it is fast: in others it may leave tokens apart."""
    fast = data["predicted"] < -FAST
    random = np.array([_family(str(name)) == "random" for name in data["names"]])[:, None]
    counted = np.where(random, fast, True)
    draws = counted.sum(axis=1)

    def mean(values: np.ndarray) -> np.ndarray:
        return np.where(counted, values, 0).sum(axis=1) / np.maximum(draws, 1)

    rate = mean(data["rate"])
    squares = draws * mean((data["rate"] - rate[:, None]) ** 2)
    error = np.sqrt(squares / np.maximum(draws - 1, 1) / np.maximum(draws, 1))
    return Averages(rate, error, mean(data["predicted"]), fast.sum(axis=1))


def plot(data: Mapping[str, np.ndarray]) -> Drawing:
    """The fall by layer; measured against predicted rates; causal windows and how long they wait."""
    drawing, (fall, rates, wait) = style.figure(columns=3, width=5.0, height=4.6)
    names, depth = [str(name) for name in data["names"]], data["depth"]
    radii, n = [int(radius) for radius in data["radii"]], int(data["shape"][0])
    style.bands(fall, np.arange(data["full"].shape[1]), *data["full"], meaning="theory", label="full attention")
    blocks = [name for name in names if name.startswith("block")]
    for index, name in enumerate([names[-2], "causal", f"window {radii[-2]}", f"window {radii[0]}", *blocks]):
        values = data["log"][:, names.index(name)]
        style.bands(fall, depth, *values, color=style.cycle(index)["color"], label=name)
    fall.set_ylim(-40, 2)

    # Every mask as a point: what its eigenvalue says and what the networks do, both as a fall per layer.
    averages = _averages(data)
    predicted, measured = -averages.predicted, -averages.rate
    shown = [i for i, name in enumerate(names) if predicted[i] > 0 and _family(name) != "block"]
    ends = np.array([0.7 * predicted[shown].min(), 1.4 * predicted[shown].max()])
    rates.plot(ends, ends, color=style.colour("theory"), linestyle=":", label="equal")
    for index, family in enumerate(family for family in FAMILIES if family != "block"):
        at, look = [i for i in shown if _family(names[i]) == family], style.cycle(index)
        rates.errorbar(predicted[at], measured[at], yerr=2 * averages.error[at], linestyle="none", label=family,
                       marker=look["marker"], markersize=7, color=look["color"], fillstyle="none")  # fmt: skip

    # Causal windows: the layer by which the last token has heard of the first, and the fall after it.
    grown = depth * float(data["growth"])
    for index, name in enumerate([*(f"causal window {int(radius)}" for radius in data["causal_radii"]), "causal"]):
        color = style.cycle(index)["color"]
        style.bands(wait, depth, *(data["log"][:, names.index(name)] - grown), color=color, label=name)
        if name != "causal":
            arrival = 2 * (n - 1) / int(data["causal_radii"][index])
            wait.axvline(arrival, color=color, linestyle=style.DASHES[1], linewidth=1)
    half = depth.size // 2
    start = data["log"][1, names.index("causal"), half] - grown[half]
    wait.plot(depth, start - np.log(2) * (depth - half), color=style.colour("theory"), linestyle=":",
              label="−log 2 per layer")  # fmt: skip
    for ax, x, y, title, log, columns in (
        (fall, "layer", "change of log ‖res‖ (nats)", "Fall of the residual", "", 2),
        (rates, "predicted fall, −log |λ₂| (nats per layer)", "measured in the second half (nats per layer)",
         "Rate against the second eigenvalue", "xy", 3),
        (wait, "layer (dashed: 2(n − 1)/radius)", "change of log ‖res‖, weights' growth off (nats)",
         "Causal windows begin late", "", 2),
    ):  # fmt: skip
        style.panel(ax, x, y, title, log=log, legend="below", columns=columns)
    for ax in (fall, wait):
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return drawing


def _rates(data: Mapping[str, np.ndarray]) -> Measured:
    """Rates under connected masks, and how far the ratio of causal attention's falls lies outside `EXPONENTIAL`."""
    names, (ratio, ratio_error) = [str(name) for name in data["names"]], data["causal_exponent"]
    connected = [i for i, name in enumerate(names) if _family(name) != "block"]
    outside = np.maximum(EXPONENTIAL[0] - ratio, ratio - EXPONENTIAL[1])
    averages = _averages(data)
    random = [f"{averages.fast[i]} at {name.split()[1]}" for i, name in enumerate(names) if _family(name) == "random"]
    return Measured(
        np.append(averages.rate[connected], outside),
        standard_error=np.append(averages.error[connected], ratio_error),
        where=[*(names[i] for i in connected), "causal, last quarter of the layers over the one before"],
        applies=np.append(averages.fast[connected] >= ENOUGH, True),
        reads=[data["rate"][connected], data["predicted"][connected], data["causal_exponent"]],
        left_out=data["nonfinite"],
        numbers=_tokens(data) | {"draws": data["predicted"].shape[1], "random": ", ".join(random)},
    )


def _narrow_less_wide(data: Mapping[str, np.ndarray]) -> Measured:
    """Rates under each window less those under the next wider one."""
    names = [f"window {int(radius)}" for radius in data["radii"]]
    windows = [data["names"].tolist().index(name) for name in names]
    averages = _averages(data)
    rate, error = averages.rate[windows], averages.error[windows]
    return Measured(
        rate[:-1] - rate[1:],
        standard_error=np.hypot(error[:-1], error[1:]),
        where=[f"{narrow} against {wide}" for narrow, wide in itertools.pairwise(names)],
        reads=[data["rate"][windows]],
        left_out=data["nonfinite"],
        numbers=_tokens(data),
    )


def _over_predicted(data: Mapping[str, np.ndarray]) -> Measured:
    """Rates over those that the second eigenvalue predicts."""
    names = [str(name) for name in data["names"]]
    settled = [i for i, name in enumerate(names) if _family(name) in ("window", "causal", "global token")]
    averages = _averages(data)
    predicted = averages.predicted[settled]
    return Measured(
        averages.rate[settled] / predicted,
        standard_error=averages.error[settled] / -predicted,
        where=[names[i] for i in settled],
        applies=averages.fast[settled] >= ENOUGH,
        reads=[data["rate"][settled], data["predicted"][settled]],
        left_out=data["nonfinite"],
        numbers=_tokens(data),
    )


def _causal_exponent(data: Mapping[str, np.ndarray]) -> Measured:
    """The fall of causal attention in the last quarter of the layers over that in the quarter before."""
    ratio, error = data["causal_exponent"]
    return Measured(ratio, standard_error=error, left_out=data["nonfinite"], numbers=_tokens(data))


def _tokens(data: Mapping[str, np.ndarray]) -> dict[str, int]:
    return {"tokens": int(data["shape"][0])}


SETTING = "random Gaussian weights, no MLP, <tokens> tokens, one mask on all layers"
wu = functools.partial(published, source="wu2024", place="abstract")
own = functools.partial(law, proof="measured", place="docs/masks_and_sparsity.md", neighbours=["wu2024"])
ROWS = (
    wu(
        "masks-exponential",
        "Pure attention under a mask still collapses to one vector, exponentially in depth.",
        _rates,
        at_most(0),
        formula=True,
        after_result=True,
        hypotheses=rf"a connected mask; here $\lvert \log\lambda_2\rvert\gt{FAST:g}$, as in masks-rate, which random "
        rf"masks have in some of <draws> draws (<random>), and these count; {SETTING}",
        interval_from="the sign of the rate; our tolerance for the ratio of two quarters of the layers",
        note=r"$\log\thinspace\lVert \mathrm{res}\rVert$ per layer in the second half of the layers, in nats, the "
        f"weights' growth taken off; last point: how far the ratio of two falls lies outside {EXPONENTIAL[0]:g} … "
        f"{EXPONENTIAL[1]:g}",
    ),
    wu(
        "masks-local-slower",
        "A sparse or local mask can slow the collapse down.",
        _narrow_less_wide,
        at_least(0),
        formula=True,
        needs="some",
        hypotheses=f"windows on both sides; here {SETTING}",
        interval_from="the sign of the difference",
        note="difference of the rates, in nats per layer",
    ),
    own(
        "masks-rate",
        r"Under a window, a causal mask or a global token, $\log\thinspace\lVert \mathrm{res}\rVert$ changes by "
        r"$\log\thinspace\lvert \lambda_2\rvert$ per layer, $\lambda_2$ the second eigenvalue of the mask's uniform "
        "averaging.",
        _over_predicted,
        near(1, RATIO),
        hypotheses=rf"{SETTING}; $\lvert \log\lambda_2\rvert\gt{FAST:g}$; the weights' growth taken off; late layers",
        after_result=True,
        interval_from="our tolerance: a tenth; a first run had judged slow masks and blocks too, by a 64th of a nat",
        note="measured over predicted",
    ),
    own(
        "masks-causal-exponent",
        r"Under a causal mask the fall of $\log\thinspace\lVert \mathrm{res}\rVert$ per layer becomes constant.",
        _causal_exponent,
        EXPONENTIAL,
        hypotheses=SETTING,
        interval_from="our tolerance: the exponent rounds to 1",
        note="the fall in the last quarter of the layers over that in the quarter before",
    ),
)
