"""Benchmarks: the sides of every contest agree, turns are taken, and the command writes what it measured."""

import dataclasses
import json
import time

import numpy as np
import pytest

from experiments.benchmarks import arithmetic, command, contest, initialisations, machine, report, width_free

ROOF = machine.Roofline(1e11, 1e9, 1e9, 1e10)


def made_up(**sides):
    return contest.Contest("made up", "things/s", 10, sides, baseline=next(iter(sides)), tolerance=1e-6, floor=1e-4)


@pytest.mark.parametrize("module, number", [(initialisations, 0), (arithmetic, 1)])
def test_the_sides_of_a_contest_agree(module, number):
    """Those of `scale_grid` are checked where the command runs them."""
    each = module.contests(8, ROOF)[number]
    assert len(each.sides) > 1
    contest.check(each)


def test_sides_that_disagree_are_not_timed():
    with pytest.raises(AssertionError, match="other against one"):
        contest.run(made_up(one=lambda: np.ones(2), other=lambda: np.array([1, 1.1])), 0.01)


def test_sides_take_turns_forwards_and_backwards():
    calls = []

    def side(name):
        return lambda: calls.append(name) or np.ones(1)

    result = contest.run(made_up(a=side("a"), b=side("b")), seconds=1e-9, least=3)
    assert "".join(calls[3:]) == "ab" + "ba" + "ab"  # after the check
    assert all(len(times) == 3 for times in result.seconds.values())


def test_ratios_are_taken_round_by_round():
    result = contest.Result(
        made_up(a=time.time, b=time.time), {"a": np.array([2.0, 20, 200]), "b": np.array([1.0, 10, 100])}
    )
    np.testing.assert_allclose(result.speedup("b"), 2)
    np.testing.assert_allclose(result.rate("b")[1], 1.0)
    table = report.markdown({"machine": "m", "date": "d", "roofline": dataclasses.asdict(ROOF)}, [result])
    assert "| 2 [2, 2] |" in table


def test_the_command(tmp_path, capsys):
    assert command.main(["scale_grid", "--out", str(tmp_path), "--seconds", "0.05", "--count", "20"]) == 0
    found = json.loads((tmp_path / "benchmarks.json").read_text())
    assert [len(each["sides"]) for each in found["contests"]] == [2, 2]
    assert found["roofline"]["matmul_flops"] > 1e8 and "jax" in found["machine"]
    assert capsys.readouterr().out == (tmp_path / "benchmarks.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["speed"], "unknown benchmark 'speed'"),
        (["--seconds", "0"], "`--seconds` must be > 0, got 0"),
        (["--count", "0"], "`--count` must be >= 1, got 0"),
        (["--out", "{file}/x"], "`--out` must be a folder that can be written to"),
    ],
)
def test_bad_input(arguments, message, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert command.main([word.format(file=tmp_path / "file") for word in arguments]) == 2
    assert message in capsys.readouterr().err


def test_peak_of_this_process():
    """At least the array that it holds; in a process of its own the width-free sampler's is in its own test."""
    held = np.ones(2**22)
    assert not width_free.peak_mebibytes() < held.nbytes / 2**20
