"""Softmax without 1/√d_k: how its Jacobian and the gradient behind it shrink, on average and in the typical row."""

import functools
import itertools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from scipy import special

from experiments.figures import _random_rows
from experiments.figures._medians import error_by_quartiles
from experiments.ledger import Measured, at_least, at_most, law, near, published
from experiments.lib import figure, style
from rc_jax import attention, scale
from rc_jax.scale import median_gap

PAPER, PLACE, PAGE = "vaswani2017", "section 3.2.1", "docs/anatomy.md"
ABOUT = figure.About(
    title="Saturation: rare large gradients, typical tiny ones",
    caption=(
        "First: ½‖∂p/∂(logits)‖₁ = 1 − Σp² of rows whose logits are q·k or q·k/√d_k, mean and median over rows, with "
        "the laws of sharp rows. Sharp rows follow the gap between the two largest scores. It is small with a "
        "probability that falls like 1/√d_k, and typically it is large. Second and third: gradient of a linear "
        "function of one output row of a randomly initialised layer by W_Q (dots: by W_K) and by the tokens, root mean "
        "square and median over initialisations. A token is also reached through the values, which no saturation "
        "stops."
    ),
    formula="E(1 − Σp²) → E[max s] E[1/‖q‖] ≈ E[max s]/√d_k;   median ½ cosh⁻²(√d_k · median gap / 2)",
    topic="layer",
    minutes={"smoke": 0.06, "quick": 0.4, "full": 12.0},
)
LEVELS = (0.25, 0.5, 0.75)
CLOSE = 0.1  # of a law of sharp rows
ARTICLE = 128  # the width that Su's article computes with
CHUNKS = 8  # of its rows, for memory
HEAD = 64  # a usual width of a head
SHARP = 1024  # d_k from which rows without 1/√d_k are sharp in the median as well
Data = Mapping[str, np.ndarray]


class Spec(figure.Spec):
    """Powers of 4 from 4 up, rows of `keys` scores; layers of `d_model` features on `tokens` tokens.

    At the article's width the median is near the tolerance, so that it has `article_rows` rows.
    """

    powers: int = 6
    keys: int = 64
    rows: int = 20_000
    article_rows: int = 2**20
    d_model: int = 32
    tokens: int = 32
    layers: int = 1024


PRESETS = {
    "smoke": Spec(powers=2, rows=512, article_rows=2**13, layers=16, d_model=8, tokens=8),
    "quick": Spec(),
    "full": Spec(keys=1024, rows=100_000, d_model=128, tokens=128, layers=2048),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Jacobian's size over rows, laws of sharp rows, and norms of gradients over initialisations."""
    key = jax.random.key(spec.seed)
    d = 4 ** np.arange(1, spec.powers + 1)
    sizes = np.exp(_log_sizes(jax.random.fold_in(key, 0), jnp.asarray(d).astype(float), spec.rows, spec.keys))
    article = [
        _log_sizes(
            jax.random.fold_in(each, ARTICLE), jnp.array([float(ARTICLE)]), spec.article_rows // CHUNKS, spec.keys
        )
        for each in jax.random.split(key, CHUNKS)
    ]
    rng = np.random.default_rng(spec.seed)
    (steady,), _ = _random_rows.weighted_force(rng, np.ones(1), spec.keys, None, 5 * spec.rows)  # E Σps = E(1 − Σp²)
    inverse = np.exp(special.gammaln((d - 1) / 2) - special.gammaln(d / 2)) / 2**0.5  # E 1/‖q‖
    data = {
        "d": d, "keys": np.asarray(spec.keys), "layers": np.asarray(spec.layers),
        "mean": sizes.mean(2), "mean_error": sizes.std(2, ddof=1) / spec.rows**0.5,
        "quartiles": np.quantile(sizes, LEVELS, axis=2), "rows": np.asarray(spec.rows),
        "article_quartiles": np.quantile(np.exp(np.stack(article)[:, 0]), LEVELS),
        "article_rows": np.asarray(spec.article_rows),
        "law": _random_rows.mean_largest(spec.keys) * inverse,
        "median_law": 0.5 / np.cosh(np.sqrt(d) * float(median_gap(spec.keys)) / 2) ** 2,
        "steady": np.asarray(steady),
    }  # fmt: skip
    by_width = []
    for width in d:
        keys = jax.random.split(jax.random.fold_in(key, int(width)), spec.layers)
        by_width.append({name: np.asarray(value, float) for name, value in _gradients(keys, spec, int(width)).items()})
    for name in by_width[0]:
        squares = np.stack([each[name] for each in by_width], axis=1)  # (side, d, layer)
        data[f"{name}_square"] = squares.mean(2)
        data[f"{name}_quartiles"] = np.sqrt(np.quantile(squares, LEVELS, axis=2))
    return data


@functools.partial(jax.jit, static_argnums=(2, 3))
def _log_sizes(key: jax.Array, d: jax.Array, rows: int, keys: int) -> jax.Array:
    """Logarithm of 1 − Σp²: (side, d, row). Given q the scores q·k_j are independent normals of variance ‖q‖²."""
    s = jax.random.normal(jax.random.fold_in(key, 0), (rows, keys))
    squares = jax.random.gamma(jax.random.fold_in(key, 1), d[:, None] / 2, (d.size, rows)) * 2
    length = jnp.sqrt(jnp.stack([squares, squares / d[:, None]]))
    return scale.log_gradient_norm(s, length) - jnp.log(length)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _gradients(keys: jax.Array, spec: Spec, width: int) -> dict[str, jax.Array]:
    """Squared norms of the gradients of u·SA(X)₀ with |u| = 1 by W_Q, W_K and X: (side, layer)."""
    layer = attention.AttentionSpec(d_model=spec.d_model, d_head=width)
    scales = jnp.asarray([1.0, width**-0.5])

    def one(key: jax.Array) -> dict[str, jax.Array]:
        params = attention.init(jax.random.fold_in(key, 0), layer)
        x = jax.random.normal(jax.random.fold_in(key, 1), (spec.tokens, spec.d_model))
        u = jax.random.normal(jax.random.fold_in(key, 2), (spec.d_model,))
        u = u / jnp.linalg.norm(u)

        # A linear function of one output row, differentiated at both scales.
        def loss(query: jax.Array, other: jax.Array, x: jax.Array, factor: jax.Array) -> jax.Array:
            return attention.attend(params._replace(query=query, key=other), x, layer, scale=factor)[0] @ u

        slopes = jax.vmap(jax.grad(loss, (0, 1, 2)), (None, None, None, 0))(params.query, params.key, x, scales)
        return {name: (g**2).reshape(2, -1).sum(1) for name, g in zip(("query", "key", "tokens"), slopes, strict=True)}

    return jax.tree.map(lambda value: value.T, jax.lax.map(one, keys, batch_size=8))


def plot(data: Data) -> Figure:
    """Jacobian; gradient of the weights; gradient of the tokens."""
    drawing, (jacobian, weights, tokens) = style.figure(columns=3, width=4.9, height=4.6)
    d, theory = data["d"], style.colour("theory")
    # Mean or root mean square as points, quartiles as a band, with and without 1/√d_k.
    sides = (("q·k", "published", "s"), ("q·k/√d_k", "measured", "o"))
    for index, (name, meaning, marker) in enumerate(sides):
        tint = style.colour(meaning)
        for ax, quantity, mean, label in (
            (jacobian, "", data["mean"][index], "mean"),
            (weights, "query_", data["query_square"][index] ** 0.5, "root mean square"),
            (tokens, "tokens_", data["tokens_square"][index] ** 0.5, "root mean square"),
        ):
            ax.plot(d, mean, marker, color=tint, label=f"{name}: {label}")
            quartiles = data[f"{quantity}quartiles"][:, index]
            style.bands(ax, d, *quartiles, color=tint, label=f"{name}: median, quartiles")
        weights.plot(d, data["key_square"][index] ** 0.5, ".", color=theory, markersize=3)
    jacobian.plot(d, data["law"], color=theory, linestyle=style.DASHES[1], label="E[max s] E[1/‖q‖]")
    jacobian.plot(d, data["median_law"], color=theory, linestyle=style.DASHES[2], label="median of law")
    for ax, y, title in (
        (jacobian, "1 − Σp²", f"Softmax over {int(data['keys'])} keys"),
        (weights, "norm of the gradient", "By W_Q, one row of the output"),
        (tokens, "norm of the gradient", "By the tokens, one row"),
    ):
        style.panel(ax, "d_k, width of a head", y, title, log="xy", base=4, legend="below", columns=2,
                    handlelength=1.4, columnspacing=1.0)  # fmt: skip
    style.ticks(tokens.yaxis, (0.2, 0.5, 1, 2, 5, 10))
    return drawing


def _widths(data: Data) -> list[str]:
    return [f"d_k = {width}" for width in data["d"]]


def _near_one_hot(data: Data) -> Measured:
    """Medians of 1 − Σp² without a factor from the width of a head on, the article's among them."""
    d, place = data["d"], int(np.searchsorted(data["d"], ARTICLE))
    low, median, high = np.insert(data["quartiles"][:, 0], place, data["article_quartiles"], axis=1)
    widths = np.insert(d, place, ARTICLE)
    asked = widths >= min(HEAD, d[-1])
    rows = np.insert(np.full(d.size, data["rows"]), place, data["article_rows"])
    medians = [f"{size:.3g} at {width}" for size, width in zip(median[asked], widths[asked], strict=True)]
    return Measured(
        median,
        standard_error=error_by_quartiles(low, high, rows),
        where=[f"d = {width}" for width in widths],
        applies=asked,
        reads=[data["quartiles"], data["article_quartiles"]],
        numbers={"keys": int(data["keys"]), "first": median[0], "least": widths[0], "medians": ", ".join(medians)},
    )


def _slopes(data: Data) -> Measured:
    """Slope of the median gradient by W_Q without 1/√d_k, both axes as logarithms."""
    d, (low, median, high), steps = data["d"], data["query_quartiles"][:, 0], np.diff(np.log(data["d"]))
    error = error_by_quartiles(np.log(low), np.log(high), data["layers"])
    return Measured(
        np.diff(np.log(median)) / steps,
        standard_error=np.hypot(error[1:], error[:-1]) / steps,
        where=[f"{before} → {after}" for before, after in itertools.pairwise(d)],
        applies=d[:-1] >= min(64, d[-2]),
        reads=[data["query_quartiles"]],
        numbers={"layers": int(data["layers"]), "last": median[-1], "widest": d[-1]},
    )


def _over_laws(data: Data) -> Measured:
    """Means of sharp rows over their law, and logarithms of medians over those of theirs."""
    d, widths = data["d"], _widths(data)
    error = data["mean_error"][0] / data["law"]
    return Measured(
        np.append(data["mean"][0] / data["law"], np.log(data["quartiles"][1, 0]) / np.log(data["median_law"])),
        standard_error=np.append(error, 0 * error),
        where=[f"{average}, {width}" for average in ("mean", "median") for width in widths],
        applies=np.tile(d >= min(SHARP, d[-1]), 2),
        numbers={"keys": int(data["keys"])},
    )


SETTING = "<keys> keys, independent normal entries of $q$ and $k$"
ROWS = (
    published(
        "saturation-typical",
        "For large $d_k$ unscaled dot products are suspected to push softmax to where its gradients are extremely "
        "small.",
        _slopes,
        at_most(0),
        formula=True,
        source=PAPER,
        place=PLACE,
        hypotheses="$d_k$ from 64, the paper's own, on; <layers> random layers, one output row",
        interval_from="the sign of the slope",
        note="measured: slope of the median gradient by $W_Q$ in $d_k$, logarithms; <last:.1g> at $d_k=<widest>$",
    ),
    published(
        "saturation-one-hot",
        r"Without the division by $\sqrt{d}$ attention is close to one-hot at the start, so that gradients vanish.",
        _near_one_hot,
        at_most(0.1),
        formula=True,
        source="su2023scale",
        place="introduction",
        needs="parts",
        hypotheses=rf"{SETTING}; the introduction names no $d$: from {HEAD}, a usual width of a head, on, and "
        f"{ARTICLE}, with which the article computes later",
        interval_from=r"our tolerance: $1-\sum p^{2}$, which is 0 for one-hot, of a tenth at most; the widths below "
        "256 were added when their values were known",
        after_result=True,
        note=r"median of $1-\sum p^{2}$: <medians>; it falls with $d$, from <first:.2f> at $d=<least>$",
    ),
    published(
        "saturation-scaled",
        r"The factor $1/\sqrt{d_k}$ counteracts what large $d_k$ does to the gradients of softmax.",
        lambda data: Measured(
            data["mean"][1] / data["steady"],
            standard_error=data["mean_error"][1] / data["steady"],
            where=_widths(data),
            numbers={"keys": int(data["keys"])},
        ),
        near(1, CLOSE),
        formula=True,
        source=PAPER,
        place=PLACE,
        hypotheses=SETTING,
        interval_from="our tolerance: a tenth",
        note=r"measured: mean $1-\sum p^{2}$ over its limit for many features",
    ),
    published(
        "saturation-variance",
        "Keeping the variance of the scores at 1 controls the vanishing of the gradient.",
        lambda data: Measured(data["quartiles"][1, 1], where=_widths(data), numbers={"keys": int(data["keys"])}),
        at_least(0.5),
        formula=True,
        source="study-notes",
        place="section on dimension and size of dot products",
        hypotheses=SETTING,
        interval_from="our tolerance: half of what even weights let through",
        note=r"measured: median $1-\sum p^{2}$",
    ),
    law(
        "saturation-mean",
        r"Without $1/\sqrt{d_k}$ the mean of $1-\sum p^{2}$ tends to $E[\max s]/\sqrt{d_k}$, while its median falls "
        r"exponentially in $\sqrt{d_k}$, as $\frac{1}{2}\cosh^{-2}(\sqrt{d_k}\thinspace g/2)$.",
        _over_laws,
        near(1, CLOSE),
        proof="derived",
        place=PAGE,
        neighbours=["david2003", "derrida1981"],
        hypotheses=f"{SETTING}; $g$ the median gap of the two largest of them; sharp rows, $d_k$ from {SHARP} on",
        interval_from="our tolerance: a tenth",
        note="measured over the law, for the median the logarithms",
    ),
)
