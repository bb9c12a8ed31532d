"""What is computed, counted: operations, bytes, the size of programs and how many are compiled. No clock."""

import functools
import os
import pathlib

import jax
import jax.numpy as jnp
import pytest

from rc_jax import attention, collapse, ensemble, network, scale

TOKENS = 8
COMPILED = "/jax/core/compile/backend_compile_duration"
TRACED = "/jax/core/compile/jaxpr_trace_duration"


@functools.cache
def stack(depth=3, d_model=16):
    return network.StackSpec(attention=attention.AttentionSpec(d_model=d_model, heads=2, d_head=8), depth=depth)


def weights(spec):
    return jax.eval_shape(lambda key: network.init(key, spec), jax.random.key(0))


def drawn(key, spec):
    return network.random_layers(key, spec)


KEY = jax.eval_shape(lambda: jax.random.key(0))
# Every kernel that runs over layers: (function of the network, tokens and specification; whether weights are given).
KERNELS = {
    "apply": (network.apply, True),
    "apply, drawn": (lambda key, x, spec: network.apply(drawn(key, spec), x, spec), False),
    "hidden_states": (network.hidden_states, True),
    "log_residuals": (collapse.log_residuals, True),
    "log_residuals, once": (functools.partial(collapse.log_residuals, check=False), True),
    "log_residuals, drawn": (lambda key, x, spec: collapse.log_residuals(drawn(key, spec), x, spec), False),
    "sample_log_residuals": (collapse.sample_log_residuals, False),
}


@functools.cache
def lowered(name, depth=12, d_model=16, coordinates=16):
    kernel, given = KERNELS[name]
    spec = stack(depth, d_model)
    x = jax.ShapeDtypeStruct((TOKENS, coordinates), jnp.float32)
    return jax.jit(lambda first, x: kernel(first, x, spec)).lower(weights(spec) if given else KEY, x)


def operations(name, **sizes):
    """Of one layer and what surrounds it: XLA counts the body of a loop once."""
    return lowered(name, **sizes).cost_analysis()["flops"]


@pytest.mark.slow
@pytest.mark.parametrize("name", KERNELS)
def test_a_deeper_network_is_the_same_program(name):
    shallow, deep = (lowered(name, depth=depth) for depth in (12, 192))
    assert deep.as_text().count("\n") == shallow.as_text().count("\n")
    assert operations(name, depth=192) <= 1.1 * operations(name, depth=12)


def test_plain_layers_take_the_operations_of_the_formula():
    # beside them: a comparison and an addition of the loop's counter
    assert 0 <= operations("apply") - attention.operations(tokens=TOKENS, d_model=16, heads=2) <= 4


@pytest.mark.parametrize(
    ("name", "plain", "most"),
    [
        ("log_residuals, once", "apply", 3.5),
        # Three copies of the single run, whose moved weights alone bring that to 4.6 times it, and moved roundings.
        ("log_residuals", "log_residuals, once", 6.5),
        ("log_residuals, drawn", "apply, drawn", 5.0),
    ],
)
def test_exact_arithmetic_takes_a_few_times_the_operations(name, plain, most):
    assert operations(plain) < operations(name) < most * operations(plain)


@pytest.mark.slow
def test_collapse_at_any_width_takes_the_same_operations_and_bytes():
    narrow, wide = (lowered("sample_log_residuals", d_model=d).cost_analysis() for d in (16, 12_288))
    assert wide["flops"] == narrow["flops"]
    assert wide["bytes accessed"] == narrow["bytes accessed"]


@pytest.mark.slow
def test_compiled_layers_touch_their_weights_a_few_times_and_keep_nothing():
    shallow, deep = (lowered("apply", depth=depth, d_model=64, coordinates=64).compile() for depth in (3, 48))
    layer = 4 * 64 * 16 * 4  # bytes of one layer's weights
    touched = deep.cost_analysis()["bytes accessed"]
    assert layer < touched < 12 * layer
    assert touched <= 1.01 * shallow.cost_analysis()["bytes accessed"]
    assert deep.memory_analysis().temp_size_in_bytes == shallow.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("name", ["apply, drawn", pytest.param("sample_log_residuals", marks=pytest.mark.slow)])
def test_a_normal_is_drawn_once_however_many_products_read_it(name):
    """Twenty rounds for a block of two numbers: a loop that drew them again, or one of them, would have its own."""
    program = lowered(name, d_model=64, coordinates=64).compile().as_text()
    loops = [loop for loop in program.split("\n\n") if loop.count(" shift-right-logical(") >= 20]
    # Width-free: one for all weights, before the collapse and after it, and one for the proposals of chi-squares.
    assert len(loops) == {"apply, drawn": 1, "sample_log_residuals": 1 + 1}[name]


@pytest.fixture
def events():
    """How often something was compiled or traced while the test ran."""
    seen, listening = {COMPILED: 0, TRACED: 0}, True

    def listen(event, duration, **about):
        del duration, about
        if listening and event in seen:
            seen[event] += 1

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield seen
    listening = False


def test_a_program_that_another_process_is_writing_is_compiled_again():
    """JAX warns of that, and a warning is an error here."""

    def cosine(x):
        return jnp.cos(x) - 3

    cosine.__name__ = f"cosine_{os.getpid()}"
    kernel, name = jax.jit(cosine), "jax_persistent_cache_min_compile_time_secs"
    least = jax.config.values[name]
    jax.config.update(name, 0.0)  # however quick it is
    try:
        before = kernel(1.0)
        (program,) = pathlib.Path(os.environ["JAX_COMPILATION_CACHE_DIR"]).glob(f"jit_{cosine.__name__}-*-cache")
        program.write_bytes(program.read_bytes()[:9])
        kernel.clear_cache()
        assert kernel(1.0) == before
        program.unlink()
    finally:
        jax.config.update(name, least)


SPEC = stack()
PARAMS = network.init(jax.random.key(0), SPEC)
TOKEN_VALUES = jnp.ones((TOKENS, 16))


def one_number(key):
    return jax.random.normal(key)


AGAIN = {
    "apply": lambda v: network.apply(PARAMS, v * TOKEN_VALUES, SPEC, scale=v),
    "hidden_states": lambda v: network.hidden_states(PARAMS, v * TOKEN_VALUES, SPEC, scale=v),
    "init": lambda v: network.init(jax.random.key(int(v)), SPEC, gain=v),
    "log_residuals": lambda v: collapse.log_residuals(PARAMS, v * TOKEN_VALUES, SPEC, scale=v),
    "optimal_scale": lambda v: scale.optimal_scale(v * 10.0),
    "ensemble": lambda v: ensemble.run(one_number, jax.random.key(0), 3 * int(v) + 200, batch_size=4),
}


COMPILES_LONG = {"log_residuals"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in COMPILES_LONG else ()) for name in AGAIN]
)
def test_other_numbers_neither_trace_nor_compile_again(name, events):
    AGAIN[name](2.0)
    first = dict(events)
    AGAIN[name](3.0)
    assert events == first
    jax.jit(lambda v: v + 1)(2.0)
    assert events[COMPILED] > first[COMPILED] and events[TRACED] > first[TRACED], "the listener hears nothing"
