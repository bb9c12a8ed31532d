"""Normalisers and switches of current models: their sparsity, and whether they keep the cube of softmax's collapse."""

import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure as Drawing
from scipy import optimize

from experiments.ledger import Claim, at_least, law, near, published
from experiments.lib import figure, style
from rc_jax import attention, collapse, network, scale, sparsity

ABOUT = figure.About(
    title="Attention of today",
    caption=(
        "Weights and switches of current models, at random initialisation. Top left: sparsity S of a row against the "
        "deviation γ of its scores (lines: closed forms and quadrature for infinitely many keys; points: random rows). "
        "Top right: log ‖res(X)‖ by layer without skip connections, the same projections for all (medians). Bottom "
        "left: order of one layer, d log ‖res(SA(X))‖/d log ‖res(X)‖, against the size of the residual: 3 is the cube "
        "of softmax, 1 a constant fall (medians). Bottom right: difference of log ‖res‖ after one layer of Sinkhorn "
        "and of softmax weights, on the same tokens (median and 5–95 % of networks; dashed: slope 1). All in exact "
        "mean–residual arithmetic."
    ),
    formula="P V = 1(pᵀV) + (P − 1pᵀ)V: rows of one sum leave the first order of ‖res(X)‖ out",
    topic="later",
    minutes={"smoke": 0.5, "quick": 1.5, "full": 6.0},
)

# Fixed before the first run: an order is known to a hundredth, a slope to a twentieth, S and a row sum to 0.02. What
# falls doubly exponentially multiplies its fall by at least 1.5 at the last layer.
ORDER, SLOPE, SIZE, DOUBLY, CAP_SCALE = 0.01, 0.05, 0.02, 1.5, 0.02
CAPS, MANY_KEYS = (64.0, 128.0, 256.0), 1e300  # log n = 691 is far above the caps
CAP, SUBTRACTED, COORDINATES = 1.0, 0.8, 8
OURS, PAGE = "our tolerance: ", "docs/attention_of_today.md"
KINDS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "Sinkhorn": {"weights": "sinkhorn"},
    "differential": {"weights": "differential"},
    f"cap {CAP:g}": {"soft_cap": CAP},
    "one more logit": {"weights": "softmax_plus_one"},
    "sigmoid": {"weights": "sigmoid"},
    "gate": {"output_gate": "headwise"},
}
PLACE = {name: index for index, name in enumerate(KINDS)}
CUBES, FIRST = tuple(KINDS)[:4], tuple(KINDS)[4:]
ROWS = ("softmax", "Sinkhorn", "differential", f"cap {CAP:g}", "sigmoid")  # one more logit and gates keep S of softmax


class Spec(figure.Spec):
    """Shape of the layers and networks, logarithms of the residual's sizes, rows of random scores."""

    dtype: str = "float64"
    d_model: int = 32
    heads: int = 4
    tokens: int = 32
    depth: int = 10
    count: int = 32
    bias: float = 0.05
    sizes: tuple[float, ...] = tuple(float(3 - i) for i in range(15))
    gammas: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5)
    keys: int = 2**18
    rows: int = 16
    plan: int = 1024


PRESETS = {
    "smoke": Spec(d_model=8, heads=2, tokens=6, depth=3, count=4, sizes=(1.0, 0.0, -10.0, -11.0), gammas=(0.5, 1.0),
                  keys=2**15, rows=8, plan=128),
    "quick": Spec(),
    "full": Spec(d_model=64, count=256, keys=2**20, plan=2048),
}  # fmt: skip


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Rows of random scores; networks of every kind; one layer of every kind at every size of the residual."""
    # The networks without biases on random tokens, then those with biases on residuals of every size: one batch.
    sizes = np.tile(spec.sizes, spec.count)
    index = np.concatenate([np.arange(spec.count), np.repeat(np.arange(spec.count), len(spec.sizes))])
    logs = np.concatenate([np.full(spec.count, np.nan), sizes])
    params, x = jax.jit(jax.vmap(lambda i, log: _draw(spec, i, log)))(index, jnp.asarray(logs, spec.dtype))
    curves = []
    for options in KINDS.values():
        layer = attention.AttentionSpec(d_model=spec.d_model, heads=spec.heads, bias=True, **options)
        stack = network.StackSpec(attention=layer, depth=spec.depth)
        curves.append(np.asarray(jax.vmap(lambda p, x, stack=stack: collapse.log_residuals(p, x, stack))(params, x)))
    table = np.stack(curves)
    return {
        "depth": np.arange(spec.depth + 1),
        "logs": table[:, : spec.count],
        "sizes": np.array(spec.sizes),
        "after": table[:, spec.count :, 1].reshape(len(KINDS), spec.count, -1),
        "shape": np.array([spec.d_model, spec.heads, spec.tokens, spec.count, spec.keys]),
        "bias": np.array(spec.bias),
        "caps": np.array(CAPS),
        "cap_scale": np.asarray(scale.capped_scale(MANY_KEYS, jnp.asarray(CAPS, spec.dtype))),
    } | _rows(spec)


def _draw(spec: Spec, index: jax.Array, log_size: jax.Array) -> tuple[network.LayerParams, jax.Array]:
    """A network and its tokens: N(0, I) without biases, or a residual of the given size with biases.

    The parameters hold the parts of all kinds, which take from them what they use.
    """
    random = jnp.isnan(log_size)
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(spec.seed), index), random)
    layer = attention.AttentionSpec(d_model=spec.d_model, heads=spec.heads, bias=True, weights="differential",
                                    output_gate="headwise")  # fmt: skip
    stack = network.StackSpec(attention=layer, depth=spec.depth)
    params = network.init(jax.random.fold_in(key, 0), stack, bias_std=jnp.where(random, 0, spec.bias), dtype=spec.dtype)
    x = jax.random.normal(jax.random.fold_in(key, 1), (spec.tokens, spec.d_model), spec.dtype)
    rest = collapse.residual(x)
    return params, jnp.where(random, x, jnp.exp(log_size) / jnp.linalg.norm(rest) * rest)


def _capped(scores: jax.Array) -> jax.Array:
    return jnp.exp(CAP * jnp.tanh(scores / CAP))


def _rows(spec: Spec) -> dict[str, np.ndarray]:
    """S of random rows and their law, (kind, γ)."""
    rng, gammas = np.random.default_rng(spec.seed), np.array(spec.gammas)
    sparsities, error, plans = [], [], []
    # Rows of scores that are N(0, γ²), and Sinkhorn's of tokens; then what theory says of all of them at once.
    for gamma in spec.gammas:
        scores = jnp.asarray(gamma * rng.standard_normal((2, spec.rows, spec.keys)))
        weights = {
            "softmax": attention.KINDS["softmax"](scores[:1]),
            "differential": attention.KINDS["differential"](scores, None, {"subtracted": jnp.full(1, SUBTRACTED)}),
            f"cap {CAP:g}": _capped(scores[:1]),
            "sigmoid": attention.KINDS["sigmoid"](scores[:1]),
        }
        measured = {name: np.asarray(sparsity.sparsity(rows)).ravel() for name, rows in weights.items()}
        measured["Sinkhorn"], plan = _plan(rng, spec, gamma)
        plans.append(plan)
        sparsities.append([measured[name].mean() for name in ROWS])
        error.append([measured[name].std(ddof=1) / math.sqrt(measured[name].size) for name in ROWS])
    closed = {
        "softmax": sparsity.exponential(gammas),
        "Sinkhorn": np.array(plans),
        "differential": sparsity.differential(gammas, SUBTRACTED),
        f"cap {CAP:g}": sparsity.from_kernel(_capped, 0.0, gammas),
        "sigmoid": sparsity.from_kernel(jax.nn.sigmoid, -math.log(spec.keys), gammas),
    }
    return {
        "gammas": gammas,
        "sparsity": np.array(sparsities).T,
        "sparsity_error": np.array(error).T,
        "sparsity_law": np.stack([np.asarray(closed[name]) for name in ROWS]),
    }


def _plan(rng: np.random.Generator, spec: Spec, gamma: float) -> tuple[np.ndarray, float]:
    """S of Sinkhorn's rows for bilinear scores of Gaussian tokens, one mean for each of eight draws, and its law."""
    a, means, laws = gamma / math.sqrt(COORDINATES), [], []
    for _ in range(8):
        queries, keys = rng.standard_normal((2, spec.plan, COORDINATES))
        weights = attention.KINDS["sinkhorn"](jnp.asarray(a * queries @ keys.T)[None], sinkhorn_steps=21)
        means.append(float(jnp.mean(sparsity.sparsity(weights))))
        laws.append(float(jnp.mean(sparsity.sinkhorn(jnp.full(COORDINATES, a), jnp.asarray(queries)))))
    return np.array(means), float(np.mean(laws))


def plot(data: Mapping[str, np.ndarray]) -> Drawing:
    """S against γ; residuals by layer; order of a layer by size; Sinkhorn less softmax."""
    drawing, (rows, deep, order, gap) = style.figure(columns=2, rows=2, width=6.0, height=4.2)
    # Every kind has one look in all panels.
    for index, name in enumerate(ROWS):
        look: dict[str, Any] = style.cycle(PLACE[name])
        rows.plot(data["gammas"], data["sparsity_law"][index], color=look["color"], linestyle=look["linestyle"])
        points: dict[str, Any] = look | {"linestyle": "none", "label": name}
        rows.errorbar(data["gammas"], data["sparsity"][index], 2 * data["sparsity_error"][index], **points)
    style.panel(
        rows, "γ, deviation of a row's scores", "S of a row", "Sparsity (lines: laws)", legend="below", columns=2
    )
    middle = (data["sizes"][1:] + data["sizes"][:-1]) / 2
    slopes = np.median(_orders(data), axis=1)
    for index, name in enumerate(KINDS):
        look = style.cycle(index)
        deep.plot(data["depth"], np.median(data["logs"][index], axis=0), label=name, **look)
        order.plot(middle, slopes[index], **look)
    deep.set_yscale("symlog", linthresh=1)
    style.panel(deep, "layer", "log ‖res(X)‖ (nats)", "Collapse (medians)", legend="below", columns=2)
    style.panel(order, "log ‖res(X)‖ before the layer", "order", "Order of one layer: cube or constant fall")

    gaps = np.abs(_gap(data))
    style.bands(gap, data["sizes"], *np.quantile(gaps, (0.05, 0.5, 0.95), axis=0), color=style.colour("measured"))
    gap.plot(data["sizes"], np.median(gaps[:, -1]) * np.exp(data["sizes"] - data["sizes"][-1]), "--",
             color=style.colour("theory"), label="slope 1")  # fmt: skip
    title = "One layer of Sinkhorn less one of softmax"
    style.panel(gap, "log ‖res(X)‖ before the layer", "|difference of log ‖res‖|", title, log="y", legend="best")
    return drawing


def _orders(data: Mapping[str, np.ndarray]) -> np.ndarray:
    """Slopes of the logarithm after a layer against the logarithm before it, (kind, network, step)."""
    return np.diff(data["after"], axis=-1) / np.diff(data["sizes"])


def _gap(data: Mapping[str, np.ndarray]) -> np.ndarray:
    """Logarithm after one layer of Sinkhorn less that of softmax, (network, size)."""
    return data["after"][PLACE["Sinkhorn"]] - data["after"][PLACE["softmax"]]


def _cap_ratio(data: Mapping[str, np.ndarray]) -> np.ndarray:
    """Scale under each cap over √u cosh u √c, u tanh u = 1/2."""
    u: Any = optimize.brentq(lambda u: u * math.tanh(u) - 0.5, 0, 2)
    return data["cap_scale"] / (math.sqrt(u) * math.cosh(u) * np.sqrt(data["caps"]))


def claims(data: Mapping[str, np.ndarray]) -> list[Claim]:
    """Orders, the doubly exponential fall and what Sinkhorn changes in it, and sparsity."""
    d, heads, tokens, count, _ = (int(value) for value in data["shape"])
    layer = f"Gaussian weights, d = {d}, {heads} heads, {tokens} tokens, no skip connections"
    orders = np.median(_orders(data), axis=1)[:, -1]
    measured = functools.partial(
        law, proof="derived", place=PAGE, hypotheses=f"{layer}, biases of deviation {float(data['bias']):g}"
    )

    # What Sinkhorn changes in the fall, layer by layer and after one layer; where one more logit takes over.
    logs = {name: data["logs"][PLACE[name]] for name in ("Sinkhorn", "softmax")}
    falls = np.diff(logs["Sinkhorn"], axis=1)
    ratio = np.median(falls[:, -1] / falls[:, -2])
    kept = np.median(logs["Sinkhorn"] - logs["softmax"], axis=0)[1:]
    larger = int(np.sum(logs["Sinkhorn"][:, -1] > logs["softmax"][:, -1]))
    gaps = np.log(np.abs(np.median(np.abs(_gap(data)), axis=0)))
    slope = (gaps[-2] - gaps[-1]) / (data["sizes"][-2] - data["sizes"][-1])
    return [
        published("today-sinkhorn-doubly", "Without skip connections the rank of attention that Sinkhorn's algorithm "
                  "normalises falls to one doubly exponentially with depth.", ratio, at_least(DOUBLY),
                  source="lapenna2026", place="abstract", hypotheses=layer, interval_from=OURS + "1.5",
                  note=f"last fall of log ‖res‖ over the one before, median of {count} networks"),
        measured("today-cube", "One layer of softmax, Sinkhorn, differential or capped softmax attention maps a small "
                 "residual to its cube.", orders[: len(CUBES)], near(3, ORDER), where=CUBES,
                 neighbours=["dong2021", "lapenna2026"], interval_from=OURS + "0.01"),
        measured("today-first-order", "With one more logit, sigmoid weights or a gate on the output a layer maps a "
                 "small residual to first order, where the mean key and the mean value of a head are not zero.",
                 orders[len(CUBES) :], near(1, ORDER), where=FIRST,
                 neighbours=["ramapuram2024", "qiu2025"], interval_from=OURS + "0.01"),
        measured("today-sinkhorn-softmax", "After one layer the logarithms of the residual under Sinkhorn and under "
                 "softmax weights differ by an amount in proportion to the residual before it.", slope,
                 near(1, SLOPE), neighbours=["lapenna2026"], interval_from=OURS + "a twentieth",
                 note="slope of the logarithm of the median difference at the two smallest residuals"),
        published("today-sinkhorn-preserves", "Doubly stochastic attention by Sinkhorn's algorithm preserves rank "
                  "better than softmax.", kept, at_least(0), where=list(data["depth"][1:]), source="lapenna2026",
                  place="abstract", hypotheses=f"the residual; here {layer}", interval_from="the sign",
                  elsewhere="the source speaks of attention matrices and of trained networks, not of initialisation",
                  note=f"median difference of log ‖res‖ over networks of the same projections; larger after the last "
                  f"layer in {larger} of {count}"),
        *_closed_forms(data),
    ]  # fmt: skip


def _closed_forms(data: Mapping[str, np.ndarray]) -> list[Claim]:
    """Laws of sparsity and of the scale under a cap."""
    keys = int(data["shape"][-1])
    # One point for each kind of row and each spread of its scores.
    where = [f"{name}, γ = {gamma:g}" for name in ROWS for gamma in data["gammas"]]
    return [
        law("today-sparsity", "The sparsity S of Sinkhorn, differential, sigmoid and capped rows is that of the closed "
            "forms and of quadrature.", (data["sparsity"] - data["sparsity_law"]).ravel(), near(0, SIZE), where=where,
            proof="derived", place=PAGE, neighbours=["su2023concentrate", "ye2024", "sander2022"],
            standard_error=data["sparsity_error"].ravel(), interval_from=OURS + "0.02",
            hypotheses=f"scores N(0, γ²), {keys} keys", note="measured less law"),
        law("today-cap-scale", "For many keys the scale that maximises the annealed gradient of softmax under a cap c "
            "depends on c alone: for large c it is √u cosh u √c with u tanh u = 1/2.",
            _cap_ratio(data), near(1, CAP_SCALE), where=[f"c = {cap:g}" for cap in data["caps"]], proof="derived",
            place=PAGE, neighbours=["su2023scale"], interval_from=OURS + "0.02", note="measured over the law",
            hypotheses=f"scores N(0, 1), log n = {math.log(MANY_KEYS):.0f}"),
    ]  # fmt: skip
