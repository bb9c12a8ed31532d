"""Kernels f by name: what turns a logit into a weight a ∝ f(q·k), and where each has kinks."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

from rc_jax._numerics import arguments
from rc_jax.attention import elu_plus_one


class Kernel(NamedTuple):
    """A kernel for `sparsity.from_kernel(f, beta, gamma, kinks=kinks)`.

    Attributes:
        f: The function, elementwise.
        kinks: Every x at which f, |f| or a derivative of either jumps.
        homogeneous: Whether f(cx) is a multiple of f(x) for every c > 0, so that S depends on β/γ alone.
    """

    f: Callable[[Array], Array]
    kinks: tuple[float, ...] = ()
    homogeneous: bool = False


@arguments.guard()
def power(power: int) -> Kernel:
    """The kernel f(x) = x^m; its kink at 0 is that of |f|, for odd m.

    Args:
        power: m ≥ 1.

    Returns:
        The kernel; S depends on β/γ alone.

    Example:
        >>> from rc_jax import sparsity
        >>> f, kinks, _ = sparsity.power(6)
        >>> print(f"{sparsity.from_kernel(f, 0.0, 3.0, kinks=kinks):.5f}")  # 15/√10395
        0.14712
    """
    return Kernel(lambda x: x ** int(power), (0.0,) if power % 2 else (), True)


KERNELS: dict[str, Kernel] = {
    "exponential": Kernel(jnp.exp),
    "identity": Kernel(lambda x: x, (0.0,), True),
    "relu": Kernel(jax.nn.relu, (0.0,), True),
    "relu_squared": Kernel(lambda x: jnp.square(jax.nn.relu(x)), (0.0,), True),
    "power6": power(6),
    "softplus": Kernel(jax.nn.softplus),
    "sigmoid": Kernel(jax.nn.sigmoid),
    "elu_plus_one": Kernel(elu_plus_one, (0.0,)),
    "tanh": Kernel(jnp.tanh, (0.0,)),
    "cosine_squared": Kernel(lambda x: jnp.square(jnp.cos(x))),
    "signed_exponential": Kernel(lambda x: jnp.sign(x) * jnp.exp(jnp.abs(x)), (0.0,)),
}
"""Kernels by the names that the command line and the figures use."""
