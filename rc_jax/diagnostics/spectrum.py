"""The two largest singular values of many matrices, by Lanczos steps; all of them on request.

A singular value decomposition of an n × n matrix takes about 10 n³ operations. Sixteen Lanczos steps on AᵀA take 64 n².
They see A through products with vectors alone.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

STEPS = 16


def leading_singular_values(
    a: Float[Array, "... row key"], parts: tuple[Float[Array, "... part row"], Float[Array, "... part key"]]
) -> Float[Array, "... part two"]:
    """σ₁ and σ₂ of the blocks of each matrix, from 16 Lanczos steps on AᵀA with full reorthogonalisation.

    Both are approached from below: they are the singular values of A on a subspace (Rayleigh and Ritz). They are right
    to rounding where they stand apart from the next one. Where many singular values lie close together, as those of
    random or of local weights do, they are too small: for n ≤ 1024 σ₁ by at most 0.2 % and σ₂ by at most 3 %.

    Args:
        a: matrices on the last two axes.
        parts: rows (…, part, row) and keys (…, part, key) of the blocks of each matrix, 1 where they belong to it. The
            values are those of each block, as of that block alone, wherever it stands. Outside its blocks a matrix must
            be 0. One step serves all blocks.

    Source: Golub and Kahan (1965); Lanczos (1950).
    """
    rows, keys = a.shape[-2:]
    inside = [jnp.broadcast_to(each, (*a.shape[:-2], *each.shape[-2:])) for each in parts]
    if rows < keys:  # the basis of the smaller side is complete where it has few dimensions
        a, inside = jnp.swapaxes(a, -1, -2), inside[::-1]
    flat = [each.reshape(-1, *each.shape[-2:]) for each in (a, *inside)]
    values = jax.vmap(functools.partial(_lanczos, steps=min(STEPS, rows, keys)))(*flat)
    return values.reshape(*a.shape[:-2], -1, 2)


def _lanczos(
    a: Float[Array, "row key"], rows: Float[Array, "part row"], keys: Float[Array, "part key"], *, steps: int
) -> Float[Array, "part two"]:
    """`leading_singular_values` of one matrix. Numbers that belong to a part are spread over its keys by a product."""
    size, there = jnp.sum(keys, axis=-1), jnp.sum(keys, axis=0)
    # The start is near the even vector, which is near the first right singular vector of rows that add up to one. What
    # is drawn for a key depends on its place in its part alone.
    place = jnp.einsum("pk,pk->k", jnp.cumsum(keys, axis=-1) - 1, keys).astype(int)
    table = jnp.asarray(np.random.default_rng(0).standard_normal((a.shape[-1], steps)).T, a.dtype)
    draws = table[:, jnp.maximum(place, 0)] * there[None]
    basis, images = jnp.zeros((steps, a.shape[1]), a.dtype), jnp.zeros((steps, a.shape[0]), a.dtype)
    tiny = jnp.finfo(a.dtype).tiny

    def norm(x: Array, inside: Array) -> Array:
        return jnp.sqrt(jnp.matmul(inside, jnp.square(x), precision="highest"))

    def orthogonal(x: Array, basis: Array) -> Array:
        # What is left of x without its parts along the basis; taken twice, which is enough (Kahan, Parlett).
        for _ in range(2):
            along = jnp.matmul(basis * x[None], keys.T, precision="highest")
            x = x - jnp.sum(jnp.matmul(along, keys, precision="highest") * basis, axis=0)
        return x

    def step(index: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        direction, basis, images = carry
        # The new direction orthogonal to all earlier ones; a random one where nothing is left, as for A = 1, so that
        # equal singular values are all seen. A part of fewer keys than steps has no new direction at last.
        fresh, rest = orthogonal(draws[index], basis), orthogonal(direction, basis)
        lost = norm(rest, keys) <= 64 * float(jnp.finfo(a.dtype).eps) * norm(direction, keys)
        rest = jnp.where((lost.astype(a.dtype) @ keys) > 0, fresh, rest)
        unit = rest * (jnp.where(index < size, 1 / jnp.maximum(norm(rest, keys), tiny), 0) @ keys)
        image = jnp.matmul(a, unit, precision="highest")
        # Of the way back only the direction counts: without the size of the image it stays in range as long as A does.
        back = jnp.matmul(image / jnp.maximum(norm(image, rows) @ rows, tiny), a, precision="highest")
        return back * there, basis.at[index].set(unit), images.at[index].set(image)

    _, _, images = jax.lax.fori_loop(0, steps, step, ((1 + 0.3 * draws[0]) * there, basis, images))
    # The singular values of A times the basis, through a triangular factor: products of it would halve the digits.
    factors = jnp.linalg.qr(jnp.swapaxes(images[None] * rows[:, None], -1, -2), mode="r")
    values = jnp.linalg.svd(factors, compute_uv=False)[:, :2]
    return jnp.pad(values, ((0, 0), (0, 2 - values.shape[-1])))


def spectrum_measures(
    a: Float[Array, "... row key"],
    squares: Float[Array, "... row"],
    parts: tuple[Float[Array, "... part row"], Float[Array, "... part key"]],
    full: bool,
) -> dict[str, Float[Array, "... part"]]:
    """Second singular value and ranks of each matrix, or of the blocks that texts make of it.

        second_singular_value  σ₂/σ₁
        stable_rank            Σσ²/σ₁², with Σσ² from the sum of the squared weights
        numerical_rank         how many σ exceed n·eps·σ₁, as LAPACK's users count; only with `full`

    Args:
        a: matrices on the last two axes.
        squares: Σ a² of each row.
        parts: as in `leading_singular_values`.
        full: whether all singular values are computed, which takes about n/6 times as long.
    """
    rows, keys = parts
    if full and min(a.shape[-2:]) > 1:
        blocks = [a * rows[..., part, :, None] * keys[..., part, None, :] for part in range(keys.shape[-2])]
        values = jnp.stack([jnp.linalg.svd(each, compute_uv=False) for each in blocks], axis=-2)
    else:
        values = leading_singular_values(a, parts)
    first = jnp.where(values[..., 0] > 0, values[..., 0], 1)
    measures = {
        "second_singular_value": values[..., 1] / first,
        "stable_rank": jnp.sum(squares[..., None, :] * rows, axis=-1) / jnp.square(first),
    }
    if full:
        length = jnp.maximum(jnp.sum(rows, axis=-1), jnp.sum(keys, axis=-1))
        floor = length[..., None] * float(jnp.finfo(a.dtype).eps) * values[..., :1]
        measures["numerical_rank"] = jnp.sum(values > floor, axis=-1).astype(a.dtype)
    return measures
