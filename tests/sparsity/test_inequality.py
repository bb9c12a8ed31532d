"""Measures of sparsity: by definition, for many keys, and the six axioms, each satisfied or broken by an example."""

import functools

import hypothesis
import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from hypothesis import strategies as st

from rc_jax import sparsity

MEASURES = {
    "1 − S": lambda a: 1 - sparsity.sparsity(a),
    "gini": sparsity.gini,
    "hoyer": sparsity.hoyer,
    "entropy": sparsity.entropy_sparsity,
    "renyi ½": functools.partial(sparsity.renyi_sparsity, order=0.5),
    "renyi 1": functools.partial(sparsity.renyi_sparsity, order=1.0),
    "renyi 2": functools.partial(sparsity.renyi_sparsity, order=2.0),
    "renyi 5": functools.partial(sparsity.renyi_sparsity, order=5.0),
    "kurtosis": sparsity.kurtosis,
    "ℓ₂/ℓ₁": sparsity.norm_ratio,
}
AXIOMS = ("robin_hood", "scaling", "rising_tide", "cloning", "bill_gates", "babies")
BROKEN = {  # (measure, axiom): a row that breaks it, before and after
    ("hoyer", "cloning"): ([2.0, 1.0], [2.0, 1.0, 2.0, 1.0]),
    ("entropy", "cloning"): ([2.0, 1.0], [2.0, 1.0, 2.0, 1.0]),
    ("ℓ₂/ℓ₁", "cloning"): ([2.0, 1.0], [2.0, 1.0, 2.0, 1.0]),
    ("ℓ₂/ℓ₁", "babies"): ([2.0, 1.0], [2.0, 1.0, 0.0]),
    ("kurtosis", "robin_hood"): ([2.0, 1.0, 0.0], [2.0, 0.75, 0.25]),
}


def _all(rows):
    return jnp.stack([measure(rows) for measure in MEASURES.values()])


def measured(row):
    with jax.enable_x64(True):
        return np.asarray(_all(jnp.asarray(row, jnp.float64)))


def changed(row, axiom, much):
    """A row after what the axiom speaks of: how much is in (0, 1)."""
    row = np.array(row)
    if axiom == "robin_hood":
        rich, poor = np.argmax(row), np.argmin(row)
        given = much * (row[rich] - row[poor]) / 2
        return row + given * (np.arange(row.size) == poor) - given * (np.arange(row.size) == rich)
    if axiom == "scaling":
        return row * 10 * much
    if axiom == "rising_tide":
        return row + 5 * much
    if axiom == "cloning":
        return np.concatenate([row, row])
    if axiom == "babies":
        return np.append(row, 0.0)
    return row + (1 + much) * 40 * row.size * (np.arange(row.size) == 0)  # far beyond all others


def rows():
    """Four weights on a grid, not all equal, at least two of them above 0."""
    grid = st.lists(st.integers(0, 20), min_size=4, max_size=4)
    return grid.filter(lambda row: len(set(row)) > 1 and sum(each > 0 for each in row) > 1).map(
        lambda row: [each / 2 for each in row]
    )


@pytest.mark.slow
@pytest.mark.parametrize("axiom", AXIOMS)
@hypothesis.settings(deadline=None, max_examples=60, derandomize=True)
@hypothesis.given(row=rows(), much=st.floats(0.05, 0.95))
def test_axioms_that_hold(axiom, row, much):
    if axiom == "bill_gates":  # the first is rich already; growing richer must make the row sparser
        row = list(changed(row, axiom, 0.0))
    before, after = measured(row), measured(changed(row, axiom, much))
    for name, low, high in zip(MEASURES, before, after, strict=True):
        if (name, axiom) in BROKEN:
            continue
        if axiom in ("scaling", "cloning"):
            assert abs(high - low) < 1e-12, name
        elif axiom in ("bill_gates", "babies"):
            assert high > low - 1e-14 * abs(low), name
            assert high > low or low > 0.99, name
        else:
            assert high < low, name


@pytest.mark.parametrize(("name", "axiom"), BROKEN)
def test_axioms_that_are_broken(name, axiom):
    before, after = BROKEN[name, axiom]
    low, high = (float(measured(row)[list(MEASURES).index(name)]) for row in (before, after))
    if axiom == "cloning":
        assert abs(high - low) > 0.01
    elif axiom == "babies":
        assert high == pytest.approx(low, abs=1e-15)  # nothing changes, where it should rise
    else:
        assert high > low + 0.1  # rises, where it should fall
        assert sum(after) == sum(before)


def test_values_by_definition(dtype):
    a = np.random.default_rng(0).normal(size=(3, 50)).astype(dtype)
    p = np.abs(a).astype(float) / np.abs(a).astype(float).sum(1, keepdims=True)
    n, eps = 50, float(jnp.finfo(dtype).eps)
    entropy = -np.sum(p * np.log(p), 1)
    expected = {
        "gini": np.abs(p[:, :, None] - p[:, None, :]).sum((1, 2)) / (2 * n),
        "hoyer": (n**0.5 - 1 / np.sqrt((p**2).sum(1))) / (n**0.5 - 1),
        "entropy": 1 - entropy / np.log(n),
        "renyi ½": np.log(n) - 2 * np.log(np.sqrt(p).sum(1)),
        "renyi 1": np.log(n) - entropy,
        "renyi 2": np.log(n * (p**2).sum(1)),
        "renyi 5": np.log(n) + np.log((p**5).sum(1)) / 4,
        "kurtosis": n * (p**4).sum(1) / (p**2).sum(1) ** 2,
    }
    for name, value in expected.items():
        computed = MEASURES[name](jnp.asarray(a))
        assert computed.dtype == dtype
        np.testing.assert_allclose(computed, value, rtol=50 * eps, err_msg=name)
    moved = sparsity.gini(jnp.asarray(a).T, axis=0)
    np.testing.assert_allclose(moved, sparsity.gini(jnp.asarray(a)), rtol=4 * eps)
    np.testing.assert_allclose(
        sparsity.renyi_sparsity(jnp.asarray(a)), -2 * np.log(sparsity.sparsity(jnp.asarray(a))), rtol=50 * eps
    )


@pytest.mark.slow
def test_orders_near_one_and_far_away(x64):
    a = jnp.asarray(np.random.default_rng(1).exponential(size=40))
    largest = float(jnp.log(jnp.max(a) / jnp.mean(a)))
    assert abs(float(sparsity.renyi_sparsity(a, 1e6)) - largest) < 1e-5  # log n − log(1/max p)
    orders = [float(sparsity.renyi_sparsity(a, order)) for order in (0.01, 0.3, 1.0, 2.0, 7.0)]
    assert np.all(np.diff(orders) > 0)
    assert np.all(np.isfinite(jax.grad(sparsity.renyi_sparsity)(a, 1.0)))
    assert np.isfinite(jax.grad(sparsity.renyi_sparsity, 1)(a, 2.5))


@pytest.mark.slow
def test_all_digits_for_rows_that_are_nearly_even(dtype):
    """To some roundings, against mpmath: values of order s² for deviations of order s."""
    orders, n = (0.3, 0.9999, 1.0, 1.1, 2.0, 7.0, 40.0, 1000.0), 37
    draws = np.exp(np.multiply.outer([1e-6, 1e-4, 0.01, 0.1, 1.0], np.random.default_rng(0).normal(size=n)))
    rows, traced = jnp.asarray(draws.astype(dtype)), jnp.asarray(np.array(orders, dtype))
    others = jnp.stack([sparsity.hoyer(rows), sparsity.entropy_sparsity(rows), sparsity.gini(rows)])
    renyi = jax.vmap(lambda order: sparsity.renyi_sparsity(rows, order))(traced)
    with mp.workdps(40):
        for row, three, several in zip(np.asarray(rows), others.T, renyi.T, strict=True):
            y = [mp.mpf(float(each)) for each in row]
            y = [each * n / sum(y) for each in y]
            shannon = sum(each * mp.log(each) for each in y) / n
            root = mp.sqrt(sum(each * each for each in y) / n)
            gap = sum(abs(one - other) for one in y for other in y) / (2 * n * n)
            expected = [(1 - 1 / root) / (1 - 1 / mp.sqrt(n)), shannon / mp.log(n), gap]
            for order in (mp.mpf(float(np.array(each, dtype))) for each in orders):
                power = sum(each**order for each in y) / n
                expected.append(shannon if order == 1 else mp.log(power) / (order - 1))
            sizes = [*np.asarray(three), *np.asarray(several)]
            np.testing.assert_allclose(sizes, [float(each) for each in expected], rtol=12 * jnp.finfo(dtype).eps)


@pytest.mark.slow
def test_slope_by_the_order(x64):
    """∂R/∂q is finite and right at q = 1, where it is (E y log² y − (E y log y)²)/2, and on either side."""
    a = np.array([1.0, 2.0, 5.0])
    y = a / a.mean()
    exact = (np.mean(y * np.log(y) ** 2) - np.mean(y * np.log(y)) ** 2) / 2
    slope = jax.jit(jax.vmap(jax.grad(sparsity.renyi_sparsity, 1), (None, 0)))
    slopes = slope(jnp.asarray(a), jnp.array([1.0, 1 + 1e-9, 1 - 1e-9, 2.5, 0.4]))
    np.testing.assert_allclose(slopes[:3], exact, rtol=1e-8)
    for order, value in ((2.5, slopes[3]), (0.4, slopes[4])):
        high, low = (np.log(np.mean(y**q)) / (q - 1) for q in (order + 1e-5, order - 1e-5))
        assert abs(value - (high - low) / 2e-5) < 1e-8


@pytest.mark.slow
def test_ends(dtype):
    for n in (1, 2, 7):
        even, single = jnp.full(n, 3.0, dtype), jnp.zeros(n, dtype).at[0].set(1e30)
        least, most = (np.stack([measure(row) for measure in MEASURES.values()]) for row in (even, single))
        np.testing.assert_allclose(least[:8], 0, atol=1e-6)
        np.testing.assert_allclose(least[8], 1, rtol=1e-6)
        top = [1 - n**-0.5, 1 - 1 / n, 1, 1, *[np.log(n)] * 4, n] if n > 1 else [0] * 8 + [1]
        np.testing.assert_allclose(most[:9], top, rtol=1e-5, atol=1e-6)
        zero = np.stack([measure(jnp.zeros(n, dtype)) for measure in MEASURES.values()])
        np.testing.assert_allclose(zero, least, atol=1e-6)


@pytest.mark.slow
def test_many_keys_under_softmax(x64):
    """Closed forms of a lognormal: erf(γ/2), qγ²/2, e^{4γ²}, in standard errors over rows."""
    gamma = 0.5
    draws = np.random.default_rng(2).normal(size=(100, 20_000))
    a = jnp.exp(gamma * jnp.asarray(draws))
    expected = {
        "gini": float(jax.scipy.special.erf(gamma / 2)),
        "hoyer": (1 - np.exp(-(gamma**2) / 2)) / (1 - 20_000**-0.5),
        "entropy": gamma**2 / 2 / np.log(20_000),
        "renyi ½": gamma**2 / 4,
        "renyi 1": gamma**2 / 2,
        "renyi 2": gamma**2,
        "kurtosis": np.exp(4 * gamma**2),
    }
    for name, value in expected.items():
        rows = np.asarray(MEASURES[name](a))
        error = rows.std(ddof=1) / 10
        assert abs(rows.mean() - value) < 5 * error + value / 1000, name  # bias of order 1/n


@pytest.mark.parametrize("order", [1.0, 2.0])
def test_what_is_not_known_is_not_even(order):
    """Outside of a trace NaN is refused."""
    rows = jnp.asarray([[0.2, jnp.nan, 0.3], [0.2, 0.5, 0.3]])
    sizes = jax.jit(lambda a: sparsity.renyi_sparsity(a, order))(rows)
    assert jnp.isnan(sizes).tolist() == [True, False]
