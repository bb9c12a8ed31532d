"""Position codes: sinusoids to add to tokens, rotations of queries and keys, and their stretching to long texts."""

import dataclasses
import decimal
import math
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Integer

from rc_jax._numerics import arguments
from rc_jax._numerics.jax_names import canonical_dtype

Scaling = Literal["linear", "llama3", "yarn"]
PI = decimal.Decimal("3.14159265358979323846264338327950288419716939937510582097494459230781640628620899862803")


def _positions(name: str, value: Any) -> None:
    arguments.integer_array("token")(name, value)
    numbers, kind = arguments.at_hand(value), canonical_dtype(value.dtype)
    if numbers is not None and not np.array_equal(numbers.astype(kind), numbers):
        raise ValueError(f"`{name}` must fit in {kind} unless JAX may use 64 bits, got {arguments.describe(value)}")


_FACTOR = arguments.scalar(arguments.bounded(1))


@arguments.guard(positions=_positions, d_model=arguments.even, base=_FACTOR)
def sinusoidal(
    positions: Integer[Array, " token"], d_model: int, *, base: int | float = 10_000.0, dtype: DTypeLike | None = None
) -> Float[Array, "token feature"]:
    """Sinusoids to add to tokens: features 2i, 2i + 1 of position p are sin(p ω_i), cos(p ω_i), ω_i = base^(−2i/d).

    A code has length √(d/2), and PE(p + k) is PE(p) with every pair of features rotated by k ω_i: linear, and the same
    at every p. So PE(p)·PE(p + k) = Σ_i cos(k ω_i) depends on k only. Embeddings with entries N(0, 1/d) have length 1;
    multiplied by √d they are as long as their codes, up to a factor √2.

    The angle is reduced to one rotation in integers before it becomes a floating-point number, so a code is right to a
    few units of rounding at any 32-bit position. (The product p ω in float32 is off by 0.03 at p = 10⁶.)

    Args:
        positions: integers, negative ones too; for n tokens `jnp.arange(n)`.
        d_model: d, even.
        base: static, at least 1.
        dtype: of the result; JAX's default floating type where it is not given.

    Source: Vaswani et al. 2017, section 3.5 (the code) and 3.4 (the factor √d).

    Example:
        >>> (100 * sinusoidal(jnp.arange(2), 4)).round().astype(int).tolist()
        [[0, 100, 0, 100], [84, 54, 1, 100]]
    """
    kind = canonical_dtype(jnp.dtype(dtype if dtype is not None else float))
    angle = angles(positions, frequencies(d_model, float(base)), kind)
    pairs = jnp.stack([jnp.sin(angle), jnp.cos(angle)], axis=-1)
    return jnp.reshape(pairs, (positions.shape[0], d_model)).astype(kind)


@arguments.guard(positions=_positions, base=_FACTOR)
def rotary(
    x: Float[Array, "token feature"], positions: Integer[Array, " place"], *, base: int | float = 10_000.0
) -> Float[Array, "token feature"]:
    """Queries or keys rotated by their position: each pair (x_2i, x_2i+1) by the angle p ω_i, ω_i = base^(−2i/d).

    With both rotated, a score depends on the positions through their difference only, and lengths do not change. Over
    isotropic queries and keys of given product c the mean score at distance k is c (2/d) Σ_i cos(k ω_i), which falls
    as 1 − (log k + γ)/log base, γ Euler's constant, for 1 ≪ k ≪ base.

    Angles are right at any 32-bit position, as in `sinusoidal`.

    Args:
        x: queries or keys of one head; more heads by `vmap`.
        positions: one integer for each token.
        base: static, at least 1.

    Source: Su et al. 2021, "RoFormer", eq. 15 and 34. The law of the fall is this package's own.

    Example:
        >>> q, k = jnp.ones((1, 4)), jnp.arange(4.0)[None]
        >>> near, far = (rotary(q, p) @ rotary(k, p - 3).T for p in (jnp.array([5]), jnp.array([900_005])))
        >>> bool(jnp.abs(near - far).max() < 1e-5)
        True
    """
    if x.shape[1] % 2:
        raise ValueError(f"`x` must have an even number of features, got {arguments.describe(x)}")
    if positions.shape[0] != x.shape[0]:
        raise ValueError(
            f"`positions` must have one for each of {x.shape[0]} tokens, got {arguments.describe(positions)}"
        )
    x = jnp.asarray(x)
    angle = angles(positions, frequencies(x.shape[1], float(base)), x.dtype)
    return rotate_pairs(x, jnp.cos(angle).astype(x.dtype), jnp.sin(angle).astype(x.dtype))


_POSITIVE = ("low_frequency", "high_frequency", "fast", "slow", "attention_factor")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rotary:
    """The rotation of queries and keys of a layer by their positions; hashable, a part of `AttentionSpec`.

    Features 2i, 2i + 1 of the token at position p are rotated by p ω_i. Unscaled, ω_i = base^(−2i/width). For texts s
    times as long as the N = `original_tokens` of training (s = `factor`, wavelength 2π/ω):

        linear   ω/s (Chen et al. 2023, "Extending context window", eq. 4)
        llama3   ω where N ω/2π > `high_frequency`, ω/s where it is < `low_frequency`; between them the two are mixed,
                 linearly in N ω/2π (Llama 3.1's released code)
        yarn     the same idea, linear in the index i, from the i that makes `fast` rotations within N to the one that
                 makes `slow`; queries and keys are both multiplied by `attention_factor` = 0.1 log s + 1, and so are
                 the logits by its square (Peng et al. 2023, "YaRN")

    Attributes:
        base: 10 000 where it is not given; Llama 3 has 500 000.
        width: number of features that are rotated, the first ones of a head, even; all of them by default.
        scaling: one of the three, or None.
        factor: s, at least 1.
        original_tokens: N; for `llama3` and `yarn`.
        low_frequency: rotations within N below which a frequency is divided by s; for `llama3`.
        high_frequency: rotations within N above which a frequency stays; for `llama3`.
        fast: rotations within N above which a frequency stays; for `yarn`.
        slow: rotations within N below which a frequency is divided by s; for `yarn`.
        attention_factor: a factor on queries and keys; by default YaRN's, and 1 for the others. It has no effect on
            cosines, and with `qk_norm="unit"`, which make unit vectors of queries and keys after it.

    Source: Su et al. 2021, "RoFormer", eq. 15 and 34.

    Example:
        >>> Rotary(scaling="yarn", factor=16, original_tokens=4096).temperature
        1.2772588722239782
    """

    base: int | float = 10_000.0
    width: int | None = None
    scaling: Scaling | None = None
    factor: int | float = 1.0
    original_tokens: int | None = None
    low_frequency: int | float = 1.0
    high_frequency: int | float = 4.0
    fast: int | float = 32.0
    slow: int | float = 1.0
    attention_factor: int | float | None = None

    def __post_init__(self) -> None:
        positive = dict.fromkeys(_POSITIVE, arguments.scalar(arguments.positive))
        arguments.check_fields(self, base=_FACTOR, factor=_FACTOR, width=arguments.even, **positive)
        for low, high in (("low_frequency", "high_frequency"), ("slow", "fast")):
            if not getattr(self, low) < getattr(self, high):
                raise ValueError(f"`{low}` must be below {high}={getattr(self, high)}, got {getattr(self, low)}")
        # What each scaling needs.
        if self.scaling is None and self.factor != 1:
            raise ValueError(f"`factor` must be 1 without a scaling, got {self.factor}")
        if self.scaling == "yarn" and self.base == 1:
            raise ValueError("`base` must be > 1 for scaling='yarn', got 1")
        if self.scaling in ("llama3", "yarn") and self.original_tokens is None:
            raise ValueError(f"`original_tokens` must be given for scaling={self.scaling!r}, got None")

    @property
    def temperature(self) -> float:
        """The factor on queries and on keys, whose square is on the logits: 1 unless given, or for YaRN."""
        if self.attention_factor is not None:
            return float(self.attention_factor)
        return 0.1 * math.log(self.factor) + 1 if self.scaling == "yarn" else 1.0

    def frequencies(self, head_width: int) -> tuple[float, ...]:
        """Angles per position ω_i, radians, of the pairs that are rotated in a head of this width."""
        return tuple(map(float, self.exact_frequencies(head_width)))

    def exact_frequencies(self, head_width: int) -> list[decimal.Decimal]:
        """The same to 70 digits; the share of a frequency that a scaling keeps has the digits of a float."""
        width = self.rotated_width(head_width)
        unscaled = frequencies(width, float(self.base))
        if self.scaling is None:
            return unscaled
        with decimal.localcontext() as context:
            context.prec = 70
            shares = [decimal.Decimal(float(share)) for share in self._kept_shares(np.array(unscaled, float), width)]
            factor = decimal.Decimal(self.factor)
            return [omega * share + omega / factor * (1 - share) for omega, share in zip(unscaled, shares, strict=True)]

    def rotated_width(self, head_width: int) -> int:
        """Number of features of a head of this width that are rotated."""
        return head_width if self.width is None else self.width

    def _kept_shares(self, unscaled: np.ndarray, width: int) -> np.ndarray:
        """The share s of each unscaled frequency ω that is kept: the scaled one is sω + (1 − s)ω/factor."""
        if self.scaling == "linear":
            return np.zeros(len(unscaled))
        assert self.original_tokens is not None
        if self.scaling == "llama3":
            rotations = self.original_tokens * unscaled / (2 * math.pi)
            return np.clip((rotations - self.low_frequency) / (self.high_frequency - self.low_frequency), 0, 1)
        # YaRN: the real index i whose frequency makes a given number of rotations within the original tokens.
        first, last = (
            width * math.log(self.original_tokens / (rotations * 2 * math.pi)) / (2 * math.log(self.base))
            for rotations in (self.fast, self.slow)
        )
        first, last = max(math.floor(first), 0), min(math.ceil(last), width - 1)
        span = last - first or 0.001  # as in the released code
        return 1 - np.clip((np.arange(len(unscaled)) - first) / span, 0, 1)


def rotate(x: Float[Array, "head token width"], spec: Rotary) -> Float[Array, "head token width"]:
    """Queries or keys of every head rotated by their positions 0, 1, 2, …, and multiplied by the temperature."""
    width = spec.rotated_width(x.shape[-1])
    angle = angles(jnp.arange(x.shape[1]), spec.exact_frequencies(x.shape[-1]), x.dtype)
    rotated = rotate_pairs(x[..., :width], jnp.cos(angle).astype(x.dtype)[None], jnp.sin(angle).astype(x.dtype)[None])
    whole = rotated if width == x.shape[-1] else jnp.concatenate([rotated, x[..., width:]], axis=-1)
    return whole if spec.temperature == 1 else whole * jnp.asarray(spec.temperature, x.dtype)


def rotate_pairs(
    x: Float[Array, "*heads token feature"],
    cos: Float[Array, "*#heads token pair"],
    sin: Float[Array, "*#heads token pair"],
) -> Float[Array, "*heads token feature"]:
    """Every pair (x_2i, x_2i+1) rotated by the angle that has this cosine and sine."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return jnp.reshape(jnp.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1), x.shape)


def frequencies(width: int, base: float) -> list[decimal.Decimal]:
    """ω_i = base^(−2i/width), i = 0 … width/2 − 1, to 70 digits."""
    with decimal.localcontext() as context:
        context.prec = 70
        return [decimal.Decimal(base) ** (decimal.Decimal(-2 * i) / width) for i in range(width // 2)]


def angles(positions: Array, per_position: Sequence[decimal.Decimal], kind: DTypeLike) -> Array:
    """The angles p ω_i less whole rotations, in [−π, π]: in float64 where positions or `kind` have 64 bits, or float32.

    A frequency in rotations per position is a binary fraction of two words, high and low. In integers, position times
    high drops whole rotations by itself. Of position times low only what carries into the high word is kept.
    """
    positions = jnp.asarray(positions)
    wide = 8 in (jnp.dtype(kind).itemsize, positions.dtype.itemsize)
    word, number, bits = (jnp.uint64, jnp.float64, 64) if wide else (jnp.uint32, jnp.float32, 32)
    with decimal.localcontext() as context:
        context.prec = 70
        fractions = [int(omega / (2 * PI) * 2 ** (2 * bits)) for omega in per_position]
    high = jnp.asarray(np.array([fraction >> bits for fraction in fractions], word))[None]
    low = jnp.asarray(np.array([fraction % 2**bits for fraction in fractions], word))[None]
    # The magnitude is unsigned, because the most negative integer has a magnitude too.
    size = positions.astype(word)[:, None]
    size = jnp.where(positions[:, None] < 0, 0 - size, size)
    rotations = size * high + _carry(size, low, bits // 2)
    signed = jax.lax.bitcast_convert_type(rotations, jnp.int64 if wide else jnp.int32)
    angle = signed.astype(number) * jnp.asarray(2 * np.pi / 2.0**bits, number)
    return jnp.where(positions[:, None] < 0, -angle, angle)


def _carry(a: Array, b: Array, half: int) -> Array:
    """The high word of the product a b of two words, low by at most two units."""
    shift, mask = jnp.asarray(half, a.dtype), jnp.asarray(2**half - 1, a.dtype)
    a_high, a_low, b_high, b_low = a >> shift, a & mask, b >> shift, b & mask
    return a_high * b_high + ((a_high * b_low) >> shift) + ((a_low * b_high) >> shift)
