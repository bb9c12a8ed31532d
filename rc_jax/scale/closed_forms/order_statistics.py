"""The largest of n standard normal scores, by integrals over their law."""

import jax
import jax.numpy as jnp
from jax.scipy.stats import norm
from jaxtyping import Array, Float

from rc_jax._numerics import arguments

# Of so many scores the largest is surely below 11.


@arguments.guard(n=arguments.integer(2, 10**20))
def median_gap(n: int) -> Float[Array, ""]:
    """Median of the difference g of the two largest of n standard normal scores.

    P(g > t) = n ∫ ρ(x) F(x − t)^(n−1) dx, ρ the density and F the distribution of a score. The integral is a sum over
    a grid of x, and the median is where the integral is ½.

    Args:
        n: Number of scores, 2 to 10²⁰.

    Returns:
        The median gap.

    Source: order statistics, David & Nagaraja 2003.

    Example:
        >>> round(float(median_gap(2)), 3)  # √2 times the median of |N(0, 1)|
        0.954
    """
    x, gap = jnp.linspace(-9.0, 11.0, 2001), jnp.linspace(0.0, 3.0, 301)
    log_density = jnp.log(float(n)) + norm.logpdf(x)

    def beyond(t: jax.Array) -> jax.Array:
        return jnp.sum(jnp.exp(log_density + float(n - 1) * norm.logcdf(x - t))) * (x[1] - x[0])

    return jnp.interp(-jnp.array(0.5), -jax.lax.map(beyond, gap, batch_size=43), gap)
