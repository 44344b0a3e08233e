"""The numbers that help texts, docstrings and pages name in a sentence are those of the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from taskbridge.cli.status import RECORDS_BY_NAME, RECORDS_SORTED
from taskbridge.observing import history, record, status
from taskbridge.observing.health import MOST_COUNTED, MOST_RUNNERS
from taskbridge.observing.history import MOST_DRAWN
from taskbridge.web.pages.acting import AT_ONCE, STARTED_AT_ONCE

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
OPERATE: Final = (DOCS / "how-to" / "operate.md").read_text(encoding="utf-8")
DASHBOARD: Final = (DOCS / "how-to" / "dashboard.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (OPERATE, f"Up to {RECORDS_BY_NAME:,} records of each tenant are counted"),
        (OPERATE, f"They compare up to {4 * status.MOST_SORTED:,} tenants"),
        (OPERATE, f"Up to {RECORDS_SORTED:,} records of each are counted"),
        (OPERATE, f"of the {MOST_RUNNERS:,} tenants whose runners are due first"),
        (OPERATE, f"{MOST_COUNTED:,} means that many or more"),
        (OPERATE, f"more than {MOST_DRAWN:,} runs"),
        (OPERATE, f"the last {history.MOST_FAILED:,} failed runs"),
        (record.records_everywhere.__doc__, f"up to {record.MOST_EVERYWHERE:,} records"),
        (history.failed.__doc__, f"The last {history.MOST_FAILED:,} failed runs"),
        (record.find.__doc__, f"up to {record.MOST:,} tenants, records"),
        (status.tenants.__doc__, f"up to {4 * status.MOST_SORTED:,} tenants"),
        (status.failing.__doc__, f"{status.MOST_ERRORS:,} failing tenants and {status.MOST_ERRORS:,} records"),
        (history.over_time.__doc__, f"at most {history.MOST_POINTS:,} points"),
        (DASHBOARD, f"up to {AT_ONCE:,} at a time"),
        (DASHBOARD, f"up to {STARTED_AT_ONCE:,} tenants at once"),
    ],
)
def test_a_number_in_a_sentence_is_that_of_the_code(text: str | None, said: str) -> None:
    assert re.search(rf"\b{re.escape(said)}", " ".join((text or "").split())), said
