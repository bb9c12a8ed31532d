"""Attention networks in arbitrary precision, written from the textbook formula alone."""

import mpmath as mp
import numpy as np


def matrix(array):
    """An mpmath matrix with exactly the numbers of a floating-point array."""
    array = np.asarray(array, dtype=np.float64)
    return mp.matrix(array.tolist() if array.ndim == 2 else [[value] for value in array.tolist()])


def attention(params, x, spec, scale=None, mask=None):
    """Σ_h softmax(Q_h K_hᵀ α) V_h W_O,h + b_O on mpmath matrices; `params` holds NumPy arrays of one layer."""
    n = x.rows
    alpha = mp.mpf(1) / mp.sqrt(spec.head_width) if scale is None else mp.mpf(scale)
    out = mp.zeros(n, spec.d_model)
    ones = mp.ones(n, 1)
    for h in range(spec.heads):
        query, key, value = (x * matrix(w[h]) for w in (params.query, params.key, params.value))
        if spec.bias:
            query += ones * matrix(params.query_bias[h]).T
            key += ones * matrix(params.key_bias[h]).T
            value += ones * matrix(params.value_bias[h]).T
        logits = query * key.T * alpha
        p = mp.zeros(n, n)
        for i in range(n):
            seen = [j for j in range(n) if mask is None or mask[i][j]]
            top = max(logits[i, j] for j in seen)
            powers = {j: mp.exp(logits[i, j] - top) for j in seen}
            total = mp.fsum(powers.values())
            for j in seen:
                p[i, j] = powers[j] / total
        out += p * value * matrix(params.output[h])
    return out + ones * matrix(params.output_bias).T if spec.bias else out


def log_residual(x):
    """log of the Frobenius norm of x minus its column means."""
    n = x.rows
    means = [mp.fsum(x[i, j] for i in range(n)) / n for j in range(x.cols)]
    square = mp.fsum((x[i, j] - means[j]) ** 2 for i in range(n) for j in range(x.cols))
    return mp.log(square) / 2 if square else mp.mpf("-inf")


def log_residuals(params, x, spec, scale=None, mask=None):
    """log ‖res‖_F before the first layer and after each one; `params` are stacked NumPy LayerParams."""
    state = matrix(x)
    logs = [log_residual(state)]
    for layer in range(spec.depth):
        weights = type(params.attention)(*(None if w is None else w[layer] for w in params.attention))
        out = attention(weights, state, spec.attention, scale, mask)
        state = state + out if spec.skip else out
        logs.append(log_residual(state))
    return logs
