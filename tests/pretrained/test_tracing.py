"""Every number of a trace against plain NumPy; batches, memory and programs; what is refused, and what is left out."""

import dataclasses
import gc
import math
import sys
import tracemalloc

import jax
import numpy as np
import pytest

from rc_jax import collapse, diagnostics, pretrained
from rc_jax.diagnostics.implied_scale import entropy_scale, optimal_scale
from rc_jax.pretrained import tracing
from rc_jax.pretrained.tracing import windows_at_a_time
from tests.oracles import traced
from tests.pretrained import made_up

TOKENS = 6
PROGRAMS = (tracing.layer, tracing.log_residuals, tracing.path_shares)


@pytest.fixture
def causal(tmp_path, x64):
    """A made-up checkpoint in double precision whose rows see what is before them."""
    checkpoint = pretrained.load(made_up.write(tmp_path / "made"), dtype="float64")
    layer = dataclasses.replace(checkpoint.spec.attention, causal=True)
    return checkpoint._replace(spec=dataclasses.replace(checkpoint.spec, attention=layer))


def some_windows(count):
    return np.random.default_rng(count).integers(0, made_up.CONFIG["vocab_size"], (count, TOKENS))


def close(measured, wanted, tolerance):
    for name, values in wanted.items():
        np.testing.assert_allclose(measured[name], values, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("complete", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_every_number_is_numpy_s(causal, monkeypatch, complete):
    """Paths and log residuals, which compile long, are left out of the fast case."""
    if not complete:
        monkeypatch.setattr(tracing, "path_shares", refuse)
    windows, tensors, config = some_windows(3), made_up.tensors(), made_up.CONFIG
    result = pretrained.trace(causal, windows, batch_size=3, exact=complete)
    oracle = []
    for ids in windows:
        states, weights, values = traced.forward(tensors, config, ids, causal=True)
        of = traced.of_states(states) | traced.of_heads(weights, values, causal=True)
        keys = np.arange(2, TOKENS + 1)
        of["entropy_scale"] = entropy_scale(of["entropy"], keys)
        of["scale_ratio"] = of["entropy_scale"] / optimal_scale(keys)
        if complete:
            of |= traced.of_paths(
                tensors, config, states[0], lambda *at: traced.attention_of(tensors, config, *at, causal=True)
            )
        else:
            del of["log_residual"]
        oracle.append({name: value for name, value in of.items() if name not in ("numerical_rank", "strongest_key")})
    wanted = {name: np.mean([of[name] for of in oracle], axis=0) for name in oracle[0]}
    wanted.pop("strongest_share")  # of the key that is the strongest in most windows
    others = ("strongest_key", "strongest_share", "token_norm", "norm_ratio")
    assert set(result.measures) == {*wanted, *others}
    close(result, wanted, 1e-8)
    assert (result.samples, result.tokens, result.causal, result.numbers) == (3, TOKENS, True, (0, 1, 2))


def test_it_is_the_instrument_of_diagnostics(causal, monkeypatch):
    """The same weights and states, handed to `attention` and `hidden_states`, give the same numbers."""
    monkeypatch.setattr(tracing, "path_shares", refuse)
    windows = some_windows(4)
    result = pretrained.trace(causal, windows, batch_size=2, exact=False)
    weights, values, states = [], [], []
    for ids in windows:
        of = traced.forward(made_up.tensors(), made_up.CONFIG, ids, causal=True)
        states.append(of[0])
        weights.append(of[1])
        values.append(of[2])
    stacked = [[np.stack(parts) for parts in zip(*each, strict=True)] for each in (weights, values, states)]
    same = diagnostics.attention(stacked[0], values=stacked[1]) | diagnostics.hidden_states(stacked[2])
    assert list(result.measures) == list(same.measures)
    close(result, same.measures, 1e-8)
    assert "path_share is left out: `spec` must have no such thing." in result.notes


def refuse(params, x, spec):
    raise collapse.NotCovered("`spec` must have no such thing")


@pytest.mark.slow
def test_batches_make_no_difference(causal):
    windows = some_windows(7)
    whole = pretrained.trace(causal, windows, batch_size=3)  # the last batch is filled up, and what fills it is dropped
    single = pretrained.trace(causal, windows, batch_size=1, exact=False)
    assert "log_residual is left out: not asked for." in single.notes and not whole.notes
    assert whole.samples == single.samples == 7
    close(whole, single.measures, 1e-10)


@pytest.mark.slow
def test_neither_memory_nor_programs_grow_with_the_text(causal, request):
    def run(count):
        """Bytes on the device after each batch, and the host's peak."""
        gc.collect()  # arrays of other tests, which may go at any time
        tracer, windows, alive = pretrained.Tracer(causal, TOKENS, 3), some_windows(count), []
        tracer.add(windows[:3])
        tracemalloc.start()
        for start in range(3, count, 3):
            tracer.add(windows[start : start + 3])
            gc.collect()
            alive.append(sum(array.nbytes for array in jax.live_arrays()))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert tracer.result().samples == count
        return max(alive), peak

    gc.freeze()  # what other tests have left need not be looked through after every batch
    request.addfinalizer(gc.unfreeze)
    short, before = run(30), [program._cache_size() for program in PROGRAMS]
    # States and attention of 60 windows would be 198 kB each time; what another thread takes meanwhile is in one run.
    alive, peak = run(90)
    if peak > short[1] + 50_000:
        alive, peak = run(90)
    assert peak <= short[1] + 50_000
    assert alive == short[0]
    assert [program._cache_size() for program in PROGRAMS] == before


@pytest.mark.slow
def test_switches_take_parts_away(tmp_path, monkeypatch):
    monkeypatch.setattr(tracing, "path_shares", refuse)
    checkpoint = pretrained.load(made_up.write(tmp_path / "made"))
    windows = some_windows(1)
    tracer = pretrained.Tracer(checkpoint, TOKENS, 1, switches=["attention"], exact=False)
    assert (tracer.spec.skip, tracer.spec.mlp, tracer.spec.norm) == (False, None, "post")
    tracer.add(windows)
    states, weights, values = traced.forward(made_up.tensors(), made_up.CONFIG, windows[0], skip=False, mlp=False)
    wanted = traced.of_states(states) | traced.of_heads(weights, values)
    for name in ("log_residual", "numerical_rank", "second_singular_value", "residual_rate"):
        del wanted[name]
    close(tracer.result(), wanted, 2e-3)
    for switches, on in ((("skip",), (True, None)), (("mlp", "attention"), (False, checkpoint.spec.mlp))):
        spec = pretrained.Tracer(checkpoint, TOKENS, 1, switches=switches).spec
        assert (spec.skip, spec.mlp) == on


def test_what_theory_does_not_cover_is_left_out_with_the_reason(causal, monkeypatch):
    monkeypatch.setattr(tracing, "log_residuals", refuse)
    monkeypatch.setattr(tracing, "path_shares", refuse)
    result = pretrained.trace(causal, some_windows(3), batch_size=3)
    for name in ("log_residual", "path_share"):
        assert f"{name} is left out: `spec` must have no such thing." in result.notes and name not in result.measures


def test_numbers_that_are_none_are_left_out_of_the_mean(causal, monkeypatch):
    def some(params, x, spec):
        return np.where(np.arange(4)[None] < 2, 1.0, [[np.nan], [2.0]])

    monkeypatch.setattr(tracing, "log_residuals", some)
    monkeypatch.setattr(tracing, "path_shares", refuse)
    result = pretrained.trace(causal, some_windows(2), batch_size=2)
    assert result["log_residual"].tolist() == [1, 1, 2, 2]
    assert "log_residual is undecided or not finite in 2 of 8 cases, at 2, 3: they are left out" in result.notes[-1]


def test_a_collapsed_network_says_what_is_rounding(causal, monkeypatch):
    monkeypatch.setattr(tracing, "path_shares", refuse)
    tracer = pretrained.Tracer(causal, TOKENS, 1, exact=False)
    tracer.add(np.zeros((1, TOKENS), int))
    tracer._added.states["relative_residual"][-1] = 1e-17
    assert f"‖res‖/‖X‖ below {math.sqrt(8) * np.finfo(float).eps:.0e} is rounding" in tracer.result().notes[-1]


@pytest.mark.slow
def test_an_interrupt_leaves_all_of_a_batch_or_nothing(causal, monkeypatch):
    """At any line of `add`."""
    monkeypatch.setattr(tracing, "path_shares", refuse)
    windows, seen = some_windows(4), []
    whole = pretrained.Tracer(causal, TOKENS, 2, exact=False)
    observe = whole._observe
    monkeypatch.setattr(whole, "_observe", lambda x, count: seen.append(observe(x, count)) or seen[-1])
    wanted = {}
    for start in (0, 2):
        whole.add(windows[start : start + 2])
        wanted[start + 2] = whole.result()

    def interrupted(tracer, line):
        """Whether `add` was interrupted before the line of that number, counted as it runs."""
        left = iter(range(line, -1, -1))

        def stop(frame, event, argument):
            if event == "line" and next(left) == 0:
                raise KeyboardInterrupt
            return stop

        before = sys.gettrace()
        sys.settrace(lambda frame, event, argument: stop if frame.f_code is tracer.add.__code__ else None)
        try:
            tracer.add(windows[2:])
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False

    line, counts = 0, []
    while True:
        tracer = pretrained.Tracer(causal, TOKENS, 2, exact=False)
        monkeypatch.setattr(tracer, "_observe", lambda x, count: seen[0])
        tracer.add(windows[:2])
        monkeypatch.setattr(tracer, "_observe", lambda x, count: seen[1])
        again = interrupted(tracer, line)
        for _ in range(2 if tracer.windows == 2 else 1):  # then it goes on
            counts.append(tracer.windows)
            result = tracer.result()
            assert result.samples == tracer.windows
            assert [len(values) for values in result.by_text.values()] == [tracer.windows] * len(result.by_text)
            close(result, wanted[tracer.windows].measures, 0)
            if tracer.windows == 2:
                tracer.add(windows[2:])
        if not again:
            break
        line += 1
    assert line > 10 and set(counts) == {2, 4}


def test_a_mistake_is_not_taken_for_what_theory_does_not_cover(causal, monkeypatch):
    def mistaken(*_):
        raise ValueError("shapes (3, 4) and (5,) do not fit")

    monkeypatch.setattr(tracing, "log_residuals", mistaken)
    with pytest.raises(ValueError, match="do not fit"):
        pretrained.trace(causal, some_windows(3), batch_size=3)


@pytest.mark.usefixtures("as_installed")
def test_bad_input(causal):
    windows = some_windows(2)
    for arguments, error, message in (
        ({"windows": windows.astype(float)}, TypeError, "`windows` must be an array of integers of shape"),
        ({"windows": windows[:0]}, ValueError, "`windows` must be .* with window >= 1 and token >= 2"),
        ({"windows": windows[:, :1]}, ValueError, "`windows` must be .* with window >= 1 and token >= 2"),
        ({"windows": windows + 20}, ValueError, "`token_ids` must lie in 0 … 19"),
        ({"windows": np.zeros((1, 11), int)}, ValueError, "`token_ids` must hold 1 to 10 tokens"),
        ({"switches": ["norm"]}, ValueError, "`switches` must be among attention, skip, mlp, got 'norm'"),
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
    with pytest.raises(ValueError, match="queries of every layer see two keys, got layers with a window of 1"):
        pretrained.Tracer(alone, TOKENS, 1)


@pytest.mark.slow
def test_layers_of_rounded_parameters_are_computed_in_float32(tmp_path, monkeypatch):
    monkeypatch.setattr(tracing, "path_shares", refuse)
    rounded = pretrained.load(made_up.write(tmp_path / "made"), dtype="bfloat16")
    widened = rounded._replace(params=jax.tree.map(tracing._wide, rounded.params))
    result, wanted = (
        pretrained.trace(each, some_windows(1), switches=["attention"], exact=False) for each in (rounded, widened)
    )
    close(result, wanted.measures, 1e-5)
