"""Bad input of every measure, closed form, feature and quadrature gives one error that names the argument."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import sparsity

KEY = jax.random.key(0)
HALF, ONES, EYE = jnp.full(2, 0.5), jnp.ones(3), jnp.eye(3)


def located(beta):
    return sparsity.from_kernel(jnp.exp, beta, 1.0, kinks="locate")


def searched(rate):
    return sparsity.locate_kinks(lambda x: jnp.exp(rate * x), 0.0, 1.0).sum()


def imaginary(x):
    return jax.lax.complex(x, x)


def shared(x):
    return jax.nn.softmax(jnp.ravel(x)).reshape(x.shape)


def added(x):
    return jnp.cumsum(x, axis=-1)


CALLS = [
    # measures of given weights
    (lambda: sparsity.sparsity(jnp.arange(3)), TypeError, "`a` must be a floating-point array"),
    (lambda: sparsity.sparsity([1.0, 2.0]), TypeError, "`a` must be a floating-point array"),
    (
        lambda: sparsity.sparsity(jnp.zeros((3, 0))),
        ValueError,
        "`a` must be a floating-point array with at least one entry",
    ),
    (lambda: sparsity.sparsity(jnp.asarray(1.0)), ValueError, "`a` must be .* at least one entry and one axis"),
    (lambda: sparsity.sparsity(jnp.array([1.0, jnp.nan])), ValueError, "`a` must be finite"),
    (lambda: sparsity.sparsity(ONES, 1), ValueError, "`axis` must name an axis of `a`, which has 1, got axis=1"),
    (lambda: sparsity.sparsity(ONES, 0.0), TypeError, "`axis` must be an integer"),
    (lambda: sparsity.norm_ratio(ONES, 1), ValueError, "`axis` must name an axis of `q`"),
    (lambda: sparsity.renyi_sparsity(ONES, 0.0), ValueError, "`order` must be > 0, got 0"),
    (lambda: sparsity.from_moments(0.5, -1.0), ValueError, "`second` must be > 0, got -1"),
    (lambda: sparsity.from_moments(0.0, 0.0), ValueError, "`second` must be > 0, got 0"),
    (lambda: sparsity.from_moments(-0.5, 1.0), ValueError, "`first` must be >= 0"),
    (lambda: sparsity.from_moments(jnp.array([0.5, 2.0]), 1.0), ValueError, "`second` must be .* for first = 2"),
    (lambda: sparsity.from_moments("1", 1.0), TypeError, "`first` must be a real number"),
    # kernels of one logit
    (lambda: sparsity.exponential(-1.0), ValueError, "`gamma` must be >= 0, got -1"),
    (lambda: sparsity.exponential(float("inf")), ValueError, "`gamma` must be finite"),
    (lambda: sparsity.taylor_exponential(0.0, -1.0, 2), ValueError, "`gamma` must be >= 0, got -1"),
    (lambda: sparsity.taylor_exponential(0.0, 1.0, 2.0), TypeError, r"`order` must be an integer or .*, got 2\.0"),
    (lambda: sparsity.taylor_exponential(0.0, 1.0, 65), ValueError, "`order` must be >= 0 and <= 64, got 65"),
    (lambda: sparsity.taylor_exponential(float("nan"), 1.0, 2), ValueError, "`beta` must be finite"),
    (lambda: sparsity.taylor_order(-1.0), ValueError, "`gamma` must be >= 0"),
    (lambda: sparsity.top_share_exponential(1.0, 0.0), ValueError, "`share` must be > 0 and <= 1"),
    (lambda: sparsity.top_share_exponential(1.0, 1.5), ValueError, "`share` must be > 0 and <= 1"),
    (lambda: sparsity.top_share_exponential(-1.0, 0.5), ValueError, "`gamma` must be >= 0"),
    (lambda: sparsity.cosine_similarity_power(0, 4), ValueError, "`power` must be > 0"),
    (lambda: sparsity.cosine_similarity_power(2, 0.5), ValueError, "`dim` must be >= 1"),
    (lambda: sparsity.differential(0.0, 0.5), ValueError, "`gamma` must be > 0"),
    (lambda: sparsity.differential(1.0, 0.5, 2.0), ValueError, "`correlation`"),
    (lambda: sparsity.sinkhorn(HALF, 1.0), ValueError, "`query` must hold the coordinates on its last axis"),
    # decays
    (lambda: sparsity.decay(0.0, 5), ValueError, "`lam` must be > 0 and <= 1"),
    (lambda: sparsity.decay(1.1, 5), ValueError, "`lam` must be > 0 and <= 1"),
    (lambda: sparsity.decay(0.5, 0), ValueError, "`n` must be >= 1, got 0"),
    (lambda: sparsity.decay(0.5, "8"), TypeError, "`n` must be a real number"),
    (lambda: sparsity.decay(1, 1e300), ValueError, r"`n` must be at most .* to fit float32, got 1e"),
    (lambda: sparsity.channel_decay(HALF, jnp.array([0.5, 0.0]), 5), ValueError, "`lam` must be > 0 and <= 1"),
    (lambda: sparsity.channel_decay(HALF, jnp.array([0.5, 1.5]), 5), ValueError, "`lam` must be > 0 and <= 1"),
    (lambda: sparsity.channel_decay(-HALF, HALF, 5), ValueError, "`weights` must be >= 0"),
    (lambda: sparsity.channel_decay(0 * HALF, HALF, 5), ValueError, "`weights` must have a positive entry in every"),
    (lambda: sparsity.channel_decay(1.0, HALF, 5), ValueError, "`weights` must have a last axis of channels"),
    (lambda: sparsity.channel_decay(HALF, HALF, 0), ValueError, "`n` must be >= 1, got 0"),
    (lambda: sparsity.channel_decay(jnp.ones((2, 2)), HALF, ONES), ValueError, r"must broadcast .*`n` \(3, 1\)"),
    (lambda: sparsity.channel_decay_lowest(0.1, HALF, 2 * HALF), ValueError, "`lam` must be > 0 and < 1"),
    (lambda: sparsity.channel_decay_lowest(0.0, HALF, HALF), ValueError, "`even` must be > 0"),
    (lambda: sparsity.gated_decay(jnp.array([-1.0, 0.1])), ValueError, "`log_gates` must be <= 0, got 0"),
    (lambda: sparsity.gated_decay(jnp.array([0.0, -np.inf])), ValueError, "`log_gates` must be finite"),
    (lambda: sparsity.gated_decay(jnp.zeros(3, int)), TypeError, "`log_gates` must be a floating-point array"),
    (lambda: sparsity.gated_decay_annealed(1.2, 0.5, 5), ValueError, "`mean` must be > 0 and <= 1, got 1"),
    (lambda: sparsity.gated_decay_annealed(0.5, 0.2, 5), ValueError, "`second` must be between mean² and mean"),
    (lambda: sparsity.gated_decay_annealed(0.5, 0.6, 5), ValueError, "`second` must be between mean² and mean"),
    (lambda: sparsity.decay_spectrum(0.0, 10), ValueError, "`power` must be > 0"),
    # features
    (lambda: sparsity.feature_map_rates(jnp.zeros_like), ValueError, "`feature_map` must have a positive mean"),
    (lambda: sparsity.feature_map_rates("relu"), TypeError, "`feature_map` must be a function"),
    (lambda: sparsity.feature_moments(jnp.ones((3, 2), int)), TypeError, r"`features` .* shape \(token, feature\)"),
    (lambda: sparsity.feature_moments(ONES), ValueError, r"`features` must be .* of shape \(token, feature\)"),
    (lambda: sparsity.feature_moments(jnp.ones((0, 2))), ValueError, "with token >= 1"),
    (lambda: sparsity.feature_moments(jnp.array([[jnp.inf, 1.0]])), ValueError, "`features` must be finite"),
    (lambda: sparsity.nonnegative_linear(jnp.ones(4), ONES, EYE), ValueError, "`q`, `mean` and `cov` must have shapes"),
    (lambda: sparsity.nonnegative_linear(ONES, ONES, jnp.eye(4)), ValueError, "`q`, `mean` and `cov` must have shapes"),
    (lambda: sparsity.nonnegative_linear(-ONES, ONES, EYE), ValueError, "`q` must be >= 0"),
    (lambda: sparsity.nonnegative_linear(0 * ONES, ONES, EYE), ValueError, "`q` must have a positive entry"),
    (lambda: sparsity.nonnegative_linear(EYE[0], EYE[1], EYE), ValueError, "`q` must overlap `mean`"),
    (lambda: sparsity.nonnegative_linear(ONES, ONES, jnp.ones((3, 2))), ValueError, "`cov` must be square"),
    (lambda: sparsity.nonnegative_linear(ONES, ONES, jnp.tri(3)), ValueError, "`cov` must be symmetric"),
    (lambda: sparsity.nonnegative_linear(ONES, ONES, -EYE), ValueError, "`cov` must be .*, got smallest eigenvalue -1"),
    (lambda: sparsity.nonnegative_linear(jnp.arange(3), ONES, EYE), TypeError, "`q` must be a floating-point array"),
    (lambda: sparsity.nonnegative_linear_iid(ONES, 0.0, 1.0), ValueError, "`mean` must be > 0"),
    (lambda: sparsity.nonnegative_linear_iid(ONES, 1.0, -1.0), ValueError, "`deviation` must be >= 0"),
    (lambda: sparsity.random_projections(KEY, 4, 0), ValueError, "`dim` must be an integer >= 1"),
    (lambda: sparsity.random_projections(KEY, 4, 2, dtype=int), TypeError, "`dtype` must be a floating-point dtype"),
    (lambda: sparsity.positive_feature_moments(EYE, 0.0), ValueError, "`sigma` must be > 0"),
    (lambda: sparsity.positive_feature_moments(EYE, ONES), ValueError, "`sigma` must be one number"),
    (lambda: sparsity.positive_feature_moments(ONES, 1.0), ValueError, r"`projections` .* shape \(feature, width\)"),
    (lambda: sparsity.positive_features_rate(1.0, 0.5, 0), ValueError, "`dim` must be >= 1"),
    # quadrature
    (lambda: sparsity.power(0), ValueError, "`power` must be an integer >= 1"),
    (lambda: sparsity.from_kernel(3, 0.0, 1.0), TypeError, "`f` must be a function"),
    (lambda: sparsity.from_kernel(jnp.exp, 0.0, 0.0), ValueError, "`gamma` must be > 0"),
    (lambda: sparsity.from_kernel(jnp.exp, 0.0, 1.0, kinks=(np.nan,)), ValueError, "`kinks` must be finite"),
    (lambda: sparsity.from_kernel(jnp.exp, 0.0, 1.0, kinks="all"), ValueError, "`kinks` .* or 'locate', got 'all'"),
    (lambda: jax.jit(located)(0.0), ValueError, "`kinks` must be located outside jit"),
    (lambda: jax.jit(searched)(1.0), ValueError, "`kinks` must be located outside jit"),
    (lambda: sparsity.from_kernel(jnp.log, 0.0, 1.0), ValueError, "`f` .* within 20 deviations .* nan at x = -0"),
    (lambda: sparsity.from_kernel(jnp.exp, 0.0, 10.0), ValueError, r"`f` must be finite .*, got inf at x = [89]"),
    (lambda: sparsity.from_kernel(imaginary, 0.0, 1.0), TypeError, "`f` must return real numbers, got complex64"),
    (lambda: sparsity.from_kernel(shared, 0.0, 1.0), ValueError, "`f` must be elementwise, got a value at x = "),
    (lambda: sparsity.from_kernel(added, 0.0, 1.0), ValueError, "`f` must be elementwise, got a value at x = "),
    (lambda: sparsity.from_kernel(jnp.sum, 0.0, 1.0), ValueError, "`f` must be elementwise, got shape"),
]
OF_WEIGHTS = [sparsity.gini, sparsity.hoyer, sparsity.entropy_sparsity, sparsity.renyi_sparsity, sparsity.kurtosis]
OF_RATIO = [sparsity.identity, sparsity.relu_squared, sparsity.log_relu_squared]
MADE = [sparsity.trigonometric_random_features]
for measure in OF_WEIGHTS:
    CALLS += [
        (lambda f=measure: f([1.0, 2.0]), TypeError, "`a` must be a floating-point array"),
        (lambda f=measure: f(jnp.array([1.0, jnp.nan])), ValueError, "`a` must be finite"),
        (lambda f=measure: f(ONES, axis=1), ValueError, "`axis` must name an axis of `a`, which has 1, got axis=1"),
    ]
for closed in OF_RATIO:
    CALLS += [
        (lambda f=closed: f(1.0, 0.0), ValueError, "`gamma` must be > 0"),
        (lambda f=closed: f(1.0, -1.0), ValueError, "`gamma` must be > 0"),
        (lambda f=closed: f(1.0, jnp.array([1.0, 0.0])), ValueError, "`gamma` must be > 0"),
        (lambda f=closed: f(np.nan, 1.0), ValueError, "`beta` must be finite"),
        (lambda f=closed: f("1", 1.0), TypeError, "`beta` must be a real number"),
    ]
for closed in (*OF_RATIO[:2], lambda beta, gamma: sparsity.from_kernel(jnp.exp, beta, gamma)):
    CALLS += [
        (lambda f=closed: f(ONES, HALF), ValueError, r"must broadcast together, got `beta` \(3,\), `gamma` \(2,\)"),
        (lambda f=closed: f(0.0, 1e-38), ValueError, r"`gamma` must be > 0, got .*, which is 0 in float32"),
        (lambda f=closed: f(0.0, 1e-39), ValueError, r"`gamma` must be > 0, got .*, which is 0 in float32"),
        (lambda f=closed: f(0.0, KEY), TypeError, r"`gamma` must be a real number .*, got a typed key"),
        (lambda f=closed: f(0.0, [[1.0], [1.0, 2.0]]), ValueError, "`gamma` must be .* rows of different lengths"),
    ]
for features in MADE:
    CALLS += [
        (lambda f=features: f(0, EYE, 4), TypeError, "`key` must be one typed key"),
        (lambda f=features: f(KEY, jnp.ones((3, 2), int), 4), TypeError, "`x` must be a floating-point array"),
        (lambda f=features: f(KEY, EYE * jnp.nan, 4), ValueError, "`x` must be finite"),
        (lambda f=features: f(KEY, EYE, 0), ValueError, "`count` must be an integer >= 1, got 0"),
        (lambda f=features: f(KEY, EYE, 4, orthogonal="yes"), TypeError, "`orthogonal` must be a bool"),
    ]


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(("call", "error", "message"), CALLS)
def test_bad_input_is_refused_by_name(call, error, message):
    with pytest.raises(error, match=message):
        call()
