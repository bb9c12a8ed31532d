"""Tokens on a sphere in three dimensions: the rate at which close tokens with a skip connection become one."""

import math

import numpy as np
from jaxtyping import ArrayLike
from numpy.typing import NDArray
from scipy.integrate import quad

from rc_jax._numerics import arguments


@arguments.guard(strength=arguments.positive)
def approach_rate(strength: ArrayLike) -> NDArray[np.float64]:
    """E log(angle′/angle): nats per layer by which the distance of two close tokens changes, over random rotations O.

    ½∫₋₁¹ log((1 + |c|)/2N) du,   N² = 1 + 2au + a²,   c = (1 + au)/N

    A token x of the unit sphere goes to (x + aOx)/N, with u = x·Ox uniform on [−1, 1] (Archimedes). All tokens get the
    same aOx̄ to first order, so their difference is only divided by N and projected to the new tangent plane. The part
    in the plane of x and Ox shrinks by |c|, the part across it stays. The direction of the difference is uniform, and
    E_φ log √(c² cos² φ + sin² φ) = log((1 + |c|)/2). At a = 1 the rate is 1 − 2 log 2, at small a it is −a²/3.

    Args:
        strength: a > 0, the factor of the attention branch; any shape.

    Returns:
        The rate, of the same shape, by quadrature in double precision; negative where tokens approach each other.

    Raises:
        TypeError: `strength` is not real.
        ValueError: `strength` is not positive and finite.

    Example:
        >>> round(float(approach_rate(1.0)), 6), round(1 - 2 * math.log(2), 6)
        (-0.386294, -0.386294)
    """

    def rate(a: float) -> float:
        def integrand(u: float) -> float:
            square = 1 + 2 * a * u + a**2
            return -0.5 * math.log(square) + math.log1p(abs(1 + a * u) / math.sqrt(square)) - math.log(2)

        # Where a > 1 the sign of c changes at u = −1/a.
        return quad(integrand, -1, 1, points=[-1 / a] if a > 1 else None, limit=200)[0] / 2

    return np.vectorize(rate, otypes=[float])(np.asarray(strength, float))
