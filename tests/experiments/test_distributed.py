"""`--distributed`: two real processes make a page; one is killed, and the same commands go on from what there is."""

import os
import signal
import subprocess
import sys

import jax
import pytest

from experiments import record
from experiments.command import main
from experiments.distributed import LOST
from rc_jax import ensemble
from tests.ensemble.test_distributed import ROOT, free_port
from tests.ensemble.worker import digest

RUN = "import sys\nfrom experiments.command import main\nsys.exit(main(sys.argv[2:], sys.argv[1]))"

TOGETHER = """
import hashlib, jax, os, pathlib, signal
from rc_jax import ensemble
from tests.ensemble.worker import digest
place, me = pathlib.Path({folder!r}), jax.process_index()
ensemble.run(jax.random.normal, jax.random.key(1), 64, batch_size=8)
if me == {dies} and not (place / "died").exists():
    (place / "died").touch()
    os.kill(os.getpid(), signal.SIGKILL)
found = ensemble.run(jax.random.normal, jax.random.key(0), 500, batch_size=8)
(place / f"digest-{{me}}").write_text(digest(found))
"""


def together(figures, out):
    """Two processes on loopback, as two people would type the two lines; the status and the errors of each."""
    address = f"127.0.0.1:{free_port()}"
    paths = os.pathsep.join([str(figures.folder), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": paths, "XLA_FLAGS": "", "JAX_PLATFORMS": "cpu"}
    options = ["--distributed", "--coordinator", address, "--processes", "2", "--out", str(out), "--patience", "20"]
    commands = [[sys.executable, "-c", RUN, figures.package, *options, "--process", str(i)] for i in range(2)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    running = [subprocess.Popen(command, **pipes) for command in commands]
    try:
        said = [each.communicate(timeout=240) for each in running]
    finally:
        for each in running:
            each.kill()
    return [(each.returncode, err) for each, (_, err) in zip(running, said, strict=True)]


@pytest.mark.parametrize("dies", [1, pytest.param(0, marks=pytest.mark.slow)])
def test_one_is_killed_and_the_same_commands_go_on(figures, tmp_path, dies):
    figures.add("together", compute=TOGETHER.format(folder=str(figures.folder), dies=dies), minutes=0.1)
    figures.add("apart", minutes=0.2).add("dear", minutes=3.0)
    said = together(figures, tmp_path / "out")
    assert said[dies][0] == 128 + signal.SIGKILL
    status, errors = said[1 - dies]
    assert status == LOST, errors
    assert errors.count("another process of this run has ended or does not answer") == 1
    assert "Check failure" not in errors and "Traceback" not in errors
    assert figures.computed == ["together"] * 2  # process 0 says what is next, and both began with it

    said = together(figures, tmp_path / "out")
    assert [status for status, _ in said] == [0, 0], said
    page = tmp_path / "out" / "quick"
    assert {name: entry.status for name, entry in record.read(page).items()} == dict.fromkeys(
        ("together", "apart", "dear"), "done"
    )
    assert sorted(figures.computed[2:]) == ["apart", "dear", "together", "together"]
    alone = digest(ensemble.run(jax.random.normal, jax.random.key(0), 500, batch_size=8))
    assert {(figures.folder / f"digest-{process}").read_text() for process in (0, 1)} == {alone}
    assert not list(page.rglob("*.claim")) and not list((page / "unfinished").glob("*"))


@pytest.mark.parametrize(
    "words, message",
    [
        (
            ["--distributed", "--coordinator", "here:1"],
            "`--coordinator`, `--processes` and `--process` must come together",
        ),
        (["--coordinator", "here:1", "--processes", "2", "--process", "0"], "must come together, with `--distributed`"),
        (
            ["--distributed", "--coordinator", "here:1", "--processes", "2", "--process", "2"],
            "a process be from 0 to 1",
        ),
        (
            ["--distributed", "--coordinator", "here", "--processes", "2", "--process", "0"],
            "must be HOST:PORT, got 'here'",
        ),
        (["--distributed", "--patience", "0"], "`--patience` must be >= 1, got 0"),
        (["--distributed", "--replot"], "`--replot` computes nothing to share"),
    ],
)
def test_bad_input(figures, tmp_path, capsys, words, message):
    figures.add("apart")
    assert main([*words, "--out", str(tmp_path / "out")], figures.package) == 2
    assert message in capsys.readouterr().err
