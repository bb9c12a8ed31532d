"""`ensemble.run` against all samples at once: numbers, batches, devices, traces, and what it refuses."""

import functools
import os
import re
import subprocess
import sys
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rc_jax import attention, ensemble, network
from rc_jax.ensemble import runner


class Pair(NamedTuple):
    first: jax.Array
    rest: dict


def observe(key):
    """Leaves of several shapes, by operations that round alike however they are compiled."""
    one, other = jax.random.split(key)
    signed = jax.random.uniform(one, (3,), minval=-1, maxval=1)
    return Pair(signed, {"square": jax.random.uniform(other) ** 2, "grid": jax.random.uniform(one, (2, 2))})


def all_at_once(fn, key, count):
    samples = jax.vmap(lambda i: fn(jax.random.fold_in(key, i)))(jnp.arange(count))
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), samples)


assert_same = functools.partial(chex.assert_trees_all_equal, strict=True)  # every bit


@pytest.mark.parametrize("count", [1, 7, 1029])
def test_sample_i_is_that_of_key_i(key, dtype, count):
    samples = ensemble.run(observe, key, count, batch_size=16)
    assert isinstance(samples, Pair) and samples.rest["grid"].shape == (count, 2, 2)
    assert all(leaf.dtype == np.float64 for leaf in jax.tree.leaves(samples))
    assert_same(samples, all_at_once(observe, key, count))


@pytest.mark.slow
@settings(deadline=None, max_examples=8)
@given(batch_size=st.integers(1, 150), count=st.sampled_from([100, 613]))
def test_the_batch_size_leaves_no_trace(batch_size, count):
    key = jax.random.key(3)
    assert_same(ensemble.run(observe, key, count, batch_size=batch_size), ensemble.run(observe, key, count))


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 5, 2_000])
def test_one_device_and_several(key, count):
    one, three, eight = (
        ensemble.run(observe, key, count, batch_size=8, devices=jax.devices()[:number]) for number in (1, 3, 8)
    )
    assert_same(one, three)
    assert_same(one, eight)


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
    for number in (1, 8):
        samples = ensemble.run(grow, key, 200, batch_size=3, devices=jax.devices()[:number])
        np.testing.assert_allclose(samples, reference, rtol=1e-5, atol=1e-5)


def test_every_device_works(key):
    traced = jax.jit(observe).trace(key)
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("sample",))
    plan = runner.Plan(traced.jaxpr, tuple(jax.tree.leaves(traced.out_info)), batch=4, capacity=2, mesh=mesh)
    for leaf in runner.evaluate([], key, 0, 2, plan):
        assert leaf.shape[:3] == (2, 8, 4)
        assert {shard.device: shard.data.shape[1] for shard in leaf.addressable_shards} == dict.fromkeys(
            mesh.devices, 1
        )


def test_arrays_of_a_function_are_inputs_of_the_program_and_no_constants(key, monkeypatch):
    """A compiler computes with constants: with tokens of width 12 288 it took 15 s that ran nothing."""
    tokens, noise = jnp.arange(8.0), jax.random.key(3)
    programs = []
    monkeypatch.setattr(runner, "evaluate", lambda *given, of=runner.evaluate: programs.append(given) or of(*given))

    def fn(key):
        return tokens @ tokens + jax.random.normal(key) + jax.random.normal(noise)

    reference = all_at_once(fn, key, 20)
    np.testing.assert_allclose(ensemble.run(fn, key, 20), reference, rtol=1e-6)
    committed = jax.device_put(tokens, jax.devices()[3])
    samples = ensemble.run(lambda key: committed.sum() * jax.random.normal(key), key, 20, devices=jax.devices()[:2])
    assert np.isfinite(samples).all()
    for arrays, *_, plan in programs:
        assert tokens.shape in [each.shape for each in arrays]
        text = runner._rounds.lower(arrays, key, np.uint32(0), np.int32(1), plan).as_text()
        assert "7.000000e+00" not in text and '"0x' not in text  # as a list of numbers or in hexadecimal digits


def test_chunks_are_bounded_whatever_the_count():
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("sample",))
    for numbers in (1, 1000, 10**7):
        traced = jax.jit(lambda key, numbers=numbers: jax.random.normal(key, numbers)).trace(jax.random.key(0))
        plan = runner._plan(traced.jaxpr, traced.out_info, 8, 2**32, mesh)
        assert plan.capacity == 1 or 4 * numbers * plan.batch * plan.capacity <= runner.CHUNK_BYTES
        assert 1 <= plan.capacity <= runner.CHUNK_ROUNDS


def test_known_distribution_in_standard_errors(key):
    """Exponential: mean 1, variance 1 (whose own standard error is √(8/n)), quantiles −log(1 − q)."""
    count = 40_000
    samples = ensemble.run(jax.random.exponential, key, count)
    assert abs(samples.mean() - 1) < 5 * samples.std(ddof=1) / np.sqrt(count)
    assert abs(samples.var(ddof=1) - 1) < 5 * np.sqrt(8 / count)
    q = np.array([0.1, 0.5, 0.9])
    spread = np.sqrt(q * (1 - q) / count) / (1 - q)
    assert np.all(np.abs(np.quantile(samples, q) + np.log1p(-q)) < 5 * spread)


def test_samples_that_are_not_finite_stay_in_their_place(key):
    def fn(key):
        u = jax.random.uniform(key)
        return {"some": jnp.where(u < 0.25, jnp.nan, u), "log": jnp.log(jnp.maximum(u - 0.5, 0))}

    samples = ensemble.run(fn, key, 400)
    assert_same(samples, all_at_once(fn, key, 400))
    assert 0 < np.isnan(samples["some"]).sum() < 400 and np.isneginf(samples["log"]).any()


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


def test_sums_of_bfloat16_samples_lose_no_digits(key):
    def fn(key):
        return jax.random.uniform(key, dtype=jnp.bfloat16)

    samples = ensemble.run(fn, key, 3000)
    assert_same(samples, all_at_once(fn, key, 3000))
    assert abs(samples.mean() - 0.5) < 5 / np.sqrt(12 * 3000)


def test_an_observable_without_a_number_beside_one_with(key):
    samples = ensemble.run(lambda key: {"none": jnp.zeros((2, 0)), "one": jax.random.normal(key)}, key, 70)
    assert samples["none"].shape == (70, 2, 0)
    assert_same(samples["one"], ensemble.run(jax.random.normal, key, 70))


@pytest.mark.parametrize(("terminal", "wanted"), [(True, True), (True, False), (False, True)])
def test_progress_goes_to_stderr_where_that_is_a_terminal(key, capsys, monkeypatch, terminal, wanted):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    ensemble.run(jax.random.normal, key, 1_000, progress=wanted)
    out, err = capsys.readouterr()
    assert out == "" and ("1.00k/1.00k" in err if terminal and wanted else err == "")


def test_run_inside_a_trace_is_refused(key):
    def mean(scale):
        return ensemble.run(lambda key: scale * jax.random.normal(key), key, 10).mean()

    for trace in (jax.jit, jax.grad):
        with pytest.raises(TypeError, match=r"`run` must be called outside|`fn` must not use values"):
            trace(mean)(1.0)
    with pytest.raises(TypeError, match="`fn` must not use values that are traced by a jit, vmap or grad around `run`"):
        jax.vmap(mean)(jnp.ones(2))
    with pytest.raises(TypeError, match="`run` must be called outside"):
        jax.vmap(lambda key: ensemble.run(jax.random.normal, key, 10).mean())(jax.random.split(key))


@pytest.mark.parametrize("generator", ["rbg", "unsafe_rbg"])
def test_a_generator_whose_numbers_depend_on_the_batch_is_refused(generator):
    stack = network.StackSpec(attention=attention.AttentionSpec(d_model=8, heads=2), depth=2)
    key = jax.random.key(0, impl=generator)

    def size(key):
        return jnp.linalg.norm(network.init(key, stack).attention.query)

    with pytest.raises(ValueError, match=f"`key` must be of the generator threefry2x32.*got one of {generator}"):
        ensemble.run(size, key, 64)


def test_a_default_generator_whose_numbers_depend_on_the_batch_is_refused():
    with jax.default_prng_impl("rbg"), pytest.raises(ValueError, match=r"jax.random.key\(seed, impl='threefry2x32'\)"):
        ensemble.run(jax.random.normal, jax.random.key(0), 1000)


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"count": 0}, ValueError, "`count` must be an integer from 1 to 4294967296, got 0"),
        ({"count": 10.0}, TypeError, "`count` must be an integer from 1 to 4294967296, got 10.0"),
        ({"count": 2**33}, ValueError, "`count` must be an integer from 1 to 4294967296"),
        ({"batch_size": 0}, ValueError, "`batch_size` must be an integer >= 1, got 0"),
        ({"key": 0}, TypeError, "`key` must be one typed key from jax.random.key, got 0"),
        ({"key": np.zeros(2, np.uint32)}, TypeError, "`key` must be one typed key"),
        ({"fn": 3}, TypeError, "`fn` must be a function, got 3"),
        ({"fn": jax.random.key(0)}, TypeError, "`fn` must be a function, got a typed key, key<fry>"),
        (
            {"count": jax.random.key(0)},
            TypeError,
            "`count` must be an integer from 1 to 4294967296, got a typed key, key<fry>",
        ),
        ({"devices": 8}, ValueError, "`devices` must be several of this process's devices"),
        ({"devices": []}, ValueError, "`devices` must be several of this process's devices"),
        ({"devices": [jax.devices()[0]] * 2}, ValueError, "`devices` must name each device once, got ["),
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


MEMORY = """
import sys
import jax, jax.numpy as jnp
from rc_jax import ensemble

def peak():  # MiB; not ru_maxrss where it can be helped, which remembers the parent process
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 2**10
    except FileNotFoundError:
        import resource
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)

def many(key):
    return jnp.broadcast_to(jnp.sum(jax.random.normal(key, (2**14,))), (256,))

grown = []
for count in (500, 5500):
    samples = ensemble.run(many, jax.random.key(0), count, batch_size=8)
    grown.append(peak())
    del samples
print(*grown)
"""


@pytest.mark.slow
def test_memory_grows_by_the_samples_alone():
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run([sys.executable, "-c", MEMORY], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    few, many = map(float, done.stdout.split())
    # All normal numbers of the 5 000 more samples would be 312 MiB; the samples are 10 MiB.
    assert many - few < 10 + 40, f"{few:.0f} MiB for 500, {many:.0f} MiB for 5 500"
