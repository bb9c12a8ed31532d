"""Tokens in as few coordinates as they span, and the law of a Gaussian matrix in a basis of its own rows."""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from rc_jax.collapse.mean_residual import MeanResidual


@jax.custom_jvp
def triangle(rows: Float[Array, "row feature"]) -> Float[Array, "row row"]:
    """A lower triangle T with T Tᵀ = A Aᵀ: the rows of A by their coordinates in a basis of their span.

    By products of matrices and two Cholesky factors, without the loss of half the digits that one would mean (shifted
    Cholesky QR, Fukaya et al. 2020): rows are taken at unit length, A Aᵀ + s = L Lᵀ with
    s a few n roundings, and the same again for B = L⁻¹A, B Bᵀ + s = M Mᵀ. Then T = L M/√(1+s) has

        T Tᵀ = A Aᵀ + s²/(1+s)

    exactly, rounding apart: what is added is less than a rounding, and no rows are too close to each other for it.

    The derivative is taken with the basis Q of A = T Q held: what dA adds outside the span changes inner products in
    second order only. So it is dA Qᵀ, and where rows depend on each other nothing is divided by zero.
    """
    size, first, _, second = _two_factors(rows)
    return size * jnp.matmul(first, second, precision="highest")


@triangle.defjvp
def _triangle_derivative(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    size, first, rest, second = _two_factors(primals[0])
    basis = _solve(second, rest)
    out = size * jnp.matmul(first, second, precision="highest")
    return out, jnp.matmul(tangents[0], basis.T, precision="highest")


def _two_factors(rows: Array) -> tuple[Array, Array, Array, Array]:
    """The rows' lengths, L, L⁻¹A and M/√(1+s)."""
    n, features = rows.shape
    shift = jnp.asarray((64 + 4 * n + features**0.5) * jnp.finfo(rows.dtype).eps, rows.dtype)

    def factor(a: Array) -> Array:
        gram = jnp.matmul(a, a.T, precision="highest")
        return jnp.linalg.cholesky(gram + shift * jnp.eye(n, dtype=rows.dtype))

    size = jnp.max(jnp.abs(rows), axis=1, keepdims=True)
    size = jnp.where(size > 0, size, 1)
    size = size * jnp.linalg.norm(rows / size, axis=1, keepdims=True)
    size = jnp.where(size > 0, size, 1)
    unit = rows / size
    first = factor(unit)
    rest = _solve(first, unit)
    return size, first, rest, factor(rest) * jax.lax.rsqrt(1 + shift)


def _solve(lower: Float[Array, "row row"], right: Float[Array, "row feature"]) -> Float[Array, "row feature"]:
    """L⁻¹A by products: with the inverse, and once more for what that leaves, so that L times it is A to rounding.

    LAPACK's solver wakes threads of its own for the smallest matrix, and on a busy machine waits whole time slices for
    them.
    """
    inverse = functools.partial(jnp.matmul, _inverse(lower), precision="highest")
    first = inverse(right)
    return first + inverse(right - jnp.matmul(lower, first, precision="highest"))


def _inverse(lower: Float[Array, "row row"]) -> Float[Array, "row row"]:
    """The inverse of a lower triangle, from those of its diagonal blocks, twice as large each time."""
    n = lower.shape[0]
    padded = 1 << (n - 1).bit_length()
    lower = jnp.pad(lower, (0, padded - n)) + jnp.diag((jnp.arange(padded) >= n).astype(lower.dtype))
    blocks = 1 / jnp.diagonal(lower)[:, None, None]
    while len(blocks) > 1:
        pairs, size = len(blocks) // 2, blocks.shape[1]
        corner = lower.reshape(pairs, 2, size, pairs, 2, size)[jnp.arange(pairs), 1, :, jnp.arange(pairs), 0]
        above, below = blocks[::2], blocks[1::2]
        corner = -jnp.matmul(below, jnp.matmul(corner, above, precision="highest"), precision="highest")
        upper = jnp.concatenate([above, jnp.zeros_like(above)], axis=2)
        blocks = jnp.concatenate([upper, jnp.concatenate([corner, below], axis=2)], axis=1)
    return blocks[0, :n, :n]


def extend(state: MeanResidual, columns: int) -> MeanResidual:
    """The same tokens with so many further coordinates, all zero."""
    mean, direction = jnp.pad(state.mean, (0, columns)), jnp.pad(state.direction, ((0, 0), (0, columns)))
    return MeanResidual(mean, direction, state.log_size)


def compress(state: MeanResidual) -> MeanResidual:
    """The same n tokens, up to a rotation, in n coordinates that depend on their inner products alone.

    Mean and differences are factored side by side, so that neither is rounded at the other's size. The last difference
    is left out, being minus the sum of the others.
    """
    lower = triangle(jnp.concatenate([state.mean[None], state.direction[:-1]]))
    direction = jnp.concatenate([lower[1:], -jnp.sum(lower[1:], axis=0, keepdims=True)])
    direction = jnp.where(jnp.all(state.direction == 0), 0, direction)  # equal tokens stay so to the last bit
    return MeanResidual(lower[0], direction, state.log_size)


def gaussian_diagonal(key: Array, rows: int, dimensions: ArrayLike, width: Float[Array, ""]) -> Float[Array, " row"]:
    """√(χ²_{d'−i}/d) for rows i = 0, 1, … of a Gaussian matrix of variance 1/d in d' dimensions; 0 from row d' on.

    What is left of row i outside the rows before it. As d and d' go to infinity together it is 1, and that is what
    comes for an infinite `width`.
    """
    freedom = dimensions - jnp.arange(rows).astype(width.dtype)
    usual = jnp.isfinite(freedom) & (freedom > 0)
    square = 2 * jax.random.gamma(key, jnp.where(usual, freedom, 1) / 2, dtype=width.dtype)
    ratio = jnp.sqrt(square / jnp.where(jnp.isfinite(width), width, 1))
    return jnp.where(usual, ratio, jnp.where(freedom > 0, 1, 0))


def gaussian_rows(
    normals: Float[Array, "row coordinate"], diagonal: Float[Array, " row"] | None, width: Float[Array, ""]
) -> Float[Array, "row coordinate"]:
    """A Gaussian matrix of variance 1/d by its coordinates: along fixed directions, then in a basis of its own rest.

    Along fixed directions it is plain normals: all columns but the last ones, as many as `diagonal` is long. The rest
    of row i spans a direction of its own, with length `diagonal[i]`, and is plain normals along those of the rows
    before it (Bartlett 1933); where the length is 0 all dimensions are used up and there is no direction.
    """
    normals = normals / jnp.sqrt(width)
    if diagonal is None:
        return normals
    fixed = normals.shape[1] - diagonal.shape[0]
    below = jnp.tril(normals[:, fixed:], -1) * (diagonal > 0).astype(width.dtype)[None]
    return jnp.concatenate([normals[:, :fixed], below + jnp.diag(diagonal)], axis=1)
