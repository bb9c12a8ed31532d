"""Linear attention with non-negative features: the sparsity of rows of random layers from measured moments."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import experiments.lib.figure
from experiments.figures._samples import draw
from experiments.ledger import Measured, at_least, at_most, law, near, published
from experiments.lib import style
from experiments.lib.figure import About
from rc_jax import sparsity

ABOUT = About(
    title="Linear attention: what the features' moments say",
    caption=(
        "The rows q̃·k̃ are those of random layers with five feature maps; entries of q, k have mean square 1. The "
        "left panel shows 1/S² − 1 against the number d of features for white tokens. Points are means over rows and "
        "layers; lines are its first order in 1/d and in one over the tokens' width D, where it levels off. The "
        "right panel shows 1/S² − 1 by the form for independent, equally distributed features over the measured one, "
        "for white tokens, for tokens that share a mean, and for tokens whose variances fall like 1/i. The general "
        "form with the row's own moments is S itself, to rounding."
    ),
    formula="S = 1/√(1 + q̃ᵀΣ̃q̃/(q̃ᵀμ̃)²) exactly;  1/S² − 1 ≈ v(1 + v)/d + b/D,  v = σ̃²/μ̃², b = (E φ(ε)(ε² − 1))²/2μ̃²",
    topic="sparsity",
    minutes={"smoke": 0.05, "quick": 0.29, "full": 8},
)
MAPS: dict[str, Callable[[Array], Array]] = {
    "elu + 1": sparsity.KERNELS["elu_plus_one"].f,
    "relu": jax.nn.relu,
    "softplus": jax.nn.softplus,
    "exp": jnp.exp,
    "relu²": lambda x: jnp.square(jax.nn.relu(x)),
}
TOKENS = {"white": (0.0, 0.0), "shared mean": (0.8, 0.0), "uneven variances": (0.0, 1.0)}  # (mean, exponent)
SMALL, LAW = 0.1, 0.1  # where the law should hold; its tolerance
SPREADS = (1.0, 10.0, 100.0)  # σ̃/μ̃ of gamma features
QUERIES = (0.3, 1.0)  # the same of queries
FEW = 8  # of them
ONE_ROW = 0.9
Data = Mapping[str, np.ndarray]


class Spec(experiments.lib.figure.Spec):
    """`layers` random layers on `tokens` tokens of `width` coordinates; `head` features for the right panel."""

    layers: int = 64
    tokens: int = 256
    width: int = 64
    head: int = 64
    features: tuple[int, ...] = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
    keys: int = 2**17


PRESETS = {
    "smoke": Spec(layers=4, tokens=64, head=16, features=(4, 64), keys=2**13),
    "quick": Spec(),
    "full": Spec(layers=4096, keys=2**20),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Means over layers: 1/S² − 1 for every number of features, and the forms of S for every kind of token."""
    key = jax.random.key(spec.seed)
    growth = draw(lambda key: _growth(key, spec), jax.random.fold_in(key, 0), spec.layers)
    kinds = draw(lambda key: _kinds(key, spec), jax.random.fold_in(key, 1), spec.layers)
    spread, level = np.array([sparsity.feature_map_rates(phi) for phi in MAPS.values()]).T
    return {
        "features": np.asarray(spec.features), "width": np.asarray(spec.width), "head": np.asarray(spec.head),
        "growth": growth.mean, "growth_se": growth.standard_error,
        "spread": spread, "level": level,
        "excess": kinds.mean["excess"], "excess_se": kinds.standard_error["excess"],
    } | _noisy(spec)  # fmt: skip


def _noisy(spec: Spec) -> dict[str, np.ndarray]:
    """Rows of weights from independent gamma features of every σ̃/μ̃ in `SPREADS`.

    `noisy` is S of a row whose query is even, `noisy_form` S by the general form from the features' own moments,
    `same` the mean correlation of the rows of two queries, by the keys' and the queries' σ̃/μ̃, and `same_se` its
    standard error.
    """
    rng = np.random.default_rng(spec.seed)

    def gamma(spread: float, count: int) -> np.ndarray:
        """Features of mean 1 and deviation σ̃/μ̃."""
        return rng.gamma(spread**-2.0, spread**2, size=(count, FEW))

    values: dict[str, list[Any]] = {name: [] for name in ("noisy", "noisy_form", "same", "same_se")}
    for spread in SPREADS:
        keys = gamma(spread, spec.keys)
        # S of the drawn row, and the same number from the features' sample moments: 1/√(1 + q̃ᵀΣ̃q̃/(q̃·μ̃)²), q̃ = 1.
        row, mean, covariance = keys.sum(axis=1), keys.mean(axis=0), np.cov(keys.T, bias=True)
        values["noisy"].append(row.mean() / np.sqrt(np.mean(row**2)))
        values["noisy_form"].append(1 / np.sqrt(1 + covariance.sum() / mean.sum() ** 2))
        # Rows K q and K q' have the covariance qᵀΣ̃q'.
        pairs = np.stack([gamma(each, 4096).reshape(2, -1, FEW) for each in QUERIES], axis=1)  # (side, spread, pair, d)
        one, other = pairs
        inner, *sizes = (np.sum(a @ covariance * b, axis=-1) for a, b in ((one, other), (one, one), (other, other)))
        cosines = inner / np.sqrt(sizes[0] * sizes[1])
        values["same"].append(cosines.mean(axis=1))
        values["same_se"].append(cosines.std(axis=1, ddof=1) / cosines.shape[1] ** 0.5)
    return {name: np.array(each) for name, each in values.items()}


def _projected(key: Array, tokens: Array, width: int) -> Array:
    """Tokens times a matrix of independent entries of variance 1/D."""
    weight = jax.random.normal(key, (tokens.shape[-1], width), tokens.dtype) / tokens.shape[-1] ** 0.5
    return jnp.matmul(tokens, weight, precision="highest")


def _growth(key: Array, spec: Spec) -> Array:
    """n/(n − 1) times the mean of 1/S² − 1 over the rows of one layer, for the first d of its features: (map, d)."""
    roles = [jax.random.fold_in(key, role) for role in range(3)]
    x = jax.random.normal(roles[0], (spec.tokens, spec.width), spec.dtype)
    q, k = (_projected(role, x, max(spec.features)) for role in roles[1:])

    def grow(fq: Array, fk: Array) -> Array:
        excesses, rows, before = [], jnp.zeros((spec.tokens, spec.tokens), x.dtype), 0
        for width in spec.features:
            rows += jnp.matmul(fq[:, before:width], fk[:, before:width].T, precision="highest")
            before = width
            seen = jnp.any(rows > 0, axis=-1)  # with few features a row of relu may be empty
            excess = jnp.where(seen, 1 / jnp.square(sparsity.sparsity(rows)) - 1, 0)
            excesses.append(jnp.sum(excess) / jnp.sum(seen.astype(x.dtype)) * spec.tokens / (spec.tokens - 1))
        return jnp.stack(excesses)

    return jax.vmap(grow)(_mapped(q), _mapped(k))


def _mapped(x: Array) -> Array:
    """Features by every map, on a new first axis."""
    return jnp.stack([phi(x) for phi in MAPS.values()])


def _kinds(key: Array, spec: Spec) -> dict[str, Array]:
    """For every kind of token and map: the form for equal features over what is measured, for 1/S² − 1."""
    roles = [jax.random.fold_in(key, role) for role in range(3)]
    noise = jax.random.normal(roles[0], (spec.tokens, spec.width), spec.dtype)
    pairs = []
    for mean, exponent in TOKENS.values():
        size = jnp.arange(1, spec.width + 1, dtype=noise.dtype) ** (-exponent / 2)
        size = size * ((1 - mean**2) * spec.width / jnp.sum(jnp.square(size))) ** 0.5
        x = mean + noise * size[None]
        q, k = (_projected(role, x, spec.head) for role in roles[1:])
        pairs.append((_mapped(q), _mapped(k)))
    return jax.vmap(jax.vmap(_forms))(*(jnp.stack(side) for side in zip(*pairs, strict=True)))


def _forms(q: Array, keys: Array) -> dict[str, Array]:
    rows = sparsity.sparsity(jnp.matmul(q, keys.T, precision="highest"))
    mean, cov = sparsity.feature_moments(keys)
    equal = sparsity.nonnegative_linear_iid(q, jnp.mean(mean), jnp.sqrt(jnp.mean(jnp.diagonal(cov))))
    return {
        "excess": jnp.mean(1 / jnp.square(equal) - 1) / jnp.mean(1 / jnp.square(rows) - 1),
    }


def plot(data: Data) -> Figure:
    """Left: growth of features; right: the form for equal features."""
    drawing, (left, right) = style.figure(columns=2, width=6.2, height=4.6)
    _plot_growth(left, data)
    _plot_kinds(right, data)
    return drawing


def _plot_growth(ax: Axes, data: Data) -> None:
    d = data["features"]
    grid = np.geomspace(d[0], 16 * d[-1], 200)
    for index, name in enumerate(MAPS):
        look = style.cycle(index)
        ax.plot(grid, data["spread"][index] / grid + data["level"][index] / data["width"], color=look["color"],
                linewidth=1.4)  # fmt: skip
        ax.errorbar(d, data["growth"][index], 2 * data["growth_se"][index], color=look["color"], marker=look["marker"],
                    linestyle="none", label=f"φ = {name}")  # fmt: skip
    style.reference(ax, x=float(data["width"]), text=f"d = D = {int(data['width'])}")
    style.panel(ax, "d, number of features", "1/S² − 1  (0: uniform row)", "Wide heads are uniform", log="xy",
                legend="lower left")  # fmt: skip


def _plot_kinds(ax: Axes, data: Data) -> None:
    place = np.arange(len(MAPS), dtype=float)
    ax.axhspan(1 - LAW, 1 + LAW, color=style.colour("reference"), alpha=0.15, linewidth=0)
    ax.axhline(1, color=style.colour("reference"), linewidth=1)
    for index, name in enumerate(TOKENS):
        look = style.cycle(index)
        ax.errorbar(
            place + 0.2 * (index - 1), data["excess"][index], 2 * data["excess_se"][index], color=look["color"],
            marker=look["marker"], linestyle="none", label=f"tokens: {name}",
        )  # fmt: skip
    ax.set_xticks(place, list(MAPS))
    ax.set_ylim(0, None)
    style.panel(ax, "feature map φ", "1/S² − 1 for equal features / measured",
                f"Equal features, d = {int(data['head'])}", legend="below", columns=3)  # fmt: skip


NOISES = tuple(f"σ̃/μ̃ = {spread:g}" for spread in SPREADS)
FORMULAS = tuple(rf"$\tilde{{\sigma}}/\tilde{{\mu}}={spread:g}$" for spread in SPREADS)


def _same_rows(data: Data) -> Measured:
    """Correlation of the rows of two queries, where the keys' signal-to-noise ratio is low."""
    where = [f"{noise}, queries {spread:g}" for noise in NOISES[1:] for spread in QUERIES]
    return Measured(data["same"][1:].ravel(), standard_error=data["same_se"][1:].ravel(), where=where)


def _over_law(data: Data) -> Measured:
    """1/S² − 1 over the law for white tokens, wherever the law is small."""
    form = data["spread"][:, None] / data["features"] + data["level"][:, None] / float(data["width"])
    known = form <= SMALL
    names = np.array([[f"{name}, d = {d}" for d in data["features"]] for name in MAPS])
    return Measured(
        (data["growth"] / form)[known],
        standard_error=(data["growth_se"] / form)[known],
        where=names[known],
        reads=[form],
    )


def _relu_level(data: Data) -> Measured:
    """What is left of ReLU's 1/S² − 1 at the largest d, in units of 1/D."""
    relu, width, most = list(MAPS).index("relu"), float(data["width"]), data["features"][-1]
    return Measured(
        (data["growth"][relu, -1] - data["spread"][relu] / most) * width,
        standard_error=data["growth_se"][relu, -1] * width,
        numbers={"most": most},
    )


# The first route to S → 0, and what it costs.
concentrated = functools.partial(published, source="su2023concentrate", place="section on general linear attention")
own = functools.partial(
    law,
    proof="derived",
    place="docs/feature_attention.md",
    neighbours=["su2023concentrate"],
    hypotheses="white Gaussian tokens, bias-free Gaussian projections, $q$ independent of $k$; first order in $1/d$, "
    "$1/D$",
)
ROWS = (
    concentrated(
        "moments-general",
        "Linear attention with non-negative features has "
        r"$S=1/\sqrt{1+\tilde{q}^{\top}\tilde{\Sigma}\tilde{q}/(\tilde{q}^{\top}\tilde{\mu})^{2}}$, without any "
        "approximation.",
        lambda data: Measured(data["noisy"] / data["noisy_form"] - 1, where=NOISES),
        near(0, 1e-12),
        formula=True,
        hypotheses=rf"{FEW} gamma features, even query; $\tilde{{\mu}}$ and $\tilde{{\Sigma}}$ those of the row's own "
        "keys",
        interval_from="the formula is exact; rounding of float64",
        note="identity",
    ),
    concentrated(
        "moments-sparse",
        r"Linear attention with non-negative features can also be arbitrarily sparse, if the mean of $\tilde{k}$ "
        "tends to 0 or its covariance to infinity.",
        lambda data: Measured(
            data["noisy"][-1],
            reads=[data["noisy"]],
            numbers={"every": ", ".join(f"{value:.3f}" for value in data["noisy"])},
        ),
        at_most(0.05),
        formula=True,
        hypotheses=f"{FEW} independent gamma features, even query, {FORMULAS[-1]}",
        interval_from=r"our threshold for $S\to0$",
        note=f"$S=<every>$ for {', '.join(FORMULAS)}",
    ),
    concentrated(
        "moments-rows",
        "Where non-negative features have a low signal-to-noise ratio, linear attention usually expresses only the "
        "importance of absolute positions.",
        _same_rows,
        at_least(ONE_ROW),
        formula=True,
        elsewhere="independent features, where the correlation tends to $1/(1+s^{2})$ for many of them, $s$ the spread "
        "of the queries, do not test the signal-to-noise ratio",
        hypotheses=f"{FEW} independent gamma features; keys of {FORMULAS[1]} and {SPREADS[2]:g}; of queries the source "
        f"says nothing, here theirs is {QUERIES[0]:g} or {QUERIES[1]:g}",
        after_result=True,
        interval_from=f"our reading: one row for all queries, correlations of {ONE_ROW:g} or more; the smaller spread "
        "of queries was added when the result for the larger was known",
        note="correlation of the rows of two queries: it depends on the queries, and hardly on the keys",
    ),
    own(
        "moments-law",
        f"For white tokens of width $D={Spec().width}$ and heads of $d$ features $1/S^{{2}}-1=v(1+v)/d+b/D$ wherever "
        f"that is below {SMALL}, within {LAW:.0%}.",
        _over_law,
        near(1, LAW),
        interval_from=r"our tolerance; exponential features are off by a factor $1+2/D$ to next order: for "
        r"$d\to\infty$ it is $2D\thinspace ((1-2/D)^{-D/2}(1-1/D)^{D}-1)$, 1.17 at $D=16$ and 1.37 at $D=8$",
        note=r"measured over formula; $v=\tilde{\sigma}^{2}/\tilde{\mu}^{2}$, "
        r"$b=(E\thinspace\varphi(\varepsilon)(\varepsilon^{2}-1))^{2}/2\tilde{\mu}^{2}$",
    ),
    own(
        "moments-level",
        "With ReLU features and many of them, $1/S^{2}-1$ levels off at $1/(2D)$, $D$ the tokens' width.",
        _relu_level,
        near(0.5, 0.1),
        interval_from="our tolerance: a fifth",
        note="$1/S^{2}-1$ less $v(1+v)/d$ at $d=<most>$, times $D$",
    ),
)
