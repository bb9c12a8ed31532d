"""Common to every command line: help, version, one line for bad input, any terminal, a reader that goes."""

import io
import os
import pathlib
import shlex
import subprocess
import sys

import pytest

import experiments.benchmarks.__main__
import experiments.command
import rc_jax
import rc_jax.cli.command
from rc_jax.cli import shell
from rc_jax.cli.arguments import Usage

ROOT = pathlib.Path(__file__).parent.parent.parent
COMMANDS = {
    "rc_jax.cli": (rc_jax.cli.command, "command_line.md"),
    "experiments": (experiments.command, "experiments.md"),
    "experiments.benchmarks": (experiments.benchmarks.__main__, "experiments.md"),
}


@pytest.fixture(params=COMMANDS)
def command(request):
    return COMMANDS[request.param][0]


def parse(command, words):
    kind = rc_jax.cli.command.Command if command is rc_jax.cli.command else command.Arguments
    return shell.read(command.PROGRAM, kind, words)


def test_help_is_plain_and_ends_with_examples_and_statuses(command, capsys, monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    program = command.PROGRAM
    for name in ("", *filter(None, program.examples)):
        assert command.main([name, "--help"] if name else ["--help"]) == 0
        out, err = capsys.readouterr()
        assert not err
        assert "\x1b" not in out
        head, _, rest = out.partition(" examples\n")
        examples, _, statuses = rest.partition("\n exit status\n")
        assert head.startswith(f"usage: {program.name}") and "--version" in head
        wanted = program.examples[name] if name else [each for group in program.examples.values() for each in group]
        assert examples.splitlines() == [f"  {program.name} {example}".rstrip() for example in wanted]
        assert max(map(len, examples.splitlines())) <= 80  # to be copied, and so on one line
        assert [line.split()[0] for line in statuses.splitlines()] == [str(number) for number in program.statuses]


def test_examples_parse(command):
    examples = [each for group in command.PROGRAM.examples.values() for each in group]
    assert len(examples) >= 5
    for example in examples:
        assert parse(command, shlex.split(example)) is not None, example


def test_version(command, capsys):
    for words in (["--version"], [next(iter(command.PROGRAM.examples)), "--version"]):
        assert command.main([word for word in words if word]) == 0
        assert capsys.readouterr() == (f"{command.PROGRAM.name} {rc_jax.__version__}\n", "")


def test_what_does_not_parse_is_one_line_and_status_two(command, capsys):
    assert command.main(["--no-such-option"]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.startswith(f"{command.PROGRAM.label}: error: ") and err.count("\n") == 1
    assert "--no-such-option" in err and f"see {command.PROGRAM.name} --help" in err


@pytest.mark.parametrize("name", COMMANDS)
def test_every_exit_status_is_documented(name):
    command, page = COMMANDS[name]
    text = (ROOT / "docs" / page).read_text("utf-8")
    for number in command.PROGRAM.statuses:
        assert f"| {number} |" in text, (page, number)


def test_statuses(capsys):
    program = experiments.command.PROGRAM
    assert shell.guarded(program, lambda: 75) == 75

    def stop(error):
        raise error

    assert shell.guarded(program, lambda: stop(Usage("`--seed` must be small, got 9"))) == 2
    assert capsys.readouterr().err == "experiments: error: `--seed` must be small, got 9\n"
    assert shell.guarded(program, lambda: stop(KeyboardInterrupt())) == 130
    assert capsys.readouterr() == ("", "")
    with pytest.raises(ZeroDivisionError):  # a mistake of ours is no bad input
        shell.guarded(program, lambda: stop(ZeroDivisionError()))


@pytest.mark.parametrize("module", COMMANDS)
def test_a_reader_that_has_gone_is_no_error(module):
    read, write = os.pipe()
    os.close(read)
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, "--help"], stdout=write, stderr=subprocess.PIPE, text=True, cwd=ROOT
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


@pytest.mark.parametrize("module", COMMANDS)
def test_a_terminal_that_knows_ascii_only(module):
    environment = {**os.environ, "PYTHONIOENCODING": "ascii", "LANG": "C", "LC_ALL": "C"}
    words = [sys.executable, "-m", module]
    done = subprocess.run([*words, "--help"], capture_output=True, env=environment, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii() and b"?" in done.stdout


def test_answers_on_a_terminal_that_knows_ascii_only(monkeypatch):
    for words in (["sparsity", "exponential"], ["sparsity", "exponential", "--json"]):
        written = io.BytesIO()
        monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="ascii"))
        assert rc_jax.cli.command.main(words) == 0
        assert b"0.60653" in written.getvalue()


def test_bad_input_does_not_act_on_the_terminal(capsys):
    def body():
        raise Usage("no folder \x1b]0;pwned\x07\u202e")

    assert shell.guarded(rc_jax.cli.command.PROGRAM, body) == shell.BAD_INPUT
    assert capsys.readouterr().err == "rc-jax: error: no folder \\x1b]0;pwned\\x07\\u202e\n"
