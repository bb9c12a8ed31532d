"""Attention in time and memory linear in the number of tokens: sums of features, and Linformer's pooled tokens."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float

from rc_jax._numerics import arguments
from rc_jax._numerics.dtypes import working_dtype
from rc_jax.attention.kinds.decays import FEATURES
from rc_jax.attention.layer import from_heads
from rc_jax.attention.parameters import project, queries_and_keys
from rc_jax.attention.specification import AttentionParams, AttentionSpec, check_layer


@arguments.guard(x=arguments.float_array("token", "feature", token=1))
def linear_attend(
    params: AttentionParams, x: Float[Array, "token feature"], spec: AttentionSpec, *, chunk: int = 128
) -> Float[Array, "token feature"]:
    """The result of `attend` for `weights="linear"`, from sums over tokens and never from pairs of them.

    Row i is φ(q_i)·S / φ(q_i)·z with S = Σ_j φ(k_j) v_jᵀ and z = Σ_j φ(k_j): 2 n d d_head multiplications in the place
    of 2 n² d. Causal sums run over j ≤ i: S is carried from one run of `chunk` tokens to the next, and within a
    run pairs are multiplied, in n/chunk steps and 2 n d (d_head + chunk) multiplications. A logit scale would drop out.

    Sums are taken in float32 at least; those of `feature_map="exp"` relative to their largest term, whatever its size.

    Args:
        params: of one layer.
        x: tokens.
        spec: the layer, with `weights="linear"`; any `feature_map`, with or without `causal`, `bias` and `output_gate`.
        chunk: tokens in a run, where the layer is causal; changes roundings only.

    Raises:
        ValueError: other weights, a `window`, `top_k` or `rank`.

    Source: Katharopoulos et al. 2020, "Transformers are RNNs", sections 3.2 and 3.3.

    Example:
        >>> from rc_jax import attention
        >>> spec = attention.AttentionSpec(d_model=8, heads=2, weights="linear", causal=True)
        >>> params = attention.init(jax.random.key(0), spec)
        >>> x = jax.random.normal(jax.random.key(1), (5, 8))
        >>> bool(jnp.allclose(linear_attend(params, x, spec, chunk=2), attention.attend(params, x, spec), atol=1e-5))
        True
    """
    if spec.weights != "linear":
        raise ValueError(f"`weights` must be 'linear' for sums in the place of pairs, got {spec.weights!r}")
    for name in ("window", "top_k", "rank"):
        if (given := getattr(spec, name)) is not None:
            raise ValueError(f"`{name}` must be None for sums in the place of pairs, got {given!r}")
    check_layer(params, x, spec)
    return _linear_attend(params, x, spec, min(chunk, x.shape[0]))


@functools.partial(jax.jit, static_argnames=("spec", "chunk"))
def _linear_attend(params: AttentionParams, x: Array, spec: AttentionSpec, chunk: int) -> Array:
    query, key = queries_and_keys(params, x, spec)
    value = project(x, params.value, params.value_bias if spec.bias else None, spec)
    # A last column of ones collects the sum of each row.
    value = jnp.concatenate([value, jnp.ones_like(value[..., :1])], axis=-1)
    query, key, value = (rows.astype(working_dtype(x.dtype)) for rows in (query, key, value))  # sums are long
    # Sums of exponentials are taken relative to the largest, so no power of e is above 1.
    summed = _sums_of_exponentials if spec.feature_map == "exp" else _sums_of_features
    mixed = summed(query, key, value, spec, chunk if spec.causal else None)
    total = mixed[..., -1:]
    return from_heads((mixed[..., :-1] / jnp.where(total > 0, total, 1)).astype(x.dtype), params, x, spec)


def _sums_of_features(query: Array, key: Array, value: Array, spec: AttentionSpec, chunk: int | None) -> Array:
    """Σ_j φ(q_i)·φ(k_j) v_j over all j, or over j ≤ i run by run."""
    # All tokens: one sum of φ(k_j) v_jᵀ. Causal: pairs within a run, and the sum over all runs before.
    product = functools.partial(jnp.einsum, precision=spec.precision)
    query, key = FEATURES[spec.feature_map](query), FEATURES[spec.feature_map](key)
    if chunk is None:
        return product("hik,hkv->hiv", query, product("hjk,hjv->hkv", key, value))

    def step(state: Array, run: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        q, k, v = run
        pairs = jnp.tril(product("hik,hjk->hij", q, k))
        out = product("hij,hjv->hiv", pairs, v) + product("hik,hkv->hiv", q, state)
        return state + product("hjk,hjv->hkv", k, v), out

    empty = jnp.zeros((key.shape[0], key.shape[-1], value.shape[-1]), value.dtype)
    return _by_runs(step, empty, (query, key, value), chunk)


def _sums_of_exponentials(query: Array, key: Array, value: Array, spec: AttentionSpec, chunk: int | None) -> Array:
    """The same for φ = exp, each row divided by a number of its own, which drops out over the row sum."""
    product = functools.partial(jnp.einsum, precision=spec.precision)
    if chunk is None:
        features, top = _from_largest(key, axis=1)
        state = product("hjk,hjv->hkv", features, value)
        return product("hik,hkv->hiv", _from_largest(query + top)[0], state)

    # In runs of tokens: the state holds Σ_j e^{k_j} v_jᵀ over all earlier runs, each channel divided by e^{largest k}.
    # Where a later run raises that maximum the state is multiplied by the ratio, so nothing overflows (online softmax).
    def step(carried: tuple[Array, Array], run: tuple[Array, Array, Array]) -> tuple[tuple[Array, Array], Array]:
        # Sums over the runs before, where `largest` is each channel's largest key, and pairs within this run.
        largest, state = carried
        q, k, v = run
        before, before_top = _from_largest(q + largest)
        logs = jax.nn.logsumexp(q[:, :, None] + k[:, None], axis=-1)
        within, within_top = _from_largest(jnp.where(jnp.tri(q.shape[1], dtype=bool)[None], logs, -jnp.inf))
        # Both parts relative to the larger of their tops, then the sums with this run in them.
        top = jnp.maximum(before_top, within_top)
        out = jnp.exp(before_top - top) * product("hik,hkv->hiv", before, state)
        out = out + jnp.exp(within_top - top) * product("hij,hjv->hiv", within, v)
        raised = jnp.maximum(largest, jax.lax.stop_gradient(jnp.max(k, axis=1, keepdims=True)))
        sums = product("hjk,hjv->hkv", jnp.exp(k - raised), v)
        return (raised, jnp.swapaxes(jnp.exp(largest - raised), 1, 2) * state + sums), out

    heads, _, width = key.shape
    lowest = jnp.full((heads, 1, width), jnp.finfo(key.dtype).min / 8, key.dtype)
    empty = jnp.zeros((heads, width, value.shape[-1]), value.dtype)
    return _by_runs(step, (lowest, empty), (query, key, value), chunk)


def _from_largest(logs: Array, axis: int = -1) -> tuple[Array, Array]:
    """e^(logs − top) and top, the largest along an axis."""
    top = jax.lax.stop_gradient(jnp.max(logs, axis=axis, keepdims=True))
    return jnp.exp(logs - top), top


def _by_runs(step: Callable[..., tuple[Any, Array]], state: Any, rows: tuple[Array, ...], chunk: int) -> Array:
    """Scan `step` over runs of `chunk` rows, the last one filled up with zeros."""
    heads, n, _ = rows[0].shape
    count = -(-n // chunk)

    def runs(array: Array) -> Array:
        array = jnp.pad(array, ((0, 0), (0, count * chunk - n), (0, 0)))
        return jnp.moveaxis(jnp.reshape(array, (heads, count, chunk, array.shape[-1])), 1, 0)

    out = jax.lax.scan(step, state, tuple(map(runs, rows)))[1]
    return jnp.reshape(jnp.moveaxis(out, 0, 1), (heads, count * chunk, out.shape[-1]))[:, :n]


@arguments.guard()
def average_pool(tokens: int, rank: int, *, dtype: DTypeLike | None = None) -> Float[Array, "rank token"]:
    """E that averages runs of neighbouring tokens, as equal in length as they can be; its rows sum to 1.

    Row r is the mean over the tokens j with ⌊j·rank/tokens⌋ = r. With such an E every row of P E sums to 1, as a
    row-stochastic matrix must; Linformer's learned E has no such constraint.

    Args:
        tokens: number of tokens n.
        rank: number of runs, at most n.
        dtype: of the result; JAX's default floating type where it is not given.

    Source: Wang et al. 2020, "Linformer", section 4, "general projections" (mean pooling).

    Example:
        >>> average_pool(4, 2).tolist()
        [[0.5, 0.5, 0.0, 0.0], [0.0, 0.0, 0.5, 0.5]]
    """
    if rank > tokens:
        raise ValueError(f"`rank` must be at most tokens={tokens}, got {rank}")
    run = jnp.arange(tokens) * rank // tokens
    member = (run[None, :] == jnp.arange(rank)[:, None]).astype(dtype if dtype is not None else float)
    return member / jnp.sum(member, axis=1, keepdims=True)
