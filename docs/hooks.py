"""What the site makes of these pages: the root's own pages join it, and links out of docs/ become names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PAGES = [page.name for page in ROOT.glob("*.md") if page.name != "README.md"]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie at the root of the repository."""
    from mkdocs.structure.files import File  # noqa: PLC0415 - only the site needs it

    for name in PAGES:
        files.append(File.generated(config, name, content=(ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Let links lead within the site, whose root is both `docs/` and the root of the repository.

    Mermaid would be loaded from elsewhere: the drawn states stand for its diagram.
    """
    up = "../" * page.file.src_uri.count("/")
    picture = f"![The states of a runner]({up}pictures/runner.svg)"
    markdown = re.sub(r"```mermaid\n.*?```", picture, markdown, flags=re.DOTALL)
    if page.file.src_uri in PAGES:
        return markdown.replace("](docs/", "](")
    return re.sub(rf"\]\((?:\.\./)+({'|'.join(map(re.escape, PAGES))})", rf"]({up}\1", markdown)
