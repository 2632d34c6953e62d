"""What a release says of the place where the project lives.

    make dist ADDRESS=https://github.com/owner/asyncio-operator

gives both wheels and both sdists URLs, and a description whose links lead to that repository: an index shows the README
apart from its files. Without an address there are no URLs, and links stay as they are. Both builds call this as their
metadata hook (`tool.hatch.metadata.hooks.custom`). It is in this folder because the sdist of the proof has no other.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?![a-z]+:|#)([^)\s]+)(\s+\"[^\"]*\")?\)")
"""A link of Markdown to a file: whether it is a picture, its text, the path, and its title."""

PAGES = {
    "Documentation": "blob/main/docs/index.md",
    "Source": "",
    "Changelog": "blob/main/CHANGELOG.md",
    "Issues": "issues",
}
"""The URLs of a project, below its address."""


class Address(MetadataHookInterface):
    """Adds the URLs and the description."""

    def update(self, metadata: dict[str, Any]) -> None:
        """See `MetadataHookInterface`."""
        address = os.environ.get("ADDRESS", "").rstrip("/")
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        if address:
            metadata["urls"] = {name: f"{address}/{path}".rstrip("/") for name, path in PAGES.items()}
            text = absolute(text, address)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def absolute(text: str, address: str) -> str:
    """Markdown whose links to files lead to the repository at an address, and its pictures to the files themselves."""

    def to_repository(link: re.Match[str]) -> str:
        picture, shown, path, title = link.groups(default="")
        return f"{picture}[{shown}]({address}/{'raw' if picture else 'blob'}/main/{path}{title})"

    return LINK.sub(to_repository, text)
