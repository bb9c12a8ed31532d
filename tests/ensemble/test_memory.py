"""Initialisations in a process of their own: what they add to its peak memory, however many they are."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

SCRIPT = """
import json, sys
import jax, jax.numpy as jnp

def peak():  # MiB; not ru_maxrss where it can be helped, which remembers the parent process
    try:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 2**10
    except FileNotFoundError:
        import resource
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)

jax.jit(jnp.sin)(1.0).block_until_ready()
before = peak()
from rc_jax import attention, collapse, ensemble, network

spec = network.StackSpec(attention=attention.AttentionSpec(d_model=64, heads=4), depth=12)

def logs(key):
    init, data = jax.random.split(key)
    x = jax.random.normal(data, (32, 64))
    return collapse.log_residuals(network.random_layers(init, spec), x, spec)

thin = network.StackSpec(attention=attention.AttentionSpec(d_model=8, heads=1), depth=2)

def few(key):
    out = network.apply(network.random_layers(key, thin), jnp.eye(4, 8), thin)
    return jnp.broadcast_to(jnp.abs(out).sum(), (256,))

grown = []
for count in (30_000, 100_000):
    assert ensemble.run(few, jax.random.key(0), count).count == count
    grown.append(peak() - before)

stats = ensemble.run(logs, jax.random.key(0), 2_000)
added = peak() - before
print(json.dumps({
    "added": added,
    "grown": grown,
    "count": stats.count,
    "nonfinite": int(stats.nonfinite.sum()),
    "median": stats.quantile(0.5).tolist(),
    "error": float(stats.quantile_error.max()),
}))
"""


@pytest.mark.slow
def test_initialisations_within_a_gibibyte_and_a_hundred_thousand_no_dearer_than_fewer():
    environment = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["count"] == 2_000 and result["nonfinite"] == 0 and result["error"] == 0
    assert result["added"] < 1024, f"{result['added']:.0f} MiB added"
    few, many = result["grown"]
    # 70 000 more samples of 256 numbers would be 68 MiB if they were kept
    assert many < 1024 and many - few < 34, f"{few:.0f} MiB added by 30 000, {many:.0f} MiB by 100 000"
    medians = np.array(result["median"])
    assert np.all(np.diff(medians) < 0)
    # deep in, each layer of pure attention multiplies the logarithm by three
    assert abs(medians[-1] / medians[-2] - 3) < 0.05
