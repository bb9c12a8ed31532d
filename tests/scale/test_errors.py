"""Bad input of every function gives one error that names the argument and the value."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import scale
from rc_jax.scale import equicorrelated

KEY = jax.random.key(0)
TOO_LARGE = "`n` must be at most 3.403e.38 in size, to fit float32"
CALLS = [
    (lambda: scale.optimal_scale(1), ValueError, "`n` must be >= 2, got 1"),
    (lambda: scale.optimal_scale(np.array([40.0, 1.5])), ValueError, "`n` must be >= 2, got 1.5"),
    (lambda: scale.optimal_scale("40"), TypeError, "`n` must be a real number"),
    (lambda: scale.optimal_scale(40j), TypeError, "`n` must be a real number"),
    (lambda: scale.optimal_scale(True), TypeError, "`n` must be a real number"),
    (lambda: scale.optimal_scale(np.nan), ValueError, "`n` must be finite"),
    (lambda: scale.optimal_scale(1e39), ValueError, "`n` must be at most 3.403e.38 in size, to fit float32"),
    (lambda: scale.optimal_scale_exact(1e39), ValueError, "`n` must be at most 3.403e.38 in size"),
    (lambda: scale.gradient_norm(jnp.zeros(2), 1e39), ValueError, "`alpha` must be at most 3.403e.38"),
    (lambda: scale.optimal_scale(40, 2), ValueError, "`dim` must be >= 3, got 2"),
    (lambda: scale.optimal_scale(40, "128"), TypeError, "`dim` must be a real number"),
    (lambda: scale.optimise_scale(40, -1), ValueError, "`dim` must be >= 3"),
    (lambda: scale.optimise_scale(np.ones(3) * 40, np.ones(2) * 4), ValueError, "must broadcast together"),
    (lambda: scale.optimal_scale_exact(0), ValueError, "`n` must be >= 2"),
    (lambda: scale.annealed_objective(0.0, 40), ValueError, "`alpha` must be > 0, got 0"),
    (lambda: scale.annealed_objective(-1.0, 40), ValueError, "`alpha` must be > 0, got -1"),
    (lambda: scale.annealed_objective(1.0, 1), ValueError, "`n` must be >= 2"),
    (lambda: scale.log_concentration(1.0, 2.5), ValueError, "`dim` must be >= 3"),
    (lambda: scale.fit_coefficient(jnp.ones(2), jnp.ones(2), "log"), ValueError, "`n` must be > 1"),
    (lambda: scale.fit_coefficient(2 * jnp.ones(2), jnp.ones(2), "linear"), ValueError, "`law` must be one of"),
    (lambda: scale.fit_coefficient(2 * jnp.ones(2), jnp.ones(3), "log"), ValueError, "must broadcast together"),
    (lambda: equicorrelated.outputs(1.0, 1.0, 8), ValueError, "`rho` must be >= 0 and < 1, got 1"),
    (lambda: equicorrelated.outputs(1.0, -0.1, 8), ValueError, "`rho` must be >= 0 and < 1"),
    (lambda: equicorrelated.critical_gamma("0.5"), TypeError, "`rho` must be a real number"),
    (lambda: equicorrelated.critical_gamma(0.5, np.nan), ValueError, "`n` must be finite"),
    (lambda: equicorrelated.transition_width(np.zeros(2), np.full(3, 9.0)), ValueError, "must broadcast together"),
    (lambda: equicorrelated.similarity_limit(1j, 0.5), TypeError, "`gamma` must be a real number"),
    (lambda: equicorrelated.optimal_gamma(0.5, True), TypeError, "`n` must be a real number"),
    (lambda: scale.shared_query_scale(1, 8), ValueError, "`n` must be >= 2, got 1"),
    (lambda: scale.shared_query_scale(8, 0), ValueError, "`dim` must be >= 1, got 0"),
    (lambda: scale.shared_query_scale(8, "64"), TypeError, "`dim` must be a real number"),
    (lambda: scale.shared_query_scale(8, 64, "rows"), ValueError, "`average` must be one of 'row', 'all'"),
    (lambda: scale.effective_keys(1), ValueError, "`length` must be >= 2"),
    (lambda: scale.effective_keys("8"), TypeError, "`length` must be a real number"),
    (lambda: scale.annealed_entropy(-1.0, 8), ValueError, "`alpha` must be > 0"),
    (lambda: scale.annealed_entropy(1.0, 1), ValueError, "`n` must be >= 2"),
    (lambda: scale.annealed_renyi_entropy(1.0, 8, 2), ValueError, "`dim` must be >= 3"),
    (lambda: scale.entropy_loss_per_dimension(0), ValueError, "`lam` must be > 0"),
    (lambda: scale.entropy_loss_per_dimension("a"), TypeError, "`lam` must be a real number"),
    (lambda: scale.fixed_entropy_scale(8, 3.0), ValueError, "`entropy` must be below log n"),
    (lambda: scale.fixed_entropy_scale(8, 0.0), ValueError, "`entropy` must be > 0"),
    (lambda: scale.fixed_entropy_scale(np.ones(3) * 8, np.ones(2)), ValueError, "must broadcast together"),
    (lambda: scale.jacobian_trace(np.ones(2), 1.0, "power6"), ValueError, "`normaliser` must be one of 'softmax'"),
    (lambda: scale.power_gradient_norm(np.ones(3), np.ones(2)), ValueError, "`power` must be one number"),
    (lambda: scale.annealed_power_gradient(1), ValueError, "`n` must be >= 2"),
    (lambda: scale.scale_tail(KEY, 0.0, 8), ValueError, "`level` must be > 0"),
    (lambda: scale.expected_objective(KEY, -1.0, 8), ValueError, "`alpha` must be > 0"),
    (lambda: scale.typical_scale(KEY, 10**60), ValueError, f"{TOO_LARGE}, got 1e.60"),
    (lambda: scale.sample_scales(KEY, 10**60), ValueError, f"{TOO_LARGE}, got 1e.60"),
    (lambda: scale.expected_objective(KEY, 1.0, 10**400), ValueError, f"{TOO_LARGE}, got a larger integer"),
]
OF_SCORES_AND_SCALE = [
    scale.gradient_norm, scale.log_gradient_norm, scale.softmax_entropy, scale.renyi_entropy,
    scale.sparsemax, scale.entmax15, scale.jacobian_trace, scale.jacobian_largest_entry,
    scale.jacobian_frobenius_norm, scale.jacobian_spectral_norm,
]  # fmt: skip
OF_SCORES = [
    lambda scores, alpha: scale.per_sample_scale(scores),
    lambda scores, alpha: scale.per_sample_optimum(scores),
    lambda scores, alpha: scale.power_gradient_norm(scores),
    lambda scores, alpha: scale.cross_entropy_gradient(scores, 0, alpha),
]
BAD_ROWS = [
    ([1.0, 2.0], 1.0, TypeError, "`scores` must be a floating-point array"),
    (np.arange(3), 1.0, TypeError, "`scores` must be a floating-point array"),
    (np.ones((2, 1), np.float32), 1.0, ValueError, "`scores` must be .* score >= 2"),
    (np.float32([0, np.nan]), 1.0, ValueError, "`scores` must be finite"),
]
BAD_SCALES = [
    (np.ones(2, np.float32), 0.0, ValueError, "`alpha` must be > 0, got 0"),
    (np.ones(2, np.float32), "x", TypeError, "`alpha` must be a real number"),
    (jnp.ones((3, 2)), jnp.ones(2), ValueError, "`alpha` must broadcast"),
]
BAD_DRAWS = [
    ({"key": 0}, TypeError, "`key` must be one typed key"),
    ({"n": 1}, ValueError, "`n` must be an integer >= 2, got 1"),
    ({"n": 8.0}, TypeError, "`n` must be an integer >= 2"),
    ({"dim": 2}, ValueError, "`dim` must be >= 3"),
    ({"dim": "8"}, TypeError, "`dim` must be a real number"),
    ({"dim": jnp.asarray([4.0, 5.0])}, ValueError, "`dim` must be one number"),
]


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(("call", "error", "message"), CALLS)
def test_bad_input_is_refused_by_name(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize("function", OF_SCORES_AND_SCALE + OF_SCORES)
def test_bad_rows_of_scores_are_refused_by_name(function):
    for scores, alpha, error, message in BAD_ROWS + BAD_SCALES * (function in OF_SCORES_AND_SCALE):
        with pytest.raises(error, match=message):
            function(scores, alpha)


@pytest.mark.parametrize("function", OF_SCORES_AND_SCALE)
def test_a_hidden_key_is_none_in_a_trace_and_outside(function):
    """−inf hides a key: the other keys' numbers, and derivatives that do not see it. A row of hidden keys has none."""
    seen, some = jnp.float32([1.0, 0.25, -0.5]), [0, 2, 3]
    scores = jnp.insert(seen, 1, -jnp.inf)
    alone, traced = function(seen, 1.3), jax.jit(function)
    for norms in (function(scores, 1.3), traced(scores, 1.3)):
        np.testing.assert_allclose(np.asarray(norms)[some] if norms.ndim else norms, alone, rtol=1e-6)
    slope = jax.grad(lambda *given: jnp.ravel(function(*given))[0], (0, 1))
    slopes, others = slope(scores, 1.3), slope(seen, 1.3)
    np.testing.assert_allclose(slopes[0], np.insert(others[0], 1, 0), atol=1e-6)
    np.testing.assert_allclose(slopes[1], others[1], atol=1e-6)
    with pytest.raises(ValueError, match="`scores` must have a finite score in every row, got a row of -inf"):
        function(jnp.full((2, 3), -jnp.inf), 1.0)
    assert np.isnan(traced(jnp.full(3, -jnp.inf), 1.0)).all()
    assert float(jnp.ravel(traced(jnp.float32([2.0, -jnp.inf, -jnp.inf]), 1.3))[0]) in (0, 1, -np.inf)


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(
    ("function", "least"),
    [
        (functools.partial(scale.expected_objective, alpha=1.0), 2),
        (functools.partial(scale.typical_objective, alpha=1.0), 2),
        (functools.partial(scale.scale_tail, level=5.0), 2),
        (scale.typical_scale, 2),
        (scale.typical_optimum, 2),
        (scale.sample_scales, 1),
    ],
)
def test_bad_draws_are_refused_by_name(function, least):
    for arguments, error, message in [*BAD_DRAWS, ({"samples": least - 1}, ValueError, f"integer >= {least}")]:
        with pytest.raises(error, match=message):
            function(**({"key": KEY, "n": 8} | arguments))
