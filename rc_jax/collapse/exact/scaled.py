"""Numbers far below the smallest one of a dtype, or above its largest: an array and the logarithm of its size."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float


class Scaled(NamedTuple):
    """e^log_size · rows, with rows of ordinary size and a logarithm for each entry of their leading axes.

    Where `log_size` has the shape (*batch), `rows` has the shape (*batch, *inner): (head, token, width) with one
    logarithm for each head, (token, feature) with a single one, or one for each entry. Sums are formed at the size of
    the larger part, products add logarithms, and e^log_size itself is formed in `size` and `value` alone. Its + and *
    are those of numbers, not those of a tuple.

    Example:
        >>> import jax.numpy as jnp
        >>> tiny = Scaled(jnp.array([1.0, -2.0]), jnp.asarray(-1000.0))
        >>> tinier = Scaled(jnp.array([3.0, 3.0]), jnp.asarray(-5000.0))
        >>> print((tiny + tinier).rows, round(float((tiny + tinier).log_size), 4))  # −1000 + log 2
        [ 0.5 -1. ] -999.3068
        >>> print((tiny * tinier).rows, (tiny * tinier).log_size, tiny.value)
        [ 3. -6.] -6000.0 [ 0. -0.]
        >>> print((2.0 * tiny).rows)
        [ 2. -4.]
    """

    rows: Float[Array, "..."]
    log_size: Float[Array, "..."]

    @classmethod
    def plain(cls, rows: Float[Array, "head ..."]) -> "Scaled":
        """Numbers of every head as they are, with logarithms of 0."""
        return cls(rows, jnp.zeros(rows.shape[:1], rows.dtype))

    @property
    def size(self) -> Float[Array, "..."]:
        """e^log_size, with an axis of one entry in place of each inner axis of the rows."""
        return jnp.expand_dims(jnp.exp(self.log_size), self._inner)

    @property
    def finite_size(self) -> Float[Array, "..."]:
        """The same, at most the dtype's largest number: its product with 0 is 0."""
        size = jnp.minimum(jnp.exp(self.log_size), jnp.finfo(self.rows.dtype).max)
        return jnp.expand_dims(size, self._inner)

    @property
    def value(self) -> Float[Array, "..."]:
        """e^log_size · rows, where the dtype has a place for them."""
        return self.size * self.rows

    @property
    def _inner(self) -> tuple[int, ...]:
        return tuple(range(self.log_size.ndim, self.rows.ndim))

    def map(self, linear: Callable[[Array], Array]) -> "Scaled":
        """A linear function of the rows, of the same size."""
        return Scaled(linear(self.rows), self.log_size)

    def times_exp(self, log_factor: Float[Array, "..."] | float) -> "Scaled":
        """The product with e^log_factor, one factor for each logarithm."""
        return Scaled(self.rows, log_factor + self.log_size)

    def __mul__(self, factor: "Scaled | Array | float") -> "Scaled":  # pyright: ignore[reportIncompatibleMethodOverride]
        """The product with numbers of ordinary size, or with others that have a size of their own, entry by entry."""
        if isinstance(factor, Scaled):
            return Scaled(self.rows * factor.rows, self.log_size + factor.log_size)
        return Scaled(factor * self.rows, self.log_size)

    def __rmul__(self, factor: Array | float) -> "Scaled":  # pyright: ignore[reportIncompatibleMethodOverride]
        """The same product; that of a tuple would repeat it."""
        return self * factor

    def __truediv__(self, divisor: Array | float) -> "Scaled":
        """The quotient with numbers of ordinary size."""
        return Scaled(self.rows / divisor, self.log_size)

    def __add__(self, other: "Scaled") -> "Scaled":  # pyright: ignore[reportIncompatibleMethodOverride]
        """The sum, formed at the size of the larger one."""
        return total([self, other])

    def sum(self) -> "Scaled":
        """Σ e^log_size · rows over the first axis, formed at the largest entry of all of them.

        The new logarithm is that of this entry, so a part that is 0 hides no other part; its derivative is right.
        """
        limits = jnp.finfo(self.rows.dtype)
        # Every part is brought to a largest entry of 1, and its size goes into its logarithm.
        largest = jax.lax.stop_gradient(jnp.max(jnp.abs(self.rows), axis=self._inner))
        size = jnp.where(largest > 0, jnp.clip(largest, limits.tiny, limits.max / 16), 1)
        logs = self.log_size + jnp.log(size)
        reference = jnp.max(jnp.where(largest > 0, logs, -jnp.inf), axis=0)
        reference = jnp.where(jnp.isneginf(reference), jnp.max(logs, axis=0), reference)
        reference = jax.lax.stop_gradient(jnp.where(jnp.isfinite(reference), reference, 0))
        factors = jnp.exp(jnp.minimum(logs - reference[None], largest_log_factor(self.rows.dtype)))
        units = self.rows / jnp.expand_dims(size, self._inner)
        return Scaled(jnp.sum(jnp.expand_dims(factors, self._inner) * units, axis=0), reference)


def total(parts: Sequence[Scaled]) -> Scaled:
    """The sum of several, formed at the size of the largest; rows that differ in shape are broadcast.

    Example:
        >>> import jax.numpy as jnp
        >>> parts = [Scaled(jnp.ones((2, 3)), jnp.array([-200.0, log])) for log in (-200.0, -201.0, -500.0)]
        >>> print(total(parts).rows[:, 0], total(parts).log_size)
        [3.        1.3678794] [-200. -200.]
    """
    rows = jnp.broadcast_arrays(*(part.rows for part in parts))
    return Scaled(jnp.stack(rows), jnp.stack([part.log_size for part in parts])).sum()


def einsum(subscripts: str, first: Scaled | Array, second: Scaled | Array, *, precision: str) -> Scaled:
    """`jnp.einsum` of two arrays of which one or both are scaled; the axes with logarithms must stay in the result.

    Example:
        >>> import jax.numpy as jnp
        >>> weights = Scaled(jnp.ones((2, 4, 3)), jnp.array([-100.0, -300.0]))
        >>> values = Scaled(jnp.ones((2, 3, 5)), jnp.array([-100.0, 0.0]))
        >>> mixed = einsum("hij,hjk->hik", weights, values, precision="highest")
        >>> mixed.rows.shape, mixed.log_size.tolist()
        ((2, 4, 5), [-200.0, -300.0])
    """
    factors = [factor.rows if isinstance(factor, Scaled) else factor for factor in (first, second)]
    logs = [factor.log_size for factor in (first, second) if isinstance(factor, Scaled)]
    rows = jnp.einsum(subscripts, *factors, precision=precision)
    return Scaled(rows, logs[0] if len(logs) == 1 else logs[0] + logs[1])


def largest_log_factor(dtype: DTypeLike) -> float:
    """A bound on the logarithm of a factor: products of three factors up to it do not overflow."""
    return math.log(float(jnp.finfo(dtype).max)) / 4
