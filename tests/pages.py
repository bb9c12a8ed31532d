"""The pages of the documentation: which there are, and what of them is prose, mathematics, code or generated."""

import pathlib
import re

from markdown_it import MarkdownIt

ROOT = pathlib.Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "paper.md",
    *sorted(DOCS.rglob("*.md")),
]
MARKDOWN = MarkdownIt("commonmark").enable("table")  # what the site parses with
MATHEMATICS = re.compile(r"(?<!\\)\$\$.+?\$\$|(?<![\\`$\w])\$(?![\s(])[^$`]+?(?<!\s)\$(?!\w)", re.DOTALL)
CODE = re.compile(r"^( *)```.*?^\1```|`[^`\n]+`", re.MULTILINE | re.DOTALL)
GENERATED = re.compile(r"<!-- (?:measured|headline|works|parity|rows|figures).*?<!-- (?:end of|/).*?-->", re.DOTALL)
WRITTEN = [
    page
    for page in PAGES
    if page.stem not in ("ledger", "gallery", "CHANGELOG") and page.parent.name not in ("dev", "ledger")
]


def formulas(text):
    """LaTeX of a page, outside of code."""
    return MATHEMATICS.findall(CODE.sub("", text))


def without_mathematics(text):
    """A page with a letter in place of each formula that MathJax sets; lines stay where they are."""
    return MATHEMATICS.sub(lambda match: "x" + "\n" * match[0].count("\n"), text)


def prose(text):
    """What a person wrote on a page, without code, tables, headings and formulas."""
    text = without_mathematics(CODE.sub(" X ", GENERATED.sub("", text.partition("---\njupytext")[0] or text)))
    lines = [line for line in text.split("\n") if not re.match(r" *[|#:<]|    |```|!\[|\w+:", line)]
    return "\n".join(lines)
