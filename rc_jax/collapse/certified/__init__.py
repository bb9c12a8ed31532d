"""Residuals with proven digits: the network evaluated in ball arithmetic on the host.

A ball is a number and a bound of its error. `log_residuals` gives two bounds between which the exact value lies.
"""

from rc_jax.collapse.certified.enclosure import log_residuals
from rc_jax.collapse.certified.errors import NotCertified

__all__ = ["NotCertified", "log_residuals"]
