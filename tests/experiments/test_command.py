"""The command line: what it makes, what it says when the input is bad, and how it goes on after being stopped."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest

from experiments.command import main
from experiments.ledger import record
from tests.experiments.conftest import has_ended, statuses, strict_json, until


def test_cheap_figures_first_and_a_ledger_and_an_early_report_after_each(figures, tmp_path, capsys):
    cheap_is_in = "\n".join(
        f"import pathlib; assert 'b_cheap' in pathlib.Path({str(tmp_path / 'quick' / name)!r}).read_text()"
        for name in ("claims.json", "report.html")
    )
    figures.add("a_slow", compute=cheap_is_in, minutes=2.0).add("b_cheap", minutes=0.1)
    assert main(["--out", str(tmp_path)], figures.package) == 0
    assert figures.computed == ["b_cheap", "a_slow"]
    folder = tmp_path / "quick"
    for name in figures.computed:
        assert {f"{name}{end}" for end in (".png", ".dark.png", ".pdf")} <= {path.name for path in folder.iterdir()}
    out = capsys.readouterr().out
    assert "2 of 2 figures, 2 published statements: 2 agree" in out
    assert out.strip().endswith(f"report: {folder / 'report.html'}")
    assert "\033[" not in out
    assert main(["--out", str(tmp_path)], figures.package) == 0
    assert "✓ b_cheap: loaded (1 of 2, about 0 s left)" in capsys.readouterr().err


def test_second_run_loads_and_third_with_another_seed_computes(figures, tmp_path):
    figures.add("one")
    for seed in ("0", "0", "1", "0"):
        assert main(["--out", str(tmp_path / "out"), "--seed", seed], figures.package) == 0
    assert figures.computed == ["one", "one"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["quick", "quick-seed1"]
    assert "--seed 1" in record.read(tmp_path / "out" / "quick-seed1")["one"].command
    (path,) = (tmp_path / "out" / "quick-seed1" / "data").glob("*.json")
    about = json.loads(path.read_text())
    assert about["spec"] == {"seed": 1, "dtype": "float32", "points": 5} and about["date"].endswith("+00:00")
    assert set(about) == {
        "figure", "spec", "version", "code", "commit", "date", "seconds", "device", "precision", "platform", "python",
        "machine", "xla_flags", "jax", "jaxlib", "numpy", "sha256",
    }  # fmt: skip


def test_a_failed_figure_fails_alone(figures, tmp_path, capsys):
    note = "error = ValueError('no such head')\nerror.add_note('For simplicity, …')\nraise error"
    figures.add("bad", compute=note).add("silent", compute="raise StopIteration")
    figures.add("unjudged", measure="raise KeyError('y')").add("good")
    figures.add("lacks", compute="raise figure.Unavailable('no checkpoint: install it')")
    (figures.path / "absent.py").write_text("import no_such_module")
    (figures.path / "partial.py").write_text("ABOUT = 1")
    (figures.path / "unread.py").write_text("ABOUT = (")
    assert main(["--out", str(tmp_path / "out")], figures.package) == 1
    folder = tmp_path / "out" / "quick"
    status = statuses(folder)
    assert (status.pop("good"), status.pop("lacks")) == ("done", "unavailable")
    assert status == dict.fromkeys(["bad", "silent", "unjudged", "absent", "partial", "unread"], "failed")
    out = capsys.readouterr().out
    for line in (
        "failed: bad: ValueError: no such head (see ",
        "failed: silent: StopIteration (see ",
        "failed: absent: ModuleNotFoundError: No module named 'no_such_module'",
        "failed: unread: SyntaxError: '(' was never closed",
        "failed: partial: AttributeError: figure partial lacks Spec, PRESETS, compute, plot, ROWS",
        "unavailable: lacks: no checkpoint: install it",
    ):
        assert line in out
    assert "Traceback" in (folder / "logs" / "bad.log").read_text() and "Traceback" not in out
    page = (folder / "report.html").read_text()
    assert all(text in page for text in ("no such head", "no checkpoint: install it", "Title of good"))
    assert not (folder / "unjudged.png").exists()


def test_numbers_that_are_not_finite_are_reported(figures, tmp_path, capsys):
    figures.add("one", compute="return {'x': np.arange(1.0, 4.0), 'y': np.array([1.0, np.nan, 9.0])}")
    assert main(["--out", str(tmp_path / "out")], figures.package) == 0
    captured = capsys.readouterr()
    assert "not finite: one: y: 1 of 3 numbers are not finite" in captured.out
    assert "? not run" in captured.out
    assert "y: 1 of 3 numbers are not finite" in (tmp_path / "out" / "quick" / "report.html").read_text()
    (claim,) = record.read(tmp_path / "out" / "quick")["one"].claims
    assert np.isnan(claim.measured)
    strict_json((tmp_path / "out" / "quick" / "claims.json").read_text())


def test_one_figure_keeps_the_rows_of_the_others(figures, tmp_path):
    figures.add("a").add("b").add("c")
    out = ["--out", str(tmp_path / "out")]
    assert main(["a", *out], figures.package) == 0
    page = (tmp_path / "out" / "quick" / "report.html").read_text()
    assert "not made yet at this preset" in page
    assert main(["b", "c", *out], figures.package) == 0
    page = (tmp_path / "out" / "quick" / "report.html").read_text()
    assert all(f"The exponent of {name}" in page for name in "abc")
    assert "not made yet at this preset" not in page
    assert list(record.read(tmp_path / "out" / "quick")) == ["a", "b", "c"]


def test_damaged_state_is_made_again(figures, tmp_path, capsys):
    figures.add("one")
    out = ["--out", str(tmp_path / "out")]
    main(out, figures.package)
    (arrays,) = (tmp_path / "out" / "quick" / "data").glob("*.npz")
    content = arrays.read_bytes()
    arrays.write_bytes(content[:-20])
    (tmp_path / "out" / "quick" / "claims.json").write_text("{")
    assert main(out, figures.package) == 0
    assert figures.computed == ["one", "one"]
    assert "damaged" in capsys.readouterr().err
    assert np.load(arrays)["x"].shape == (5,)


def test_changed_code_computes_again_and_replot_says_so(figures, tmp_path, capsys):
    figures.add("one")
    out = ["--out", str(tmp_path / "out")]
    main(out, figures.package)
    figures.add("one", compute="spec = spec")
    assert main([*out, "--replot"], figures.package) == 0
    assert figures.computed == ["one"]
    page = tmp_path / "out" / "quick" / "report.html"
    assert "The code has changed since" in page.read_text()
    assert main(out, figures.package) == 0
    assert figures.computed == ["one", "one"]
    assert "the code has changed" in capsys.readouterr().err
    assert "The code has changed since" not in page.read_text()


def test_replot_needs_something_stored(figures, tmp_path, capsys):
    figures.add("one").add("two")
    (figures.path / "absent.py").write_text("import no_such_module")
    out = ["--out", str(tmp_path / "out")]
    assert main([*out, "--replot"], figures.package) == 2
    assert "nothing is stored" in capsys.readouterr().err
    (figures.path / "absent.py").unlink()
    main(["one", *out], figures.package)
    capsys.readouterr()
    assert main(["one", "two", *out, "--replot"], figures.package) == 2
    assert "no stored result of two to draw again: run `python -m experiments two" in capsys.readouterr().err
    (tmp_path / "out" / "quick" / "one.png").unlink()
    assert main([*out, "--replot"], figures.package) == 0
    assert (tmp_path / "out" / "quick" / "one.png").exists()
    assert figures.computed == ["one"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["nine"], "unknown figure 'nine'; figures are one, two; topics are collapse, paths, "),
        (["one", "--all"], "`--all` must go without names, got one"),
        (["--replot", "--scheduler", "tcp://localhost:1"], "`--replot` computes nothing: leave out `--scheduler`"),
        (["--out", "gs://bucket/run"], "`--out` must be a folder of a file system, got the address gs:/bucket/run"),
        (["--preset", "huge"], "unknown preset 'huge'; presets are smoke, quick, full"),
        (["--seed", "-1"], "`--seed` must be an integer from 0 to 2**32 - 1, got -1"),
        (["--seed", str(2**32)], "`--seed` must be an integer from 0 to 2**32 - 1"),
        (["--seed", "many"], "--seed"),
        (["--presett", "full"], "--presett"),
        (["--out", "caf\udce9"], "`--out` must be a path in the encoding of this system, UTF-8 as a rule, got 'caf"),
        (["--checkpoint", "caf\udce9"], "`--checkpoint` must be a path in the encoding of this system"),
        (["--out", "{file}/out"], "`--out` must be a folder that can be written to, got"),
        (["--out", "{file}"], "`--out` must be a folder that can be written to, got"),
    ],
)
def test_bad_input_is_one_line(figures, tmp_path, capsys, argv, message):
    figures.add("one").add("two")
    (tmp_path / "file").write_text("")
    assert main([word.format(file=tmp_path / "file") for word in argv], figures.package) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.startswith("experiments: error: ") and captured.err.count("\n") == 1
    assert captured.out == ""
    assert figures.computed == []


def test_a_working_folder_that_is_gone_is_one_line(figures, tmp_path, monkeypatch, capsys):
    figures.add("one")
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["--out", str(tmp_path / "out")], figures.package) == 2
    assert capsys.readouterr().err == "experiments: error: the working folder is gone: go to another one\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "status", "said"),
    [
        ({"MPLBACKEND": "nonsense"}, 0, "one: computed"),
        ({"JAX_PLATFORMS": "cuda"}, 1, "one: failed: RuntimeError: JAX has no device, JAX_PLATFORMS is 'cuda'"),
        ({"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}, 2, "`--out` must be a path in the encoding"),
    ],
)
def test_an_environment_is_used_or_named(figures, tmp_path, monkeypatch, variables, status, said):
    figures.add("one")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    process = figures.process("--out", str(tmp_path / ("é" if status == 2 else "out")))
    err = process.communicate(timeout=600)[1]
    assert (process.returncode, "Traceback" in err) == (status, False), err
    assert said in err


@pytest.mark.slow
def test_help_loads_no_jax_and_listing_starts_no_backend():
    code = """
import contextlib, io, sys
from experiments.command import main
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
    main(["--help"])
assert "jax" not in sys.modules and "matplotlib" not in sys.modules
main(["--list"])
assert main(["--preset", "huge"]) == 2
import jax
assert not jax._src.xla_bridge.backends_are_initialized()
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=600)


def start(figures, tmp_path):
    """`python -m experiments` on made-up figures in a real process, caught in the middle of its second figure."""
    marker = tmp_path / "second.started"
    process = figures.process("--out", str(tmp_path / "out"), start_new_session=True)
    until(lambda: (marker.exists() and marker.read_text()) or process.poll() is not None)
    assert marker.exists(), process.communicate(timeout=600)
    return process, int(marker.read_text())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL], ids=str)
def test_stopped_in_the_middle_it_goes_on_from_there(figures, tmp_path, number):
    marker, report = str(tmp_path / "second.started"), str(tmp_path / "out" / "quick" / "report.html")
    wait = f"""import os, time
if not os.path.exists({marker!r}):
    while not os.path.exists({report!r}):  # what is written last of the first figure: the run is at rest then
        time.sleep(0.05)
    with open({marker!r}, 'w') as file:
        file.write(str(os.getpid()))
    time.sleep(900)"""
    figures.add("first", minutes=0.001).add("second", compute=wait, minutes=0.1)
    process, worker = start(figures, tmp_path)
    if number in (signal.SIGINT, signal.SIGHUP):
        os.killpg(process.pid, number)  # as a terminal does it: to all processes of the run
    else:
        process.send_signal(number)
    out, err = process.communicate(timeout=600)
    folder = tmp_path / "out" / "quick"
    assert process.returncode == (-number if number == signal.SIGKILL else 128 + number)
    if number != signal.SIGKILL:
        assert "1 of 2 figures, 1 published statement: 1 agrees; stopped before the end" in out
        assert "The exponent of first" in (folder / "report.html").read_text()
    assert "Traceback" not in err
    until(lambda: has_ended(worker), seconds=60)
    assert not list(folder.rglob("*.partial"))
    assert list(record.read(folder)) == ["first"]
    assert [path.name.split("-")[0] for path in folder.glob("data/*.npz")] == ["first"]
    (left := folder / ".report.html.1.partial").touch()  # what it leaves where it is killed while it writes
    assert main(["--out", str(tmp_path / "out")], figures.package) == 0
    assert not left.exists()
    assert sorted(figures.computed) == ["first", "second", "second"]
    assert list(record.read(folder)) == ["first", "second"]


def test_the_core_or_all_or_a_topic(figures, tmp_path):
    out = ["--out", str(tmp_path / "out")]
    figures.add("first", minutes=0.1, about=", core=True").add("second", minutes=0.2, topic="scale")
    figures.add("third", minutes=0.3, topic="scale")
    assert main(out, figures.package) == 0
    assert figures.computed == ["first"]
    assert main(["scale", *out], figures.package) == 0
    assert figures.computed == ["first", "second", "third"]
    assert main([*out, "--all", "--seed", "1"], figures.package) == 0
    assert figures.computed[3:] == ["first", "second", "third"]


def test_what_measures_time_comes_last_and_alone(figures, tmp_path):
    figures.add("clock", minutes=0.1, about=", alone=True").add("cheap", minutes=0.2).add("slow", minutes=0.3)
    assert main(["--out", str(tmp_path / "out")], figures.package) == 0
    assert figures.computed == ["cheap", "slow", "clock"]


def test_nothing_is_drawn_again_while_numbers_and_code_are_the_same(figures, tmp_path, monkeypatch):
    figures.add("one")
    out = ["--out", str(tmp_path / "out")]
    assert main(out, figures.package) == 0
    picture = tmp_path / "out" / "quick" / "one.png"
    before = picture.stat().st_mtime_ns
    assert main(out, figures.package) == 0
    assert picture.stat().st_mtime_ns == before
    figures.add("one", measure="data = dict(data)")  # other code: it may draw something else
    assert main([*out, "--replot"], figures.package) == 0
    assert picture.stat().st_mtime_ns > before
    assert figures.computed == ["one"]
    (tmp_path / "out" / "quick" / "one.dark.png").unlink()
    (tmp_path / "out" / "quick" / "report" / "one.drawn").write_bytes(b"\xff")  # no text at all
    assert main([*out, "--replot"], figures.package) == 0
    assert (tmp_path / "out" / "quick" / "one.dark.png").exists()
