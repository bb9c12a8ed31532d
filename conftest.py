"""Examples in docstrings that compile much run with the slow tests. Not part of the wheel."""

import pytest

# The functions by their modules below rc_jax: 1 to 8 seconds of processor time each, nearly all of it compilation.
# What they show is tested in tests/, too.
SLOW_EXAMPLES = {
    "attention.masks.random",
    "collapse.audit.tanh.score_oscillation",
    "collapse.audit.tanh.tanh_depth",
    "collapse.audit.tanh.tanh_layer",
    "collapse.audit.norms.depth",
    "collapse.audit.norms.layer",
    "collapse.bounds.cubic.depth_bound",
    "collapse.bounds.cubic.layer_bound",
    "collapse.bounds.cubic.measured_gamma",
    "collapse.paths.reruns.path_reruns",
    "collapse.paths.sizes.path_log_sizes",
    "collapse.paths.sizes.path_shares",
    "collapse.paths.sizes.sample_path_log_residuals",
    "collapse.bounds.tanh.tanh_depth_bound",
    "collapse.exact.weight_gradients.log_weight_gradients",
    "collapse.width_free.sampling.sample_log_residuals",
    "diagnostics.hooks.monitoring.score_metrics",
    "diagnostics.streaming.queries_and_keys.scores",
    "network.branches.scale_branches",
    "pretrained.checkpoint.Checkpoint.embed",
    "pretrained.tracing.trace",
    "scale.gradient.entropy.softmax_entropy",
    "scale.simulated.objectives.expected_objective",
    "scale.simulated.objectives.typical_objective",
    "scale.fits.fit_coefficient",
    "scale.simulated.per_sample.per_sample_optimum",
    "scale.simulated.per_sample.per_sample_scale",
    "scale.simulated.distribution.sample_scales",
    "scale.simulated.distribution.scale_tail",
    "scale.simulated.objectives.typical_optimum",
    "scale.simulated.objectives.typical_scale",
    "sparsity.closed_forms.linear_features.feature_moments",
    "sparsity.quadrature.kernels.power",
    "sparsity.quadrature.adaptive.from_kernel",
    "sparsity.random_features.random_projections",
    "sparsity.closed_forms.taylor.taylor_exponential",
    "training.batches.shuffled",
    "training.model.Transformer",
    "training.tasks._characters.windows",
    "training.tasks._convex_hull.convex_hull",
    "training.tasks._recall.recall_question",
    "training.trainer.train",
}


def pytest_collection_modifyitems(items):
    """Mark them."""
    for item in items:
        if not isinstance(item, pytest.DoctestItem):
            continue
        if item.name.removeprefix("rc_jax.") in SLOW_EXAMPLES:
            item.add_marker(pytest.mark.slow)
        if any(example.source == "import torch\n" for example in item.dtest.examples):
            item.add_marker(pytest.mark.torch)
