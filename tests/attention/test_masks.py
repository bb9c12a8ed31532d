"""Masks by their definitions, entry by entry, and by counting edges."""

import itertools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax.attention import masks


@pytest.mark.parametrize(("n", "size"), [(1, 1), (6, 2), (7, 3), (5, 8), (4, 1)])
def test_block_by_definition(n, size):
    mask = np.asarray(masks.block(n, size))
    assert mask.dtype == bool
    for i, j in itertools.product(range(n), repeat=2):
        assert mask[i, j] == any(start <= i < start + size and start <= j < start + size for start in range(0, n, size))


@pytest.mark.parametrize(("n", "radius", "count"), [(6, 1, 0), (6, 0, 2), (5, 2, 1), (3, 0, 9)])
def test_window_with_global_by_definition(n, radius, count):
    mask = np.asarray(masks.window_with_global(n, radius, count))
    for i, j in itertools.product(range(n), repeat=2):
        assert mask[i, j] == (abs(i - j) <= radius or i < count or j < count)


def test_one_global_token_joins_all_in_two_steps():
    mask = np.asarray(masks.window_with_global(20, 1, 1)).astype(int)
    assert (mask @ mask > 0).all()
    assert not mask.all()


@pytest.mark.slow
@pytest.mark.parametrize("density", [0.1, 0.5, 0.9])
def test_random_has_its_density_in_standard_errors(key, density):
    n, count = 40, 50
    drawn = np.stack([masks.random(jax.random.fold_in(key, i), n, density) for i in range(count)])
    assert drawn[:, np.arange(n), np.arange(n)].all()
    others = drawn[:, ~np.eye(n, dtype=bool)].mean()
    assert abs(others - density) < 5 * np.sqrt(density * (1 - density) / (count * n * (n - 1)))
    loose = np.stack([masks.random(jax.random.fold_in(key, i), n, density, self_loops=False) for i in range(count)])
    diagonal = loose[:, np.arange(n), np.arange(n)].mean()
    assert abs(diagonal - density) < 5 * np.sqrt(density * (1 - density) / (count * n))


def test_random_at_its_ends_and_monotone_in_density(key):
    assert (masks.random(key, 9, 0.0) == jnp.eye(9, dtype=bool)).all()
    assert masks.random(key, 9, 1).all()
    small, large = masks.random(key, 9, 0.3), masks.random(key, 9, 0.6)
    assert (~small | large).all()


def test_one_trace_for_all_densities():

    @jax.jit
    @chex.assert_max_traces(n=1)
    def draw(key, density):
        return masks.random(key, 8, density)

    edges = [int(draw(jax.random.key(1), density).sum()) for density in (0.1, 0.4, 0.8)]
    assert edges == sorted(edges)


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda key: masks.block(4, 0), ValueError, "`size` must be an integer >= 1"),
        (lambda key: masks.block(4, 2.0), TypeError, "`size` must be an integer"),
        (lambda key: masks.block(0, 2), ValueError, "`n` must be"),
        (lambda key: masks.window_with_global(4, -1, 1), ValueError, "`radius` must be"),
        (lambda key: masks.window_with_global(4, 1, -1), ValueError, "`count` must be"),
        (lambda key: masks.random(0, 4, 0.5), TypeError, "`key` must be one typed key"),
        (lambda key: masks.random(key, 4.0, 0.5), TypeError, "`n` must be an integer"),
        (lambda key: masks.random(key, 4, 1.5), ValueError, "`density` must be >= 0 and <= 1, got 1.5"),
        (lambda key: masks.random(key, 4, float("nan")), ValueError, "`density` must be finite"),
        (lambda key: masks.graph(jnp.ones((2, 3))), ValueError, "`adjacency` must be a square matrix"),
        (lambda key: masks.graph(jnp.eye(2, k=1), self_loops=False), ValueError, "must let every .* an empty row 1"),
    ],
)
def test_bad_input_is_named(key, call, error, match):
    with pytest.raises(error, match=match):
        call(key)
