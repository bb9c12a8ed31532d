"""Whatever goes wrong: what is finished is kept, one line says what happened, and the status says what lacks."""

import errno
import fcntl
import io
import json
import os
import signal
import sys
import threading

import jax
import numpy as np
import pytest

from experiments import command
from experiments.command import main
from experiments.ledger import record
from experiments.lib import figure
from experiments.run import compute, executors, identity, store
from experiments.run.choices import Run
from experiments.run.report import html
from rc_jax._numerics import files
from tests.experiments.conftest import Here, has_ended, statuses, until

OTHERWISE = {
    "jax_default_prng_impl": "rbg",
    "jax_threefry_partitionable": False,
    "jax_random_seed_offset": 7,
    "jax_high_dynamic_range_gumbel": True,
    "jax_default_matmul_precision": "bfloat16",
    "jax_numpy_dtype_promotion": "strict",
    "jax_allow_f16_reductions": False,
    "jax_softmax_custom_jvp": True,
    "jax_disable_jit": True,
    "jax_disable_most_optimizations": True,
    "jax_enable_x64": True,
}
DRAWS = """import jax, jax.numpy as jnp
key = jax.random.key(0)
drawn = jax.random.normal(key, (7, 3)), jax.random.gumbel(key, (5,)), jax.random.split(key, 3)[2]._base_array
ones = jnp.ones(3) + jnp.arange(3), jax.jit(lambda x: jax.nn.softmax(x) @ x)(drawn[0][:3])
return {f"{index}": array for index, array in enumerate((*drawn, *ones))}"""


@pytest.mark.parametrize("name", OTHERWISE)
def test_a_setting_of_jax_changes_no_number(figures, name):
    assert OTHERWISE.keys() == identity.SETTINGS.keys() | {"jax_enable_x64"}
    figures.add("draws", compute=DRAWS)
    module, run = figure.load("draws", figures.package), Run(package=figures.package)
    known = identity.stem(run, "draws", module), identity.code_state(module)
    plain, before = compute.compute(run, "draws", *known), jax.config.values[name]
    jax.config.update(name, OTHERWISE[name])
    try:
        other = compute.compute(run, "draws", *known)
        assert jax.config.values[name] == OTHERWISE[name]
    finally:
        jax.config.update(name, before)
    assert plain.data is not None and other.data is not None, plain.trace + other.trace
    assert plain.data.keys() == other.data.keys()
    for array, same in zip(plain.data.values(), other.data.values(), strict=True):
        assert array.dtype == same.dtype
        np.testing.assert_array_equal(array, same)


def test_a_hasty_figure_is_compiled_with_few_optimisations(figures):
    few = "import jax\nreturn {'few': np.array(jax.config.values['jax_disable_most_optimizations'])}"
    figures.add("asks", compute=few).add("hastens", compute=few, about=", hasty=True")
    for name, few in (("asks", False), ("hastens", True)):
        module, run = figure.load(name, figures.package), Run(package=figures.package)
        outcome = compute.compute(run, name, identity.stem(run, name, module), identity.code_state(module))
        assert outcome.data is not None and bool(outcome.data["few"]) is few, outcome.trace
    assert jax.config.values["jax_disable_most_optimizations"] is False


def test_a_crash_and_an_exit_are_failures_of_their_figures(figures, processes, tmp_path, capfd):
    crash = f"import os, sys\nprint('about to crash')\nsys.stdout.flush()\nos.kill(os.getpid(), {int(signal.SIGSEGV)})"
    bar = "import sys, tqdm\nprint('spoken')\nlist(tqdm.tqdm(range(9), file=sys.stderr, disable=False))"
    left = tmp_path / "left"  # what a figure leaves running is not waited for, and ends with it
    bar += "\nimport os, pathlib, time\nif not (child := os.fork()):\n    time.sleep(300)"
    bar += f"\npathlib.Path({str(left)!r}).write_text(str(child))"
    figures.add("crashes", compute=crash, minutes=0.001).add("exits", compute="raise SystemExit(3)", minutes=0.002)
    figures.add("talks", compute=bar, minutes=0.003)
    assert main(["--out", str(tmp_path / "out"), "--quiet"], figures.package) == 1
    until(lambda: has_ended(left.read_text()), seconds=60)
    folder = tmp_path / "out" / "quick"
    assert statuses(folder) == {"crashes": "failed", "exits": "failed", "talks": "done"}
    reasons = {name: entry.reason for name, entry in record.read(folder).items()}
    assert reasons["crashes"] == "the process that computed it has died: a crash, or too little memory"
    assert reasons["exits"] == "SystemExit: 3"
    log = (folder / "logs" / "crashes.log").read_text()
    assert "about to crash" in log and "Segmentation fault" in log and "Died" in log
    assert "Title of crashes" in (folder / "report.html").read_text()
    assert not (folder / "logs" / "talks.log").exists()
    out, err = capfd.readouterr()
    assert "spoken" not in out + err
    assert sorted(line.partition(":")[0] for line in err.splitlines()) == ["✗ crashes", "✗ exits"]
    assert sorted(figures.computed) == ["crashes", "exits", "talks"]
    kept = {path.relative_to(folder).as_posix().split("-")[0] for path in folder.rglob("*") if path.is_file()}
    assert kept == {  # and no compiled program, which nobody could check
        ".lock", "claims.json", "report.html", "talks.png", "talks.dark.png", "talks.pdf", "report/talks.webp",
        "report/talks.dark.webp", "report/talks.drawn", "data/talks", "logs/crashes.log", "logs/exits.log",
    }  # fmt: skip


def test_the_log_of_a_failure_goes_when_the_figure_is_made(figures, tmp_path):
    figures.add("one", compute="raise ValueError('no')")
    out, log = ["--out", str(tmp_path / "out")], tmp_path / "out" / "quick" / "logs" / "one.log"
    assert main(out, figures.package) == 1
    assert "ValueError: no" in log.read_text()
    figures.add("one")
    assert main(out, figures.package) == 0
    assert not log.exists()


def full(monkeypatch, name):
    """No space for a figure's arrays, nor for anything after them."""
    write, filled = files.write_whole, []

    def refuse(path, content):
        if filled or path.name.startswith(f"{name}-"):
            filled.append(path)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, content)

    monkeypatch.setattr(store, "write", refuse)
    monkeypatch.setattr(files, "write_whole", refuse)


def test_a_full_disk(figures, tmp_path, monkeypatch, capsys):
    figures.add("first", minutes=0.1).add("second", minutes=0.2)
    out = ["--out", str(tmp_path / "out")]
    with monkeypatch.context() as patch:
        full(patch, "second")
        assert main([*out, "--json"], figures.package) == 1
    said, err = capsys.readouterr()
    assert json.loads(said)["done"] == 1
    assert err.splitlines()[-1] == (
        f"experiments: error: cannot write to {tmp_path / 'out' / 'quick'}: No space left on device"
    )
    assert statuses(tmp_path / "out" / "quick") == {"first": "done"}
    assert main(out, figures.package) == 0
    assert figures.computed == ["first", "second", "second"]
    assert statuses(tmp_path / "out" / "quick") == {"first": "done", "second": "done"}


FORGED = ["not json", "[]", "[" * 100_000, '{"figures": {"one": 5}}', None]


@pytest.mark.parametrize("content", FORGED)
def test_whatever_stands_in_a_ledger_it_is_made_again_of_what_is_stored(figures, tmp_path, capsys, content):
    """None: a verdict and a number are forged, everything else is as a run wrote it."""
    figures.add("one", minutes=0.1).add("two", minutes=0.2)
    out, folder = ["--out", str(tmp_path / "out")], tmp_path / "out" / "quick"
    assert main(out, figures.package) == 0
    whole = (folder / "claims.json").read_text()
    forged = json.loads(whole)
    forged["figures"]["two"]["claims"][0] |= {"verdict": "differs", "measured": 7.0, "shown": "7"}
    (folder / "claims.json").write_text(json.dumps(forged) if content is None else content)
    assert main(["one", *out], figures.package) == 0
    assert (folder / "claims.json").read_text() == whole
    assert "differs" not in (folder / "claims.json").read_text()
    assert "agrees" in capsys.readouterr().out

    # A result that is damaged is that of no figure, until its own is made again.
    (arrays,) = folder.glob("data/two-*.npz")
    arrays.write_bytes(b"")
    assert main(["one", *out], figures.package) == 0
    assert list(statuses(folder)) == ["one"]
    assert "not made yet at this preset" in (folder / "report.html").read_text()
    assert figures.computed == ["one", "two"]


ROW = """ROWS = (
    ledger.law("kept", "It is 1.", lambda data: 1.0, {interval}, proof="measured", interval_from="our tolerance"),
)"""


def test_rows_of_stored_numbers_are_judged_again_by_a_run_of_another_figure(figures, tmp_path, capsys):
    figures.add("a", rows=ROW.format(interval="(0.9, 1.1)")).add("b")
    out, folder = ["--out", str(tmp_path / "out")], tmp_path / "out" / "quick"
    assert main(out, figures.package) == 0
    assert [claim.verdict for claim in record.read(folder)["a"].claims] == ["held"]
    figures.add("a", rows=ROW.format(interval="(1.2, 1.4)"))
    capsys.readouterr()
    assert main(["b", *out], figures.package) == 0
    assert [claim.verdict for claim in record.read(folder)["a"].claims] == ["failed"]
    assert "1 of 1 figures" in capsys.readouterr().out
    assert (folder / "report.html").read_text().count("The code has changed since these numbers were computed") == 1
    assert figures.computed == ["a", "b"]


@pytest.mark.parametrize("value", [None, 0, {}, "text", {"data": {}}])
def test_a_worker_that_returns_something_else_is_a_failure_of_its_figure(figures, tmp_path, monkeypatch, value):
    class Other(Here):
        def submit(self, fn, /, *args, **kwargs):
            return super().submit(lambda: value)

    monkeypatch.setattr(executors, "Processes", Other)
    figures.add("one")
    assert main(["--out", str(tmp_path / "out")], figures.package) == 1
    reason = record.read(tmp_path / "out" / "quick")["one"].reason
    assert reason == f"TypeError: the worker must return an Outcome, got {type(value).__name__}"
    assert figures.computed == []


def test_asked_to_stop_while_the_report_is_written(figures, tmp_path, monkeypatch, capsys):
    render, asked = html.render, []

    def stop_once(*arguments):
        if not asked:
            asked.append(True)
            os.kill(os.getpid(), signal.SIGTERM)
        return render(*arguments)

    figures.add("one")
    monkeypatch.setattr(html, "render", stop_once)
    assert main(["--out", str(tmp_path / "out")], figures.package) == 128 + signal.SIGTERM
    report = tmp_path / "out" / "quick" / "report.html"
    assert "Title of one" in report.read_text()
    assert f"report: {report}" in capsys.readouterr().out


def test_asked_to_stop_where_a_handler_could_not_raise(figures, tmp_path, capsys):
    late = "import signal\nclass Late:\n    def __del__(self):\n        signal.raise_signal(signal.SIGTERM)\nLate()"
    figures.add("first", measure=late, minutes=0.1).add("second", minutes=0.2)
    assert main(["--out", str(tmp_path / "out"), "--quiet"], figures.package) == 128 + signal.SIGTERM
    assert figures.computed == ["first"]
    assert statuses(tmp_path / "out" / "quick") == {"first": "done"}
    said = capsys.readouterr()
    assert "stopped before the end" in said.out and said.err == ""


class Gone(io.StringIO):
    """A terminal that has been closed."""

    def write(self, text):
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_figures_are_made_where_nobody_reads_the_progress(figures, tmp_path, monkeypatch):
    figures.add("one").add("two")
    monkeypatch.setattr(sys, "stderr", Gone())
    assert main(["--out", str(tmp_path / "out")], figures.package) == 0
    assert statuses(tmp_path / "out" / "quick") == {"one": "done", "two": "done"}


def test_a_second_run_waits_for_the_folder_and_may_be_stopped(figures, tmp_path, capsys):
    figures.add("one")
    held = files.hold(tmp_path / "out" / "quick" / ".lock")
    threading.Timer(0.5, held.release).start()
    assert main(["--out", str(tmp_path / "out"), "--quiet"], figures.package) == 0
    assert capsys.readouterr().err == f"experiments: waiting for another run in {tmp_path / 'out' / 'quick'} to end\n"
    held = files.hold(tmp_path / "out" / "quick" / ".lock")
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM)).start()
    assert main(["--out", str(tmp_path / "out"), "--quiet"], figures.package) == 128 + signal.SIGTERM
    held.release()
    assert figures.computed == ["one"]


@pytest.mark.slow
def test_two_runs_into_one_folder(figures, tmp_path):
    for number in range(3):
        figures.add(f"figure_{number}", compute="import time\ntime.sleep(1)", minutes=0.1)
    runs = [figures.process("--out", str(tmp_path / "out"), computes=True) for _ in range(2)]
    said = [each.communicate(timeout=600) for each in runs]
    assert [each.returncode for each in runs] == [0, 0], said
    assert sorted(figures.computed) == [f"figure_{number}" for number in range(3)]
    assert list(statuses(tmp_path / "out" / "quick")) == sorted(figures.computed)


def test_a_lock_is_held_once(tmp_path):
    held = files.hold(tmp_path / "x" / "lock")
    assert held is not None
    assert files.hold(tmp_path / "x" / "lock") is None
    held.release()
    again = files.hold(tmp_path / "x" / "lock")
    assert again is not None
    again.release()
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError):
        files.hold(tmp_path / "file" / "lock")


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK])
def test_a_file_system_without_locks_is_told_once(figures, tmp_path, monkeypatch, caplog, code):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    figures.add("one").add("two")
    monkeypatch.setattr(fcntl, "flock", refuse)
    assert main(["--out", str(tmp_path / "out")], figures.package) == 0
    told = [line for line in caplog.messages if "is on a file system without locks" in line]
    assert len(told) == 1
    assert figures.computed == ["one", "two"]


def test_the_command_waits_for_nothing_that_it_need_not(figures, tmp_path, monkeypatch):
    """All is stored: no executor is made."""
    figures.add("one")
    assert main(["--out", str(tmp_path / "out")], figures.package) == 0
    monkeypatch.setattr(command, "_executor", lambda address: lambda: pytest.fail("an executor was made"))
    assert main(["--out", str(tmp_path / "out")], figures.package) == 0


def test_a_new_row_without_labels_fails_before_the_computing(figures, monkeypatch):
    """The smoke preset of three points is computed, the longer one of five is not."""
    sizes = "with open({!r}, 'a') as file:\n    file.write(f'{{spec.points}}\\n')"
    file = figures.folder / "sizes.txt"
    figures.add("unnamed", compute=sizes.format(str(file)), measure="return data['y']")
    module, run = figure.load("unnamed", figures.package), Run(package=figures.package)
    known = identity.stem(run, "unnamed", module), identity.code_state(module)
    monkeypatch.setattr(compute, "known_rows", lambda run: frozenset({"another-row"}))
    outcome = compute.compute(run, "unnamed", *known)
    assert outcome.data is None and outcome.reason == (
        "ValueError: row unnamed-exponent: `where` must have one label for each of 3 points, got 0"
    )
    assert file.read_text().split() == ["3"]
    monkeypatch.setattr(compute, "known_rows", lambda run: frozenset({"unnamed-exponent"}))
    assert compute.compute(run, "unnamed", *known).data is not None
    assert file.read_text().split() == ["3", "5"]


def test_rows_of_the_docs_are_known():
    known = compute.known_rows(Run())
    assert known and "bound-constant" in known
    assert compute.known_rows(Run(package="elsewhere")) is None
