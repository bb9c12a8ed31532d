"""Linear attention without the matrix of weights: sums over tokens first, in time and memory linear in their number."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rc_jax import _checks
from rc_jax.attention import weights as kernels
from rc_jax.attention.layer import project
from rc_jax.attention.spec import AttentionParams, AttentionSpec, check_layer


@_checks.guard(x=_checks.float_array("token", "feature", minimum={"token": 1}), chunk=_checks.integer(1))
def linear_attend(
    params: AttentionParams, x: Float[Array, "token feature"], spec: AttentionSpec, *, chunk: int = 128
) -> Float[Array, "token feature"]:
    """What `attend` computes for `weights="linear"`, from sums over tokens and never from pairs of them.

    Row i is φ(q_i)·S / φ(q_i)·z with S = Σ_j φ(k_j) v_jᵀ and z = Σ_j φ(k_j): 2 n d d_head multiplications in the place
    of 2 n² d. Causal sums run over j ≤ i: S is carried from one run of `chunk` tokens to the next, inside of which
    pairs are multiplied, in n/chunk steps and 2 n d (d_head + chunk) multiplications. A logit scale would drop out.

    Args:
        params: of one layer.
        x: tokens.
        spec: the layer, with `weights="linear"`; any `feature_map`, with or without `causal` and `bias`.
        chunk: tokens in a run, where the layer is causal; changes roundings only.

    Raises:
        ValueError: other weights, a `window`, `top_k` or `rank`, shapes that do not fit `spec`, or `chunk` below 1.
        TypeError: `x` is not floating-point, or its dtype differs from that of `params`.

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
        if (came := getattr(spec, name)) is not None:
            raise ValueError(f"`{name}` must be None for sums in the place of pairs, got {came!r}")
    check_layer(params, x, spec)
    return _linear_attend(params, x, spec, min(chunk, x.shape[0]))


@functools.partial(jax.jit, static_argnames=("spec", "chunk"))
def _linear_attend(params: AttentionParams, x: Array, spec: AttentionSpec, chunk: int) -> Array:
    query = project(x, params.query, params.query_bias if spec.bias else None, spec)
    key = project(x, params.key, params.key_bias if spec.bias else None, spec)
    value = project(x, params.value, params.value_bias if spec.bias else None, spec)
    if spec.feature_map == "exp":  # factors that a row's sum does not have, as in `attend`: no overflow
        query = query - jax.lax.stop_gradient(jnp.max(query, axis=-1, keepdims=True))
        key = key - jax.lax.stop_gradient(jnp.max(key, axis=(-2, -1), keepdims=True))
    query, key = kernels.FEATURES[spec.feature_map](query), kernels.FEATURES[spec.feature_map](key)
    # A last column of ones: what stands in it is the row's sum.
    value = jnp.concatenate([value, jnp.ones_like(value[..., :1])], axis=-1)
    if spec.causal:
        mixed = _causal(query, key, value, spec, chunk)
    else:
        state = jnp.einsum("hjk,hjv->hkv", key, value, precision=spec.precision)
        mixed = jnp.einsum("hik,hkv->hiv", query, state, precision=spec.precision)
    total = mixed[..., -1:]
    mixed = mixed[..., :-1] / jnp.where(total > 0, total, 1)
    out = jnp.einsum("hik,hkd->id", mixed, params.output, precision=spec.precision)
    return out + params.output_bias[None] if spec.bias and params.output_bias is not None else out


def _causal(query: Array, key: Array, value: Array, spec: AttentionSpec, chunk: int) -> Array:
    """Σ_{j ≤ i} φ(q_i)·φ(k_j) v_j, run by run."""
    heads, n, _ = query.shape
    count = -(-n // chunk)

    def runs(rows: Array) -> Array:
        rows = jnp.pad(rows, ((0, 0), (0, count * chunk - n), (0, 0)))
        return jnp.moveaxis(jnp.reshape(rows, (heads, count, chunk, rows.shape[-1])), 1, 0)

    def step(state: Array, run: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        q, k, v = run
        pairs = jnp.tril(jnp.einsum("hik,hjk->hij", q, k, precision=spec.precision))
        out = jnp.einsum("hij,hjv->hiv", pairs, v, precision=spec.precision)
        out = out + jnp.einsum("hik,hkv->hiv", q, state, precision=spec.precision)
        return state + jnp.einsum("hjk,hjv->hkv", k, v, precision=spec.precision), out

    empty = jnp.zeros((heads, key.shape[-1], value.shape[-1]), value.dtype)
    out = jax.lax.scan(step, empty, (runs(query), runs(key), runs(value)))[1]
    return jnp.reshape(jnp.moveaxis(out, 0, 1), (heads, count * chunk, value.shape[-1]))[:, :n]
