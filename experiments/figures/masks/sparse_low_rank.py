"""Low-rank and sparse attention: which of them collapses faster than full attention, and by what law."""

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
from experiments.ledger import Measured, at_least, at_most, published
from experiments.lib import figure, style
from rc_jax import attention, collapse, network
from rc_jax.attention import masks
from rc_jax.collapse import mask_rates

ABOUT = figure.About(
    title="Low-rank and sparse attention",
    caption=(
        "Pure attention with Gaussian weights (bands: 5–95 % of initialisations; lines: medians). A Linformer-like "
        "layer attends to r sums E X instead of the n tokens. With sums that are averages the fall triples as in full "
        "attention, and it is faster at a lower rank. With a Gaussian E, whose rows do not sum to the same number, the "
        "fall per layer only grows by a constant, so log ‖res‖ is a parabola. Keeping the k largest scores delays the "
        "cube until all rows share one order of the tokens. Sparse masks that do not depend on the tokens replace it "
        "by a constant fall."
    ),
    formula="SA(X) = softmax(X W_Q (E X W_K)ᵀ/√d_k) E X W;  E1 = 1: Δ log ‖res‖ triples;  else Δ² log ‖res‖ ≈ −log r",
    topic="masks",
    minutes={"smoke": 0.3, "quick": 0.6, "full": 6.0},
)

LEVELS = (0.05, 0.5, 0.95)
JUDGED = 6  # the layer that the rows speak of; further down rounding decides which scores some networks keep


class Spec(figure.Spec):
    """Shape of the networks, ranks (divisors of the number of tokens), numbers of scores kept, initialisations."""

    dtype: str = "float64"
    d_model: int = 64
    heads: int = 4
    tokens: int = 32
    depth: int = 8
    count: int = 64
    ranks: tuple[int, ...] = (2, 8, 16)
    top_k: tuple[int, ...] = (2, 8, 16)
    density: float = 0.5
    block: int = 8
    radius: int = 8


PRESETS = {
    "smoke": Spec(d_model=16, heads=2, tokens=8, depth=5, count=16, ranks=(2,), top_k=(4,), block=4, radius=2),
    "quick": Spec(),
    "full": Spec(count=2048, depth=10, ranks=(1, 2, 4, 8, 16), top_k=(1, 2, 4, 8, 16)),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """By case and layer: quantiles of the change of log ‖res‖; exponent at the last layer."""
    key = jax.random.fold_in(jax.random.key(spec.seed), 0)
    stats = draw(functools.partial(_network, spec=spec), key, spec.count, progress=True)
    quantiles, ranks = stats.quantile(LEVELS), np.array([*spec.ranks, spec.tokens], float)
    names = [
        "full attention", *(f"averages, r = {rank}" for rank in spec.ranks),
        *(f"Gaussian E, r = {rank:g}" for rank in ranks), f"random mask {spec.density:g}", f"block {spec.block}",
        f"window {spec.radius}", *(f"top {k}" for k in spec.top_k),
    ]  # fmt: skip
    # Quantiles over networks, and the curvature that theory gives for a Gaussian E.
    return {
        "names": np.array(names), "depth": np.arange(spec.depth + 1), "log": quantiles["log"],
        "exponent": quantiles["exponent"],
        "predicted": np.asarray(mask_rates.pooled_curvature(ranks, spec.heads, spec.d_model)),
        "mean": stats.mean["log"], "error": stats.standard_error["log"],
        "unknown": stats.left_out["log"],
    }  # fmt: skip


def _network(key: jax.Array, spec: Spec) -> dict[str, jax.Array]:
    """One initialisation of every case, all with the same projections and tokens."""
    n = spec.tokens
    x = jax.random.normal(jax.random.fold_in(key, 0), (n, spec.d_model), spec.dtype)
    layer = attention.AttentionSpec(d_model=spec.d_model, heads=spec.heads)
    plain_stack = network.StackSpec(attention=layer, depth=spec.depth)
    pooled_stack = dataclasses.replace(plain_stack, attention=dataclasses.replace(layer, rank=n, tokens=n))
    params = network.init(jax.random.fold_in(key, 1), pooled_stack, dtype=spec.dtype)
    gaussian = params.attention.parts["pool"]
    # Every E has n rows, so that one program serves them: a row repeated n/r times is the layer of rank r.
    averages = [attention.average_pool(n, rank, dtype=spec.dtype) for rank in (n, *spec.ranks)]
    pools = [jnp.broadcast_to(jnp.repeat(pool, n // pool.shape[0], axis=0), gaussian.shape) for pool in averages]
    pools += [jnp.repeat(gaussian[..., :rank, :], n // rank, axis=-2) for rank in (*spec.ranks, n)]
    drawn = masks.random(jax.random.fold_in(key, 2), n, spec.density)
    blind = jnp.stack([drawn, masks.block(n, spec.block), masks.window(n, spec.radius)])

    def with_pool(pool: jax.Array) -> network.LayerParams:
        return params._replace(attention=params.attention.with_parts(pool=pool))

    logs = [
        jax.lax.map(lambda pool: collapse.log_residuals(with_pool(pool), x, pooled_stack), jnp.stack(pools)),
        jax.lax.map(lambda mask: collapse.log_residuals(params, x, plain_stack, mask=mask), blind),
    ]
    for k in spec.top_k:
        top = dataclasses.replace(plain_stack, attention=dataclasses.replace(layer, top_k=k))
        logs.append(collapse.log_residuals(params, x, top)[None])
    log = jnp.concatenate(logs)
    fall = jnp.diff(log)
    return {"log": log - log[:, :1], "exponent": fall[:, 1:] / fall[:, :-1]}


def plot(data: Mapping[str, np.ndarray]) -> Drawing:
    """Averages, Gaussian sums, sparse attention; and the fall at each layer over the one before."""
    drawing, (averages, gaussian, sparse, exponent) = style.figure(columns=2, rows=2, width=5.8, height=4.2)
    names, depth = [str(name) for name in data["names"]], data["depth"]
    exponent.plot(depth[2:], data["exponent"][1, 0], label=names[0], color=style.colour("theory"))
    for ax, title, prefixes, marker, line in (
        (averages, "Averages of the tokens: E1 = 1", "averages", "s", "--"),
        (gaussian, "Gaussian E: its rows have different sums", "Gaussian", "^", ":"),
        (sparse, "Sparse attention", ("top", "random", "block", "window"), "o", "-"),
    ):
        cases = [i for i, name in enumerate(names) if name.startswith(prefixes)]
        shown = [i for i in cases if names[i].startswith(("top", "random"))] or sorted({cases[0], cases[-1]})
        style.bands(ax, depth, *data["log"][:, 0], meaning="theory", label=names[0])
        for index, case in enumerate(cases):
            tint = style.cycle(index)["color"]  # a colour means the same in the last panel
            style.bands(ax, depth, *data["log"][:, case], color=tint, label=names[case])
            if case in shown:
                exponent.plot(depth[2:], data["exponent"][1, case], label=names[case], color=tint, marker=marker,
                              linestyle=line)  # fmt: skip
        if ax is gaussian:
            ax.set_ylim(1.3 * float(np.nanmin(data["log"][1, cases, -1])), 4)
            _plot_parabola(ax, data, cases[-1])
        else:
            ax.set_yscale("symlog", linthresh=1, linscale=0.5)
        style.panel(ax, "layer", "change of log ‖res‖ (nats)", title, legend="lower left")
    style.reference(exponent, y=3.0, text="3: doubly exponential")
    style.reference(exponent, y=1.0)  # exponential
    exponent.set_ylim(0, 6)
    style.panel(exponent, "layer", "fall at this layer / fall at the one before", "Exponent of the fall (medians)",
                legend="below", columns=3)  # fmt: skip
    for ax in (averages, gaussian, sparse, exponent):
        ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    return drawing


def _plot_parabola(ax: Axes, data: Mapping[str, np.ndarray], case: int) -> None:
    """The predicted curvature, started from the value and slope in the middle of the network."""
    depth, middle, bend = data["depth"], data["log"][1, case], float(data["predicted"][-1])
    start = depth.size // 2
    steps = np.arange(depth.size - start)
    curve = middle[start] + (middle[start] - middle[start - 1] + bend) * steps + 0.5 * bend * steps * (steps - 1)
    ax.plot(depth[start:], curve, color=style.colour("theory"), linestyle=":", label="predicted parabola")


def _less_than_full(data: Mapping[str, np.ndarray], prefixes: tuple[str, ...]) -> Measured:
    """Mean log ‖res‖ of the kinds with these names, less that of full attention."""
    layer, names = min(JUDGED, int(data["depth"][-1])), [str(name) for name in data["names"]]
    kinds = [i for i, name in enumerate(names) if name.startswith(prefixes)]
    mean, error, unknown = (data[key][:, layer] for key in ("mean", "error", "unknown"))
    more = mean[kinds] - mean[0]
    return Measured(
        more,
        standard_error=np.hypot(error[kinds], error[0]),
        where=[names[i] for i in kinds],
        left_out=unknown[kinds].sum() + unknown[0],
        numbers={"layer": layer, "slower": ", ".join(names[i] for i in np.array(kinds)[more > 0]) or "none"},
    )


# A summary of Dong et al. on low-rank and sparse attention.
summary = functools.partial(
    published,
    source="collapse-summary",
    place="related work, on variants of the transformer",
    interval_from="the sign of the difference",
)
MORE = r"mean $\log\thinspace\lVert \mathrm{res}\rVert$ less that of full attention, in nats"
SETTING = "random Gaussian weights, no skips, no MLP, layer <layer>"
ROWS = (
    summary(
        "lowrank-average",
        "Low-rank approximations of attention may make the collapse faster.",
        lambda data: _less_than_full(data, ("averages", "Gaussian")),
        at_most(0),
        needs="some",
        after_result=True,
        interval_from="the sign of the difference; that some approximation is enough, because the summary says may, "
        "was chosen when all were known",
        hypotheses=r"the summary cites Wang et al. 2020; here keys and values are $E\thinspace X$ with random $E$, "
        f"rows that average or Gaussian ones, Wang et al.'s kind; {SETTING}",
        note=f"{MORE}; slower than full attention: <slower>",
    ),
    summary(
        "sparse-slower",
        "Sparse attention can relieve the collapse.",
        lambda data: _less_than_full(data, ("top", "random", "block", "window")),
        at_least(0),
        hypotheses=SETTING,
        note=MORE,
    ),
)
