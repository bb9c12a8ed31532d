"""Gradients of the weights as the rank collapses: those of queries and keys vanish, those of values do not."""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import MaxNLocator

from experiments.figures._samples import draw
from experiments.ledger import Measured, at_least, at_most, law, near, published
from experiments.lib import figure, style
from rc_jax import attention, collapse, network

ABOUT = figure.About(
    title="Gradients vanish with the rank",
    caption=(
        "Norms of the gradients of a random linear loss in the weights of every layer, over random initialisations "
        "(bands: 5–95 %; lines: medians). Pure attention, in the exact mean–residual arithmetic: the gradients of "
        "W_Q and W_K fall with the square of the residual, doubly exponentially in depth; that of W_V stays. Crosses: "
        "ordinary backpropagation in float64, which sees noise after a few layers. With skip connections and LayerNorm "
        "after them, branches of strength a: at a = 1 tokens become correlated, and the gradient of W_Q falls with "
        "1 − ρ; at a = 1/√L neither happens."
    ),
    formula="‖∂W_Q‖, ‖∂W_K‖ = O(‖res(X)‖²),  ‖∂W_V‖ = O(1);   ρ/(1−ρ) grows by 1 + a² a layer",
    topic="later",
    minutes={"smoke": 0.2, "quick": 0.4, "full": 6.0},
)

LEVELS = (0.05, 0.5, 0.95)
NAMES = ("query", "key", "value")
MATRIX = {"query": "W_Q", "key": "W_K", "value": "W_V"}
MEANING = {"query": "attention", "key": "skip", "value": "mlp"}
MARKS: dict[str, dict[str, Any]] = {
    "query": {"marker": "s", "markersize": 9, "fillstyle": "none"},
    "key": {"marker": "o", "markersize": 4},
    "value": {"marker": "^"},
}

# Fixed in advance. Orders are whole numbers: within a twentieth. "Vanishes" is below a rounding of float64, e^−36, of
# the value's gradient; "does not" is staying within a factor e.
ORDER, GONE, KEPT = 0.05, -36.0, 1.0


class Spec(figure.Spec):
    """Shape of the networks, their depths without and with skips, and how many are drawn of each."""

    dtype: str = "float64"
    d_model: int = 32
    heads: int = 2
    tokens: int = 16
    depth: int = 8
    skip_depth: int = 32
    count: int = 256
    skip_count: int = 64


PRESETS = {
    "smoke": Spec(d_model=8, heads=1, tokens=6, depth=6, skip_depth=8, count=16, skip_count=16),
    "quick": Spec(),
    "full": Spec(d_model=64, heads=4, tokens=32, skip_depth=64, count=4096, skip_count=1024),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Quantiles by layer of log-gradients for pure attention; of their ratio and the correlation with skips."""
    key, draws = jax.random.key(spec.seed), [functools.partial(one, spec=spec) for one in (_pure, _skip)]
    data = {"depth": np.array(spec.depth), "skip_depth": np.array(spec.skip_depth), "tokens": np.array(spec.tokens)}
    left_out = []
    for index, (kind, count) in enumerate((("pure", spec.count), ("skip", spec.skip_count))):
        stats = draw(draws[index], jax.random.fold_in(key, index), count, progress=True)
        data |= {f"{kind}_{name}": values for name, values in stats.quantile(LEVELS).items()}
        data |= {f"{kind}_{name}_mean": values for name, values in stats.mean.items()}
        data |= {f"{kind}_{name}_standard_error": values for name, values in stats.standard_error.items()}
        left_out += [np.sum(count) for name, count in stats.left_out.items() if name != "plain"]
    return data | {"nonfinite": np.array(sum(left_out))}


def _pure(key: jax.Array, spec: Spec) -> dict[str, jax.Array]:
    """One network of pure attention: log-gradients by layer, exact and by plain backpropagation, and their orders."""
    layer = attention.AttentionSpec(d_model=spec.d_model, heads=spec.heads)
    stack = network.StackSpec(attention=layer, depth=spec.depth)
    params, x, cotangent = _draw(key, spec, stack)
    sizes = collapse.log_weight_gradients(params, x, stack, cotangent)
    plain = _log_norms(jax.grad(lambda p: jnp.sum(cotangent * network.apply(p, x, stack)))(params))["query"]
    fall = sizes.log_residual[-1] - sizes.log_residual[-2]
    logs = {name: getattr(sizes, name) for name in NAMES}
    return {
        "residual": sizes.log_residual, "plain": plain, **logs,
        **{f"{name}_order": (log[-1] - log[-2]) / fall for name, log in logs.items()},
        "gone": sizes.query[-1] - sizes.value[-1], "kept": sizes.value[-1] - sizes.value[1],
    }  # fmt: skip


def _skip(key: jax.Array, spec: Spec) -> dict[str, jax.Array]:
    """One network with skips and LayerNorm after them: 1 − ρ and ‖∂W_Q‖/‖∂W_V‖ by layer, for two branch strengths."""
    layer = attention.AttentionSpec(d_model=spec.d_model, heads=spec.heads)
    stack = network.StackSpec(attention=layer, depth=spec.skip_depth, skip=True, norm="post")
    params, x, cotangent = _draw(key, spec, stack)

    def measure(strength: jax.Array) -> tuple[jax.Array, jax.Array]:
        def loss(weights: network.LayerParams) -> tuple[jax.Array, jax.Array]:
            states = network.hidden_states(weights, x, stack)
            return jnp.sum(cotangent * states[-1]), states[:-1]

        gradient, states = jax.grad(loss, has_aux=True)(network.scale_branches(params, strength))
        centred = states - states.mean(axis=1, keepdims=True)
        apart = jnp.log(jnp.sum(jnp.square(centred), axis=(1, 2)) / jnp.sum(jnp.square(states), axis=(1, 2)))
        sizes = _log_norms(gradient)
        return apart, sizes["query"] - sizes["value"]

    strengths = jnp.array([1, spec.skip_depth**-0.5], x.dtype)
    (one, root), (one_ratio, root_ratio) = jax.lax.map(measure, strengths)
    # Slope of the logarithms, over the layers after the first quarter.
    later, half = slice(spec.skip_depth // 4, None), spec.skip_depth // 2
    gap = one[later] - one[later].mean()
    return {
        "one_apart": one, "one_ratio": one_ratio, "root_apart": root, "root_ratio": root_ratio,
        "slope": jnp.sum(gap * one_ratio[later]) / jnp.sum(jnp.square(gap)),
        "kept": root_ratio[half:].mean() - root_ratio[:half].mean(),
        "correlation": 1 - jnp.exp(root[-1]), "collapsed": 1 - jnp.exp(one[-1]),
    }  # fmt: skip


def _draw(key: jax.Array, spec: Spec, stack: network.StackSpec) -> tuple[network.LayerParams, jax.Array, jax.Array]:
    params = network.init(jax.random.fold_in(key, 0), stack, dtype=spec.dtype)
    shape = (spec.tokens, spec.d_model)
    x, cotangent = (jax.random.normal(jax.random.fold_in(key, role), shape, spec.dtype) for role in (1, 2))
    return params, x, cotangent


def _log_norms(gradient: network.LayerParams) -> dict[str, jax.Array]:
    """Log of the Frobenius norm of every layer's query, key and value matrices; tiny gradients keep their logs."""
    out = {}
    for name in NAMES:
        flat = getattr(gradient.attention, name).reshape(gradient.attention.query.shape[0], -1)
        largest = jnp.max(jnp.abs(flat), axis=1, keepdims=True)
        largest = jnp.where(largest > 0, largest, jnp.finfo(flat.dtype).tiny)
        out[name] = jnp.log(largest[:, 0]) + jnp.log(jnp.sum(jnp.square(flat / largest), axis=1)) / 2
    return out


def plot(data: Mapping[str, np.ndarray]) -> Drawing:
    """Log-gradients by layer and against the residual; with skips 1 − ρ by layer and the ratio of gradients."""
    drawing, (depth, order, apart, ratio) = style.figure(columns=2, rows=2, height=4.2)
    layers, residual = np.arange(1, int(data["depth"]) + 1), data["pure_residual"][1]
    for name in NAMES:
        color, label, (low, middle, high) = style.colour(MEANING[name]), f"∂{MATRIX[name]}", data[f"pure_{name}"]
        depth.fill_between(layers, low, high, color=color, alpha=0.2, linewidth=0)
        depth.plot(layers, middle, label=label, color=color, **MARKS[name])
        order.plot(residual, middle, label=label, color=color, linestyle="none", **MARKS[name])
    depth.plot(layers, data["pure_plain"][1], "x", label="∂W_Q, plain float64", color=style.colour("reference"))
    start = data["pure_query"][1][-1] - 2 * residual[-1]
    order.plot(residual, 2 * residual + start, color=style.colour("theory"), linestyle=":", label="slope 2")
    for ax in (depth, order):
        ax.set_yscale("symlog", linthresh=10, linscale=0.6)
    order.set_xscale("symlog", linthresh=10, linscale=0.6)
    order.invert_xaxis()

    skips, tokens = int(data["skip_depth"]), int(data["tokens"])
    layers = np.arange(1, skips + 1)
    for name, meaning, a, label in (("one", "random", 1.0, "a = 1"), ("root", "trained", skips**-0.5, "a = 1/√L")):
        style.bands(apart, layers, *np.exp(data[f"skip_{name}_apart"]), meaning=meaning, label=label)
        style.bands(ratio, layers, *np.exp(data[f"skip_{name}_ratio"]), meaning=meaning, label=label)
        odds = (1 + a * a) ** (layers - 1.0) / (tokens - 1)  # of 1/tokens, what independent tokens start from
        apart.plot(layers, 1 / (1 + odds), color=style.colour("theory"), linestyle=":",
                   label="uniform attention" if name == "one" else None)  # fmt: skip
    norm, of = "log of the gradient's norm (nats)", f"layer, of {skips}"
    for ax, x, y, title, log in (
        (depth, "layer", norm, "Pure attention", ""),
        (order, "log ‖res(X)‖ at the layer's input (nats)", norm, "The square of the residual", ""),
        (apart, of, "1 − ρ", "With skips: correlation of tokens", "y"),
        (ratio, of, "‖∂W_Q‖ / ‖∂W_V‖", "With skips: gradients", "y"),
    ):
        style.panel(ax, x, y, title, log=log, legend="lower left")
    for ax in (apart, ratio):
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return drawing


def _means(
    data: Mapping[str, np.ndarray], *names: str, where: Sequence[str] | None = None, reads: Sequence[str] = ()
) -> Measured:
    """Means over networks with their standard errors."""
    mean, error = ([float(data[f"{name}_{key}"]) for name in names] for key in ("mean", "standard_error"))
    return Measured(
        mean,
        standard_error=error,
        where=where,
        reads=[data[name] for name in reads],
        left_out=data["nonfinite"],
        numbers=_numbers(data),
    )


def _numbers(data: Mapping[str, np.ndarray]) -> dict[str, float]:
    """What the texts of the rows name."""
    layers = int(data["skip_depth"])
    return {
        "layer": int(data["depth"]),
        "kept": float(data["pure_kept_mean"]),
        "layers": layers,
        "later": layers // 4 + 1,
        "apart": 1 - float(data["skip_collapsed_mean"]),
        "correlation": float(data["skip_correlation_mean"]),
    }


def _collapse(data: Mapping[str, np.ndarray]) -> Measured:
    """Change of log(1 − ρ) from the first layer to the last."""
    apart, error = data["skip_one_apart_mean"], data["skip_one_apart_standard_error"]
    return Measured(
        apart[-1] - apart[0],
        standard_error=np.hypot(error[0], error[-1]),
        reads=[data["skip_collapsed_mean"]],
        left_out=data["nonfinite"],
        numbers=_numbers(data),
    )


DEEP = "skip connections, LayerNorm after them, Gaussian weights, no MLP, <layers> layers"
ROWS = (
    law(
        "gradients-order-query",
        r"In pure attention $\lVert \partial W_Q\rVert$ and $\lVert \partial W_K\rVert$ fall as the square of $\lVert "
        r"\mathrm{res}\rVert$, and $\lVert \partial W_V\rVert$ does not fall.",
        lambda data: _means(data, *(f"pure_{name}_order" for name in NAMES), where=[MATRIX[name] for name in NAMES]),
        near([2, 2, 0], ORDER),
        proof="proved",
        place="docs/width_collapse.md",
        hypotheses="full softmax attention without skips, small residuals, a loss that sees the tokens' mean",
        interval_from="our tolerance: orders are whole numbers",
        neighbours=["noci2022"],
        note=r"change of the gradient's logarithm over that of $\log\thinspace\lVert \mathrm{res}\rVert$ into layer "
        "<layer>",
    ),
    published(
        "gradients-vanish",
        "Rank collapse makes the gradients of queries and keys vanish at initialisation.",
        lambda data: _means(data, "pure_gone", reads=["pure_kept_mean"]),
        at_most(GONE),
        formula=True,
        source="noci2022",
        place="abstract",
        hypotheses="pure attention here, without the MLP and skips of the source",
        interval_from="our tolerance: a rounding of float64",
        note=r"$\log\thinspace\lVert \partial W_Q\rVert/\lVert \partial W_V\rVert$ at layer <layer>, mean; "
        r"$\log\thinspace\lVert \partial W_V\rVert$ changes by <kept:.2g>",
    ),
    law(
        "gradients-skip-order",
        r"With skips $\lVert \partial W_Q\rVert/\lVert \partial W_V\rVert$ falls as $1-\rho$, with $\rho$ the "
        "correlation of tokens.",
        lambda data: _means(data, "skip_slope"),
        (0.8, 1.2),
        proof="measured",
        place="docs/width_collapse.md",
        hypotheses=f"{DEEP}, branches of strength 1",
        interval_from="our tolerance",
        neighbours=["noci2022"],
        note="slope of the logarithms from layer <later> on",
    ),
    published(
        "gradients-skip-collapse",
        "Deeper networks start with tokens more alike if residual branches are not adequately scaled.",
        _collapse,
        at_most(0),
        source="noci2022-figure",
        place="caption of figure 1",
        hypotheses=f"the source's figure is of post-LN; here {DEEP}",
        interval_from="the sign of the change",
        note=r"change of $\log(1-\rho)$ from the first layer to the last, branches of strength 1; $\rho$ is the mean "
        "correlation of all pairs and ends at $1-<apart:.0e>$",
    ),
    published(
        "gradients-root-kept",
        "Residual branches scaled with the depth keep the gradients of queries from vanishing.",
        lambda data: _means(data, "skip_kept", reads=["skip_correlation_mean"]),
        at_least(-KEPT),
        source="noci2022-theorem",
        place="theorem on residual scaling, as others restate it",
        hypotheses=rf"branches of strength $1/\sqrt{{L}}$; {DEEP}",
        interval_from="our tolerance: a factor $e$",
        note=r"$\log\thinspace\lVert \partial W_Q\rVert/\lVert \partial W_V\rVert$, the later half of the layers less "
        r"the earlier; $\rho$ ends at <correlation:.2f>",
    ),
)
