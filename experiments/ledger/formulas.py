r"""Formulas in the texts of rows: LaTeX between dollar signs, which the site and the report typeset.

A row says `r"$S$ is $\sqrt{1-\lambda^{n}}$."`. `claims.json` and Markdown have it as it is written, in forms that
Sphinx and GitHub share: no `\operatorname`, no `|`, and no backslash before a sign. A terminal shows it `plain`.
"""

import re
import unicodedata

MARKED = re.compile(r"\$([^$]+)\$")
NUMBER = re.compile(r"(\d+(?:\.\d+)?)e([+-]?\d+)")
SIGNS = {
    **{"lt": "<", "gt": ">", "leq": "≤", "geq": "≥", "approx": "≈", "sim": "~", "to": "→", "cdot": "·", "times": "×"},
    **{"pm": "±", "mp": "∓", "ldots": "…", "cdots": "⋯", "infty": "∞", "sum": "Σ", "prod": "Π", "partial": "∂"},
    **{"ell": "ℓ", "ast": "*", "prime": "'", "top": "ᵀ", "langle": "⟨", "rangle": "⟩"},
    **{"lvert": "|", "rvert": "|", "lVert": "‖", "rVert": "‖", "varepsilon": "ε", "varphi": "φ"},
}
ACCENTS = {"hat": "\u0302", "tilde": "\u0303", "bar": "\u0304", "dot": "\u0307"}
FUNCTIONS = "cosh|cos|exp|log|max|min|sinh|sin|tanh|tan"
RAISED = str.maketrans("0123456789-n", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻ⁿ")


def check(text: str) -> None:
    """Look whether every formula of a text ends, and every brace in it.

    Raises:
        ValueError: one does not.
    """
    if text.count("$") % 2:
        raise ValueError(f"a formula must stand between two dollar signs, got {text!r}")
    for formula in MARKED.findall(text):
        if formula.count("{") != formula.count("}"):
            raise ValueError(f"a formula must have a }} for each {{, got {formula!r} in {text!r}")


def plain(text: str) -> str:
    r"""A text in words and signs, for a terminal and for who cannot see a formula.

    Example:
        >>> print(plain(r"The norm is $\lVert x\rVert^{2}\leq\sqrt{\log n}$."), plain(r"$e^{-\frac{1}{2}x_{ij}}$"))
        The norm is ‖x‖² ≤ √(log n). e^(−1/2x_ij)
    """
    return MARKED.sub(lambda formula: _plain(formula[1]), text)


def _plain(formula: str) -> str:
    """One formula: groups from the inside to the outside, then the commands that are left."""
    formula = formula.replace(r"\thinspace", "\u2009")  # a space that no command takes for its end
    formula = re.sub(rf"(?<=\w)\\({FUNCTIONS})", r" \\\1", formula)
    before = ""
    while before != formula:
        before = formula
        formula = re.sub(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", r"\1/\2", formula)
        formula = re.sub(r"\\(hat|tilde|bar|dot)\{([^{}]*)\}", lambda m: _letter(m[2]) + ACCENTS[m[1]], formula)
        formula = re.sub(r"(\\mathrm|\\sqrt|[\^_])\{([^{}]*)\}", _group, formula)
    formula = re.sub(r"\\[A-Za-z]+ ?", lambda command: _letter(command[0]), formula)
    formula = re.sub(r" *([=<>≤≥≈~→±∓]) *", r" \1 ", formula)
    formula = re.sub(r"(?<=[\w)\]'*|‖]) *([+-]) *", r" \1 ", formula)  # between two terms
    return re.sub("[ \u2009]+", " ", unicodedata.normalize("NFC", formula)).strip().replace("-", "−")


def _group(found: re.Match[str]) -> str:
    """What stands in braces after a name, a root, or a sign that raises or lowers it."""
    kind, inside = found[1], found[2]
    short = len(re.sub(r"\\[A-Za-z]+ ?", "x", inside)) == 1
    if kind == r"\mathrm":
        return inside
    if kind == "_":
        return f"_{inside}"
    if kind == r"\sqrt":
        return f"√{inside}" if short else f"√({inside})"
    if inside in (r"\top", r"\prime", r"\ast"):
        return _letter(inside)
    if re.fullmatch(r"-?[\dn]+", inside):
        return inside.translate(RAISED)
    return f"^{inside}" if short else f"^({inside})"


def _letter(command: str) -> str:
    """The sign of a command, a Greek letter, or the name of a function."""
    name = command.strip().removeprefix("\\")
    if name in SIGNS:
        return SIGNS[name]
    size = "CAPITAL" if name[:1].isupper() else "SMALL"
    try:
        return unicodedata.lookup(f"GREEK {size} LETTER {name.replace('lambda', 'lamda').replace('Lambda', 'Lamda')}")
    except KeyError:
        return name + " " * command.endswith(" ")
