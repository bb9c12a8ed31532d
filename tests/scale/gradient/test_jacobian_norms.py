"""Norms of the Jacobian, against the matrix that autodiff makes and NumPy's eigenvalues and norms."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from rc_jax import scale
from rc_jax.scale.gradient.jacobian_norms import NORMALISERS
from tests.oracles import scale as oracle

RNG = np.random.default_rng(0)
SCORES = {  # all of one length: one program for all
    "equal": [0.5] * 6,
    "tie": [2.0, 2.0, -1.0, 2.0, 0.0, 1.0],
    "second tie": [2.0, 1.0, 1.0, 1.0, 0.0, 0.2],
    "near tie": [1.0, 1.0 - 1e-5, 0.3, 0.0, 0.1, 0.99],
    "random": RNG.normal(size=6).tolist(),
    "peaked": [9.0, 0.0, -1.0, 1.0, 1.0, 2.0],
}
FUNCTIONS = {
    "softmax": lambda s, a: jax.nn.softmax(a * s),
    "sparsemax": scale.sparsemax,
    "entmax15": scale.entmax15,
}
NORMS = (
    (scale.jacobian_trace, lambda m: np.abs(m).sum() / 2),
    (scale.jacobian_largest_entry, lambda m: np.abs(m).max()),
    (scale.jacobian_frobenius_norm, lambda m: np.sqrt((m * m).sum())),
    (scale.jacobian_spectral_norm, lambda m: np.linalg.eigvalsh(m)[-1]),
)


@pytest.mark.slow
@pytest.mark.parametrize("normaliser", NORMALISERS)
@pytest.mark.parametrize("name", SCORES)
def test_norms_of_the_matrix_itself(x64, normaliser, name):
    scores = jnp.asarray(SCORES[name])
    for alpha in (0.05, 1.1, 3.0):
        matrix = np.asarray(jax.jacobian(FUNCTIONS[normaliser])(scores, alpha))
        for norm, plain in NORMS:
            assert norm(scores, alpha, normaliser) == pytest.approx(plain(matrix), rel=1e-10, abs=1e-12), norm.__name__


@pytest.mark.slow
@pytest.mark.parametrize("name", SCORES)
def test_single_precision_keeps_its_digits(name):
    scores = jnp.asarray(SCORES[name], jnp.float32)
    for alpha in (0.05, 2.0):
        matrix = oracle.jacobian(np.asarray(scores, float), alpha)
        for norm, plain in NORMS:
            got = norm(scores, alpha)
            assert got.dtype == jnp.float32
            assert got == pytest.approx(float(plain(matrix)), rel=2e-5)


def test_concentrated_rows_keep_their_digits(dtype):
    """Two scores 20 or 60 apart: one minus the larger probability would be zero."""
    scores = jnp.asarray([1.0, 0.0], dtype)
    for alpha in (20.0, 60.0):
        small = alpha * np.exp(-alpha)
        for norm, factor in zip(NORMS, (2, 1, 2, 2), strict=True):
            assert norm[0](scores, alpha) == pytest.approx(factor * small, rel=1e-5)
    for norm, _ in NORMS:
        assert norm(scores, 1e4) == 0


def leading_eigenvalue(scores, alpha):
    """Of softmax's Jacobian, in many digits."""
    with mp.workdps(80):
        p = oracle.probabilities(scores, alpha)
        matrix = mp.matrix([[alpha * ((a if i == j else 0) - a * b) for j, b in enumerate(p)] for i, a in enumerate(p)])
        return max(mp.eigsy(matrix, eigvals_only=True))


@pytest.mark.slow
@pytest.mark.parametrize("alpha", [40.0, 50.0, 80.0])
def test_spectral_norm_where_squares_of_weights_underflow(alpha):
    """In single precision, with its derivative, down to weights of 1e-35."""
    for row in ([0.0, -1.0, -1.01], [0.0, -1.0, -1.02, -1.04]):
        scores = np.asarray(row, np.float32)
        value, slope = jax.value_and_grad(scale.jacobian_spectral_norm, 1)(jnp.asarray(scores), alpha)
        exact = leading_eigenvalue(scores, alpha)
        near = leading_eigenvalue(scores, alpha * (1 + 1e-9))
        assert value == pytest.approx(float(exact), rel=1e-5, abs=0)
        assert slope == pytest.approx(float((near - exact) / alpha / mp.mpf("1e-9")), rel=1e-4, abs=0)


@pytest.mark.slow
@pytest.mark.parametrize("normaliser", ["softmax", "entmax15"])
def test_second_derivatives_of_the_spectral_norm(x64, normaliser):
    """Against differences of the first, which differences of the value hold above; a tie for the second is no case."""
    slope = jax.jit(jax.grad(lambda s: scale.jacobian_spectral_norm(s, 1.3, normaliser)))
    curvature = jax.jit(jax.jacfwd(slope))
    for name in ("random", "second tie"):
        scores, steps = jnp.asarray(SCORES[name]), 1e-5 * jnp.eye(6)
        rises = [(slope(scores + step) - slope(scores - step)) / 2e-5 for step in steps]
        np.testing.assert_allclose(curvature(scores), jnp.stack(rises), atol=1e-8)


@pytest.mark.slow
def test_many_scores_against_a_power_iteration(x64):
    scores = np.random.default_rng(2).normal(size=3000)
    p = np.exp(2.0 * scores)
    p /= p.sum()
    vector = np.random.default_rng(3).normal(size=p.size)
    for _ in range(3000):
        vector = p * vector - p * (p @ vector)
        vector /= np.linalg.norm(vector)
    value = vector @ (p * vector) - (p @ vector) ** 2
    assert scale.jacobian_spectral_norm(jnp.asarray(scores), 2.0) == pytest.approx(2 * value, rel=1e-9)


@pytest.mark.slow
def test_trace_of_softmax_is_the_gradient_norm_and_shapes(key):
    scores = jax.random.normal(key, (3, 1, 7))
    alphas = jnp.asarray([0.5, 4.0])
    np.testing.assert_allclose(scale.jacobian_trace(scores, alphas), scale.gradient_norm(scores, alphas), rtol=1e-6)
    for norm, _ in NORMS:
        both = norm(scores, alphas)
        assert both[2, 1] == pytest.approx(float(norm(scores[2, 0], 4.0)), rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("normaliser", ["softmax", "entmax15"])
def test_derivatives(x64, normaliser):
    """Of every norm, by α and by the scores along one direction, against differences."""
    scores, along = jnp.asarray(SCORES["random"]), jnp.asarray(np.random.default_rng(4).normal(size=6))

    def all_norms(scores, alpha):
        return jnp.stack([norm(scores, alpha, normaliser) for norm, _ in NORMS])

    step = 1e-6
    by_scores, by_scale = jax.jit(jax.jacrev(all_norms, (0, 1)))(scores, 1.5)
    rise = (all_norms(scores + step * along, 1.5) - all_norms(scores - step * along, 1.5)) / (2 * step)
    np.testing.assert_allclose(by_scores @ along, rise, rtol=1e-6, atol=1e-9)
    rise = (all_norms(scores, 1.5 + step) - all_norms(scores, 1.5 - step)) / (2 * step)
    np.testing.assert_allclose(by_scale, rise, rtol=1e-6, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_integration_by_parts_for_every_normaliser(key, normaliser):
    """E trace J = E Σ p s for standard normal scores, whose mean never falls with α."""
    scores = jax.random.normal(key, (4000, 32))
    means = []
    for alpha in (0.5, 2.0, 6.0):
        trace = np.asarray(scale.jacobian_trace(scores, alpha, normaliser), float)
        other = np.asarray((FUNCTIONS[normaliser](scores, alpha) * scores).sum(-1), float)
        difference = trace - other
        assert abs(difference.mean()) < 5 * difference.std() / 4000**0.5
        means.append(other.mean())
    assert means == sorted(means)


@pytest.mark.slow
@pytest.mark.usefixtures("as_installed")
def test_lists_tuples_and_large_integers_are_scales():
    """A list, a tuple, and an integer past int32, which must not wrap."""
    scores = jnp.asarray([[0.3, 0.1, -1.0], [0.2, 0.4, 0.0]])
    functions = [norm for norm, _ in NORMS] + [
        scale.gradient_norm, scale.log_gradient_norm, scale.softmax_entropy, scale.renyi_entropy,
        scale.sparsemax, scale.entmax15,
    ]  # fmt: skip
    for function in functions:
        for alpha in ([0.5, 2.0], (0.5, 2.0)):
            np.testing.assert_array_equal(function(scores, alpha), function(scores, jnp.asarray(alpha)))
        np.testing.assert_array_equal(function(scores, 2**40), function(scores, 2.0**40))
