"""What the command line says: for programs, quietly, in ASCII, in a list, in colour."""

import io
import json
import os
import runpy
import subprocess
import sys
import types

import pytest

import experiments.command
from experiments.command import main
from experiments.ledger import record
from experiments.run.report import progress
from tests.experiments.conftest import strict_json


def test_the_summary_for_programs(figures, tmp_path, capsys):
    figures.add("bad", compute="raise ValueError('no such head')", minutes=0.001)
    figures.add("absent", compute="raise figure.Unavailable('no checkpoint')", minutes=0.002)
    figures.add("talks", compute="print('a library says something')", minutes=0.003)
    out = ["--preset", "smoke", "--out", str(tmp_path / "out"), "--json"]
    assert main(out, figures.package) == 1
    said, told = capsys.readouterr()
    answer = strict_json(said)
    assert said.isascii()
    assert "a library says something" in told and "bad: failed: ValueError: no such head" in told
    folder = tmp_path / "out" / "smoke"
    wanted = {"preset": "smoke", "seed": 0, "total": 3, "done": 1, "stopped": False}
    assert {name: answer[name] for name in wanted} == wanted
    assert answer["verdicts"]["agrees"] == 1 and sum(answer["verdicts"].values()) == 1
    assert answer["report"] == str(folder / "report.html") and os.path.exists(answer["report"])
    assert {name: each["status"] for name, each in answer["figures"].items()} == {
        "bad": "failed", "absent": "unavailable", "talks": "done",
    }  # fmt: skip
    assert answer["figures"]["bad"]["reason"] == "ValueError: no such head"
    assert answer["figures"]["bad"]["log"] == str(folder / "logs" / "bad.log") and os.path.exists(folder / "logs")
    talks = answer["figures"]["talks"]
    assert {str(folder / f"talks{end}") for end in (".png",)} <= set(talks["files"])
    assert isinstance(talks["seconds"], float) and 0 <= talks["seconds"] < 60 and not talks["loaded"]
    with open(answer["ledger"]) as ledger:
        assert talks["claims"] == json.load(ledger)["figures"]["talks"]["claims"] != []
    assert main(["talks", *out, "--replot"], figures.package) == 0
    assert json.loads(capsys.readouterr().out)["figures"]["talks"]["loaded"]


def test_the_list_for_readers_and_for_programs(figures, capsys):
    figures.add("one", minutes=0.25)
    (figures.path / "absent.py").write_text("import no_such_module")
    assert main(["--list"], figures.package) == 0
    out = capsys.readouterr().out
    assert "Title of one" in out and "0.25" in out and "cannot be used: ModuleNotFoundError" in out
    assert main(["--list", "--json"], figures.package) == 0
    one, absent = json.loads(capsys.readouterr().out)
    assert (one["name"], one["title"], one["minutes"]["quick"]) == ("one", "Title of one", 0.25)
    assert absent == {"name": "absent", "error": "ModuleNotFoundError: No module named 'no_such_module'"}
    assert figures.computed == []


def test_the_summary_has_sentences_and_says_what_failed_means(figures, tmp_path, capsys, monkeypatch):
    """A key such as `cube` says nothing to a reader, and a red word looks like an error of the program."""
    long = "The residual of a network without skips and without MLPs is cubed by every one of its layers, of any $d$."
    figures.add(
        "one",
        rows=f"""ROWS = (
    ledger.law("cube", {long!r}, lambda data: 2.0, (3, 3), proof="proved", interval_from="our tolerance"),
)""",
    )
    monkeypatch.setenv("COLUMNS", "70")
    assert main(["--out", str(tmp_path / "out")], figures.package) == 0
    out = capsys.readouterr().out
    assert long.replace("$", "") in " ".join(out.split()) and "cube " not in out
    assert "expected 3" in out and "measured 2" in out
    assert "failed: measured otherwise than this package had said; the program itself worked" in " ".join(out.split())
    assert "differs:" not in out
    assert max(len(line) for line in out.splitlines() if "report" not in line) <= 110


def test_a_misspelt_name_is_recognised(figures, capsys):
    figures.add("collapse_depth")
    assert main(["colapse_depth"], figures.package) == 2
    assert "unknown figure 'colapse_depth'; did you mean 'collapse_depth'?" in capsys.readouterr().err
    assert main(["sprasity"], figures.package) == 2
    assert "did you mean 'sparsity'?" in capsys.readouterr().err
    assert main(["--preset", "qick"], figures.package) == 2
    assert "presets are smoke, quick, full; did you mean 'quick'?" in capsys.readouterr().err


def test_the_bar_says_what_is_computed_and_how_long_the_rest_states_that_it_takes(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr(sys, "stderr", shown := Terminal())
    minutes = {"one": 2.0, "two": 0.5, "broken": float("inf")}
    with progress.Progress(minutes, quiet=False) as bar:
        bar.start("one")
        assert "0 of 3 figures, about 2 min left, now one" in shown.getvalue()
        bar.finish(record.Entry("one", "Title", record.FAILED, "command"))
        bar.show()
    assert "1 of 3 figures, about 30 s left" in shown.getvalue().rpartition("now one")[2]


def test_a_quiet_run_says_only_what_fails(figures, tmp_path, capsys):
    figures.add("bad", compute="raise ValueError('no such head')").add("good")
    out = ["--out", str(tmp_path / "out"), "--quiet"]
    assert main(["good", *out], figures.package) == 0
    said, err = capsys.readouterr()
    assert not err
    assert "1 of 1 figures" in said
    figures.add("good", compute="spec = spec")
    assert main(out, figures.package) == 1
    assert capsys.readouterr().err == "✗ bad: failed: ValueError: no such head\n"


def test_a_log_says_what_begins_and_what_ends(figures, tmp_path, capsys):
    figures.add("first", minutes=0.1).add("second", minutes=0.2)
    assert main(["--out", str(tmp_path / "out")], figures.package) == 0
    err = capsys.readouterr().err
    lines = err.splitlines()
    assert [line.strip().split(":")[0] for line in lines] == ["first", "✓ first", "second", "✓ second"]
    assert lines[0] == "  first: begun" and "(1 of 2, about " in lines[1] and "\r" not in err


def test_nothing_that_a_figure_says_acts_on_the_terminal(figures, tmp_path, capsys):
    escape = "\x1b]0;pwned\x07"
    figures.add("bad", compute=f"raise ValueError({escape!r})")
    out = tmp_path / f"a{escape}".replace("/", "")
    assert main(["--out", str(out)], figures.package) == 1
    said, err = capsys.readouterr()
    assert "\\x1b]0;pwned\\x07" in said and "\\x1b]0;pwned" in err
    assert "\x1b" not in said + err and "\x07" not in said + err


PROGRAM = """
from rc_jax.cli.shell import Program, guarded
import sys
sys.exit(guarded(Program("p", "p", "", {"": ()}, {}), lambda: print("x" * int(sys.argv[1])) or 0))
"""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no device that is full")
@pytest.mark.parametrize("length", [1, 100_000])
def test_output_that_cannot_be_written_is_one_line(length):
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", PROGRAM, str(length)], stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (1, b"p: error: cannot write the output: No space left on device\n")


def test_closed_output_is_one_line():
    words = ["sh", "-c", 'exec "$0" -c "$1" 1 >&-', sys.executable, PROGRAM]
    done = subprocess.run(words, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (1, b"p: error: there is no standard output to write to\n")


def test_nobody_is_told_where_standard_error_is_closed():
    """Neither this program nor its children fail for that."""
    child = "subprocess.run(['sh', '-c', 'echo told >&2']).returncode"
    program = PROGRAM.replace("import sys", "import subprocess, sys").replace(
        'print("x" * int(sys.argv[1]))', f"print(sys.stderr.isatty(), {child})"
    )
    words = ["sh", "-c", 'exec "$0" -c "$1" 2>&-', sys.executable, program]
    done = subprocess.run(words, stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (0, b"False 0\n")


def test_ctrl_c_while_the_program_is_being_loaded_is_one_line(monkeypatch, capsys):
    def stop():
        raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "experiments.command", types.SimpleNamespace(main=stop))
    with pytest.raises(SystemExit) as end:
        runpy.run_module("experiments", run_name="__main__")
    assert end.value.code == 130
    assert capsys.readouterr().err == "experiments: interrupted\n"
    monkeypatch.undo()
    monkeypatch.setattr(experiments.command, "check", lambda *_: stop())
    assert main([]) == 130
    assert capsys.readouterr().err == "experiments: interrupted\n"


@pytest.mark.slow
def test_a_terminal_that_knows_ascii_only(figures, tmp_path, monkeypatch):
    figures.add("one")
    written, told = io.BytesIO(), io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(told, encoding="ascii"))
    assert main(["--out", str(tmp_path / "out")], figures.package) == 0
    sys.stderr.flush()
    assert b"? agrees" in written.getvalue() and b"one: computed in" in told.getvalue()


def test_colour_only_on_a_terminal_and_never_with_no_color(monkeypatch):
    from experiments.run.report import terminal

    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert terminal.paint("x", "31") == "\033[31mx\033[0m"
    monkeypatch.setenv("TERM", "dumb")
    assert terminal.paint("x", "31") == "x"
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("NO_COLOR", "1")
    assert terminal.paint("x", "31") == "x"
