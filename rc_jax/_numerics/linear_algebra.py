"""Triangular factors of Gram matrices, and spectral norms.

In A = T Q with orthonormal rows of Q, row i of the factor T holds the coordinates of row i of A in that basis.

On CPUs the factors are made of matrix products alone, without LAPACK. Where several devices of one process factorise at
the same time, LAPACK's calls wait for threads that the others hold, for ever on a machine with few cores; and its
solver wakes threads of its own for the smallest matrix. Elsewhere the factor is that of a QR decomposition.
"""

import functools
import math

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


@jax.jit
def spectral_norm(matrix: Float[Array, "*batch row column"]) -> Float[Array, "*batch"]:
    """‖matrix‖₂; 0 or infinite only where the norm itself leaves the dtype.

    See `log_spectral_norm` for its digits and derivatives.
    """
    norm, (size,) = _norm_and_sizes(matrix, None)
    return norm * size


@jax.jit
def log_spectral_norm(
    left: Float[Array, "*batch row width"], right: Float[Array, "*batch width column"] | None = None
) -> Float[Array, "*batch"]:
    """Log ‖left·right‖₂, or log ‖left‖₂ where there is no `right`; −∞ where the product is 0, with a derivative of 0.

    Powers of two are taken out of both factors, so that no product leaves the dtype. Factors may nearly cancel: with
    the rounding ε and r = ε‖left‖₂‖right‖₂/‖left·right‖₂, the norm is right to r/50 + r² in float32 (less in float64)
    and a few roundings, by which it can be too small as well. The product as it is computed would be right to r.

    It is the length of left·right·v for a unit vector v, which repeated squaring of a Gram matrix finds: a power
    iteration of 2^40 steps. The first derivative is that at fixed v; higher ones are not right.
    """
    norm, sizes = _norm_and_sizes(left, right)
    zero = norm == 0
    return jnp.where(zero, -jnp.inf, jnp.log(jnp.where(zero, 1, norm)) + sum(map(jnp.log, sizes)))


def _norm_and_sizes(left: Array, right: Array | None) -> tuple[Array, list[Array]]:
    """A norm of ordinary size, and powers of two that it has to be multiplied by."""
    left, size = _without_size(left)
    sizes = [size[..., 0, 0]]
    if right is None:
        image, vector = _leading(jax.lax.stop_gradient(left))
        moved = _product(left, vector)
    else:
        right, size = _without_size(right)
        sizes.append(size[..., 0, 0])
        image, vector = _leading_of_product(*jax.lax.stop_gradient((left, right)))
        moved = _product(left, _product(right, vector))
    length = jnp.linalg.norm(image, axis=-2, keepdims=True)
    unit = image / jnp.where(length > 0, length, 1)
    # uᵀ·left·right·v has the derivative. As a number it has less digits than the image, which replaces it.
    plain = jnp.sum(unit * moved, axis=(-2, -1))
    return plain + jax.lax.stop_gradient(length[..., 0, 0] - plain), sizes


def _leading(matrix: Float[Array, "*batch row column"]) -> tuple[Array, Array]:
    """M·v and the unit vector v for which it is longest; both are 0 where the matrix is."""
    power = _gram(_scaled(matrix))
    power = jax.lax.fori_loop(0, _SQUARINGS, lambda _, matrix: _scaled(_product(matrix, matrix)), _scaled(power))
    # All columns of the power point along the leading vector; the longest has the fewest rounding errors.
    column = jnp.argmax(jnp.sum(jnp.square(power), axis=-2), axis=-1)[..., None, None]
    vector = _scaled(jnp.take_along_axis(power, column, axis=-1))
    # Plain power steps with the matrix itself remove the rounding errors of the squares.
    vector = jax.lax.fori_loop(0, 3, lambda _, v: _scaled(_product(_transpose(matrix), _product(matrix, v))), vector)
    length = jnp.linalg.norm(vector, axis=-2, keepdims=True)
    vector = vector / jnp.where(length > 0, length, 1)
    return _product(matrix, vector), vector


def _leading_of_product(
    left: Float[Array, "*batch row width"], right: Float[Array, "*batch width column"]
) -> tuple[Array, Array]:
    """The same of left·right; where that has more columns than `left`, in a basis of the rows of `right`.

    A rounding of the basis turns v by r (see `log_spectral_norm`), which costs r² of the norm. A rounding of the
    product would cost r of it, so the products are made of two parts.
    """
    if right.shape[-2] >= right.shape[-1]:
        return _leading(jnp.add(*_in_two_parts(left, right)))
    basis = _transpose(_basis(right))
    large, small = _in_two_parts(right, basis)
    large, size = _without_size(large)
    whole, rest = _in_two_parts(left, large)
    image, vector = _leading(whole + (rest + _product(left, small / size)))
    vector = _product(basis, vector)
    length = jnp.linalg.norm(vector, axis=-2, keepdims=True)
    length = jnp.where(length > 0, length, 1)
    return size * image / length, vector / length


def _in_two_parts(
    a: Float[Array, "*batch row width"], b: Float[Array, "*batch width column"]
) -> tuple[Float[Array, "*batch row column"], Float[Array, "*batch row column"]]:
    """A·B, of entries below 2 in size, as the product of their leading digits, which rounds nothing, and the rest.

    Leading digits are whole multiples of a power of two: sums of `width` products of two of them fit into the dtype.
    """
    digits = max(2, (jnp.finfo(a.dtype).nmant + 1 - math.ceil(math.log2(a.shape[-1]))) // 2 - 1)
    leading_a, leading_b = (jnp.round(x * 2.0**digits) / 2.0**digits for x in (a, b))
    return _product(leading_a, leading_b), _product(leading_a, b - leading_b) + _product(a - leading_a, b)


def _basis(rows: Float[Array, "*batch row column"]) -> Float[Array, "*batch row column"]:
    """Orthonormal rows that span those given, by Gram and Schmidt; 0 for a row in the span of those before it."""

    def orthogonalise(index: Array, basis: Array) -> Array:
        row = jax.lax.dynamic_slice_in_dim(rows, index, 1, axis=-2)
        for _ in range(2):  # the second time removes what rounding left the first time
            row = row - _product(_product(row, _transpose(basis)), basis)
        length = jnp.linalg.norm(row, axis=-1, keepdims=True)
        return jax.lax.dynamic_update_slice_in_dim(basis, row / jnp.where(length > 0, length, 1), index, axis=-2)

    return jax.lax.fori_loop(0, rows.shape[-2], orthogonalise, jnp.zeros_like(rows))


def _without_size(x: Float[Array, "*batch row column"]) -> tuple[Array, Float[Array, "*batch one one"]]:
    """Every matrix over a power of two, which rounds nothing, with a largest entry in [1, 2), and that power."""
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(x), axis=(-2, -1), keepdims=True))
    limits = jnp.finfo(x.dtype)
    # A number without the bits of its mantissa is the power of two below it.
    bits = jax.lax.bitcast_convert_type(largest, jnp.dtype(f"uint{limits.bits}")) >> limits.nmant << limits.nmant
    power = jnp.where(largest >= limits.tiny, jax.lax.bitcast_convert_type(bits, x.dtype), 1)
    # In two steps: the inverse of the largest power is below the normal numbers.
    step = jnp.where(power > 1, 0.25, 4).astype(x.dtype)
    return x / (power * step) * step, power


def _scaled(x: Float[Array, "*batch row column"]) -> Float[Array, "*batch row column"]:
    """Every matrix over its largest entry; zeros stay zeros."""
    largest = jnp.max(jnp.abs(x), axis=(-2, -1), keepdims=True)
    return x / jnp.where(largest > 0, largest, 1)


def _transpose(x: Array) -> Array:
    return jnp.swapaxes(x, -1, -2)


def _gram(x: Array) -> Array:
    return _product(_transpose(x), x)
