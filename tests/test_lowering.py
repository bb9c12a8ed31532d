"""Every public function lowers for CPU, CUDA and TPU."""

import inspect
import pathlib

import jax
import jax.numpy as jnp
import pytest

from rc_jax import attention, collapse, network, scale, sparsity, special
from rc_jax.attention import constructions, masks
from rc_jax.collapse import audit, softmax_spectrum
from rc_jax.scale import equicorrelated

SPEC = attention.AttentionSpec(d_model=8, heads=2)
STACK = network.StackSpec(attention=SPEC, depth=3)
LINEAR = attention.AttentionSpec(d_model=8, heads=2, weights="linear", causal=True)
DECODER = network.StackSpec(
    attention=attention.AttentionSpec(
        d_model=8, heads=2, causal=True, qk_norm="rms", scale_law="log_tokens", rotary=attention.Rotary()
    ),
    depth=3, skip=True, mlp=network.MLPSpec(width=16, activation="silu", gated=True), norm="pre", norm_kind="rms",
)  # fmt: skip
PACKAGES = (attention, network, collapse, scale, sparsity, special, audit)


def key():
    return jax.random.key(0)


def network_of(spec=STACK):
    return network.random_layers(key(), spec)


def one_layer():
    return jax.tree.map(lambda leaf: leaf[0], network.init(key(), STACK))


KERNELS = {
    "attend": lambda x, n: attention.attend(attention.init(key(), SPEC), x, SPEC, scale=n[0]),
    "linear_attend": lambda x, n: attention.linear_attend(attention.init(key(), LINEAR), x, LINEAR, chunk=2),
    "convolve": lambda x, n: constructions.convolve(x, jnp.ones((3, 8, 2)), scale=n[0]),
    "position codes": lambda x, n: attention.rotary(x + attention.sinusoidal(jnp.arange(4), 8), jnp.arange(4)),
    "network": lambda x, n: network.apply(network_of(), x, STACK),
    "decoder": lambda x, n: network.apply(network_of(DECODER), x, DECODER),
    "log_residuals": lambda x, n: collapse.log_residuals(network_of(), x, STACK),
    "gradient of log_residuals": lambda x, n: jax.grad(lambda x: collapse.log_residuals(network_of(), x, STACK)[-1])(x),
    "residual": lambda x, n: collapse.residual(x, "argmin"),
    "optimal_scale": lambda x, n: scale.optimal_scale(n),
    "optimal_scale, cosine": lambda x, n: scale.optimal_scale(n, dim=128),
    "optimal_scale_exact": lambda x, n: scale.optimal_scale_exact(n),
    "gradient_norm": lambda x, n: scale.gradient_norm(x, n[0]),
    "per_sample_scale": lambda x, n: scale.per_sample_scale(x),
    "expected_objective": lambda x, n: scale.expected_objective(key(), n, 1024, samples=4),
    "typical_scale": lambda x, n: scale.typical_scale(key(), 64, n[0], samples=4),
    "shared_query_scale": lambda x, n: scale.shared_query_scale(n, 64),
    "equicorrelated_outputs": lambda x, n: equicorrelated.outputs(n, 0.5, 1024),
    "jacobian_spectral_norm": lambda x, n: scale.jacobian_spectral_norm(x, n[0], "entmax15"),
    "cross_entropy_gradient": lambda x, n: scale.cross_entropy_gradient(x, jnp.zeros(4, int), n[0]),
    "entropies": lambda x, n: (scale.softmax_entropy(x, n[0]), scale.renyi_entropy(x, n[0])),
    "normalisers": lambda x, n: (scale.sparsemax(x, n[0]), scale.entmax15(x, n[0])),
    "closed forms of kernels": lambda x, n: (sparsity.relu_squared(-n, n), sparsity.identity(-n, n)),
    "decays": lambda x, n: (
        sparsity.decay(1 / n, 8),
        sparsity.channel_decay(n, 1 / n, 8),
        sparsity.channel_decay_lowest(0.1, n, 1 / (1 + n)),
        sparsity.gated_decay(jax.nn.log_sigmoid(x)),
        sparsity.gated_decay_annealed(1 / n, 1 / n, 8),
    ),
    "feature_moments": lambda x, n: sparsity.feature_moments(x),
    "taylor_exponential": lambda x, n: sparsity.taylor_exponential(-n, n, 5),
    "random features": lambda x, n: (
        sparsity.trigonometric_random_features(key(), x, 9, orthogonal=True),
        sparsity.trigonometric_random_features(key(), x, 9),
        sparsity.positive_feature_moments(x, n[0]),
        sparsity.positive_features_rate(n, n, 4),
        sparsity.taylor_order(n),
    ),
    "from_kernel": lambda x, n: sparsity.from_kernel(jax.nn.softplus, -n, n),
    "from_kernel_with_error": lambda x, n: sparsity.from_kernel_with_error(jax.nn.relu, -n, n, kinks=(0.0,)),
    "inequality": lambda x, n: (sparsity.gini(x), sparsity.renyi_sparsity(x, n[0]), sparsity.kurtosis(x)),
    "top share, cosines": lambda x, n: sparsity.top_share_exponential(n, 0.1) + sparsity.cosine_similarity_power(n, 64),
    "attention": lambda x, n: (
        attention.scores(attention.init(key(), SPEC), x, SPEC),
        attention.attention_weights(attention.init(key(), SPEC), x, SPEC, mask=masks.random(key(), 4, 0.5)),
        attention.average_pool(4, 2),
    ),
    "networks": lambda x, n: (
        network.hidden_states(network.scale_branches(network.init(key(), STACK), n[0]), x, STACK),
        network.scan_layers(lambda carry, layer: (carry, None), x, network_of(), STACK),
    ),
    "parts of networks": lambda x, n: (
        attention.elu_plus_one(x),
        attention.project(x, attention.init(key(), SPEC).query, None, SPEC),
        network.layer_norm(x, network.NormParams(jnp.ones(8), jnp.zeros(8)), 1e-6),
        network.block(one_layer(), x, STACK, network.plain_arithmetic(STACK, None, None)),
    ),
    "width-free": lambda x, n: collapse.sample_log_residuals(key(), x, STACK, gain=n[0]),
    "norms": lambda x, n: (collapse.effective_rank(x), collapse.frobenius(x), collapse.norm_1inf(x)),
    "ranks": lambda x, n: (collapse.stable_rank(x), collapse.diameter(x)),
    "bounds": lambda x, n: (
        collapse.depth_bound(network_of(), x, STACK),
        collapse.layer_bound(network_of(), x, STACK),
        collapse.measured_gamma(network_of(), x, STACK),
    ),
    "tanh bounds": lambda x, n: (
        collapse.tanh_bound(network_of(), x, STACK),
        collapse.tanh_depth_bound(network_of(), x, STACK),
    ),
    "audit": lambda x, n: (
        audit.depth(network_of(), x, STACK),
        audit.layer(network_of(), x, STACK),
        audit.tanh_depth(network_of(), x, STACK),
        audit.tanh_layer(network_of(), x, STACK),
        audit.gamma_cap(jnp.eye(8), x),
        audit.lemma_lower(x[:, :4], x[:, 4:]),
        audit.lemma_upper(x[:, :4], x[:, 4:]),
        audit.mixture(jax.nn.softmax(x[0, :4]), jax.nn.softmax(x[1, :4]), x),
        audit.norm_step(jax.nn.softmax(x[0, :4]), x[:, :4], x),
        audit.published_step(x[:, :4], x[:, 4:], x),
        audit.repaired_step(x[:, :4], x[:, 4:], x),
        audit.score_oscillation(jnp.eye(8), x),
        audit.split(jnp.eye(8), x),
        audit.total_variation(x[0], x[1]),
    ),
    "Gaussian logits": lambda x, n: (
        softmax_spectrum.gaussian_first_singular_value(n, 64),
        softmax_spectrum.gaussian_second_singular_value(n, 64),
        softmax_spectrum.gaussian_spiked_singular_value(n, 64),
        softmax_spectrum.gaussian_squared_norm(n),
        softmax_spectrum.gaussian_stable_rank(n, 64),
        softmax_spectrum.layer_second_singular_value(n, 64, 64),
        collapse.uniform_correlation(0.5, 0.1, n),
        collapse.uniform_correlation_limit(0.5, n),
        collapse.random_energy_participation(n),
    ),
    "paths": lambda x, n: (
        collapse.path_length_sums(network_of(), x, STACK),
        collapse.path_shares(network_of(), x, STACK),
        collapse.path_log_sizes(network_of(), x, STACK, jnp.zeros((2, 3), int)),
        collapse.path_reruns(network_of(), x, STACK, jnp.zeros((2, 3), int)),
        collapse.sample_path_log_residuals(key(), network_of(), x, STACK, 3, 2),
        collapse.product_log_residuals(jnp.ones((3, 4, 4)), x),
    ),
    "gradients of weights": lambda x, n: collapse.log_weight_gradients(network_of(), x, STACK, jnp.ones_like(x)),
    "scales": lambda x, n: (
        scale.annealed_entropy(n, 64, 16),
        scale.capped_scale(64, n),
        scale.layer_variance_spread(n, 64),
        scale.least_entropy(n, 64),
        scale.annealed_objective(n, 64, 16),
        scale.annealed_power_gradient(n),
        scale.annealed_renyi_entropy(n, 64, 16),
        equicorrelated.critical_gamma(0.5, n),
        scale.effective_keys(n),
        scale.entropy_loss_per_dimension(n),
        equicorrelated.optimal_gamma(0.5, n),
        scale.fixed_entropy_scale(n, 0.5),
        scale.log_concentration(n, 16),
        equicorrelated.similarity_limit(n, 0.5),
        equicorrelated.transition_width(0.5, n),
    ),
    "fits of scales": lambda x, n: (
        scale.fit_coefficient(n, n, "sqrt_log"),
        scale.relative_residual(n, n, "sqrt_log"),
        scale.optimise_scale(n),
        scale.per_sample_optimum(x),
    ),
    "Jacobians": lambda x, n: (
        scale.jacobian_frobenius_norm(x, n[0], "entmax15"),
        scale.jacobian_largest_entry(x, n[0]),
        scale.jacobian_trace(x, n[0], "sparsemax"),
        scale.log_gradient_norm(x, n[0]),
        scale.power_gradient_norm(x),
    ),
    "sampled scales": lambda x, n: (
        scale.sample_scales(key(), 8, samples=4),
        scale.scale_tail(key(), n[0], 8, samples=4),
        scale.typical_objective(key(), n, 8, samples=4),
        scale.typical_optimum(key(), 8, samples=4),
    ),
    "sparsity": lambda x, n: (
        sparsity.entropy_sparsity(x),
        sparsity.exponential(n),
        sparsity.differential(n, 0.5),
        sparsity.sinkhorn(x, x),
        sparsity.from_moments(n, n),
        sparsity.hoyer(x),
        sparsity.log_relu_squared(-n, n),
        sparsity.nonnegative_linear(x, jnp.ones(8), jnp.eye(8)),
        sparsity.nonnegative_linear_iid(x, 0.5, 0.2),
        sparsity.norm_ratio(x),
        sparsity.random_projections(key(), 4, 8),
        sparsity.sparsity(x),
    ),
    "special": lambda x, n: (
        special.log_bessel_i(1.5, n),
        special.log_hyp0f1(2.5, n),
        special.lambert_w0(n),
        special.bessel_ratio(1.5, n),
        special.lambert_w0_exp(n),
        special.log_bessel_ie(1.5, n),
        special.normals(key(), (5,)),
    ),
}
# Plain Python on plain numbers, descriptions of layers and kernels, or sentences about numbers that others compute.
ON_THE_HOST = {
    "convolution_layer", "convolution_tokens", "message_passing_layer",
    "layer_costs", "multiplications", "operations",
    "path_counts", "power", "locate_kinks",
    "feature_map_rates", "decay_spectrum", "median_gap",
    "explain",
}  # fmt: skip


LOWERED_BY_DEFAULT = {"log_residuals", "optimal_scale", "decoder", "sparsity", "networks", "attention"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in LOWERED_BY_DEFAULT else pytest.mark.slow) for name in KERNELS]
)
def test_every_kernel_lowers_for_cpu_cuda_and_tpu(name):
    shapes = jax.ShapeDtypeStruct((4, 8), jnp.float32), jax.ShapeDtypeStruct((3,), jnp.float32)
    exported = jax.export.export(jax.jit(KERNELS[name]), platforms=("cpu", "cuda", "tpu"))(*shapes)
    assert set(exported.platforms) == {"cpu", "cuda", "tpu"}


def test_no_public_function_is_forgotten():
    source = pathlib.Path(__file__).read_text()
    missing = [
        f"{package.__name__}.{name}"
        for package in PACKAGES
        for name in package.__all__
        if inspect.isfunction(getattr(package, name))
        and name not in ON_THE_HOST
        and f"{package.__name__.rsplit('.', 1)[-1]}.{name}(" not in source
    ]
    assert not missing
