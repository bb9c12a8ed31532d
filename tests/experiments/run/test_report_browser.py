"""The filter of the claims in a real browser, where one is installed; what an address asks for is what is shown."""

import pathlib
import re
import shutil
import subprocess

import pytest

from experiments.command import main
from experiments.run.report import html
from tests.experiments.conftest import made_up
from tests.experiments.run.test_report import ALL_VERDICTS, KEYS, Page

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="no Chromium found")]
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--dump-dom"),
    "--virtual-time-budget=2000",
)
OTHER = """ROWS = (
    ledger.published("k-other", "A cube of its own", lambda data: 3.0, (2.9, 3.1), source="noci2022", place="page 1",
                     interval_from="our tolerance"),
)"""
EVERY = [*KEYS[:5], "k-other", *KEYS[5:]]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    with made_up(folder) as figures:
        figures.add("one", rows=ALL_VERDICTS).add("two", rows=OTHER, topic="scale")
        main(["--out", str(folder)], figures.package)
    return folder / "quick" / html.FILE


@pytest.fixture
def path(report, tmp_path):
    """A copy of the page, which a test may change."""
    return pathlib.Path(shutil.copy(report, tmp_path))


@pytest.fixture
def look(path, report):
    """What the browser makes of the page at an address: keys of the claims shown, and the whole page."""

    def look(fragment=""):
        profile = f"--user-data-dir={report.parent / 'profile'}"
        asked = [BROWSER, *OPTIONS, profile, f"{path.as_uri()}{fragment}"]
        done = subprocess.run(asked, capture_output=True, text=True, encoding="utf-8", timeout=600, check=False)
        assert "</html>" in done.stdout, done.stderr
        page = Page(done.stdout)
        rows = [attrs for tag, attrs in page.tags if tag == "tr" and "data-verdict" in attrs]
        return [row["id"] for row in rows if "hidden" not in row], page

    return look


def test_without_a_filter_every_claim_is_shown(look):
    shown, page = look()
    assert shown == EVERY
    assert "8 of 8 rows shown" in page.text
    assert [attrs for tag, attrs in page.tags if attrs.get("id") == "filter" and "hidden" not in attrs]


@pytest.mark.parametrize(
    ("fragment", "expected"),
    [
        ("#verdict=differs+failed", ["k-differs", "k-failed"]),
        ("#topic=scale", ["k-other"]),
        ("#kind=law", ["k-law", "k-failed"]),
        ("#source=Wu+et+al.+2024", ["k-part"]),
        ("#text=CUBE+own", ["k-other"]),
        ("#text=%E2%88%9An", ["k-law"]),  # √n: a formula is found as it is written on one line
        ("#text=statement&verdict=agrees&topic=collapse", ["k-agrees"]),
        ("#topic=scale&verdict=differs", []),
        ("#topic=nonsense", EVERY),
    ],
)
def test_an_address_is_a_view(look, fragment, expected):
    shown, page = look(fragment)
    assert shown == expected
    assert f"{len(expected)} of 8 rows shown" in page.text
    pressed = {attrs["data-verdict"] for tag, attrs in page.tags if attrs.get("aria-pressed") == "true"}
    assert pressed == {word for word in ("differs", "failed", "agrees") if word in fragment}


def test_counts_follow_the_other_filters(look):
    _, page = look("#topic=scale")
    assert "Collapse (7)" in page.text
    assert "Scale (1)" in page.text
    assert "All (1)" in page.text  # of the sources
    assert "✓ agrees 1" in page.text
    assert "≠ differs 0" in page.text


def test_another_script_does_not_run(look, path):
    text = path.read_text(encoding="utf-8")
    path.write_text(
        text.replace('"use strict";', '"use strict"; document.documentElement.lang = "xx";'), encoding="utf-8"
    )
    shown, page = look("#topic=scale")
    assert len(shown) == 8
    assert next(attrs["lang"] for tag, attrs in page.tags if tag == "html") == "en"
    assert [attrs for tag, attrs in page.tags if attrs.get("id") == "filter" and "hidden" in attrs]


CLICKS = """
const said = [];
const note = () => said.push(document.getElementById("filter-count").textContent + " " + location.hash);
const [words, topic] = ["filter-text", "filter-topic"].map((id) => document.getElementById(id));
const button = document.querySelector("button[data-verdict=differs]");
words.value = "STATEMENT";
words.dispatchEvent(new Event("input"));
note();
button.click();
note();
button.click();
topic.value = "scale";
topic.dispatchEvent(new Event("change"));
note();
document.getElementById("filter-clear").click();
note();
button.click();
location.hash = "#k-part";
setTimeout(() => {
  note();
  document.documentElement.lang = said.join("; ");
}, 50);
"""


def test_clicks_and_words(look, path):
    """The policy is taken off this copy, so that a script can click."""
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", path.read_text(encoding="utf-8"))
    path.write_text(
        text.replace("</main>", "</main><script defer>addEventListener('load', () => {" + CLICKS + "})</script>")
    )
    shown, page = look()
    assert next(attrs["lang"] for tag, attrs in page.tags if tag == "html").split("; ") == [
        "7 of 8 rows shown #text=STATEMENT",
        "1 of 8 rows shown #text=STATEMENT&verdict=differs",
        "0 of 8 rows shown #text=STATEMENT&topic=scale",
        "8 of 8 rows shown #claims",
        "8 of 8 rows shown #k-part",  # a link to a row that was filtered away takes the filter off
    ]
    assert len(shown) == 8
