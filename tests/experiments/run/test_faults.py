"""Whatever goes wrong: what is finished is kept, one line says what happened, and the status says what lacks."""

import dataclasses
import errno
import fcntl
import io
import json
import os
import signal
import sys
import time
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from experiments.command import main
from experiments.ledger import record
from experiments.lib import figure
from experiments.run import identity, pool, runner, store, work
from experiments.run.choices import Run
from experiments.run.progress import Progress
from experiments.run.report import html
from rc_jax._numerics import files
from tests.experiments.conftest import PROCESSES, Here, statuses


@pytest.fixture
def shared(figures, monkeypatch):
    """Made-up figures that the processes of a run can import too."""
    monkeypatch.setenv("PYTHONPATH", figures.environment["PYTHONPATH"])
    return figures


@pytest.mark.parametrize(("slots", "order"), [(1, "abcdefghijk"), (2, "akbjcidhgfe"), (3, "akjbihcgfde")])
def test_short_figures_are_early_and_long_ones_are_not_left_for_the_end(figures, monkeypatch, slots, order):
    for minutes, name in enumerate("abcdefghijk", 1):
        figures.add(name, minutes=minutes)
    monkeypatch.setattr(Here, "slots", slots, raising=False)
    registry, begun = figure.discover(figures.package), []
    progress = SimpleNamespace(start=begun.append, say=print)
    queue = runner.Queue(Run(figures.folder / "out", package=figures.package), registry, Here, progress)
    queue.waiting += registry
    assert sorted(name for name, _ in queue.results()) == sorted(registry)
    assert "".join(begun) == order


@pytest.mark.parametrize(("user", "threads"), [(None, "1"), ("4", "4")])
def test_a_process_has_one_thread_of_blas_unless_the_user_says_otherwise(monkeypatch, user, threads):
    name = "OPENBLAS_NUM_THREADS"
    monkeypatch.delenv(name) if user is None else monkeypatch.setenv(name, user)
    executor = PROCESSES()
    assert executor.submit(os.getenv, name).result() == threads
    executor.shutdown()
    assert os.environ.get(name) == user


def test_a_crash_and_an_exit_are_failures_of_their_figures(shared, processes, tmp_path, capfd):
    crash = f"import os, sys\nprint('about to crash')\nsys.stdout.flush()\nos.kill(os.getpid(), {int(signal.SIGSEGV)})"
    bar = "import sys, tqdm\nprint('spoken')\nlist(tqdm.tqdm(range(9), file=sys.stderr, disable=False))"
    late = tmp_path / "late"  # what a figure leaves running is not waited for
    bar += f"\nimport threading\nthreading.Timer(120, lambda: open({str(late)!r}, 'w')).start()"
    shared.add("crashes", compute=crash, minutes=0.001).add("exits", compute="raise SystemExit(3)", minutes=0.002)
    shared.add("talks", compute=bar, minutes=0.003)
    assert main(["--out", str(tmp_path / "out"), "--quiet"], shared.package) == 1
    folder = tmp_path / "out" / "quick"
    assert statuses(folder) == {"crashes": "failed", "exits": "failed", "talks": "done"}
    reasons = {name: entry.reason for name, entry in record.read(folder).items()}
    assert reasons["crashes"] == "the process that computed it has died: a crash, or too little memory"
    assert reasons["exits"] == "SystemExit: 3"
    log = (folder / "logs" / "crashes.log").read_text()
    assert "about to crash" in log and "Segmentation fault" in log and "BrokenProcessPool" in log
    assert "Title of crashes" in (folder / "report.html").read_text()
    assert not (folder / "logs" / "talks.log").exists()
    out, err = capfd.readouterr()
    assert "spoken" not in out + err
    assert sorted(line.partition(":")[0] for line in err.splitlines()) == ["✗ crashes", "✗ exits"]
    assert sorted(shared.computed) == ["crashes", "exits", "talks"]
    assert not late.exists()


@pytest.mark.slow
def test_a_process_that_is_ended_leaves_nothing_of_the_system_s(figures, tmp_path):
    """A bar of tqdm takes a semaphore, of which Python complains when all has ended."""
    figures.add("bars", compute="import sys, tqdm\nlist(tqdm.tqdm(range(9), file=sys.stderr, disable=False))")
    process = figures.process("--out", str(tmp_path / "out"), "--quiet")
    assert process.communicate(timeout=600)[1] == "" and process.returncode == 0


def test_no_process_hears_of_ctrl_c_from_its_start():
    executor = PROCESSES()
    try:
        assert signal.SIGINT in executor.submit(signal.pthread_sigmask, signal.SIG_BLOCK, ()).result()
        assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        executor.shutdown(wait=False)


def test_compiled_programs_are_kept_where_the_user_says_or_beside_the_results(tmp_path):
    names = ["compilation_cache_dir", "persistent_cache_min_compile_time_secs", "persistent_cache_min_entry_size_bytes"]
    before = {f"jax_{name}": getattr(jax.config, f"jax_{name}") for name in names}
    try:
        jax.config.update("jax_compilation_cache_dir", "mine")
        work._keep_programs(tmp_path / "programs")
        assert jax.config.jax_compilation_cache_dir == "mine"
        jax.config.update("jax_compilation_cache_dir", None)
        work._keep_programs(tmp_path / "programs")
        assert jax.config.jax_compilation_cache_dir == str(tmp_path / "programs")
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


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
    assert OTHERWISE.keys() == work.SETTINGS.keys() | {"jax_enable_x64"}
    figures.add("draws", compute=DRAWS)
    module, run = figure.load("draws", figures.package), Run(package=figures.package)
    known = identity.stem(run, "draws", module), identity.code_state(module)
    plain, before = work.compute(run, "draws", *known), jax.config.values[name]
    jax.config.update(name, OTHERWISE[name])
    try:
        other = work.compute(run, "draws", *known)
        assert jax.config.values[name] == OTHERWISE[name]
    finally:
        jax.config.update(name, before)
    assert plain.data is not None and other.data is not None, plain.trace + other.trace
    assert plain.data.keys() == other.data.keys()
    for array, same in zip(plain.data.values(), other.data.values(), strict=True):
        assert array.dtype == same.dtype
        np.testing.assert_array_equal(array, same)


def test_a_hasty_figure_is_compiled_with_few_optimisations_and_shares_no_program(figures):
    traced = []
    program = jax.jit(lambda x: traced.append(x) or x + 1)
    few = "import jax\nreturn {'few': np.array(jax.config.values['jax_disable_most_optimizations'])}"
    figures.add("asks", compute=few).add("hastens", compute=few, about=", hasty=True")
    for name, few, traces in (("asks", False, 1), ("hastens", True, 2), ("asks", False, 2)):
        program(1.0)
        module, run = figure.load(name, figures.package), Run(package=figures.package)
        outcome = work.compute(run, name, identity.stem(run, name, module), identity.code_state(module))
        assert outcome.data is not None, outcome.trace
        assert bool(outcome.data["few"]) is few
        program(1.0)
        assert len(traced) == traces
    assert jax.config.values["jax_disable_most_optimizations"] is False


def test_what_a_figure_does_to_its_process_is_undone_and_what_it_leaves_running_hides_no_crash(
    shared, processes, tmp_path, monkeypatch
):
    """A child that a figure forked holds the pipes of the process that computes."""
    monkeypatch.setattr(PROCESSES, "slots", 1)
    alive = tmp_path / "alive"
    leaves = f"""import os, time
if os.fork() == 0:
    time.sleep(300)
    open({str(alive)!r}, "w").close()
    os._exit(0)
os.umask(0o777)
os.chdir("/")
os.environ["LEFT"] = "1"
"""
    shared.add("leaves", compute=leaves, minutes=0.01)
    shared.add("looks", compute="import os\nassert os.getcwd() != '/' and 'LEFT' not in os.environ", minutes=0.02)
    shared.add("raises", compute="raise ValueError('no')", minutes=0.03)
    shared.add("dies", compute="import os\nos.kill(os.getpid(), 9)", minutes=0.04, about=", alone=True")
    begun = time.monotonic()
    assert main(["--out", str(tmp_path / "out"), "--quiet"], shared.package) == 1
    assert time.monotonic() - begun < 200
    folder = tmp_path / "out" / "quick"
    assert statuses(folder) == {"leaves": "done", "looks": "done", "raises": "failed", "dies": "failed"}
    assert (folder / "logs" / "raises.log").stat().st_mode & 0o600 == 0o600
    assert not alive.exists()


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
    write, filled = store.write, []

    def refuse(path, content):
        if filled or path.name.startswith(f"{name}-"):
            filled.append(path)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(path, content)

    monkeypatch.setattr(store, "write", refuse)


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


def test_a_ledger_that_cannot_be_read_is_kept_and_made_again_of_what_is_stored(figures, tmp_path, capsys):
    figures.add("one", minutes=0.1).add("two", minutes=0.2).add("three", minutes=0.3)
    out, folder = ["--out", str(tmp_path / "out")], tmp_path / "out" / "quick"
    assert main(out, figures.package) == 0
    (folder / "claims.json").write_text("not json")
    capsys.readouterr()
    assert main(["one", *out, "--replot"], figures.package) == 0
    said = capsys.readouterr()
    assert "kept as claims.json.damaged; stored figures are judged again" in said.err
    assert "1 of 1 figures" in said.out
    assert (folder / "claims.json.damaged").read_text() == "not json"
    assert list(statuses(folder)) == ["one", "two", "three"]
    (folder / "claims.json").write_text("[]")
    (arrays,) = folder.glob("data/two-*.npz")
    arrays.write_bytes(b"")
    assert main(["one", *out], figures.package) == 0
    assert list(statuses(folder)) == ["one", "three"]
    assert "not made yet at this preset" in (folder / "report.html").read_text()
    assert figures.computed == ["one", "two", "three"]


WRONG = {
    "provenance": ["x", None, [1], {"date": 5}, {"spec": "x"}, {"seconds": "x"}, {"device": [1]}],
    "title": [5, None],
    "topic": [["scale"]],
    "warnings": [5, [5]],
    "status": [None],
    "claims": [5, [5], {"a": 1}],
    "reason": [{"a": 1}],
}
WRONG_ROW = {
    "measured": [[1], {"a": 1}, True],
    "standard_error": ["x", [1]],
    "interval": [[["a", "b"]], [[1]], 5, [[1, 2, 3]], [[{}, {}]]],
    "source": [None, ["dong2021"], "nobody"],
    "neighbours": [5, ["nobody"], [["noci2022"]]],
    "statement": [5],
    "kind": ["thought"],
    "verdict": [None, ["held"]],
    "note": [None],
}


def test_a_ledger_of_wrong_types_is_kept_and_made_again(figures, tmp_path, capsys):
    """Every field that is read, with values of other types: the report is written, and the file set aside."""
    figures.add("one")
    out, folder = ["--out", str(tmp_path / "out"), "--quiet"], tmp_path / "out" / "quick"
    assert main(out, figures.package) == 0
    whole = (folder / "claims.json").read_text()
    cases = [(field, value, False) for field, values in WRONG.items() for value in values]
    cases += [(field, value, True) for field, values in WRONG_ROW.items() for value in values]
    for field, value, in_row in cases:
        content = json.loads(whole)
        entry = content["figures"]["one"]
        (entry["claims"][0] if in_row else entry)[field] = value
        (folder / "claims.json").write_text(json.dumps(content))
        try:
            record.read(folder)
        except record.Damaged:
            continue
        pytest.fail(f"{field} = {value!r} was read")
    (folder / "claims.json").write_text("[" * 100_000)
    assert main(out, figures.package) == 0
    assert "(RecursionError): kept as claims.json.damaged" in capsys.readouterr().err
    assert json.loads((folder / "claims.json").read_text())["figures"].keys() == {"one"}
    assert (folder / "claims.json.damaged").exists()


@pytest.mark.parametrize("value", [None, 0, {}, "text", {"data": {}}])
def test_a_worker_that_returns_something_else_is_a_failure_of_its_figure(figures, tmp_path, monkeypatch, value):
    class Other(Here):
        def submit(self, fn, /, *args, **kwargs):
            return super().submit(lambda: value)

    monkeypatch.setattr(pool, "Processes", Other)
    figures.add("one")
    assert main(["--out", str(tmp_path / "out")], figures.package) == 1
    reason = record.read(tmp_path / "out" / "quick")["one"].reason
    assert reason == f"TypeError: the worker must return an Outcome, got {type(value).__name__}"
    assert figures.computed == []


def test_a_ledger_that_somebody_damages_meanwhile(figures, tmp_path, capsys):
    folder = tmp_path / "out" / "quick"
    figures.add("first", minutes=0.1)
    damage = f"import pathlib\npathlib.Path({str(folder / 'claims.json')!r}).write_text('not json')"
    figures.add("second", compute=damage, minutes=0.2)
    assert main(["--out", str(tmp_path / "out")], figures.package) == 0
    assert "(JSONDecodeError): kept as claims.json.damaged" in capsys.readouterr().err
    assert main(["--out", str(tmp_path / "out")], figures.package) == 0
    assert statuses(folder) == {"first": "done", "second": "done"}
    assert figures.computed == ["first", "second"]


ROW = """ROWS = (
    ledger.law("kept", "It is 1.", lambda data: 1.0, {interval}, proof="measured", interval_from="our tolerance"),
)"""


def test_rows_that_older_code_judged_are_judged_again_by_a_run_of_another_figure(figures, tmp_path, capsys):
    figures.add("a", rows=ROW.format(interval="(0.9, 1.1)")).add("b")
    out, folder = ["--out", str(tmp_path / "out")], tmp_path / "out" / "quick"
    assert main(out, figures.package) == 0
    assert [claim.verdict for claim in record.read(folder)["a"].claims] == ["held"]
    figures.add("a", rows=ROW.format(interval="(1.2, 1.4)"))
    capsys.readouterr()
    assert main(["b", *out], figures.package) == 0
    assert [claim.verdict for claim in record.read(folder)["a"].claims] == ["failed"]
    assert "1 of 1 figures" in capsys.readouterr().out
    assert figures.computed == ["a", "b"]

    # Where the arrays are gone nothing can be judged, and the page says so.
    for arrays in (folder / "data").glob("a-*"):
        arrays.unlink()
    figures.add("a", rows=ROW.format(interval="(0.9, 1.1)"))
    assert main(["b", *out], figures.package) == 0
    page = (folder / "report.html").read_text()
    assert page.count("The code has changed since these numbers were computed or judged") == 1


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


def test_what_another_run_is_at_is_waited_for_and_loaded(figures, tmp_path, monkeypatch, capsys):
    figures.add("one", minutes=0.1).add("two", minutes=0.2)
    run = runner.Run(tmp_path / "out", package=figures.package)
    module = figure.load("one", figures.package)
    held = files.hold(run.data / f".{identity.stem(run, 'one', module)}.lock")

    def other(_):
        """The other run ends while this one waits for it."""
        assert runner.make(run, "one", module).status == record.DONE
        held.release()

    monkeypatch.setattr(runner, "time", SimpleNamespace(sleep=other))
    assert main(["--out", str(tmp_path / "out")], figures.package) == 0
    err = capsys.readouterr().err
    assert err.count("one: another run is at it; waiting for its result") == 1
    assert "one: loaded" in err and "two: computed" in err
    assert sorted(figures.computed) == ["one", "two"]


@pytest.mark.slow
def test_two_runs_into_one_folder(figures, tmp_path):
    for number in range(4):
        figures.add(f"figure_{number}", compute="import time\ntime.sleep(1)", minutes=0.1)
    runs = [figures.process("--out", str(tmp_path / "out"), computes=True) for _ in range(2)]
    said = [each.communicate(timeout=600) for each in runs]
    assert [each.returncode for each in runs] == [0, 0], said
    assert sorted(figures.computed) == [f"figure_{number}" for number in range(4)]
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
    assert len(told) == len(set(told)) <= 2  # the folder of results, and the one of unfinished work
    assert figures.computed == ["one", "two"]


def test_what_another_run_stored_since_this_one_looked_is_loaded(figures, tmp_path):
    """The other run begins, stores and lets go between this run's first look and its turn."""
    figures.add("one")
    run = dataclasses.replace(Run(), out=tmp_path / "out", package=figures.package, quiet=True)
    registry = figure.discover(figures.package)
    with Progress({"one": 0.01}, quiet=True) as progress:
        queue = runner.Queue(run, registry, lambda: pytest.fail("computed again"), progress)
        queue.add("one")
        assert main(["--out", str(tmp_path / "out"), "--quiet"], figures.package) == 0
        assert list(queue.results()) == [("one", None)]
        queue.stop()
    assert figures.computed == ["one"]
