"""`--checkpoint FOLDER`: which figures get it, what is refused, and that a result belongs to what the files hold."""

import os
import subprocess
import sys

import pytest

from experiments.command import main
from experiments.ledger import record
from experiments.lib import checkpoints, figure
from experiments.run import identity
from tests.experiments.conftest import checkpoint


def pages(out):
    return sorted(path.name.rpartition("-")[0] or path.name for path in out.iterdir())


def test_only_figures_that_read_one_are_made_and_get_the_folders(figures, tmp_path, capsys):
    figures.add("reader", reads=True)
    figures.add("other")
    a, b, out = checkpoint(tmp_path / "bert"), checkpoint(tmp_path / "gpt2", "other weights"), tmp_path / "out"
    words = ["--checkpoint", a, "--checkpoint", b, "--out", str(out)]
    assert main(words, figures.package) == 0
    assert figures.computed == ["reader"]
    assert figures.given == [(a, b)]
    (page,) = out.iterdir()
    assert page.name.startswith("quick-bert+gpt2-")
    text = (page / "report.html").read_text()
    assert "checkpoints bert, gpt2," in text
    assert "Not made yet" not in text  # the figures that read none belong on another page
    entry = record.read(page)["reader"]
    assert f"--checkpoint {a} --checkpoint {b}" in entry.command
    assert [each["name"] for each in entry.provenance["spec"]["checkpoints"]] == ["bert", "gpt2"]
    assert main([*words, "--replot"], figures.package) == 0
    assert main(words, figures.package) == 0
    assert figures.computed == ["reader"]
    assert "reader: loaded" in capsys.readouterr().err


@pytest.mark.slow
def test_results_with_and_without_checkpoints_and_seeds_lie_apart(figures, tmp_path):
    figures.add("reader", reads=True)
    figures.add("other")
    a, out = checkpoint(tmp_path / "bert"), tmp_path / "out"
    for words in ([], ["--checkpoint", a], ["other", "reader", "--checkpoint", a, "--seed", "2"]):
        assert main([*words, "--out", str(out)], figures.package) == 0
    assert pages(out) == ["quick", "quick-bert", "quick-seed2-bert"]
    assert sorted(zip(figures.computed, figures.given, strict=True)) == [
        ("other", None), ("other", None), ("reader", ()), ("reader", (a,)), ("reader", (a,)),
    ]  # fmt: skip


def test_other_weights_of_the_same_length_are_another_result(figures, tmp_path):
    figures.add("reader", reads=True)
    place, out = tmp_path / "bert", tmp_path / "out"
    for weights in ("first.", "second", "first."):  # the third time nothing finished has been lost
        assert main(["--checkpoint", checkpoint(place, weights), "--out", str(out)], figures.package) == 0
    assert figures.computed == ["reader", "reader"]
    assert len(list(out.glob("*/data/*.npz"))) == 2


def test_what_the_identity_of_a_result_depends_on(tmp_path):
    class Spec(figure.Spec):
        checkpoints: tuple[str, ...] = ()

    def known(*places):
        return identity.fingerprint("a", Spec(checkpoints=places))

    place = tmp_path / "here" / "bert"
    first = checkpoint(place)
    before = known(first)
    os.utime(place / "model.safetensors", (1, 1))
    (place / "README.md").write_text("not read")
    same = {before, known(first), known(first + "/"), known(checkpoint(tmp_path / "there" / "bert"))}
    assert len(same) == 1
    renamed = checkpoint(tmp_path / "there" / "roberta")  # panels and claims carry the name
    identities = [before, known(), known(renamed), known(first, renamed), known(renamed, first)]
    for file in ("config.json", "tokenizer.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json"):
        (place / file).write_text("[1]")  # not as long as before: within a tick of the clock the time is the same
        identities.append(known(first))
    assert len(set(identities)) == len(identities) == 9


def test_a_gguf_file_is_a_checkpoint(tmp_path):
    file = tmp_path / "llama.gguf"
    file.write_bytes(b"first")
    checkpoints.check([str(file), checkpoint(tmp_path / "bert")])
    first = checkpoints.identity([str(file)])
    assert first[0]["name"] == "llama.gguf"
    assert checkpoints.content(str(tmp_path)) == first[0]["sha256"]  # its folder means the same file
    file.write_bytes(b"others")
    assert checkpoints.identity([str(file)]) != first
    (tmp_path / "second.gguf").write_bytes(b"")
    with pytest.raises(checkpoints.Unusable, match=r"must be a folder with config\.json"):
        checkpoints.check([str(tmp_path)])


def test_names(tmp_path):
    bert = str(tmp_path / "bert")
    assert checkpoints.labels([bert, f"{tmp_path}/gpt2/"]) == ["bert", "gpt2"]
    assert checkpoints.labels(["/a/final", "/b/final", "/b/c"]) == ["a/final", "b/final", "c"]
    hub = "/cache/models--google-bert--bert-base-uncased/snapshots/86b5e0934494bd15c9632b12f734a8a67f723594"
    assert checkpoints.labels([hub]) == ["bert-base-uncased@86b5e09"]
    later, other = hub[:-3] + "aaa", hub.replace("google", "me")
    assert checkpoints.labels([hub, bert, later]) == [
        f"google-bert--bert-base-uncased@{hub[-40:]}", "bert", f"google-bert--bert-base-uncased@{later[-40:]}",
    ]  # fmt: skip
    assert len(set(checkpoints.labels([hub, later, other]))) == 3
    assert "/" not in checkpoints.tag([checkpoint(tmp_path / "a" / "final"), checkpoint(tmp_path / "b" / "final")])
    assert len(checkpoints.tag([checkpoint(tmp_path / ("x" * 100 + str(i))) for i in range(3)])) < 100


def test_bad_folders_are_one_line_before_anything_is_computed(figures, tmp_path, capsys):
    figures.add("reader", reads=True)
    good = checkpoint(tmp_path / "good")
    (tmp_path / "empty").mkdir()
    pickle = tmp_path / "pickle"
    checkpoint(pickle)
    (pickle / "model.safetensors").rename(pickle / "pytorch_model.bin")
    checkpoint(tmp_path / "mute")
    (tmp_path / "mute" / "tokenizer.json").unlink()
    os.symlink(good, tmp_path / "again")
    for bad, message in (
        (["absent"], "`--checkpoint` must be an existing folder or a .gguf file, got"),
        (["good/config.json"], "`--checkpoint` must be an existing folder or a .gguf file, got"),
        (["good", "empty"], "`--checkpoint` must be a folder with config.json, got"),
        (["pickle"], "`--checkpoint` must be a folder with model.safetensors or model.safetensors.index.json, got"),
        (
            ["good", "mute"],
            f"`--checkpoint` must be a folder with tokenizer.json, got '{tmp_path / 'mute'}' without one",
        ),
        (["good", "again"], "`--checkpoint` must name different folders, got"),
    ):
        words = [word for name in bad for word in ("--checkpoint", str(tmp_path / name))]
        assert main([*words, "--out", str(tmp_path / "out")], figures.package) == 2
        captured = capsys.readouterr()
        assert message in captured.err
        assert captured.err.count("\n") == 1
        assert captured.out == ""
    assert figures.computed == []
    assert not (tmp_path / "out").exists()


def test_an_empty_name_is_shown_as_one(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(checkpoints.Unusable, match=r"with config\.json, got '' without one"):
        checkpoints.check([""])


def test_a_checkpoint_that_no_figure_reads_is_refused(figures, tmp_path, capsys):
    figures.add("one").add("two")
    words = ["--checkpoint", checkpoint(tmp_path / "bert"), "--out", str(tmp_path / "out")]
    assert main(words, figures.package) == 2
    assert "`--checkpoint` must go with a figure that reads one (none), got none" in capsys.readouterr().err
    figures.add("reader", reads=True)
    assert main(["one", "two", *words], figures.package) == 2
    assert "`--checkpoint` must go with a figure that reads one (reader), got one, two" in capsys.readouterr().err
    assert figures.computed == []


def test_the_checks_load_no_jax():
    code = "import sys, experiments.lib.checkpoints; assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=600)
