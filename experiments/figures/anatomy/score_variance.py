"""How large a dot product is: its variance, its tails, the price of a mean, and the same in a layer at random."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from experiments.figures._samples import Drawn, draw
from experiments.ledger import Measured, law, near, published
from experiments.lib import figure, style
from rc_jax import attention
from rc_jax.scale import layer_variance_spread

PAGE = "docs/anatomy.md"
ABOUT = figure.About(
    title="The variance of a score is d_k",
    caption=(
        "Top left: variance of q·k over d_k for independent entries of mean 0 and variance 1, four laws. Top right: "
        "what its fourth moment has beyond that of a normal score, which does depend on the law. Bottom left: entries "
        "with a mean of their own. Bottom right, scaled scores of a randomly initialised layer: the relative variance, "
        "from one initialisation to the next, of the variance over tokens; and the correlation of the squares of two "
        "scores that share a query. Points with two standard errors against exact lines."
    ),
    formula="Var q·k = d_k;  E(q·k)⁴/d_k² = 3 + (κ_q κ_k − 3)/d_k;  with means μ: Var = d_k(1 + μ_q² + μ_k²)",
    topic="layer",
    minutes={"smoke": 0.04, "quick": 0.2, "full": 8.0},
)
LAWS = {"Gaussian": 3.0, "±1": 1.0, "uniform": 1.8, "Laplace": 6.0}  # fourth moment of an entry of variance 1
MEANS = (0.0, 0.25, 0.5, 1.0, 2.0)
MEAN_WIDTH = 64
TOKENS = 16  # orthogonal ones
CLOSE = 0.1  # of means and variances over d_k, and of the laws of random layers
Data = Mapping[str, np.ndarray]
Moments = dict[str, jax.Array]


class Spec(figure.Spec):
    """Widths of a head, pairs (q, k), and initialisations of a layer on tokens of `d_model` features."""

    widths: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    pairs: int = 131_072
    d_model: int = 64
    heads: tuple[int, ...] = (2, 8, 32, 128)
    layers: int = 8192


PRESETS = {
    "smoke": Spec(widths=(1, 4, 64), pairs=512, d_model=16, heads=(2,), layers=256),
    "quick": Spec(),
    "full": Spec(widths=tuple(2**i for i in range(11)), pairs=262_144, d_model=512, layers=16_384),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Moments of scores by law and width; with means; of layers. Everything with its standard error."""
    key = jax.random.key(spec.seed)
    data = {"widths": np.array(spec.widths), "heads": np.array(spec.heads), "d_model": np.asarray(spec.d_model)}
    data |= {"pairs": np.asarray(spec.pairs), "layers": np.asarray(spec.layers)}
    data |= _moments(draw(functools.partial(_pair, widths=spec.widths), jax.random.fold_in(key, 0), spec.pairs))
    layers = []
    for head in spec.heads:
        one = functools.partial(_layer, d_model=spec.d_model, d_head=head)
        layers.append(_moments(draw(one, jax.random.fold_in(key, head), spec.layers)))
    return data | {name: np.stack([each[name] for each in layers]) for name in layers[0]}


def _moments(known: Drawn) -> dict[str, np.ndarray]:
    return known.mean | {f"{name}_error": error for name, error in known.standard_error.items()}


def _entries(key: jax.Array, size: int) -> jax.Array:
    """Independent entries of mean 0 and variance 1: (law, size), in the order of `LAWS`."""
    keys = jax.random.split(key, len(LAWS))
    uniform = jax.random.uniform(keys[2], (size,), minval=-(3**0.5), maxval=3**0.5)
    laplace = jax.random.laplace(keys[3], (size,)) * 0.5**0.5
    return jnp.stack([jax.random.normal(keys[0], (size,)), jax.random.rademacher(keys[1], (size,), float),
                      uniform, laplace])  # fmt: skip


def _pair(key: jax.Array, widths: tuple[int, ...]) -> Moments:
    """Moments of one pair's scores: the known means are taken off, so that averages of powers are central moments."""
    query, other = (_entries(jax.random.fold_in(key, role), max(widths)) for role in range(2))
    d = np.array(widths)
    score = jnp.cumsum(query * other, axis=1)[:, d - 1] / np.sqrt(d).astype(np.float32)[None]
    width = min(MEAN_WIDTH, max(widths))
    mean = jnp.asarray(MEANS)[:, None]
    moved = ((query[:1, :width] + mean) * (other[:1, :width] + mean)).sum(1) - width * mean[:, 0] ** 2
    return {"mean": score, "variance": score**2, "fourth": score**4, "moved": moved**2 / width}


def _layer(key: jax.Array, d_model: int, d_head: int) -> Moments:
    """One initialisation on orthogonal tokens of squared length d_model, and its variance over normal tokens.

    Over independent standard normal tokens the variance of a score is ‖W_Q W_Kᵀ‖²_F/d_k = tr(W_QᵀW_Q W_KᵀW_K)/d_k.
    """
    spec = attention.AttentionSpec(d_model=d_model, d_head=d_head)
    params = attention.init(key, spec)
    rows = attention.scores(params, jnp.eye(TOKENS, d_model) * np.float32(d_model**0.5), spec)[0]
    grams = [jnp.matmul(w[0].T, w[0], precision="highest") for w in (params.query, params.key)]
    over_tokens = (grams[0] * grams[1]).sum() / d_head

    # Mean, over rows, of the product of two different squares of a row, less 1.
    squares = rows**2 - 1
    products = ((squares.sum(1) ** 2 - (squares**2).sum(1)) / (TOKENS * (TOKENS - 1))).mean()
    return {"layer_squares": products, "layer_spread": (over_tokens - 1) ** 2}


def plot(data: Data) -> Figure:
    """Variance, fourth moment, means, layers."""
    drawing, (variance, fourth, means, layers) = style.figure(columns=2, rows=2, width=5.8)
    d, line = data["widths"], np.geomspace(1, data["widths"][-1], 200)
    theory: dict[str, Any] = {"color": style.colour("theory")}
    variance.axhline(1, label="exact: 1", **theory)
    fourth.plot([], [], label="exact: (κ_q κ_k − 3)/d_k", **theory)
    for index, (entries, kurtosis) in enumerate(LAWS.items()):
        look: dict[str, Any] = style.cycle(index) | {"linestyle": "none", "label": f"{entries}, κ = {kurtosis:g}"}
        aside = d * 1.06 ** (index - 1.5)
        variance.errorbar(aside, data["variance"][index], 2 * data["variance_error"][index], capsize=2, **look)
        fourth.errorbar(aside, data["fourth"][index] - 3, 2 * data["fourth_error"][index], capsize=2, **look)
        fourth.plot(line, (kurtosis**2 - 3) / line, linewidth=1, **theory)
    fourth.set_yscale("symlog", linthresh=0.1)
    for ax, y, title in (
        (variance, "variance of q·k / d_k", "Var q·k = d_k whatever the law"),
        (fourth, "E(q·k)⁴/d_k² − 3", "The tails become normal like 1/d_k"),
    ):
        style.panel(ax, "d_k, width of a head", y, title, log="x", base=2, legend="below", columns=3)

    # The price of a mean, and layers at random, against their exact forms.
    mu = np.linspace(0, MEANS[-1], 100)
    means.plot(mu, 1 + 2 * mu**2, label="exact: 1 + 2μ²", **theory)
    means.errorbar(MEANS, data["moved"], 2 * data["moved_error"], fmt="o", color=style.colour("measured"), capsize=3,
                   label="normal entries of mean μ")  # fmt: skip
    style.reference(means, y=1.0, text="entries of mean 0")
    style.panel(means, "μ, mean of an entry of q and of k", "variance of q·k / d_k", "With means it is more than d_k",
                legend="upper left")  # fmt: skip

    k, d_model = data["heads"].astype(float), float(data["d_model"])
    line = np.geomspace(k[0], max(k[-1], 2 * k[0]), 100)
    for name, exact, meaning, marker, label in (
        ("spread", layer_variance_spread(line, d_model), "measured", "o", "variance over tokens: relative variance"),
        ("squares", 2 / line, "corrected", "^", "shared query: covariance of squares"),
    ):
        layers.plot(line, exact, linewidth=1.2, **theory)
        layers.errorbar(k, data[f"layer_{name}"], 2 * data[f"layer_{name}_error"], fmt=marker, capsize=3,
                        color=style.colour(meaning), label=label)  # fmt: skip
    layers.plot([], [], label="exact: 4/(d_k d) + 2(d_k + 1)/(d_k d²);  2/d_k", **theory)
    style.panel(layers, "d_k, width of a head", "relative variance, covariance", f"A random layer, d = {d_model:g}",
                log="xy", base=2, legend="below")  # fmt: skip
    return drawing


def _moments_less_law(data: Data) -> Measured:
    """Mean of a score over √d_k, and its variance over d_k less 1, by law of an entry and width."""
    points = [f"{entries}, d_k = {width}" for entries in LAWS for width in data["widths"]]
    return Measured(
        [data["mean"], data["variance"] - 1],
        standard_error=np.ravel([data["mean_error"], data["variance_error"]]),
        where=[f"{what}, {point}" for what in ("mean", "variance") for point in points],
        numbers={"pairs": int(data["pairs"])},
    )


def _unit_moments(data: Data) -> Measured:
    """Mean of the product of two entries, and its variance less 1, by law of an entry."""
    one = data["widths"] == 1
    values, errors = (
        [data[f"mean{end}"][:, one].ravel(), data[f"variance{end}"][:, one].ravel()] for end in ("", "_error")
    )
    return Measured(
        np.concatenate([values[0], values[1] - 1]),
        standard_error=np.concatenate(errors),
        where=[f"{what}, {entries}" for what in ("mean", "variance") for entries in LAWS],
        reads=[data["mean"], data["variance"]],
        numbers={"pairs": int(data["pairs"])},
    )


def _spread_over_law(data: Data) -> Measured:
    """Relative variance, over random layers, of the variance of scores, over its law."""
    width, heads = int(data["d_model"]), data["heads"].astype(float)
    exact = np.asarray(layer_variance_spread(heads, float(width)))
    return Measured(
        data["layer_spread"] / exact,
        standard_error=data["layer_spread_error"] / exact,
        where=[f"d_k = {head:g}" for head in heads],
        numbers={"layers": int(data["layers"]), "width": width},
    )


ROWS = (
    published(
        "variance-width",
        r"If the entries of $q$ and $k$ are independent with mean 0 and variance 1, then $q\cdot k$ has mean 0 and "
        "variance $d_k$.",
        _moments_less_law,
        near(0, CLOSE),
        formula=True,
        source="vaswani2017",
        place="section 3.2.1, footnote 4",
        hypotheses="four laws of an entry; <pairs> pairs",
        interval_from="the formula is exact; our tolerance for samples: a tenth",
        note=r"measured: mean over $\sqrt{d_k}$, and variance over $d_k$ less 1; the study notes derive the same",
    ),
    published(
        "variance-unit",
        "If $X$ and $Y$ are independent with mean 0 and variance 1, their product has mean 0 and variance 1.",
        _unit_moments,
        near(0, CLOSE),
        formula=True,
        source="study-notes",
        place="section on dimension and size of dot products",
        hypotheses="four laws of an entry; <pairs> pairs",
        interval_from="the formula is exact; our tolerance for samples: a tenth",
        note="measured: mean, and variance less 1",
    ),
    law(
        "variance-layer-spread",
        "From one random layer to the next, the variance of scores over normal tokens has the relative variance "
        r"$4/(d_k\thinspace d)+2(d_k+1)/(d_k\thinspace d^{2})$.",
        _spread_over_law,
        near(1, CLOSE),
        proof="proved",
        place=PAGE,
        hypotheses="<layers> initialisations, $W_Q$ and $W_K$ with entries $N(0,1/d)$, $d=<width>$",
        interval_from="our tolerance: a tenth",
        note="measured over the law; moments of Gaussian matrices",
    ),
)
