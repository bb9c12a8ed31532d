"""Forms for XLA's CPU compiler against plain ones, and one branch for a whole batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import special
from rc_jax._numerics import linear_algebra, performance

ROWS = jax.random.normal(jax.random.key(1), (9, 30))


def gram(x):
    factor = linear_algebra.gram_factor(x)
    return factor @ factor.T


# A program with a form for CPUs, and a word that its text has in that form alone.
FORMS = {
    "normals": (lambda x: special.normals(jax.random.key(0), (5, 3)) + x[:5, :3], "complex<f32>"),
    "factors of Gram matrices": (gram, "by_products"),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_both_forms_give_the_same_numbers_to_rounding(form, monkeypatch):
    function = FORMS[form][0]
    fast = jax.jit(lambda x: function(x))(ROWS)
    jax.clear_caches()
    monkeypatch.setattr(performance, "on_cpu", lambda cpu, default, *operands: default(*operands))
    plain = jax.jit(lambda x: function(x))(ROWS)
    jax.clear_caches()
    np.testing.assert_allclose(fast, plain, rtol=2e-6, atol=2e-5)


@pytest.fixture
def named_places():
    """A program says which function each operation came from."""
    name = "jax_traceback_in_locations_limit"
    before = jax.config.values[name]
    jax.config.update(name, 10)
    yield
    jax.config.update(name, before)


@pytest.mark.usefixtures("named_places")
@pytest.mark.parametrize("form", FORMS)
def test_a_form_for_cpus_is_in_no_program_for_other_devices(form):
    function, word = FORMS[form]

    def program(platform):
        return jax.export.export(jax.jit(lambda x: function(x)), platforms=(platform,))(ROWS).mlir_module()

    assert program("cpu").count(word) > program("cuda").count(word) == program("tpu").count(word)


def test_a_flag_of_a_batch_runs_one_branch():
    def choose(x):
        return jax.lax.cond(performance.any_in_batch(x > 1), lambda: x + 10, lambda: x)

    np.testing.assert_array_equal(jax.vmap(choose)(jnp.arange(3.0)), [10, 11, 12])
    np.testing.assert_array_equal(jax.vmap(choose)(jnp.zeros(3)), np.zeros(3))
    assert choose(jnp.float32(0)) == 0
