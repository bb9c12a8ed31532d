"""Softmax attention on the differences of every two tokens, in ball arithmetic.

Saturated attention sends several tokens to one and keeps these apart from the others. A mean and a difference from it
say nothing then of how little the tokens of one group differ. With D_ik = x_i − x_k and m the key that row k prefers,
rows that see the same have

    P_ij − P_kj = P_kj (e^(u_j) − 1),  u_j = E_j − log(1 + Σ_l P_kl (e^(E_l) − 1)),  E_j = α (W_Q D_ik)·(W_K D_jm),

and Σ_j (P_ij − P_kj) W_V D_jm is the difference of their outputs, without the term j = m. No step takes a small number
from the difference of large ones (this package's own result). n tokens cost n³ numbers for each layer.
"""

from typing import Any

import numpy as np

from rc_jax.collapse.certified.balls import arb
from rc_jax.collapse.certified.program import ZERO, Values, matrix_product, subtract


def differences_of(x: Values) -> Values:
    """D_ik = x_i − x_k of shape (n, n, d), exactly 0 where two tokens are equal."""
    return np.asarray(np.frompyfunc(subtract, 2, 1)(x[:, None], x[None]))


def square_of(differences: Values) -> Any:
    """‖R‖_F² = Σ_ik ‖D_ik‖² / 2n of the tokens less their mean."""
    n = len(differences)
    return sum((entry * entry for i in range(n) for entry in differences[i, :i].ravel()), ZERO) / n


def attend(
    weights: Any, x: Values, differences: Values, alphas: Values, seen: Values, bias: bool
) -> tuple[Values, Values]:
    """The output of a layer for every token, and their differences."""
    n = len(x)
    out, apart = np.full(x.shape, ZERO, object), np.full(differences.shape, ZERO, object)
    for head in range(len(alphas)):
        of_query, of_key, of_value = (getattr(weights, name)[head] for name in ("query", "key", "value"))
        query, value = matrix_product(x, of_query.T), matrix_product(x, of_value.T)
        if bias:
            query, value = query + weights.query_bias[head], value + weights.value_bias[head]
        query = alphas[head] * query
        query_apart, key_apart, value_apart = (_product(differences, matrix) for matrix in (of_query, of_key, of_value))
        rows, best = _rows(query, key_apart, seen)
        mixed, mixed_apart = matrix_product(rows, value.T), np.full((n, n, value.shape[1]), ZERO, object)
        for k in range(1, n):
            keys, values = key_apart[:, best[k]], value_apart[:, best[k]]
            gaps = matrix_product(alphas[head] * query_apart[:k, k], keys)
            change = np.stack([_change(rows, i, k, gaps[i], seen) for i in range(k)])
            change[:, best[k]] = ZERO
            mixed_apart[:k, k] = matrix_product(change, values.T)
            mixed_apart[k, :k] = -mixed_apart[:k, k]
        out = out + matrix_product(mixed, weights.output[head].T)
        apart = apart + _product(mixed_apart, weights.output[head])
    return (out + weights.output_bias if bias else out), apart


def _product(differences: Values, matrix: Values) -> Values:
    n, _, width = differences.shape
    return matrix_product(differences.reshape(n * n, width), matrix.T).reshape(n, n, -1)


def _rows(query: Values, key_apart: Values, seen: Values) -> tuple[Values, list[int]]:
    """P, and the key that each row prefers."""
    n, best = len(query), list[int]()
    rows = np.full((n, n), ZERO, object)
    for k in range(n):
        columns = np.flatnonzero(seen[k])
        (levels,) = matrix_product(query[k : k + 1], key_apart[columns, columns[0]])
        top = int(np.argmax([float(level.mid()) for level in levels]))
        best.append(int(columns[top]))
        (levels,) = matrix_product(query[k : k + 1], key_apart[columns, best[k]])
        powers = [level.exp() for level in levels]
        total = sum(powers, arb(0))
        rows[k, columns] = [power / total for power in powers]
    return rows, best


def _change(rows: Values, i: int, k: int, gaps: Values, seen: Values) -> Values:
    """P_i − P_k; of rows that do not see the same the plain difference."""
    if (seen[i] != seen[k]).any():
        return np.asarray(np.frompyfunc(subtract, 2, 1)(rows[i], rows[k]))
    change, columns = np.full(len(gaps), ZERO, object), np.flatnonzero(seen[k])
    log_sum = log_sum_of([rows[k, j] for j in columns], [gaps[j] for j in columns])
    change[columns] = [rows[k, j] * (gaps[j] - log_sum).expm1() for j in columns]
    return change


def log_sum_of(weights: list[Any], gaps: list[Any]) -> Any:
    """Log Σ_j p_j e^(g_j), where p sums to 1; close to p alone it is log(1 + Σ_j p_j (e^(g_j) − 1))."""
    excess = sum((weight * gap.expm1() for weight, gap in zip(weights, gaps, strict=True)), arb(0))
    if excess > -0.5:
        return excess.log1p()
    return sum((weight * gap.exp() for weight, gap in zip(weights, gaps, strict=True)), arb(0)).log()
