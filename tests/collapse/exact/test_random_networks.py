"""Networks of every option against many digits: each residual is right or NaN."""

import base64
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import attention, collapse, network
from rc_jax.attention.specification import assemble
from rc_jax.collapse.exact import moves, trajectory
from rc_jax.network import LayerParams, MLPParams, NormParams
from tests.collapse.exact.random_networks import draw, draw_spec, judge
from tests.collapse.exact.test_trajectory import mostly_slow
from tests.oracles import many_digits

DIGITS = 300
LOST = {case["name"]: case for case in json.loads(Path(__file__).with_name("lost_digits.json").read_text("utf8"))}


def array(stored):
    """A NumPy array of what `lost_digits.json` has for it: dtype, shape and bytes."""
    if stored is None:
        return None
    dtype, shape, content = stored
    return np.frombuffer(base64.b85decode(content), dtype).reshape(shape)


def read(case):
    """Parameters, tokens, specification, scale and mask of a stored network."""

    def layer(fields):
        rotary = fields.get("rotary")
        return attention.AttentionSpec(
            **fields | ({"rotary": attention.Rotary(**rotary)} if rotary is not None else {})
        )

    fields = dict(case["spec"])
    fields["attention"] = layer(fields["attention"])
    if "local" in fields:
        fields |= {"local": layer(fields["local"]), "local_layers": tuple(fields["local_layers"])}
    if "mlp" in fields:
        fields["mlp"] = network.MLPSpec(**fields["mlp"])
    kinds = {"attention": lambda **arrays: assemble(arrays), "mlp": MLPParams}
    parts = {
        part: kinds.get(part, NormParams)(**{name: array(stored) for name, stored in arrays.items() if stored})
        for part, arrays in case["params"].items()
    }
    return (
        LayerParams(**parts),
        array(case["x"]),
        network.StackSpec(**fields),
        array(case["scale"]),
        array(case["mask"]),
    )


def compute(log_residuals, params, x, spec, scale, mask):
    """The logarithms of a network of NumPy arrays."""
    shown = None if mask is None else jnp.asarray(mask)
    return np.asarray(log_residuals(jax.tree.map(jnp.asarray, params), jnp.asarray(x), spec, scale=scale, mask=shown))


def run(params, x, spec, scale, mask):
    """What is computed, and what is right."""
    right = many_digits.certain(params, x, spec, scale, mask, digits=(DIGITS, DIGITS + 60))
    return compute(collapse.log_residuals, params, x, spec, scale, mask), right


@pytest.mark.parametrize("name", mostly_slow(LOST, fast=("102_46_0_float32", "108_28_5_float64")))
def test_networks_in_which_digits_are_lost_unseen(x64, name):
    """They have ties by rounding, jumps of gates, and cancellations that an exact symmetry of the weights hides."""
    computed, right = run(*read(LOST[name]))
    wrong, _ = judge(computed, right, DIGITS)
    assert not wrong.any(), (computed, right)


def test_moves_leave_the_result_itself_alone(x64, monkeypatch):
    network = read(LOST["108_28_5_float64"])
    computed = []
    for times in (1, 1000):
        monkeypatch.setattr(trajectory, "AMOUNTS", tuple(times * amount for amount in moves.AMOUNTS))
        jax.clear_caches()  # of what was traced with the other amounts
        computed.append(compute(collapse.log_residuals, *network))
    jax.clear_caches()
    both = np.isfinite(computed).all(axis=0)
    assert both.any() and not both.all()
    np.testing.assert_array_equal(*(each[both] for each in computed))


def counts(seeds, draws):
    """The number of networks, and those of them that are wrong."""
    networks, wrong = 0, []
    for seed in seeds:
        spec = draw_spec(np.random.default_rng([seed, 1]))
        for index in range(draws):
            dtype = ("float32", "float64")[(seed + index) % 2]
            params, x, scale, mask = draw(np.random.default_rng([seed, 2, index]), spec, dtype, 4)
            mask = None if mask is None else mask & mask.T  # as `sinkhorn` needs it
            computed, right = run(params, x, spec, scale, mask)
            networks += 1
            wrong += [(seed, index, computed, right)] if judge(computed, right, DIGITS)[0].any() else []
    return networks, wrong


def test_a_few_random_networks(x64):
    assert not counts(range(3000, 3002), 1)[1]


@pytest.mark.slow
def test_random_networks(x64):
    networks, wrong = counts(range(4000, 4012), 4)
    assert len(wrong) <= networks / 1000, wrong
