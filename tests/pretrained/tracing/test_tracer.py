"""Every number of a trace against plain NumPy; batches, memory and programs; what is refused, and what is left out."""

import dataclasses
import gc
import math
import tracemalloc

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rc_jax import attention, collapse, pretrained, scale
from rc_jax.pretrained.tracing import observables
from rc_jax.pretrained.tracing.tracer import windows_at_a_time
from tests.oracles import traced
from tests.pretrained import made_up

TOKENS = 6
PROGRAMS = (observables.layer, observables.log_residuals, observables.path_shares, observables.sizes)


@pytest.fixture
def causal(tmp_path, x64):
    """A made-up checkpoint in double precision whose rows see what is before them."""
    checkpoint = pretrained.load(made_up.write(tmp_path / "made"), dtype="float64")
    layer = dataclasses.replace(checkpoint.spec.attention, causal=True)
    return checkpoint._replace(spec=dataclasses.replace(checkpoint.spec, attention=layer))


def some_windows(count):
    return np.random.default_rng(count).integers(0, made_up.CONFIG["vocab_size"], (count, TOKENS))


def best(n):
    """α* of Gaussian scores, from its closed form."""
    return float(scale.optimal_scale_exact(float(n)))


def close(measured, wanted, tolerance):
    assert measured.keys() == wanted.keys()
    for name, values in wanted.items():
        np.testing.assert_allclose(measured[name], values, rtol=tolerance, atol=tolerance, err_msg=name)


def first(tree):
    """The numbers of the first window."""
    return {name: values[0] for name, values in tree.items()}


@pytest.mark.parametrize("complete", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_number_is_numpy_s(causal, monkeypatch, complete):
    """Paths and log residuals, which compile long, are left out of the fast case."""
    if not complete:
        monkeypatch.setattr(observables, "path_shares", refuse)
    windows, tensors, config = some_windows(3), made_up.tensors(), made_up.CONFIG
    result = pretrained.trace(causal, windows, batch_size=3, exact=complete)
    oracle = []
    for ids in windows:
        states, logits, weights = traced.forward(tensors, config, ids, causal=True)
        of = {"states": traced.of_states(states), "heads": traced.of_heads(logits, weights, best, causal=True)}
        if complete:
            of["paths"] = traced.of_paths(
                tensors, config, states[0], lambda *at: traced.attention_of(tensors, config, *at, causal=True)[1]
            )
        else:
            del of["states"]["log_residual"]
        oracle.append(of)
    assert set(result.samples) == set(oracle[0])
    assert result.windows == 3
    for part, tree in result.samples.items():
        close(tree, {name: np.stack([of[part][name] for of in oracle]) for name in oracle[0][part]}, 1e-8)
    assert result.rows == TOKENS - 1  # the first row sees one token
    assert result.optimal_scale == pytest.approx(np.mean([best(n) for n in range(2, TOKENS + 1)]), rel=1e-12)
    assert (result.cosine_optimal_scale, result.layers) == (None, (0, 1, 2, 3))


def refuse(params, x, spec):
    raise collapse.NotCovered("`spec` must have no such thing")


@pytest.mark.slow
def test_batches_make_no_difference_and_only_what_is_asked_is_reported(causal):
    windows = some_windows(7)
    whole = pretrained.trace(causal, windows, batch_size=3)  # the last batch is filled up, and what fills it is dropped
    single = pretrained.trace(causal, windows, batch_size=1, layers=[3, 0], exact=False)
    assert single.reasons == {"log_residual": "not asked for"}
    assert whole.windows == single.windows == 7
    assert (single.layers, single.head_layers) == ((0, 3), (3,))
    for name, values in single.samples["states"].items():
        np.testing.assert_allclose(whole.samples["states"][name][:, [0, 3]], values, rtol=1e-10)
    for name, values in single.samples["heads"].items():
        np.testing.assert_allclose(whole.samples["heads"][name][:, [2]], values, rtol=1e-10)
    close(whole.samples["paths"], single.samples["paths"], 1e-10)


@pytest.mark.slow
def test_only_samples_grow_with_the_text(causal):
    def run(count):
        """Bytes on the device after each batch, and the host's peak."""
        gc.collect()  # arrays of other tests, which may go at any time
        tracer, windows, alive = pretrained.Tracer(causal, TOKENS, 3), some_windows(count), []
        tracer.add(windows[:3])
        tracemalloc.start()
        for start in range(3, count, 3):
            tracer.add(windows[start : start + 3])
            alive.append(sum(array.nbytes for array in jax.live_arrays()))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert tracer.result().windows == count
        return max(alive), peak

    short, before = run(6), [program._cache_size() for program in PROGRAMS]
    long = run(60)
    assert [program._cache_size() for program in PROGRAMS] == before
    assert long[0] == short[0]
    numbers = 4 * 4 + 3 * 2 * 6 + 4 * 2
    # States and attention of 57 windows would be 188 kB.
    assert long[1] <= short[1] + 57 * 8 * numbers + 100_000


@pytest.mark.slow
def test_switches_take_parts_away(tmp_path, monkeypatch):
    monkeypatch.setattr(observables, "path_shares", refuse)
    checkpoint = pretrained.load(made_up.write(tmp_path / "made"))
    windows, floor = some_windows(1), math.sqrt(8) * np.finfo(np.float32).eps
    result = pretrained.trace(checkpoint, windows, switches=["attention"], layers=[1, 2], exact=False)
    assert (result.spec.skip, result.spec.mlp, result.spec.norm) == (False, None, "post")
    assert result.rounding_floor == pytest.approx(floor)
    states, logits, weights = traced.forward(made_up.tensors(), made_up.CONFIG, windows[0], skip=False, mlp=False)
    wanted = {name: values[1:3] for name, values in traced.of_states(states).items() if name != "log_residual"}
    close(first(result.samples["states"]), wanted, 1e-3)
    heads = {name: values[:2] for name, values in traced.of_heads(logits, weights, best).items()}
    close(first(result.samples["heads"]), heads, 1e-3)
    for switches, on in ((("skip",), (True, None)), (("mlp", "attention"), (False, checkpoint.spec.mlp))):
        spec = pretrained.Tracer(checkpoint, TOKENS, 1, switches=switches).spec
        assert (spec.skip, spec.mlp) == on


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["unit", "cosine"])
def test_factor_on_cosines(tmp_path, kind):
    checkpoint = pretrained.load(made_up.write(tmp_path / "made"))
    options = {"scores": "cosine"} if kind == "cosine" else {"qk_norm": kind, "scale_law": "log_tokens"}
    layer = dataclasses.replace(checkpoint.spec.attention, causal=True, **options)
    spec = dataclasses.replace(checkpoint.spec, attention=layer, mlp=None, norm=None)
    gains = {name: jnp.full((3, 2, 4), gain) for name, gain in (("query_norm", 2.0), ("key_norm", 0.5))}
    params = checkpoint.params._replace(attention=checkpoint.params.attention._replace(**gains))
    x = jax.random.normal(jax.random.key(0), (1, TOKENS, 8))
    scales = {name: jnp.asarray(values) for name, values in observables.best_scales(TOKENS, layer).items()}
    rows = observables.layer(params, jnp.asarray(0), x, scales, spec)[1]
    counts = np.arange(2, TOKENS + 1)
    factor = np.full(TOKENS - 1, 2.0) if kind == "cosine" else 2 * np.log(counts)  # √d_head; the gains' product is 1
    np.testing.assert_allclose(rows["cosine_factor"][0], factor.mean(), rtol=1e-5)
    optimum = np.asarray(scale.optimal_scale(counts.astype(np.float32), dim=4))
    np.testing.assert_allclose(rows["cosine_ratio"][0], (factor / optimum).mean(), rtol=1e-4)


def test_the_rank_of_a_matrix_that_is_not_finite_is_none():
    matrices = np.random.default_rng(0).normal(size=(2, 3, 5, 4)).astype(np.float32)
    matrices[1, 2] = np.nan
    assert np.argwhere(np.isnan(observables.effective_ranks(matrices))).tolist() == [[1, 2]]


def test_what_theory_does_not_cover_is_left_out_with_the_reason(causal, monkeypatch):
    monkeypatch.setattr(observables, "log_residuals", refuse)
    monkeypatch.setattr(observables, "path_shares", refuse)
    result = pretrained.trace(causal, some_windows(3), batch_size=3)
    assert result.reasons == dict.fromkeys(("log_residual", "paths"), "`spec` must have no such thing")
    assert "paths" not in result.samples
    assert "log_residual" not in result.samples["states"]


def test_a_mistake_is_not_taken_for_what_theory_does_not_cover(causal, monkeypatch):
    def mistaken(*_):
        raise ValueError("shapes (3, 4) and (5,) do not fit")

    monkeypatch.setattr(observables, "log_residuals", mistaken)
    with pytest.raises(ValueError, match="do not fit"):
        pretrained.trace(causal, some_windows(3), batch_size=3)


@pytest.mark.usefixtures("as_installed")
def test_bad_input(causal):
    windows = some_windows(2)
    for arguments, error, message in (
        ({"windows": windows.astype(float)}, TypeError, "`windows` must be an array of integers of shape"),
        ({"windows": windows[:0]}, ValueError, "`windows` must hold at least one window of at least two tokens"),
        ({"windows": windows[:, :1]}, ValueError, "`windows` must hold at least one window of at least two tokens"),
        ({"windows": windows + 20}, ValueError, "`token_ids` must lie in 0 … 19"),
        ({"windows": np.zeros((1, 11), int)}, ValueError, "`token_ids` must hold 1 to 10 tokens"),
        ({"layers": [4]}, ValueError, "`layers` must lie in 0 … 3, 0 being the embeddings, got 4"),
        ({"layers": [-1]}, ValueError, "`layers` must lie in 0 … 3"),
        ({"layers": []}, ValueError, "`layers` must name at least one of 0 … 3, got none"),
        ({"switches": ["norm"]}, ValueError, "`switches` must be among attention, skip, mlp, got 'norm'"),
        ({"layers": 3}, TypeError, "`layers` must be several integers, got 3"),
        ({"layers": "1"}, TypeError, "`layers` must be several integers, got '1'"),
        ({"layers": [1, 2.0]}, TypeError, "`layers` must be several integers, got 2.0 among them"),
        ({"layers": [1, None]}, TypeError, "`layers` must be several integers, got None among them"),
        ({"switches": [1, "x"]}, ValueError, "`switches` must be among attention, skip, mlp, got 1"),
        ({"switches": "skip"}, TypeError, "`switches` must be several names, got 'skip'"),
        ({"switches": None}, TypeError, "`switches` must be several names, got None"),
        ({"batch_size": 0}, ValueError, "`batch_size` must be an integer >= 1, got 0"),
    ):
        with pytest.raises(error, match=message):
            pretrained.trace(causal, **{"windows": windows, **arguments})
    tracer = pretrained.Tracer(causal, TOKENS, 1)
    with pytest.raises(ValueError, match="`windows` must be 1 to 1 windows of 6 tokens"):
        tracer.add(windows)
    with pytest.raises(TypeError, match="`windows` must be an array of integers of shape"):
        tracer.add([[1, 2, 3, 4, 5]])
    with pytest.raises(ValueError, match="`add` must have been given at least one window, got none"):
        tracer.result()
    layer = dataclasses.replace(causal.spec.attention, top_k=2)
    sparse = causal._replace(spec=dataclasses.replace(causal.spec, attention=layer))
    with pytest.raises(ValueError, match="`checkpoint` must be of a network with top_k=None, got 2"):
        pretrained.trace(sparse, windows)


def test_batches_are_equally_full(causal):
    windows = np.zeros((19, 6), int)
    assert [windows_at_a_time(causal, windows, most) for most in (None, 1, 6, 18, 19, 100)] == [7, 1, 5, 10, 19, 19]
    assert windows_at_a_time(causal, np.zeros((9, 4096), np.int8)) == 1  # one layer's attention is 128 MB


def test_no_row_sees_two_tokens(causal):
    layer = dataclasses.replace(causal.spec.attention, window=0)
    alone = causal._replace(spec=dataclasses.replace(causal.spec, attention=layer))
    tracer = pretrained.Tracer(alone, TOKENS, 1)  # without a warning
    assert math.isnan(tracer._optimal["dot"]) and tracer._rows == 0


def test_a_head_of_the_best_scale_reads_one(causal, monkeypatch):
    spec, part = causal.spec.attention, causal.params.attention
    scales = {name: jnp.asarray(values) for name, values in observables.best_scales(TOKENS, spec).items()}
    draws = np.random.default_rng(0).normal(size=(4000, TOKENS, TOKENS)) * np.asarray(scales["dot"])[:, None]
    monkeypatch.setattr(attention, "scores", lambda *_: jnp.asarray(draws))
    rows = jax.jit(observables._rows, static_argnums=3)(part, jnp.zeros((TOKENS, 8)), scales, spec)[0]
    assert float(rows["scale_ratio"].mean()) == pytest.approx(1, abs=0.02)  # standard error 0.004


@pytest.mark.slow
def test_layers_of_rounded_parameters_are_computed_in_float32(tmp_path, monkeypatch):
    monkeypatch.setattr(observables, "path_shares", refuse)
    rounded = pretrained.load(made_up.write(tmp_path / "made"), dtype="bfloat16")
    widened = rounded._replace(params=jax.tree.map(observables.wide, rounded.params))
    result, wanted = (
        pretrained.trace(each, some_windows(1), layers=[2], switches=["attention"], exact=False)
        for each in (rounded, widened)
    )
    assert result.rounding_floor == wanted.rounding_floor == pytest.approx(math.sqrt(8) * 2**-23)
    for part, tree in wanted.samples.items():
        close(result.samples[part], tree, 1e-5)
