"""Tokens in as few coordinates as they span, and the law of a Gaussian matrix in a basis of its own rows."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Bool, Float

from rc_jax._numerics.linear_algebra import gram_factor
from rc_jax.collapse.exact.scaled import Scaled
from rc_jax.collapse.exact.state import MeanResidual
from rc_jax.special import normals


def extend(state: MeanResidual, columns: int) -> MeanResidual:
    """The same tokens with `columns` further coordinates, all zero."""
    difference = state.difference.map(lambda rows: jnp.pad(rows, ((0, 0), (0, columns))))
    return MeanResidual(jnp.pad(state.mean, (0, columns)), difference)


def append_last(differences: Float[Array, "first feature"]) -> Float[Array, "token feature"]:
    """Differences of all n tokens from their mean, given the first n − 1: the last is minus the sum of the others."""
    return jnp.concatenate([differences, -jnp.sum(differences, axis=0, keepdims=True)])


def compress(state: MeanResidual, regularised: Bool[Array, ""] | None = None) -> MeanResidual:
    """The same n tokens, up to a rotation, in n coordinates that depend on their inner products alone.

    The coordinates are a triangular factor of n rows: the mean, and the first n − 1 differences as `state` holds them.
    e^log_size stays outside, so that neither mean nor differences are rounded at the other's size. Where `regularised`
    is true, `gram_factor` computes its regularised factor.
    """
    rows = jnp.concatenate([state.mean[None], state.direction[:-1]])
    if regularised is None:
        lower = gram_factor(rows)
    else:
        lower = jax.lax.cond(regularised, functools.partial(gram_factor, regularised=True), gram_factor, rows)
    direction = jnp.where(jnp.all(state.direction == 0), 0, append_last(lower[1:]))  # equal tokens stay equal
    return MeanResidual(lower[0], Scaled(direction, state.log_size))


def gaussian_diagonal(key: Array, rows: int, dimensions: ArrayLike, width: Float[Array, ""]) -> Float[Array, " row"]:
    """√(χ²_{d'−i}/d) for rows i = 0, 1, … of a Gaussian matrix of variance 1/d in d' dimensions; 0 from row d' on.

    That is the length of the part of row i outside the span of the rows before it, for d' = `dimensions` and
    d = `width`. It tends to 1 as d and d' go to infinity together, and is 1 for an infinite `width`.
    """
    freedom = dimensions - jnp.arange(rows).astype(width.dtype)
    usual = (freedom * jnp.finfo(width.dtype).tiny <= 1) & (freedom > 0)  # beyond it 1/d underflows: the length is 1
    square = chi_squares(key, jax.lax.stop_gradient(jnp.where(usual, freedom, 1)))
    ratio = jnp.sqrt(square / jnp.where(jnp.isfinite(width), width, 1))
    return jnp.where(usual, ratio, jnp.where(freedom > 0, 1, 0))


def chi_squares(key: Array, freedom: Float[Array, " number"]) -> Float[Array, " number"]:
    """Independent χ² numbers, all proposed and accepted side by side; `jax.random.gamma` draws one by one on a CPU.

    Marsaglia & Tsang (2000): with a = ν/2 − 1/3 and c = 1/√(9a) a proposal is 2a(1 + cx)³ of a normal x, accepted with
    probability exp(x²/2 + a(1 − v + log v)), v = (1 + cx)³: 95 % and more from ν = 2 on. Below ν = 1 it is χ² of ν + 2
    times u^(2/ν), u uniform.
    """
    few = freedom < 1
    shape = jnp.where(few, freedom + 2, freedom) / 2 - jnp.asarray(1 / 3, freedom.dtype)
    spread = jax.lax.rsqrt(9 * shape)

    def propose(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        number, done, square = state
        # One draw for both: P(normal > y) of a second normal y is the uniform number that decides.
        x, y = normals(jax.random.fold_in(key, number), (2, *freedom.shape), freedom.dtype)
        base = 1 + spread * x
        cube = jnp.where(base > 0, base, 1) ** 3
        log_chance = jnp.log(jax.lax.erfc(y * jnp.asarray(0.5**0.5, y.dtype)) / 2)
        accepted = (base > 0) & (log_chance < x * x / 2 + shape * (1 - cube + jnp.log(cube)))
        return number + 1, done | accepted, jnp.where(done, square, 2 * shape * cube)

    start = jnp.uint32(1), jnp.zeros(freedom.shape, bool), jnp.zeros_like(freedom)
    square = jax.lax.while_loop(lambda state: ~jnp.all(state[1]), propose, start)[2]

    chance = jax.random.uniform(jax.random.fold_in(key, 0), freedom.shape, freedom.dtype)
    return jnp.where(few, square * chance ** (2 / freedom), square)


def gaussian_rows(
    fixed: Float[Array, "row coordinate"],
    folded: Float[Array, "half rest"],
    diagonal: Float[Array, " row"],
    width: Float[Array, ""],
) -> Float[Array, "row all"]:
    """A Gaussian matrix G of variance 1/d in coordinates: G = [F, B] with orthonormal directions along the columns.

    F = `fixed`/√d holds the coordinates along directions given beforehand. The rest of G is in a basis made of its own
    rows (Bartlett 1933), so B is lower triangular: `diagonal`, and below it `unfold(folded)`/√d. Where an entry of
    the diagonal is 0, no dimension is left for that direction, and its column is 0. `fixed` and `folded` are standard
    normals.
    """
    below = unfold(folded, diagonal.shape[0]) * (diagonal > 0).astype(width.dtype)[None]
    return jnp.concatenate([fixed / jnp.sqrt(width), below / jnp.sqrt(width) + jnp.diag(diagonal)], axis=1)


def folded_shape(rows: int) -> tuple[int, int]:
    """The shape ⌈rows/2⌉ × (rows − 1) of the normals that `unfold` arranges below a diagonal."""
    return -(-rows // 2), rows - 1


def unfold(folded: Float[Array, "half rest"], rows: int) -> Float[Array, "row row"]:
    """Fill the strictly lower part of a rows × rows matrix from an array of half that size, each number used once.

    Rows r and rows − 1 − r of the lower part have rows − 1 numbers together: row r takes the first r of a given row,
    and row rows − 1 − r the others, in reverse order. Where `rows` is odd, half of the last given row is not used.
    """
    return jnp.tril(jnp.pad(jnp.concatenate([folded, folded[: rows // 2][::-1, ::-1]]), ((0, 0), (0, 1))), -1)
