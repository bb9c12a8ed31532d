"""The ordinary anatomy of attention, exactly: how large scores are, their symmetry, and what temperature does."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate

from rc_jax import attention, ensemble, scale, sparsity
from rc_jax.attention import AttentionSpec


def plain(width, dtype=None, **options):
    """A layer whose queries and keys are the tokens themselves."""
    spec = AttentionSpec(d_model=width, **options)
    params = attention.init(jax.random.key(0), spec, dtype=dtype)
    one = jnp.eye(width, dtype=params.query.dtype)[None]
    return params._replace(query=one, key=one), spec


@pytest.mark.parametrize(("values", "width"), [((-1, 1), 6), ((-1, 2), 4), ((-1, 0, 4), 3)])
def test_variance_of_a_score_by_enumeration(x64, values, width):
    """Every q against every k with entries from a small set, all equally likely: moments without sampling."""
    tokens = np.array(list(itertools.product(values, repeat=width)), float)
    params, spec = plain(width)
    score = np.asarray(attention.scores(params, jnp.asarray(tokens), spec, scale=1.0))
    mean, square = np.mean(values), np.var(values)
    assert score.mean() == pytest.approx(width * mean**2, abs=1e-12)
    assert score.var() == pytest.approx(width * (square**2 + 2 * square * mean**2), rel=1e-13)
    scaled = np.asarray(attention.scores(params, jnp.asarray(tokens), spec))
    assert scaled.var() == pytest.approx(score.var() / width, rel=1e-13)
    if mean == 0:  # variance d, fourth moment 3d² + (κ² − 3)d with κ = 1
        assert score.var() == pytest.approx(width, rel=1e-14)
        assert (score**4).mean() == pytest.approx(3 * width**2 - 2 * width, rel=1e-13)


@pytest.mark.slow
def test_variance_of_the_scores_of_random_layers():
    """|x_i|²|x_j|²/d²; the squares of two scores with one query; the variance over tokens, and its own variance."""
    d, k = 16, 4
    spec = AttentionSpec(d_model=d, d_head=k)
    x = jnp.eye(3, d) * jnp.asarray([4.0, 4.0, 2.0])[:, None]

    def observe(key):
        params = attention.init(key, spec)
        rows = attention.scores(params, x, spec)[0]
        over_tokens = jnp.sum(jnp.matmul(params.query[0], params.key[0].T, precision="highest") ** 2) / k
        squares = (rows[0, 0] ** 2 - 1) * (rows[0, 1] ** 2 - 1)
        return jnp.stack([rows[0, 1] ** 2, rows[0, 2] ** 2, squares, over_tokens, (over_tokens - 1) ** 2])

    exact = np.array([1.0, 0.25, 2 / k, 1.0, 4 / (k * d) + 2 * (k + 1) / (k * d**2)])
    samples = ensemble.run(observe, jax.random.key(1), 20_000)
    error = np.std(samples, axis=0, ddof=1) / len(samples) ** 0.5
    assert (np.abs(np.mean(samples, axis=0) - exact) < 5 * error).all()


def test_sharp_rows_let_gradient_through_at_near_ties_only(x64):
    """Two normal scores: α E(1 − Σp²) → E max s = 1/√π, and α E‖J‖²_F → a third of it, for logits αs."""
    alpha = 1e3
    logit = np.linspace(0, 60, 20_001)  # α times the gap, whose density is exp(−gap²/4)/√π
    density = np.exp(-((logit / alpha) ** 2) / 4) / np.sqrt(np.pi)
    rows = jnp.stack([jnp.asarray(logit), jnp.zeros(logit.size)], 1)
    trace, square = scale.jacobian_trace(rows, 1.0), scale.jacobian_frobenius_norm(rows, 1.0) ** 2
    assert integrate.simpson(trace * density, x=logit) == pytest.approx(np.pi**-0.5, rel=1e-5)
    assert integrate.simpson(square * density, x=logit) == pytest.approx(np.pi**-0.5 / 3, rel=1e-5)


def test_what_temperature_does_to_entropy_mean_and_participation(x64):
    """dE_p[s]/dα = Var_p(s), dH/dα = −α Var_p(s), d log Σp²/dα = 2(E_{p(2α)}[s] − E_{p(α)}[s]); by autodiff."""
    rows = jnp.asarray([[0.3, -1.0, 0.8, 2.0, 0.8], [2.0, 2.0, -1.0, 0.0, 0.5], [1.0, 1.0, 1.0, 1.0, 1.0]])

    def mean(s, a):
        return jax.nn.softmax(a * s) @ s

    def gaps(s, a):
        p = jax.nn.softmax(a * s)
        variance = p @ (s - p @ s) ** 2
        return jnp.stack(
            [
                jax.grad(mean, 1)(s, a) - variance,
                jax.grad(scale.softmax_entropy, 1)(s, a) + a * variance,
                jax.grad(scale.renyi_entropy, 1)(s, a) + 2 * (mean(s, 2 * a) - mean(s, a)),
                scale.softmax_entropy(s, a) - jax.nn.logsumexp(a * s) + a * mean(s, a),
            ]
        )

    alpha = jnp.asarray([1e-3, 0.3, 2.0, 30.0])
    errors = jax.jit(jax.vmap(jax.vmap(gaps, (None, 0)), (0, None)))(rows, alpha)
    np.testing.assert_allclose(errors, 0, atol=1e-13)


def test_both_ends_of_temperature(x64):
    """Cold: even weights on the r largest scores. Warm: even weights on all, and what is left is Var(s)/2T²."""
    s, r, n = jnp.asarray([2.0, 2.0, 2.0, 1.0, -1.0, 0.0]), 3, 6
    cold, warm = jax.nn.softmax(s * 1e3), 1e-4
    np.testing.assert_allclose(cold, np.r_[np.ones(r), np.zeros(n - r)] / r, atol=1e-15)
    assert scale.softmax_entropy(s, 1e3) == pytest.approx(np.log(r), rel=1e-14)
    assert sparsity.sparsity(cold) == pytest.approx((r / n) ** 0.5, rel=1e-14)
    small = warm**2 * float(jnp.var(s)) / 2
    assert np.log(n) - scale.softmax_entropy(s, warm) == pytest.approx(small, rel=1e-3)
    assert 1 - sparsity.sparsity(jax.nn.softmax(warm * s)) == pytest.approx(small, rel=1e-3)
    assert scale.gradient_norm(s, warm) == pytest.approx((1 - 1 / n) * warm, rel=1e-6)


def test_scores_without_projections_make_a_reversible_chain(x64):
    """A is symmetric, P is not; with π_i in proportion to Σ_j e^{a_ij}, π_i P_ij = π_j P_ji: real eigenvalues."""
    x = jax.random.normal(jax.random.key(2), (9, 4))
    params, spec = plain(4)
    tied = attention.init(jax.random.key(3), spec)
    tied = tied._replace(key=tied.query)
    for layer in (params, tied):
        a = np.asarray(attention.scores(layer, x, spec)[0])
        p = np.asarray(attention.attention_weights(layer, x, spec)[0])
        np.testing.assert_allclose(a, a.T, atol=1e-14)
        flow = np.exp(a).sum(1, keepdims=True) * p
        np.testing.assert_allclose(flow, flow.T, rtol=1e-13)
        assert np.abs(p - p.T).max() > 0.05
        assert np.abs(np.imag(np.linalg.eigvals(p))).max() < 1e-12
    free = np.asarray(attention.attention_weights(attention.init(jax.random.key(3), spec), x, spec, scale=8.0)[0])
    assert free[0, 1] * free[1, 2] * free[2, 0] != pytest.approx(free[0, 2] * free[2, 1] * free[1, 0], rel=0.1)


@pytest.mark.slow
def test_asymmetry_of_random_scores_is_that_of_the_tokens():
    """E‖A ∓ Aᵀ‖² = 2((tr G)² ∓ ‖G‖²)/d², G = XXᵀ, whatever the width of a head."""
    d = 6
    x = jax.random.normal(jax.random.key(4), (5, d)) + 0.5
    gram = np.asarray(x @ x.T, float)
    exact = 2 * (np.trace(gram) ** 2 + np.array([-1, 1]) * (gram**2).sum()) / d**2

    def observe(key):
        sums = []
        for width in (1, 4):
            spec = AttentionSpec(d_model=d, d_head=width)
            a = attention.scores(attention.init(key, spec), x, spec)[0]
            sums += [((a - a.T) ** 2).sum(), ((a + a.T) ** 2).sum()]
        return jnp.stack(sums)

    samples = ensemble.run(observe, jax.random.key(5), 20_000)
    mean, error = np.mean(samples, axis=0), np.std(samples, axis=0, ddof=1) / len(samples) ** 0.5
    assert (np.abs(mean - np.tile(exact, 2)) < 5 * error).all()
    assert (error < 0.02 * mean).all()
