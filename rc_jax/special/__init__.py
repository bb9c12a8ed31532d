"""Special functions that no well-kept JAX library has: Lambert W, Bessel I in logarithms, fast normal numbers."""

from rc_jax._numerics.random import normals
from rc_jax.special.bessel import bessel_ratio, log_bessel_i, log_bessel_ie
from rc_jax.special.hyp0f1 import log_hyp0f1
from rc_jax.special.lambert import lambert_w0, lambert_w0_exp

__all__ = [
    "bessel_ratio",
    "lambert_w0",
    "lambert_w0_exp",
    "log_bessel_i",
    "log_bessel_ie",
    "log_hyp0f1",
    "normals",
]
