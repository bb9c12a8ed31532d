"""Gaussian matrices by their coordinates, and layers of collapsed tokens, against what they stand for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from rc_jax import attention, network
from rc_jax.attention import AttentionParams
from rc_jax.collapse.exact import attention as split_attention
from rc_jax.collapse.exact import state as mean_residual
from rc_jax.collapse.width_free import gaussian_matrices, layers
from tests.collapse.width_free.test_sampling import draws, tokens


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "plain"), [(4, 0), (4, 3), (5, 0)])
def test_law_of_one_gaussian_matrix(x64, rows, plain):
    """Its Gram matrix is Wishart; its coordinates in fixed directions are normals that belong to it."""
    d = 6
    size = jnp.asarray(float(d))

    def sample(key):
        k1, k2 = jax.random.split(key)
        diagonal = gaussian_matrices.gaussian_diagonal(k1, rows, size - plain, size)
        of_fixed, of_folded = jax.random.split(k2)
        fixed = jax.random.normal(of_fixed, (rows, plain))
        folded = jax.random.normal(of_folded, gaussian_matrices.folded_shape(rows))
        g = gaussian_matrices.gaussian_rows(fixed, folded, diagonal, size) * jnp.sqrt(size)
        return _summary(g, plain)

    def features(key):
        return _summary(jax.random.normal(key, (rows, d)), plain)

    # 40 000 of this seed are an unlucky sample (p = 2e-4 for the trace); 2.4 million of other seeds show nothing.
    got, wanted = (draws(fn, 400_000, seed, batch=10_000) for seed, fn in enumerate((sample, features)))
    for a, b in zip(got.T, wanted.T, strict=True):
        assert stats.ks_2samp(a, b).pvalue > 1e-4
    # Against E tr G² and E tr G³ of a Wishart matrix, which are exact.
    squares, cubes = rows * d * (d + rows + 1), rows * d * (d**2 + rows**2 + 3 * rows * d + 3 * d + 3 * rows + 4)
    for column, exact in ((4, squares), (5, cubes)):
        assert abs(got[:, column].mean() - exact) < 5 * got[:, column].std() / np.sqrt(len(got))
    # The trace of the Gram matrix is χ² with one degree of freedom for each entry.
    assert stats.kstest(got[:, 0], stats.chi2(rows * d).cdf).pvalue > 1e-4


def _summary(g, plain):
    gram = g @ g.T
    square = gram @ gram
    statistics = [jnp.trace(gram), gram[0, 1], gram[3, 3], gram[3, 2], jnp.trace(square), jnp.trace(square @ gram)]
    if plain:
        statistics += [g[0, 0] * gram[0, 1], g[3, 2], jnp.sum(g[:, :plain]) * gram[3, 3]]
    return jnp.stack(statistics)


@pytest.mark.parametrize("rows", [1, 2, 5, 6])
def test_every_number_below_the_diagonal_is_another_one(rows):
    half, rest = gaussian_matrices.folded_shape(rows)
    folded = jnp.arange(1.0, half * rest + 1).reshape(half, rest)
    laid = np.asarray(gaussian_matrices.unfold(folded, rows))
    below = laid[np.tril_indices(rows, -1)]
    assert laid.shape == (rows, rows) and np.count_nonzero(laid) == below.size == len(set(below.tolist()))
    assert half * rest - below.size == (rows % 2) * (rows - 1) // 2  # not used


@pytest.mark.parametrize("freedom", [0.5, 1.0, 2.0, 3.5, 40.0])
def test_law_of_chi_squares(freedom):
    drawn = np.asarray(gaussian_matrices.chi_squares(jax.random.key(3), jnp.full(400_000, freedom)))
    assert stats.kstest(drawn, stats.chi2(freedom).cdf).pvalue > 1e-3


@pytest.mark.parametrize("width", [1e30, 1e38, float("inf")])
def test_diagonal_of_a_width_near_the_largest_number(key, width):
    size = jnp.float32(width)
    np.testing.assert_allclose(gaussian_matrices.gaussian_diagonal(key, 3, size, size), np.ones(3), rtol=1e-6)


@pytest.mark.slow
def test_a_layer_of_collapsed_tokens_is_the_general_layer(x64, key):
    """Its differences by their inner products, as the heads give them: before Q W_O, which depends on the basis."""
    spec = attention.AttentionSpec(d_model=6, heads=2, d_head=2)
    alpha, inner = jnp.asarray([0.6, 0.9]), jax.random.normal(key, (3, 2, 6, 2))
    state = mean_residual.decompose(1.0 + 1e-9 * tokens(7, 6, "float64"))

    def collapsed(state):
        return layers.has_collapsed(state, layers.log_logit_deviation(state, alpha, jnp.asarray(1.0), spec))

    assert not collapsed(state)
    state = state._replace(difference=state.difference.times_exp(-30.0))
    assert collapsed(state)
    heads = split_attention.side_by_side(
        split_attention.heads(AttentionParams(*inner, inner[0]), state, spec, alpha, None)
    )
    got = layers.collapsed_layer(state, jnp.swapaxes(inner, -1, -2), jnp.eye(4), alpha, spec)
    np.testing.assert_allclose(got.log_norm, heads.log_norm, rtol=1e-13)
    products, wanted = (
        each.direction @ each.direction.T / jnp.sum(jnp.square(each.direction)) for each in (got, heads)
    )
    np.testing.assert_allclose(products, wanted, atol=1e-12)


@pytest.mark.slow
def test_rough_factors_of_collapsed_layers_leave_the_law_alone(x64):
    """The same normals in float32, whose factors are shifted by 10⁻⁵, and in float64, where they are not to be seen."""
    n, heads, width, d, depth, count = 12, 4, 4, 24, 4, 4000
    spec = attention.AttentionSpec(d_model=n, heads=heads, d_head=width)

    def logs(key, dtype):
        start = mean_residual.decompose(jax.random.normal(key, (n, n), "float32").astype(dtype))

        def layer(state, number):
            of_inner, of_rows, of_diagonal = jax.random.split(jax.random.fold_in(key, number), 3)
            inner = jax.random.normal(of_inner, (3, heads, width, n))
            size = jnp.asarray(float(d))
            diagonal = gaussian_matrices.gaussian_diagonal(of_diagonal, n, size, size)
            folded = jax.random.normal(of_rows, gaussian_matrices.folded_shape(n))
            output = gaussian_matrices.gaussian_rows(jnp.zeros((n, 0)), folded, diagonal, size)
            state = layers.collapsed_layer(
                state, inner.astype(dtype), output.astype(dtype), jnp.full(heads, 0.5, dtype), spec
            )
            return state, state.log_size

        return jax.lax.scan(layer, start._replace(difference=start.difference.times_exp(-20.0)), jnp.arange(depth))[1]

    regularised, exact = (
        draws(lambda key, dtype=dtype: logs(key, dtype), count, 7) for dtype in ("float32", "float64")
    )
    moved = (regularised - exact) / np.abs(exact)
    assert np.all(np.median(np.abs(moved), axis=0) < 1e-5)
    assert np.all(np.abs(moved.mean(axis=0)) < 5 * moved.std(axis=0) / np.sqrt(count) + 5e-7)
    assert np.all(moved.std(axis=0) < 1e-2 * exact.std(axis=0) / np.abs(exact.mean(axis=0)))


@pytest.mark.slow
def test_rough_factors_of_calm_layers_move_a_draw_by_little():
    """Two layers of the same normals, with the regularised factor and with the exact one."""
    spec = network.StackSpec(attention=attention.AttentionSpec(d_model=12, heads=4, d_head=4), depth=2)

    def log_norm(key, unsaturated):
        of_start, *of_layers = jax.random.split(key, 3)
        state = mean_residual.decompose(jax.random.normal(of_start, (12, 12)))
        for of_layer in of_layers:
            of_inner, of_output = jax.random.split(of_layer)
            inner, output = jax.random.normal(of_inner, (3, 4, 4, 12)), jax.random.normal(of_output, (12, 12)) / 12
            state = layers.general_layer(state, inner, output, jnp.full(4, 0.05), spec, None, jnp.asarray(unsaturated))
        return state.log_norm

    regularised, exact = (
        draws(lambda key, unsaturated=unsaturated: log_norm(key, unsaturated), 400, 9) for unsaturated in (True, False)
    )
    assert not np.array_equal(regularised, exact)
    np.testing.assert_allclose(regularised, exact, rtol=0, atol=1e-2 * float(exact.std()))
