"""Three questions to every kind of attention weights that reads scores: depth, sparsity and scale."""

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import MaxNLocator

from experiments.figures._medians import median_error
from experiments.ledger import Measured, at_least, law, near, published
from experiments.lib import figure, style
from rc_jax import attention
from rc_jax.attention import KINDS, Kind
from rc_jax.collapse.kinds import Fall, is_smooth, keys_are_alike, kind_fall, rows_stand_alone
from rc_jax.scale.kinds import kind_best_scale
from rc_jax.sparsity.kinds import kind_sparsity, rows_are_independent

ABOUT = figure.About(
    title="Three questions to every kind of weights",
    caption=(
        "Each panel is one kind of attention weights. Line: log ‖res(X)‖ by layer without skip connections, median of "
        "random networks in cancellation-free arithmetic; grey: softmax. It ends where the residual of most networks "
        "is not known. S: sparsity of random rows whose logits have deviation 1 (1 is even, 0 is focused). α*: factor "
        "on normal scores of 64 keys that lets the largest typical gradient through, ± one standard error, by the "
        "geometric mean over rows, or by the median for kinds whose weights may be 0 (softmax's would be 4.8). It is "
        "none where the gradient keeps rising, becomes flat or is the same at every scale, and where rows depend on "
        "each other. Order k: one layer maps a small difference between tokens to its k-th power."
    ),
    formula=(
        "‖res(layer(X))‖ ~ ‖res(X)‖^k: k = 3 where Σ_j a_j of a row of equal scores c does not depend on c, else 1; if "
        "a is differentiable there, rows see their own scores alone or sum to 1, and keys are alike"
    ),
    topic="collapse",
    minutes={"smoke": 0.2, "quick": 1.5, "full": 6.0},
    core=True,
    hasty=True,
)

# Fixed before the first run. What falls doubly exponentially multiplies its fall by at least 1.5 at the last layer.
ORDER, DOUBLY = 0.1, 1.5
GAMMA, CAN_BE_ASKED = 1.0, tuple(name for name, kind in KINDS.items() if kind.reads == "scores")
EQUAL, STEP = (-1.5, -0.75, 0.75, 1.5), 0.1  # scores of rows of equal scores, and what is added to them


def _standardised(scores: jax.Array, seen: jax.Array, parts: Mapping[str, jax.Array]) -> jax.Array:
    """Softmax of scores less their mean over their deviation, which has no derivative at equal scores."""
    centred = scores - scores.mean(axis=-1, keepdims=True)
    square = jnp.square(centred).mean(axis=-1, keepdims=True)
    unit = jnp.where(square > 0, centred / jnp.sqrt(jnp.where(square > 0, square, 1)), 0)
    return jax.nn.softmax(jnp.where(seen, unit, -jnp.inf), axis=-1)


def _over_queries(scores: jax.Array, seen: jax.Array, parts: Mapping[str, jax.Array]) -> jax.Array:
    """Softmax along columns, so that a row sees the scores of the others."""
    return jnp.where(seen, jax.nn.softmax(jnp.where(seen, scores, -1e30), axis=-2), 0)


def _half_own(scores: jax.Array, seen: jax.Array, parts: Mapping[str, jax.Array]) -> jax.Array:
    """The mean of softmax and of the identity matrix: a query's own key is special."""
    own = jnp.eye(*scores.shape[-2:], dtype=scores.dtype)
    return (jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1) + jnp.where(seen, own, 0)) / 2


# Kinds whose rows of equal scores have one sum, and which do not meet the law's hypotheses.
OUTSIDE = (
    Kind("standardised", _standardised, "one", shift_invariant=True, increasing=True),
    Kind("over queries", _over_queries),
    Kind("half own", _half_own, "one", shift_invariant=True),
)


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
    "smoke": Spec(kinds=("softmax", "sigmoid", "sinkhorn"), depth=2, count=2, keys=64, scale_keys=8, rows=16),
    "quick": Spec(),
    "full": Spec(count=64, keys=2**12, rows=2048),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Residuals by layer, orders, sparsity, best scale and change of row sums of every kind."""
    logs, orders, scales, sparsities, changes, meets = [], [], [], [], [], []
    for name in spec.kinds:
        kind = KINDS[name]
        parts = attention.init(jax.random.key(0), attention.AttentionSpec(d_model=2 * kind.maps, weights=kind)).parts
        fall = kind_fall(
            kind, depth=spec.depth, networks=spec.count, d_model=spec.d_model, heads=spec.heads, tokens=spec.tokens,
            seed=spec.seed,
        )  # fmt: skip
        logs.append(fall.logs)
        orders.append(fall.order)
        scales.append(_scale(spec, kind, parts))
        key = jax.random.fold_in(jax.random.key(spec.seed), 1)
        sparsities.append(kind_sparsity(key, kind, GAMMA, spec.keys, parts=parts))
        changes.append(_change(kind, parts))
        meets.append(_meets(kind))
    outside = [
        kind_fall(
            kind, depth=1, networks=spec.count, d_model=spec.d_model, heads=spec.heads, tokens=spec.tokens,
            seed=spec.seed,
        ).order for kind in OUTSIDE
    ]  # fmt: skip
    return {
        "kinds": np.array(spec.kinds),
        "depth": np.arange(spec.depth + 1),
        "logs": np.stack(logs),
        "order": np.array(orders),
        "scale": np.array(scales),
        "sparsity": np.array(sparsities),
        "change": np.array(changes),
        "meets": np.array(meets),
        "outside": np.array(outside),
        "outside_meets": np.array([_meets(kind) for kind in OUTSIDE]),
        "shape": np.array([spec.d_model, spec.heads, spec.tokens, spec.count]),
    }


def _meets(kind: Kind) -> bool:
    """Whether a kind meets the law's hypotheses: a derivative at equal scores, rows alone or of sum 1, keys alike."""
    return is_smooth(kind) and (kind.row_sum == "one" or rows_stand_alone(kind)) and keys_are_alike(kind)


def _scale(spec: Spec, kind: Kind, parts: dict[str, jax.Array]) -> tuple[float, float]:
    """The typical best scale and its standard error; NaN where there is none."""
    if not rows_are_independent(kind, parts):
        return np.nan, np.nan
    key = jax.random.fold_in(jax.random.key(spec.seed), 2)
    best = kind_best_scale(key, kind, spec.scale_keys, rows=spec.rows, parts=parts)
    if best.reason:
        return np.nan, np.nan
    return float(best.scale), float(best.standard_error)


def _change(kind: Kind, parts: dict[str, jax.Array]) -> float:
    """The largest change of the sum of a row of equal scores when a constant is added to them."""
    levels = jnp.asarray([[each, each + STEP] for each in EQUAL])
    sums = jax.jit(jax.vmap(jax.vmap(lambda level: kind(jnp.full((kind.maps, 8, 8), level), None, parts)[0, 0].sum())))
    return float(np.abs(np.diff(sums(levels))).max())


def plot(data: Mapping[str, np.ndarray]) -> Drawing:
    """A panel for each kind: its fall over depth beside softmax's, and three numbers."""
    names = [str(name) for name in data["kinds"]]
    width = style.PAGE / 3.1
    columns = min(len(names), int(style.PAGE / width))  # that stand in a row
    drawing, panels = style.figure(columns=len(names), width=width, height=2.15)
    medians = np.stack([Fall(logs, np.empty(0)).median for logs in data["logs"]])
    softmax = medians[names.index("softmax")]
    # all panels have one pair of axes, named at the edge
    finite = medians[np.isfinite(medians)]
    for index, (ax, name) in enumerate(zip(panels, names, strict=True)):
        ax.plot(data["depth"], softmax, color=style.colour("reference"), linewidth=1.4)
        if index == 1:
            at = int(data["depth"][-1]) // 3
            ax.annotate("softmax", (at, softmax[at]), xytext=(4, 1), textcoords="offset points", fontsize=9,
                        color=style.colour("reference"))  # fmt: skip
        _fill(ax, data, index, medians[index])
        ax.set_yscale("symlog", linthresh=1)
        low, high = 2 * min(finite.min(), -1), 3 * max(finite.max(), 1)
        style.ticks(ax.yaxis, [at for at in (10, 1, 0, -1, -10, -100, -1000) if low < at < high])
        ax.set_ylim(low, high)
        ax.set_xlim(-0.3, data["depth"][-1] + 0.3)
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
        at_left, at_bottom = index % columns == 0, index // columns >= len(names) // columns - 1
        style.panel(ax, "layer" if at_bottom else "", "log ‖res(X)‖ (nats)" if at_left else "", name)
        ax.tick_params(labelleft=at_left, labelbottom=at_bottom)
    return drawing


def _fill(ax: Axes, data: Mapping[str, np.ndarray], index: int, logs: np.ndarray) -> None:
    best, error = data["scale"][index]
    ax.plot(data["depth"], logs, "o-", color=style.colour("measured"), markersize=4)
    scale = "none" if not np.isfinite(best) else f"{best:.2g}" + (f" ± {error:.1g}" if np.isfinite(error) else "")
    order = data["order"][index]
    words = [
        f"S = {data['sparsity'][index, 0]:.2f}",
        f"α* = {scale}",
        f"order {order:.0f}" if np.isfinite(order) else "order not known",
    ]
    if not np.isfinite(logs).all():
        after = int(np.argmin(np.isfinite(logs)))
        text = f"not known after layer {after - 1}" if np.isnan(logs[after]) else f"tokens equal after layer {after}"
        ax.annotate(text, (1.0, 1.0), xycoords="axes fraction", fontsize=9, ha="right", va="top")
    ax.annotate("\n".join(words), (0.03, 0.04), xycoords="axes fraction", fontsize=9, va="bottom", linespacing=1.25)


def _order_less_predicted(data: Mapping[str, np.ndarray]) -> Measured:
    """Order of a layer less the one that its sums of rows of equal scores predict: 3 where they do not change."""
    predicted = np.where(np.isfinite(data["change"]), np.where(data["change"] < 1e-6, 3, 1), np.nan)
    return Measured(
        data["order"] - predicted,
        where=[str(name) for name in data["kinds"]],
        applies=data["meets"],
        reads=[data["change"], data["outside"]],
        numbers=_numbers(data) | dict(zip(("standardised", "queries", "own"), data["outside"], strict=True)),
    )


def _falls(data: Mapping[str, np.ndarray]) -> Measured:
    """Last fall of log ‖res‖ under Sinkhorn's weights over the one before, median of networks."""
    falls = np.diff(_logs(data, "sinkhorn"), axis=1)
    ratio = falls[:, -1] / falls[:, -2]
    return Measured(np.median(ratio), standard_error=median_error(ratio), numbers=_numbers(data))


def _sinkhorn_less_softmax(data: Mapping[str, np.ndarray]) -> Measured:
    """Median difference of log ‖res‖ by layer over networks of the same projections."""
    difference = _logs(data, "sinkhorn") - _logs(data, "softmax")
    return Measured(
        np.median(difference, axis=0)[1:],
        standard_error=median_error(difference)[1:],
        where=data["depth"][1:],
        numbers=_numbers(data) | {"larger": np.sum(difference[:, -1] > 0)},
    )


def _logs(data: Mapping[str, np.ndarray], kind: str) -> np.ndarray:
    return data["logs"][list(data["kinds"]).index(kind)]


def _numbers(data: Mapping[str, np.ndarray]) -> dict[str, int]:
    """The shape and number of the networks."""
    return dict(zip(("width", "heads", "tokens", "count"), data["shape"].tolist(), strict=True))


lapenna = functools.partial(published, source="lapenna2026", place="abstract")
LAYER = "Gaussian weights, $d=<width>$, <heads> heads, <tokens> tokens"
ROWS = (
    law(
        "kinds-order",
        "A layer maps a small difference between tokens to its cube where the sum of a row of equal scores does "
        "not depend on the score, and to first order elsewhere, if weights are differentiable at equal scores, a row "
        "sees its own scores alone or sums to 1, and no key of a row is special.",
        _order_less_predicted,
        near(0, ORDER),
        proof="derived",
        place="docs/weights.md, Collapse",
        neighbours=["dong2021"],
        hypotheses=f"{LAYER} near one random vector; no mask, no skip connection; networks whose output is not 0",
        interval_from=f"our tolerance: {ORDER:g}",
        note="measured order less predicted, median of <count> networks at differences of $e^{-4}$ and $e^{-6}$",
    ),
    lapenna(
        "kinds-sinkhorn-doubly",
        "Without skip connections the rank of attention that Sinkhorn's algorithm normalises falls to one doubly "
        "exponentially with depth.",
        _falls,
        at_least(DOUBLY),
        formula=True,
        hypotheses=f"{LAYER}, no skip connections",
        interval_from=f"our tolerance: {DOUBLY:g}",
        note=r"last fall of $\log\thinspace\lVert \mathrm{res}\rVert$ over the one before, median of <count> networks",
    ),
    lapenna(
        "kinds-sinkhorn-preserves",
        "Doubly stochastic attention by Sinkhorn's algorithm preserves rank better than softmax.",
        _sinkhorn_less_softmax,
        at_least(0),
        hypotheses=f"the residual; here {LAYER}, no skip connections",
        interval_from="the sign",
        elsewhere="the source speaks of attention matrices and of trained networks, not of initialisation",
        note=r"median difference of $\log\thinspace\lVert \mathrm{res}\rVert$ over networks of the same projections; "
        "larger after the last layer in <larger> of <count>",
    ),
)
