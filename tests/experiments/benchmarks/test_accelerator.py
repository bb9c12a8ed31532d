"""The benchmark for accelerators runs where there is none, and its distances see what a precision costs."""

import jax
import jax.numpy as jnp
import pytest

from experiments.benchmarks.devices import accelerator
from experiments.benchmarks.shapes import Shape
from rc_jax import attention, network

TINY = Shape("tiny", network.StackSpec(attention=attention.AttentionSpec(d_model=8, heads=2), depth=2), 4, 1, 2)


@pytest.mark.slow
def test_float32_is_near_float64_and_bfloat16_is_not():
    """A distance of rounding errors, and not 0."""
    fine, coarse = (
        accelerator.distance(accelerator.one_layer, TINY, accelerator.PRECISIONS[name])
        for name in ("float32, highest", "bfloat16")
    )
    eps = float(jnp.finfo("float32").eps)
    assert 0 < fine < 100 * eps < coarse < 0.1


@pytest.mark.slow
def test_rates_bounds_and_batches(monkeypatch):
    monkeypatch.setattr(accelerator, "SECONDS", 0.02)
    rates = accelerator.matmul_rates(16)
    assert set(rates) == set(accelerator.PRECISIONS) and all(rate > 0 for rate in rates.values())
    assert accelerator.copy_rate(64) > 0
    row = accelerator.bound("product", lambda key: jax.random.normal(key, (4, 4)) @ jnp.eye(4), 2, 1e3, 1e30)
    assert row[:2] == ("product", 2) and row[5] == "operations" and 0 < row[4] < row[3]
    # a machine of 1 kHz cannot have been so fast: the share of the bound tells
    assert row[6] > 1
    sizes = list(accelerator.growing(TINY, most=4))
    assert [size for size, *_ in sizes] == [1, 4] and all(rate > 0 for *_, rate in sizes)


def test_no_batch_is_tried_that_does_not_fit(monkeypatch):
    monkeypatch.setattr(accelerator, "_free", lambda: 1.0)
    assert list(accelerator.growing(TINY, most=4)) == []
