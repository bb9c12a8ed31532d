"""Benchmarks: sides agree before they are timed, turns are taken, and the command writes what it measured."""

import dataclasses
import json

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.benchmarks import __main__ as command
from experiments.benchmarks import contests, first
from rc_jax import attention, collapse, network

TINY = contests.Shape(
    "tiny", network.StackSpec(attention=attention.AttentionSpec(d_model=8, heads=2), depth=2), tokens=4, together=2
)


def made_up(**sides):
    return contests.Contest("made up", "things/s", 10, sides, contests.close(1e-6))


def numpy_and_ours(contest):
    """Sides that run without PyTorch and compile quickly."""
    sides = {name: side for name, side in contest.sides.items() if "PyTorch" not in name and name != contests.EXACT}
    return dataclasses.replace(contest, sides=sides, bounds={})


@pytest.mark.parametrize(
    "make",
    [
        lambda: contests.drawn(TINY, 40, left_out=(contests.WIDTH_FREE,)),
        lambda: contests.given(TINY, 3),
        lambda: contests.weights(1, heads=2, tokens=16),
        lambda: contests.streaming(300, 8),
        lambda: next(contests.scale_grid(3)),
        lambda: first.batches(TINY, 4),
    ],
    ids=["drawn", "given", "weights", "streaming", "scale_grid", "batches"],
)
def test_the_sides_of_a_contest_agree(make):
    contest = numpy_and_ours(make())
    assert len(contest.sides) >= 2
    made = command.timed(contest, 1e-9, 1)
    assert set(made["sides"]) == set(contest.sides) and not made["failed"]


def test_a_bound_counts_the_operations_of_a_network():
    """2·m·k·n for every product of a forward pass, written out for two layers of two heads of width 4, four tokens."""
    layer = 3 * 2 * 4 * 8 * 8 + 2 * (2 * 4 * 4 * 4) + 2 * (2 * 4 * 4 * 4) + 2 * 4 * 8 * 8
    assert TINY.operations == 2 * layer


def test_sides_that_disagree_are_not_timed():
    samples = np.random.default_rng(0).normal(size=(400, 2))
    contests.same_law(samples + 0.05, samples[::-1])
    with pytest.raises(AssertionError, match="means differ"):
        contests.same_law(samples + 1, samples)
    with pytest.raises(AssertionError, match="made up: b against a"):
        command.timed(made_up(a=lambda: np.ones(1), b=lambda: np.zeros(1)), 1e-9, 1)


def test_turns_forwards_and_backwards_and_ratios_round_by_round(monkeypatch):
    calls, clock = [], iter([0.0, *np.cumsum([1, 2, 0.1, 6, 0.1, 3, 0.1, 1, 0.1, 1, 0.1]), *range(100, 200)])
    monkeypatch.setattr(command.time, "perf_counter", lambda: next(clock))
    contest = made_up(a=lambda: calls.append("a") or np.ones(1), b=lambda: calls.append("b") or np.ones(1))
    made = command.timed(contest, 1.0, least=2)
    assert "".join(calls) == "ab" + "ab" + "ba"  # the check, then two rounds
    a, b = (np.array(made["sides"][name]["seconds"]) for name in "ab")
    np.testing.assert_allclose(made["sides"]["b"]["ratio"], np.quantile(a / b, [0.25, 0.5, 0.75]))
    np.testing.assert_allclose(made["sides"]["a"]["rate"], np.quantile(1 / a, [0.25, 0.5, 0.75]))


def missing():
    raise ModuleNotFoundError("No module named 'torch'\nand a long story")


def test_a_side_that_raises_is_named_and_the_rest_goes_on():
    made = command.timed(made_up(gone=missing, a=lambda: np.ones(1), b=lambda: np.ones(1)), 1e-9, 2)
    assert made["first"] == "a" and len(made["sides"]["b"]["seconds"]) == 2
    text = command.markdown({"direct": {"run": "today", "contests": [made], "tables": []}})
    assert (
        "| made up | a |" in text and "| gone | did not run: ModuleNotFoundError: No module named 'torch' | – |" in text
    )


def few(count):
    yield contests.Table("rates", ("what", "a second"), [("x", 1234.5)])
    yield made_up(a=lambda: np.full(1, count))
    raise MemoryError("no more")


def test_the_command_writes_results_and_page_and_goes_on_after_a_failure(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(contests.BENCHMARKS, "device", few)
    monkeypatch.setitem(contests.BENCHMARKS, "direct", lambda count: iter([made_up(b=lambda: np.ones(1))]))
    page = tmp_path / "page.md"
    page.write_text(f"before\n{command.BEGIN}\nold\n{command.END}\nafter\n")
    words = ["device", "direct", "--quick", "--out", str(tmp_path), "--page", str(page)]
    assert command.main(words) == 1
    out, err = capsys.readouterr()
    assert "device: MemoryError: no more" in err
    assert "| x | 1,234 |" in out and "Not run to its end: MemoryError: no more." in out and "| made up | b |" in out
    assert page.read_text() == f"before\n{command.BEGIN}\n\n{out}\n{command.END}\nafter\n"
    assert set(json.loads((tmp_path / "benchmarks.json").read_text())) == {"device", "direct"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["speed"], "unknown benchmark 'speed'; benchmarks are initialisations, direct"),
        (["--seconds", "0"], "`--seconds` must be > 0, got 0"),
        (["--count", "0"], "`--count` must be >= 1, got 0"),
        (["--page", "PAGE"], "`--page` must hold the line <!-- measured -->"),
        (["--out", "PAGE"], "cannot write to"),
    ],
)
def test_bad_input_is_one_line(words, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "PAGE").write_text("nothing")
    assert command.main(words) == 2
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1


@pytest.mark.slow
def test_precisions_and_rates_are_measured():
    (table,) = contests.precision(1)
    small = {"network.apply, 6 layers with skips": 1e-5, "special.log_bessel_i, orders to 32 767": 1e-3}
    for name, error, float32, bfloat16 in table.rows:
        if "three layers" in name:  # a rounding of the tokens, over what is left of their differences
            params, x = next(inputs for each, _, inputs, _ in contests._quantities() if each == name)
            layer = contests.SMALL.spec.attention
            spec = network.StackSpec(attention=dataclasses.replace(layer, precision="highest"), depth=3)
            size, share = (collapse.log_residuals(params, x, spec, relative=relative)[-1] for relative in (False, True))
            lost = float(jnp.finfo(jnp.float32).eps * jnp.exp(-share) / jnp.abs(size))
            assert 1e-3 < float32 < min(lost, 0.1) and max(lost, 0.1) < bfloat16 < 1, (name, lost)
        else:
            assert error and float32 < small.get(name, 2e-6) < bfloat16 < 1, name
    (rates,) = contests.device(1)
    assert all(rate > 1e6 for _, rate in rates.rows)


@pytest.mark.slow
def test_first_calls_are_timed_in_fresh_processes():
    """The first function and the first command, as `--quick` runs them; each has a limit beside its time."""
    functions, commands = first.first_call(1)
    for table, least in ((functions, 0.1), (commands, 0.1)):
        ((_, seconds, limit),) = table.rows
        assert least < seconds < 600 and limit >= 2


def test_a_call_that_fails_names_its_error():
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        first._to_first("1 / 0")
