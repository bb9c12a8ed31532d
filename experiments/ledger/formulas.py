r"""Formulas in the texts of rows: written once, in Unicode between dollar signs, and typeset where a page can do so.

A row says `"S is $√(1 − λⁿ)$."`. A terminal and JSON show it `plain`. `latex` writes one formula for the docs, in forms
that Sphinx and GitHub share: no `\operatorname`, no `|`, and no backslash before a sign. `mathml` writes it for the
report, which loads nothing.

What is read: `√(…)` and `√` of one factor; `^(…)`, `^{…}` and `_{…}`, whose brackets go; `^` and `_` before a letter,
a number or a name; raised and lowered characters; `|…|` and `‖…‖` in pairs; names of functions. A space between two
factors stays a narrow one.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

MARKED = re.compile(r"\$([^$]+)\$")
FUNCTIONS = {"cos", "cosh", "exp", "log", "max", "min", "sin", "sinh", "tanh"}
NAMES = {"SA", "TV", "base", "diam", "elu", "erf", "model", "relu", "res", "sign", "softmax", "tr"}
PREFIXES = {*FUNCTIONS, "Σ", "Π", "E"}  # a root goes on over what follows them
CLOSING = {"(": ")", "[": "]", "{": "}", "⟨": "⟩", "|": "|", "‖": "‖"}
SIGNS = "+-−=<>≤≥≈~→·×±∓,:/"
ACCENTS = {"\u0302": ("hat", "^"), "\u0303": ("tilde", "~"), "\u0304": ("bar", "¯"), "\u0307": ("dot", "˙")}
LATEX = {
    **{"−": "-", "<": r"\lt", ">": r"\gt", "≤": r"\leq", "≥": r"\geq", "≈": r"\approx", "~": r"\sim", "→": r"\to"},
    **{"·": r"\cdot", "×": r"\times", "±": r"\pm", "∓": r"\mp", "…": r"\ldots", "⋯": r"\cdots", "∞": r"\infty"},
    **{"Σ": r"\sum", "Π": r"\prod", "∂": r"\partial", "ℓ": r"\ell", "ε": r"\varepsilon", "φ": r"\varphi"},
    **{"λ": r"\lambda", "*": r"\ast", "'": r"\prime", "⊤": r"\top", "⟨": r"\langle ", "⟩": r"\rangle"},
}
BARS = {"|": (r"\lvert ", r"\rvert"), "‖": (r"\lVert ", r"\rVert")}
RAISED, LOWERED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁻ⁿᵀ", "₀₁₂₃₄₅₆₇₈₉"
MOVED = str.maketrans(RAISED + LOWERED, "0123456789−n⊤0123456789")
NUMBER = re.compile(r"(\d+(?:\.\d+)?)(?:e([+-]?\d+))?")
BELOW = re.compile(r"[A-Za-z0-9]+(?:,[A-Za-z0-9]+)*'?|[^\s(]")
ABOVE = re.compile(r"[−-]?(?:[A-Za-z]+|\d+(?:\.\d+)?|[^\s({|‖])")


@dataclass(frozen=True)
class Part:
    """A part of a formula: a leaf with its text, or what has parts.

    Leaves are a `letter`, `number`, `name`, `function` before its argument, `sign` between two parts, `minus` before
    one, or `space`. A `row` is one part after the other, a `group` is that in brackets, whose first is its text;
    `scripts` have a part, what stands below and what above, an `accent` and a `root` the part under them; a `fraction`
    is one character.
    """

    kind: str
    text: str = ""
    parts: tuple["Part", ...] = ()


NOTHING = Part("row")


def plain(text: str) -> str:
    """A text without the marks of its formulas.

    Example:
        >>> plain("The norm is $‖x‖²$.")
        'The norm is ‖x‖².'
    """
    return MARKED.sub(r"\1", text)


def check(text: str) -> None:
    """Read every formula of a text.

    Raises:
        ValueError: one that cannot be read.
    """
    for formula in MARKED.findall(text):
        try:
            _Reader(formula).formula()
        except ValueError as error:
            raise ValueError(f"{error} in {text!r}") from None


def latex(formula: str) -> str:
    r"""A formula for MathJax.

    Raises:
        ValueError: a bracket or bar without its end, or a character that no formula has.

    Example:
        >>> print(latex("√((1 − λⁿ)/n)"), latex("e^(−σ²‖q‖²/2)"), latex("log₂ |x_ij|"))
        \sqrt{(1-\lambda^{n})/n} e^{-\sigma^{2}\lVert q\rVert^{2}/2} \log_2\thinspace\lvert x_{ij}\rvert
    """
    return _latex(_Reader(formula).formula())


def mathml(formula: str) -> str:
    """A formula for a page without MathJax, with the plain one for who cannot see it.

    Raises:
        ValueError: as `latex`.

    Example:
        >>> mathml("x² < 1")
        '<math alttext="x² &lt; 1"><mrow><msup><mi>x</mi><mn>2</mn></msup><mo>&lt;</mo><mn>1</mn></mrow></math>'
    """
    return f'<math alttext="{escape(formula)}">{_mathml(_Reader(formula).formula())}</math>'


class _Reader:
    """Reads a formula from left to right."""

    def __init__(self, formula: str) -> None:
        self.text, self.at = unicodedata.normalize("NFD", formula), 0

    def formula(self) -> Part:
        """All of it."""
        return self._row("")

    def _next(self, pattern: re.Pattern[str] | str) -> str:
        """What stands here, where it is so; then it is behind."""
        found = re.compile(pattern).match(self.text, self.at)
        self.at = found.end() if found else self.at
        return found[0] if found else ""

    def _row(self, end: str) -> Part:
        """Parts up to the end of the brackets that are open; a space counts between two parts without a sign."""
        parts: list[Part] = []
        while True:
            space = self._next(r"\s+")
            if self.at == len(self.text) or self.text[self.at] == end:
                break
            before = parts[-1].kind if parts else "sign"
            part = self._part(alone=before in ("sign", "minus"))
            if space and before != "sign" and part.kind != "sign":
                parts.append(Part("space"))
            parts.append(part)
        if end and not self._next(re.escape(end)):
            raise ValueError(f"`formula` must have a {end} for each that is open, got {self.text!r}")
        return _joined(parts)

    def _part(self, *, alone: bool = False) -> Part:
        """One part with all that stands below and above it."""
        base = self._base(alone=alone)
        below, above = list[Part](), list[Part]()
        while True:
            if self._next("_"):
                below.append(self._bracketed("{") or self._short(BELOW))
            elif self._next(r"\^"):
                above.append(self._bracketed("({|") or self._short(ABOVE))
            elif sign := self._next("['*]"):
                above.append(Part("letter", sign))
            elif lowered := self._next(f"[{LOWERED}]+"):
                below.append(_Reader(lowered.translate(MOVED)).formula())
            elif raised := self._next(f"[{RAISED}]+"):
                above.append(_Reader(raised.translate(MOVED)).formula())
            else:
                break
        return Part("scripts", parts=(base, _joined(below), _joined(above))) if below or above else base

    def _short(self, pattern: re.Pattern[str]) -> Part:
        """What stands below or above without brackets."""
        if not (text := self._next(pattern)):
            raise ValueError(f"`formula` must have something after each _ and ^, got {self.text!r}")
        return _Reader(text).formula()

    def _bracketed(self, kinds: str) -> Part | None:
        """What stands in brackets here, without them; bars stay."""
        opening = self.text[self.at : self.at + 1]
        if not opening or opening not in kinds:
            return None
        if opening == "|":
            return self._base()
        self.at += 1
        return self._row(CLOSING[opening])

    def _root(self) -> Part:
        """What a root covers: brackets, or one factor with the functions before it."""
        if inside := self._bracketed("("):
            return inside
        parts = [self._part()]
        while (parts[-1].parts[0] if parts[-1].kind == "scripts" else parts[-1]).text in PREFIXES:
            parts += [Part("space")] if self._next(r"\s+") else []
            parts.append(self._part())
        return _joined(parts)

    def _base(self, *, alone: bool = False) -> Part:
        """A part without what stands below and above it."""
        if self._next("√"):
            return Part("root", parts=(self._root(),))
        if number := self._next(NUMBER):
            return _number(number)
        if name := self._next(rf"(?:{'|'.join(FUNCTIONS | NAMES)})(?![A-Za-z])"):
            return Part("function" if name in FUNCTIONS else "name", name)
        here = self._next(".")
        if here and here in "([⟨|‖":
            return Part("group", here, (self._row(CLOSING[here]),))
        if here and here in SIGNS:
            return Part("minus" if alone and here in "−-±∓+" else "sign", here)
        if mark := self._next(f"[{''.join(ACCENTS)}]"):
            return Part("accent", mark, (Part("letter", here),))
        if unicodedata.decomposition(here or " ").startswith("<fraction>"):
            above, below = unicodedata.normalize("NFKC", here).split("\u2044")
            return Part("fraction", parts=(Part("number", above), Part("number", below)))
        if not here or not (here.isalpha() or here in LATEX):
            raise ValueError(f"`formula` must not have {here or 'its end'!r} here, got {self.text!r}")
        return Part("function" if here in "ΣΠ" else "letter", here)


def _joined(parts: Sequence[Part]) -> Part:
    return parts[0] if len(parts) == 1 else Part("row", parts=tuple(parts))


def _number(text: str) -> Part:
    """A number; 2e-14 as 2 · 10^(−14)."""
    digits, exponent = NUMBER.fullmatch(text).groups()  # pyright: ignore[reportOptionalMemberAccess]
    if exponent is None:
        return Part("number", digits)
    power = _Reader(f"10^({int(exponent)})").formula()
    return power if digits == "1" else Part("row", parts=(Part("number", digits), Part("sign", "·"), power))


def _latex(part: Part) -> str:
    """A part in LaTeX."""
    inner = [_latex(each) for each in part.parts]
    match part.kind:
        case "row":
            return _latex_row(part.parts)
        case "group":
            ends = part.text, CLOSING[part.text]
            first, last = BARS.get(part.text) or (LATEX.get(end, end) for end in ends)
            return f"{first}{inner[0]}{last}"
        case "scripts":
            base, below, above = inner
            lowered = f"_{below if len(below) == 1 else f'{{{below}}}'}" if below else ""
            return base + lowered + (f"^{{{above}}}" if above else "")
        case "accent":
            return rf"\{ACCENTS[part.text][0]}{{{_greek(part.parts[0].text)}}}"
        case "root":
            return rf"\sqrt{{{inner[0]}}}"
        case "fraction":
            return rf"\frac{{{inner[0]}}}{{{inner[1]}}}"
        case "name":
            return rf"\mathrm{{{part.text}}}"
        case "function" if part.text in FUNCTIONS:
            return rf"\{part.text}"
        case _:
            return LATEX.get(part.text) or _greek(part.text)


def _latex_row(parts: tuple[Part, ...]) -> str:
    """Parts one after the other; TeX itself sets a space beside a function, but none before brackets."""
    text = ""
    for at, part in enumerate(parts):
        written = _latex(part)
        if part.kind == "space":
            left, right = (_core(parts[at + step]).kind for step in (-1, 1))
            written = "" if right == "function" or (left == "function" and right != "group") else r"\thinspace"
        text += " " * bool(re.search(r"\\[A-Za-z]+$", text) and re.match("[A-Za-z]", written)) + written
    return text


def _core(part: Part) -> Part:
    return part.parts[0] if part.kind == "scripts" else part


def _greek(letter: str) -> str:
    r"""A Greek letter as a command, such as \alpha; every other one as it is."""
    words = unicodedata.name(letter, "").split() if len(letter) == 1 else []
    if words[:1] != ["GREEK"]:
        return letter
    return "\\" + (words[-1].capitalize() if "CAPITAL" in words else words[-1].lower())


def _mathml(part: Part) -> str:
    """A part in MathML."""
    inner = [_mathml(each) for each in part.parts]
    match part.kind:
        case "row":
            return f"<mrow>{''.join(inner)}</mrow>"
        case "group":
            first, last = (
                f'<mo form="{form}" stretchy="false" lspace="0" rspace="0">{end}</mo>'
                for form, end in (("prefix", part.text), ("postfix", CLOSING[part.text]))
            )
            return f"<mrow>{first}{inner[0]}{last}</mrow>"
        case "scripts":
            below, above = (each != NOTHING for each in part.parts[1:])
            kind = f"m{'sub' * below}{'sup' * above}"
            return f"<{kind}>{inner[0]}{inner[1] * below}{inner[2] * above}</{kind}>"
        case "accent":
            return f'<mover accent="true">{inner[0]}<mo stretchy="false">{ACCENTS[part.text][1]}</mo></mover>'
        case "root":
            return f"<msqrt>{inner[0]}</msqrt>"
        case "fraction":
            return f"<mfrac>{''.join(inner)}</mfrac>"
        case "space":
            return '<mspace width="0.17em"/>'
        case "number":
            return f"<mn>{part.text}</mn>"
        case "minus":
            return f'<mo form="prefix" lspace="0" rspace="0">{part.text.replace("-", "−")}</mo>'
        case "sign" if part.text == "/":
            return '<mo lspace="0" rspace="0">/</mo>'
        case "sign":
            return f"<mo>{escape(part.text.replace('-', '−'))}</mo>"
        case "function" if part.text in "ΣΠ":
            return f"<mo>{'∑' if part.text == 'Σ' else '∏'}</mo>"
        case _:
            return f"<mi>{part.text.replace(chr(39), '′').replace('*', '∗')}</mi>"
