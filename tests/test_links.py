"""Links of the Markdown pages to files and headings of the repository, also of those that no site has."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parent.parent
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def anchors(path):
    """What GitHub and the site make of a page's headings: small letters, no punctuation, hyphens for spaces."""
    text = re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_a_page_says_in_its_first_line_whom_it_serves():
    silent = []
    for page in (ROOT / "docs").rglob("*.md"):
        below = re.split(r"^# .+\n\n", page.read_text("utf-8"), maxsplit=1, flags=re.MULTILINE)[1]
        first = below.partition("\n")[0]
        if not re.match(r"\*(For|You) |This page is for ", first):
            silent.append(f"{page.relative_to(ROOT)}: {first}")
    assert not silent


def test_links_between_pages_resolve():
    broken, link = [], re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")
    for page in PAGES:
        for target, anchor in link.findall(page.read_text("utf-8")):
            linked = page.parent / target if target else page
            if not linked.exists() or (anchor and anchor not in anchors(linked)):
                broken.append(f"{page.relative_to(ROOT)}: {target}#{anchor}")
    assert not broken
