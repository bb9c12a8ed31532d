"""Formulas of rows are LaTeX that all readers share: two sites, the report and, in words, a terminal."""

import re
from xml.etree import ElementTree

import pytest
from matplotlib.mathtext import MathTextParser

from experiments.ledger import at_least, law, pages, record
from experiments.ledger.claims import FIELD, Measured
from experiments.ledger.formulas import MARKED, plain
from experiments.lib import figure
from experiments.run.report import html

TEXTS = ("statement", "hypotheses", "interval_from", "note")
ROWS = [row for name in figure.names() for row in figure.load(name).ROWS]
_, STORED = pages.read(pages.DOCS / record.FILE)
SHOWN = [claim for entry in STORED for claim in entry.claims]
# What MathJax knows and matplotlib does not.
KNOWN = {r"\lvert ": "|", r"\rvert": "|", r"\lVert ": r"\|", r"\rVert": r"\|", r"\lt": "<", r"\gt": ">"}
FORMULA_ONLY = re.compile("[\u0370-\u03ff√^_‖∂ℓ⟨⟩²³⁰⁴-ⁿ₀-₉ᵀ∞\\\\]")


def formulas():
    """Every formula as it is shown, filled in."""
    return sorted({found for claim in SHOWN for name in TEXTS for found in MARKED.findall(getattr(claim, name))})


@pytest.mark.parametrize(
    ("formula", "words"),
    [
        (r"\sqrt{(1-\lambda^{n})/(n(1-\lambda))}", "√((1 − λⁿ)/(n(1 − λ)))"),
        (r"E\lvert x\rvert/\sqrt{E\thinspace x^{2}}", "E|x|/√(E x²)"),
        (r"e^{2\sigma_k\thinspace t}", "e^(2σ_k t)"),
        (r"\beta\thinspace\mathrm{erf}(x)\leq1.2564\ldots", "β erf(x) ≤ 1.2564…"),
        (r"\lVert W_{QK,h}\rVert_2", "‖W_QK,h‖_2"),
        (r"\tilde{q}^{\top}\tilde{\Sigma}\tilde{q}", "q̃ᵀΣ̃q̃"),
        (r"\frac{1}{2}\cosh^{-2}(x)", "1/2cosh⁻²(x)"),
        (r"E\max s\to-\infty", "E max s → −∞"),
        (r"2\cdot10^{-14}", "2·10⁻¹⁴"),
    ],
)
def test_a_formula_in_words(formula, words):
    assert plain(f"so ${formula}$.") == f"so {words}."


def test_every_formula_is_latex_that_all_readers_share():
    reader, shown = MathTextParser("path"), formulas()
    assert len(shown) > 400
    for formula in shown:
        assert not re.search(r"[|$`*<>&%]|\\[^A-Za-z]|\\operatorname", formula), formula
        tex = formula
        for ours, theirs in KNOWN.items():
            tex = tex.replace(ours, f"{theirs} ")
        reader.parse(f"${tex}$")
        assert not re.search(r"[\\{}$]", plain(f"${formula}$")), formula


def test_no_number_or_word_of_a_formula_is_lost_in_the_report():
    for formula in formulas():
        drawn = "".join(ElementTree.fromstring(f"<p>{html.mathml(formula)}</p>").itertext())
        assert "\\" not in drawn and "{" not in drawn, formula
        names = re.sub(r"\\(frac|sqrt|hat|tilde|bar|dot|mathrm|[lr]?[vV]ert|thinspace)", " ", formula)
        letters = re.sub(r"\\(?!log|max|min|cosh?|exp|sinh?|tanh?)[A-Za-z]+", " ", names)
        assert sorted(re.findall(r"[A-Za-z0-9]", letters)) == sorted(re.findall(r"[A-Za-z0-9]", drawn)), formula


@pytest.mark.parametrize("row", ROWS, ids=[row.key for row in ROWS])
def test_formulas_are_marked_in_pairs_and_stand_free(row):
    for text in (*(getattr(row, name) for name in TEXTS), row.elsewhere):
        assert all(formula == formula.strip() for formula in MARKED.findall(text)), text
        assert not re.search(r"\w\$|\$[\w$]", MARKED.sub("$", text)), text
    assert not FORMULA_ONLY.search(MARKED.sub("", row.statement)), row.statement


def test_stored_claims_have_the_formulas_of_their_rows():
    by_key = {claim.key: claim for claim in SHOWN}
    for row in ROWS:
        claim = by_key[row.key]
        assert (claim.statement, claim.interval_from) == (row.statement, row.interval_from), row.key
        assert not FIELD.search(claim.hypotheses + claim.note), row.key


def test_a_claim_has_the_formulas_of_its_row_with_the_numbers_of_the_run():
    found = Measured([1.0, 2.0], where=[1, 2], numbers={"tokens": 8, "off": 2e-14, "by": 1e6})
    row = law(
        "k", r"The root $\sqrt{n}$ rises.", lambda data: found, at_least(1),
        proof="proved", interval_from="half of $n$", hypotheses=r"$n = <tokens:g>$, $e^{2t}$",
        note="of $x = <off:.0e>$, $<by:.0e>$, <off:.0e>",
    )  # fmt: skip
    claim = row.judge({})
    assert (claim.statement, claim.interval_from) == (row.statement, row.interval_from)
    assert claim.hypotheses == "$n = 8$, $e^{2t}$"
    assert claim.note == r"of $x = 2\cdot10^{-14}$, $10^{6}$, 2e-14; holds at 2 of 2 points"
    with pytest.raises(ValueError, match="a formula must stand between two dollar signs"):
        law("k", "It is $n.", lambda data: 1.0, at_least(1), proof="proved", interval_from="n")
