"""Attention with MLPs of a swept Lipschitz constant: how much they slow collapse, and where they stop it."""

import dataclasses
import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import MaxNLocator

from experiments.figures._samples import draw
from experiments.ledger import Measured, at_least, law, published
from experiments.lib import figure, style
from rc_jax import attention, collapse, network

ABOUT = figure.About(
    title="Steeper MLPs",
    caption=(
        "Attention and MLP without skips: X ← MLP(SA(X)), the MLPs multiplied so that their Lipschitz constant λ "
        "(spectral norms times the activation's largest slope) runs over four decades; an untouched one has λ ≈ 4. "
        "Residuals in cancellation-free arithmetic, medians and 5–95 % of initialisations; a curve ends where softmax "
        "saturates and the residual is no longer known. Lower row: the share of networks whose tokens are equal to 1 "
        "%. One mark above stands at the λ where the cube found at small λ would no longer shrink anything. The "
        "others stand at the λ up to which the tanh bound and that of Dong et al. (2021) promise collapse. Beyond it "
        "softmax saturates and tokens copy each other, so that fewer different tokens are left."
    ),
    formula="log ‖res(X^(l+1))‖ = 3 log ‖res(X^l)‖ + log c + log λ;   at rest where log ‖res‖ = −log(cλ)/2",
    topic="blocks",
    minutes={"smoke": 0.3, "quick": 0.65, "full": 25.0},
)

LEVELS = (0.05, 0.5, 0.95)
ACTIVATIONS = ("relu", "gelu", "tanh")
LABELS = {"relu": "ReLU", "gelu": "GELU", "tanh": "tanh"}
COLOURS = {"relu": "mlp", "gelu": "skip", "tanh": "measured"}
MARKERS = {"relu": "s", "gelu": "^", "tanh": "o"}
STEEPEST = {"relu": 1.0, "gelu": 1.128904, "tanh": 1.0}  # largest slope of the activation

# Fixed before the figure was made: tokens equal to 1 % have collapsed, and a prediction of the threshold's size is one
# to the nearest order of magnitude. A push of 1 % of the tokens' size shows how sensitive a network is.
COLLAPSED, ORDER, RATIO, PUSH = 0.01, np.sqrt(10), (0.99, 1.01), 0.01


class Spec(figure.Spec):
    """Shape, number of initialisations, and the factors on the MLPs' output matrices, as powers of ten."""

    d_model: int = 32
    heads: int = 2
    width: int = 64
    tokens: int = 16
    depth: int = 6
    steps: int = 25
    low: float = -2.0
    high: float = 2.0
    count: int = 64
    deep: int = 24
    deep_factors: tuple[float, ...] = (1.0, 3.0, 10.0, 30.0, 100.0)
    deep_count: int = 256
    pushed_factors: tuple[float, ...] = (0.01, 0.1, 1.0, 10.0, 100.0)

    @property
    def factors(self) -> np.ndarray:
        """The factors, equally far apart on a log scale."""
        return np.logspace(self.low, self.high, self.steps)


PRESETS = {
    "smoke": Spec(d_model=8, width=16, tokens=5, depth=4, steps=9, count=8, deep_count=16),
    "quick": Spec(),
    "full": Spec(d_model=64, heads=4, width=256, tokens=32, steps=49, count=1024, deep_count=4096),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """By activation and factor: log residuals by layer, share collapsed, thresholds measured and predicted, bounds."""
    key = jax.random.key(spec.seed)
    stats = draw(functools.partial(_network, spec=spec), jax.random.fold_in(key, 0), spec.count, progress=True)
    deep = draw(functools.partial(_deep, spec=spec), jax.random.fold_in(key, 1), spec.deep_count, progress=True)
    pushed = draw(functools.partial(_pushed, spec=spec), jax.random.fold_in(key, 2), spec.count, progress=True)
    quantiles = stats.quantile(LEVELS)
    data = {name: quantiles[name] for name in ("log", "log_predicted")}
    for name in ("collapsed", "slope", "log_constant", "tanh_promise", "published_promise"):
        data |= {f"{name}_mean": stats.mean[name], f"{name}_standard_error": stats.standard_error[name]}
    return data | {
        "deep_mean": deep.mean, "deep_standard_error": deep.standard_error,
        "deep_factors": np.asarray(spec.deep_factors), "unknown": stats.left_out["log"] / spec.count,
        "sensitivity_mean": pushed.mean,
        "sensitivity_standard_error": pushed.standard_error, "sensitivity_left_out": pushed.left_out,
        "factors": spec.factors,
    }  # fmt: skip


def _stack(spec: Spec, depth: int, activation: str) -> network.StackSpec:
    mlp = network.MLPSpec(width=spec.width, activation=activation)  # pyright: ignore[reportArgumentType]
    layer = attention.AttentionSpec(d_model=spec.d_model, heads=spec.heads)
    return network.StackSpec(attention=layer, depth=depth, mlp=mlp)


def _tokens(key: jax.Array, spec: Spec) -> jax.Array:
    return jax.random.normal(jax.random.fold_in(key, 0), (spec.tokens, spec.d_model), spec.dtype)


def _network(key: jax.Array, spec: Spec) -> dict[str, jax.Array]:
    """One initialisation with every activation and factor; up to which λ bounds promise collapse."""
    x, stack = _tokens(key, spec), _stack(spec, spec.depth, "relu")
    params = network.init(jax.random.fold_in(key, 1), stack, dtype=spec.dtype)
    each = [sweep(spec, params, x, name) for name in ACTIVATIONS]
    by_activation = {name: jnp.stack([one[name] for one in each]) for name in each[0]}
    steepest = jnp.log(jnp.asarray([STEEPEST[name] for name in ACTIVATIONS], spec.dtype))
    by_activation["log_constant"] = steepest + jnp.mean(jnp.log(spectral(params.mlp)))

    # Bounds of pure attention with the MLPs' λ in its output matrices, in the norm of each. A factor on λ adds
    # (3^L − 1)/2 times its logarithm, so the bound at one small factor tells up to which it promises collapse.
    pure = dataclasses.replace(stack, mlp=None)
    powers, first = (3**spec.depth - 1) / 2, jnp.asarray(spec.factors[0], spec.dtype)
    diameter = collapse.tanh_depth_bound(network.scale_branches(params, spectral(params.mlp)), x, pure)
    centred = composite(params.mlp) * (2 - 2 / spec.tokens)  # the mean is not the centre that minimises
    bound = collapse.depth_bound(network.scale_branches(params, centred * first), x, pure)
    return by_activation | {
        "tanh_promise": -(diameter[-1] - diameter[0]) / powers - steepest,
        "published_promise": jnp.log(first) - (bound[-1] - bound[0]) / powers - steepest,
    }


def sweep(spec: Spec, params: network.LayerParams, x: jax.Array, activation: str) -> dict[str, jax.Array]:
    """Residuals by factor and layer, which factors collapse, the threshold, and what the smallest factors predict."""
    stack, factors = _stack(spec, spec.depth, activation), jnp.asarray(spec.factors, spec.dtype)

    def one(factor: jax.Array) -> tuple[jax.Array, jax.Array]:
        layers = network.scale_branches(params, factor, attention=False)
        last = network.apply(layers, x, stack)
        relative = collapse.frobenius(collapse.residual(last)) / collapse.frobenius(last)
        return collapse.log_residuals(layers, x, stack), _below(relative)

    logs, collapsed = jax.lax.map(one, factors)
    log_factors, powers = jnp.log(factors), (3**spec.depth - 1) / 2
    # The first factor at which it has not collapsed, or at which that is not known; halfway to the one before, on the
    # log scale.
    with_end = jnp.append(collapsed, jnp.zeros_like(collapsed[:1]))
    first = jnp.argmax(with_end != 1)
    step = log_factors[1] - log_factors[0]
    threshold = log_factors[0] + (first.astype(x.dtype) - 0.5) * step
    return {
        "log": logs, "collapsed": collapsed,
        "log_threshold": jnp.where(jnp.isnan(with_end[first]), jnp.nan, threshold),
        "log_predicted": log_factors[0] - (logs[0, -1] - logs[0, 0]) / powers,
        "slope": (logs[1, -1] - logs[0, -1]) / step / powers,
    }  # fmt: skip


def _below(relative: jax.Array) -> jax.Array:
    """1 where the tokens are equal to 1 %, else 0; NaN where that is not known."""
    return jnp.where(jnp.isnan(relative), relative, (relative < COLLAPSED).astype(relative.dtype))


def _deep(key: jax.Array, spec: Spec) -> jax.Array:
    """1 where the tokens of a deep network with tanh MLPs are equal to 1 %, else 0: (factor, layer)."""
    x, stack = _tokens(key, spec), _stack(spec, spec.deep, "tanh")
    layers = network.random_layers(jax.random.fold_in(key, 1), stack, dtype=spec.dtype)

    def collapsed(factor: jax.Array) -> jax.Array:
        states = network.hidden_states(network.scale_branches(layers, factor, attention=False), x, stack)
        rest = jax.vmap(lambda state: collapse.frobenius(collapse.residual(state)))(states)
        return _below(rest / jax.vmap(collapse.frobenius)(states))

    return jax.lax.map(collapsed, jnp.asarray(spec.deep_factors, spec.dtype))


def _pushed(key: jax.Array, spec: Spec) -> jax.Array:
    """Log of the relative change of the output over that of the tokens, for a small random push: (activation, factor).

    The relative change leaves out the trivial part, that steeper MLPs make everything larger.
    """
    x = _tokens(key, spec)
    push = jax.random.normal(jax.random.fold_in(key, 2), x.shape, spec.dtype)
    pair = jnp.stack([x, x + PUSH * push * collapse.frobenius(x) / collapse.frobenius(push)])
    params = network.init(jax.random.fold_in(key, 1), _stack(spec, spec.depth, "relu"), dtype=spec.dtype)

    def change(factor: jax.Array, stack: network.StackSpec) -> jax.Array:
        layers = network.scale_branches(params, factor, attention=False)
        before, after = jax.lax.map(lambda x: network.apply(layers, x, stack), pair)
        return jnp.log(collapse.frobenius(after - before) / collapse.frobenius(before) / PUSH)

    factors = jnp.asarray(spec.pushed_factors, spec.dtype)
    stacks = [_stack(spec, spec.depth, name) for name in ACTIVATIONS]
    return jnp.stack([jax.lax.map(functools.partial(change, stack=stack), factors) for stack in stacks])


def spectral(mlp: network.MLPParams | None) -> jax.Array:
    """‖W₁‖₂‖W₂‖₂ of every layer."""
    assert mlp is not None
    return jnp.linalg.norm(mlp.weight_in, 2, axis=(1, 2)) * jnp.linalg.norm(mlp.weight_out, 2, axis=(1, 2))


def composite(mlp: network.MLPParams | None) -> jax.Array:
    """‖W₁‖_{1,∞}‖W₂‖_{1,∞} of every layer."""
    assert mlp is not None
    return jax.vmap(lambda a, b: collapse.norm_1inf(a) * collapse.norm_1inf(b))(mlp.weight_in, mlp.weight_out)


def plot(data: Mapping[str, np.ndarray]) -> Drawing:
    """Residuals by layer for ReLU and tanh; the share of networks that has collapsed, by λ and by depth."""
    drawing, (relu, tanh, share, deep) = style.figure(columns=2, rows=2, width=6.4, height=4.1)
    for ax, name in ((relu, "relu"), (tanh, "tanh")):
        _plot_layers(ax, data, name)
    constants, depth = np.exp(data["log_constant_mean"]), data["log"].shape[-1] - 1
    colors = [style.colour(COLOURS[name]) for name in ACTIVATIONS]
    for index, name in enumerate(ACTIVATIONS):
        share.plot(data["factors"] * constants[index], data["collapsed_mean"][index], color=colors[index],
                   marker=MARKERS[name], label=LABELS[name])  # fmt: skip
    # Marks above the curves: λ up to which each argument promises collapse.
    for values, mark, label in (
        (data["log_predicted"][1], "|", "predicted from small λ"),
        (data["tanh_promise_mean"], "4", "promised by the tanh bound"),
        (data["published_promise_mean"], "x", "promised by the published bound"),
    ):
        heights = 1.08 + 0.05 * np.arange(len(ACTIVATIONS))
        share.scatter(np.exp(values) * constants, heights, marker=mark, s=60, c=colors)
        share.scatter([], [], marker=mark, s=60, color=style.colour("theory"), label=label)
    share.set_ylim(-0.05, 1.3)
    share.set_yticks(np.linspace(0, 1, 6))
    style.panel(share, "Lipschitz constant λ of the MLPs", "share of networks", f"Collapsed at layer {depth}", log="x",
                legend="lower left")  # fmt: skip
    slopes = data["deep_factors"] * constants[ACTIVATIONS.index("tanh")]
    for row, color in enumerate(style.sequence(len(slopes))):
        values, label = data["deep_mean"][row], f"λ = {slopes[row]:.0f}"
        deep.plot(np.arange(values.size), values, color=color, marker=style.MARKERS[row], label=label)
    deep.set_ylim(-0.05, 1.05)
    style.panel(deep, "layer", "share of networks", "Collapsed by layer, tanh", legend="lower right")
    for ax in (relu, tanh, deep):
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return drawing


def _plot_layers(ax: Axes, data: Mapping[str, np.ndarray], name: str) -> None:
    """Residuals by layer at nine factors; a curve ends where half of the residuals are not known."""
    index, steps = ACTIVATIONS.index(name), len(data["factors"])
    chosen = np.unique(np.linspace(0, steps - 1, 9).astype(int))
    layers = np.arange(data["log"].shape[-1])
    for step, color in zip(chosen, style.sequence(len(chosen)), strict=True):
        known = data["unknown"][index, step] < 0.5
        quantiles = np.where(known, data["log"][:, index, step], np.nan)
        slope = data["factors"][step] * np.exp(data["log_constant_mean"][index])
        label = f"λ = {slope:.0f}" if slope > 9.5 else f"λ = {slope:.2g}"
        style.bands(ax, layers, *quantiles, color=color, label=label, marker="o", alpha=0.12)
    ax.set_yscale("symlog", linthresh=10, linscale=1)
    title = f"Residual by layer, {LABELS[name]}"
    style.panel(ax, "layer", "log ‖res‖ (nats)", title, legend="lower left", columns=2)


def _deep_share(data: Mapping[str, np.ndarray]) -> Measured:
    """Share of deep networks with ‖res‖/‖X‖ < 1 % at the last layer, by λ."""
    tanh = np.exp(data["log_constant_mean"][ACTIVATIONS.index("tanh")])
    steep = [f"{factor * tanh:.2g}" for factor in data["deep_factors"]]
    return Measured(
        data["deep_mean"][:, -1],
        standard_error=data["deep_standard_error"][:, -1],
        where=[f"λ = {each}" for each in steep],
        numbers={"layers": data["deep_mean"].shape[1] - 1, "steep": ", ".join(steep)},
    )


def _growth_of_push(data: Mapping[str, np.ndarray]) -> Measured:
    """Log of the output's relative change over the tokens', at the largest λ less at the smallest."""
    pushed, error, left_out = (
        data[f"sensitivity_{name}"][:, [0, -1]] for name in ("mean", "standard_error", "left_out")
    )
    factors = [
        f"{LABELS[name]} {flat:.3g}, {steep:.3g}"
        for name, (flat, steep) in zip(ACTIVATIONS, np.exp(pushed), strict=True)
    ]
    return Measured(
        pushed[:, 1] - pushed[:, 0],
        standard_error=np.hypot(error[:, 1], error[:, 0]),
        where=[LABELS[name] for name in ACTIVATIONS],
        left_out=left_out,
        numbers={"factors": "; ".join(factors)},
    )


summary = functools.partial(published, source="collapse-summary", place="finding 2")
RANDOM = "attention and MLPs without skips and LayerNorm; Gaussian weights, no biases"
ROWS = (
    summary(
        "mlp-deep",
        "MLPs cannot stop the collapse completely.",
        _deep_share,
        at_least(0.5),
        hypotheses=f"{RANDOM}; tanh, the last to collapse of three activations",
        interval_from="our tolerance: most networks",
        note=r"share of networks with $\lVert \mathrm{res}\rVert/\lVert X\rVert$ < 1 % at layer <layers>, for "
        r"$\lambda=<steep>$; the abstract of Dong et al. says in short that MLPs stop degeneration",
    ),
    law(
        "mlp-bracket",
        r"A factor $s$ on the MLPs' Lipschitz constants in all $L$ layers, where they are small, multiplies $\lVert "
        r"\mathrm{res}\rVert$ by $s^{(3^{L}-1)/2}$.",
        lambda data: Measured(
            data["slope_mean"], data["slope_standard_error"], where=[LABELS[name] for name in ACTIVATIONS]
        ),
        RATIO,
        proof="derived",
        place="docs/skip_norm_mlp.md, Steep MLPs",
        neighbours=["dong2021", "collapse-summary"],
        hypotheses=RANDOM,
        interval_from="our tolerance: 1 %",
        note=r"slope of $\log\thinspace\lVert \mathrm{res}\rVert$ in $\log\lambda$ over $(3^{L}-1)/2$, at the "
        r"smallest $\lambda$; the summary says that $\lambda$ enters the bound as a factor",
    ),
    summary(
        "mlp-robustness",
        "Too large a Lipschitz constant may let small changes of the input grow.",
        _growth_of_push,
        at_least(0),
        needs="some",
        hypotheses=RANDOM,
        interval_from=r"more at the largest $\lambda$ than at the smallest",
        note=r"log of the output's relative change over the tokens' (1 %), at the largest $\lambda$ less at the "
        "smallest; the two as geometric means: <factors>",
    ),
)
