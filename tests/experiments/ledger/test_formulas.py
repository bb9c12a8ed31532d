"""Formulas of rows are typeset whole: nothing is lost, and what is written is what another reader of LaTeX takes."""

import re
import unicodedata
from xml.etree import ElementTree

import pytest
from matplotlib.mathtext import MathTextParser

from experiments.ledger import at_least, law, pages, record
from experiments.ledger.claims import FIELD, Measured
from experiments.ledger.formulas import MARKED, latex, mathml, plain
from experiments.lib import figure

TEXTS = ("statement", "hypotheses", "interval_from", "note")
ROWS = [row for name in figure.names() for row in figure.load(name).ROWS]
_, STORED = pages.read(pages.DOCS / record.FILE)
SHOWN = [claim for entry in STORED for claim in record.marked(entry, figure.load(entry.name)).claims]
# What MathJax knows and matplotlib does not.
KNOWN = {r"\lvert ": "|", r"\rvert": "|", r"\lVert ": r"\|", r"\rVert": r"\|", r"\lt": "<", r"\gt": ">"}
FORMULA_ONLY = re.compile("[\u0370-\u03ff√^_‖∂ℓ⟨⟩²³⁰⁴-ⁿ₀-₉ᵀ∞]")


def written(row):
    return [text for text in (*(getattr(row, name) for name in TEXTS), row.elsewhere) if "$" in text]


def formulas():
    """Every formula as it is shown, filled in."""
    return sorted({found for claim in SHOWN for name in TEXTS for found in MARKED.findall(getattr(claim, name))})


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("√((1 − λⁿ)/(n(1 − λ)))", r"\sqrt{(1-\lambda^{n})/(n(1-\lambda))}"),
        ("√log n", r"\sqrt{\log n}"),
        ("√d_k g/2", r"\sqrt{d_k}\thinspace g/2"),
        ("E|x|/√E x²", r"E\lvert x\rvert/\sqrt{E\thinspace x^{2}}"),
        ("√Σ_i a_i1²", r"\sqrt{\sum_ia_{i1}^{2}}"),
        ("s^((3^L − 1)/2)", r"s^{(3^{L}-1)/2}"),
        ("e^−δ/n", r"e^{-\delta}/n"),
        ("e^{2σ_k t}", r"e^{2\sigma_k\thinspace t}"),
        ("sign(x) e^|x|", r"\mathrm{sign}(x)\thinspace e^{\lvert x\rvert}"),
        ("|SA(X) − 1r'ᵀ|_ij", r"\lvert \mathrm{SA}(X)-1r^{\prime\top}\rvert_{ij}"),
        ("‖W_QK,h‖₂", r"\lVert W_{QK,h}\rVert_2"),
        ("max |E_ij'| ≤ 1.2564…", r"\max\thinspace\lvert E_{ij^{\prime}}\rvert\leq1.2564\ldots"),
        ("q̃ᵀΣ̃q̃", r"\tilde{q}^{\top}\tilde{\Sigma}\tilde{q}"),
        ("ŷ − y", r"\hat{y}-y"),
        ("½ cosh⁻²(x)", r"\frac{1}{2}\cosh^{-2}(x)"),
        ("log₅₁₂(n) < α*", r"\log_{512}(n)\lt\alpha^{\ast}"),
        ("log ‖res‖ → −∞", r"\log\thinspace\lVert \mathrm{res}\rVert\to-\infty"),
        ("2e-14", r"2\cdot10^{-14}"),
        ("1 − 1e-07", r"1-10^{-7}"),
    ],
)
def test_a_formula_in_latex(formula, expected):
    assert latex(formula) == expected


@pytest.mark.parametrize(
    ("formula", "expected"),
    [
        ("√x_1", "<msqrt><msub><mi>x</mi><mn>1</mn></msub></msqrt>"),
        ("a_i1²", "<msubsup><mi>a</mi><mrow><mi>i</mi><mn>1</mn></mrow><mn>2</mn></msubsup>"),
        ("log n", '<mrow><mi>log</mi><mspace width="0.17em"/><mi>n</mi></mrow>'),
        ("½", "<mfrac><mn>1</mn><mn>2</mn></mfrac>"),
    ],
)
def test_a_formula_in_mathml(formula, expected):
    assert mathml(formula) == f'<math alttext="{formula}">{expected}</math>'


def test_a_sign_before_a_number_is_not_a_difference():
    assert '<mo form="prefix" lspace="0" rspace="0">−</mo>' in mathml("c = −1")
    assert "<mo>−</mo>" in mathml("c − 1")


@pytest.mark.parametrize("formula", ["(1 − x", "1 − x)", "|x", "‖x", "x^", "√", "5 %", "x_{i", "{x}", "a & b"])
def test_what_is_no_formula_is_refused(formula):
    for write in (latex, mathml):
        with pytest.raises(ValueError, match="`formula` must"):
            write(formula)


def test_every_formula_is_latex_that_sphinx_and_github_share():
    reader, shown = MathTextParser("path"), formulas()
    assert len(shown) > 400
    for formula in shown:
        tex = latex(formula)
        assert not re.search(r"[|$`*<>&%]|\\[^A-Za-z]|\\operatorname", tex), formula
        for ours, theirs in KNOWN.items():
            tex = tex.replace(ours, f"{theirs} ")
        reader.parse(f"${tex}$")


def test_no_letter_or_number_of_a_formula_is_lost_in_mathml():
    def kept(text):
        return sorted(c for c in unicodedata.normalize("NFKD", text) if c.isalnum() and c not in "⁄")

    for formula in (each for each in formulas() if not re.search(r"\de[+-]?\d", each)):
        drawn = ElementTree.fromstring(mathml(formula))
        text = "".join(drawn.itertext()).replace("⊤", "T").replace("∑", "Σ").replace("∏", "Π")
        assert kept(text) == kept(formula), formula


@pytest.mark.parametrize("row", ROWS, ids=[row.key for row in ROWS])
def test_formulas_are_marked_in_pairs_and_stand_free(row):
    for text in written(row):
        assert text.count("$") % 2 == 0, text
        assert all(formula == formula.strip() for formula in MARKED.findall(text)), text
        assert not re.search(r"\w\$|\$[\w$]", MARKED.sub("$", text)), text
    assert not FORMULA_ONLY.search(MARKED.sub("", row.statement)), row.statement


def test_stored_claims_are_plain_and_get_their_marks_back():
    texts = [getattr(claim, name) for entry in STORED for claim in entry.claims for name in TEXTS]
    assert not any("$" in text for text in texts)
    marked = [getattr(claim, name) for claim in SHOWN for name in TEXTS]
    assert [plain(text) for text in marked] == texts
    by_key = {claim.key: claim for claim in SHOWN}
    for row in ROWS:
        signs = sum(getattr(by_key[row.key], name).count("$") for name in TEXTS)
        assert signs == sum(text.count("$") for text in written(row)), row.key


def test_a_claim_is_plain_and_its_row_marks_it():
    found = Measured([1.0, 2.0], where=[1, 2], numbers={"tokens": 8})
    row = law(
        "k", "The root $√n$ rises.", lambda data: found, at_least(1),
        proof="proved", interval_from="half of $n$", hypotheses="$n = {tokens:g}$, $e^{2t}$", note="of $n = {tokens}$",
    )  # fmt: skip
    claim = row.judge({})
    assert (claim.statement, claim.interval_from) == ("The root √n rises.", "half of n")
    assert (claim.hypotheses, claim.note) == ("n = 8, e^{2t}", "of n = 8; holds at 2 of 2 points")
    marked = row.marked(claim)
    assert (marked.statement, marked.interval_from) == (row.statement, row.interval_from)
    assert (marked.hypotheses, marked.note) == ("$n = 8$, $e^{2t}$", "of $n = 8$; holds at 2 of 2 points")
    assert row.marked(marked) == marked
    assert FIELD.search(row.hypotheses) and not FIELD.search(marked.hypotheses)


def test_a_text_that_is_not_the_row_s_any_more_stays_plain():
    row = law("k", "It is $√n$.", lambda data: 1.0, at_least(1), proof="proved", interval_from="$n$")
    other = law("k", "It was √n.", lambda data: 1.0, at_least(1), proof="proved", interval_from="m")
    claim = other.judge({})
    assert row.marked(claim) == claim
    entry = record.Entry("one", "Title", record.DONE, "command", claims=(claim,))
    assert record.marked(entry, figure.Broken("no such file")) == entry
