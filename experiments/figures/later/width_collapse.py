"""Collapse in width: the spectrum of softmax of Gaussian logits as the number of tokens grows."""

import functools
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import scipy.sparse.linalg
import scipy.special
from matplotlib.figure import Figure as Drawing

from experiments.ledger import Measured, law, near, published
from experiments.lib import figure, style
from rc_jax import attention
from rc_jax.collapse import softmax_spectrum

ABOUT = figure.About(
    title="Collapse in width",
    caption=(
        "Singular values of the attention matrix of T tokens whose logits are independent, Gaussian, of standard "
        "deviation σ (points: means of simulated matrices). One singular value tends to 1, the others to the noise "
        "below it (solid lines: limits). While single weights stand out of the noise the second one is larger "
        "(dashed: with the largest weight as a spike), for σ = 1 at every size shown. Last panel: a randomly "
        "initialised layer of width d, one head. Its logits have rank d, and its second singular value stops "
        "falling once T exceeds d."
    ),
    formula="s₁ = 1/√(1−v), s₂ → 2√v, v = (e^{σ²} − 1)/T;  spike θ: s₂ = θ + v/θ;  layer: s₂ → (3√3/2) σ/√d",
    topic="later",
    minutes={"smoke": 0.1, "quick": 0.5, "full": 10.0},
)

REACHED = 0.05  # fixed in advance: a limit is reached when within a twentieth
# Limits in T are tested at σ where no single weight stands out at the sizes drawn (second singular value), and where
# e^{4σ²}, which the mean of squared weights needs, is far below T (stable rank).
SECOND_UP_TO, RANK_UP_TO = 0.5, 1.0


class Spec(figure.Spec):
    """Sizes, logit scales, matrices of the largest size (more of smaller ones), and the layers."""

    dtype: str = "float64"
    tokens: tuple[int, ...] = (64, 128, 256, 512, 1024)
    sigmas: tuple[float, ...] = (0.25, 0.5, 1.0, 1.5, 2.0)
    count: int = 64
    most: int = 64
    widths: tuple[int, ...] = (32, 128)
    layer_tokens: tuple[int, ...] = (16, 64, 256, 1024)
    layer_sigma: float = 0.5
    layers: int = 4


PRESETS = {
    "smoke": Spec(
        tokens=(32, 64, 128), sigmas=(0.5, 1.0), count=4, most=24, widths=(16,), layer_tokens=(16, 128), layers=2
    ),
    "quick": Spec(),
    "full": Spec(
        tokens=(64, 128, 256, 512, 1024, 2048, 4096),
        sigmas=(0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0),
        count=16,
        most=512,
        layer_tokens=(16, 32, 64, 128, 256, 512, 1024, 2048),
        layers=16,
    ),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Means and standard errors over matrices of both singular values, ‖P‖_F² and both stable ranks; the laws."""
    rng = np.random.default_rng(spec.seed)
    shape = len(spec.sigmas), len(spec.tokens)
    names = ("first", "second", "rank", "rank_centred")
    data = {f"{name}{part}": np.zeros(shape) for name in names for part in ("", "_standard_error")}
    for column, n in enumerate(spec.tokens):
        count = min(spec.most, spec.count * max(spec.tokens) // n)
        for row, sigma in enumerate(spec.sigmas):
            logits = (sigma * rng.normal(size=(n, n)) for _ in range(count))
            spectra = [_spectrum(scipy.special.softmax(each, axis=1)) for each in logits]
            for name in names:
                values = np.array([each[name] for each in spectra])
                data[name][row, column] = values.mean()
                data[f"{name}_standard_error"][row, column] = values.std(ddof=1) / np.sqrt(count)
    # Limits, and forms at finite size.
    sigma, n = np.array(spec.sigmas), np.array(spec.tokens, float)
    wide = sigma[:, None]
    data |= {
        "sigma": sigma, "tokens": n,
        "first_law": np.asarray(softmax_spectrum.gaussian_first_singular_value(wide, n)),
        "second_law": np.asarray(softmax_spectrum.gaussian_second_singular_value(wide, n)),
        "spiked_law": np.asarray(softmax_spectrum.gaussian_spiked_singular_value(wide, n)),
        "square_law": np.asarray(softmax_spectrum.gaussian_squared_norm(sigma)),
        "rank_centred_law": np.asarray(softmax_spectrum.gaussian_stable_rank(wide, n, centred=True)),
    }  # fmt: skip
    return data | _layers(spec)


def _spectrum(p: np.ndarray) -> dict[str, float]:
    """Two singular values and the stable rank with and without 11ᵀ/n, by Lanczos iteration in float64."""

    def largest(p: np.ndarray, count: int) -> np.ndarray:
        start = np.random.default_rng(0).normal(size=len(p))
        options: dict[str, Any] = {"v0": start, "tol": 1e-5, "return_singular_vectors": False}
        return np.sort(np.asarray(scipy.sparse.linalg.svds(p, count, **options)))

    (second, first), centred = largest(p, 2), p - 1 / len(p)
    return {"first": first, "second": second, "rank": np.sum(p * p) / first**2,
            "rank_centred": np.sum(centred * centred) / largest(centred, 1)[0] ** 2}  # fmt: skip


def _layers(spec: Spec) -> dict[str, np.ndarray]:
    """Second singular value of randomly initialised layers: (width, tokens)."""
    second = np.zeros((len(spec.widths), len(spec.layer_tokens), spec.layers))
    for i, j, k in np.ndindex(second.shape):
        width, n = spec.widths[i], spec.layer_tokens[j]
        layer, key = attention.AttentionSpec(d_model=width), jax.random.key(spec.seed)
        # One key for each width, number of tokens and layer.
        for part in (width, n, k):
            key = jax.random.fold_in(key, part)
        params = attention.init(jax.random.fold_in(key, 0), layer, dtype=spec.dtype)
        x = jax.random.normal(jax.random.fold_in(key, 1), (n, width), spec.dtype)
        p = attention.attention_weights(params, x, layer, scale=spec.layer_sigma * width**-0.5)
        second[i, j, k] = _spectrum(np.asarray(p[0]))["second"]
    width, n = np.array(spec.widths, float), np.array(spec.layer_tokens, float)
    return {
        "width": width, "layer_tokens": n, "layer_second": second.mean(axis=2),
        "layer_standard_error": second.std(axis=2, ddof=1) / np.sqrt(spec.layers),
        "layer_law": np.asarray(softmax_spectrum.layer_second_singular_value(spec.layer_sigma, n, width[:, None])),
        "layer_iid": np.asarray(softmax_spectrum.gaussian_second_singular_value(spec.layer_sigma, n)),
        "layer_sigma": np.array(spec.layer_sigma),
    }  # fmt: skip


def plot(data: Mapping[str, np.ndarray]) -> Drawing:
    """Second and first singular value against T; both stable ranks; a randomly initialised layer."""
    drawing, (second, first, rank, layer) = style.figure(columns=2, rows=2, height=4.2)
    n, theory = data["tokens"], style.colour("theory")
    for row, (sigma, color) in enumerate(zip(data["sigma"], style.sequence(data["sigma"].size), strict=True)):
        marks: dict[str, Any] = {"color": color, "linestyle": "none", "marker": style.MARKERS[row % len(style.MARKERS)]}
        for ax, name, shift in ((second, "second", 0.0), (first, "first", 1.0), (rank, "rank_centred", 0.0)):
            error = data[f"{name}_standard_error"][row]
            ax.errorbar(n, data[name][row] - shift, error, label=f"σ = {sigma:g}", **marks)
            ax.plot(n, data[f"{name}_law"][row] - shift, color=theory if ax is rank else color)
        second.plot(n, data["spiked_law"][row], color=color, linestyle=style.DASHES[1])
        rank.plot(n, data["rank"][row], fillstyle="none", **marks)
        rank.axhline(data["square_law"][row], color=color, linewidth=1)
    rank.annotate("T/4", (n[0], n[0] / 4), xytext=(0, 12), textcoords="offset points", fontsize=9)
    # Layers at random, whose logits are not independent.
    tokens = data["layer_tokens"]
    layer.plot(tokens, data["layer_iid"], color=theory, label="independent logits: 2√v")
    for row, width in enumerate(data["width"]):
        look = style.cycle(row)
        layer.errorbar(tokens, data["layer_second"][row], data["layer_standard_error"][row], linestyle="none",
                       color=look["color"], marker=look["marker"], label=f"layer of width {width:g}")  # fmt: skip
        layer.plot(tokens, data["layer_law"][row], color=look["color"], linestyle=style.DASHES[1])
    random = f"A randomly initialised layer, σ = {float(data['layer_sigma']):g}"
    for ax, y, title, legend in (
        (second, "s₂", "The second singular value", None), (first, "s₁ − 1", "The first one, above 1", "right"),
        (rank, "‖·‖²_F / s₁²", "Stable rank: with 11ᵀ/T (open) and without (filled)", None),
        (layer, "s₂", random, "lower left"),
    ):  # fmt: skip
        style.panel(ax, "T, tokens", y, title, log="xy", base=2, legend=legend)
    style.ticks(layer.yaxis, (0.05, 0.1, 0.2, 0.4))
    return drawing


def _at_largest(
    data: Mapping[str, np.ndarray], name: str, limit: np.ndarray, most: float = np.inf, zero: float = 0.0
) -> Measured:
    """A quantity over its limit, both less `zero`, at the largest size: judged for σ up to `most`.

    The note has the ratios at the other σ, where single weights stand out at that size.
    """
    n, sigma = data["tokens"], data["sigma"]
    limit, judged = limit - zero, sigma <= most
    ratio = (data[name][:, -1] - zero) / limit
    rest = ", ".join(f"{each:.2f} at σ = {s:g}" for s, each in zip(sigma[~judged], ratio[~judged], strict=True))
    count = f"; {judged.sum()} of {sigma.size} σ judged; T is too small for the others: "
    return Measured(
        ratio[judged],
        standard_error=(data[f"{name}_standard_error"][:, -1] / limit)[judged],
        where=[f"σ = {each:g}" for each in sigma[judged]],
        reads=[n, sigma],
        numbers={"tokens": n[-1], "others": f"{count}{rest}" if rest else ""},
    )


SETTING = r"independent Gaussian logits of standard deviation $\sigma$, $T\to\infty$"
# Limits in T for every fixed σ. Where single weights stand out at the sizes drawn, T is too small to decide.
in_the_limit = functools.partial(
    published,
    source="naitsaada2025-formulas",
    interval=near(1, REACHED),
    hypotheses=SETTING,
    interval_from="our tolerance, at the largest $T$",
    elsewhere=r"the limit is one of $T$, and the largest $T$ is too small where $\sigma$ is large",
    note="measured over the limit at $T=<tokens:g>$",
)
own = functools.partial(
    law, interval=near(1, REACHED), proof="derived", place="docs/width_collapse.md", interval_from="our tolerance"
)
ROWS = (
    in_the_limit(
        "width-first",
        "The largest singular value of the attention matrix tends to 1 as $T$ grows.",
        lambda data: _at_largest(data, "first", np.ones_like(data["sigma"])),
        formula=True,
        place="theorem, as others restate it",
    ),
    in_the_limit(
        "width-second",
        r"The second singular value tends to $2\sqrt{(e^{\sigma^{2}}-1)/T}$ as $T$ grows.",
        lambda data: _at_largest(data, "second", data["second_law"][:, -1]),
        place="abstract: the gap; the formula as others restate it",
    ),
    in_the_limit(
        "width-rank",
        r"The stable rank of the attention matrix stays bounded as $T$ grows, at $e^{\sigma^{2}}$.",
        lambda data: _at_largest(data, "rank", data["square_law"]),
        place="abstract: collapse in width; the formula as others restate it",
    ),
    # The stable rank without the outlier, and what the largest singular value has above 1 at finite size.
    own(
        "width-rank-centred",
        r"As $T\to\infty$ the stable rank of the attention matrix without $11^{\top}/T$ tends to $T/4$; at the "
        rf"largest $T$ it is that within {REACHED:.0%} for $\sigma\leq{SECOND_UP_TO:g}$.",
        lambda data: _at_largest(data, "rank_centred", data["rank_centred_law"][:, -1], SECOND_UP_TO),
        hypotheses=SETTING,
        neighbours=["naitsaada2025"],
        after_result=True,
        note="measured over $T/4$ at $T=<tokens:g>$<others>",
    ),
    own(
        "width-first-excess",
        r"As $T\to\infty$ the largest singular value tends to $1/\sqrt{1-v}$, $v=(e^{\sigma^{2}}-1)/T$; at the "
        rf"largest $T$ what it has above 1 is that within {REACHED:.0%} for $\sigma\leq{RANK_UP_TO:g}$.",
        lambda data: _at_largest(data, "first", data["first_law"][:, -1], RANK_UP_TO, zero=1.0),
        hypotheses=f"{SETTING}; first order in $v$",
        neighbours=["naitsaada2025", "benaych2012"],
        after_result=True,
        note="what it has above 1, measured over predicted, at $T=<tokens:g>$<others>",
    ),
)
