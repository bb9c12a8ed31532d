"""Paths run again on their own hidden states, against loops in NumPy and against the network where the two meet."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import collapse, network
from tests.collapse.paths.networks import draw, stack

PATHS = np.array([[0, -1, 1], [1, 1, 0], [-1, -1, -1], [-1, 0, -1]])


def by_loops(params, x, path, normalise, epsilon, scale, seen):
    """One token, one head, one layer at a time, in float64."""
    p = jax.tree.map(lambda leaf: np.asarray(leaf, float), params.attention)
    for layer, head in enumerate(path):
        if head == -1:
            continue
        q, k, v = (
            x @ getattr(p, name)[layer, head] + getattr(p, f"{name}_bias")[layer, head]
            for name in ("query", "key", "value")
        )
        out = np.zeros_like(x)
        for i in range(len(x)):
            weights = np.exp(scale[head] * k @ q[i]) * seen[i]
            out[i] = weights / weights.sum() @ v @ p.output[layer, head] + p.output_bias[layer]
            if normalise:
                out[i] = (out[i] - out[i].mean()) / np.sqrt(out[i].var() + epsilon)
        x = out
    return x


@pytest.mark.parametrize("normalise", [True, False])
def test_against_loops(dtype, normalise):
    spec = dataclasses.replace(stack(depth=3, causal=True, bias=True), norm_epsilon=1e-3)
    params, x = draw(0, spec, dtype)
    scale = jnp.asarray([0.4, 1.1], dtype)
    got = collapse.path_reruns(params, x, spec, PATHS, normalise=normalise, scale=scale)
    seen = np.tril(np.ones((len(x), len(x))))
    for path, rows in zip(PATHS, got, strict=True):
        expected = by_loops(params, np.asarray(x, float), path, normalise, 1e-3, np.asarray(scale), seen)
        np.testing.assert_allclose(rows, expected, atol=200 * float(jnp.finfo(dtype).eps))


def test_a_single_head_without_skips_is_the_network(x64):
    spec = stack(depth=4, skip=False, heads=1)
    params, x = draw(1, spec)
    alone = collapse.path_reruns(params, x, spec, np.zeros((1, 4), int), normalise=False)[0]
    np.testing.assert_allclose(alone, network.apply(params, x, spec), rtol=1e-12, atol=1e-14)


@pytest.mark.slow
def test_it_is_the_term_of_the_decomposition_up_to_the_first_head_only(x64):
    """One head in the first layer sees the network's own tokens; one in a later layer sees others than the network."""
    spec = stack(depth=3)
    params, x = draw(2, spec)
    paths = np.array([[1, -1, -1], [-1, -1, 1]])
    alone = collapse.path_reruns(params, x, spec, paths, normalise=False)
    exact = collapse.path_log_sizes(params, x, spec, paths)
    ratio = np.log(np.linalg.norm(alone, axis=(1, 2))) - np.asarray(exact.log_norm[:, -1])
    assert abs(ratio[0]) < 1e-12 and abs(ratio[1]) > 1e-3


def test_paths_do_not_add_up_to_the_network(x64):
    spec = stack(depth=2)
    params, x = draw(3, spec)
    every = np.array([[a, b] for a in (-1, 0, 1) for b in (-1, 0, 1)])
    total = collapse.path_reruns(params, x, spec, every, normalise=False).sum(axis=0)
    output = network.apply(params, x, spec)
    assert np.abs(total - output).max() > 1e-3 * np.abs(output).max()
    np.testing.assert_allclose(collapse.path_length_sums(params, x, spec).sum(axis=0), output, rtol=1e-12)


def test_recipes_and_normalised_rows(key):
    spec = stack(depth=3, scores="cosine")
    x = jax.random.normal(key, (5, 4))
    layers = network.random_layers(key, spec, gain=5.0)  # sizes beside which the norm's epsilon is nothing
    rows = collapse.path_reruns(layers, x, spec, PATHS)
    np.testing.assert_array_equal(rows[2], x)
    np.testing.assert_allclose(rows[:2].mean(axis=2), 0, atol=1e-5)
    np.testing.assert_allclose(rows[:2].var(axis=2), 1, atol=1e-2)


@pytest.mark.parametrize("skip", [True, False])
def test_traced_paths_that_the_network_does_not_have_are_nan(skip):
    """Also in `path_log_sizes`, from the layer on where they leave the network; other paths stay as they are."""
    spec = stack(depth=3, skip=skip)
    params, x = draw(0, spec, "float32")
    right, wrong = np.zeros((1, 3), int), np.array([[0, 2, 0], [0, -2, 0], [0, 0, -2 if skip else -1]])
    paths = jnp.asarray(np.concatenate([wrong, right]))
    rows = jax.jit(lambda paths: collapse.path_reruns(params, x, spec, paths))(paths)
    sizes = jax.jit(lambda paths: collapse.path_log_sizes(params, x, spec, paths))(paths)
    assert np.isnan(rows[:3]).all()
    np.testing.assert_array_equal(rows[3], collapse.path_reruns(params, x, spec, right)[0])
    for each in (sizes.log_norm, sizes.log_residual):
        assert np.isnan(each).tolist() == [[False] * 2 + [True] * 2] * 2 + [[False] * 3 + [True], [False] * 4]


def test_paths_may_be_integers_of_any_type():
    spec = stack(depth=3, skip=True)
    params, x = draw(0, spec, "float32")
    paths = np.array([[0, 1, 0]])
    rows, sizes = (call(params, x, spec, paths) for call in (collapse.path_reruns, collapse.path_log_sizes))
    for dtype in ("uint8", "uint32", "int8"):
        np.testing.assert_array_equal(collapse.path_reruns(params, x, spec, paths.astype(dtype)), rows)
        of_type = collapse.path_log_sizes(params, x, spec, paths.astype(dtype))
        np.testing.assert_array_equal(of_type.log_norm, sizes.log_norm)


@pytest.mark.usefixtures("as_installed")
def test_bad_input():
    spec = stack(depth=3)
    params, x = draw(0, spec, "float32")

    def refused(error, match, x=x, spec=spec, paths=PATHS, **options):
        with pytest.raises(error, match=match):
            collapse.path_reruns(params, x, spec, paths, **options)

    refused(ValueError, "`spec` must have mlp=None", spec=dataclasses.replace(spec, mlp=network.MLPSpec(width=4)))
    refused(ValueError, "`spec` must have norm=None", spec=dataclasses.replace(spec, norm="pre"))
    refused(ValueError, "`paths` must hold heads 0 … 1, or −1", paths=PATHS + 1)
    refused(ValueError, "`paths` must hold heads .* no skip", spec=dataclasses.replace(spec, skip=False))
    refused(ValueError, "`paths` must have one column for each of 3", paths=PATHS[:, :2])
    refused(TypeError, "`paths` must be", paths=PATHS.astype(float))
    refused(TypeError, "`normalise` must be a bool, got 1", normalise=1)
    refused(ValueError, "`scale` must be > 0", scale=0.0)
    refused(TypeError, "`x` must be a floating-point", x=jnp.ones((5, 4), int))
