"""Write the public address into CITATION.cff and docs/citation.md: `python docs/address.py` after setting it.

It is set in one place, `Repository` under `[project.urls]` of pyproject.toml. While that is empty, both files say so.
"""

import pathlib
import re
import tomllib

ROOT = pathlib.Path(__file__).parent.parent
FILES = (ROOT / "CITATION.cff", ROOT / "docs" / "citation.md")
NONE = "There is no public address yet"
LINE = re.compile(r"^(?:# )?repository-code:.*$", re.MULTILINE)
FIELD = re.compile(r"^  url     = .*\n", re.MULTILINE)
SENTENCE = re.compile(r"(?<=<!-- address -->\n).*?(?=\n<!-- /address -->)", re.DOTALL)


def address(project: str) -> str | None:
    """`Repository` of the text of pyproject.toml; None where there is none."""
    return tomllib.loads(project)["project"].get("urls", {}).get("Repository")


def written(text: str, address: str | None) -> str:
    """One of the two files with the address, or with the sentence that there is none.

    Raises:
        ValueError: the text has no place for it.
    """
    if LINE.search(text):  # CITATION.cff
        line = f"repository-code: {address}" if address else f"# repository-code: {NONE[0].lower()}{NONE[1:]}"
        return LINE.sub(line, text)
    if not SENTENCE.search(text):
        raise ValueError("a file to cite by must have a line `repository-code:` or a place `<!-- address -->`")
    said = f"The address is <{address}>." if address else f"{NONE}: say the version, and the commit where you have it."
    text = FIELD.sub("", SENTENCE.sub(said, text))
    entry = "  version = {"
    return text.replace(entry, f"  url     = {{{address}}},\n{entry}", 1) if address else text


if __name__ == "__main__":
    at = address((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    for file in FILES:
        file.write_text(written(file.read_text(encoding="utf-8"), at), encoding="utf-8")
