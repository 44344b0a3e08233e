"""Where the time goes, as figures: the file that `make flames` writes."""

from typing import Final

__all__ = ["PROFILES"]

PROFILES: Final = "profiles.json"
