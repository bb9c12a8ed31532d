"""The laws by which masked, low-rank and full attention collapse, each against a derivation of its own."""

import fractions
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import attention, collapse, network
from rc_jax.attention import masks


def blind(d, depth):
    """Attention that cannot tell scores apart and whose values are the tokens: X ← D⁻¹A X."""
    stack = network.StackSpec(attention=attention.AttentionSpec(d_model=d), depth=depth)
    params = network.init(jax.random.key(0), stack)
    eye = jnp.broadcast_to(jnp.eye(d), (depth, 1, d, d))
    return stack, params._replace(
        attention=params.attention._replace(query=jnp.zeros((depth, 1, d, d)), value=eye, output=eye)
    )


def log_residual(rows):
    """log ‖X − mean‖_F of a column of fractions, rounded at the very end."""
    mean = sum(rows) / len(rows)
    return 0.5 * math.log(sum((row - mean) ** 2 for row in rows))


@pytest.mark.slow
def test_causal_averaging_by_newtons_series(x64):
    """(P^l x)_i = Σ_m m^(−l) C(i − 1, m − 1) (Δ^(m−1) x)_1: eigenvalues 1, 1/2, …, 1/n, in exact fractions."""
    n, depth = 7, 30
    values = [fractions.Fraction(int(v)) for v in (3, -1, 4, 1, -5, 9, 2)]
    differences, row = [], values
    while row:
        differences.append(row[0])
        row = [b - a for a, b in itertools.pairwise(row)]
    expected = [
        log_residual([
            sum(math.comb(i, m) * differences[m] / fractions.Fraction(m + 1) ** layer for m in range(n))
            for i in range(n)
        ])
        for layer in range(depth + 1)
    ]  # fmt: skip
    stack, params = blind(1, depth)
    x = jnp.array([[float(v)] for v in values])
    logs = collapse.log_residuals(params, x, stack, mask=masks.causal(n))
    np.testing.assert_allclose(logs, expected, rtol=1e-13)
    assert abs(float(logs[-1] - logs[-2]) + math.log(2)) < 1e-4


@pytest.mark.parametrize("kind", ["window", pytest.param("random", marks=pytest.mark.slow)])
def test_blind_attention_falls_by_the_second_eigenvalue(kind, x64, key):
    mask = masks.window(9, 2) if kind == "window" else masks.random(key, 9, 0.4)
    depth, edges = 400, np.asarray(mask, float)
    moduli = np.sort(np.abs(np.linalg.eigvals(edges / edges.sum(axis=1, keepdims=True))))
    stack, params = blind(2, depth)
    logs = collapse.log_residuals(params, jax.random.normal(jax.random.key(1), (9, 2)), stack, mask=mask)
    assert abs(float(logs[-1] - logs[100]) / 300 - math.log(moduli[-2])) < 0.01


@pytest.mark.slow
def test_rows_repeated_are_the_layer_of_lower_rank(key, rank=2):
    """Softmax over equal columns, equally many of each: P E is the same."""
    n, d = 8, 6
    narrow = network.StackSpec(attention=attention.AttentionSpec(d_model=d, heads=2, rank=rank, tokens=n), depth=4)
    wide = network.StackSpec(attention=attention.AttentionSpec(d_model=d, heads=2, rank=n, tokens=n), depth=4)
    params = network.init(key, narrow)
    pool = params.attention.parts["pool"]
    assert pool is not None
    more = params._replace(attention=params.attention.with_parts(pool=jnp.repeat(pool, n // rank, axis=-2)))
    x = jax.random.normal(jax.random.fold_in(key, 1), (n, d))
    np.testing.assert_allclose(network.apply(params, x, narrow), network.apply(more, x, wide), rtol=2e-4, atol=1e-6)
    np.testing.assert_allclose(
        collapse.log_residuals(params, x, narrow), collapse.log_residuals(more, x, wide), rtol=1e-4, atol=1e-4
    )


@pytest.mark.slow
def test_one_average_leaves_no_difference(key):
    stack = network.StackSpec(attention=attention.AttentionSpec(d_model=4, rank=1, tokens=5), depth=2)
    params = network.init(key, stack)
    x = jax.random.normal(jax.random.fold_in(key, 1), (5, 4))
    assert (collapse.log_residuals(params, x, stack)[1:] == -jnp.inf).all()


@pytest.mark.slow
def test_cube_of_a_rank_one_difference_by_its_law(key):
    """Tokens e^ℓ u vᵀ of mean 0 become (e^{3ℓ}/n) u Σ_h (v A_h v) v W_h: drawn here as numbers, without any layer."""
    n, d, heads, count, log_size = 6, 16, 4, 400, -30.0
    stack = network.StackSpec(attention=attention.AttentionSpec(d_model=d, heads=heads), depth=1)
    u, v = np.linspace(-1, 1, n), np.linspace(1, 2, d)
    x = jnp.asarray(math.exp(log_size) * np.outer(u, v) / np.linalg.norm(np.outer(u, v)), jnp.float32)

    def factor(one):
        return collapse.log_residuals(network.init(one, stack), x, stack)[1]

    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(key, jnp.arange(count))
    measured = np.asarray(jax.jit(jax.vmap(factor))(keys), float) - 3 * log_size + math.log(n)

    random, width = np.random.default_rng(1), d // heads
    query, keyed, value = random.standard_normal((3, 100_000, heads, width)) / math.sqrt(d)
    score = (query * keyed).sum(axis=-1) / math.sqrt(width)
    variance = (score**2 * (value**2).sum(axis=-1)).sum(axis=-1) / d
    law = 0.5 * np.log(variance * random.chisquare(d, 100_000))
    error = math.hypot(measured.std() / math.sqrt(count), law.std() / math.sqrt(law.size))
    assert abs(measured.mean() - law.mean()) < 5 * error
    assert abs(measured.std() / law.std() - 1) < 0.2
