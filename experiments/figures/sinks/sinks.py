"""What a weight on the first token does to the mixing and to the collapse of causal attention, at any depth."""

import functools
import itertools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure as Drawing

from experiments.figures._samples import draw
from experiments.ledger import Measured, at_least, at_most, law, near, published
from experiments.lib import figure, style
from rc_jax import attention, collapse, network
from rc_jax.collapse import mask_rates

ABOUT = figure.About(
    title="Sinks and collapse",
    caption=(
        "Every row of a causal network gives the share s of its weight to a sink, whose value is v times the value of "
        "the first token; the rest is uniform over what it sees. First: the sum of the derivatives of the last token "
        "by all earlier ones but the first falls with s, whatever v. Second: the tokens' distance over what they "
        "share, with a skip connection; a sink without a value (lines) keeps them apart, a sink with the first "
        "token's value (dashed) draws them together. Third: the rate after many layers; all weights cross at "
        "v* = (1 − λ)/(1 + aλ), which is 1/3 here. Last: networks with Gaussian weights and sinks without a "
        "value, beside the prediction for uniform rows. The first three are "
        "linear, in cancellation-free arithmetic."
    ),
    formula="log[(1 + a(1 − s)λ)/(1 + a(1 − s + s v))] per layer;   λ = ½",
    topic="masks",
    minutes={"smoke": 0.1, "quick": 0.3, "full": 4.0},
)

HALF = 0.5  # the second eigenvalue of uniform causal attention
# Fixed before anything was measured: rates of exact products settle like the quotient of two eigenvalues to the power
# of the depth, rates of Gaussian networks are known to 1/d.
SETTLED = 1e-3
FLAT = 1e-100  # a logit scale at which softmax is uniform however large the tokens are


class Spec(figure.Spec):
    """Tokens, the sink's weights and values; layers of the curves and of the rates; shape and number of networks."""

    dtype: str = "float64"
    tokens: int = 16
    weights: tuple[float, ...] = (0.0, 0.3, 0.6, 0.9)
    values: tuple[float, ...] = (0.0, 0.2, 1 / 3, 0.5, 0.75, 1.0)
    depth: int = 48
    deep: int = 2000
    d_model: int = 64
    heads: int = 4
    layers: int = 100
    count: int = 24


PRESETS = {
    "smoke": Spec(tokens=6, weights=(0.0, 0.6), values=(0.0, 1 / 3, 1.0), depth=8, deep=200, d_model=16, heads=2,
                  layers=12, count=4),
    "quick": Spec(),
    "full": Spec(tokens=64, weights=(0.0, 0.3, 0.6, 0.8, 0.9), deep=10_000, layers=100, count=256),
}  # fmt: skip


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Derivatives (weight, layer), relative residuals (value 0 or 1, weight, layer), late rates (weight, value)."""
    # Curves of the first layers, late rates in the last quarter of many layers, and random networks.
    key = jax.random.key(spec.seed)
    x = jax.random.normal(jax.random.fold_in(key, 0), (spec.tokens, 4), spec.dtype)
    weights, values = np.array(spec.weights), np.array(spec.values)
    curves = [[_relative(x, spec, s, v, spec.depth) for s in spec.weights] for v in (0.0, 1.0)]
    deep = np.array([[_relative(x, spec, s, v, spec.deep)[[-1 - spec.deep // 4, -1]] for v in values] for s in weights])
    drawn = draw(functools.partial(_networks, spec=spec), jax.random.fold_in(key, 1), spec.count, batch_size=16)
    return {
        "weights": weights, "values": values, "shape": np.array([spec.tokens, spec.d_model, spec.deep]),
        "sensitivity": np.array([_sensitivity(spec, s) for s in spec.weights]),
        "relative": np.array(curves), "rate": (deep[..., 1] - deep[..., 0]) / (spec.deep // 4),
        "predicted": np.asarray(mask_rates.log_sink_rate(HALF, weights[:, None], values[None])),
        "critical": np.asarray(mask_rates.critical_sink_value(HALF)), "own": _only_first(spec),
        "network": drawn.mean["rate"], "network_error": drawn.standard_error["rate"],
    }  # fmt: skip


def _sensitivity(spec: Spec, weight: float) -> np.ndarray:
    """By layer, the logarithm of Σ ∂x_last/∂x_i over the tokens between the first and the last."""
    seen = np.tri(spec.tokens)
    last = [mask_rates.log_sink_sensitivity(seen, depth, weight)[-1, 1:-1] for depth in range(1, spec.depth + 1)]
    return np.logaddexp.reduce(np.array(last), axis=1)


def _only_first(spec: Spec) -> np.ndarray:
    """Log of the share of all tokens but the first in the last token, after ½(P + I) at every layer, without a sink."""
    logs = mask_rates.log_sink_sensitivity(np.tri(spec.tokens), spec.deep, 0.0)[-1]
    return np.logaddexp.reduce(logs[1:]) - np.logaddexp.reduce(logs)


def _matrix(spec: Spec, weight: float, value: float) -> jax.Array:
    """I + (1 − s)P′ + s v 1e₁ᵀ over its row sums: what tokens share stays, and differences are relative to it."""
    averaging = jnp.tri(spec.tokens, dtype=spec.dtype)
    averaging = averaging / jnp.sum(averaging, axis=1, keepdims=True)
    slot = jnp.zeros_like(averaging).at[:, 0].set(1)
    matrix = jnp.eye(spec.tokens, dtype=spec.dtype) + (1 - weight) * averaging + weight * value * slot
    return matrix / jnp.sum(matrix, axis=1, keepdims=True)


def _relative(x: jax.Array, spec: Spec, weight: float, value: float, depth: int) -> np.ndarray:
    """By layer, log ‖res(X)‖ over what the tokens share, with a skip connection: change since the first layer."""
    matrix = _matrix(spec, weight, value)
    logs = np.asarray(collapse.product_log_residuals(jnp.broadcast_to(matrix, (depth, *matrix.shape)), x))
    return logs - logs[0]


def _networks(key: jax.Array, spec: Spec) -> dict[str, jax.Array]:
    """Rates of one random softmax network with skip connections, by logit scale and weight of a sink without a value.

    A sink without a value is a factor 1 − s of attention's output. The rate is that of log ‖res‖ less log of the mean,
    and stays far above float64's rounding.
    """
    x = jax.random.normal(jax.random.fold_in(key, 0), (spec.tokens, spec.d_model), spec.dtype)
    layer = attention.AttentionSpec(d_model=spec.d_model, heads=spec.heads, causal=True)
    stack = network.StackSpec(attention=layer, depth=spec.layers, skip=True)
    params, half = network.init(jax.random.fold_in(key, 1), stack, dtype=spec.dtype), spec.layers // 2

    def rate(scale: jax.Array, weight: jax.Array) -> jax.Array:
        part = params.attention._replace(output=(1 - weight) * params.attention.output)
        states = network.hidden_states(params._replace(attention=part), x, stack, scale=scale)
        shared = jnp.linalg.norm(jnp.mean(states, axis=1), axis=-1)
        logs = jnp.log(jax.vmap(collapse.frobenius)(jax.vmap(collapse.residual)(states)) / shared)
        return (logs[-1] - logs[half]) / (spec.layers - half)

    scales, weights = jnp.array([layer.head_width**-0.5, FLAT], spec.dtype), jnp.asarray(spec.weights, spec.dtype)
    return {"rate": jax.vmap(lambda scale: jax.vmap(functools.partial(rate, scale))(weights))(scales)}


def _gaussian(weights: np.ndarray) -> np.ndarray:
    """By weight, the prediction for Gaussian weights and a skip connection: squares add up, so λ² stands for λ."""
    kept = np.square(1 - weights)
    return 0.5 * (np.log1p(kept * HALF**2) - np.log1p(kept))


def plot(data: Mapping[str, np.ndarray]) -> Drawing:
    """The sensitivity, relative residuals, late rates against the sink's value, and random networks."""
    drawing, (sensitivity, falls, rates, random) = style.figure(columns=2, rows=2, width=5.2, height=4.1)
    weights, values = data["weights"], data["values"]
    layers = np.arange(data["relative"].shape[-1])
    colours = style.sequence(len(weights))
    for index, (weight, color) in enumerate(zip(weights, colours, strict=True)):
        name = f"s = {weight:g}"
        sensitivity.plot(layers[1:], data["sensitivity"][index] / np.log(10), color=color, label=name)
        falls.plot(layers, data["relative"][0, index], color=color, label=f"{name}, v = 0")
        falls.plot(layers, data["relative"][1, index], color=color, linestyle=style.DASHES[1])
        rates.plot(values, data["predicted"][index], color=color, linewidth=1)
        rates.plot(values, data["rate"][index], color=color, marker=style.MARKERS[index % 6], linestyle="none",
                   label=name)  # fmt: skip
    falls.plot([], [], color=style.colour("theory"), linestyle=style.DASHES[1], label="v = 1")
    style.reference(rates, x=float(data["critical"]), text="v*")

    # Random networks with skip connections: a sink without a value.
    dense = np.linspace(0, weights.max(), 60)
    for index, (meaning, name) in enumerate((("softmax", "softmax rows"), ("skip", "uniform rows"))):
        random.errorbar(weights, data["network"][index], yerr=2 * data["network_error"][index], linestyle="none",
                        marker=style.MARKERS[index], color=style.colour(meaning), label=name)  # fmt: skip
    random.plot(dense, _gaussian(dense), color=style.colour("theory"), linestyle=":", label="predicted")
    for ax, x, y, title in (
        (sensitivity, "layer", "log₁₀ Σ ∂x_last/∂x_i, first token left out", "Sensitivity to other tokens"),
        (falls, "layer", "change of log ‖res‖ over what is shared (nats)", "Distance, with a skip connection"),
        (rates, "v, value of the sink over that of the first token", "change per layer (nats)", "Rate by the value"),
        (random, "s, weight of a sink without a value", "change per layer (nats)", "Random networks"),
    ):
        style.panel(ax, x, y, title, legend="best")
    return drawing


def _weights(data: Mapping[str, np.ndarray]) -> list[str]:
    return [f"s = {weight:g}" for weight in data["weights"]]


def _heavier(data: Mapping[str, np.ndarray]) -> list[str]:
    """Each weight with the next lighter one."""
    return [f"{heavy} against {light}" for light, heavy in itertools.pairwise(_weights(data))]


def _sizes(data: Mapping[str, np.ndarray]) -> dict[str, int]:
    tokens, _, deep = (int(size) for size in data["shape"])
    return {"tokens": tokens, "layers": deep}


def _mixing(data: Mapping[str, np.ndarray]) -> Measured:
    """Mixing without a sink or with a lighter one less with the next, of a sink without a value."""
    without, with_first = (-np.diff(data["rate"][:, data["values"] == v], axis=0)[:, 0] for v in (0, 1))
    ends = {"least": with_first.min(), "most": with_first.max()}
    return Measured(without, where=_heavier(data), reads=[with_first], numbers=_sizes(data) | ends)


def _less_predicted(data: Mapping[str, np.ndarray]) -> Measured:
    places = [f"{name}, v = {value:.3g}" for name in _weights(data) for value in data["values"]]
    return Measured((data["rate"] - data["predicted"]).ravel(), where=places, numbers=_sizes(data))


def _sides(data: Mapping[str, np.ndarray]) -> Measured:
    """The change of the rate by a sink below v*, minus the change above it, and how far it is inside ±0.001 at v*."""
    values, critical = data["values"], float(data["critical"])
    change = (data["rate"] - data["rate"][:1])[1:]
    side = np.where(np.isclose(values, critical), 0, np.sign(critical - values))
    ends = {
        f"{end}_{where}": pick(change[:, side == sign])
        for where, sign in (("below", 1), ("above", -1))
        for end, pick in (("least", np.min), ("most", np.max))
    }
    return Measured(
        np.select([side > 0, side < 0], [change, -change], SETTLED - np.abs(change)).ravel(),
        where=[f"{name}, v = {value:.3g}" for name in _weights(data)[1:] for value in values],
        reads=[data["critical"]],
        numbers=_sizes(data) | ends | {"at": np.abs(change[:, side == 0]).max()},
    )


LINEAR = "linear uniform causal attention of <tokens> tokens with a skip connection, values not changed"
# What every difference loses, the rate, and the value at which a sink changes sides.
own = functools.partial(law, proof="proved", place="docs/sinks.md")
ROWS = (
    published(
        "sinks-robust",
        "A sink slows the mixing of information between tokens, which makes a network less sensitive to a changed "
        "prompt.",
        lambda data: Measured(
            np.max(np.diff(data["sensitivity"], axis=0), axis=1), where=_heavier(data), numbers=_sizes(data)
        ),
        at_most(0),
        formula=True,
        source="barbero2025-figure",
        place="caption of figure 1; theorem 3.2",
        hypotheses=f"the source speaks of trained decoders; here {LINEAR}, where the derivative is the theorem's sum "
        "over paths",
        interval_from="the sign of the difference",
        note="change of the log of the last token's derivative by the tokens between the first and it, the largest "
        "over layers",
    ),
    published(
        "sinks-over-mixing",
        "Attention to the first token is a way to avoid mixing tokens too much.",
        _mixing,
        at_most(0),
        formula=True,
        source="barbero2025",
        place="abstract",
        hypotheses=f"the source argues for trained decoders, whose sinks have small values; here {LINEAR}, and a sink "
        "of the value 0",
        after_result=True,
        interval_from="the sign of the difference; that the value 0 decides was chosen when both results were known",
        note="mixing as the fall of the relative residual per layer, with a sink less without it or with a lighter "
        "one; a sink of the first token's value hastens it, by <least:.3f> … <most:.3f> (sinks-critical)",
    ),
    published(
        "sinks-first-token",
        "With averaging that is the same at every layer, the last token depends in the end on the first token alone.",
        lambda data: Measured(data["own"], numbers=_sizes(data)),
        at_most(np.log(SETTLED)),
        formula=True,
        source="barbero2024",
        place="appendix B, proposition B.8",
        hypotheses="half skip connection, half attention; each row but the first sees two tokens or more; here "
        "uniform causal attention of <tokens> tokens",
        interval_from="our tolerance",
        note="log of the other tokens' share after <layers> layers",
    ),
    own(
        "sinks-rate",
        "With a skip connection a sink of weight $s$ and value $v$ changes the relative residual by "
        r"$\log[(1+(1-s)\lambda)/(1+1-s+s\thinspace v)]$ per layer, after many layers.",
        _less_predicted,
        near(0, SETTLED),
        hypotheses=rf"{LINEAR}; $\lambda=\frac{{1}}{{2}}$; $v\geq0$",
        interval_from="our tolerance",
        neighbours=["nussbaum2003", "barbero2025", "sukenik2026"],
        note="measured less predicted",
    ),
    own(
        "sinks-critical",
        r"A sink slows the relative collapse if its value is 0 or more and below $v^{\ast}=(1-\lambda)/(1+\lambda)$, "
        "and hastens it above, at every weight.",
        _sides,
        at_least(0),
        hypotheses=rf"{LINEAR}; $\lambda=\frac{{1}}{{2}}$; $v\geq0$, so that what tokens share outgrows their "
        "differences",
        interval_from=r"the sign of the change; our tolerance at $v^{\ast}$",
        neighbours=["barbero2025", "fesser2026", "sukenik2026"],
        shown="below v* <least_below:.3f> … <most_below:.3f>, above <least_above:.3f> … <most_above:.3f>, "
        "at v* <at:.0e>",
        note=r"change of the rate by the sink, in nats per layer; judged: the change below $v^{\ast}$, minus the "
        rf"change above it, and {SETTLED:g} less its size at $v^{{\ast}}$",
    ),
)
