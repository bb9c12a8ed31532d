"""Memory maps that programs of new lengths keep, and that they are given back, as docs/how-to/troubleshoot.md says."""

import pathlib
import subprocess
import sys

import pytest

MAPS = pathlib.Path("/proc/self/maps")
PROGRAM = """
import gc, pathlib, jax
from rc_jax import attention, collapse, diagnostics, network

def maps():
    return len(pathlib.Path("/proc/self/maps").read_text().splitlines())

spec = network.StackSpec(attention=attention.AttentionSpec(d_model=4), depth=1)
params, key = network.init(jax.random.key(0), spec), jax.random.key(1)

def ask(tokens):
    collapse.log_residuals(params, jax.random.normal(key, (tokens, 4)), spec)
    diagnostics.attention(jax.nn.softmax(jax.random.normal(key, (1, 2, tokens, tokens))))
    return maps()

first, *later = map(ask, (4, 5, 6))
jax.clear_caches()
gc.collect()
print((later[-1] - first) / len(later), maps() - first)
"""


@pytest.mark.slow
@pytest.mark.skipif(not MAPS.exists(), reason="memory maps are counted on Linux")
def test_programs_of_many_lengths_are_given_back():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    each, left = map(float, done.stdout.split())
    # 50 lengths between two calls of `clear_caches` stay below 28 000 maps, of the 65 530 that a process may hold.
    assert 50 * each < 28_000 and left < 100
