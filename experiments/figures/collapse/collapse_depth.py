"""Collapse against depth: pure attention, with skips, random stochastic matrices, random linear and ReLU networks."""

import dataclasses
import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure as Drawing
from matplotlib.ticker import MaxNLocator

from experiments.figures._medians import median_error
from experiments.figures._samples import draw
from experiments.ledger import Measured, at_least, at_most, law, near, published
from experiments.lib import figure, style
from experiments.lib.figure import About
from rc_jax import attention, collapse, network

ABOUT = About(
    title="Collapse against depth",
    caption=(
        "How far the tokens' residual falls, over random initialisations (bands: 5–95 % of them; lines: medians). Pure "
        "attention multiplies the fall by 3 with every layer; a product of random stochastic matrices that do not "
        "depend on the tokens falls by a constant; with skip connections the residual grows, and the "
        "tokens grow faster: relative to them it falls (dashed). Computed in the exact "
        "mean–residual arithmetic; the second panel shows where plain floating point stops seeing the same networks. "
        "Last: random linear and ReLU networks without attention, with and without batch normalisation, whose rank "
        "goes within tens of layers (lines: medians of the stable rank ‖X‖_F²/‖X‖₂²)."
    ),
    formula="log ‖res(X^(l+1))‖ = 3 log ‖res(X^l)‖ + O(1),   res(X) = X − 1·mean(X)ᵀ",
    topic="collapse",
    minutes={"smoke": 0.1, "quick": 0.42, "full": 8.0},
    core=True,
)

LEVELS = (0.05, 0.5, 0.95)
PLAIN_NETWORKS = ("linear", "ReLU", "linear, batch norm", "ReLU, batch norm")
PLAIN_MARKERS = {"float32": {"marker": "s", "markersize": 9, "fillstyle": "none"}, "float64": {"marker": "o"}}


class Spec(figure.Spec):
    """Shape of the networks and number of random initialisations."""

    d_model: int = 64
    heads: int = 4
    tokens: int = 32
    depth: int = 12
    count: int = 512
    plain_count: int = 128
    plain_depth: int = 6
    width: int = 32
    layers: int = 1024
    networks: int = 16


PRESETS = {
    "smoke": Spec(d_model=16, heads=2, tokens=8, depth=8, count=64, plain_count=16, width=16, layers=256, networks=4),
    "quick": Spec(),
    "full": Spec(depth=24, count=20_000, plain_count=2048),
}
SHAPE = f"networks of {Spec().heads} heads on {Spec().tokens} tokens of width {Spec().d_model}"


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Quantiles of log ‖res‖ by layer for three kinds of network, and what plain arithmetic makes of the first."""
    key = jax.random.key(spec.seed)
    deep = draw(_Networks(spec), jax.random.fold_in(key, 0), spec.count, progress=True)
    with jax.enable_x64(True):  # plain float64 is one of the sides
        plain = draw(_Plain(spec), jax.random.fold_in(key, 1), spec.plain_count, progress=True)
    data = {"depth": np.arange(spec.depth + 1), "plain_depth": np.arange(spec.plain_depth + 1)}
    data |= deep.quantile(LEVELS) | plain.quantile(LEVELS)
    for name in ("attention_exponent", "stochastic_early", "stochastic_late"):
        data |= {f"{name}_mean": deep.mean[name], f"{name}_standard_error": deep.standard_error[name]}
    data |= {f"{name}_left_out": deep.left_out[name] for name in ("attention", "skip", "relative", "stochastic")}
    data["attention_error"] = median_error(deep.samples["attention"][:, -1])
    data |= {f"{name}_error": _error_of_quantile(deep.samples[name], at) for name, at in (("skip", 0), ("relative", 2))}
    data["rank_one"], data["rank_one_equal"] = _rank_one(spec), _rank_one(spec, equal=True)
    return data | _networks_without_attention(spec)


def _error_of_quantile(samples: np.ndarray, at: int) -> np.ndarray:
    """Standard errors of a quantile of LEVELS along the first axis: half the way between those one deviation apart."""
    share = LEVELS[at]
    deviation = np.sqrt(share * (1 - share) / len(samples))
    low, high = np.quantile(samples, (share - deviation, share + deviation), axis=0)
    return (high - low) / 2


def _rank_one(spec: Spec, *, equal: bool = False) -> np.ndarray:
    """‖res(X)‖/‖X‖ of matrices X = uvᵀ of rank one with normal v and u, or u = 1; the mean token left out."""
    u, v = np.random.default_rng(spec.seed).normal(size=(2, 64, spec.tokens))
    u = np.ones_like(u) if equal else u
    x = u[:, :, None] * v[:, None, :]
    return np.linalg.norm(x - x.mean(axis=1, keepdims=True), axis=(1, 2)) / np.linalg.norm(x, axis=(1, 2))


def _networks_without_attention(spec: Spec) -> dict[str, np.ndarray]:
    """Stable rank, and log distance to rank 1 over size, of X ← f(X)W: kind, network, layer; X is (examples, features).

    Batch normalisation centres every feature over the examples and divides it by its spread; of a ReLU network the rank
    is that of the numbers before the ReLU.
    """
    rng = np.random.default_rng(spec.seed)
    # The depth of the attention networks, and powers of two up to the last layer.
    at = sorted({0, spec.depth, spec.layers, *(2**k for k in range(spec.layers.bit_length()))})
    start = rng.normal(size=(spec.networks, spec.width, spec.width))
    states = {name: start for name in PLAIN_NETWORKS}
    ranks, distances = [], []
    for layer in range(spec.layers + 1):
        if layer in at:
            spectra = np.stack([np.linalg.svd(state, compute_uv=False) for state in states.values()])
            total = np.square(spectra).sum(axis=-1)
            ranks.append(total / np.square(spectra[..., 0]))
            with np.errstate(divide="ignore"):
                distances.append(0.5 * np.log(np.square(spectra[..., 1:]).sum(axis=-1) / total))
        weights = rng.normal(size=start.shape) / np.sqrt(spec.width)
        for name, state in states.items():
            if name.startswith("ReLU"):
                state = np.maximum(state, 0)
            state = state @ weights
            if name.endswith("norm"):
                state = state - state.mean(axis=1, keepdims=True)
                state = state / state.std(axis=1, keepdims=True)
            states[name] = state / np.sqrt(np.square(state).mean(axis=(1, 2), keepdims=True))
    return {"other_layer": np.array(at), "other_rank": np.stack(ranks, -1), "other_log": np.stack(distances, -1)}


@dataclasses.dataclass(frozen=True)
class _Networks:
    """One initialisation of each kind of network: the change of log ‖res‖ by layer, and the exponent of the fall."""

    spec: Spec

    def __call__(self, key: jax.Array) -> dict[str, jax.Array]:
        spec = self.spec
        # All three kinds pass the same tokens through weights of their own.
        x = jax.random.normal(jax.random.fold_in(key, 0), (spec.tokens, spec.d_model), "float32")
        stack = _stack(spec, spec.depth)
        layers = network.random_layers(jax.random.fold_in(key, 1), stack, dtype="float32")
        logits = jax.random.normal(jax.random.fold_in(key, 2), (spec.depth, spec.tokens, spec.tokens), "float32")
        logs = {
            "attention": collapse.log_residuals(layers, x, stack),
            "skip": collapse.log_residuals(layers, x, dataclasses.replace(stack, skip=True)),
            "stochastic": collapse.product_log_residuals(jax.nn.softmax(logits, axis=-1), x),
        }
        # Relative to the tokens, whose size plain arithmetic has.
        states = network.hidden_states(layers, x, dataclasses.replace(stack, skip=True))
        logs["relative"] = logs["skip"] - 0.5 * jnp.log(jnp.sum(jnp.square(states), axis=(1, 2)))
        out = {name: log - log[0] for name, log in logs.items()}
        for name in ("attention", "stochastic"):
            falls = jnp.diff(logs[name])
            out[f"{name}_exponent"] = falls[1:] / falls[:-1]
        half = spec.depth // 2
        falls = jnp.diff(logs["stochastic"])
        out["stochastic_late"] = falls[half:].mean()
        out["stochastic_early"] = falls[1:half].mean()
        return out


@dataclasses.dataclass(frozen=True)
class _Plain:
    """One initialisation of pure attention in exact and in plain arithmetic, with the same weights and tokens."""

    spec: Spec

    def __call__(self, key: jax.Array) -> dict[str, jax.Array]:
        spec, stack = self.spec, _stack(self.spec, self.spec.plain_depth)
        x = jax.random.normal(jax.random.fold_in(key, 0), (spec.tokens, spec.d_model), "float32")
        params = network.init(jax.random.fold_in(key, 1), stack, dtype="float32")

        def plain(dtype: str) -> jax.Array:
            weights = jax.tree.map(lambda w: w.astype(dtype), params)
            states = network.hidden_states(weights, x.astype(dtype), stack)
            centred = states - states.mean(axis=1, keepdims=True)
            return jnp.log(jnp.sqrt(jnp.sum(jnp.square(centred), axis=(1, 2)))).astype("float64")

        exact = collapse.log_residuals(params, x, stack).astype("float64")
        out = {"exact": exact - exact[0]}
        return out | {dtype: plain(dtype) - exact[0] for dtype in ("float32", "float64")}


def _stack(spec: Spec, depth: int) -> network.StackSpec:
    layer = attention.AttentionSpec(d_model=spec.d_model, heads=spec.heads)
    return network.StackSpec(attention=layer, depth=depth)


def plot(data: Mapping[str, np.ndarray]) -> Drawing:
    """The fall by layer; the same beside plain arithmetic; the exponent of the fall; networks without attention."""
    drawing, (fall, plain, exponent, other) = style.figure(columns=2, rows=2, width=5.6, height=4.2)
    names = {"attention": "pure attention", "stochastic": "random stochastic matrices", "skip": "attention with skips"}
    for name, label in names.items():
        style.bands(fall, data["depth"], *data[name], meaning=name, label=label)
    relative = data["relative"][1]
    fall.plot(data["depth"], relative, "--", color=style.colour("skip"), label="the same, relative to ‖X‖")
    # A guide that triples from the measured fall at layer 2 on.
    third = -np.array(data["attention"][1][2]) * 3.0 ** (data["depth"] - 2)
    fall.plot(data["depth"][2:], -third[2:], color=style.colour("theory"), linestyle=":", label="tripling per layer")
    fall.set_yscale("symlog", linthresh=1, linscale=0.5)
    change = "change of log ‖res‖ (nats)"
    style.panel(fall, "layer", change, "Fall of the residual", legend="lower left")

    depth = data["plain_depth"]
    style.bands(plain, depth, *data["exact"], meaning="attention", label="cancellation-free arithmetic")
    for dtype, marker in PLAIN_MARKERS.items():
        low, median, high = data[dtype]
        plain.plot(depth, median, color=style.colour(dtype), linestyle="none", label=f"plain {dtype}", **marker)
        plain.vlines(depth, low, high, color=style.colour(dtype), linewidth=1)
    plain.set_ylim(min(-60.0, 1.6 * float(data["float64"][1].min())), 4)
    style.panel(plain, "layer", change, "What plain floating point sees", legend="lower left")

    layers = data["depth"][2:]
    for name in ("attention", "stochastic"):
        style.bands(exponent, layers, *data[f"{name}_exponent"], meaning=name, label=names[name], marker="o")
    style.reference(exponent, y=3.0, text="3: doubly exponential")
    style.reference(exponent, y=1.0, text="1: exponential")
    exponent.set_ylim(0, 4)
    ratio = "fall at this layer / fall at the layer before"
    style.panel(exponent, "layer", ratio, "Exponent of the fall", legend="upper right")
    for panel in (fall, plain, exponent):
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))

    for index, name in enumerate(PLAIN_NETWORKS):
        ranks = np.median(data["other_rank"][index], axis=0)
        look = style.cycle(index)
        other.plot(data["other_layer"], ranks, label=name, color=look["color"], linestyle=look["linestyle"])
    other.set_xscale("symlog", linthresh=1)
    style.panel(other, "layer", "stable rank", "Random networks without attention", log="y", legend="lower left")
    style.ticks(other.yaxis, (1, 2, 4, 8))
    return drawing


def _cube(data: Mapping[str, np.ndarray]) -> Measured:
    """The fall of log ‖res‖ of pure attention at the last layer over the fall before it."""
    return Measured(
        data["attention_exponent_mean"][-1],
        data["attention_exponent_standard_error"][-1],
        left_out=data["attention_left_out"],
        numbers={"layers": data["depth"][-1]},
    )


def _late_over_early(data: Mapping[str, np.ndarray]) -> Measured:
    """Mean fall of stochastic matrices in the second half of the layers over that in the first.

    The standard error is to first order and as if the two were independent.
    """
    late, early = data["stochastic_late_mean"], data["stochastic_early_mean"]
    spread = np.hypot(data["stochastic_late_standard_error"] / late, data["stochastic_early_standard_error"] / early)
    return Measured(late / early, abs(late / early) * spread, left_out=data["stochastic_left_out"])


def _against_networks(data: Mapping[str, np.ndarray]) -> Measured:
    """Change of log ‖res‖ by attention over that of the log distance to rank 1 without it; medians."""
    depth = data["depth"][-1]
    at = int(np.argmax(data["other_layer"] == depth))
    falls = data["other_log"][:2, :, at] - data["other_log"][:2, :, 0]
    last, fall = data["attention"][1][-1], np.median(falls, axis=1)
    return Measured(
        last / fall,
        standard_error=np.abs(last / fall) * np.hypot(data["attention_error"] / last, median_error(falls.T) / fall),
        where=PLAIN_NETWORKS[:2],
        left_out=data["attention_left_out"],
        numbers={"layers": depth},
    )


def _ranks(data: Mapping[str, np.ndarray], some: slice) -> Measured:
    """Mean stable rank at the last layer of some networks without attention."""
    last = data["other_rank"][some, :, -1]
    return Measured(
        last.mean(axis=1),
        standard_error=last.std(axis=1, ddof=1) / np.sqrt(last.shape[1]),
        where=PLAIN_NETWORKS[some],
        numbers={"layers": data["other_layer"][-1]},
    )


rank = functools.partial(
    published,
    source="daneshmand2020",
    place="abstract",
    hypotheses="square Gaussian weights, as many examples as features, <layers> layers",
)
ROWS = (
    published(
        "collapse-cube",
        r"Pure attention collapses doubly exponentially: $\log\thinspace\lVert \mathrm{res}\rVert$ grows in size as "
        "$3^{L}$ with the number $L$ of layers.",
        _cube,
        near(3, 0.05),
        formula=True,
        source="dong2021",
        place="abstract; section 2 by the summary of vortezwohl and Wu, finding 1",
        hypotheses="Gaussian weights and tokens; no mask, skip, MLP or LayerNorm",
        interval_from=r"our tolerance: $3\pm0.05$",
        note="measured: the fall at layer <layers> over the fall before it; the theorem is an upper bound",
    ),
    published(
        "collapse-stochastic",
        r"A product of random stochastic matrices converges at a linear rate: $\log\thinspace\lVert "
        r"\mathrm{res}\rVert$ falls by a constant per layer.",
        _late_over_early,
        near(1, 0.05),
        formula=True,
        source="collapse-summary",
        place="finding 1",
        hypotheses="softmax of independent Gaussian logits, blind to the tokens",
        interval_from=r"our tolerance: $1\pm0.05$",
        note="mean fall in the second half of the layers over that in the first, without layer 1",
    ),
    published(
        "collapse-networks",
        "Pure attention collapses far faster than conventional random networks do.",
        _against_networks,
        at_least(10),
        formula=True,
        source="collapse-summary",
        place="related work, rank collapse of networks",
        hypotheses="Gaussian weights, <layers> layers, no batch normalisation",
        interval_from="our tolerance: ten times as far",
        note=r"change of $\log\thinspace\lVert \mathrm{res}\rVert$ by attention over change of the log distance to "
        "rank 1; medians",
    ),
    rank(
        "collapse-rank-goes",
        "Without batch normalisation the rank of random linear and ReLU networks collapses with depth.",
        lambda data: _ranks(data, slice(0, 2)),
        at_most(1.1),
        formula=True,
        interval_from="our tolerance: a stable rank of at most 1.1",
        note="stable rank at layer <layers>; the abstract says that it collapses quickly",
    ),
    rank(
        "collapse-batch-norm",
        "Batch normalisation avoids the collapse of rank in random linear and ReLU networks.",
        lambda data: _ranks(data, slice(2, 4)),
        at_least(2),
        interval_from="our tolerance: a stable rank of at least 2",
        note="stable rank at layer <layers>, before the ReLU; by the abstract proved for linear networks, shown by "
        "experiment for ReLU",
    ),
    published(
        "collapse-rank-one",
        "The nearer a matrix is to rank one, the smaller is its residual.",
        lambda data: Measured(
            [np.median(data["rank_one"]), np.max(data["rank_one_equal"])],
            where=["uvᵀ", "1xᵀ"],
            reads=[data["rank_one"], data["rank_one_equal"]],
        ),
        at_most(0.01),
        formula=True,
        needs="parts",
        source="proof-notes",
        place="definition of the residual",
        hypotheses=r"matrices $uv^{\top}$ of rank one, $u$ and $v$ normal, and $1x^{\top}$, which the notes' next "
        "formula has",
        interval_from="our tolerance: nothing is nearer to rank one, so that at most a hundredth may be left",
        note=r"of $1x^{\top}$ it is the definition; read literally it speaks of every matrix of rank one; median of "
        r"$\lVert \mathrm{res}(X)\rVert/\lVert X\rVert$; the residual is the distance to equal rows, a part of the "
        "matrices of rank one; a small residual implies rank nearly one, and not the other way round",
    ),
    law(
        "collapse-skip",
        f"In {SHAPE} the absolute residual lies above its start after every layer in at least 95 % of random networks "
        "with skip connections.",
        lambda data: Measured(
            data["skip"][0][1:],
            standard_error=data["skip_error"][1:],
            where=data["depth"][1:],
            left_out=data["skip_left_out"],
        ),
        at_least(0),
        proof="measured",
        place="docs/collapse.md, Where it fails",
        neighbours=["dong2021", "alman2025"],
        hypotheses="Gaussian weights of gain 1, branches of strength 1",
        after_result=True,
        interval_from="above the start; the statement was narrowed when its numbers were known",
        note=r"5 % quantile of $\log\thinspace\lVert \mathrm{res}(X^{l})\rVert-\log\thinspace\lVert "
        r"\mathrm{res}(X)\rVert$; Dong et al. show that such weights exist; relative to $\lVert X\rVert$ it falls "
        "(collapse-skip-relative); in smaller networks it falls below its start more often: with 2 tokens in one of "
        "ten after the first layer, with tokens of width 4 in four of ten",
    ),
    law(
        "collapse-skip-relative",
        rf"In {SHAPE} the relative residual $\lVert \mathrm{{res}}(X^{{l}})\rVert/\lVert X^{{l}}\rVert$ lies below its "
        "start from the second layer on in at least 95 % of random networks with skip connections.",
        lambda data: Measured(
            data["relative"][2][2:],
            standard_error=data["relative_error"][2:],
            where=data["depth"][2:],
            left_out=data["relative_left_out"],
            numbers={"layers": data["depth"][-1], "share": np.exp(data["relative"][1][-1])},
        ),
        at_most(0),
        proof="measured",
        place="docs/collapse.md, Where it fails",
        neighbours=["dong2021", "alman2025", "noci2022"],
        hypotheses="Gaussian weights of gain 1, branches of strength 1, no norm",
        after_result=True,
        interval_from="below the start; the statement was narrowed when its numbers were known",
        note=r"95 % quantile of the change of $\log(\lVert \mathrm{res}(X^{l})\rVert/\lVert X^{l}\rVert)$; after "
        "<layers> layers the median is <share:.2f> of the start",
    ),
)
