"""What the site makes of these pages.

The root's own pages join it, links out of docs/ become names, and pages about an example end with its files.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = {
    "how-to/delay-by-rule.md": ["log_alerts.py"],
    "how-to/django.md": ["django_shop/shop", "django_shop/orders"],
    "how-to/existing-celery-app.md": ["host_app.py"],
    "how-to/fastapi.md": ["fastapi_shop"],
}
"""Pages, and the files or folders of `examples/` that they explain."""
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
    if found := [file for name in EXAMPLES.get(page.file.src_uri, ()) for file in _files(ROOT / "examples" / name)]:
        markdown += "\n\n## The files\n" + "".join(_shown(file) for file in found)
    if page.file.src_uri in PAGES:
        return markdown.replace("](docs/", "](")
    return re.sub(rf"\]\((?:\.\./)+({'|'.join(map(re.escape, PAGES))})", rf"]({up}\1", markdown)


def _files(path: Path) -> list[Path]:
    """Return the modules of an example that have more than a docstring."""
    files = sorted(path.glob("*.py")) if path.is_dir() else [path]
    return [file for file in files if len(file.read_text(encoding="utf-8").splitlines()) > 10]


def _shown(file: Path) -> str:
    text = file.read_text(encoding="utf-8").rstrip("\n")
    return f"\n### `{file.relative_to(ROOT)}`\n\n```python\n{text}\n```\n"
