"""Names of `rc_jax.special` that work as the others do, and that the pages do not teach."""

from rc_jax._numerics.random import normals
from rc_jax.special.bessel import bessel_ratio, log_bessel_ie
from rc_jax.special.hyp0f1 import hyp0f1_ratio
from rc_jax.special.lambert import lambert_w0_exp

__all__ = [
    "bessel_ratio",
    "hyp0f1_ratio",
    "lambert_w0_exp",
    "log_bessel_ie",
    "normals",
]
