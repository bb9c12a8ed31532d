"""Triangular factors of Gram matrices, and spectral norms.

In A = T Q with orthonormal rows of Q, row i of the factor T holds the coordinates of row i of A in that basis.

On CPUs the factors are made of matrix products alone, without LAPACK. Where several devices of one process factorise at
the same time, LAPACK's calls wait for threads that the others hold, for ever on a machine with few cores; and its
solver wakes threads of its own for the smallest matrix. Elsewhere the factor is that of a QR decomposition.
"""

import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from rc_jax._numerics import performance
from rc_jax._numerics.stable import divide_by_largest

_BLOCK = 8  # rows that are eliminated together
_SQUARINGS = 40  # of a Gram matrix, for its leading vector
_product = functools.partial(jnp.matmul, precision="highest")


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def gram_factor(rows: Float[Array, "row feature"], regularised: bool = False) -> Float[Array, "row row"]:
    """A lower triangular T with T Tᵀ = A Aᵀ to rounding, relative to the rows' lengths.

    Where `regularised` is true, a CPU computes T Tᵀ = (A Aᵀ + s diag(A Aᵀ))/(1 + s) with s a few n roundings. That
    takes less than a third of the time (measured 2026-11). Inner products are then right to s of the lengths, but the
    part of a row outside the span of the rows before it is never shorter than √s of the row.

    The derivative is dA Qᵀ, where the basis Q of A = T Q is held constant: a change of A outside the span of its rows
    changes inner products in second order only. Nothing is divided by zero where rows depend on each other.
    """
    return performance.on_cpu(functools.partial(by_products, regularised=regularised), by_reflections, rows)[0]


@gram_factor.defjvp
def _derivative(regularised: bool, primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    factor, basis = performance.on_cpu(
        functools.partial(by_products, regularised=regularised, with_basis=True), by_reflections, *primals
    )
    return factor, _product(tangents[0], basis.T)


def by_reflections(rows: Float[Array, "row feature"]) -> tuple[Array, Array]:
    """T and Q of A = T Q by Householder's reflections, as LAPACK and cuSOLVER have them."""
    n, features = rows.shape
    basis, upper = jnp.linalg.qr(jnp.pad(rows, ((0, 0), (0, max(0, n - features)))).T)
    return upper.T, basis.T[:, :features]


def by_products(
    rows: Float[Array, "row feature"], regularised: bool = False, with_basis: bool = False
) -> tuple[Array, Array]:
    """T and Q of A = T Q by two Cholesky factors (shifted Cholesky QR, Fukaya et al. 2020).

    Rows are taken at unit length. With s a few n roundings and I the identity, A Aᵀ + sI = L Lᵀ, and the same again for
    B = L⁻¹A, B Bᵀ + sI = M Mᵀ. Then T = L M/√(1+s) has

        T Tᵀ = A Aᵀ + s²/(1+s) I

    exactly, rounding apart: what is added is less than a rounding, and no rows are too close to each other for it.
    The regularised T is L/√(1+s). XLA's loops also compute results that are not used, so Q is 0 unless `with_basis` is
    true.
    """
    n, features = rows.shape
    shift = jnp.asarray((64 + 4 * n + features**0.5) * jnp.finfo(rows.dtype).eps, rows.dtype)
    unit, largest = divide_by_largest(rows, axis=1)
    length = jnp.linalg.norm(unit, axis=1, keepdims=True)
    unit = unit / jnp.where(length == 0, 1, length)
    identity, root = jnp.eye(n, dtype=rows.dtype), jnp.sqrt(1 + shift)
    length, shifts, nothing, no_basis = largest * length, shift * identity, identity[:, :0], jnp.zeros_like(rows)
    # `first` is L, `rest` is B and `second` is M; each comes with its inverse where that is needed.
    first, inverse = cholesky(_product(unit, unit.T) + shifts, nothing if regularised and not with_basis else identity)
    if regularised:
        return length * first / root, root * _solved(first, inverse, unit) if with_basis else no_basis
    rest = _solved(first, inverse, unit)
    second, inverse = cholesky(_product(rest, rest.T) + shifts, identity if with_basis else nothing)
    return length * _product(first, second) / root, root * _solved(second, inverse, rest) if with_basis else no_basis


def _solved(
    lower: Float[Array, "row row"], inverse: Float[Array, "row row"], right: Float[Array, "row column"]
) -> Float[Array, "row column"]:
    """L⁻¹B with one step of refinement: X = L⁻¹B by the inverse, and then X + L⁻¹(B − L X)."""
    first = _product(inverse, right)
    return first + _product(inverse, right - _product(lower, first))


def cholesky(
    gram: Float[Array, "row row"], right: Float[Array, "row column"]
) -> tuple[Float[Array, "row row"], Float[Array, "row column"]]:
    """L and L⁻¹B, for a positive definite G = L Lᵀ: eliminating below the diagonal of (G, B) leaves (Lᵀ, L⁻¹B)."""
    n = gram.shape[0]
    block = min(n, _BLOCK)
    size = -(-n // block) * block
    # Rows and columns of the identity extend G to a whole number of blocks.
    fill = size - n
    gram = jnp.pad(gram, (0, fill)) + jnp.diag(jnp.where(jnp.arange(size) < n, 0, 1).astype(gram.dtype))
    both = jnp.concatenate([gram, jnp.pad(right, ((0, fill), (0, 0)))], axis=1)
    row_index = jnp.arange(size)

    def eliminate(index: Array, both: Array) -> Array:
        start = index * block
        # The rows of this block are multiplied by the inverse of its own factor, with one step of refinement.
        panel = jax.lax.dynamic_slice_in_dim(both, start, block)
        factor, inverse = _small_cholesky(jax.lax.dynamic_slice_in_dim(panel, start, block, axis=1))
        rows = _product(inverse, panel)
        rows = rows + _product(inverse, panel - _product(factor, rows))
        # Their diagonal block is the transposed factor itself; the product with the inverse has fewer of its digits.
        rows = jax.lax.dynamic_update_slice_in_dim(rows, factor.T, start, axis=1)
        # Multiples of them are subtracted from the rows below. The multipliers of row r are their entries in column r.
        factors = jnp.where(row_index >= start + block, rows[:, :size], 0).T
        return jax.lax.dynamic_update_slice_in_dim(both - _product(factors, rows), rows, start, axis=0)

    both = jax.lax.fori_loop(0, size // block, eliminate, both)
    return jnp.triu(both[:n, :n]).T, both[:n, size:]


def _small_cholesky(gram: Float[Array, "row row"]) -> tuple[Float[Array, "row row"], Float[Array, "row row"]]:
    """L and L⁻¹ of a positive definite matrix L Lᵀ, row by row: eliminating in (L Lᵀ, 1) leaves (Lᵀ, L⁻¹)."""
    n = gram.shape[0]
    row_index = jnp.arange(n)

    def eliminate(j: Array, both: Array) -> Array:
        row = jax.lax.dynamic_index_in_dim(both, j, keepdims=False)
        row = row * jax.lax.rsqrt(jax.lax.dynamic_index_in_dim(row, j))
        factors = jnp.where(row_index > j, row[:n], 0)
        return jnp.where((row_index == j)[:, None], row[None], both - factors[:, None] * row[None])

    both = jax.lax.fori_loop(0, n, eliminate, jnp.concatenate([gram, jnp.eye(n, dtype=gram.dtype)], axis=1))
    return jnp.triu(both[:, :n]).T, jnp.tril(both[:, n:])


def spectral_norm(
    left: Float[Array, "*batch row width"], right: Float[Array, "*batch width column"] | None = None
) -> Float[Array, "*batch"]:
    """‖left·right‖₂, or ‖left‖₂ where there is no `right`, as ‖left·right·v‖ for the leading right singular vector v.

    An error in v counts only by its square, and the derivative of the norm is that at fixed v. Repeated squaring of
    the Gram matrix finds v, which is a power iteration of 2^40 steps. Where `left` has fewer columns than rows, the
    squared matrix is width × width.
    """
    vector = jax.lax.stop_gradient(_leading_vector(*jax.lax.stop_gradient((left, right))))
    image = _product(left, vector if right is None else _product(right, vector))
    square = jnp.sum(jnp.square(image), axis=(-2, -1))
    zero = square == 0
    return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, square)))


def _leading_vector(left: Array, right: Array | None) -> Float[Array, "*batch column one"]:
    """The unit vector v with ‖left·right·v‖ largest; 0 where the product is 0."""
    left = _scaled(left)
    right = None if right is None else _scaled(right)
    whole = left if right is None else _product(left, right)
    if right is not None and left.shape[-1] < left.shape[-2]:
        # (LR)ᵀ(LR)v = λv; with v = Rᵀy this is (LᵀL)(RRᵀ)y = λy, a smaller problem with the same λ.
        power, back = _product(_gram(left), _gram(_transpose(right))), _transpose(right)
    else:
        power, back = _gram(whole), None
    power = jax.lax.fori_loop(0, _SQUARINGS, lambda _, matrix: _scaled(_product(matrix, matrix)), _scaled(power))
    # All columns of the power point along the leading vector; the longest has the fewest rounding errors.
    column = jnp.argmax(jnp.sum(jnp.square(power), axis=-2), axis=-1)[..., None, None]
    vector = jnp.take_along_axis(power, column, axis=-1)
    vector = _scaled(vector if back is None else _product(back, vector))
    for _ in range(3):  # plain power steps with the matrices themselves remove the rounding errors of the squares
        vector = _scaled(_product(_transpose(whole), _product(whole, vector)))
    length = jnp.linalg.norm(vector, axis=-2, keepdims=True)
    return vector / jnp.where(length > 0, length, 1)


def _scaled(x: Float[Array, "*batch row column"]) -> Float[Array, "*batch row column"]:
    """Every matrix over its largest entry; zeros stay zeros."""
    largest = jnp.max(jnp.abs(x), axis=(-2, -1), keepdims=True)
    return x / jnp.where(largest > 0, largest, 1)


def _transpose(x: Array) -> Array:
    return jnp.swapaxes(x, -1, -2)


def _gram(x: Array) -> Array:
    return _product(_transpose(x), x)
