"""README as a package index shows it: no relative link or picture is left, and those it has lead to files."""

import importlib.util
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")


@pytest.fixture(scope="module")
def hook():
    pytest.importorskip("hatchling")
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def addresses(text):
    return re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|srcset)="([^"]+)"', text)


@pytest.mark.parametrize(
    "address", ["https://github.com/someone/attention", "https://github.com/someone/attention.git"]
)
def test_links_and_pictures_lead_to_the_repository(hook, address):
    page, file = (
        "https://github.com/someone/attention/blob/main/",
        "https://raw.githubusercontent.com/someone/attention/main/",
    )
    own = [each for each in addresses(hook.readme(README, address)) if "someone" in each]
    assert len(own) == len([each for each in addresses(README) if not each.startswith("http")]) > 10
    for each in own:
        assert (ROOT / each.removeprefix(page).removeprefix(file).partition("#")[0]).is_file(), each
        assert each.startswith(file if each.endswith(".webp") else page)


def test_without_a_repository_words_stand_in_place_of_links(hook):
    shown = hook.readme(README, None)
    assert all(each.startswith("http") for each in addresses(shown)) and "<img" not in shown
    assert "choose a scale" in shown or "why" in shown
    assert re.findall(r"^```.*?^```", shown, re.DOTALL | re.MULTILINE) == re.findall(
        r"^```.*?^```", README, re.DOTALL | re.MULTILINE
    )


def test_an_address_elsewhere_is_refused(hook):
    with pytest.raises(ValueError, match=r"must be https://github\.com/OWNER/NAME, got https://elsewhere"):
        hook.readme(README, "https://elsewhere.org/x")
