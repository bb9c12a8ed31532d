"""The table of precisions: its roundings are those of the formats, and its errors what other ways of computing give."""

import dataclasses

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from experiments.benchmarks.devices import precision, quantities
from experiments.benchmarks.devices.rounded_products import (
    BFLOAT16_BITS,
    TF32_BITS,
    has_products,
    with_rounded_products,
)
from rc_jax._numerics.random import normals

RNG = np.random.default_rng(0)
A, B = (RNG.normal(size=(8, 8)).astype(np.float32) for _ in range(2))


def kept(x, bits):
    """float32 with `bits` bits of mantissa, by its own bits: halves to even."""
    drop = np.uint32(23 - bits)
    word = np.asarray(x, np.float32).view(np.uint32)
    odd = (word >> drop) & np.uint32(1)
    word = (word + (np.uint32(1) << (drop - np.uint32(1))) - np.uint32(1) + odd) >> drop << drop
    return word.view(np.float32)


@pytest.mark.parametrize("bits", [TF32_BITS, BFLOAT16_BITS])
def test_operands_lose_their_last_bits_and_sums_do_not(bits):
    product = with_rounded_products(lambda a, b: a @ b, bits)(A, B)
    exact = kept(A, bits).astype(float) @ kept(B, bits).astype(float)
    np.testing.assert_allclose(product, exact, atol=8 * np.finfo("float32").eps * 8)
    assert np.abs(product - A.astype(float) @ B).max() > 2.0 ** (-bits - 2)
    if bits == BFLOAT16_BITS:
        np.testing.assert_array_equal(kept(A, bits), np.asarray(jnp.asarray(A, jnp.bfloat16), np.float32))


def test_products_in_loops_branches_and_inner_programs_are_rounded_and_highest_ones_are_not():
    def once(a, b):
        return a @ b

    @jax.custom_jvp
    def held(a, b):
        return a @ b

    held.defjvp(lambda primals, tangents: (held(*primals), tangents[0]))
    ways = {
        "jit": jax.jit(once),
        "scan": lambda a, b: jax.lax.scan(lambda c, x: (c @ x, c), a, b[None])[0],
        "while": lambda a, b: jax.lax.while_loop(lambda c: c[1] < 1, lambda c: (c[0] @ b, c[1] + 1), (a, 0))[0],
        "cond": lambda a, b: jax.lax.cond(a[0, 0] < 10, once, lambda a, b: b, a, b),
        "checkpoint": jax.checkpoint(once),
        "custom_jvp": held,
        "map": lambda a, b: jax.lax.map(lambda row: row @ b, a),
    }
    wanted = with_rounded_products(once, TF32_BITS)(A, B)
    for name, way in ways.items():
        assert has_products(way, A, B), name
        rounded = with_rounded_products(way, TF32_BITS)
        np.testing.assert_allclose(rounded(A, B), wanted, atol=1e-5, err_msg=name)
        np.testing.assert_allclose(jax.jit(rounded)(A, B), wanted, atol=1e-5, err_msg=name)
        assert np.abs(wanted - A @ B).max() > 1e-4

    def best(a, b):
        return jnp.matmul(a, b, precision="highest")

    assert not has_products(best, A, B) and not has_products(jnp.add, A, B)
    np.testing.assert_array_equal(with_rounded_products(best, TF32_BITS)(A, B), best(A, B))


def quantity_called(name):
    return next(each for each in quantities.quantities(full=False) if each.name.startswith(name))


@pytest.mark.slow
def test_a_layer_is_numpys_in_double_precision():
    quantity = quantity_called("attention.attend")
    params, x = jax.tree.map(lambda leaf: np.asarray(leaf, float), quantity.inputs)
    q, k, v, o = (leaf[0] for leaf in params.attention[:4])
    logits = np.einsum("nd,hdk,mf,hfk->hnm", x, q, x, k, optimize=True) / q.shape[-1] ** 0.5
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    exact = np.einsum("hnm,md,hdk,hkf->nf", weights, x, v, o, optimize=True)
    kind = precision.KINDS["float32"]
    here = np.asarray(precision.run(quantity.measure, quantity.inputs, kind), float)
    by_hand = np.abs(here - exact).max() / np.sqrt(np.square(exact).mean())
    assert precision.distance(quantity, kind) == pytest.approx(by_hand, rel=1e-4)
    coarse = [precision.distance(quantity, precision.KINDS[name]) for name in list(precision.KINDS)[1:3]]
    assert 30 * by_hand < coarse[0] < coarse[1] / 3


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.slow
def test_closed_forms_against_many_digits(kind):
    """Lambert's α*, and e^{−γ²/2}: inputs rounded first, then mpmath."""
    dtype = precision.KINDS[kind].dtype
    with mpmath.workdps(30):
        for name, exact in (
            ("scale.optimal_scale_exact", lambda n: mpmath.sqrt(mpmath.lambertw(n * mpmath.sqrt(mpmath.e) / 2) - 0.5)),
            ("sparsity.exponential", lambda gamma: mpmath.exp(-gamma * gamma / 2)),
        ):
            quantity = quantity_called(name)
            rounded = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), quantity.inputs)
            here = np.asarray(quantity.measure(rounded, "highest"), float)
            (numbers,) = jax.tree.leaves(rounded)
            wanted = [exact(mpmath.mpf(float(each))) for each in numbers]
            by_hand = max(abs(mpmath.mpf(h) / w - 1) for h, w in zip(here, wanted, strict=True))
            assert precision.distance(quantity, precision.KINDS[kind]) == pytest.approx(float(by_hand), rel=1e-4)


def test_measures_of_errors():
    numbers = {quantities.RELATIVE: 0.5, quantities.LOGARITHM: 0.5, quantities.ABSOLUTE: 1.0}
    for error, wanted in numbers.items():
        each = quantities.Quantity("", error, (), lambda inputs, _: inputs)
        assert each.distance(np.array([1.0, 3.0]), np.array([1.0, 2.0])) == wanted
        assert each.distance(np.array([np.inf]), np.array([np.inf])) == 0
        assert not np.isfinite(each.distance(np.array([np.nan]), np.array([1.0])))
    matrix = quantities.Quantity("", quantities.ROOT, (), lambda inputs, _: inputs)
    assert matrix.distance(np.array([[3.0, 3.0]]), np.array([[3.0, 4.0]])) == pytest.approx(1 / 12.5**0.5)


@pytest.mark.slow
def test_normals_and_means():
    """In float32 against the exact inverse of the distribution; in bfloat16 other numbers are drawn."""
    assert 1e-7 < precision.normals_distance(jnp.float32, 2**12) < 1e-3
    assert np.isnan(precision.normals_distance(jnp.bfloat16))
    fine, coarse = precision.mean_distance(jnp.float32, 64), precision.mean_distance(jnp.bfloat16, 64)
    assert fine < 1e-12 and 1e-5 < coarse < 2.0**-8
    assert normals(jax.random.key(0), (2,)).dtype == jnp.float32


@pytest.mark.slow
def test_the_table_has_a_row_for_each(monkeypatch):
    few = [each for each in quantities.quantities(full=False) if each.name.startswith("sparsity.exp")]
    monkeypatch.setattr(precision, "quantities", lambda full: few)
    monkeypatch.setattr(precision, "mean_distance", lambda dtype: 0.5)
    (table,) = precision.tables(16)
    assert [row[0] for row in table.rows] == ["sparsity.exponential", "special.normals", "ensemble.run: a mean of 4096"]
    assert all(len(row) == len(table.columns) == 6 for row in table.rows)
    assert dataclasses.asdict(precision.KINDS["bfloat16"])["bits"] is None
