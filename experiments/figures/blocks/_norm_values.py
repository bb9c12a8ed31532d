"""Networks for the figure `norm_values`, and what is measured of them: value matrices, equilibria, a trained model."""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from experiments.figures._medians import median_error
from experiments.lib import sentences
from rc_jax import attention, collapse, network, pretrained

NORMS = {"off": None, "on": "post"}
EPSILON = 1e-16  # of LayerNorm, so that an equilibrium is at rest to rounding


class Network(NamedTuple):
    """Parameters, tokens and specification."""

    params: network.LayerParams
    x: jax.Array
    spec: network.StackSpec


def values(key: jax.Array, depth: int, size: int, dtype: str) -> dict[str, jax.Array]:
    """W_V W_O of every layer, of the three kinds: (depth, size, size) each."""
    return {
        "identity": jnp.broadcast_to(jnp.eye(size, dtype=dtype), (depth, size, size)),
        "orthogonal": jax.random.orthogonal(jax.random.fold_in(key, 0), size, (depth,), dtype),
        "gaussian": jax.random.normal(jax.random.fold_in(key, 1), (depth, size, size), dtype) * size**-0.5,
    }


def with_values(params: network.LayerParams, matrices: jax.Array) -> network.LayerParams:
    """One head as wide as the tokens whose W_V W_O is the given matrix at every layer."""
    depth, size, _ = matrices.shape
    output = jnp.broadcast_to(jnp.eye(size, dtype=matrices.dtype), (depth, 1, size, size))
    return params._replace(attention=params.attention._replace(value=matrices[:, None], output=output))


def constant_layers(score: jax.Array, value: jax.Array, spec: network.StackSpec) -> network.LayerParams:
    """The same W_QK α and W_V W_O at every layer, one head; LayerNorm with scale 1 and shift 0."""
    size, dtype = score.shape[0], score.dtype
    eye = jnp.eye(size, dtype=dtype)
    weights = (score * size**0.5, eye, value, eye)
    query, key, own, output = (jnp.broadcast_to(weight, (spec.depth, 1, size, size)) for weight in weights)
    shape = (spec.depth, size)
    norm = network.NormParams(jnp.ones(shape, dtype), jnp.zeros(shape, dtype))
    return network.LayerParams(attention.AttentionParams(query, key, own, output), attention_norm=norm)


def centred_basis(size: int) -> np.ndarray:
    """An orthonormal basis of where LayerNorm puts tokens, entries that sum to 0: (size − 1, size)."""
    rows = np.arange(1, size)[:, None]
    columns = np.arange(size)[None]
    basis = np.where(columns < rows, 1.0, np.where(columns == rows, -rows, 0.0))
    return basis / np.sqrt(rows * (rows + 1.0))


def cross_polytope(rank: int, size: int, depth: int, strength: float, dtype: str) -> Network:
    """Tokens ±√d u_k, k = 1 … rank: at rest in full attention with W_V W_O = I and W_QK α = strength/d · I.

    There are 2(d − 1) tokens whatever the rank; below the full one they come several to a corner.
    """
    layer = attention.AttentionSpec(d_model=size)
    spec = network.StackSpec(attention=layer, depth=depth, norm="post", norm_epsilon=EPSILON)
    corners = np.sqrt(size) * centred_basis(size)[np.arange(size - 1) % rank]
    x = jnp.asarray(np.concatenate([corners, -corners]), dtype)
    eye = jnp.eye(size, dtype=dtype)
    return Network(constant_layers(strength / size * eye, eye, spec), x, spec)


def shear(angles: jax.Array, slope: float, depth: int, dtype: str) -> Network:
    """Causal uniform attention on a circle, W_V W_O: u₁ → u₁, u₂ → u₂ + slope·u₁; the first token is √d u₁."""
    layer = attention.AttentionSpec(d_model=3, causal=True)
    spec = network.StackSpec(attention=layer, depth=depth, norm="post", norm_epsilon=EPSILON)
    basis = jnp.asarray(centred_basis(3), dtype)
    matrix = jnp.asarray([[1.0, 0.0], [slope, 1.0]], dtype)
    value = jnp.matmul(basis.T, jnp.matmul(matrix, basis, precision="highest"), precision="highest")
    angles = jnp.concatenate([jnp.zeros(1, dtype), angles.astype(dtype)])
    circle = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)
    x = jnp.asarray(3**0.5, dtype) * jnp.matmul(circle, basis, precision="highest")
    return Network(constant_layers(jnp.zeros((3, 3), dtype), value, spec), x, spec)


def packaged(
    texts: int, tokens: int, dtype: str, key: jax.Array | None = None
) -> tuple[network.LayerParams, jax.Array, network.StackSpec] | None:
    """The packaged checkpoint without skips and MLPs, and the embeddings of texts; None without it or without texts.

    With a key its weights are random, as BERT is initialised.
    """
    folder = pretrained.packaged_checkpoint() if texts else None
    if folder is None:
        return None
    model = pretrained.load(folder, dtype=dtype)
    if key is not None:
        model = pretrained.random_like(key, model)
    x = jax.vmap(model.embed)(jnp.asarray(sentences.token_ids(model, texts, tokens)))
    return model.params, x, dataclasses.replace(model.spec, skip=False, mlp=None)


def residuals(
    params: network.LayerParams, x: jax.Array, stack: network.StackSpec, scale: jax.Array | None = None
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """By layer: log ‖res‖/‖X‖ and log ‖res‖, exact however small, and the tokens."""
    logs = collapse.log_residuals(params, x, stack, scale=scale)
    states = network.hidden_states(params, x, stack, scale=scale)
    return logs - jnp.log(jax.vmap(collapse.frobenius)(states)), logs, states


def divisors(params: network.LayerParams, states: jax.Array, stack: network.StackSpec) -> jax.Array:
    """Log max/min over the tokens of what LayerNorm divides (or would divide) them by, at every layer."""
    attend = functools.partial(attention.attend, spec=stack.attention)
    spread = jnp.std(jax.vmap(attend)(params.attention, states[:-1]), axis=-1)
    return jnp.log(jnp.max(spread, axis=1) / jnp.min(spread, axis=1))


def ratio(part: jax.Array, whole: jax.Array) -> np.ndarray:
    return np.asarray(collapse.frobenius(part) / collapse.frobenius(whole))


def polytopes(key: jax.Array, size: int, depth: int, dtype: str) -> dict[str, np.ndarray]:
    """Cross-polytopes of every rank: how far one layer moves them, and what is left after a push of one thousandth."""
    ranks = np.unique([1, 2, size // 4, size // 2, size - 1])
    moved, pushed = [], []
    for index, rank in enumerate(ranks):
        net = cross_polytope(int(rank), size, depth, 1.0, dtype)
        moved.append(ratio(network.hidden_states(net.params, net.x, net.spec)[1] - net.x, net.x))
        push = 1e-3 * jax.random.normal(jax.random.fold_in(key, index), net.x.shape, dtype)
        last = network.hidden_states(net.params, net.x + push, net.spec)[-1]
        pushed.append(ratio(collapse.residual(last), last))
    return {"ranks": ranks, "polytope_moved": np.asarray(moved), "polytope_pushed": np.asarray(pushed)}


def common_push(strengths: tuple[float, ...], size: int) -> dict[str, np.ndarray]:
    """Growth in one layer of a push that all tokens share, outside the span of a cross-polytope: (strength, rank)."""
    basis, ranks, small = centred_basis(size), np.array([1, 2, size // 4, size - 2]), 1e-5
    growth = np.empty((len(strengths), len(ranks)))
    for i, strength in enumerate(strengths):
        net = cross_polytope(1, size, 1, strength, "float64")  # its weights do not depend on the rank
        for j, rank in enumerate(ranks):
            corners = np.sqrt(size) * basis[:rank]
            x = jnp.asarray(np.concatenate([corners, -corners]) + small * basis[rank])
            growth[i, j] = np.asarray(network.apply(net.params, x, net.spec) @ basis[rank]).mean() / small
    return {"push_ranks": ranks, "push_growth": growth}


def on_texts(texts: int, tokens: int, dtype: str, seed: int, levels: tuple[float, ...]) -> dict[str, np.ndarray]:
    """Quantiles over texts of log ‖res‖/‖X‖ for the packaged checkpoint, with LayerNorm also with random weights."""
    trained = packaged(texts, tokens, dtype)
    random = packaged(texts, tokens, dtype, jax.random.key(seed))
    data = {f"{name}_on": np.full((3, 7), np.nan) for name in ("trained_relative", "initial_relative")}
    data |= {"trained_relative_off": np.full((3, 7), np.nan), "initial_relative_on_error": np.full(7, np.nan)}
    data |= {f"trained_exponent_{name}": np.full(1, np.nan) for name in NORMS}
    if trained is None or random is None:
        return data
    # The same attention without and with LayerNorm, and random weights with it.
    cases = (("trained", "off", trained), ("trained", "on", trained), ("initial", "on", random))
    for kind, name, (params, x, stack) in cases:
        one = dataclasses.replace(stack, norm=NORMS[name])
        measure = jax.jit(lambda params, x, one=one: jax.lax.map(lambda text: residuals(params, text, one)[:2], x))
        relative, logs = (np.asarray(each) for each in measure(params, x))
        data[f"{kind}_relative_{name}"] = np.quantile(relative, levels, axis=0)
        if kind == "initial":
            data["initial_relative_on_error"] = median_error(relative)
        else:
            falls = np.diff(logs, axis=1)
            data[f"trained_exponent_{name}"] = falls[:, -1] / falls[:, -2]
    return data
