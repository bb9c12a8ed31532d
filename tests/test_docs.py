"""What the pages say exists: every function, test, figure, argument, symbol and link that they name."""

import functools
import importlib
import inspect
import re
import types

import pytest

from experiments.lib import figure
from rc_jax.cli.command import EXAMPLES
from rc_jax.collapse import audit
from tests.pages import DOCS, MARKDOWN, PAGES, ROOT, formulas, without_mathematics

PACKAGES = ("attention", "network", "collapse", "scale", "sparsity", "ensemble", "special")


def rows_of(page):
    """The rows of all tables of a page that have names in code."""
    return [
        [cell.strip() for cell in line.strip().strip("|").split("|")]
        for line in (DOCS / page).read_text("utf-8").splitlines()
        if line.startswith("| ") and "`" in line
    ]


def names(cell):
    return re.findall(r"`([^`]+)`", cell)


@functools.cache
def found_tests(path):
    return set(re.findall(r"^def (test_\w+)\(", (ROOT / path).read_text("utf-8"), re.MULTILINE))


def assert_test_exists(name):
    path, _, function = name.partition("::")
    assert function in found_tests(path), name


def resolve(name):
    """What a dotted name below rc_jax stands for; a field of a specification or of parameters counts."""
    parts = name.split(".")
    value, rest = importlib.import_module(f"rc_jax.{parts[0]}"), parts[1:]
    for part in rest:
        fields = {**getattr(value, "__dataclass_fields__", {}), **dict.fromkeys(getattr(value, "_fields", ()))}
        assert hasattr(value, part) or part in fields, name
        value = getattr(value, part, None)
    return value


EQUATIONS = rows_of("equations.md")


@pytest.mark.parametrize("row", EQUATIONS, ids=[row[0] for row in EQUATIONS])
def test_row_resolves(row):
    equation, source, functions, tests, figures = row
    assert equation and source and names(functions) and names(tests)
    for name in names(functions):
        package, _, attribute = name.partition(".")
        assert hasattr(importlib.import_module(f"rc_jax.{package}"), attribute)
    for name in names(tests):
        assert_test_exists(name)
    for name in names(figures):
        assert name in figure.names(), name


# What carries no formula: a loop over layers, where and how an ensemble runs, and a function's old name;
# `attention.init` is `network.init`'s.
WITHOUT_FORMULA = {"attention.init", "network.scan_layers", "ensemble.alone", "ensemble.kept", "scale.optimize_scale"}


def test_every_package_is_covered_whole():
    """Every public function that carries a formula stands in the table."""
    listed = {name for row in EQUATIONS for name in names(row[2])}
    taught = set()
    for package in PACKAGES:
        module = importlib.import_module(f"rc_jax.{package}")
        has_more = (ROOT / "rc_jax" / package / "more.py").exists()
        more = importlib.import_module(f"rc_jax.{package}.more").__all__ if has_more else []
        kinds = {name: getattr(module, name) for name in [*module.__all__, *more]}
        taught |= {f"{package}.{name}" for name, each in kinds.items() if not isinstance(each, type | types.UnionType)}
    assert taught - WITHOUT_FORMULA <= listed, sorted(taught - WITHOUT_FORMULA - listed)
    assert taught >= WITHOUT_FORMULA


# Notation

SYMBOLS = [row for row in rows_of("notation.md") if len(row) == 5 and "](" in row[4] and "`" not in row[0]]
ALL_NOTATION = [name for row in rows_of("notation.md") for cell in row for name in names(cell)]


@pytest.mark.parametrize("name", sorted(set(ALL_NOTATION)))
def test_notation_resolves(name):
    """A file, or a name below rc_jax; in brackets an argument of it."""
    if name.endswith(".py"):
        assert (ROOT / name).exists()
        return
    dotted, _, argument = name.removesuffix(")").partition("(")
    function = resolve(dotted)
    if argument:
        assert argument in inspect.signature(function).parameters


def test_symbols_stand_on_the_page_that_is_linked():
    assert len(SYMBOLS) > 50
    missing = []
    for symbols, meaning, _, code, link in SYMBOLS:
        text = (DOCS / re.findall(r"\]\((\w+\.md)\)", link)[0]).read_text("utf-8")
        symbols = symbols.replace("$", "")
        assert meaning and (names(code) or code.startswith("– ")), symbols
        missing += [
            (symbol, link)
            for symbol in re.split(r", (?![^()]*\))", symbols)
            if not re.search(rf"(?<!\w){re.escape(symbol)}(?![a-z])", text)
        ]
    assert not missing


def test_arguments_called_by_a_letter_are_explained():
    """In every package that has one: alpha, beta, gamma, lam, rho, sigma, and arguments of a single letter."""
    with_argument = [name.rstrip(")").split("(") for name in ALL_NOTATION if "(" in name]
    explained = {(function.split(".")[0], argument) for function, argument in with_argument}
    letters = re.compile(r"[a-z]|alpha|beta|gamma|lam|rho|sigma")
    by_letter = set()
    for package in (*PACKAGES, "collapse.audit"):
        module = importlib.import_module(f"rc_jax.{package}")
        for name in module.__all__:
            if callable(each := getattr(module, name)) and not isinstance(each, type):
                by_letter |= {
                    (package.split(".")[0], argument)
                    for argument in inspect.signature(each).parameters
                    if letters.fullmatch(argument)
                }
    # x is what a function is a function of; merge(a, b) takes two statistics
    left_out = {("collapse", "x"), ("sparsity", "x"), ("ensemble", "a"), ("ensemble", "b")}
    assert len(by_letter) > 15 and by_letter - left_out <= explained, sorted(by_letter - left_out - explained)


# The proof

PROOF = [row for row in rows_of("proof.md") if len(row) == 3 and "::" in row[2]]


@pytest.mark.parametrize("row", PROOF, ids=[row[0] for row in PROOF])
def test_steps_of_the_proof_resolve(row):
    """Each function of a step is called by one of the tests beside it."""
    _, functions, tests = row
    assert names(functions) and names(tests)
    bodies = ""
    for test in names(tests):
        assert_test_exists(test)
        path, _, function = test.partition("::")
        text = (ROOT / path).read_text("utf-8")
        bodies += re.search(rf"^((?:@.*\n)*)def {function}\(.*\n(?:(?:[ )].*)?\n)*", text, re.MULTILINE)[0]
    for name in names(functions):
        resolve(name)
        assert re.search(rf"\b{name.rpartition('.')[2]}\b", bodies), name


def test_every_inequality_of_the_audit_is_on_the_proofs_page():
    table = {name for row in PROOF for name in names(row[1])}
    public = {f"collapse.audit.{name}" for name in audit.__all__ if not isinstance(getattr(audit, name), type)}
    assert public <= table, sorted(public - table)


def anchors(path):
    """What GitHub and the site make of a page's headings: small letters, no punctuation, hyphens for spaces."""
    text = re.sub(r"```.*?```", "", path.read_text("utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_pages_resolve():
    for page in PAGES:
        for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)", page.read_text("utf-8")):
            linked = page.parent / target if target else page
            assert linked.exists(), f"{page.name} links to {target}"
            assert not anchor or anchor in anchors(linked), f"{page.name} links to {target}#{anchor}"


def test_tests_named_on_pages_exist():
    """Wherever a page writes `tests/…::test_x`."""
    for page in PAGES:
        for name in re.findall(r"`(tests/[\w/]+\.py::\w+)`", page.read_text("utf-8")):
            assert_test_exists(name)


# Markdown

# Emphasis that begins or ends inside a formula: `α*² … α*²`, `‖X‖_∞ … ‖X‖_∞`, or bold lost to a star: `**… α* …**`.
SWALLOWED = re.compile(r"[^\s(>\[\"“]<(?:em|strong)>|<em><em>|</(?:em|strong)>[\w²³‖(\[^{]")


def swallowed(text):
    """Passages of a Markdown page in which `*` or `_` of a formula is taken for emphasis, each with its line."""
    blocks = []
    for token in MARKDOWN.parse(without_mathematics(text)):
        if token.type == "inline":
            html = MARKDOWN.renderInline(token.content)
            inside = re.findall(r"<em>(.*?)</em>", html, re.DOTALL)
            torn = [each for each in inside if any(each.count(a) != each.count(b) for a, b in ("()", "[]", "{}"))]
            if torn or SWALLOWED.search(html):
                blocks.append((token.map[0] + 1, token.content))
    return blocks


@pytest.mark.parametrize(
    "text",
    [
        "the maximum is α*(1 − 1/(1 + 2α*²)) = 2α*³/(1 + 2α*²)",
        "**it does not grow for ever: α* < √(d/2)**",
        "**The annealed α*(64) = 1.55**",
        "m_k = ∫_{−r}^∞ (r + ε)^k φ(ε) dε = r m_{k−1}",
        "‖M‖_∞ the largest row sum, ‖M‖_{1,∞} both",
        "| a |\n|---|\n| ‖X‖_{1,∞} = √(‖X‖₁‖X‖_∞) |",
    ],
)
def test_a_swallowed_formula_is_seen(text):
    assert swallowed(text)
    assert not swallowed(text.replace("α*", "α\\*").replace("_", "\\_"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_star_or_underscore_of_a_formula_is_taken_for_emphasis(page):
    assert not swallowed(page.read_text("utf-8"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_latex_is_what_github_leaves_alone(page):
    """GitHub takes a backslash before punctuation for its own, and refuses new macros and operatorname."""
    for formula in formulas(page.read_text("utf-8")):
        assert not re.search(r"\\[,;:!{}|]|\\\\|\\newcommand|\\operatorname", formula), formula
        assert formula.count("{") == formula.count("}"), formula
        opened, closed = (len(re.findall(rf"{side}(?!arrow)", formula)) for side in ("left", "right"))
        assert opened == closed, formula
        assert formula.isascii(), formula


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_formulas_apart_have_no_backticks(page):
    """Markdown is not read inside an indented formula: backticks there are printed."""
    for token in MARKDOWN.parse(page.read_text("utf-8")):
        assert token.type != "code_block" or "`" not in token.content, token.map


def test_the_ordinary_scale_comes_first():
    """The first `rc-jax scale` of a page is that of q·k, and each that asks for cosines is said to."""
    pages = {page: page.read_text("utf-8") for page in PAGES if re.search(r"rc-jax scale \d", page.read_text("utf-8"))}
    assert {"README", "start", "choose-a-scale", "optimal_scale"} <= {page.stem for page in pages}
    for page, text in pages.items():
        first, *_ = calls = [
            text[max(0, match.start() - 200) : match.end()] for match in re.finditer(r"rc-jax scale \d[^`\n]*", text)
        ]
        assert "--head-dim" in first and "dim" not in first.replace("--head-dim", "").rpartition("rc-jax")[2], page.name
        for call in calls:
            if "--dim" in call or "--cosine-dim" in call:
                assert re.search("cosine|ormalised", call), (page.name, call)
    assert EXAMPLES["scale"][0] == "scale 8192 --head-dim 128"


def test_a_page_is_linked_by_another():
    """From a sentence or a table, not from a list of contents alone."""
    linked = {
        (page.parent / target).resolve()
        for page in PAGES
        for target in re.findall(r"\]\((?!https?:)([^)#\s]+)", page.read_text("utf-8"))
        if (page.parent / target).resolve() != page
    }
    notebooks = [page.with_suffix(".ipynb") for page in PAGES if page.parent.name == "notebooks"]
    pages = [page for page in PAGES if page.parent.name != "notebooks" and page != ROOT / "README.md"]
    assert {page.resolve() for page in pages + notebooks} - linked == set()


def test_every_figure_has_a_small_picture():
    for name in figure.names():
        picture = DOCS / "pictures" / f"{name}.webp"
        assert picture.stat().st_size <= 50_000, name
        if hasattr(figure.load(name), "animate"):
            assert (DOCS / "pictures" / "moving" / f"{name}.webp").stat().st_size <= 200_000, name
            assert f"](pictures/moving/{name}.webp)" in (DOCS / "gallery.md").read_text("utf-8")
