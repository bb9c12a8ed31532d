"""Numbers far below the smallest one of a dtype, or above its largest: an array and the logarithm of its size."""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int

_BITS = {2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint64}  # by bytes


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
        return jnp.expand_dims(jnp.exp(self.log_size), self.inner_axes)

    @property
    def finite_size(self) -> Float[Array, "..."]:
        """The same, at most the dtype's largest number: its product with 0 is 0."""
        size = jnp.minimum(jnp.exp(self.log_size), jnp.finfo(self.rows.dtype).max)
        return jnp.expand_dims(size, self.inner_axes)

    @property
    def value(self) -> Float[Array, "..."]:
        """e^log_size · rows, where the dtype has a place for them."""
        return self.size * self.rows

    @property
    def inner_axes(self) -> tuple[int, ...]:
        """The axes of the rows that have no logarithm of their own."""
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


def total(parts: Sequence[Scaled]) -> Scaled:
    """The sum of several, formed at the largest entry of all of them; rows that differ in shape are broadcast.

    The new logarithm is that of this entry, so a part that is 0 hides no other part; its derivative is right.

    Example:
        >>> import jax.numpy as jnp
        >>> parts = [Scaled(jnp.ones((2, 3)), jnp.array([-200.0, log])) for log in (-200.0, -201.0, -500.0)]
        >>> print(total(parts).rows[:, 0], total(parts).log_size)
        [3.        1.3678794] [-200. -200.]
    """
    limits, inner = jnp.finfo(parts[0].rows.dtype), parts[0].inner_axes
    # Every part is brought to a largest entry next to 1, and its size goes into its logarithm.
    most = [jax.lax.stop_gradient(jnp.max(jnp.abs(part.rows), axis=inner)) for part in parts]
    exponents = [exponent(jnp.where(each == 0, 1, each)) for each in most]
    logs = [
        part.log_size + math.log(2) * power.astype(limits.dtype) for part, power in zip(parts, exponents, strict=True)
    ]
    counted = [jnp.where(each > 0, log, -jnp.inf) for each, log in zip(most, logs, strict=True)]
    reference = functools.reduce(jnp.maximum, counted)
    reference = jnp.where(jnp.isneginf(reference), functools.reduce(jnp.maximum, logs), reference)
    reference = jax.lax.stop_gradient(jnp.where(jnp.isfinite(reference), reference, 0))
    factors = [jnp.exp(jnp.minimum(log - reference, largest_log_factor(limits.dtype))) for log in logs]
    rows = [
        jnp.expand_dims(factor, inner) * (part.rows * jnp.expand_dims(power_of_two(-power, limits.dtype), inner))
        for part, power, factor in zip(parts, exponents, factors, strict=True)
    ]
    return Scaled(functools.reduce(jnp.add, rows), reference)


def exponent(size: Float[Array, "..."]) -> Int[Array, "..."]:
    """The exponent of the power of two next to a size, at least 0, that 1 over the power is a normal number as well.

    It is read from the size's bits: no logarithm is computed, and what is multiplied by the power is not rounded.

    Example:
        >>> import jax.numpy as jnp
        >>> print(exponent(jnp.array([1.0, 5.0, 0.24, 0.0, 3e38])))
        [   0    2   -2 -126  124]
    """
    limits = jnp.finfo(size.dtype)
    size = jnp.clip(size, limits.tiny, limits.max / 16)
    bits = jax.lax.bitcast_convert_type(jax.lax.reduce_precision(size, limits.nexp, 0), _BITS[size.itemsize])
    return (bits >> limits.nmant).astype(jnp.int32) - (limits.maxexp - 1)


def power_of_two(exponent: Int[Array, "..."], dtype: DTypeLike) -> Float[Array, "..."]:
    """2^exponent, a normal number, by its bits."""
    limits = jnp.finfo(dtype)
    bits = (exponent + (limits.maxexp - 1)).astype(_BITS[limits.bits // 8]) << limits.nmant
    return jax.lax.bitcast_convert_type(bits, limits.dtype)


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
