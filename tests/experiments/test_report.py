"""The page holds every claim, needs nothing but itself, and tells verdicts by more than colour."""

import base64
import re
from html.parser import HTMLParser

import pytest

from experiments import record, report, style
from experiments.command import main
from experiments.ledger import Verdict
from experiments.terminal import SYMBOL

ALL_VERDICTS = """
return [
    ledger.within("k-reproduced", "Statement <1> & more", "Source 1", 3, 3.0, 2.9, 3.1, 0.01),
    ledger.on_range("k-range", "Statement 2", "Source 2", "law", [1.0, 2.0], [True, False], [10, 20]),
    ledger.corrected("k-corrected", "Statement 3", "Source 3", 3.5, 2.3, 3.4, 3.6, 2.2, 2.4),
    ledger.within("k-refuted", "Statement 4", "Source 4", 3, 9.0, 2.9, 3.1),
    ledger.within("k-unmeasured", "Statement 5", "Source 5", 3, float("nan"), 2.9, 3.1),
]"""


class Page(HTMLParser):
    """Every tag with its attributes, and the text."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.text = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img", "source", "br", "link"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def page(figures, tmp_path):
    figures.add("one", claims=ALL_VERDICTS).add("two", compute="raise ValueError('<script>')")
    main(["--out", str(tmp_path)], figures.package)
    return Page((tmp_path / "quick" / report.FILE).read_text(encoding="utf-8"))


def test_every_claim_with_symbol_and_word(page):
    for number in range(1, 6):
        assert f"Source {number}" in page.text
    assert "Statement <1> & more" in page.text
    for verdict in Verdict:
        assert f"{SYMBOL[verdict]} {verdict}" in page.text
        assert f"{SYMBOL[verdict]} 1 {verdict}" in page.text
    assert len(set(SYMBOL.values())) == len(Verdict)
    assert "3.00 ± 0.01" in page.text
    assert "1 … 2" in page.text
    assert "holds at 1 of 2 points: 10" in page.text


def test_every_figure_with_caption_formula_command_and_provenance(page):
    for text in (
        "Caption of one with <b>&</b>.",
        "y = x² for one",
        "python -m experiments one --preset quick",
        "jaxlib",
    ):
        assert text in page.text
    assert page.open == []


def test_contents_name_every_figure_in_its_order(page):
    links = [attrs["href"] for tag, attrs in page.tags if tag == "a" and attrs["href"].startswith("#figure-")]
    sections = ["#" + attrs["id"] for tag, attrs in page.tags if tag == "section"]
    assert links[0] == "#figure-two"  # the box that says it failed
    assert links[1:3] == sections == ["#figure-one", "#figure-two"]
    assert "5 claims" in page.text


def test_nothing_is_fetched_and_nothing_runs(page):
    for tag, attributes in page.tags:
        assert tag not in ("script", "link", "iframe", "object", "embed")
        assert not [name for name in attributes if name.startswith("on")]
        for name in ("src", "srcset", "data", "poster", "background"):
            assert attributes.get(name, "data:").startswith("data:")
        assert attributes.get("href", "#").startswith("#")
    assert "url(" not in page.text
    assert "@import" not in page.text


def test_pictures_are_light_and_dark(page):
    (light,) = [attributes["src"] for tag, attributes in page.tags if tag == "img"]
    (dark,) = [attributes for tag, attributes in page.tags if tag == "source"]
    assert dark["media"] == "(prefers-color-scheme: dark)"
    assert light != dark["srcset"]
    for address in (light, dark["srcset"]):
        assert base64.b64decode(address.removeprefix("data:image/png;base64,"), validate=True).startswith(b"\x89PNG")


def test_links_lead_somewhere_and_names_are_unique(page):
    names = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(set(names)) == len(names)
    links = [attributes["href"][1:] for tag, attributes in page.tags if tag == "a"]
    assert len(links) > 10
    assert set(links) <= set(names)


def contrast(one, other):
    """WCAG contrast of two hexadecimal colours."""

    def luminance(colour):
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_words_can_be_read_in_both_themes(page):
    blocks = re.findall(r"--paper: [^}]*", page.text)
    assert len(blocks) == 2
    for block in blocks:
        colours = dict(re.findall(r"--([\w-]+): (#\w{6})", block))
        for word in ("ink", "quiet", "link"):
            assert contrast(colours[word], colours["paper"]) >= 4.5
        for verdict in report.SHORT.values():
            assert contrast(colours[verdict], colours[f"{verdict}-bg"]) >= 4.5


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_plot_colours_stand_out_from_the_paper(theme):
    with style.theme(theme):
        shades = {style.colour(meaning) for meaning in style.MEANINGS} | {style.cycle(at)["color"] for at in range(7)}
    assert min(contrast(shade, style.PAPER[theme]) for shade in shades) >= 2.4


def test_claims_file_round_trip(figures, tmp_path):
    figures.add("one", claims=ALL_VERDICTS)
    main(["--out", str(tmp_path)], figures.package)
    entry = record.read(tmp_path / "quick")["one"]
    assert [claim.verdict for claim in entry.claims] == list(
        map(Verdict, ["reproduced", "reproduced only on a range", "corrected", "refuted", "not measured"])
    )
    record.write(tmp_path / "again", [entry])
    assert repr(record.read(tmp_path / "again")["one"]) == repr(entry)


def test_two_claims_of_one_key_are_noticed(figures, tmp_path):
    figures.add("one", claims=ALL_VERDICTS).add("two", claims=ALL_VERDICTS)
    main(["--out", str(tmp_path)], figures.package)
    assert "Two claims are both called k-range" in (tmp_path / "quick" / report.FILE).read_text(encoding="utf-8")
