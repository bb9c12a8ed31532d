"""The page holds every claim, needs nothing but itself, and tells verdicts by more than colour."""

import base64
from html.parser import HTMLParser

import pytest

from experiments.command import main
from experiments.ledger import Verdict, record
from experiments.ledger.decision import SYMBOL
from experiments.ledger.literature import WORKS
from experiments.run.report import html
from tests.experiments.conftest import made_up, strict_json

ALL_VERDICTS = r"""
said = {"source": "dong2021", "place": "section 2", "interval_from": "our tolerance"}
other = {**said, "source": "wu2024"}
ours = {"interval_from": "our tolerance"}
def gives(*measured, **options):
    return lambda data: ledger.Measured(*measured, **options)
ROWS = (
    ledger.published("k-agrees", "Statement <1> & more", gives(3.0, 0.01), (2.9, 3.1), formula=True, **said),
    ledger.published("k-part", "Statement 2", gives([1.0, 2.0], where=[10, 20]), (0, 1), needs="parts", **other),
    ledger.published("k-differs", "Statement 3", gives(9.0), (2.9, 3.1), **said),
    ledger.published("k-undecided", "Statement 4", gives(3.0, 1.0), (2.9, 3.1), **said),
    ledger.published("k-unrun", "Statement 5", gives(float("nan")), (2.9, 3.1), **said),
    ledger.law("k-law", r"Statement 6, $\sqrt{n}\lt2$", gives(1.0), (1, 1), proof="proved",
               neighbours=["noci2022"], **ours),
    ledger.law("k-failed", "Statement 7", gives(2.0), (1, 1), proof="measured", **ours),
)"""
KEYS = ["k-agrees", "k-differs", "k-undecided", "k-unrun", "k-part", "k-law", "k-failed"]  # as shown


class Page(HTMLParser):
    """Every tag with its attributes, and the text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.text = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "source", "br", "link", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    with made_up(folder) as figures:
        figures.add("one", rows=ALL_VERDICTS).add("two", compute="raise ValueError('<script>')")
        main(["--out", str(folder)], figures.package)
    return Page((folder / "quick" / html.FILE).read_text(encoding="utf-8"))


def test_every_row_with_symbol_and_word(page):
    for number in range(2, 8):
        assert f"Statement {number}" in page.text
    assert "Statement <1> & more" in page.text
    for verdict in Verdict:
        assert f"{SYMBOL[verdict]} {verdict}" in page.text
        assert f"{SYMBOL[verdict]} 1 {verdict}" in page.text
    assert len(set(SYMBOL.values())) == len(Verdict)
    assert "3.00 ± 0.01" in page.text
    assert "1 … 2" in page.text
    assert "holds at 1 of 2 points: 10" in page.text
    assert "2.9 … 3.1our tolerance" in page.text
    assert "proved, next to Noci et al. 2022" in page.text


def test_formulas_are_drawn_by_the_browser(page):
    assert page.tags.count(("math", {"alttext": "√n < 2", "display": "inline"})) == 1
    assert "Statement 6, n<2" in page.text and "$" not in html.typeset("$n$ & $m$")
    drawn = '<math alttext="x_i" display="inline"><mrow><msub><mi>x</mi><mi>i</mi></msub></mrow></math>'
    assert html.typeset("<i> $x_i$") == f"&lt;i&gt; {drawn}"


def test_published_statements_come_first_by_source(page):
    assert "4 published statements of 2 works are checked; 1 more was not run. 3 measurements: 1 agrees" in page.text
    assert "1 formula, whose number changes beyond sampling only if code is wrong: 1 agrees as made." in page.text
    rows = [attributes["id"] for tag, attributes in page.tags if tag == "tr" and "id" in attributes]
    assert rows == KEYS
    heads = ["Published statements", "Dong, Cordonnier & Loukas 2021", "Wu et al. 2024", "Laws of this package"]
    places = [page.text.rindex(f"\n{head}\n") for head in heads]
    assert places == sorted(places)


def test_every_figure_in_its_order_with_caption_formula_command_and_provenance(page):
    command = "python -m experiments one --preset quick"
    for text in ("Caption of one with <b>&</b>.", "y = x² for one", command, "jaxlib"):
        assert text in page.text
    assert page.open == []
    first = next(attrs["href"] for tag, attrs in page.tags if tag == "a" and attrs["href"].startswith("#figure-"))
    assert first == "#figure-two"  # the box that says it failed
    inside = page.tags[[tag for tag, _ in page.tags].index("nav") :]
    links = [attrs["href"] for tag, attrs in inside if tag == "a" and attrs["href"].startswith("#figure-")]
    sections = ["#" + attrs["id"] for tag, attrs in page.tags if tag == "section" and "id" in attrs]
    assert links[:2] == sections == ["#figure-one", "#figure-two"]


def test_nothing_is_fetched_and_only_the_filter_runs(page):
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "object", "embed", "form")
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "srcset", "data", "poster", "background"):
            assert attributes.get(name, "data:").startswith("data:")
        assert attributes.get("href", "#").startswith("#")
    assert "url(" not in page.text
    assert "@import" not in page.text
    assert [attributes for tag, attributes in page.tags if tag == "script"] == [{}]
    for word in ("fetch", "XMLHttpRequest", "import(", "innerHTML", "eval(", "</"):
        assert word not in html.SCRIPT
    (policy,) = [attributes["content"] for _, attributes in page.tags if attributes.get("http-equiv")]
    assert policy.startswith("default-src 'none'; ")
    assert page.text.count(html.SCRIPT) == 1


def test_the_filter_is_labelled_and_hidden_until_the_script_runs(page):
    by_name = {attributes["id"]: attributes for _, attributes in page.tags if "id" in attributes}
    assert "hidden" in by_name["filter"]
    assert by_name["filter"]["role"] == "search"
    assert by_name["filter-count"]["aria-live"] == "polite"
    labels = [attributes["for"] for tag, attributes in page.tags if tag == "label"]
    fields = [attributes["id"] for tag, attributes in page.tags if tag in ("input", "select")]
    assert labels == fields == ["filter-text", "filter-type", "filter-topic", "filter-source"]
    buttons = [attributes["data-verdict"] for tag, attributes in page.tags if "aria-pressed" in attributes]
    assert buttons == [html.SHORT[verdict] for verdict in Verdict]
    rows = [attributes for tag, attributes in page.tags if tag == "tr" and "id" in attributes]
    assert len(rows) == 7
    for row in rows:
        assert "hidden" not in row
        assert row["data-topic"] == "collapse"
    assert [row["data-type"] for row in rows] == ["published"] * 5 + ["law"] * 2
    assert rows[4]["data-source"] == "Wu et al. 2024" and rows[5]["data-source"] == "this package"


def test_figures_are_listed_by_topic(figures, tmp_path):
    figures.add("one", topic="scale").add("two", topic="collapse").add("three", "raise ValueError", topic="nowhere")
    main(["--out", str(tmp_path)], figures.package)
    page = Page((tmp_path / "quick" / html.FILE).read_text(encoding="utf-8"))
    headings = [page.text.index(f"\n{title}\n") for title in ("Collapse", "Scale", "Not read")]
    assert headings == sorted(headings)
    cards = [attrs["href"] for tag, attrs in page.tags if attrs.get("class") == "card"]
    assert cards == ["#figure-two", "#figure-one", "#figure-three"]
    sections = [attrs["id"] for tag, attrs in page.tags if tag == "section" and "id" in attrs]
    assert sections == ["figure-two", "figure-one", "figure-three"]
    assert "`topic` must be one of collapse, paths, " in page.text


def test_pictures_are_light_and_dark(page):
    images = [attributes for tag, attributes in page.tags if tag == "img"]
    darks = [attributes for tag, attributes in page.tags if tag == "source"]
    assert len(images) == len(darks) == 2  # the small one at the top, and the figure's own
    assert int(images[0]["width"]) == html.SMALL
    for light, dark in zip(images, darks, strict=True):
        assert dark["media"] == "(prefers-color-scheme: dark)"
        assert light["src"] != dark["srcset"]
        for address in (light["src"], dark["srcset"]):
            content = base64.b64decode(address.removeprefix("data:image/webp;base64,"), validate=True)
            assert content[:4] + content[8:12] == b"RIFFWEBP"


def test_pictures_with_their_verdicts_stand_before_the_tables(page):
    order = [tag for tag, attrs in page.tags if attrs.get("class") == "cards" or tag in ("img", "table")]
    assert order[:3] == ["nav", "img", "table"]
    top, _, rest = page.text.partition("Preset ")
    assert f"{SYMBOL[Verdict.DIFFERS]} 1 differs" in top and "Statement 3" in rest and "Statement 3" not in top


def test_no_title_needs_a_font_that_a_browser_may_lack():
    for work in WORKS.values():
        assert all(ord(letter) < 0x2E80 for letter in f"{work.title}{work.label}"), work.title


def test_links_lead_somewhere_and_names_are_unique(page):
    names = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(set(names)) == len(names)
    links = [attributes["href"][1:] for tag, attributes in page.tags if tag == "a"]
    assert len(links) > 10
    assert set(links) <= set(names)


def test_claims_file_round_trip(figures, tmp_path):
    figures.add("one", rows=ALL_VERDICTS)
    main(["--out", str(tmp_path)], figures.package)
    entry = record.read(tmp_path / "quick")["one"]
    verdicts = ["agrees", "agrees in part", "differs", "undecided", "not run", "held", "failed"]
    assert [claim.verdict for claim in entry.claims] == list(map(Verdict, verdicts))
    (kept,) = strict_json((tmp_path / "quick" / record.FILE).read_text(encoding="utf-8"))["figures"].values()
    assert {(each["topic"], each["figure"]) for each in kept["claims"]} == {("collapse", "one")}
    record.write(tmp_path / "again", [entry])
    assert repr(record.read(tmp_path / "again")["one"]) == repr(entry)


def test_two_claims_of_one_key_are_noticed(figures, tmp_path):
    figures.add("one", rows=ALL_VERDICTS).add("two", rows=ALL_VERDICTS)
    main(["--out", str(tmp_path)], figures.package)
    assert "Two rows are both called k-part" in (tmp_path / "quick" / html.FILE).read_text(encoding="utf-8")
