"""Special functions that no well-kept JAX library has: Lambert W, Bessel I in logarithms, fast normal numbers."""

from rc_jax.special.bessel import log_bessel_i
from rc_jax.special.hyp0f1 import log_hyp0f1
from rc_jax.special.lambert import lambert_w0
from rc_jax.special.more import *  # noqa: F403

__all__ = [
    "lambert_w0",
    "log_bessel_i",
    "log_hyp0f1",
]
