"""How the layers of today's models are wired: norms within the branches, branches side by side, layers of two kinds."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import attention, network
from rc_jax.network.switches import switched_apply
from tests.oracles import network as oracle

N, D = 5, 8
FAR = attention.AttentionSpec(d_model=D, heads=2, bias=True, causal=True, rotary=attention.Rotary(base=100))
NEAR = dataclasses.replace(FAR, window=1, rotary=attention.Rotary(base=10))
MLP = network.MLPSpec(width=12, activation="tanh")
PLAIN = network.StackSpec(attention=FAR, depth=3, skip=True, mlp=MLP)


WIRINGS = [
    {"norm": norm, "parallel": parallel, "skip": skip}
    for (norm, parallel), skip in itertools.product(
        [("branch", False), ("peri", False), (None, True), ("pre", True), ("branch", True)], (True, False)
    )
]


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(change, marks=() if change in (WIRINGS[0], WIRINGS[2], WIRINGS[6]) else pytest.mark.slow)
        for change in WIRINGS
    ],
)
def test_wirings_against_numpy(x64, change):
    spec = dataclasses.replace(PLAIN, **change)
    params, x = oracle.draw(spec)
    states = network.hidden_states(params, x, spec)
    np.testing.assert_allclose(states, oracle.hidden_states(params, x, spec), rtol=1e-11, atol=1e-12)


def test_layers_of_two_kinds(x64):
    """Every layer runs its own attention; a network of the other order, and one of one kind, give other numbers."""
    spec = dataclasses.replace(PLAIN, local=NEAR, local_layers=(0, 2))
    params, x = oracle.draw(spec)
    output = network.apply(params, x, spec)
    np.testing.assert_allclose(output, oracle.hidden_states(params, x, spec)[-1], rtol=1e-11, atol=1e-12)
    for other in (dataclasses.replace(spec, local_layers=(1,)), PLAIN, dataclasses.replace(PLAIN, attention=NEAR)):
        assert np.abs(network.apply(params, x, other) - output).max() > 1e-3
    assert [spec.kinds[spec.kind_of(index)].attention for index in range(3)] == [NEAR, FAR, NEAR]


@pytest.mark.slow
def test_layers_of_two_kinds_drawn_on_the_way_mapped_and_differentiated(key):
    spec = dataclasses.replace(PLAIN, norm="peri", local=NEAR, local_layers=(1,))
    stored, drawn = network.init(key, spec), network.random_layers(key, spec)
    batch = jax.random.normal(jax.random.key(1), (3, N, D))
    run = jax.vmap(lambda params, x: network.apply(params, x, spec), in_axes=(None, 0))
    np.testing.assert_allclose(run(stored, batch), run(drawn, batch), rtol=1e-4, atol=1e-5)
    slope = jax.grad(lambda x: jnp.sum(network.apply(stored, x, spec)[0]))(batch[0])
    along = jax.random.normal(jax.random.key(2), (N, D))
    ends = [jnp.sum(network.apply(stored, batch[0] + step * along, spec)[0]) for step in (1e-2, -1e-2)]
    assert float(jnp.sum(slope * along)) == pytest.approx(float(ends[0] - ends[1]) / 2e-2, rel=2e-2, abs=2e-3)


@pytest.mark.usefixtures("as_installed")
def test_a_mask_must_leave_a_token_to_both_kinds(key):
    spec = dataclasses.replace(PLAIN, local=NEAR, local_layers=(1,))
    params = network.init(key, spec)
    first = np.arange(N)[None] == np.zeros((N, 1))  # seen by all, but not through a window
    with pytest.raises(ValueError, match="`mask` must leave every token something to see"):
        network.apply(params, jnp.ones((N, D)), spec, mask=first)
    assert network.apply(params, jnp.ones((N, D)), PLAIN, mask=first).shape == (N, D)


@pytest.mark.parametrize("norm", ["branch", "peri"])
def test_the_strength_of_a_branch_that_ends_in_a_norm(x64, norm):
    """The norm would undo a factor on the output matrix, so its gain and shift are multiplied."""
    spec = dataclasses.replace(PLAIN, norm=norm, depth=1, mlp=None)
    params, x = oracle.draw(spec)
    branch = network.apply(params, x, spec) - x
    scaled = network.apply(network.scale_branches(params, 0.3), x, spec)
    np.testing.assert_allclose(scaled, x + 0.3 * branch, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("as_installed")
@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"parallel": 1}, TypeError, "`parallel` must be a bool, got 1"),
        ({"parallel": True, "norm": "post"}, ValueError, "`norm` must not be 'post' with parallel=True"),
        ({"local": NEAR}, ValueError, r"`local_layers` must be given with local and only then, got \(\)"),
        ({"local_layers": (1,)}, ValueError, r"`local_layers` must be given with local and only then, got \(1,\)"),
        ({"local": NEAR, "local_layers": [1]}, TypeError, r"`local_layers` must be a tuple, got \[1\]"),
        ({"local": 3, "local_layers": (1,)}, TypeError, "`local` must be an AttentionSpec or None, got 3"),
        ({"local": NEAR, "local_layers": (3,)}, ValueError, r"`local_layers` must rise within 0 … 2, got \(3,\)"),
        ({"local": NEAR, "local_layers": (1, 0)}, ValueError, r"`local_layers` must rise within 0 … 2, got \(1, 0\)"),
        ({"local": NEAR, "local_layers": (-1,)}, ValueError, "`local_layers` must be an integer >= 0, got -1"),
        (
            {"local": dataclasses.replace(NEAR, heads=4), "local_layers": (1,)},
            ValueError,
            "`local` must have parameters of the shapes that `attention` has",
        ),
    ],
)
def test_bad_specifications(change, error, message):
    with pytest.raises(error, match=message):
        dataclasses.replace(PLAIN, **change)


def test_numbers_switch_only_what_they_know(key):
    for change in ({"parallel": True}, {"norm": "peri"}, {"local": NEAR, "local_layers": (1,)}):
        spec = dataclasses.replace(PLAIN, **change)
        with pytest.raises(ValueError, match=f"`stack` must have {next(iter(change))} among"):
            switched_apply(network.init(key, spec), jnp.ones((N, D)), spec, {"skip": True})
