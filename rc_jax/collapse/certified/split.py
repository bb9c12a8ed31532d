"""Softmax attention on tokens that are held as a mean and a difference, in ball arithmetic.

X = 1xᵀ + R. With logits α(x_i W_Q + b_Q)·(x_j W_K + b_K), the terms that are common to a row drop. What is left is
r_j + E_ij, r_j = α q̄·(R W_K)_j and E = α (R W_Q)(R W_K)ᵀ. With p = softmax(r) over what row i sees,
P_ij = p_j e^(u_ij), u_ij = E_ij − log(1 + Σ_k p_k (e^(E_ik) − 1)). Rows that see the same share p, and P − p is
p (e^u − 1), which cancels nothing (this package's own result).
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from rc_jax.attention import masks
from rc_jax.attention.layer import default_scale
from rc_jax.collapse.certified import pairs
from rc_jax.collapse.certified.balls import arb
from rc_jax.collapse.certified.program import LOWEST, ZERO, Values, exactly, matrix_product, subtract
from rc_jax.network import LayerParams, StackSpec


def covers(spec: StackSpec) -> bool:
    """Whether this form has all parts of the network."""
    layer = spec.attention
    plain = layer.rotary is None and layer.qk_norm is None and layer.soft_cap is None and layer.output_gate is None
    plain &= layer.top_k is None and layer.rank is None and layer.scale_law == "constant" and layer.scores == "dot"
    return plain and layer.weights == "softmax" and spec.mlp is None and spec.norm is None and spec.local is None


def centred(x: Values) -> tuple[Values, Values]:
    """The mean of the tokens, and the tokens less it; exactly 0 where all are equal."""
    gaps = np.frompyfunc(subtract, 2, 1)(x, x[:1])
    shift = gaps.sum(axis=0) / len(x)
    return x[0] + shift, gaps - shift


def square_of(difference: Values) -> Any:
    """‖R‖_F²."""
    return sum((entry * entry for entry in difference.ravel()), ZERO)


def log_of(square: Any) -> Any:
    """Log ‖R‖_F of its square."""
    return LOWEST if square == 0 else square.log() / 2


def squares(
    params: LayerParams, x: Array, spec: StackSpec, scale: ArrayLike | None, mask: Array | None, by_pairs: bool
) -> Iterator[Any]:
    """‖R‖_F² before the first layer and after each one; `by_pairs` holds the differences of every two tokens."""
    layer, n = spec.attention, x.shape[0]
    alpha = np.asarray(jnp.asarray(default_scale(layer) if scale is None else scale, x.dtype))
    alphas = exactly(np.broadcast_to(alpha, layer.heads))
    visible = masks.combine(n, causal_mask=layer.causal, radius=layer.window, extra=mask)
    seen = np.ones((n, n), bool) if visible is None else np.asarray(visible)
    tokens = exactly(x)
    # What all tokens have in common, or the tokens themselves, and what sets them apart.
    state, apart = (tokens, pairs.differences_of(tokens)) if by_pairs else centred(tokens)
    yield pairs.square_of(apart) if by_pairs else square_of(apart)
    for index in range(spec.depth):
        weights = jax.tree.map(lambda leaf, index=index: exactly(np.asarray(leaf)[index]), params.attention)
        attend = pairs.attend if by_pairs else _attend
        out, rest = attend(weights, state, apart, alphas, seen, layer.bias)
        state, apart = (state + out, apart + rest) if spec.skip else (out, rest)
        if by_pairs:
            yield pairs.square_of(apart)
        else:
            shift, apart = centred(apart)
            state = state + shift
            yield square_of(apart)


def _attend(
    weights: Any, mean: Values, rows: Values, alphas: Values, seen: Values, bias: bool
) -> tuple[Values, Values]:
    """The output of a layer as a part that is common to all tokens, and the rest."""
    common, rest = np.full(weights.output.shape[-1], ZERO, object), np.full(rows.shape, ZERO, object)
    for head in range(len(alphas)):
        query, key = (matrix_product(rows, getattr(weights, name)[head].T) for name in ("query", "key"))
        middle = alphas[head] * matrix_product(mean[None], weights.query[head].T)
        if bias:
            middle = middle + alphas[head] * weights.query_bias[head]
        level = matrix_product(middle, key)[0]
        gaps = alphas[head] * matrix_product(query, key)
        value = matrix_product(rows, weights.value[head].T)
        base, change = _softmax(level, gaps, seen)
        mixed = matrix_product(change, value.T)
        # Rows that all see the same have one base, whose part belongs to the mean exactly.
        of_base = matrix_product(base, value.T)
        if len(base) == 1:
            first = of_base[0]
        else:
            first, mixed = of_base[0], mixed + np.frompyfunc(subtract, 2, 1)(of_base, of_base[:1])
        constant = matrix_product(mean[None], weights.value[head].T)[0] + first
        if bias:
            constant = constant + weights.value_bias[head]
        common = common + matrix_product(constant[None], weights.output[head].T)[0]
        rest = rest + matrix_product(mixed, weights.output[head].T)
    return (common + weights.output_bias if bias else common), rest


def _softmax(level: Values, gaps: Values, seen: Values) -> tuple[Values, Values]:
    """Softmax of r over what each row sees, in one row where all see the same, and P less it."""
    same = bool((seen == seen[:1]).all())
    base = np.full((1 if same else len(seen), len(level)), ZERO, object)
    for row in range(len(base)):
        columns = np.flatnonzero(seen[row])
        top = max((level[j].mid() for j in columns), key=float)
        powers = [(level[j] - top).exp() for j in columns]
        total = sum(powers, arb(0))
        base[row, columns] = [power / total for power in powers]
    change = np.full(gaps.shape, ZERO, object)
    for row in range(len(gaps)):
        p = base[0 if same else row]
        columns = np.flatnonzero(seen[row])
        row_gaps = [gaps[row, j] for j in columns]
        log_sum = pairs.log_sum_of([p[j] for j in columns], row_gaps)
        change[row, columns] = [p[j] * (gaps[row, j] - log_sum).expm1() for j in columns]
        # Rows of P − p sum to 0. A weight close to 1 changes by what the others change.
        top = max(columns, key=lambda j, p=p: float(p[j].mid()))
        if p[top] > 0.5:
            change[row, top] = -sum((change[row, j] for j in columns if j != top), ZERO)
    return base, change
