"""`ensemble.run` against all samples at once: numbers, batches, devices, traces, and what it refuses."""

import re
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import Mesh

from rc_jax import ensemble
from rc_jax.ensemble import runner

PROBABILITIES = np.array([[0.05, 0.25], [0.5, 0.95]])


class Pair(NamedTuple):
    first: jax.Array
    rest: dict


def observe(key):
    """Leaves of several shapes, by operations that round alike however they are compiled."""
    one, other = jax.random.split(key)
    signed = jax.random.uniform(one, (3,), minval=-1, maxval=1)
    return Pair(signed, {"square": jax.random.uniform(other) ** 2, "grid": jax.random.uniform(one, (2, 2))})


def all_at_once(fn, key, count):
    return jax.vmap(lambda i: fn(jax.random.fold_in(key, i)))(jnp.arange(count))


def devices(count):
    return Mesh(np.array(jax.devices()[:count]), ("sample",))


def assert_same(a, b):
    """Every bit that all statistics are made of."""
    np.testing.assert_equal(a.to_arrays(), b.to_arrays())


@pytest.mark.parametrize("count", [7, 1029])
def test_numpy_on_the_same_samples(key, dtype, count):
    samples = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), all_at_once(observe, key, count))
    stats = ensemble.run(observe, key, count, batch_size=16)
    assert stats.count == count and isinstance(stats.mean, Pair)

    def check(got, reference):
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14), got, jax.tree.map(reference, samples)
        )

    check(stats.mean, lambda x: x.mean(0))
    check(stats.variance, lambda x: x.var(0, ddof=1))
    check(stats.standard_error, lambda x: x.std(0, ddof=1) / np.sqrt(count))
    check(stats.minimum, lambda x: x.min(0))
    check(stats.maximum, lambda x: x.max(0))
    check(stats.quantile(PROBABILITIES), lambda x: np.quantile(x, PROBABILITIES, axis=0))
    check(stats.quantile(0.3), lambda x: np.quantile(x, 0.3, axis=0))
    check(stats.nonfinite, lambda x: 0 * x[0])


@pytest.mark.slow
@settings(deadline=None, max_examples=8)
@given(batch_size=st.integers(1, 150), count=st.sampled_from([100, 613]))
def test_the_batch_size_leaves_no_trace(batch_size, count):
    key = jax.random.key(3)
    assert_same(ensemble.run(observe, key, count, batch_size=batch_size), ensemble.run(observe, key, count))


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 5, 2_000])
def test_one_device_and_eight(key, count):
    assert len(jax.devices()) == 8
    eight = ensemble.run(observe, key, count, batch_size=8)
    assert_same(ensemble.run(observe, key, count, batch_size=8, mesh=devices(1)), eight)
    grid = jax.make_mesh((3, 2), ("rows", "columns"), devices=jax.devices()[:6])
    assert_same(ensemble.run(observe, key, count, batch_size=8, mesh=grid), eight)


@pytest.mark.slow
def test_devices_and_batches_with_matrix_products_and_scans(key):
    """Through linear algebra the order of sums may change, so equal to rounding only."""

    def grow(key):
        def layer(x, depth):
            w = jax.random.normal(jax.random.fold_in(key, depth), (8, 8)) / 8**0.5
            x = w @ x
            return x, jnp.log(jnp.linalg.norm(x))

        return jax.lax.scan(layer, jnp.ones(8), jnp.arange(5))[1]

    reference = all_at_once(grow, key, 200)
    for mesh in (devices(1), devices(8)):
        stats = ensemble.run(grow, key, 200, batch_size=3, mesh=mesh)
        np.testing.assert_allclose(stats.mean, np.mean(reference, 0), rtol=1e-5)
        np.testing.assert_allclose(stats.variance, np.var(reference, 0, ddof=1), rtol=1e-4)


def test_every_device_works(key):
    mesh = devices(8)
    leaves, tree = jax.tree.flatten(jax.eval_shape(observe, key))
    plan = runner.Plan(tree, tuple(leaves), batch=4, capacity=2, mesh=mesh)
    chunk = runner.evaluate(observe, key, 0, 2, plan)
    for leaf in jax.tree.leaves(chunk):
        assert leaf.shape[:3] == (2, 8, 4)
        assert {shard.device: shard.data.shape[1] for shard in leaf.addressable_shards} == dict.fromkeys(
            mesh.devices, 1
        )


def test_known_distribution_in_standard_errors(key):
    """Exponential: mean 1, variance 1 (whose own standard error is √(8/n)), quantiles −log(1 − q)."""
    count = 40_000
    stats = ensemble.run(jax.random.exponential, key, count)
    assert abs(stats.mean - 1) < 5 * stats.standard_error
    assert abs(stats.variance - 1) < 5 * np.sqrt(8 / count)
    q = np.array([0.1, 0.5, 0.9])
    spread = np.sqrt(q * (1 - q) / count) / (1 - q)
    assert np.all(np.abs(stats.quantile(q) + np.log1p(-q)) < 5 * spread + stats.quantile_error)
    assert 0 < stats.quantile_error < 1e-3


def test_nonfinite_samples_are_reported_and_excluded(key):
    def fn(key):
        u = jax.random.uniform(key)
        return {
            "some": jnp.where(u < 0.25, jnp.nan, u),
            "none": jnp.inf * (u + 1),
            "log": jnp.log(jnp.maximum(u - 0.5, 0)),
        }

    samples = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), all_at_once(fn, key, 400))
    stats = ensemble.run(fn, key, 400)
    kept = samples["some"][np.isfinite(samples["some"])]
    assert 0 < stats.nonfinite["some"] == 400 - len(kept)
    assert stats.nonfinite["none"] == 400 and stats.nonfinite["log"] == np.sum(np.isinf(samples["log"]))
    np.testing.assert_allclose(stats.mean["some"], kept.mean(), rtol=1e-13)
    np.testing.assert_allclose(stats.quantile(0.2)["some"], np.quantile(kept, 0.2), rtol=1e-13)
    for value in (stats.mean, stats.variance, stats.minimum, stats.maximum, stats.quantile(0.5)):
        assert np.isnan(value["none"])


def test_one_trace_whatever_the_count(key):
    traces = []

    def fn(key):
        traces.append(1)
        return jax.random.normal(key)

    ensemble.run(fn, key, 5_000, batch_size=8)
    first = len(traces)
    assert first <= 2  # its shape, and the program
    for count in (5_000, 64, 65, 777, 5_001):  # short chunks too
        ensemble.run(fn, jax.random.key(count), count, batch_size=8)
    assert len(traces) == first


def test_bfloat16(key):
    def fn(key):
        return jax.random.uniform(key, dtype=jnp.bfloat16)

    samples = np.asarray(all_at_once(fn, key, 300)).astype(np.float64)
    stats = ensemble.run(fn, key, 300)
    assert stats.mean.dtype == np.float64
    np.testing.assert_allclose(stats.mean, samples.mean(), rtol=1e-12, atol=1e-14)


def test_one_sample_has_no_variance(key):
    stats = ensemble.run(jax.random.normal, key, 1)
    assert np.isnan(stats.variance) and np.isnan(stats.standard_error)
    assert stats.mean == stats.minimum == stats.maximum == stats.quantile(0.5)


def test_an_observable_without_a_number_beside_one_with(key):
    stats = ensemble.run(lambda key: {"none": jnp.zeros((2, 0)), "one": jax.random.normal(key)}, key, 70)
    assert stats.mean["none"].shape == (2, 0) and stats.quantile([0.1, 0.5])["none"].shape == (2, 2, 0)
    assert float(stats.mean["one"]) == float(ensemble.run(jax.random.normal, key, 70).mean)


@pytest.mark.slow
def test_merge_and_arrays(key, tmp_path):
    parts = [ensemble.run(observe, jax.random.fold_in(key, i), count) for i, count in enumerate((300, 9))]
    samples = [all_at_once(observe, jax.random.fold_in(key, i), count) for i, count in enumerate((300, 9))]
    both = jax.tree.map(lambda *x: np.concatenate(x).astype(np.float64), *samples)
    total = ensemble.merge(*parts)
    assert total.count == 309
    for got, reference in (
        (total.mean, jax.tree.map(lambda x: x.mean(0), both)),
        (total.variance, jax.tree.map(lambda x: x.var(0, ddof=1), both)),
        (total.quantile(0.7), jax.tree.map(lambda x: np.quantile(x, 0.7, axis=0), both)),
    ):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14), got, reference)
    np.savez(tmp_path / "stats.npz", **total.to_arrays())  # pyright: ignore[reportArgumentType]
    with np.load(tmp_path / "stats.npz") as arrays:
        assert_same(ensemble.Statistics.from_arrays(arrays, like=jax.eval_shape(observe, key)), total)
        with pytest.raises(ValueError, match="`like` must have 8 components"):
            ensemble.Statistics.from_arrays(arrays, like=np.zeros(3))
    other = ensemble.run(jax.random.normal, key, 3)
    with pytest.raises(ValueError, match="`b` must have the observables of `a`"):
        ensemble.merge(total, other)


@pytest.mark.parametrize(("terminal", "wanted"), [(True, True), (True, False), (False, True)])
def test_progress_goes_to_stderr_where_that_is_a_terminal(key, capsys, monkeypatch, terminal, wanted):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    ensemble.run(jax.random.normal, key, 1_000, progress=wanted)
    out, err = capsys.readouterr()
    assert out == "" and ("1.00k/1.00k" in err if terminal and wanted else err == "")


def test_run_inside_a_trace_is_refused(key):
    def mean(scale):
        return ensemble.run(lambda key: scale * jax.random.normal(key), key, 10).mean

    for trace in (jax.jit, jax.grad):
        with pytest.raises(TypeError, match=r"`run` must be called outside|`fn` must not use values"):
            trace(mean)(1.0)
    with pytest.raises(TypeError, match="`fn` must not use values that are traced by a jit, vmap or grad around `run`"):
        jax.vmap(mean)(jnp.ones(2))
    with pytest.raises(TypeError, match="`run` must be called outside"):
        jax.vmap(lambda key: ensemble.run(jax.random.normal, key, 10).mean)(jax.random.split(key))


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"count": 0}, ValueError, "`count` must be an integer >= 1, got 0"),
        ({"count": 10.0}, TypeError, "`count` must be an integer >= 1, got 10.0"),
        ({"count": 2**33}, ValueError, "`count` must be an integer <= 2**32"),
        ({"batch_size": 0}, ValueError, "`batch_size` must be an integer >= 1, got 0"),
        ({"key": 0}, TypeError, "`key` must be one typed key from jax.random.key, got 0"),
        ({"key": np.zeros(2, np.uint32)}, TypeError, "`key` must be one typed key"),
        ({"fn": 3}, TypeError, "`fn` must be a function of one key, got 3"),
        ({"fn": jax.random.key(0)}, TypeError, "`fn` must be a function of one key, got a typed key, key<fry>"),
        ({"count": jax.random.key(0)}, TypeError, "`count` must be an integer >= 1, got a typed key, key<fry>"),
        ({"mesh": 8}, TypeError, "`mesh` must be a jax.sharding.Mesh, got 8"),
        ({"fn": lambda key: jnp.arange(3)}, TypeError, "`fn` must return a pytree of floating-point arrays"),
        ({"fn": lambda key: {"a": [1.0, "b"]}}, TypeError, "got 'b' at ['a'][1]"),
        ({"fn": lambda key: None}, TypeError, "got no number at all: None"),
        ({"fn": lambda key: jnp.zeros(3, complex)}, TypeError, "`fn` must return a pytree of floating-point arrays"),
        ({"fn": lambda key: key}, TypeError, "`fn` must return a pytree of floating-point arrays"),
    ],
)
def test_bad_input(change, error, message):
    arguments = {"fn": jax.random.normal, "key": jax.random.key(0), "count": 10} | change
    with pytest.raises(error, match=re.escape(message)):
        ensemble.run(**arguments)


def test_an_unhashable_function_is_refused(key):
    class Model:
        def __eq__(self, other):  # which leaves it without a hash
            return self is other

        def __call__(self, key):
            return jax.random.normal(key)

    with pytest.raises(TypeError, match="`fn` must be hashable"):
        ensemble.run(Model(), key, 10)


@pytest.mark.usefixtures("as_installed")
def test_bad_input_of_merge_and_quantile(key):
    stats = ensemble.run(jax.random.normal, key, 3)
    with pytest.raises(TypeError, match="`b` must be a Statistics, got 3"):
        ensemble.merge(stats, 3)
    with pytest.raises(TypeError, match="`a` must be a Statistics, got a typed key"):
        ensemble.merge(key, stats)
    with pytest.raises(ValueError, match="`q` must be >= 0 and <= 1, got 1"):
        stats.quantile([0.5, 1.5])
