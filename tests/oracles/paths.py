"""Sums over paths by writing every path out, in NumPy or in mpmath, from the textbook formulas alone."""

import itertools

import mpmath as mp
import numpy as np

from tests.oracles import many_digits
from tests.oracles.collapse import in_mpmath, matrix, select


def frozen(params, x, spec, mask=None):
    """As `frozen_exactly` to thirty digits, in NumPy: the matrices of every head and layer."""

    def plain(m):
        return np.array(m.tolist(), float)

    with mp.workdps(30):
        layers = frozen_exactly(params, x, spec, mask)
    return [([tuple(map(plain, head)) for head in heads], plain(added)) for heads, added in layers]


def choices(depth, heads, skip):
    """Every path: for each layer a head, or −1 for the skip connection."""
    return list(itertools.product(range(-1 if skip else 0, heads), repeat=depth))


def term(layers, x, path):
    """(P^L ··· P^1) X (W^1 ··· W^L) of one path, the two products formed first; later layers on the left of P's."""
    left, right = np.eye(x.shape[0]), np.eye(x.shape[1])
    for (heads, _), head in zip(layers, path, strict=True):
        if head >= 0:
            left, right = heads[head][0] @ left, right @ heads[head][1]
    return left @ x @ right


def length_sums(layers, x, spec):
    """The sum of all paths by length, those that start at a bias included, each written out."""
    depth, heads = spec.depth, spec.attention.heads
    sums = np.zeros((depth + 1, *x.shape))
    for path in choices(depth, heads, spec.skip):
        sums[sum(head >= 0 for head in path)] += term(layers, x, path)
    for start in range(depth):
        later = layers[start + 1 :]
        for path in choices(depth - start - 1, heads, spec.skip):
            length = sum(head >= 0 for head in path)
            sums[length] += term(later, layers[start][1], path)
            for rows, _, passed in layers[start][0]:
                sums[length + 1] += term(later, rows @ passed, path)
    return sums


def frozen_exactly(params, x, spec, mask=None):
    """For every layer its heads' P_h, W_h, 1 b_Vᵀ W_O, and its b_O, as mpmath matrices at the working precision."""
    with many_digits.precision(mp.mp.dps):
        layers = []
        for index, state in enumerate(many_digits.states(params, many_digits.exactly(x), spec, mask=mask)[:-1]):
            w = select(params.attention, index)
            rows = many_digits.rows(state, w, spec.attention, mask=mask)
            value, output = many_digits.exactly(w.value), many_digits.exactly(w.output)
            started = many_digits.exactly(np.zeros((spec.attention.heads, *state.shape)))
            added = many_digits.exactly(np.zeros(state.shape))
            if spec.attention.bias:
                bias = many_digits.exactly(w.value_bias)
                started = [np.tile(b @ o, (len(state), 1)) for b, o in zip(bias, output, strict=True)]
                added = np.tile(many_digits.exactly(w.output_bias), (len(state), 1))
            through = [v @ o for v, o in zip(value, output, strict=True)]
            heads = [tuple(map(in_mpmath, head)) for head in zip(rows, through, started, strict=True)]
            layers.append((heads, in_mpmath(added)))
    return layers


def term_exactly(layers, x, path):
    """As `term`, in mpmath."""
    out = matrix(np.asarray(x))
    for (heads, _), head in zip(layers, path, strict=True):
        if head >= 0:
            out = heads[head][0] * out * heads[head][1]
    return out


def length_sums_exactly(layers, x, spec):
    """Y_k as the coefficients of a polynomial: frozen layers with every head times t give Σ_k t^k Y_k.

    Evaluated at t = 0 … L and interpolated, so that there is no recursion in common with what is tested.
    """
    depth = spec.depth
    values = []
    for t in range(depth + 1):
        state = matrix(np.asarray(x))
        for heads, added in layers:
            out = state if spec.skip else mp.zeros(state.rows, state.cols)
            for rows, through, passed in heads:
                out = out + t * (rows * (state * through + passed))
            state = out + added
        values.append(state)
    vandermonde = mp.matrix([[mp.mpf(t) ** k for k in range(depth + 1)] for t in range(depth + 1)])
    inverse = mp.inverse(vandermonde)
    sums = []
    for k in range(depth + 1):
        total = mp.zeros(values[0].rows, values[0].cols)
        for t in range(depth + 1):
            total += inverse[k, t] * values[t]
        sums.append(total)
    return sums


def inner(a, b):
    """⟨A, B⟩_F."""
    return mp.fsum(a[i, j] * b[i, j] for i in range(a.rows) for j in range(a.cols))
