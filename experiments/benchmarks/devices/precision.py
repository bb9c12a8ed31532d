"""The error of each quantity in each precision: its distance from float64 on the same rounded inputs. No time is taken.

bfloat16 holds inputs and results in 8 bits, and the package computes its closed forms in float32 inside. TF32 and
bfloat16 passes are those of matrix products only, emulated by `rounded_products`.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.contest import Table
from experiments.benchmarks.devices.quantities import RELATIVE, Quantity, quantities
from experiments.benchmarks.devices.rounded_products import (
    BFLOAT16_BITS,
    TF32_BITS,
    has_products,
    with_rounded_products,
)
from rc_jax import ensemble
from rc_jax._numerics.random import normals, threefry
from rc_jax.attention import Precision


@dataclasses.dataclass(frozen=True)
class Kind:
    """A dtype, the `precision` asked of matrix products, and the bits that they are emulated with, if they are."""

    dtype: Any
    precision: Precision = "highest"
    bits: int | None = None


KINDS = {
    "float32": Kind(jnp.float32),
    "TF32 products (emulated)": Kind(jnp.float32, "default", TF32_BITS),
    "bfloat16 products (emulated)": Kind(jnp.float32, "default", BFLOAT16_BITS),
    "bfloat16": Kind(jnp.bfloat16),
}
FULL = 512  # the benchmarks' default count; with fewer, only what is quick to compile


def tables(count: int) -> Iterator[Table]:
    """One row for each quantity, one column for each precision."""
    full = count >= FULL
    rows = [
        (quantity.name, quantity.error, *(distance(quantity, kind) for kind in KINDS.values()))
        for quantity in quantities(full)
    ]
    rows += [("special.normals", "absolute", *_of_kinds(normals_distance))]
    rows += [("ensemble.run: a mean of 4096", RELATIVE, *_of_kinds(mean_distance))]
    yield Table(
        title="Distance from float64, the largest over all numbers",
        columns=("quantity", "error", *KINDS),
        rows=tuple(rows),
        note="– where a result is not finite: tokens equal to the bit, whose residual has no logarithm, or a NaN, by "
        "which a function says that the dtype cannot hold the answer; and where the dtype draws other normal numbers",
    )


def distance(quantity: Quantity, kind: Kind) -> float:
    """The distance of a quantity in one precision from float64, by the quantity's own measure of errors."""
    inputs = _cast(quantity.inputs, kind.dtype)
    here = run(quantity.measure, inputs, kind)
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        exact = quantity.measure(_cast(inputs, jnp.float64), "highest")
        return quantity.distance(np.asarray(here, float), np.asarray(exact, float))


def run(measure: Callable[[Any, Precision], jax.Array], inputs: Any, kind: Kind) -> jax.Array:
    """The quantity in this precision; as it stands where there is no matrix product to be coarser."""
    if kind.bits is None:
        return measure(inputs, kind.precision)

    def plainly(inputs: Any) -> jax.Array:
        return measure(inputs, kind.precision)

    if not has_products(plainly, inputs):
        return measure(inputs, "highest")
    return jax.jit(with_rounded_products(plainly, kind.bits))(inputs)


def _cast(tree: Any, dtype: Any) -> Any:
    """Every array rounded to `dtype`, on the host; all through float64, which holds both other types exactly."""
    return jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf, float), dtype), tree)


def _of_kinds(distance_of: Callable[[Any], float]) -> list[float]:
    """For what has no matrix products: float32 as it is, whatever the products; then bfloat16."""
    return [distance_of(jnp.float32)] * 3 + [distance_of(jnp.bfloat16)]


def box_muller_exactly(left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The two numbers of words in double precision, of u as float32 rounds it, and their distance from the origin."""
    left, right = (np.asarray(word).astype(np.int64) for word in (left, right))
    uniform = (left // 4 + 0.5).astype(np.float32).astype(float) / 2**30
    part = right % 2**30
    angle = np.pi / 2 * (right // 2**30 + np.where(part < 2**29, part, part - 2**30) / 2**30)
    distance = np.sqrt(-2 * np.log(uniform))
    return distance * np.stack([np.cos(angle), np.sin(angle)]), distance


def normals_distance(dtype: Any, count: int = 2**16) -> float:
    """From the numbers of the same words in double precision; other types than float32 draw other numbers."""
    if dtype != jnp.float32:
        return float("nan")
    key = jax.random.key(0)
    here = np.asarray(normals(key, (count,), dtype), float)
    words = jax.random.key_data(key)
    counters = jnp.arange(count // 2, dtype=jnp.uint32)
    left, right = threefry((words[0], words[1]), (jnp.zeros_like(counters), counters))
    exact, _ = box_muller_exactly(np.asarray(left), np.asarray(right))
    return float(np.abs(here - exact.T.ravel()).max())


def mean_distance(dtype: Any, count: int = 4096) -> float:
    """Means of e^s over `count` keys, s normal, against those of the unrounded samples summed in double precision."""
    key = jax.random.key(1)

    def sample(key: jax.Array) -> jax.Array:
        return jnp.exp(normals(key, (8,), jnp.float32))

    def rounded(key: jax.Array) -> jax.Array:
        return sample(key).astype(dtype)

    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(count))
    exact = np.asarray(jax.vmap(sample)(keys), float).mean(axis=0)
    here = ensemble.run(rounded, key, count).mean(axis=0)
    return float(np.abs(here / exact - 1).max())
