"""Rows of weights for the figure `sparsity_kernels`: keys drawn directly, random attention layers, features."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array
from numpy.typing import ArrayLike
from scipy import special

from experiments.figures._samples import draw
from experiments.lib import figure
from rc_jax import attention, sparsity

RELU, IDENTITY, EXP = 0, 1, 2
# Direct draws: (kernel, β/γ, γ)
_DRAWN = (
    *((EXP, 0.0, gamma) for gamma in (0.25, 0.5, 0.75, 1.0, 1.25)),
    *((RELU, 0.0, gamma) for gamma in (0.5, 1.0, 2.0, 3.0)),
    *((RELU, -1.0, gamma) for gamma in (0.5, 1.0, 2.0, 3.0)),
    *((RELU, -2.0, gamma) for gamma in (0.5, 1.0, 2.0, 3.0)),
    *((RELU, ratio, 1.0) for ratio in (-3.0, 1.0, 2.0, 4.0)),
    *((IDENTITY, 0.0, gamma) for gamma in (0.5, 1.0, 2.0, 3.0)),
    *((IDENTITY, ratio, 1.0) for ratio in (-4.0, -2.0, -1.0, 1.0, 2.0, 4.0)),
)
KERNEL, RATIO, SPREAD = np.array(_DRAWN).T
KERNELS = ("exp", "relu²", "identity")  # of the queries that share β and γ
QUERIES, BETA, GAMMA = 4, -0.5, 0.8
GAMMA_EDGES = np.linspace(0.2, 1.4, 7)
RATIO_EDGES = np.linspace(-1.25, 1.75, 13)
UNEVENNESS = (0.0, 0.5, 1.0, 1.5, 2.5, 4.0, 8.0, 60.0)
DENSITIES = (1.0, 0.2)  # fraction of features that are not zero: σ̃/μ̃ = √(2/density − 1) = 1 and 3
FEATURE_SPREAD = tuple(math.sqrt(2 / density - 1) for density in DENSITIES)


class Spec(figure.Spec):
    """Sizes of the direct draws and of the random layers."""

    draws: int = 2**20
    sharp_draws: int = 2**24  # of exp for γ > 1, whose rare large weights make S
    key_width: int = 4
    initialisations: int = 1024
    rows: int = 64
    tokens: int = 256
    d_model: int = 64
    heads: int = 4
    token_mean: float = 0.8
    features: int = 64
    feature_draws: int = 2**16
    row_tokens: tuple[int, ...] = (16, 64, 256)
    decays: tuple[float, ...] = (0.5, 0.9, 0.99, 1.0)
    decay_tokens: tuple[int, ...] = (4, 16, 64, 256, 1024)
    isotropy_draws: int = 2**18


def _estimate(sums: np.ndarray, count: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """S and its standard error (delta method) from sums of |a|, a², |a|³ and a⁴ on the last axis."""
    first, second, third, fourth = np.moveaxis(sums, -1, 0) / np.asarray(count)
    value = first / np.sqrt(second)
    spread = second / first**2 - third / (first * second) + fourth / (4 * second**2) - 0.25
    return value, value * np.sqrt(np.maximum(spread, 0) / count)


def _exp_error(gamma: np.ndarray, count: np.ndarray) -> np.ndarray:
    """Standard error of S over S for a = e^{γε} by the delta method, from its exact moments E aᵖ = e^{p²γ²/2}.

    Samples miss the largest weights that its fourth moment consists of, so that they say too little.
    """
    square = gamma**2
    return np.sqrt((np.exp(square) - np.exp(2 * square) + np.exp(4 * square) / 4 - 0.25) / count)


def _powers(a: Array) -> Array:
    return jnp.stack([jnp.sum(jnp.abs(a) ** power) for power in range(1, 5)])


@functools.partial(jax.jit, static_argnames=("blocks", "size", "width", "dtype"))
def _draw_keys(
    key: Array, kernel: Array, ratio: Array, gamma: Array, *, blocks: int, size: int, width: int, dtype: str
) -> Array:
    """Sums of powers of f(q·k) over keys k ~ N(μ, σ²I), for a random q and a μ with q·μ = β and σ‖q‖ = γ."""
    q = jax.random.normal(jax.random.fold_in(key, blocks), (width,), dtype)
    length = jnp.linalg.norm(q)
    mean, sigma = ratio * gamma * q / length**2, gamma / length

    def block(index: Array) -> Array:
        keys = mean[None] + sigma * jax.random.normal(jax.random.fold_in(key, index), (size, width), dtype)
        kernels = (lambda s: jax.nn.relu(s) ** 2, lambda s: s, jnp.exp)
        return _powers(lax.switch(kernel, kernels, jnp.matmul(keys, q, precision="highest")))

    return lax.map(block, jnp.arange(blocks))


def direct(key: Array, spec: Spec) -> dict[str, np.ndarray]:
    """S from keys drawn directly, for every kernel, β/γ and γ, and the closed form there."""
    counts = np.where((KERNEL == EXP) & (SPREAD > 1), spec.sharp_draws, spec.draws)
    size = min(spec.draws, 2**14)
    draw = functools.partial(_draw_keys, size=size, width=spec.key_width, dtype=spec.dtype)
    sums = []
    ratio, gamma = (jnp.asarray(each, spec.dtype) for each in (RATIO, SPREAD))
    for index, kernel in enumerate(KERNEL.astype(int)):
        own, blocks = jax.random.fold_in(key, index), int(counts[index]) // size
        batch = draw(own, jnp.asarray(kernel), ratio[index], gamma[index], blocks=blocks)
        sums.append(np.asarray(batch, float).sum(0))
    value, error = _estimate(np.array(sums), counts)
    lines = (sparsity.relu_squared(ratio, 1.0), sparsity.identity(ratio, 1.0), sparsity.exponential(gamma))
    theory = np.choose(KERNEL.astype(int), [np.asarray(line, float) for line in lines])
    error = np.where(KERNEL == EXP, theory * _exp_error(SPREAD, counts), error)
    return {"direct": value, "direct_se": error, "direct_theory": theory}


def _layer(key: Array, *, spec: Spec) -> dict[str, dict[str, Array]]:
    """One random layer: S of `spec.rows` of its rows under three kernels, summed over bins of γ or of β/γ.

    With tokens x ~ N(m, I) the scores of row i with the other tokens are independent N(u·m, |u|²), u = α W_K W_Qᵀ x_i.
    """
    layer: Any = functools.partial(attention.AttentionSpec, d_model=spec.d_model, heads=spec.heads)
    params = attention.init(jax.random.fold_in(key, 0), layer(), dtype=spec.dtype)
    noise = jax.random.normal(jax.random.fold_in(key, 1), (spec.tokens, spec.d_model), spec.dtype)
    x, width = spec.token_mean + noise, layer().head_width
    scale = jnp.linspace(0.25, 1, spec.heads, dtype=spec.dtype) / width**0.5  # one γ for each head
    # The law of a row of scores given its query: deviation γ = |u| and mean β = u·m. These sort rows into bins.
    u = jnp.einsum("hdk,hek,ie->hid", params.key, params.query, x[: spec.rows], precision="highest")
    u *= scale[:, None, None]
    gamma, beta = jnp.linalg.norm(u, axis=-1), spec.token_mean * jnp.sum(u, axis=-1)
    sums = {}
    for name, at, edges in (
        ("relu_squared", beta / gamma, RATIO_EDGES),
        ("identity", beta / gamma, RATIO_EDGES),
        ("softmax", gamma, GAMMA_EDGES),
    ):
        weights = attention.attention_weights(params, x, layer(weights=name), scale=scale)
        s = sparsity.sparsity(weights[:, : spec.rows])
        # Rows on a new last axis of bins.
        walls = jnp.asarray(edges, at.dtype)[None, None]
        inside = ((at[..., None] >= walls[..., :-1]) & (at[..., None] < walls[..., 1:])).astype(at.dtype)
        parts = {"count": jnp.ones_like(at), "at": at, "measured": s, "square": s * s}
        sums[name] = {part: jnp.einsum("hi,hib->b", value, inside) for part, value in parts.items()}
    return sums


def layers(key: Array, spec: Spec) -> dict[str, np.ndarray]:
    """Mean S of the rows of random layers in each bin with its standard error, and the mean γ or β/γ there."""
    drawn = draw(functools.partial(_layer, spec=spec), key, spec.initialisations)
    data = {}
    for name, mean in drawn.mean.items():
        rows = mean["count"] * spec.initialisations
        at, measured, square = (mean[part] / np.maximum(mean["count"], 1e-12) for part in ("at", "measured", "square"))
        data[f"{name}_at"], data[f"{name}_measured"] = (np.where(rows >= 50, each, np.nan) for each in (at, measured))
        data[f"{name}_se"] = np.sqrt(np.maximum(square - measured**2, 0) / np.maximum(rows, 1))
    return data


def linear_rows(key: Array, spec: Spec) -> dict[str, np.ndarray]:
    """Mean S of rows of random layers with features elu + 1, for each number of tokens."""
    layer = attention.AttentionSpec(d_model=spec.d_model, heads=spec.heads, weights="linear")

    def mean_sparsity(key: Array, tokens: int) -> Array:
        params = attention.init(jax.random.fold_in(key, 0), layer, dtype=spec.dtype)
        x = jax.random.normal(jax.random.fold_in(key, 1), (tokens, spec.d_model), spec.dtype)
        return jnp.mean(sparsity.sparsity(attention.attention_weights(params, x, layer)))

    drawn = [
        draw(functools.partial(mean_sparsity, tokens=tokens), jax.random.fold_in(key, index),
             max(2, spec.initialisations // 8))
        for index, tokens in enumerate(spec.row_tokens)
    ]  # fmt: skip
    means, errors = (np.array([getattr(each, name) for each in drawn]) for name in ("mean", "standard_error"))
    return {"linear_measured": means, "linear_se": errors, "linear_n": np.array(spec.row_tokens)}


def decay_rows(spec: Spec) -> dict[str, np.ndarray]:
    """S of the last row of a causal decaying layer; it is blind to the tokens and to the other parameters."""
    layer = attention.AttentionSpec(d_model=spec.heads, heads=len(spec.decays), d_head=1, weights="decay", causal=True)
    lam = jnp.asarray(spec.decays, spec.dtype)
    params = attention.init(jax.random.key(spec.seed), layer, dtype=spec.dtype).with_parts(decay=lam)
    tokens = [jnp.ones((n, spec.heads), spec.dtype) for n in spec.decay_tokens]
    rows = [attention.attention_weights(params, x, layer)[:, -1] for x in tokens]
    return {
        "decay_lam": np.asarray(spec.decays),
        "decay_n": np.asarray(spec.decay_tokens),
        "decay_measured": np.stack([np.asarray(sparsity.sparsity(row), float) for row in rows], axis=1),
    }


def features(key: Array, spec: Spec) -> dict[str, np.ndarray]:
    """Linear attention with independent features, for queries from even to a single feature."""
    shape = jnp.sort(jax.random.exponential(jax.random.fold_in(key, 0), (spec.features,), spec.dtype))
    q = jnp.exp(jnp.asarray(UNEVENNESS, spec.dtype)[:, None] * (shape - shape[-1])[None])
    # Features are 0 but for a share of them, and exponential there.
    values, errors = [], []
    for index, density in enumerate(DENSITIES):
        roles = [jax.random.fold_in(jax.random.fold_in(key, 1 + index), role) for role in range(2)]
        size = (spec.feature_draws, spec.features)
        features = jax.random.exponential(roles[0], size, spec.dtype)
        features *= jax.random.bernoulli(roles[1], density, size).astype(spec.dtype)
        sums = jax.vmap(_powers)(jnp.matmul(q, features.T, precision="highest"))
        value, error = _estimate(np.asarray(sums, float), spec.feature_draws)
        values.append(value)
        errors.append(error)
    spread = jnp.asarray(FEATURE_SPREAD, spec.dtype)[:, None]
    return {
        "norm_ratio": np.asarray(sparsity.norm_ratio(q), float),
        "norm_share": np.asarray(sparsity.norm_ratio(q), float).max() / spec.features**0.5,
        "features_measured": np.array(values),
        "features_se": np.array(errors),
        "features_theory": np.stack([np.asarray(sparsity.nonnegative_linear_iid(q, 1.0, s[0]), float) for s in spread]),
    }


def isotropy(spec: Spec) -> dict[str, np.ndarray]:
    """S by kernel for queries and keys that differ in all but β = q·μ and γ = σ‖q‖: (kernel, query)."""
    rng = np.random.default_rng(spec.seed)
    values, errors = np.zeros((2, len(KERNELS), QUERIES))
    # A query of any direction and length; a mean with the same q·μ and any part across q.
    for index in range(QUERIES):
        q, aside = rng.normal(size=(2, 2 * spec.key_width))
        q *= 2.0**index
        aside -= q * (aside @ q) / (q @ q)
        mean, sigma = BETA * q / (q @ q) + aside, GAMMA / np.linalg.norm(q)
        scores = (mean + sigma * rng.normal(size=(spec.isotropy_draws, q.size))) @ q
        for kernel, a in enumerate((np.exp(scores), np.maximum(scores, 0) ** 2, np.abs(scores))):
            sums = np.array([np.sum(a**power) for power in range(1, 5)])
            values[kernel, index], errors[kernel, index] = _estimate(sums, a.size)
    forms = (np.exp(-(GAMMA**2) / 2), _printed_relu_squared(BETA, GAMMA), _printed_identity(BETA, GAMMA))
    return {"isotropy": values, "isotropy_se": errors, "isotropy_theory": np.array(forms)}


def printed() -> dict[str, np.ndarray]:
    """The closed forms of relu² and of the identity as printed, and the ratios of the two integrals, by β/γ at γ = ¾.

    Beyond β/γ = −4 the printed form of relu² loses its digits.
    """
    ratio, gamma = np.linspace(-4, 4, 17), 0.75
    nodes, weights = np.polynomial.legendre.leggauss(200)
    columns = {"form_ratio": ratio}
    integrals = np.zeros((2, ratio.size))
    for at, r in enumerate(ratio):
        a, b = np.clip([[-12.0, -r], [-r, 12.0]], -12, 12).T  # split at the kink
        e = (a + b)[:, None] / 2 + (b - a)[:, None] / 2 * nodes
        density = (b - a)[:, None] / 2 * weights * np.exp(-e * e / 2) / math.sqrt(2 * math.pi)
        for kernel, f in enumerate((np.maximum(gamma * (r + e), 0) ** 2, np.abs(gamma * (r + e)))):
            integrals[kernel, at] = np.sum(f * density) / np.sqrt(np.sum(f * f * density))
    columns |= {"form_relu2": _printed_relu_squared(ratio * gamma, gamma)}
    columns |= {"form_identity": _printed_identity(ratio * gamma, gamma)}
    return columns | {"form_relu2_integrals": integrals[0], "form_identity_integrals": integrals[1]}


def _printed_relu_squared(beta: ArrayLike, gamma: float) -> np.ndarray:
    b, g = np.asarray(beta, float), gamma
    bell, above = np.exp(-(b**2) / (2 * g**2)), special.erf(b / (math.sqrt(2) * g)) + 1
    top = bell * (math.sqrt(2) * b * g + math.sqrt(math.pi) / bell * (b**2 + g**2) * above)
    square = 2 * math.sqrt(2) * b * g * bell * (b**2 + 5 * g**2)
    square = square + 2 * math.sqrt(math.pi) * (b**4 + 6 * b**2 * g**2 + 3 * g**4) * above
    return top / (math.pi**0.25 * np.sqrt(square))


def _printed_identity(beta: ArrayLike, gamma: float) -> np.ndarray:
    b, g = np.asarray(beta, float), gamma
    bell = math.sqrt(2 / math.pi) * g * np.exp(-(b**2) / (2 * g**2))
    return (bell + b * special.erf(b / (math.sqrt(2) * g))) / np.sqrt(b**2 + g**2)
