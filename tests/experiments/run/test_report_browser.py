"""The filter of the claims in a real browser, where one is installed; what an address asks for is what is shown."""

import pathlib
import shutil
import subprocess

import pytest

from experiments.command import main
from experiments.ledger import pages, record
from experiments.ledger.formulas import MARKED
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
_, STORED = pages.read(pages.DOCS / record.FILE)
EVERY = [*KEYS[:5], "k-other", *KEYS[5:]]


def formula_length(text):
    return max(map(len, MARKED.findall(text)), default=0)


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
        ("#type=law", ["k-law", "k-failed"]),
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
    text = path.read_text(encoding="utf-8")
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


# A browser's window may be no narrower than 500 pixels; a frame in it may.
FRAME = """<!doctype html><html><body>
<iframe src="ADDRESS" style="width: WIDTHpx; height: 900px; border: 0"></iframe>
<script>addEventListener("message", (event) => { document.documentElement.lang = event.data; });</script>
</body></html>"""
MEASURE = """<script>addEventListener("load", () => {
  const widths = (table) => [...table.rows[0].cells].map((cell) => Math.round(cell.getBoundingClientRect().width));
  const columns = new Set([...document.querySelectorAll("table")].map((table) => widths(table).join("+")));
  const within = [...document.querySelectorAll("main *")].filter(
    (each) => /auto|scroll/.test(getComputedStyle(each).overflowX) && each.scrollWidth > each.clientWidth);
  const beyond = document.documentElement.scrollWidth - document.documentElement.clientWidth;
  parent.postMessage(`${columns.size} ${beyond} ${within.length}`, "*");
});</script>"""


@pytest.mark.parametrize("width", [400, 1400])
def test_columns_are_equally_wide_and_nothing_scrolls_sideways(look, path, width):
    """Beside the made-up rows there is the longest formula of all, and words and numbers without end."""
    long = html.typeset(max((claim.statement for entry in STORED for claim in entry.claims), key=formula_length))
    text = path.read_text(encoding="utf-8").replace("Statement 2", f"{long} {200 * 'x'}")
    text = text.replace("Statement 3", "Short").replace("3.00 ± 0.01", f"3.{80 * '0'} ± 0.01 by a few words more")
    inner = path.with_name("inner.html")
    inner.write_text(text.replace("</body>", f"{MEASURE}</body>"), encoding="utf-8")
    path.write_text(FRAME.replace("ADDRESS", inner.as_uri()).replace("WIDTH", str(width)))
    _, page = look()
    assert next(attrs["lang"] for tag, attrs in page.tags if tag == "html") == "1 0 0"
