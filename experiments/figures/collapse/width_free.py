"""Sampling the collapse at any width: the same law as drawing the weights, at a cost that is free of the width."""

import functools
import time
from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import MaxNLocator
from scipy import stats

from experiments.ledger import Claim, law, question
from experiments.lib import figure, style
from experiments.lib.figure import About
from rc_jax import attention, collapse, network

ABOUT = About(
    title="Sampling the collapse at any width",
    caption=(
        "Attention with Gaussian weights sees its tokens through their inner products alone, so n tokens can be "
        "carried in n coordinates whatever their width d. Left: the residual by layer over random initialisations, "
        "sampled in coordinates (bands: 5–95 %, lines: medians) and by drawing all weights (points and bars: the "
        "same quantiles). Middle: time of one initialisation at a fixed total width of the heads, and the part of it "
        "that grows with depth (points: medians over alternated rounds; bars: quartiles). Right: how far a draw at "
        "width d is from the limit d → ∞ with the same random numbers, with skips (root mean square)."
    ),
    formula="A = T Q,  Q W_O ≅ B:  X' = T B,  B lower triangular, N(0, σ²) below a diagonal of σ √χ²_(d−i)",
    topic="sampling",
    minutes={"smoke": 0.3, "quick": 1.59, "full": 10.0},
    alone=True,
)

KINDS = {"pure": "attention", "skip": "skip"}
NAMES = {"pure": "pure attention", "skip": "attention with skips"}
LEVELS = (0.05, 0.5, 0.95)

# Fixed before anything was measured: distances to a Gaussian limit fall as 1/√d.
EXPONENT = (0.45, 0.55)


class Spec(figure.Spec):
    """The networks whose law is compared, and those that are timed."""

    kinds: tuple[str, ...] = ("pure", "skip")
    tokens: int = 6
    d_model: int = 16
    heads: int = 2
    depth: int = 6
    count: int = 20_000
    batch: int = 500  # divides the counts
    timed_tokens: int = 64
    timed_heads: int = 12  # of width 64, whatever the width of the tokens
    timed_depths: tuple[int, int] = (4, 12)
    rounds: int = 9
    widths: tuple[int, ...] = (256, 12_288)
    direct_widths: tuple[int, ...] = (256, 1024)
    limit_count: int = 500
    limit_widths: tuple[float, ...] = (16.0, 64.0, 256.0, 1024.0, 4096.0, 16_384.0, 65_536.0)


PRESETS = {
    "smoke": Spec(
        kinds=("skip",), tokens=4, d_model=8, depth=3, count=2000, batch=100, timed_tokens=16, timed_heads=4,
        timed_depths=(2, 6), rounds=25, widths=(256, 12_288), direct_widths=(), limit_count=100,
        limit_widths=(64.0, 256.0, 1024.0, 16_384.0),
    ),
    "quick": Spec(),
    "full": Spec(
        count=200_000, rounds=25, widths=(256, 512, 1024, 2048, 4096, 8192, 12_288),
        direct_widths=(256, 512, 1024, 2048, 4096, 8192, 12_288), limit_count=10_000,
    ),
}  # fmt: skip


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Quantiles and two-sample tests by layer; times by width; distances to the limit."""
    key = jax.random.key(spec.seed)
    data = {"layer": np.arange(1, spec.depth + 1), "count": np.array(spec.count)}
    for index, kind in enumerate(spec.kinds):
        data |= _law(jax.random.fold_in(key, index), spec, kind)
    data |= _times(jax.random.fold_in(key, 2), spec)
    return data | _limit(jax.random.fold_in(key, 3), spec)


def _stack(d: int, heads: int, depth: int, skip: bool = False, d_head: int | None = None) -> network.StackSpec:
    layer = attention.AttentionSpec(d_model=d, heads=heads, d_head=d_head)
    return network.StackSpec(attention=layer, depth=depth, skip=skip)


@functools.partial(jax.jit, static_argnames="spec")
def _direct(key: jax.Array, x: jax.Array, spec: network.StackSpec) -> jax.Array:
    return collapse.log_residuals(network.random_layers(key, spec, dtype=x.dtype), x, spec)


@functools.partial(jax.jit, static_argnames="stack")
def _direct_batch(keys: jax.Array, x: jax.Array, stack: network.StackSpec) -> jax.Array:
    return jax.vmap(lambda key: _direct(key, x, stack))(keys)


@functools.partial(jax.jit, static_argnames="stack")
def _free_batch(keys: jax.Array, x: jax.Array, stack: network.StackSpec, width: float) -> jax.Array:
    return jax.vmap(lambda key: collapse.sample_log_residuals(key, x, stack, width=width))(keys)


def _draws(batch: Callable[[jax.Array], jax.Array], key: jax.Array, count: int, size: int) -> np.ndarray:
    keys = jax.random.split(key, count).reshape(-1, size)
    return np.concatenate([np.asarray(batch(each), dtype=float) for each in keys])


def _law(key: jax.Array, spec: Spec, kind: str) -> dict[str, np.ndarray]:
    """Both samplers on the same tokens with keys of their own."""
    stack = _stack(spec.d_model, spec.heads, spec.depth, skip=kind == "skip")
    x = jax.random.normal(jax.random.fold_in(key, 0), (spec.tokens, spec.d_model), spec.dtype)
    log_start = np.asarray(jnp.log(jnp.linalg.norm(x - x.mean(axis=0, keepdims=True))))
    # Change of log ‖res‖ by layer, from drawn weights and in coordinates.
    samplers = (
        functools.partial(_direct_batch, x=x, stack=stack),
        functools.partial(_free_batch, x=x, stack=stack, width=float(spec.d_model)),
    )
    drawn, free = (
        _draws(sampler, jax.random.fold_in(key, 1 + index), spec.count, spec.batch)[:, 1:] - log_start
        for index, sampler in enumerate(samplers)
    )
    error = np.sqrt((drawn.var(axis=0) + free.var(axis=0)) / spec.count)
    return {
        f"{kind}_direct": np.quantile(drawn, LEVELS, axis=0),
        f"{kind}_free": np.quantile(free, LEVELS, axis=0),
        f"{kind}_p": np.array([np.asarray(stats.ks_2samp(a, b))[1] for a, b in zip(drawn.T, free.T, strict=True)]),
        f"{kind}_z": (drawn.mean(axis=0) - free.mean(axis=0)) / error,
        f"{kind}_spread": drawn.std(axis=0) / free.std(axis=0),
    }


def _times(key: jax.Array, spec: Spec) -> dict[str, np.ndarray]:
    """Seconds of one initialisation of every contestant in every round, in an order that rotates with the round."""
    whole, part = ("", spec.timed_depths[1]), ("short_", spec.timed_depths[0])
    entries = [(*kind, collapse.sample_log_residuals, d) for kind in (whole, part) for d in spec.widths]
    entries += [("direct_", whole[1], _direct, d) for d in spec.direct_widths]
    contestants = []
    for _, depth, sampler, d in entries:
        x = jax.random.normal(jax.random.fold_in(key, d), (spec.timed_tokens, d), spec.dtype)
        stack = _stack(d, spec.timed_heads, depth, skip=True, d_head=64)
        contestants.append(functools.partial(sampler, x=x, spec=stack))
        contestants[-1](key).block_until_ready()  # compiled
    seconds = np.empty((spec.rounds, len(entries)))
    for number in range(spec.rounds):
        fresh = jax.random.fold_in(key, number)
        for index in np.roll(np.arange(len(entries)), number):
            start = time.perf_counter()
            contestants[index](fresh).block_until_ready()
            seconds[number, index] = time.perf_counter() - start
    names = np.array([entry[0] for entry in entries])
    data = {f"{name}seconds": seconds[:, names == name] for name in ("", "short_", "direct_")}
    widths = {"widths": np.array(spec.widths), "direct_widths": np.array(spec.direct_widths)}
    return data | widths | {"timed_depths": np.array(spec.timed_depths)}


def _limit(key: jax.Array, spec: Spec) -> dict[str, np.ndarray]:
    """Root mean square distance from the limit by width and layer, with skips, every width in one compiled program."""
    stack = _stack(spec.d_model, spec.heads, spec.depth, skip=True)
    x = jax.random.normal(jax.random.fold_in(key, 0), (spec.tokens, spec.d_model), spec.dtype)

    def draws(width: float) -> np.ndarray:
        sampler = functools.partial(_free_batch, x=x, stack=stack, width=width)
        return _draws(sampler, jax.random.fold_in(key, 1), spec.limit_count, spec.batch)[:, 1:]

    limit = draws(np.inf)
    distance = [np.sqrt(np.mean(np.square(draws(d) - limit), axis=0)) for d in spec.limit_widths]
    return {"limit_widths": np.array(spec.limit_widths), "limit_distance": np.array(distance)}


def plot(data: Mapping[str, np.ndarray]) -> Drawing:
    """The two samplers' quantiles by layer; seconds by width; distance from the limit by width."""
    drawing, (law, cost, limit) = style.figure(columns=3, width=5.0, height=4.4)
    for kind in _kinds(data):
        meaning = KINDS[kind]
        style.bands(law, data["layer"], *data[f"{kind}_free"], meaning=meaning, label=f"{NAMES[kind]}: sampled")
        low, median, high = data[f"{kind}_direct"]
        law.vlines(data["layer"], low, high, color=style.colour("theory"), linewidth=1.2)
        law.plot(data["layer"], median, color=style.colour("theory"), marker="o" if kind == "pure" else "s",
                 markersize=5, fillstyle="none", linestyle="none", label=f"{NAMES[kind]}: weights drawn")  # fmt: skip
    law.set_yscale("symlog", linthresh=1, linscale=0.6)
    if "pure" in _kinds(data):
        law.set_ylim(bottom=12 * float(data["pure_free"][0, -1]))  # space for the legend
    law.xaxis.set_major_locator(MaxNLocator(integer=True))
    style.panel(law, "layer", "change of log ‖res‖ (nats)", "The same law", legend="lower left")

    depth = int(data["timed_depths"][1])
    for widths, seconds, meaning, marker, label in (
        (data["direct_widths"], data["direct_seconds"], "float32", "s", "all weights drawn"),
        (data["widths"], data["seconds"], "measured", "o", "in coordinates"),
        (1.07 * data["widths"], depth * _per_layer(data), "skip", "^", "of that, the layers"),
    ):
        low, median, high = 1e3 * np.quantile(seconds, (0.25, 0.5, 0.75), axis=0)
        cost.errorbar(widths, median, (median - low, high - median), color=style.colour(meaning), marker=marker,
                      label=label, capsize=2)  # fmt: skip
    width = "width d of the tokens"
    style.panel(cost, width, f"time of {depth} layers (ms)", "Cost by width", log="xy", legend="lower left")
    cost.set(xlim=(180, 18_000), ylim=(60 * np.median(data["seconds"][:, 0]), None))

    widths, distance = data["limit_widths"], data["limit_distance"]
    layers = sorted({0, distance.shape[1] // 2, distance.shape[1] - 1})
    for index, (layer, tint) in enumerate(zip(layers, style.sequence(len(layers)), strict=True)):
        limit.plot(widths, distance[:, layer], color=tint, marker=style.MARKERS[index], linestyle="none",
                   label=f"layer {layer + 1}")  # fmt: skip
    guide = distance[-1, layers[-1]] * np.sqrt(widths[-1] / widths)
    limit.plot(widths, guide, color=style.colour("theory"), linestyle=":", label="1/√d")
    distance_label = "distance of log ‖res‖ from its limit (nats)"
    style.panel(limit, width, distance_label, "Wide networks have a limit", log="xy", legend="lower left")
    return drawing


def _kinds(data: Mapping[str, np.ndarray]) -> list[str]:
    """The kinds of network that were compared."""
    return [kind for kind in KINDS if f"{kind}_p" in data]


def _per_layer(data: Mapping[str, np.ndarray]) -> np.ndarray:
    """Seconds of a layer from networks of two depths, by round and width; what is left is done once, with the input."""
    short, long = data["timed_depths"]
    return (data["seconds"] - data["short_seconds"]) / (long - short)


def claims(data: Mapping[str, np.ndarray]) -> list[Claim]:
    """Equality in law at every layer, a cost free of the width, and the limit."""
    unit = float(np.sqrt(2 / data["count"]))  # the standard error of a difference of two means, in their spread
    least, most = data["widths"][[0, -1]]
    times = {f"{int(data['timed_depths'][1])} layers": data["seconds"], "one layer": _per_layer(data)}
    ratio, error = np.array([_ratio_of_medians(each[:, -1], each[:, 0]) for each in times.values()]).T
    slope, slope_error = _slope(data)
    return [
        *(
            question(f"width-free-law-{kind}", f"How far apart are the means of log ‖res‖ of {NAMES[kind]} sampled in "
                     "n coordinates and of drawn weights, in standard deviations?", unit * data[f"{kind}_z"],
                     standard_error=unit, where=list(data["layer"]), place="docs/width_free.md",
                     hypotheses="Gaussian weights, no LayerNorm, no MLP; the two laws are proved equal",
                     reads=[data[f"{kind}_p"], data[f"{kind}_spread"]],
                     note=f"by layer, {int(data['count'])} draws each; standard deviations differ by at most "
                          f"{np.abs(data[f'{kind}_spread'] - 1).max():.1%}, and the least Kolmogorov–Smirnov p is "
                          f"{data[f'{kind}_p'].min():.2g}")
            for kind in _kinds(data)
        ),
        question(
            "width-free-cost", f"How many times as long does sampling in coordinates take at width {most} as at width "
            f"{least}?", ratio, hypotheses="the heads' total width is fixed; one machine", standard_error=error,
            where=list(times), note=f"medians of {len(data['seconds'])} alternated rounds",
        ),
        law(
            "width-free-limit", "With skips, log ‖res‖ at width d comes as near to its limit d → ∞ as a constant times "
            "d^(−1/2).", slope, EXPONENT, proof="derived", place="docs/width_free.md",
            hypotheses="the same random numbers at every width; the last layer; widths from 256",
            interval_from="our tolerance", standard_error=slope_error,
            note="the exponent, with its sign changed",
        ),
    ]  # fmt: skip


def _slope(data: Mapping[str, np.ndarray]) -> tuple[float, float]:
    """Exponent of 1/d in the distance to the limit at the last layer, and the standard error of the fit."""
    wide = data["limit_widths"] >= 256
    x, y = np.log(data["limit_widths"][wide]), np.log(data["limit_distance"][wide, -1])
    x = x - x.mean()
    slope = np.sum(x * y) / np.sum(x * x)
    rest = y - y.mean() - slope * x
    return -float(slope), float(np.sqrt(np.sum(rest * rest) / (x.size - 2) / np.sum(x * x)))


def _ratio_of_medians(top: np.ndarray, bottom: np.ndarray) -> tuple[float, float]:
    """A ratio of two medians and its standard error, by a bootstrap over the rounds."""
    chosen = np.random.default_rng(0).integers(len(top), size=(1000, len(top)))
    again = np.median(top[chosen], axis=1) / np.median(bottom[chosen], axis=1)
    return float(np.median(top) / np.median(bottom)), float(again.std())
