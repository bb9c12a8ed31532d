"""Results have the dtype and the broadcast shape of the arguments. Functions are traced, and nothing is computed."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import scale, special
from rc_jax.scale import equicorrelated

KEY, FOUR = jax.random.key(0), jnp.float32(4)
BROADCAST = {
    "alpha",
    "b",
    "dim",
    "entropy",
    "gamma",
    "lam",
    "length",
    "n",
    "order",
    "power",
    "rho",
    "sink",
    "t",
    "x",
    "z",
}
OTHERS = {"average", "floored"}
SKIPPED = {"median_gap"}  # takes a number of the host
PUBLIC = {
    name: value
    for module in (scale, equicorrelated, special)
    for name, value in vars(module).items()
    if callable(value) and value.__module__.startswith("rc_jax.") and not name.startswith("_") and name not in SKIPPED
}
PARAMETERS = {name: set(inspect.signature(function).parameters) for name, function in PUBLIC.items()}
KINDS = ["bfloat16", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("float32", "float64"))]


def traced(function, kind, **shapes):
    """Shapes and floating-point dtypes of all parts of the result for arrays of these shapes."""
    given = {name: jax.ShapeDtypeStruct(shape, kind) for name, shape in shapes.items()}
    parts = jax.tree.leaves(jax.eval_shape(lambda given: function(**given), given))
    return {part.shape for part in parts}, {str(part.dtype) for part in parts} - {"bool"}


@pytest.mark.parametrize("kind", KINDS)
def test_results_follow_arrays(x64, kind):
    """Each argument has an axis of its own."""
    tested = [name for name, parameters in PARAMETERS.items() if parameters <= BROADCAST | OTHERS]
    assert len(tested) >= 23
    for name in tested:
        arrays = sorted(PARAMETERS[name] - OTHERS)
        full = tuple(range(2, 2 + len(arrays)))
        shapes = {array: (size, *(1,) * (full[-1] - size)) for array, size in zip(arrays, full, strict=True)}
        assert traced(PUBLIC[name], kind, **shapes) == ({full}, {kind}), name


@pytest.mark.parametrize("kind", KINDS)
def test_results_follow_rows_of_scores(x64, kind):
    tested = [name for name, parameters in PARAMETERS.items() if "scores" in parameters - {"labels"}]
    assert len(tested) > 10
    for name in tested:
        scales = {"alpha": (2,)} if "alpha" in PARAMETERS[name] else {}
        labels = {"labels": (3, 1, 7)} if "labels" in PARAMETERS[name] else {}
        batch = (3, 2) if scales else (3, 1)
        shapes, kinds = traced(PUBLIC[name], kind, scores=(3, 1, 7), **scales, **labels)
        assert shapes <= {batch, (*batch, 7)} and kinds == {kind}, name


DRAWS = [
    (lambda: scale.expected_objective(KEY, 2.0, 8, FOUR, 8), "float64", ()),
    (lambda: scale.scale_tail(KEY, jnp.ones((2, 1), jnp.float32), 4, 5.0, samples=4), "float32", (2, 1)),
    (lambda: scale.sample_scales(KEY, 4, samples=3), "float64", (3,)),
    (lambda: scale.sample_scales(KEY, 4, FOUR, samples=3), "float32", (3,)),
    (lambda: scale.typical_scale(KEY, 8, FOUR, 8), "float32", ()),
]


def test_results_follow_numbers(x64):
    """The widest array decides, and the default dtype where there is none; of draws of scales, `dim`."""
    for function, kind, shape in DRAWS:
        assert traced(function, kind) == ({shape}, {kind})
    assert equicorrelated.similarity_limit(1.0, np.float32(0.5)).dtype == jnp.float32
    assert scale.shared_query_scale(np.float32(64), 8).dtype == jnp.float32
    assert equicorrelated.critical_gamma(0.5).dtype == special.log_hyp0f1(2, 3).dtype == jnp.float64
    # integers past 32 bits
    assert scale.optimal_scale_exact(10**12) > 0
    assert special.log_hyp0f1(2, 10**12) > 0
