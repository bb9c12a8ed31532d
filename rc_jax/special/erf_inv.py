"""The inverse of the error function in float32, for normal numbers: faster than XLA's, and right in the tails.

XLA takes log(1 − x²) of a square that has lost the digits in which x differs from 1: at the ends of the range its
result is off by 5·10⁻⁶ of itself. 1 − x and 1 + x lose nothing there.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float32

# Giles 2010, "Approximating the erfinv function", table 5: polynomials in w − 5/2 for w < 5 and in √w − 3 beyond,
# w = −log(1 − x²), highest power first.
_CENTRE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164,
    0.246640727, 1.50140941,
)  # fmt: skip
_TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613, 0.00943887047,
    1.00167406, 2.83297682,
)  # fmt: skip
# Cephes' logf: (log(1 + m) − m + m²/2)/m³ for 1 + m between √½ and √2.
_LOG = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
    2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
_ROOT_HALF = np.float32(0.5**0.5).view(np.int32)
_EXPONENT = np.int32(23)  # the bits below a float's exponent


@jax.jit  # a program of its own name, by which what draws normals can be counted; compilers put it where it is called
def erf_inv(x: Float32[Array, "*shape"]) -> Float32[Array, "*shape"]:
    """erf⁻¹(x) for −1 < x < 1, to five roundings (2.6·10⁻⁷) of itself; plain operations that fuse into any loop."""
    w = -_log((1 - x) * (1 + x))
    central = w < 5
    step = jnp.where(central, w - np.float32(2.5), jnp.sqrt(w) - 3)
    pairs = zip(_CENTRE, _TAIL, strict=True)
    return _polynomial([jnp.where(central, np.float32(centre), np.float32(tail)) for centre, tail in pairs], step) * x


def _polynomial(coefficients: Sequence[Array | np.float32], x: Array) -> Any:
    """By Horner's rule, highest power first."""
    return functools.reduce(lambda value, coefficient: value * x + coefficient, coefficients)


def _log(x: Float32[Array, "*shape"]) -> Float32[Array, "*shape"]:
    """Log x of a normal number 0 < x < ∞: nothing else comes here, so that no case need be looked for."""
    bits = jax.lax.bitcast_convert_type(x, jnp.int32)
    exponent = (bits - _ROOT_HALF) >> _EXPONENT
    m = jax.lax.bitcast_convert_type(bits - (exponent << _EXPONENT), jnp.float32) - 1
    square = m * m
    rest = _polynomial([np.float32(each) for each in _LOG], m)
    return exponent.astype(jnp.float32) * np.float32(np.log(2)) + (m - square / 2 + rest * m * square)
