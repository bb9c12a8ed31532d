"""Sizes and words of the house: folders, files and functions that can be seen whole, and the words of the field."""

import ast
import collections
import io
import pathlib
import re
import tokenize

import pytest

ROOT = pathlib.Path(__file__).parent.parent
SOURCES = sorted(path for name in ("rc_jax", "experiments") for path in (ROOT / name).rglob("*.py"))
MOST_FILES, MOST_LINES, MOST_CODE, LEAST_COMMENTED = 9, 350, 60, 15
# Folders that hold more files, each with the reason.
LARGE_FOLDERS: dict[str, str] = {}
PRIVATE = re.compile(
    r"\b(rooms?|doors?|lanes?|twins?|dear(?:er|est)?|portions?|shelf|shelves|recipes?)\b", re.IGNORECASE
)


def name(path):
    return path.relative_to(ROOT).as_posix()


def large_folders(paths):
    """Folders with more files than can be taken in at once; `__init__`, `blocks` and `more` do not count."""
    counts = collections.Counter(name(path.parent) for path in paths if path.stem not in ("__init__", "blocks", "more"))
    return {folder: count for folder, count in counts.items() if count > MOST_FILES}


def functions(text):
    """Name, lines of code without the docstring, and whether a comment stands inside, of every function of a file."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    comments = {each.start[0] for each in tokens if each.type == tokenize.COMMENT and "fmt:" not in each.string}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            has_docstring = ast.get_docstring(node) is not None and len(node.body) > 1
            first, last = node.body[has_docstring].lineno, node.end_lineno
            inside = range(node.body[0].end_lineno if has_docstring else node.lineno, last + 1)
            yield node.name, last - first + 1, any(line in comments for line in inside)


def too_long(text):
    return [function for function, lines, _ in functions(text) if lines > MOST_CODE]


def uncommented(text):
    return [function for function, lines, commented in functions(text) if lines > LEAST_COMMENTED and not commented]


def test_a_folder_holds_at_most_nine_files():
    large = large_folders(SOURCES)
    assert set(large) == set(LARGE_FOLDERS), large


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_file_can_be_seen_whole_and_its_functions_are_explained(path):
    text = path.read_text("utf-8")
    assert text.count("\n") <= MOST_LINES
    assert too_long(text) == []
    assert uncommented(text) == [], "a comment inside says the step in words"


NAMING = ("test_style_rules", "test_prose")  # tests that name the words


def test_a_file_of_tests_can_be_seen_whole():
    lengths = {name(path): path.read_text("utf-8").count("\n") for path in (ROOT / "tests").rglob("*.py")}
    assert {path: lines for path, lines in lengths.items() if lines > MOST_LINES} == {}


def pages():
    yield from SOURCES
    yield from (path for path in sorted((ROOT / "tests").rglob("*.py")) if path.stem not in NAMING)
    yield from (path for kind in ("*.md", "*.rst", "*.py") for path in sorted((ROOT / "docs").rglob(kind)))


def private_words(text):
    return sorted({each.lower() for each in PRIVATE.findall(text)})


def test_no_private_word():
    words = {name(path): private_words(path.read_text("utf-8")) for path in pages()}
    assert {path: some for path, some in words.items() if some} == {}


def vague(text):
    """Names bound in a file that say only that there is a value; the quantity has a name."""
    names = (getattr(each, "id", getattr(each, "arg", None)) for each in ast.walk(ast.parse(text)))
    return [each for each in names if each == "found"]


def test_no_value_is_only_found():
    files = [path for path in pages() if path.suffix == ".py"]
    assert {name(path): names for path in files if (names := vague(path.read_text("utf-8")))} == {}


def test_every_rule_can_be_broken():
    assert large_folders([ROOT / "rc_jax" / f"{number}.py" for number in range(10)]) == {"rc_jax": 10}
    assert large_folders([ROOT / "rc_jax" / f"{number}.py" for number in range(9)] + [ROOT / "rc_jax/blocks.py"]) == {}
    body = "    x = 1\n"
    assert too_long("def f():\n" + 61 * body) == ["f"] and too_long('def f():\n    """Say."""\n' + 60 * body) == []
    assert uncommented("def f():\n" + 16 * body) == ["f"]
    assert uncommented("def f():\n    # One step.\n" + 16 * body) == uncommented("def f():\n" + 15 * body) == []
    assert vague("def f(found): return found.scale") == ["found"] * 2 and vague("optimum.found = 'found'") == []
    assert private_words("A Twin in its room, and a classroom.") == ["room", "twin"]
