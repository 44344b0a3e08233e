"""Parts of the docs' pages that are printed from code, each between two marks such as `<!-- costs -->`."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference"


class Printed(NamedTuple):
    """What stands between the marks of a name in a page."""

    page: Path
    name: str

    def shown(self) -> str:
        """Return what stands there now."""
        _, shown, _ = self._parts()
        return shown.strip()

    def write(self, text: str) -> None:
        """Write what is to stand there."""
        before, _, after = self._parts()
        self.page.write_text(f"{before}{self._mark}\n{text}\n{self._mark}{after}", encoding="utf-8")

    @property
    def _mark(self) -> str:
        return f"<!-- {self.name} -->"

    def _parts(self) -> list[str]:
        return self.page.read_text(encoding="utf-8").split(self._mark)
