"""Networks in numbers of many digits as mpmath has them, for tests that go on to compute with those."""

import jax
import mpmath as mp
import numpy as np

from tests.oracles import many_digits


def matrix(array):
    """An mpmath matrix with exactly the numbers of a floating-point array."""
    array = np.asarray(array, dtype=np.float64)
    return mp.matrix(array.tolist() if array.ndim == 2 else [[value] for value in array.tolist()])


def in_mpmath(value):
    """A number of `many_digits`, or a matrix of them, as mpmath's, without rounding at its precision."""
    if isinstance(value, np.ndarray):
        return mp.matrix([[in_mpmath(each) for each in row] for row in value])
    if not many_digits.gmpy2.is_finite(value):
        return mp.mpf(float(value))
    return mp.ldexp(*map(int, value.as_mantissa_exp()))


def log_residual(x):
    """log of the Frobenius norm of an mpmath matrix minus its column means."""
    n = x.rows
    means = [mp.fsum(x[i, j] for i in range(n)) / n for j in range(x.cols)]
    square = mp.fsum((x[i, j] - means[j]) ** 2 for i in range(n) for j in range(x.cols))
    return mp.log(square) / 2 if square else mp.mpf("-inf")


def log_share(x):
    """log of the Frobenius norm of x minus its column means, over that of x."""
    square = mp.fsum(v**2 for v in x)
    return log_residual(x) - mp.log(square) / 2 if square else mp.mpf("-inf")


def log_residuals(params, x, spec, scale=None, mask=None, measure=log_residual):
    """log ‖res‖_F, or another measure, before the first layer and after each one, to the digits of mpmath."""
    with many_digits.precision(mp.mp.dps):
        states = many_digits.states(params, many_digits.exactly(x), spec, scale, mask)
        return [measure(in_mpmath(state)) for state in states]


def states(params, x, spec, scale=None):
    """The tokens before every layer and after the last one."""
    with many_digits.precision(mp.mp.dps):
        return [in_mpmath(state) for state in many_digits.states(params, many_digits.exactly(x), spec, scale)]


def select(params, index):
    """One layer of stacked parameters."""
    return jax.tree.map(lambda leaf: np.asarray(leaf)[index], params)
