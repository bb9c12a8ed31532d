"""Forms for XLA's CPU compiler against plain ones, and functions compiled for one call inside any trace."""

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import attention, collapse, network, special
from rc_jax._numerics import linear_algebra, performance


@pytest.fixture
def square():
    return performance.quickly(static_argnames="power")(lambda x, power=2: jnp.sum(x**power))


def test_the_same_inside_every_trace(square):
    x = jnp.arange(1.0, 5.0)
    assert square(x) == jax.jit(square)(x) == jax.jit(lambda: square(x))() == 30
    np.testing.assert_array_equal(jax.vmap(square)(x), x**2)
    np.testing.assert_array_equal(jax.grad(square)(x), 2 * x)
    np.testing.assert_array_equal(jax.jit(jax.vmap(jax.grad(square)))(x[None])[0], 2 * x)
    assert square(x, power=3) == 100


def test_the_options_are_given_outside_of_a_trace_alone(monkeypatch):
    monkeypatch.setattr(performance, "_known", lambda: {"xla_of_no_version": True})
    identity = performance.quickly()(lambda x: x)
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_of_no_version"):
        identity(1.0)
    assert jax.jit(identity)(1.0) == 1


def test_an_xla_that_does_not_know_the_options_is_left_alone(monkeypatch):
    monkeypatch.setattr(performance, "QUICK", {"xla_of_no_version": True})
    assert performance._known.__wrapped__() == {}


def test_a_cpu_is_told_to_use_wide_vectors_unless_its_user_or_xla_will_not_have_it(monkeypatch):
    name = "xla_cpu_prefer_vector_width"
    assert performance.wide_vectors("cpu") == {name: 512}
    assert performance.wide_vectors("cuda") == {}
    with monkeypatch.context() as patch:
        patch.setattr(performance, "tricks", lambda: False)
        assert performance.wide_vectors("cpu") == {}
    with monkeypatch.context() as patch:
        patch.setenv("XLA_FLAGS", f"--{name}=256")
        assert performance.wide_vectors("cpu") == {}
    monkeypatch.setattr(performance, "WIDE", {"xla_of_no_version": True})
    assert performance.wide_vectors("cpu") == {}


def test_errors_of_the_function_are_its_own():
    def refuse(x):
        raise ValueError("`x` is refused")

    with pytest.raises(ValueError, match="`x` is refused"):
        performance.quickly()(refuse)(1.0)


@pytest.mark.slow
def test_plain_forms_give_the_same_numbers_to_rounding():
    """Normals and factors of Gram matrices, with the switch on and off, and lowered for other devices."""
    rows = jax.random.normal(jax.random.key(1), (9, 30))

    def both(key):
        factor = linear_algebra.gram_factor(rows)
        return special.normals(key, (5, 3)), factor @ factor.T

    def program():
        return jax.jit(both).lower(jax.random.key(0)).as_text()

    fast, here = jax.jit(both)(jax.random.key(0)), program()
    with performance.plain():
        assert not performance.tricks()
        plain, there = jax.jit(both)(jax.random.key(0)), program()
    assert performance.tricks() and ("complex<f32>" in here, "complex<f32>" in there) == (True, False)
    assert ("lapack" in here, "lapack" in there) == (False, True)
    for one, other in zip(fast, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-6, atol=2e-5)


LAYER = attention.AttentionSpec(d_model=128, heads=1)
STACK = network.StackSpec(attention=LAYER, depth=2)
FORMS = {  # a program with a form for CPUs, and a word that its text has in that form alone
    "one product a head": (lambda x: attention.attend(attention.init(jax.random.key(0), LAYER), x, LAYER), "batching"),
    "unsaturated softmax": (
        lambda x: collapse.log_residuals(network.random_layers(jax.random.key(0), STACK), x, STACK),
        "pairwise_rows",
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_form_for_cpus_is_in_no_program_for_other_devices(form):
    function, word = FORMS[form]
    x = jax.ShapeDtypeStruct((4, 128), jnp.float32)

    def program(platform):
        return jax.export.export(jax.jit(lambda x: function(x)), platforms=(platform,))(x).mlir_module()

    assert program("cpu").count(word) > program("cuda").count(word) == program("tpu").count(word)
    on_cuda = program("cuda").count(word)
    with performance.plain():
        assert program("cpu").count(word) == on_cuda


@pytest.mark.slow
def test_the_environment_switches_everything_off():
    code = "from rc_jax._numerics import performance; print(performance.tricks())"
    for value, expected in (("1", "False"), ("0", "True"), ("", "True")):
        environment = os.environ | {"RC_JAX_PLAIN": value}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
        assert done.stdout.strip() == expected


def test_a_flag_of_a_batch_runs_one_branch():
    def choose(x):
        return jax.lax.cond(performance.any_in_batch(x > 1), lambda: x + 10, lambda: x)

    np.testing.assert_array_equal(jax.vmap(choose)(jnp.arange(3.0)), [10, 11, 12])
    np.testing.assert_array_equal(jax.vmap(choose)(jnp.zeros(3)), np.zeros(3))
    assert choose(jnp.float32(0)) == 0
