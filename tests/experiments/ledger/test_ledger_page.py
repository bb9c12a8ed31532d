"""The page of the ledger is what its snapshot says, and the snapshot has every figure and claim that there is."""

import dataclasses
import json
import math
import re

import pytest

from experiments.command import main
from experiments.ledger import (
    Measured,
    RowType,
    Verdict,
    at_least,
    included,
    judged,
    law,
    pages,
    published,
    record,
    sections,
)
from experiments.lib import figure
from experiments.lib.figure import TOPICS, Broken
from tests.experiments.conftest import strict_json
from tests.experiments.run.test_report import ALL_VERDICTS

ABOUT, ENTRIES = pages.read(pages.DOCS / record.FILE)
LEAST = 45


@pytest.mark.parametrize("name", [pages.PAGE, *pages.PARTS.values()])
def test_the_pages_are_made_of_the_snapshot(name):
    page = (pages.DOCS / name).read_text(encoding="utf-8")
    assert page == pages.markdown(ABOUT, ENTRIES)[name], f"make it again: {pages.made_by(ABOUT)}"


def test_there_is_a_page_for_each_type():
    assert set(pages.PARTS) == set(RowType)
    assert {f"ledger/{path.name}" for path in (pages.DOCS / "ledger").iterdir()} == set(pages.PARTS.values())


def test_rows_and_figures_on_other_pages_are_those_of_the_snapshot():
    shown = dict(pages.with_rows(pages.DOCS, ABOUT, ENTRIES))
    assert len(shown) >= 6
    for path, text in shown.items():
        assert path.read_text(encoding="utf-8") == text, f"{path.name}: python -m experiments.ledger"


def test_blocks_say_what_was_measured_with_date_and_machine():
    row = law(
        "a-key", "It *rises*.", lambda data: Measured(0.5, 0.125), (0, 1), proof="proved", interval_from="s",
        note="by task",
    )  # fmt: skip
    claim = row.judge({})
    provenance = {"date": "2026-01-02T03:04:05", "machine": "A chip", "device": "2 × cpu"}
    entry = record.Entry("circle", "Title", record.DONE, "command", "scale", claims=(claim,), provenance=provenance)
    marks = "Before\n<!-- rows: a-key -->\nold\n<!-- end of rows -->\nafter"
    page = included.filled(marks, {"preset": "quick", "seed": 3, "version": "1.2.3"}, [entry], "../")
    assert page.startswith("Before\n<!-- rows: a-key -->\n") and page.endswith("\n<!-- end of rows -->\nafter")
    assert "| It \\*rises\\*. · by task · `a-key` | this package | 0.5 ± 0.1 | held |" in page and "old" not in page
    assert "[ledger](../ledger.md): preset `quick`, seed 3, rc_jax 1.2.3, 2026-01-02, on A chip; 2 × cpu." in page
    # rows of another figure that stand elsewhere do not lend their machine
    elsewhere = dataclasses.replace(claim, key="elsewhere")
    others = record.Entry("saturation", "Title", record.DONE, "command", "scale", claims=(elsewhere,),
                          provenance={**provenance, "machine": "B chip", "date": "2027-01-01"})  # fmt: skip
    assert included.filled(marks, {"preset": "quick", "seed": 3, "version": "1.2.3"}, [entry, others], "../") == page
    minutes = figure.load("circle").ABOUT.minutes
    page = included.filled(
        marks.replace("rows: a-key", "figures: circle").replace("of rows", "of figures"), ABOUT, [entry]
    )
    row = f"| `python -m experiments circle` | {minutes['quick']:g} | {minutes['full']:g} | 1 held |"
    assert row in page and "on A chip; 2 × cpu" in page
    with pytest.raises(KeyError, match="other"):
        included.filled(marks.replace("a-key", "other"), ABOUT, [entry])


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_first_pages_say_what_the_snapshot_says(page):
    text = (pages.DOCS.parent / page).read_text(encoding="utf-8")
    assert (
        " published statements of " in text
        and " measurements: " in text
        and " formulas, whose numbers change beyond sampling only" in text
    )
    assert text == pages.headed(text, ENTRIES), f"make it again: {pages.made_by(ABOUT)}"


def test_the_snapshot_has_every_figure_as_it_is_now():
    assert sorted(entry.name for entry in ENTRIES) == figure.names()
    for entry in ENTRIES:
        module = figure.load(entry.name)
        assert not isinstance(module, Broken), module.error
        assert (entry.title, entry.topic) == (module.ABOUT.title, module.ABOUT.topic), entry.name
        assert entry.claims, entry.name
    assert record.duplicates(ENTRIES) == []


def test_many_claims_and_some_on_every_topic():
    assert sum(len(entry.claims) for entry in ENTRIES) >= LEAST
    assert {entry.topic for entry in ENTRIES if entry.claims} == set(TOPICS)


def test_the_snapshot_is_strict_json_with_topic_and_figure():
    text = (pages.DOCS / record.FILE).read_text(encoding="utf-8")
    for name, fields in strict_json(text)["figures"].items():
        for claim in fields["claims"]:
            assert (claim["topic"], claim["figure"]) == (fields["topic"], name)
    assert "/tmp" not in text


def test_every_row_is_on_the_page_with_its_anchor():
    page = "".join((pages.DOCS / name).read_text(encoding="utf-8") for name in pages.PARTS.values())
    claims = {claim.key: claim for entry in ENTRIES for claim in entry.claims}
    rows = [line for line in page.splitlines() if line.startswith("| <a id=")]
    assert len(rows) == len(claims)
    for row in rows:
        assert len(re.findall(r"(?<!\\)\|", row)) == len(pages.HEADS) + 1
        assert claims.pop(re.match(r'\| <a id="([\w.-]+)"></a>', row)[1])
    for section in sections.sections(ENTRIES):
        assert f"\n## {section.title}\n" in page


def test_a_law_that_the_stored_run_contradicts_is_no_law():
    """A prediction that was written before its run is told as such, and stays."""
    every = [claim for entry in ENTRIES for claim in entry.claims if claim.type is RowType.LAW]
    laws = [claim for claim in every if not claim.predicted]
    assert len(laws) > len(every) / 2
    assert [claim.key for claim in laws if claim.verdict not in (Verdict.HELD, Verdict.NOT_RUN)] == []


def test_every_row_is_a_sentence_with_its_interval_explained():
    for entry in ENTRIES:
        for claim in entry.claims:
            assert claim.statement.endswith(".") and len(claim.statement.split()) >= 4, claim.key
            assert claim.interval_from, claim.key
            assert re.fullmatch(r"[\w.-]+", claim.key), claim.key


def test_a_run_becomes_a_page(figures, tmp_path, capsys):
    figures.add("one", rows=ALL_VERDICTS, topic="scale").add("two", topic="layer")
    main(["--out", str(tmp_path / "results")], figures.package)
    docs = tmp_path / "docs"
    docs.mkdir()
    assert pages.main([str(tmp_path / "results" / "quick" / "claims.json"), "--docs", str(docs)]) == 0
    page = (docs / "ledger.md").read_text(encoding="utf-8")
    assert "preset `quick`, seed 0" in page
    assert "5 published statements of 2 works are checked; 1 more was not run. 4 measurements: 1 agrees as made" in page
    assert "1 formula, whose number changes beyond sampling only if code is wrong: 1 agrees as made." in page
    assert "| [published statements](ledger/published.md), measured | 5 | 1 | 1 | 1 |  |  | 1 | 1 |" in page
    assert "| [published statements](ledger/published.md), formula | 1 | 1 |  |  |  |  |  |  |" in page
    assert "| [laws](ledger/laws.md), proved | " in page
    row = '| <a id="k-agrees"></a>Statement \\<1> \\& more (section 2) · `k-agrees` | formula · '
    published = (docs / "ledger" / "published.md").read_text(encoding="utf-8")
    assert row in published and "## Published statements" in published
    assert " · interval 2.9 … 3.1: our tolerance · `one` | 3.00 ± 0.01 | ✓ agrees |" in published
    assert "## Laws of this package" in (docs / "ledger" / "laws.md").read_text(encoding="utf-8")
    (docs / "ledger.md").write_text("")
    assert pages.main(["--docs", str(docs)]) == 0
    assert (docs / "ledger.md").read_text(encoding="utf-8") == page
    capsys.readouterr()


def test_figures_that_were_not_made_are_named(figures, tmp_path, capsys):
    figures.add("one").add("two", compute="raise ValueError('no')")
    main(["--out", str(tmp_path)], figures.package)
    assert pages.main([str(tmp_path / "quick" / "claims.json"), "--docs", str(tmp_path)]) == 1
    assert "left out: two" in capsys.readouterr().err
    assert list(record.read(tmp_path)) == ["one"]


@pytest.mark.parametrize("name", ["claims.json", "other.json"])
def test_what_is_no_ledger_is_refused(name, tmp_path, capsys):
    (tmp_path / name).write_text("{}")
    assert pages.main([str(tmp_path / name), "--docs", str(tmp_path)]) == 2
    assert "ledger: error: `file` must be a claims.json that a run wrote" in capsys.readouterr().err
    assert not (tmp_path / "ledger.md").exists()


def test_help_has_examples_and_statuses(capsys):
    assert pages.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert "python -m experiments.ledger results/quick/claims.json" in text and "exit status" in text
    assert max(map(len, text.splitlines())) <= 80
    assert pages.main(["--nonsense"]) == 2
    assert capsys.readouterr().err.startswith("ledger: error: ")


def test_formulas_of_a_figure_are_typeset_on_its_pages():
    page = (pages.DOCS / pages.PARTS[RowType.PUBLISHED]).read_text(encoding="utf-8")
    assert r"</a>The sparsity $S$ of softmax rows is $e^{-\sigma^{2}\lVert q\rVert^{2}/2}$. (" in page
    assert r" · keys $N(\mu,\sigma^{2}I)$, $n\to\infty$; $\beta=q\cdot\mu$, " in page
    block = included.filled("<!-- rows: sparsity-exp -->\n<!-- end of rows -->", ABOUT, ENTRIES)
    assert r"| The sparsity $S$ of softmax rows is $e^{-\sigma^{2}\lVert q\rVert^{2}/2}$. · " in block


def test_cells_hold_anything():
    row = law("k", "a|b *c* <d>\n`e` [f] &g h_i\\j", lambda data: 1.0, (0, 2), proof="proved", interval_from="s")
    claim = row.judge({})
    entry = record.Entry("one", "Title", record.DONE, "command", "scale", claims=(claim,))
    page = pages.markdown({"preset": "quick", "seed": 0, "version": "1"}, [entry])["ledger/laws.md"]
    row = r"a\|b \*c\* \<d> \`e\` \[f\] \&g h\_i\\j · `k` | proved · interval 0 … 2: s · `one` | 1 | ● held |"
    assert f'| <a id="k"></a>{row}' in page
    assert claim.verdict is Verdict.HELD


def test_one_figure_replaces_its_rows_and_no_other(tmp_path):
    docs, results = tmp_path / "docs", tmp_path / "run"
    for folder in (docs, results):
        folder.mkdir()
    record.write(docs, ENTRIES, **ABOUT)
    changed = [dataclasses.replace(entry, title=f"{entry.title}, anew") for entry in ENTRIES if entry.name != "circle"]
    record.write(results, changed, **ABOUT)
    run = str(results / record.FILE)
    assert pages.main([run, "--docs", str(docs), "--quiet", "--only", "kinds", "sinks"]) == 0
    titles = {entry.name: entry.title for entry in ENTRIES}
    after = {entry.name: entry.title for entry in pages.read(docs / record.FILE)[1]}
    assert {name for name in titles if after[name] != titles[name]} == {"kinds", "sinks"}
    before = (docs / record.FILE).read_bytes()
    assert pages.main([run, "--docs", str(docs), "--quiet", "--only", "circle"]) == 2
    assert pages.main(["--docs", str(docs), "--quiet", "--only", "kinds"]) == 2
    record.write(results, changed, **{**ABOUT, "seed": 7})
    assert pages.main([run, "--docs", str(docs), "--quiet", "--only", "kinds"]) == 2
    assert (docs / record.FILE).read_bytes() == before


def test_a_criterion_that_came_after_the_result_is_told():
    row = published("late", "It rises.", lambda data: 0.5, (0, 1), source="dong2021", place="section 2",
                    interval_from="our tolerance", after_result=True)  # fmt: skip
    entry = record.Entry("circle", "Title", record.DONE, "command", "scale", claims=(row.judge({}),))
    assert "**criterion after the result**" in pages.markdown(ABOUT, [entry])["ledger/published.md"]
    assert "1 of all these had its criterion chosen after a result was known: 1 agrees as made." in sections.headline(
        entry.claims
    )
    assert record.plain_claims(entry)[0]["after_result"] is True
    assert record.counts([entry, entry]) == {
        "published, measured": {"agrees": 2},
        "published, measured, criterion after the result": {"agrees": 2},
    }


def test_predictions_are_counted_whether_they_held_or_not():
    rows = [
        law(f"prediction-{at}", "It rises.", lambda data, at=at: data["y"][at], at_least(0), proof="measured",
            interval_from="the sign", predicted=True)
        for at in range(3)
    ]  # fmt: skip
    other = law("other", "It rises.", lambda data: 1.0, at_least(0), proof="measured", interval_from="the sign")
    theirs = published("theirs", "It rises.", lambda data: 0.5, (0, 1), source="dong2021", place="section 2",
                       interval_from="our tolerance")  # fmt: skip
    claims = judged([*rows, other, theirs], {"y": [1.0, -1.0, 2.0]})
    entry = record.Entry("circle", "Title", record.DONE, "command", "scale", claims=claims)
    told = "Since 28 November 2026 3 predictions of our own were written before the run: 2 held and 1 failed."
    assert told in sections.headline(claims)
    assert "predictions" not in sections.headline(claims[3:])
    assert pages.markdown(ABOUT, [entry])["ledger/laws.md"].count("**prediction before its first run**") == 3
    assert record.counts([entry])["law, measured, predicted before the run"] == {"failed": 1, "held": 2}


WRONG = {
    "provenance": ["x", None, [1], {"date": 5}, {"spec": "x"}, {"seconds": "x"}, {"device": [1]}],
    "title": [5, None],
    "topic": [["scale"]],
    "warnings": [5, [5]],
    "status": [None],
    "claims": [5, [5], {"a": 1}],
    "reason": [{"a": 1}],
    "unheard": [1],
}
WRONG_ROW = {
    "measured": [[1], {"a": 1}, True, math.nan, 10**400],
    "standard_error": ["x", [1], math.inf, 10**400],
    "interval": [[["a", "b"]], [[1]], 5, [[1, 2, 3]], [[{}, {}]], [[0, math.inf]]],
    "source": [None, ["dong2021"], "nobody"],
    "neighbours": [5, ["nobody"], [["noci2022"]]],
    "statement": [5],
    "type": ["thought"],
    "verdict": [None, ["held"]],
    "note": [None],
}


def test_a_ledger_of_values_that_no_writer_makes_is_refused(tmp_path):
    """Every field that is read, with values of other types, and with numbers that JSON or a float does not have."""
    record.write(tmp_path, ENTRIES[:1], **ABOUT)
    whole = (tmp_path / record.FILE).read_text()
    assert record.read(tmp_path)
    cases = [(field, value, False) for field, values in WRONG.items() for value in values]
    cases += [(field, value, True) for field, values in WRONG_ROW.items() for value in values]
    cases += [("provenance", {"seconds": value}, False) for value in (math.nan, math.inf, 10**400)]
    for field, value, in_row in cases:
        content = json.loads(whole)
        (entry,) = content["figures"].values()
        (entry["claims"][0] if in_row else entry)[field] = value
        (tmp_path / record.FILE).write_text(json.dumps(content))
        with pytest.raises(record.Damaged):
            record.read(tmp_path)
            pytest.fail(f"{field} = {value!r} was read")
    (tmp_path / record.FILE).write_text("[" * 100_000)
    with pytest.raises(record.Damaged):
        record.read(tmp_path)
