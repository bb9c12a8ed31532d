"""Two predictions for single heads of a trained model: the tail of a row's gradient, and what its sink does."""

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure as Drawing

from experiments.figures._packaged import trained_checkpoint
from experiments.ledger import Measured, at_least, law, near
from experiments.lib import figure, sentences, style
from rc_jax import attention, network, pretrained
from rc_jax.attention import project
from rc_jax.diagnostics import SINK

ABOUT = figure.About(
    title="Two predictions for trained heads",
    caption=(
        "A trained encoder on docstrings of Python's standard library. Left: how often the largest gradient of a row "
        "over all scales exceeds g, by layer, with g in units of what the density of the gap between its two largest "
        "scores predicts; the line is the prediction. Right: what taking away the sink of one head does to the "
        "relative residual of its layer's output, against the prediction from the sink's value v, the head's λ and "
        "its size a; right signs lie in the lower left and the upper right quarter."
    ),
    formula="P(max_α α(1 − Σp²) > g) → 0.4477 ϱ(0)/g;   Δ log(‖res‖/‖mean‖) = log "
    "(1+aλ(1−s))(1+a)/((1+aλ)(1+a(1−s+sv)))",
    topic="models",
    minutes={"smoke": 0.1, "quick": 0.3, "full": 3},
)
PAIR = 0.4477432046943  # x/2 cosh²(x/2) at its largest: what two scores a gap g apart let through, times g
TAIL, BULK = 0.05, 0.2  # shares of rows: where the tail is looked at, and where the density of gaps
SCALES = 64  # of a row's search for its largest gradient
Data = Mapping[str, np.ndarray]


class Spec(figure.Spec):
    """Texts of `tokens` tokens each for the tail, and for the sinks."""

    texts: int = 32
    sink_texts: int = 8
    tokens: int = 64


PRESETS = {"smoke": Spec(texts=2, sink_texts=2, tokens=12), "quick": Spec(), "full": Spec(texts=256, sink_texts=64)}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Gaps and largest gradients of rows, (layer, head, row); sinks by (layer, head, text)."""
    model = trained_checkpoint(spec.dtype)
    ids = jnp.asarray(sentences.token_ids(model, spec.texts, spec.tokens, spread=True))
    states = _states(model, ids)
    layers = [jax.tree.map(lambda leaf, at=at: leaf[at], model.params) for at in range(model.spec.depth)]
    parts, sinks = [], []
    for at, layer in enumerate(layers):
        parts.append(_rows(layer.attention, states[:, at], model.spec.attention))
        sinks.append(_sinks(layer.attention, states[: spec.sink_texts, at], model.spec.attention))
    gap, largest = (np.stack([np.asarray(part[i]) for part in parts]) for i in range(2))
    found = {name: np.stack([np.asarray(each[name]) for each in sinks]) for name in sinks[0]}
    return {"gap": gap, "largest": largest, **found}


def _states(model: pretrained.Checkpoint, ids: jax.Array) -> jax.Array:
    """What the attention of every layer reads: (text, layer, token, feature); norms stand after layers."""
    if model.spec.norm != "post":
        raise ValueError(f"`norm` must be 'post', got {model.spec.norm!r}")
    run = jax.jit(lambda row: network.hidden_states(model.params, model.embed(row), model.spec)[:-1])
    return jnp.stack([run(row) for row in ids])


@functools.partial(jax.jit, static_argnames="spec")
def _rows(
    params: attention.AttentionParams, states: jax.Array, spec: attention.AttentionSpec
) -> tuple[jax.Array, jax.Array]:
    """Of every row: the gap of its two largest scores, and max over α of α(1 − Σp²): (head, row) each.

    Scales are a grid from 0.1 over the deviation to 6 over the gap, where two scores alone are long past their maximum.
    """

    def one(row: jax.Array) -> tuple[jax.Array, jax.Array]:
        ordered = jax.lax.top_k(row, 2)[0]
        gap = ordered[0] - ordered[1]
        alphas = jnp.geomspace(0.1 / jnp.std(row), 6 / gap, SCALES)

        def gradient(alpha: jax.Array) -> jax.Array:
            p = jax.nn.softmax(alpha * (row - ordered[0]))
            return alpha * jnp.sum(p * (1 - p))

        return gap, jnp.max(jax.lax.map(gradient, alphas))

    scores = jax.lax.map(lambda x: attention.scores(params, x, spec), states)  # text, head, query, key
    flat = jnp.moveaxis(scores, 0, 1).reshape(scores.shape[1], -1, scores.shape[-1])
    return jax.lax.map(lambda head: jax.vmap(one)(head), flat)


@functools.partial(jax.jit, static_argnames="spec")
def _sinks(params: attention.AttentionParams, states: jax.Array, spec: attention.AttentionSpec) -> dict[str, jax.Array]:
    """By (head, text): weight s of the head's sink, predicted and measured change of log(‖res‖/‖mean‖) by the sink.

    The stream B is the layer's output without the head, O the head's output without its sink, m and R mean and rest.
    a = ⟨m_O, m_B⟩/‖m_B‖², aλ = ⟨R_O, R_B⟩/‖R_B‖², v = ⟨sink's value, m_B⟩/⟨m_O, m_B⟩.
    """

    def text(x: jax.Array) -> dict[str, jax.Array]:
        rows = attention.attention_weights(params, x, spec)
        values = project(x, params.value, params.value_bias, spec)  # head, token, width
        moved = jnp.einsum("htk,hkd->htd", values, params.output)
        bias = 0 if params.output_bias is None else params.output_bias[None]
        whole = x + jnp.sum(rows @ moved, axis=0) + bias

        def head(p: jax.Array, value: jax.Array) -> dict[str, jax.Array]:
            sink = jnp.argmax(jnp.mean(p, axis=0))
            without = p.at[:, sink].set(0)
            without = without / jnp.sum(without, axis=1, keepdims=True)
            base, other = whole - p @ value, without @ value
            (mean, rest), (mean_o, rest_o) = ((y.mean(0), y - y.mean(0)[None]) for y in (base, other))
            size = jnp.sum(mean**2)
            a, a_lambda = jnp.sum(mean_o * mean) / size, jnp.sum(rest_o * rest) / jnp.sum(rest**2)
            s, a_v = jnp.mean(p[:, sink]), jnp.sum(value[sink] * mean) / size
            predicted = jnp.log((1 + a_lambda * (1 - s)) / (1 + a_lambda)) - jnp.log(
                (1 + a * (1 - s) + a_v * s) / (1 + a)
            )
            return {"weight": s, "predicted": predicted, "measured": _relative(whole) - _relative(base + other)}

        return jax.vmap(head)(rows, moved)

    return jax.tree.map(lambda leaf: leaf.T, jax.lax.map(text, states))


def _relative(x: jax.Array) -> jax.Array:
    """Log of ‖res(X)‖ over the size of the mean token."""
    mean = x.mean(axis=0)
    return jnp.log(jnp.linalg.norm(x - mean[None]) / jnp.linalg.norm(mean))


def plot(data: Data) -> Drawing:
    """The tail by layer; predicted and measured changes by sinks."""
    drawing, (tail, sinks) = style.figure(columns=2, width=5.6, height=4.4)
    density = _density(data["gap"])
    unit = data["largest"] / (PAIR * density)[..., None]
    for layer, color in zip(unit, style.sequence(len(unit)), strict=True):
        ordered = np.sort(layer.ravel())[::-1]
        share = np.arange(1, ordered.size + 1) / ordered.size
        tail.plot(ordered, share, color=color)
    line, (exponent, logs) = np.geomspace(2, 1e3, 50), _tail(data)
    factor = np.exp(logs.mean(axis=1))
    tail.plot(line, 1 / line, color=style.colour("theory"), linestyle=style.DASHES[1], label="prediction")
    tail.plot([], [], " ", label=f"exponents {exponent.min():.2f} … {exponent.max():.2f}")
    tail.plot([], [], " ", label=f"factors {factor.min():.2f} … {factor.max():.2f}")
    style.panel(tail, "g/(0.4477 ϱ(0))", "share of rows with a larger gradient", "One curve for each layer", log="xy",
                legend="lower left")  # fmt: skip
    some = data["weight"].mean(axis=2) >= SINK
    predicted, measured = (data[name].mean(axis=2)[some] for name in ("predicted", "measured"))
    sinks.plot(predicted, measured, "o", markersize=4, color=style.colour("trained"))
    right = np.mean(predicted * measured > 0) if some.any() else np.nan
    sinks.plot([], [], " ", label=f"right signs: {right:.0%} of {some.sum()} heads")
    sinks.axhline(0, color=style.colour("reference"), linewidth=1)
    sinks.axvline(0, color=style.colour("reference"), linewidth=1)
    style.panel(sinks, "predicted change", "measured change", "Change of log(‖res‖/‖mean‖) by one sink",
                legend="upper left")  # fmt: skip
    return drawing


def _density(gap: np.ndarray) -> np.ndarray:
    """The density of the gap near 0, by (layer, head): a share of rows over the gap that so many stay below."""
    return BULK / np.quantile(gap, BULK, axis=-1)


def _tail(data: Data) -> tuple[np.ndarray, np.ndarray]:
    """Exponent of the tail by layer, and log of P(G > g) g over 0.4477 ϱ(0) at its threshold by (layer, head).

    The exponent is one over the mean logarithm of what exceeds a head's threshold, heads pooled.
    """
    largest = data["largest"]
    level = np.quantile(largest, 1 - TAIL, axis=-1, keepdims=True)
    above = largest > level
    exponent = above.sum(axis=(1, 2)) / np.where(above, np.log(largest / level), 0).sum(axis=(1, 2))
    return exponent, np.log(TAIL * level[..., 0] / (PAIR * _density(data["gap"])))


def _exponents(data: Data) -> Measured:
    """The exponent of the tail by layer, with the error of as many independent rows."""
    exponent, (_, heads, rows) = _tail(data)[0], data["largest"].shape
    return Measured(
        exponent, standard_error=exponent / np.sqrt(TAIL * heads * rows), where=_layers(data), reads=[data["largest"]],
        numbers={"rows": heads * rows},
    )  # fmt: skip


def _factors(data: Data) -> Measured:
    """P(G > g) g over 0.4477 ϱ(0) at the threshold of the tail: geometric mean over the heads of a layer."""
    logs = _tail(data)[1]
    mean, error = np.exp(logs.mean(axis=1)), logs.std(axis=1, ddof=1) / logs.shape[1] ** 0.5
    return Measured(mean, standard_error=mean * error, where=_layers(data), reads=[data["gap"], data["largest"]])


def _signs(data: Data) -> Measured:
    """Share of heads with a sink whose mean change has the predicted sign."""
    some = data["weight"].mean(axis=2) >= SINK
    predicted, measured = (data[name].mean(axis=2)[some] for name in ("predicted", "measured"))
    share = float(np.mean(predicted * measured > 0)) if some.any() else np.nan
    return Measured(
        share,
        standard_error=np.sqrt(max(share * (1 - share), 1e-4) / max(some.sum(), 1)),
        reads=[data["weight"], data["predicted"], data["measured"]],
        numbers={
            "heads": int(some.sum()),
            "of": some.size,
            "right": int(np.sum(predicted * measured > 0)),
            "slow": int(np.sum(measured > 0)),
        },
    )


def _layers(data: Data) -> list[str]:
    return [f"layer {at + 1}" for at in range(len(data["gap"]))]


def _over_floor(data: Data) -> Measured:
    """The least product of a row's largest gradient and its gap, over the constant of two scores."""
    product = data["largest"] * data["gap"] / PAIR
    return Measured(product.min(), reads=[product], numbers={"rows": product.size})


# Rows, tolerances and errors of the two predictions are those that were committed before the first run.
own = functools.partial(law, proof="derived", predicted=True)
MODEL = "all-MiniLM-L6-v2, docstrings of Python's standard library"
ROWS = (
    own(
        "heads-tail-exponent",
        r"In trained heads the largest gradient $G$ of a row over all scales has the tail $P(G\gt g)\propto1/g$.",
        _exponents,
        near(1, 0.15),
        place="docs/annealed.md, One row, and why rows have no mean",
        neighbours=["su2023scale"],
        hypotheses=rf"{MODEL}; the density $\varrho$ of the gap of a row's two largest scores is not 0 at 0",
        interval_from="our tolerance: 0.15 of an exponent",
        note=r"by layer, the twentieth of rows with the largest $G$ of every head, <rows> rows in all; "
        r"$G=\max_{\alpha}\thinspace\alpha(1-\sum p^{2})$",
    ),
    own(
        "heads-tail-prefactor",
        r"In trained heads $P(G\gt g)$ tends to $0.4477\thinspace\varrho(0)/g$.",
        _factors,
        near(1, 0.2),
        place="docs/annealed.md, One row, and why rows have no mean",
        neighbours=["su2023scale"],
        hypotheses=rf"{MODEL}; $\varrho(0)$ from the fifth of rows with the smallest gaps",
        interval_from="our tolerance: a fifth",
        note=r"measured over predicted at the twentieth of rows with the largest $G$, geometric mean over heads, by "
        "layer",
    ),
    own(
        "heads-sink-sign",
        r"From a sink's value $v$ and its head's $\lambda$ follows whether the sink slows the relative collapse of "
        "its layer.",
        _signs,
        at_least(0.7),
        place="docs/sinks.md",
        neighbours=["barbero2025", "fesser2026"],
        hypotheses=f"{MODEL}; heads whose sink has a mean weight of {SINK:g} or more, one at a time",
        interval_from="our tolerance: seven of ten signs",
        note=r"share of right signs, <right> of <heads> heads, of <of> in all; $a$, $\lambda$ and $v$ are projections "
        r"on the stream's mean and rest; the sink slows it in <slow> of them; measured: $\log(\lVert "
        r"\mathrm{res}\rVert/\lVert \bar x\rVert)$ of the output with the sink less without, rows renormalised",
    ),
    law(
        "heads-gradient-floor",
        "The largest gradient of a row over all scales is at least 0.4477 over the gap of its two largest scores, and "
        "near-ties attain it.",
        _over_floor,
        near(1, 0.02),
        proof="proved",
        place="docs/annealed.md, One row, and why rows have no mean",
        hypotheses="<rows> rows of scores of all-MiniLM-L6-v2",
        interval_from="1 by the proof and where it is attained; our tolerance for the grid of scales: two per cent",
        neighbours=["su2023scale"],
        note=r"the least $\max_{\alpha}\thinspace\alpha(1-\sum p^{2})$ times the gap, over 0.4477",
    ),
)
