"""Who looks at whom: symmetric scores without projections or with tied ones, and how far from it others are."""

import dataclasses
import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

from experiments.figures._medians import median_error
from experiments.figures._packaged import trained_checkpoint
from experiments.figures._samples import draw
from experiments.ledger import Measured, at_most, law, near, published
from experiments.lib import figure, sentences, style
from rc_jax import attention, network, pretrained

PAGE = "docs/anatomy.md"
ABOUT = figure.About(
    title="Symmetric scores, and asymmetric ones",
    caption=(
        "a(A) = ‖A − Aᵀ‖/‖A + Aᵀ‖, 0 for a symmetric matrix of scores. Top left: independent random W_Q and W_K on "
        "tokens of growing correlation; how asymmetric the scores are depends on the tokens' effective rank 1/ρ alone. "
        "Top right: eigenvalues of P = softmax(A); symmetric scores make a reversible chain, whose eigenvalues are "
        "real. Below: heads of a trained bidirectional model (all-MiniLM-L6-v2), left W_Q W_Kᵀ itself, right its "
        "scores on docstrings (without biases), with what random weights would give on the same tokens."
    ),
    formula="E‖A ∓ Aᵀ‖² ∝ (tr G)² ∓ ‖G‖²,  G = XXᵀ,  ρ = ‖G‖²/(tr G)²;   a² → (1 − ρ)/(1 + ρ)",
    topic="layer",
    minutes={"smoke": 0.08, "quick": 0.25, "full": 2.0},
)
SHARES = (0.0, 0.3, 0.6, 0.9, 1.0)  # of a token that all tokens have in common
ROUNDING, CLOSE = 1e-6, 0.1
Data = Mapping[str, np.ndarray]


class Spec(figure.Spec):
    """Random layers of `d_model` features on `tokens` tokens; matrices for spectra; texts for the trained model."""

    d_model: int = 64
    tokens: int = 32
    heads: tuple[int, ...] = (2, 32)
    layers: int = 16_384
    matrices: int = 8
    texts: int = 8
    length: int = 64


PRESETS = {
    "smoke": Spec(d_model=16, tokens=8, heads=(2,), layers=64, matrices=2, texts=1, length=16),
    "quick": Spec(),
    "full": Spec(d_model=256, tokens=128, heads=(2, 8, 32, 128), matrices=64, texts=32, length=128),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Random layers against the law; spectra; the trained model."""
    checkpoint = trained_checkpoint(spec.dtype)
    key = jax.random.key(spec.seed)
    return _random(spec, jax.random.fold_in(key, 0)) | _spectra(spec) | _trained(spec, checkpoint, key)


def _random(spec: Spec, key: jax.Array) -> dict[str, np.ndarray]:
    """Mean ‖A ∓ Aᵀ‖² over initialisations, in units of their law: (sign, head width, share)."""
    noise = np.random.default_rng(spec.seed).normal(size=(spec.tokens + 1, spec.d_model))
    share = np.array(SHARES)[:, None, None]
    x = (np.sqrt(share) * noise[:1] + np.sqrt(1 - share) * noise[1:]).astype(np.float32)
    # E‖A ∓ Aᵀ‖² = 2 (tr G)² (1 ∓ ρ)/d²; equal tokens have no antisymmetric part to divide by.
    rho = _overlap(x)
    law = 2 * (x**2).sum((1, 2)) ** 2 / spec.d_model**2 * np.stack([1 - rho, 1 + rho])
    safe = np.where(law > 1e-9, law, 1)
    parts, errors, asymmetry, left_out = [], [], [], 0
    for width in spec.heads:
        layer = attention.AttentionSpec(d_model=spec.d_model, d_head=width)
        sample = functools.partial(_parts, x=x, layer=layer)
        stats = draw(sample, jax.random.fold_in(key, width), spec.layers)
        left_out += np.sum(stats.left_out)
        parts.append(stats.mean / safe)
        errors.append(stats.standard_error / safe)
        asymmetry.append(np.sqrt(stats.mean[0] / stats.mean[1]))
    return {
        "rho": rho, "heads": np.array(spec.heads), "layers": np.asarray(spec.layers), "parts": np.stack(parts, 1),
        "parts_error": np.stack(errors, 1), "asymmetry": np.stack(asymmetry), "left_out": np.asarray(left_out),
    }  # fmt: skip


def _parts(key: jax.Array, x: np.ndarray, layer: attention.AttentionSpec) -> jax.Array:
    """‖A − Aᵀ‖² and ‖A + Aᵀ‖² of one initialisation for each set of tokens: (sign, set)."""
    params = attention.init(key, layer)
    a = jax.vmap(lambda tokens: attention.scores(params, tokens, layer)[0])(jnp.asarray(x))
    return jnp.stack([((a + sign * a.mT) ** 2).sum((-2, -1)) for sign in (-1, 1)])


def _overlap(x: np.ndarray) -> np.ndarray:
    """ρ = ‖G‖²/(tr G)² of G = XXᵀ, one over the effective number of directions of the tokens."""
    gram = x @ np.swapaxes(x, -1, -2)
    return (gram**2).sum((-2, -1)) / np.trace(gram, axis1=-2, axis2=-1) ** 2


def _asymmetry(a: np.ndarray, axis: tuple[int, ...] = (-2, -1)) -> np.ndarray:
    """‖A − Aᵀ‖/‖A + Aᵀ‖ of the last two axes, summed over `axis`."""
    transposed = np.swapaxes(a, -1, -2)
    return np.sqrt(((a - transposed) ** 2).sum(axis) / ((a + transposed) ** 2).sum(axis))


def _spectra(spec: Spec) -> dict[str, np.ndarray]:
    """Eigenvalues of P with no, tied and independent projections; asymmetry of scores and weights without."""
    rng = np.random.default_rng(spec.seed + 1)
    data: dict[str, list[np.ndarray]] = {}
    for _ in range(spec.matrices):
        x = rng.normal(size=(spec.tokens, spec.d_model))
        query, other = rng.normal(size=(2, spec.d_model, spec.d_model)) / spec.d_model**0.5
        scores = {"none": x @ x.T, "tied": (x @ query) @ (x @ query).T, "free": (x @ query) @ (x @ other).T}
        for kind, a in scores.items():
            weights = np.exp(a / spec.d_model**0.5 - (a / spec.d_model**0.5).max())
            chain = weights / weights.sum(1, keepdims=True)
            data.setdefault(f"{kind}_values", []).append(np.linalg.eigvals(chain))
            if kind == "none":
                data.setdefault("none_weights", []).append(_asymmetry(chain))
                data.setdefault("none_scores", []).append(_asymmetry(a))
    return {name: np.array(values) for name, values in data.items()}


def _trained(spec: Spec, checkpoint: pretrained.Checkpoint, key: jax.Array) -> dict[str, np.ndarray]:
    """Asymmetry of W_Q W_Kᵀ and of the scores on text, (layer, head); of random weights on these tokens, (layer,)."""
    ids = jnp.asarray(sentences.token_ids(checkpoint, spec.texts, spec.length, spread=True))
    layer = dataclasses.replace(checkpoint.spec.attention, bias=False)

    def scores(tokens: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Tokens that enter each layer, (layer, token, feature), and its scores, (layer, head, row, key)."""
        states = network.hidden_states(checkpoint.params, tokens, checkpoint.spec)[:-1]
        return states, jax.vmap(lambda p, x: attention.scores(p, x, layer))(checkpoint.params.attention, states)

    def products(params: attention.AttentionParams) -> np.ndarray:
        """Asymmetry of W_Q W_Kᵀ: (layer, head)."""
        return _asymmetry(np.asarray(params.query, float) @ np.swapaxes(np.asarray(params.key, float), -1, -2))

    x, a = jax.jit(functools.partial(jax.lax.map, scores))(jax.vmap(checkpoint.embed)(ids))
    x = np.asarray(x, float)
    rho, size = _overlap(x), (x**2).sum((2, 3)) ** 2  # (text, layer)
    random = pretrained.random_like(jax.random.fold_in(key, 9), checkpoint)
    return {
        "trained_weights": products(checkpoint.params.attention), "random_weights": products(random.params.attention),
        "trained_scores": _asymmetry(np.asarray(a, float), (0, 3, 4)),
        "random_scores": np.sqrt((size * (1 - rho)).sum(0) / (size * (1 + rho)).sum(0)),
        "trained_width": np.asarray(layer.d_model),
    }  # fmt: skip


def plot(data: Data) -> Figure:
    """The law; spectra; trained weights; trained scores."""
    drawing, (law, spectra, weights, scores) = style.figure(columns=2, rows=2, width=5.8)
    rho = np.linspace(0, 1, 300)
    law.plot(rho, np.sqrt((1 - rho) / (1 + rho)), color=style.colour("theory"), label="√((1 − ρ)/(1 + ρ))")
    for index, width in enumerate(data["heads"]):
        law.plot(data["rho"], data["asymmetry"][index], style.MARKERS[index], color=style.cycle(index)["color"],
                 label=f"random layers, d_k = {width}", markerfacecolor="none", markersize=7 + 2 * index)  # fmt: skip
    law.plot([0, 1], [0, 0], color=style.colour("corrected"), linewidth=3, label="W_Q = W_K")
    for kind, meaning, marker, label in (
        ("free", "published", "x", "W_Q, W_K independent"), ("tied", "corrected", "o", "W_Q = W_K"),
        ("none", "measured", "+", "X Xᵀ"),
    ):  # fmt: skip
        values = data[f"{kind}_values"].ravel()
        spectra.plot(np.real(values), np.imag(values), marker, color=style.colour(meaning), label=label, markersize=4)
    # Heads of one layer stand side by side.
    d, layers = float(data["trained_width"]), np.arange(1, data["random_scores"].size + 1)
    for ax, values, marker, meaning, label in (
        (weights, data["trained_weights"], "o", "trained", "trained heads"),
        (weights, data["random_weights"], "s", "random", "random weights"),
        (scores, data["trained_scores"], "o", "trained", "trained heads"),
    ):
        beside = layers[:, None] + np.linspace(-0.25, 0.25, values.shape[1])
        ax.plot(beside.ravel(), values.ravel(), marker, color=style.colour(meaning), markersize=3.5, label=label)
    style.reference(weights, y=float(np.sqrt((d - 1) / (d + 1))), text="√((d − 1)/(d + 1))")
    scores.plot(layers, data["random_scores"], "_", color=style.colour("random"), markersize=26, markeredgewidth=2,
                label="random weights, same tokens")  # fmt: skip
    for ax, x, y, title, columns in (
        (law, "ρ, one over the tokens' effective rank", "a(A), asymmetry", "Random weights: it is the tokens", 2),
        (spectra, "real part", "imaginary part", "Eigenvalues of P", 3),
        (weights, "layer", "a(W_Q W_Kᵀ)", "Trained: the bilinear form", 2),
        (scores, "layer", "a(A), asymmetry of scores", "Trained: scores on text", 2),
    ):
        style.panel(ax, x, y, title, legend="below", columns=columns)
    for ax in (weights, scores):
        ax.set_ylim(bottom=0)
    return drawing


def _without_projections(data: Data) -> Measured:
    """The largest asymmetry of scores without projections, and the least of the weights."""
    scores, weights = data["none_scores"], data["none_weights"]
    return Measured(
        [scores.max(), weights.min()],
        where=["scores", "weights"],
        reads=[scores, weights],
        numbers={"draws": len(scores), "lowest": weights.min(), "highest": weights.max()},
    )


def _random_over_law(data: Data) -> Measured:
    """Mean ‖A ∓ Aᵀ‖² of random layers over the law."""
    parts, rho = data["parts"], data["rho"]
    # Equal tokens (ρ = 1) have a symmetric matrix of scores: the law is 0 and there is no ratio to it.
    asked = np.ones(parts.shape, bool)
    asked[0] = rho < 1 - ROUNDING
    return Measured(
        parts.ravel(),
        standard_error=data["parts_error"].ravel(),
        where=[f"{sign}, d_k = {width}, ρ = {each:.2g}" for sign in "−+" for width in data["heads"] for each in rho],
        applies=asked.ravel(),
        reads=[rho],
        left_out=data["left_out"],
        numbers={"layers": int(data["layers"])},
    )


def _trained_over_random(data: Data) -> Measured:
    """Asymmetry of W_Q W_Kᵀ, median trained head over the most symmetric random one, by layer."""
    trained, random = data["trained_weights"], data["random_weights"].min(1)
    return Measured(
        np.median(trained, 1) / random,
        standard_error=median_error(trained.T) / random,
        where=[f"layer {index + 1}" for index in range(random.size)],
    )


ROWS = (
    published(
        "symmetry-none",
        r"If $Q=K=X$, without projections, the attention matrix is symmetric, $d(x_1,x_2)=d(x_2,x_1)$.",
        _without_projections,
        near(0, ROUNDING),
        formula=True,
        needs="parts",
        source="study-notes",
        place="section on the need of linear maps",
        hypotheses=r"<draws> draws of normal tokens, scores over $\sqrt{d}$; the notes name $QK^{\top}$ and speak "
        "of the attention matrix",
        interval_from="rounding",
        note=r"measured: $\lVert A-A^{\top}\rVert/\lVert A+A^{\top}\rVert$ of the scores and of the weights, which "
        "softmax by rows makes asymmetric: <lowest:.4f> … <highest:.4f>",
    ),
    law(
        "symmetry-random",
        r"For independent random $W_Q$ and $W_K$ of any width $E\lVert A\mp A^{\top}\rVert^{2}$ is proportional to "
        r"$(\mathrm{tr}\thinspace G)^{2}\mp\lVert G\rVert^{2}$, $G=XX^{\top}$.",
        _random_over_law,
        near(1, CLOSE),
        proof="proved",
        place=PAGE,
        hypotheses="centred entries of one variance, no biases; <layers> initialisations",
        interval_from="our tolerance: a tenth",
        note="measured over the law",
    ),
    published(
        "symmetry-trained",
        r"In a model trained in both directions $W_Q\thinspace W_K^{\top}$ becomes more symmetric than at random.",
        _trained_over_random,
        at_most(1),
        source="saponati2025",
        place="abstract",
        hypotheses="one trained bidirectional model, all-MiniLM-L6-v2; the authors looked at others",
        interval_from="the sign of the difference",
        note=r"measured: asymmetry of $W_Q\thinspace W_K^{\top}$, median trained head over the most symmetric random "
        "one",
    ),
)
