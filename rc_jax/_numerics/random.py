"""Gaussian numbers at the speed of arithmetic: Threefry written out, both of its words used.

Most of the time of a random initialisation goes into its random numbers. `jax.random.normal` draws one number from each
block of Threefry-2x32 and keeps the exclusive or of its two words; on a CPU it runs the twenty rounds as a loop through
memory. Here the two words become two normal numbers, and all operations are elementwise ones, which a compiler fuses
into one loop. The generator is Threefry with twenty rounds (Salmon et al. 2011, "Parallel random numbers: as easy as
1, 2, 3"), whatever generator JAX's configuration names as its default.

The two hundred operations are those of `jax.lax`: every shape is traced anew, and by way of `jax.numpy` that takes
three times as long (measured 2026-11).
"""

import functools
import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap
from jax.lax import add, mul, sub
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Float32, Int32, Key, UInt32

from rc_jax._numerics import arguments, performance
from rc_jax._numerics.jax_names import canonical_dtype

# Left rotations of four rounds and of the next four, and the constant that makes the third word of the key (Threefish).
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_ROUNDS = 20
_MOST = 2**33  # numbers: two of each of the 2³² counters of one word
# Cephes (Moshier): logf's (log(1 + m) − m + m²/2)/m³ for 1 + m between √½ and √2, sinf's (sin s/s − 1)/s² and cosf's
# (cos s − 1 + s²/2)/s⁴ for |s| ≤ π/4, highest power first.
_LOG = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1, -1.6668057665e-1,
    2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
_SIN = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_COS = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
_ROOT_HALF = np.float32(0.5**0.5).view(np.int32)
_FRACTION = np.int32(23)  # bits of a float below its exponent
_ROOT_GUESS = np.int32(0x5F3759DF)  # this minus (bits of x)/2 are the bits of 1/√x, to 3 %
_ONE, _HALF = np.float32(1), np.float32(0.5)
_FIRST_BIT, _SECOND_BIT = np.uint32(1 << 31), np.uint32(1 << 30)


_shape = arguments.must(
    "a tuple of integers >= 0",
    right=lambda value: (
        isinstance(value, Sequence) and all(isinstance(side, int | np.integer) and side >= 0 for side in value)
    ),
)


@arguments.guard(shape=_shape)
def normals(key: Key[Array, ""], shape: tuple[int, ...], dtype: DTypeLike | None = None) -> Float[Array, "..."]:
    """Independent standard normal numbers: like `jax.random.normal`, but faster on CPUs, and other numbers.

    In float32 numbers 2i and 2i + 1 are √(−2 log u)·(cos θ, sin θ), u and θ from the words of the block with counter i
    (Box & Muller 1958; `box_muller` says from which bits): no number is beyond ±6.56. In other types,
    for keys of another generator than Threefry and for more than 2³³ numbers, whose counters need a second word, the
    result is that of `jax.random.normal`.

    Args:
        key: a typed key. The same key gives the same numbers, to rounding, on every device.
        shape: of the result.
        dtype: of the result; JAX's default floating type where it is not given.

    Example:
        >>> import jax
        >>> numbers = normals(jax.random.key(0), (1000, 100))
        >>> bool(abs(numbers.mean()) < 0.016), bool(abs(numbers.std() - 1) < 0.012)
        (True, True)
    """
    kind = canonical_dtype(jnp.dtype(dtype if dtype is not None else float))
    if kind != jnp.float32 or str(jax.random.key_impl(key)) != "threefry2x32" or math.prod(shape) > _MOST:
        return jax.random.normal(key, shape, kind)
    return _normals(key, tuple(shape))


@functools.partial(jax.jit, static_argnames="shape", inline=True)
def _normals(key: Array, shape: tuple[int, ...]) -> Array:
    return _stream(math.prod(shape))(jax.random.key_data(key)).reshape(shape)


@functools.cache
def _stream(count: int) -> Callable[[Array], Array]:
    """A function from the two words of a key, or of each key of a batch, to so many numbers.

    `jax.vmap` calls it with all keys at once, where it would rewrite the two hundred operations one by one.
    """

    @custom_vmap
    def draw(key: UInt32[Array, "*batch 2"]) -> Float32[Array, "*batch number"]:
        blocks = -(-count // 2)
        forms = (functools.partial(form, blocks=blocks) for form in (through_complex_numbers, side_by_side))
        return performance.on_cpu(*forms, key)[..., :count]

    @draw.def_vmap
    def of_all(size: int, batched: Sequence[bool], keys: UInt32[Array, "*batch 2"]) -> tuple[Array, bool]:
        return draw(keys), True

    return draw


def side_by_side(key: UInt32[Array, "*batch 2"], blocks: int) -> Float32[Array, "*batch number"]:
    """The two normal numbers of each block of Threefry, block after block."""
    pairs = _pairs(key, lax.iota(jnp.uint32, blocks))
    return jnp.stack(pairs, axis=-1).reshape(*key.shape[:-1], 2 * blocks)


def through_complex_numbers(key: UInt32[Array, "*batch 2"], blocks: int) -> Float32[Array, "*batch number"]:
    """The numbers of `side_by_side`, in a form for which XLA's CPU compiler draws each block once.

    The compiler has no loop with two results: it would run Threefry once for each number of a pair. A complex number
    carries both. They are drawn in two halves by a loop, because the compiler would otherwise draw them again for each
    operation that reads them. The price of `side_by_side` on a CPU is 20 times the time (measured 2026-11).
    """
    half = -(-blocks // 2)

    def draw(first: Array) -> Array:
        return lax.complex(*_pairs(key, first + lax.iota(jnp.uint32, half)))

    pairs = jnp.moveaxis(lax.map(draw, np.array([0, half], np.uint32)), 0, -2)[..., None]
    second = np.array([False, True])
    return jnp.where(second, pairs.imag, pairs.real).reshape(*key.shape[:-1], 4 * half)[..., : 2 * blocks]


def _pairs(key: UInt32[Array, "*batch 2"], counters: UInt32[Array, " block"]) -> tuple[Array, Array]:
    """Two normal numbers for each counter, and each key."""
    counters = jnp.broadcast_to(counters, (*key.shape[:-1], *counters.shape))
    return box_muller(*threefry((key[..., 0], key[..., 1]), (jnp.zeros_like(counters), counters)))


def threefry(
    key: tuple[UInt32[Array, "*batch"], UInt32[Array, "*batch"]],
    counter: tuple[UInt32[Array, "*batch block"], UInt32[Array, "*batch block"]],
) -> tuple[UInt32[Array, "*batch block"], UInt32[Array, "*batch block"]]:
    """Threefry-2x32 with twenty rounds: two random words for every counter of two words."""
    words = (*key, lax.bitwise_xor(lax.bitwise_xor(*key), _PARITY))
    schedule = [lax.broadcast_in_dim(word, counter[0].shape, range(word.ndim)) for word in words]
    left, right = add(counter[0], schedule[0]), add(counter[1], schedule[1])
    for group in range(_ROUNDS // 4):
        for rotation in _ROTATIONS[group % 2]:
            left = add(left, right)
            up = lax.shift_left(right, np.uint32(rotation))
            down = lax.shift_right_logical(right, np.uint32(32 - rotation))
            right = lax.bitwise_xor(lax.bitwise_or(up, down), left)
        left = add(left, schedule[(group + 1) % 3])
        right = add(add(right, schedule[(group + 2) % 3]), np.uint32(group + 1))
    return left, right


@jax.jit  # a program of its own name, by which what draws normals can be counted; compilers put it where it is called
def box_muller(
    left: UInt32[Array, "*shape"], right: UInt32[Array, "*shape"]
) -> tuple[Float32[Array, "*shape"], Float32[Array, "*shape"]]:
    """Two normal numbers from two random words: √(−2 log u)·(cos θ, sin θ) (Box & Muller 1958).

    u = (⌊left/4⌋ + ½)/2³⁰, rounded to float32. θ = (π/2)(q + t), where q is the number in the upper two bits of `right`
    and t ∈ [−½, ½) the signed number in the lower thirty. No number is beyond ±6.56, and none is off by more than
    3·10⁻⁷ of the pair's length.
    """
    thirty = lax.bitcast_convert_type(
        lax.bitwise_or(lax.shift_right_logical(left, np.uint32(1)), np.uint32(1)), np.int32
    )
    uniform = mul(_as_float(thirty), np.float32(2.0**-31))
    length = _square_root(mul(np.float32(-2), _log(uniform)))
    # (π/2)t, its sine and its cosine
    t = _as_float(lax.bitcast_convert_type(lax.shift_left(right, np.uint32(2)), np.int32))
    angle = mul(t, np.float32(np.pi / 4 * 2.0**-31))
    square = mul(angle, angle)
    sin = add(angle, mul(mul(angle, square), _polynomial(_SIN, square)))
    cos = add(sub(_ONE, mul(square, _HALF)), mul(mul(square, square), _polynomial(_COS, square)))
    # q quarter turns: the lower bit of q is one of them, the upper bit a change of both signs.
    quarter = lax.ne(lax.bitwise_and(right, _SECOND_BIT), np.uint32(0))
    half = lax.bitwise_and(right, _FIRST_BIT)
    cos_theta, sin_theta = lax.select(quarter, lax.neg(sin), cos), lax.select(quarter, cos, sin)
    return _negated(mul(length, cos_theta), half), _negated(mul(length, sin_theta), half)


def _as_float(number: Int32[Array, "*shape"]) -> Float32[Array, "*shape"]:
    return lax.convert_element_type(number, np.float32)


def _negated(number: Float32[Array, "*shape"], sign: UInt32[Array, "*shape"]) -> Float32[Array, "*shape"]:
    """The number, with the opposite sign where the first bit of `sign` is set."""
    bits = lax.bitwise_xor(lax.bitcast_convert_type(number, np.uint32), sign)
    return lax.bitcast_convert_type(bits, np.float32)


def _polynomial(coefficients: Sequence[float], x: Float32[Array, "*shape"]) -> Float32[Array, "*shape"]:
    """Σ c_k x^k by Horner's rule; the coefficient of the highest power is the first."""
    first, *rest = (np.float32(coefficient) for coefficient in coefficients)
    return functools.reduce(lambda value, coefficient: add(mul(value, x), coefficient), rest, lax.full_like(x, first))


def _square_root(x: Float32[Array, "*shape"]) -> Float32[Array, "*shape"]:
    """√x of a number that is 0 or normal. XLA makes a loop of its own for a `jnp.sqrt` that two results read."""
    bits, half = lax.bitcast_convert_type(x, np.int32), mul(x, _HALF)
    guess = sub(_ROOT_GUESS, lax.shift_right_arithmetic(bits, np.int32(1)))
    inverse = lax.bitcast_convert_type(guess, np.float32)
    for _ in range(2):
        inverse = mul(inverse, sub(np.float32(1.5), mul(mul(half, inverse), inverse)))
    root = mul(x, inverse)
    return add(root, mul(sub(x, mul(root, root)), mul(inverse, _HALF)))


def _log(x: Float32[Array, "*shape"]) -> Float32[Array, "*shape"]:
    """Log x = e log 2 + log(1 + m) for x = 2^e (1 + m), √½ ≤ 1 + m < √2; x must be normal, positive and finite."""
    bits = lax.bitcast_convert_type(x, np.int32)
    exponent = lax.shift_right_arithmetic(sub(bits, _ROOT_HALF), _FRACTION)
    m = sub(lax.bitcast_convert_type(sub(bits, lax.shift_left(exponent, _FRACTION)), np.float32), _ONE)
    square = mul(m, m)
    near = add(sub(m, mul(square, _HALF)), mul(mul(_polynomial(_LOG, m), m), square))
    return add(mul(_as_float(exponent), np.float32(np.log(2))), near)
