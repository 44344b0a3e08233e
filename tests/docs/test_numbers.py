"""The numbers that help texts, docstrings and pages name in a sentence are those of the code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

from taskbridge.cli.failed import failed
from taskbridge.cli.status import status
from taskbridge.cli.tenants import MOST_COUNTED, MOST_RUNNERS, MOST_TO_SORT
from taskbridge.cli.top import top
from taskbridge.cli.where import SHOWN_STORIES, where
from taskbridge.cli.why import why
from taskbridge.observing import history, overview, places, standing
from taskbridge.observing.answers import Answers
from taskbridge.store.figures import MOST_RECORDS
from taskbridge.store.looks import MOST_FOUND, where_is
from taskbridge.store.past import MOST_DRAWN
from taskbridge.web.pages.acting import AT_ONCE, STARTED_AT_ONCE

DOCS: Final = Path(__file__).resolve().parents[2] / "docs"
OPERATE: Final = (DOCS / "how-to" / "operate.md").read_text(encoding="utf-8")
DASHBOARD: Final = (DOCS / "how-to" / "dashboard.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (status.help, f"those of the {MOST_RUNNERS:,} tenants whose runners are due first"),
        (status.help, f"counted up to {MOST_RECORDS:,}."),
        (status.help, f"up to {MOST_COUNTED:,} records of each are counted"),
        (status.help, f"from the {MOST_RUNNERS:,} with the most failures"),
        (status.help, f"five groups of up to {MOST_RUNNERS:,} tenants"),
        (status.help, f"Up to {MOST_TO_SORT:,} records of all"),
        (status.help, f"fewer than {MOST_COUNTED:,} of each"),
        (OPERATE, f"up to {MOST_COUNTED:,} records of a tenant are counted"),
        (OPERATE, f"up to {MOST_RUNNERS:,} tenants whose runners are due first"),
        (OPERATE, f"Up to {MOST_TO_SORT:,} records of all"),
        (OPERATE, f"fewer than {MOST_COUNTED:,} of each"),
        (OPERATE, f"of the {MOST_RUNNERS:,} tenants whose runners are due first"),
        (OPERATE, f"{MOST_RECORDS:,} means that many or more"),
        (why.help, f"up to {standing.MOST_RECORDS:,} of each state"),
        (where.help, f"Up to {MOST_FOUND:,} records are shown"),
        (where.help, f"the steps of the first {SHOWN_STORIES:,}."),
        (where_is.__doc__, f"up to {MOST_FOUND:,},"),
        (top.help, f"more than {MOST_DRAWN:,} runs"),
        (OPERATE, f"more than {MOST_DRAWN:,} runs"),
        (failed.help, f"the last {history.MOST_FAILED:,} failed runs"),
        (Answers.failed.__doc__, f"The last {history.MOST_FAILED:,} failed runs"),
        (Answers.find.__doc__, f"up to {places.MOST:,} tenants, records"),
        (Answers.tenants.__doc__, f"up to {4 * overview.MOST_SORTED:,} tenants"),
        (Answers.failing.__doc__, f"{overview.MOST_ERRORS:,} failing tenants and {overview.MOST_ERRORS:,} records"),
        (Answers.over_time.__doc__, f"at most {history.MOST_POINTS:,} points"),
        (DASHBOARD, f"up to {AT_ONCE:,} at a time"),
        (DASHBOARD, f"up to {STARTED_AT_ONCE:,} tenants at once"),
    ],
)
def test_a_number_in_a_sentence_is_that_of_the_code(text: str | None, said: str) -> None:
    assert re.search(rf"\b{re.escape(said)}", " ".join((text or "").split())), said
