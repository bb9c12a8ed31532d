"""Rank of causal attention: full by its diagonal, and how much of it floating point can see."""

import functools
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure as Drawing
from scipy import linalg, special

from experiments.ledger import Measured, at_least, law, near, published
from experiments.lib import figure, style
from rc_jax import attention
from rc_jax.collapse import causal_rank as forms

ABOUT = figure.About(
    title="Rank of causal attention",
    caption=(
        "A causal attention matrix is triangular with a positive diagonal, so its determinant is positive and its rank "
        "full. Its smallest singular value is 1/(2n) with uniform rows and (1 − λ)/(1 + λ) with a decay. With random "
        "scores it is exponentially small in n, at a rate of about γ² per token while γ, the standard deviation of "
        "scores, is small. A floating-point type loses what is below its ε. First: the digits that would be needed. "
        "Second: that rate. Third: the share of singular values above ε σ_max. The smallest is computed as 1/‖P⁻¹‖, "
        "which keeps its digits far below float64's ε. The uniform form is a WKB approximation."
    ),
    formula="log det P = Σ log p_ii;  σ_min: uniform → 1/(2n), decay → (1 − λ)/(1 + λ), softmax ~ e^(−Λ(γ) n)",
    topic="layer",
    minutes={"smoke": 0.1, "quick": 0.25, "full": 8.0},
)

EPS = {"float64": 2.0**-52, "float32": 2.0**-23, "bfloat16": 2.0**-7}
# Fixed before the first run: closed forms to their next order.
CLOSED = 0.02
MANY, AIRY = 10**6, -float(special.ai_zeros(1)[0][0])
RATES = (0.5, 0.9, 0.97)


class Spec(figure.Spec):
    """Shape of the layers, numbers of tokens, multiples of the default scale (standard deviations of scores)."""

    dtype: str = "float64"
    d_model: int = 128
    heads: int = 2
    lengths: tuple[int, ...] = (16, 32, 64, 128, 256)
    gammas: tuple[float, ...] = (0.25, 0.5, 1.0, 2.0)
    count: int = 4
    steps: int = 40_000


PRESETS = {
    "smoke": Spec(d_model=16, lengths=(8, 16, 32), gammas=(0.5, 1.0), count=2, steps=2000),
    "quick": Spec(),
    "full": Spec(lengths=(16, 32, 64, 128, 256, 384), count=64, steps=1_000_000),
}


def compute(spec: Spec) -> dict[str, np.ndarray]:
    """Logarithms of smallest singular values by kind, matrix and n; numerical ranks; rates that theory gives."""
    decays = (f"decay {rate:g}" for rate in RATES)
    regular = [*(f"softmax, γ = {gamma:g}" for gamma in spec.gammas), *decays, "gated decay", "linear"]
    names = [*regular, "relu²/Σ"]
    seen = [f"softmax, γ = {spec.gammas[-1]:g}", "softmax, γ = 1", "linear", "relu²/Σ"]
    results: dict[str, list[np.ndarray]] = {name: [] for name in ("smallest", "diagonal", "rank")}
    for index in range(spec.count):
        matrices = np.asarray(_matrices(spec, jax.random.fold_in(jax.random.key(spec.seed), index)), float)
        results["diagonal"].append(np.diagonal(matrices, axis1=-2, axis2=-1).min(axis=-1))
        ranked = matrices[[names.index(name) for name in seen]]
        results["rank"].append(np.array([[ranks(p, spec.lengths) for p in heads] for heads in ranked]))
        least = [[log_smallest(p, spec.lengths) for p in heads] for heads in matrices[: len(regular)]]
        results["smallest"].append(np.array(least))
    # Rates that theory gives, and uniform rows, whose matrix needs no draw.
    normals = jnp.asarray(np.random.default_rng(spec.seed).normal(size=(2, spec.steps)), spec.dtype)
    uniform = [np.tri(n) / np.arange(1, n + 1)[:, None] for n in spec.lengths]
    return {name: np.concatenate(values, axis=1) for name, values in results.items()} | {
        "names": np.array(names), "seen": np.array(seen),
        "lengths": np.array(spec.lengths), "gammas": np.array(spec.gammas),
        "predicted": np.array([forms.causal_softmax_growth(gamma, normals) for gamma in spec.gammas]),
        "uniform": np.array([log_smallest(matrix, (len(matrix),))[0] for matrix in uniform]),
        "uniform_term": np.asarray(uniform_term(MANY)),
    }  # fmt: skip


@functools.partial(jax.jit, static_argnums=0)
def _matrices(spec: Spec, key: jax.Array) -> jax.Array:
    """Causal attention of one initialisation, (kind, head, n, n); its leading blocks are that of fewer tokens."""
    layer = functools.partial(attention.AttentionSpec, d_model=spec.d_model, heads=spec.heads, causal=True)
    x = jax.random.normal(jax.random.fold_in(key, 0), (max(spec.lengths), spec.d_model), spec.dtype)
    gated = layer(weights="gated_decay")
    params = attention.init(jax.random.fold_in(key, 1), gated, dtype=spec.dtype)
    default = gated.head_width**-0.5

    # Weights of every score and decay on the same tokens and projections.
    def softmax(gamma: jax.Array) -> jax.Array:
        return attention.attention_weights(params, x, layer(), scale=gamma * default)

    def decaying(rate: jax.Array) -> jax.Array:
        rates = params.with_parts(decay=jnp.broadcast_to(rate, (spec.heads,)))
        return attention.attention_weights(rates, x, layer(weights="decay"))

    gammas, rates = (jnp.asarray(numbers, spec.dtype) for numbers in (spec.gammas, RATES))
    kinds = [jax.vmap(softmax)(gammas), jax.vmap(decaying)(rates)]
    for one in (gated, layer(weights="linear"), layer(weights="relu_squared")):
        kinds.append(attention.attention_weights(params, x, one)[None])
    return jnp.concatenate(kinds)


def log_smallest(matrix: np.ndarray, lengths: tuple[int, ...]) -> np.ndarray:
    """Logarithms of σ_min of leading blocks: the inverse of a leading block is the leading block of the inverse."""
    inverse = linalg.solve_triangular(matrix, np.eye(len(matrix)), lower=True)
    return np.array([-np.log(np.linalg.norm(inverse[:n, :n], 2)) for n in lengths])


def ranks(matrix: np.ndarray, lengths: tuple[int, ...]) -> np.ndarray:
    """Numbers of singular values above ε σ_max, by n and type, as fractions of n."""
    values = [np.linalg.svd(matrix[:n, :n], compute_uv=False) for n in lengths]
    return np.array([[np.mean(each > eps * each[0]) for eps in EPS.values()] for each in values])


def plot(data: Mapping[str, np.ndarray]) -> Drawing:
    """Smallest singular value against n; its rate against γ; the share of rank that each type sees."""
    drawing, (smallest, rate, rank) = style.figure(columns=3, width=5.2, height=4.6)
    names, lengths, gammas = [str(name) for name in data["names"]], data["lengths"], data["gammas"]
    for index, row in enumerate(-data["smallest"].mean(axis=1) / np.log(10)):
        hollow = "none" if index >= len(style.ORDER) else "full"
        smallest.plot(lengths, row, label=names[index], fillstyle=hollow, **style.cycle(index))
    smallest.plot(lengths, -data["uniform"] / np.log(10), color=style.colour("theory"), label="uniform")
    for name, eps in EPS.items():
        style.reference(smallest, y=float(-np.log10(eps)), text=f"ε of {name}")
    smallest.set_xlim(0.8 * lengths[0], 3.5 * lengths[-1])  # the names of the guides stand on the right

    fall, error = _rates(data)
    rate.errorbar(gammas, fall, 2 * error, linestyle="none", label="layers", marker=style.MARKERS[0],
                  color=style.cycle(0)["color"])  # fmt: skip
    rate.plot(gammas, data["predicted"], color=style.colour("theory"), label="Λ(γ), normal sums")
    rate.plot(gammas, gammas**2, color=style.colour("reference"), linestyle="--", label="γ²")
    for index, name in enumerate(EPS):
        for kind, dash in zip(data["seen"][:3], ("-", "--", ":"), strict=True):
            share = data["rank"][list(data["seen"]).index(kind)].mean(axis=0)[:, index]
            rank.plot(lengths, share, linestyle=dash, marker="o", color=style.cycle(index)["color"],
                      label=f"{name}: {kind}")  # fmt: skip
    style.panel(smallest, "n, tokens", "−log₁₀ σ_min, digits (means)", "Smallest singular value", log="xy", base=2,
                legend="below", columns=3)  # fmt: skip
    style.panel(rate, "γ, standard deviation of scores", "−Δ log σ_min per token (nats)", "Softmax: the rate in n",
                log="xy", legend="below", columns=2)  # fmt: skip
    rate.set_xticks(gammas, [f"{gamma:g}" for gamma in gammas])
    rate.minorticks_off()
    style.panel(rank, "n, tokens", "singular values above ε σ_max, over n", "Rank that floating point sees",
                log="x", base=2, legend="below", columns=2)  # fmt: skip
    return drawing


def _rates(data: Mapping[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean fall of log σ_min per token over the last doubling of n, softmax by γ, with its standard error."""
    chosen, lengths = data["smallest"][: data["gammas"].size], data["lengths"]
    fall = (chosen[..., -2] - chosen[..., -1]) / (lengths[-1] - lengths[-2])
    return fall.mean(axis=1), fall.std(axis=1, ddof=1) / np.sqrt(fall.shape[1])


def _smallest(data: Mapping[str, np.ndarray]) -> Measured:
    """The smallest singular value over all matrices, by kind with a positive diagonal."""
    least, diagonal = np.exp(data["smallest"].min(axis=(1, 2))), data["diagonal"].min(axis=1)
    return Measured(
        least,
        where=[str(name) for name in data["names"]][: least.size],
        reads=[data["smallest"], data["diagonal"]],
        numbers={"diagonal": diagonal[:-1].min(), "relu_diagonal": diagonal[-1]},
    )


def uniform_term(n: int) -> float:
    """(2nσ − 1) n^(2/3) for the smallest singular value σ of uniform rows, whose inverse B has two diagonals.

    B has i on the diagonal and 1 − i before it, in row i from 1, and σ^(−2) is the largest eigenvalue of B Bᵀ.
    """
    i = np.arange(1.0, n + 1)
    diagonal, beside = i**2 + (i - 1) ** 2, -(i[1:] - 1) * i[:-1]
    top = linalg.eigh_tridiagonal(diagonal, beside, eigvals_only=True, select="i", select_range=(n - 1, n - 1))[0]
    return float((2 * n / np.sqrt(top) - 1) * n ** (2 / 3))


def _decay_over_limit(data: Mapping[str, np.ndarray]) -> Measured:
    """The smallest singular value of decays over its limit, at the largest n."""
    limit = np.asarray(forms.decay_smallest_singular_value(np.array(RATES)))
    decays = [list(data["names"]).index(f"decay {rate:g}") for rate in RATES]
    return Measured(
        np.exp(data["smallest"][decays, :, -1].mean(axis=1)) / limit,
        where=[f"λ = {rate:g}" for rate in RATES],
        numbers={"tokens": data["lengths"][-1]},
    )


form = functools.partial(law, proof="derived", place="docs/weights.md", neighbours=["viswanath1998"])
ROWS = (
    published(
        "rank-full",
        "A causal mask leaves an attention matrix that cannot lose rank.",
        _smallest,
        at_least(float(np.finfo(float).tiny)),
        formula=True,
        source="su2023concentrate",
        place="introduction",
        hypotheses="softmax, decay and linear attention with positive features, which are positive on the diagonal",
        interval_from=r"full rank is $\sigma_{\min}\gt0$; the least normal number of float64",
        note=r"smallest $\sigma_{\min}$; $p_{ii}\geq<diagonal:.1g>$, and the determinant is $\prod p_{ii}$; "
        r"$\mathrm{relu}^{2}$ of scores, which the source takes up later, has a least $p_{ii}$ of "
        "<relu_diagonal:.1g>; the source concludes that low rank alone cannot explain linear attention in decoders",
    ),
    form(
        "rank-uniform",
        r"The smallest singular value $\sigma$ of uniform causal attention, the Cesàro matrix, is "
        r"$(1+1.169\thinspace n^{-2/3})/(2n)$ to its next order.",
        lambda data: Measured(data["uniform_term"], numbers={"tokens": MANY}),
        near(AIRY / 2, 0.01),
        interval_from=r"our tolerance: twice $n^{-1/3}/2$, by which $n\to n+\frac{1}{2}$ changes it",
        note=r"$(2n\sigma-1)\thinspace n^{2/3}$ at $n=<tokens>$, by the inverse, which has two diagonals; WKB, not a "
        "proof; 1.169 is half of the first zero of Airy's function, 2.338",
    ),
    form(
        "rank-decay",
        r"The smallest singular value of causal attention with decay $\lambda$ tends to $(1-\lambda)/(1+\lambda)$ as "
        "$n$ grows.",
        _decay_over_limit,
        near(1, CLOSED),
        interval_from="our tolerance: 2 %",
        note="measured over limit at $n=<tokens>$; rows are those of a triangular Toeplitz matrix over their sums, "
        r"and the limit is the least modulus of its symbol $(1-\lambda)/(1-\lambda z)$ on $\lvert z\rvert=1$, a "
        "classical fact",
    ),
)
