"""Three questions to every kind of attention weights that reads scores: depth, sparsity and scale."""

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import MaxNLocator

from experiments.ledger import Claim, law, near
from experiments.lib import figure, style
from rc_jax import attention, collapse, network
from rc_jax.attention import KINDS, Kind
from rc_jax.scale.kinds import kind_best_scale
from rc_jax.sparsity.kinds import kind_sparsity, rows_are_independent

ABOUT = figure.About(
    title="Three questions to every kind of weights",
    caption=(
        "Each panel is one kind of attention weights. Line: log ‖res(X)‖ by layer without skip connections, median of "
        "random networks in exact arithmetic; grey: softmax. It ends where the residual of some network is not known. "
        "S: sparsity of random rows whose logits have deviation 1 (1 is even, 0 is focused). α*: factor on normal "
        "scores of 64 keys that lets the largest typical gradient through, ± one standard error. It is none where the "
        "gradient keeps rising or is the same at every scale, and where rows depend on each other. Order k: one layer "
        "maps a small difference between tokens to its k-th power."
    ),
    formula="‖res(layer(X))‖ ~ ‖res(X)‖^k: k = 3 where Σ_j a_j of a row of equal scores c does not depend on c, else 1",
    topic="collapse",
    minutes={"smoke": 0.15, "quick": 1.0, "full": 2.5},
    core=False,
)

ORDER = 0.1  # fixed before the first run
GAMMA, CAN_BE_ASKED = 1.0, tuple(name for name, kind in KINDS.items() if kind.reads == "scores")
NEAR, FAR = np.exp(-4), np.exp(-6)  # sizes of the differences between tokens that give the order
EQUAL, STEP = (-1.5, -0.75, 0.75, 1.5), 0.1  # scores of rows of equal scores, and what is added to them


class Spec(figure.Spec):
    """Kinds, shape and number of the networks, rows of random logits."""

    dtype: str = "float64"
    kinds: tuple[str, ...] = CAN_BE_ASKED
    depth: int = 6
    d_model: int = 16
    heads: int = 2
    tokens: int = 8
    count: int = 8
    keys: int = 2**10
    scale_keys: int = 64
    rows: int = 256


PRESETS = {
    "smoke": Spec(kinds=("softmax", "sigmoid"), depth=2, count=2, keys=64, scale_keys=8, rows=16),
    "quick": Spec(),
    "full": Spec(count=64, keys=2**12, rows=2048),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Residuals by layer, orders, sparsity, best scale and change of row sums of every kind."""
    logs, orders, scales, sparsities, changes = [], [], [], [], []
    for name in spec.kinds:
        kind = KINDS[name]
        parts = attention.init(jax.random.key(0), attention.AttentionSpec(d_model=2 * kind.maps, weights=kind)).parts
        fall, order = _depth(spec, kind)
        logs.append(fall)
        orders.append(order)
        scales.append(_scale(spec, kind, parts))
        key = jax.random.fold_in(jax.random.key(spec.seed), 1)
        sparsities.append(kind_sparsity(key, kind, GAMMA, spec.keys, parts=parts))
        changes.append(_change(kind, parts))
    return {
        "kinds": np.array(spec.kinds),
        "depth": np.arange(spec.depth + 1),
        "logs": np.stack(logs),
        "order": np.array(orders),
        "scale": np.array(scales),
        "sparsity": np.array(sparsities),
        "change": np.array(changes),
        "shape": np.array([spec.d_model, spec.heads, spec.tokens, spec.count]),
    }


def _depth(spec: Spec, kind: Kind) -> tuple[np.ndarray, float]:
    """Medians over networks of log ‖res‖ by layer from random tokens, and the order of the first layer.

    The order is the median over those networks whose first layer leaves a difference between tokens.
    """
    layer = attention.AttentionSpec(d_model=spec.d_model, heads=spec.heads, weights=kind)
    stack = network.StackSpec(attention=layer, depth=spec.depth)
    params, x = _networks(spec, kind if kind.shapes(layer) else KINDS["softmax"])
    table = jax.jit(jax.vmap(lambda params, x: collapse.log_residuals(params, x, stack)))(params, x)
    random, near, far = np.asarray(table).reshape(3, spec.count, -1)
    left = np.isfinite(near[:, 1]) & np.isfinite(far[:, 1])
    slopes = (near[left, 1] - far[left, 1]) / (near[left, 0] - far[left, 0])
    return np.median(random, axis=0), float(np.median(slopes)) if slopes.size else np.nan


@functools.cache
def _networks(spec: Spec, kind: Kind) -> tuple[network.LayerParams, jax.Array]:
    """Every network and its tokens: random ones, and ones that differ little, by two sizes.

    Kinds without parameters of their own share them.
    """
    layer = attention.AttentionSpec(d_model=spec.d_model, heads=spec.heads, weights=kind)
    stack = network.StackSpec(attention=layer, depth=spec.depth)

    def one(index: jax.Array, size: jax.Array) -> tuple[network.LayerParams, jax.Array]:
        keys = jax.random.split(jax.random.fold_in(jax.random.key(spec.seed), index), 3)
        mean = jax.random.normal(keys[1], (1, spec.d_model), spec.dtype)
        rest = jax.random.normal(keys[2], (spec.tokens, spec.d_model), spec.dtype)
        return network.init(keys[0], stack, dtype=spec.dtype), jnp.where(size < 1, mean, 0) + size * rest

    sizes = jnp.repeat(jnp.array([1.0, NEAR, FAR], spec.dtype), spec.count)
    return jax.jit(jax.vmap(one))(jnp.tile(jnp.arange(spec.count), 3), sizes)


def _scale(spec: Spec, kind: Kind, parts: dict[str, jax.Array]) -> tuple[float, float]:
    """The typical best scale and its standard error; infinite or NaN where there is none."""
    if not rows_are_independent(kind, parts):
        return np.nan, np.nan
    key = jax.random.fold_in(jax.random.key(spec.seed), 2)
    best = kind_best_scale(key, kind, spec.scale_keys, rows=spec.rows, parts=parts)
    return float(best.scale), float(np.nan if best.standard_error is None else best.standard_error)


def _change(kind: Kind, parts: dict[str, jax.Array]) -> float:
    """The largest change of the sum of a row of equal scores when a constant is added to them."""
    scores = jnp.stack([jnp.full((kind.maps, 8, 8), at) for each in EQUAL for at in (each, each + STEP)])
    sums = np.array([np.asarray(kind(each, None, parts))[0, 0].sum() for each in scores])
    return float(np.abs(np.diff(sums.reshape(-1, 2))).max())


def plot(data: Mapping[str, np.ndarray]) -> Drawing:
    """A panel for each kind: its fall over depth beside softmax's, and three numbers."""
    names = [str(name) for name in data["kinds"]]
    columns = min(4, len(names))
    rows = -(-len(names) // columns)
    drawing, panels = style.figure(columns=columns, rows=rows, width=2.9, height=2.15)
    softmax = data["logs"][names.index("softmax")]
    # all panels have one pair of axes, named at the edge
    finite = data["logs"][np.isfinite(data["logs"])]
    for index, (ax, name) in enumerate(zip(panels, names, strict=False)):
        ax.plot(data["depth"], softmax, color=style.colour("reference"), linewidth=1.4)
        if index == 1:
            at = int(data["depth"][-1]) // 3
            ax.annotate("softmax", (at, softmax[at]), xytext=(4, 1), textcoords="offset points", fontsize=8,
                        color=style.colour("reference"))  # fmt: skip
        _fill(ax, data, index)
        ax.set_yscale("symlog", linthresh=1)
        low, high = 2 * min(finite.min(), -1), 3 * max(finite.max(), 1)
        style.ticks(ax.yaxis, [at for at in (10, 1, 0, -1, -10, -100, -1000) if low < at < high])
        ax.set_ylim(low, high)
        ax.set_xlim(-0.3, data["depth"][-1] + 0.3)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        at_left, at_bottom = index % columns == 0, index + columns >= len(names)
        style.panel(ax, "layer" if at_bottom else "", "log ‖res(X)‖ (nats)" if at_left else "", name)
        ax.tick_params(labelleft=at_left, labelbottom=at_bottom)
    for ax in panels[len(names) :]:
        ax.set_axis_off()
    return drawing


def _fill(ax: Axes, data: Mapping[str, np.ndarray], index: int) -> None:
    logs, (best, error) = data["logs"][index], data["scale"][index]
    ax.plot(data["depth"], logs, "o-", color=style.colour("measured"), markersize=4)
    scale = "none" if not np.isfinite(best) else f"{best:.2g}" + (f" ± {error:.1g}" if np.isfinite(error) else "")
    order = data["order"][index]
    words = [
        f"S = {data['sparsity'][index, 0]:.2f}",
        f"α* = {scale}",
        f"order {order:.0f}" if np.isfinite(order) else "order not known",
    ]
    known = np.isfinite(logs)
    if not known.all():
        text = f"not known after layer {int(np.argmin(known)) - 1}"
        ax.annotate(text, (1.0, 1.0), xycoords="axes fraction", fontsize=8.5, ha="right", va="top")
    ax.annotate("\n".join(words), (0.03, 0.04), xycoords="axes fraction", fontsize=9, va="bottom", linespacing=1.25)


def claims(data: Mapping[str, np.ndarray]) -> list[Claim]:
    """The order of a layer, from what a row of equal scores sums to."""
    d, heads, tokens, count = (int(value) for value in data["shape"])
    predicted = np.where(np.isfinite(data["change"]), np.where(data["change"] < 1e-6, 3, 1), np.nan)
    return [
        law(
            "kinds-order",
            "A layer maps a small difference between tokens to its cube where the sum of a row of equal scores does "
            "not depend on the score, and to first order elsewhere.",
            data["order"] - predicted,
            near(0, ORDER),
            where=[str(name) for name in data["kinds"]],
            proof="derived",
            place="docs/weights.md, Collapse",
            neighbours=["dong2021"],
            hypotheses=f"Gaussian weights, d = {d}, {heads} heads, {tokens} tokens near one random vector; no mask, no "
            "skip connection; networks whose output is not 0",
            interval_from=f"our tolerance: {ORDER:g}",
            note=f"measured order less predicted, median of {count} networks at differences of e^(−4) and e^(−6)",
            reads=[data["change"]],
        ),
    ]
