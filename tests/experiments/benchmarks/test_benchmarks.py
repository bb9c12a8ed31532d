"""Benchmarks: the sides of every contest agree, turns are taken, and the command writes and shows what it measured."""

import dataclasses
import importlib
import json
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.benchmarks import command, contest, counts, machine, peers, report, shapes, targets
from experiments.benchmarks.contest import Table
from experiments.benchmarks.counts import Counts
from experiments.benchmarks.shapes import Shape, each_of, networks, plain
from experiments.benchmarks.speed import arithmetic, compile_time, direct, initialisations, scale_grid, width_free
from rc_jax import attention, network

ROOF = machine.Roofline(1e11, 1e9, 1e9, 1e10, 1e9)
TINY = Shape("tiny", network.StackSpec(attention=attention.AttentionSpec(d_model=8, heads=2), depth=2), 4, 1, 2)


def made_up(**sides):
    return contest.Contest("made up", "things/s", 10, sides, baseline=next(iter(sides)), tolerance=1e-6)


@pytest.mark.parametrize(
    "make, left_out",
    [
        pytest.param(
            initialisations.contest,
            (initialisations.EXACT, initialisations.WIDTH_FREE),  # slow to compile
            marks=pytest.mark.slow,
        ),
        pytest.param(direct.contest, (), marks=pytest.mark.slow),
        (arithmetic.given, (arithmetic.EXACT,)),
    ],
    ids=["drawn", "given", "exact"],
)
def test_the_sides_of_a_contest_agree(make, left_out, monkeypatch, one_thread):
    """All that can be run here; PyTorch may be missing, and then its sides say so."""
    monkeypatch.setattr(initialisations, "counted", lambda *_: Counts())
    each = make(TINY, 40)
    assert set(left_out) <= set(each.sides)
    kept = {name: side for name, side in each.sides.items() if name not in left_out}
    failed = contest.check(dataclasses.replace(each, sides=kept))
    assert kept and all("torch" in why for why in failed.values())


@pytest.mark.slow
def test_given_networks_measured_one_or_several_to_a_call_are_the_same():
    weights, x = networks(TINY, 10), TINY.input()
    one_by_one, by_fours = (each_of(lambda params: plain(params, x, TINY.spec), weights, many)() for many in (1, 4))
    assert one_by_one.shape == (10, TINY.spec.depth + 1)
    np.testing.assert_allclose(by_fours, one_by_one, rtol=1e-5)


def test_another_law_is_noticed():
    samples = np.random.default_rng(0).normal(size=(400, 2))
    one = contest.mean_and_error(samples)
    contest.same_law(contest.mean_and_error(samples[::-1] + 0.05), one)
    with pytest.raises(AssertionError, match="±"):
        contest.same_law(contest.mean_and_error(samples + 1), one)


def test_sides_take_turns_forwards_and_backwards():
    calls = []

    def side(name):
        return lambda: calls.append(name) or np.ones(1)

    result = contest.run(made_up(a=side("a"), b=side("b")), seconds=1e-9, least=3)
    assert "".join(calls[2:]) == "ab" + "ba" + "ab"  # after the check
    assert all(len(times) == 3 for times in result.seconds.values())


def missing():
    raise ModuleNotFoundError("No module named 'torch'\nand a long story")


def test_a_side_that_raises_is_named_and_the_rest_goes_on():
    each = made_up(gone=missing, a=lambda: np.ones(1), b=lambda: np.ones(1))
    result = contest.run(each, seconds=1e-9, least=2)
    assert result.failed == {"gone": "ModuleNotFoundError: No module named 'torch'"} and result.baseline == "a"
    text = report.markdown({"x": section([report.plain(result, ROOF)])})
    assert "| gone | did not run: ModuleNotFoundError: No module named 'torch' |" in text
    assert "| a | " in text and "| b | " in text
    assert report.plain(contest.run(made_up(gone=missing), 1e-9), ROOF)["baseline"] is None


def section(contests=(), tables=()):
    heading = {"machine": "m", "date": "d", "load": 0.5, "roofline": dataclasses.asdict(ROOF)}
    return {"heading": heading, "contests": list(contests), "tables": list(tables)}


def test_ratios_are_taken_round_by_round_and_shares_of_the_best():
    each = dataclasses.replace(made_up(a=missing, b=missing), counts={"b": Counts(operations=1e11, normals=1e8)})
    result = contest.Result(each, {"a": np.array([2.0, 20, 200]), "b": np.array([1.0, 110, 100])})
    np.testing.assert_allclose(result.speedup("b"), np.quantile([2, 20 / 110, 2], [0.25, 0.5, 0.75]))
    plain = report.plain(result, ROOF)
    assert plain["sides"]["b"]["share_of_best"] == pytest.approx(10 * 1.1 / 100)
    text = report.markdown({"x": section([plain])})
    assert "| 2 [1.09, 2] | 11% |" in text
    assert "| made up: b | 100 | 1,000 | 0 | 0 | 1,100 | 10,000 |" in text


def test_targets_are_judged_from_medians():
    """α*: met, in the other contest not; the exact arithmetic's sides did not both run, so nothing is said of it."""

    def measured(title, **seconds):
        sides = {name: {"seconds": times} for name, times in seconds.items()}
        return {"title": title, "sides": sides, "work": 1}

    results = {
        "scale_grid": section(
            [
                measured(
                    "Optimal scale, Gaussian scores, n = 40·(1..500)",
                    **{targets.LOOPS: [3.0, 2.0, 4.0], targets.COMPILED: [0.01, 0.01, 0.1]},
                ),
                measured(
                    "Optimal scale, cosine scores, d=128, n = 40·(1..500)",
                    **{targets.LOOPS: [1.0], targets.COMPILED: [0.5]},
                ),
            ]
        ),
        "arithmetic": section([measured("Exact against plain arithmetic, weights drawn, small", **{"gone": [1.0]})]),
        "memory": section(tables=[{"rows": [["exact", 100_000, 20.0, 700.0, 300.0], ["other", 5, 1.0, 1.0, 1024.5]]}]),
    }
    rows = list(targets.rows(results))
    assert [(bound, number, met) for _, bound, number, met in rows] == [
        ("≥ 100", 200.0, True),
        ("≥ 100", 2.0, False),
        ("≤ 1024", 300.0, True),
        ("≤ 1024", 1024.5, False),
    ]


def test_every_target_names_sides_that_there_are(monkeypatch):
    """Titles and names of sides are written twice, and this holds them together; nothing is drawn or compiled."""
    monkeypatch.setattr(Shape, "input", lambda shape: np.ones((1, 1)))
    for module, name, put in (
        (initialisations, "counted", lambda *_: Counts()),
        (direct, "counted", lambda *_: Counts()),
        (direct, "networks", lambda *_: {}),
        (arithmetic, "networks", lambda *_: {}),
        (peers, "side_by_side", lambda weights: peers.Weights(np.ones(1), np.ones(1))),
        (scale_grid, "compiled", lambda *_: (missing, "")),
    ):
        monkeypatch.setattr(module, name, put)
    contests = {
        "initialisations": [initialisations.contest(shapes.SMALL, 1), initialisations.contest(shapes.BASE, 1)],
        "scale_grid": list(scale_grid.contests(500)),
        "compile_time": list(compile_time.contests(512)),
        "width_free": [width_free.flat(width_free.WIDTHS, 1)],
        "direct": [direct.contest(shapes.SMALL, 1), direct.contest(shapes.BASE, 1)],
        "arithmetic": [
            make(shape, 1) for make in (arithmetic.drawn, arithmetic.given) for shape in (shapes.SMALL, shapes.BASE)
        ],
    }
    for target in targets.TARGETS:
        matching = [each for each in contests[target.benchmark] if each.title.startswith(target.title)]
        assert len(matching) == 1 and {target.over, target.side} <= set(matching[0].sides), target


def test_operations_are_counted():
    """By hand: a scan of 7 steps, each a 3×4 by 4×5 product and its exponentials; 11 normals; one QR of 6×2."""

    def program(key, a, b):
        loop = jax.lax.scan(lambda c, _: (c, jnp.exp(a @ b)), 0.0, length=7)[1]
        return loop, jax.random.normal(key, (11,)), jnp.linalg.qr(jnp.ones((6, 2)), mode="r")

    counted = counts.count(program, jax.random.key(0), jnp.ones((3, 4)), jnp.ones((4, 5)))
    assert (counted.operations, counted.exponentials, counted.normals) == (7 * 2 * 3 * 4 * 5, 7 * 15, 11)
    assert counted.factorising == pytest.approx(2 * 4 * (6 - 2 / 3))
    spec, x = TINY.spec, TINY.input()
    forward = counts.count(lambda key: network.apply(network.random_layers(key, spec), x, spec), jax.random.key(0))
    n, d = x.shape
    assert forward.normals == 2 * 4 * d * d and forward.operations == 2 * (8 * n * d * d + 4 * n * n * d)


@pytest.fixture
def made_up_module(monkeypatch):
    """One contest, one table, then an error, in place of all benchmarks; the roofline is not measured."""

    def contests(count):
        if count == 14:
            yield made_up(one=lambda: np.ones(1), other=lambda: np.zeros(1))
        yield made_up(a=lambda: np.ones(1), b=lambda: np.ones(1))

    def tables(count):
        yield Table("A table", ("how", "MiB"), (("plain", 1234.5), ("exact", float("nan"))), note="as seen")
        if count == 13:
            raise RuntimeError("out of luck")

    module = types.ModuleType("made_up_benchmark")
    vars(module).update(contests=contests, tables=tables)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(command, "MODULES", {"first": module.__name__})
    monkeypatch.setattr(machine, "roofline", lambda seconds: ROOF)
    return ["--seconds", "1e-9"]


def test_the_command(made_up_module, tmp_path, capsys):
    out = ["--out", str(tmp_path / "out")]
    assert command.main([*out, *made_up_module]) == 0
    stored = json.loads((tmp_path / "out" / "benchmarks.json").read_text("utf-8"))["benchmarks"]
    assert list(stored) == ["first"] and len(stored["first"]["contests"][0]["sides"]["a"]["seconds"]) == 5
    text = (tmp_path / "out" / "benchmarks.md").read_text("utf-8")
    assert "| plain | 1,234 |" in text and "| exact | – |" in text and "as seen." in text
    said, progress = capsys.readouterr()
    assert said == text and "made up" in progress and "A table" in progress
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter", "utf-8")
    assert command.main([*out, "--show", "--page", str(page)]) == 0
    assert capsys.readouterr().out == text
    assert page.read_text("utf-8") == f"before\n{report.BEGIN}\n\n{text}\n{report.END}\nafter"
    page.write_text(report.BEGIN, "utf-8")
    assert command.main([*out, "--show", "--page", str(page)]) == 2
    assert "`--page` must hold" in capsys.readouterr().err


def test_the_command_for_programs(made_up_module, tmp_path, capsys):
    out = ["--out", str(tmp_path / "out"), "--json", "--quiet"]
    assert command.main([*out, *made_up_module]) == 0
    said, progress = capsys.readouterr()
    results = json.loads(said, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))["benchmarks"]
    assert results["first"]["tables"][0]["rows"] == [["plain", 1234.5], ["exact", None]] and not progress
    assert command.main(["--list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == ["first"]


def test_what_is_measured_stays_when_a_benchmark_breaks_off(made_up_module, tmp_path, capsys):
    out = ["first", "--out", str(tmp_path), "--quiet", *made_up_module, "--count"]
    assert command.main([*out, "13"]) == 1
    text = (tmp_path / "benchmarks.md").read_text("utf-8")
    assert "| plain | 1,234 |" in text and "made up" in text
    assert "Not run to its end: RuntimeError: out of luck." in text
    assert capsys.readouterr().err == "first: RuntimeError: out of luck\n"
    assert command.main([*out, "14"]) == 1  # sides that disagree are not timed; the next contest is run
    (section,) = json.loads((tmp_path / "benchmarks.json").read_text("utf-8"))["benchmarks"].values()
    assert "made up: other against one" in section["failed"]
    assert [list(each["sides"]) for each in section["contests"]] == [["a", "b"]]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["speed"], "unknown benchmark 'speed'"),
        (["--seconds", "0"], "`--seconds` must be > 0, got 0"),
        (["--count", "0"], "`--count` must be >= 1, got 0"),
        (["--out", "{file}/x"], "`--out` must be a folder that can be written to"),
        (["--out", "{file}.new", "--show"], "`--show` must find results in `--out`, got none in "),
        (["--out", "{file}.new", "--page", "{file}.md"], "`--page` must be a file to write to, got "),
        (["--out", "{file}.new", "--page", "{file}"], "`--page` must hold the line <!-- measured -->"),
    ],
)
def test_bad_input(arguments, message, tmp_path, capsys):
    """Nothing is measured, and nothing is left behind."""
    (tmp_path / "file").touch()
    assert command.main([word.format(file=tmp_path / "file") for word in arguments]) == 2
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_every_benchmark_has_what_the_command_asks_for():
    for path in command.MODULES.values():
        module = importlib.import_module(path)
        assert hasattr(module, "contests") or hasattr(module, "tables"), path
