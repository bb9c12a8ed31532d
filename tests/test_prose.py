"""The prose of the pages: plain words, short sentences, typeset formulas, no number that changes by itself."""

import re

import pytest

from experiments.lib import figure
from tests.pages import CODE, DOCS, GENERATED, ROOT, WRITTEN, prose, without_mathematics

BANNED = re.compile(
    r"\b(rooms?|doors?|lanes?|twins?|dear(?:er|est)?|portions?|shelf|recipes?|refuted|for ever|today's keys)\b", re.I
)
UNDEFINED = re.compile(r"\b(?:DCL21|Su9812|Su9889|Su8823|V17)\b")
LONGEST = 40  # words of a sentence
END = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z*`(\[])")


def sentences(text):
    for paragraph in re.split(r"\n\s*\n|\n(?=[-*] |\d+\. )", prose(text)):
        plain = re.sub(r"\]\([^)]*\)", "]", " ".join(paragraph.split()))
        yield from END.split(plain)


def too_long(found):
    return [each for each in found if len(re.findall(r"[\w']+", each)) > LONGEST]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.stem)
def test_prose_is_plain(page):
    """No private word, no key of a source that a reader would have to look up, no sentence past 40 words."""
    text = page.read_text("utf-8")
    assert not BANNED.findall(CODE.sub("", GENERATED.sub("", text)))
    assert not UNDEFINED.findall(text)
    assert too_long(sentences(text)) == []


@pytest.mark.parametrize("name", figure.names())
def test_a_caption_is_plain(name):
    """What stands under a figure in the report, in the gallery and on its page."""
    caption = figure.load(name).ABOUT.caption
    assert BANNED.findall(caption) == [] and too_long(END.split(caption)) == []


def test_prose_that_is_not_plain_is_seen():
    assert BANNED.findall("a dear twin in the room") == ["dear", "twin", "room"] and UNDEFINED.findall("by DCL21, V17")
    assert max(len(each.split()) for each in sentences("a " * 50 + "end. Short. | not | this |")) == 51
    assert too_long(END.split("Left: " + "a " * 41 + "end. Short.")) == ["Left: " + "a " * 41 + "end."]


# The most words of a page: proofs need more, recipes and studies fewer.
STUDIES = (
    "path_effectiveness",
    "circle",
    "collapse_in_training",
    "scale_in_training",
    "focus_in_training",
    "real_models",
)
MOST_WORDS = {"proof": 1200} | dict.fromkeys((*STUDIES, "scales_in_use", "scale_forms"), 500)


def words(page):
    """What a person wrote, in words; tables, code and generated blocks not counted."""
    return len(re.findall(r"\w+", prose(page.read_text("utf-8"))))


def test_pages_are_few_words():
    assert len((ROOT / "README.md").read_text("utf-8").split()) <= 500
    assert sum(map(words, WRITTEN)) <= 28_000


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.stem)
def test_a_page_keeps_to_its_words(page):
    assert words(page) <= MOST_WORDS.get(page.stem, 450 if page.parent.name == "how-to" else 1000)


def theory():
    """The pages of theory, by the captions of the index."""
    index = (DOCS / "index.md").read_text("utf-8")
    for caption in ("Collapse", "Scale", "Sparsity", "Layers"):
        names = re.search(rf":caption: {caption}\n:hidden:\n\n((?:\w+\n)+)```", index)
        assert names is not None, caption
        yield from names[1].split()


@pytest.mark.parametrize("name", list(theory()))
def test_an_idea_has_one_figure(name):
    for section in re.split(r"^## ", (DOCS / f"{name}.md").read_text("utf-8"), flags=re.MULTILINE):
        assert section.count("](pictures/") <= 1, section.partition("\n")[0]


# Numbers that change by themselves: uncertainties, times, memory, counts. They belong into generated blocks.
FEW = r"(?:\d[\d.,]*|(?i:two|three|four|five|six|seven|eight|nine|ten|fifteen|twenty|thirty))"
MANY = r"(?:\d{2,}|(?i:eleven|twelve|thirteen|fourteen|fifteen|sixteen|twenty|thirty|forty|fifty))"
CHANGING = re.compile(
    r"±\s?\d*\.\d|\b\d[\d.,]*\s?(?:min|ms|µs|s|h|[kMGT]i?B|[GT]FLOP/s)\b|\b(?:a|half a|an|half an) (?:minute|hour)\b"
    rf"|\b{FEW} (?:minutes?|seconds|hours?|days)\b"
    rf"|\b{MANY} (?:tests|rows|statements|sources|families|figures|pages|models|seeds)\b"
)
# What may stand on a page: the README's two commands, and settings of the code.
ALLOWED = {
    "README.md": r"in about \w+ minutes on two cores",
    "distributed.md": r"within 30 seconds|before 30 minutes",
}


def changing_numbers(text):
    """Such numbers outside of code, formulas and generated blocks, each with what stands around it."""
    plain = without_mathematics(CODE.sub(" X ", GENERATED.sub("", text)))
    return [plain[max(0, match.start() - 20) : match.end() + 20] for match in CHANGING.finditer(plain)]


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.stem)
def test_numbers_that_change_are_generated(page):
    """Times, memory, errors of measurement and counts: only between marks, with date and machine."""
    allowed = ALLOWED.get(page.name, "(?!)")
    text = page.read_text("utf-8")
    assert (page.name in ALLOWED) == bool(re.search(allowed, text))
    assert changing_numbers(re.sub(allowed, "", text)) == []


def test_numbers_that_change_are_seen():
    for text in (
        "by 0.11 ± 0.18 nats",
        "in 2 s",
        "90 MB",
        "6 to 25 minutes",
        "two hours",
        "about a minute",
        "15 families",
    ):
        assert changing_numbers(text), text
    for text in ("`about 2 s`", "$2$ s", "<!-- rows: a -->\n0.1 ± 0.2\n<!-- end of rows -->", "a second theorem", "±1"):
        assert not changing_numbers(text), text


# A formula in Unicode, outside of code; two pages have the printed names of columns.
UNTYPESET = re.compile(r"[‖√∑∫½¼¾²³⁴⁰-₉ᵀℓ]")
COLUMNS = ("trace", "diagnose-my-model")


@pytest.mark.parametrize("page", [page for page in WRITTEN if page.stem not in COLUMNS], ids=lambda page: page.stem)
def test_formulas_are_typeset(page):
    text = without_mathematics(CODE.sub("", GENERATED.sub("", page.read_text("utf-8"))))
    assert UNTYPESET.findall(text) == []


MENTION = re.compile(r"([A-Z][\w’-]+)(?:'s)?(?: et al\.)?,?\s\(?⟦?((?:19|20)\d\d)")
LISTS = ("citation", "equations", "notation", "released_code", "paper")  # pages whose tables or keys lead to the works


@pytest.mark.parametrize("page", [page for page in WRITTEN if page.stem not in LISTS], ids=lambda page: page.stem)
def test_the_first_mention_of_a_work_is_a_link(page):
    """Author and year, with the link around the year or around both."""
    text = re.sub(r"^#.*$", "", CODE.sub("", GENERATED.sub("", page.read_text("utf-8"))), flags=re.MULTILINE)
    plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"⟦\1⟧", text)
    seen = set()
    for mention in MENTION.finditer(plain):
        before = plain[: mention.end()]
        work = mention[1].replace("Jianlin", "Su"), mention[2]
        assert work in seen or before.count("⟦") > before.count("⟧"), work
        seen.add(work)
