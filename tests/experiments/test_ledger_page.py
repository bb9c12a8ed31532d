"""The page of the ledger is what its snapshot says, and the snapshot has every figure and claim that there is."""

import re

import pytest

from experiments import figure
from experiments.command import main
from experiments.figure import TOPICS, Broken
from experiments.ledger import Kind, Verdict, pages, prediction, record, sections
from tests.experiments.conftest import strict_json
from tests.experiments.test_report import ALL_VERDICTS

ABOUT, ENTRIES = pages.read(pages.DOCS / record.FILE)
LEAST = 45


def test_the_page_is_made_of_the_snapshot():
    page = (pages.DOCS / pages.PAGE).read_text(encoding="utf-8")
    assert page == pages.markdown(ABOUT, ENTRIES), f"make it again: {pages.made_by(ABOUT)}"


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
def test_the_first_pages_say_what_the_snapshot_says(page):
    text = (pages.DOCS.parent / page).read_text(encoding="utf-8")
    assert " published statements of " in text
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
    page = (pages.DOCS / pages.PAGE).read_text(encoding="utf-8")
    claims = {claim.key: claim for entry in ENTRIES for claim in entry.claims}
    rows = [line for line in page.splitlines() if re.search(r"\| `\w+` \|$", line)]
    assert len(rows) == len(claims)
    for row in rows:
        assert len(re.findall(r"(?<!\\)\|", row)) == len(pages.HEADS) + 1
        assert claims.pop(re.match(r'\| <a id="([\w.-]+)"></a>', row)[1])
    for section in sections.sections(ENTRIES):
        assert f"\n## {section.title}\n" in page


def test_a_law_that_the_stored_run_contradicts_is_no_law():
    laws = [claim for entry in ENTRIES for claim in entry.claims if claim.kind is Kind.LAW]
    assert laws
    assert [claim.key for claim in laws if claim.verdict not in (Verdict.HELD, Verdict.NOT_RUN)] == []


def test_every_row_is_a_sentence_with_its_interval_explained():
    for entry in ENTRIES:
        for claim in entry.claims:
            assert claim.statement.endswith((".", "?")) and len(claim.statement.split()) >= 4, claim.key
            assert claim.interval_from or claim.kind is Kind.QUESTION, claim.key
            assert re.fullmatch(r"[\w.-]+", claim.key), claim.key


def test_a_run_becomes_a_page(figures, tmp_path, capsys):
    figures.add("one", claims=ALL_VERDICTS, topic="scale").add("two", topic="layer")
    main(["--out", str(tmp_path / "results")], figures.package)
    docs = tmp_path / "docs"
    docs.mkdir()
    assert pages.main([str(tmp_path / "results" / "quick" / "claims.json"), "--docs", str(docs)]) == 0
    page = (docs / "ledger.md").read_text(encoding="utf-8")
    assert "Preset `quick`, seed 0" in page
    assert "6 published statements of 2 sources are checked: 2 agree as made, 1 agrees in part, 1 differs" in page
    assert "| published statements | 6 | 2 | 1 | 1 |  |  |  | 1 | 1 |" in page
    assert "| laws | 1 |  |  |  | 1 |  |  |  |  |" in page
    row = '| <a id="k-agrees"></a>Statement \\<1> \\& more · section 2 | 2.9 … 3.1 (our tolerance) | 3.00 ± 0.01 | '
    assert f"{row}✓ agrees | `one` |" in page
    assert page.index("## Published statements") < page.index("## Laws of this package") < page.index("## Questions")
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


def test_cells_hold_anything():
    claim = prediction("k", "a|b *c* <d>\n`e` [f] $g$ h_i\\j", 1.0, (0, 2), interval_from="s")
    entry = record.Entry("one", "Title", record.DONE, "command", "scale", claims=(claim,))
    page = pages.markdown({"preset": "quick", "seed": 0, "version": "1"}, [entry])
    row = r"a\|b \*c\* \<d> \`e\` \[f\] \$g\$ h\_i\\j | 0 … 2 (s) | 1 | ● held | `one` |"
    assert f'| <a id="k"></a>{row}' in page
    assert claim.verdict is Verdict.HELD
