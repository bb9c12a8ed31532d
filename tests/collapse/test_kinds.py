"""Orders and falls of any kind: what its record promises, and how networks that are not known count."""

import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from rc_jax import attention, collapse, network
from rc_jax.attention import KINDS
from rc_jax.collapse.exact import trajectory
from rc_jax.collapse.kinds import (
    Fall,
    is_smooth,
    keys_are_alike,
    kind_fall,
    predicted_order,
    rows_stand_alone,
    why_unknown,
)
from tests.collapse.exact.test_trajectory import mostly_slow
from tests.oracles import own_kinds

EVERY = {name: kind for name, kind in KINDS.items() if kind.reads == "scores"} | own_kinds.OWN
# Rows of kinds that are powers are 0 or have equal sums where all scores have one sign.
FAST = ("squares", "tempered")


@pytest.mark.parametrize("name", mostly_slow(EVERY, fast=FAST))
def test_a_layer_has_at_least_the_order_that_its_record_promises(x64, name):
    kind = EVERY[name]
    order = kind_fall(kind, depth=1, networks=5, d_model=8, tokens=5).order
    if name in ("signed", "softpick", "relu_squared", "power6"):  # near one positive score their rows have equal sums
        assert min(abs(order - 1), abs(order - 3)) < 0.1
    else:
        assert abs(order - predicted_order(kind)) < 0.1


@pytest.mark.parametrize("name", own_kinds.OUTSIDE)
def test_what_the_rule_does_not_speak_of_is_measured(name, x64):
    kind, order, hold = own_kinds.OUTSIDE[name]
    assert np.isnan(predicted_order(kind))
    assert abs(kind_fall(kind, depth=1, networks=5, d_model=8, tokens=5).order - order) < 0.1
    assert (is_smooth(kind), rows_stand_alone(kind), keys_are_alike(kind)) == hold


@pytest.mark.parametrize("name", EVERY)
def test_kinds_of_the_package_meet_the_hypotheses(name):
    assert is_smooth(EVERY[name])
    assert rows_stand_alone(EVERY[name]) == (name != "sinkhorn")
    assert keys_are_alike(EVERY[name])


def test_the_fall_is_that_of_the_network(x64):
    stack = network.StackSpec(attention=attention.AttentionSpec(d_model=8, heads=2), depth=2)
    weights, _, rest = jax.random.split(jax.random.fold_in(jax.random.key(3), 1), 3)
    logs = collapse.log_residuals(network.init(weights, stack), jax.random.normal(rest, (5, 8)), stack)
    fall = kind_fall(KINDS["softmax"], depth=2, networks=2, d_model=8, tokens=5, seed=3)
    np.testing.assert_allclose(fall.logs[1], logs, rtol=1e-10)


@pytest.mark.slow  # the compiler without the options of the tests, which hide it
def test_no_program_ends_the_process():
    code = "from rc_jax.attention import KINDS; from rc_jax.collapse.kinds import kind_fall"
    code += "; print(kind_fall(KINDS['softpick'], depth=2).order)"
    environment = {**os.environ, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert abs(float(done.stdout) - 3) < 0.1


def test_a_median_needs_half_of_the_networks():
    logs = np.array([[1.0, 2, np.nan], [3, np.nan, np.nan], [2, -np.inf, 5], [4, 4, np.nan]])
    np.testing.assert_array_equal(Fall(logs, np.ones(4)).median, [2.5, 2, np.nan])


@pytest.mark.slow
def test_the_reason_is_of_the_networks_whose_numbers_are_unknown():
    softpick = KINDS["softpick"]
    fall, programs = kind_fall(softpick), trajectory._log_residuals._cache_size()
    assert np.isnan(fall.logs[:, -1]).any() and np.isnan(fall.orders).any()
    assert why_unknown(softpick).startswith("digits are lost")
    assert trajectory._log_residuals._cache_size() == programs  # the program of the fall says why
    assert why_unknown(softpick, near=True).startswith("digits are lost")
    assert why_unknown(KINDS["softmax"]) == ""


@pytest.mark.parametrize("function", [kind_fall, why_unknown])
def test_a_call_inside_a_trace_is_refused(function):
    with pytest.raises(TypeError, match=f"`{function.__name__}` must be called outside jit, vmap and grad"):
        jax.jit(lambda: function(KINDS["softmax"]) and 0)()
