"""README as a package index shows it: its links and its picture lead to the repository, or are plain where it has none.

Hatchling calls this where a wheel or an sdist is built. The address is `Repository` of `[project.urls]`.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"\[([^]]+)\]\((?!https?:|mailto:)([^)#\s]*)(#[^)\s]*)?\)")
PICTURE = re.compile(r'(src|srcset)="(?!https?:)([^"]+)"')


def readme(text: str, repository: str | None) -> str:
    """README with absolute addresses; without a repository, without its picture and with words in place of links.

    Raises:
        ValueError: the address is not one of a repository on GitHub.
    """
    if repository is None:
        return LINK.sub(r"\1", re.sub(r"<picture>.*?</picture>\n*", "", text, flags=re.DOTALL))
    match = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?/?", repository)
    if match is None:
        raise ValueError(f"`Repository` must be https://github.com/OWNER/NAME, got {repository}")
    page, file = f"https://github.com/{match[1]}/blob/main", f"https://raw.githubusercontent.com/{match[1]}/main"
    return PICTURE.sub(rf'\1="{file}/\2"', LINK.sub(lambda link: f"[{link[1]}]({page}/{link[2]}{link[3] or ''})", text))


class Hook(MetadataHookInterface):
    """What Hatchling asks for."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Give the distribution its README."""
        root = Path(self.root)
        urls = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"].get("urls", {})
        text = readme((root / "README.md").read_text(encoding="utf-8"), urls.get("Repository"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
