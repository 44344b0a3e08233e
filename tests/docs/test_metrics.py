"""The page of metrics and the dashboard name what the code has, and no metric is told apart by tenant."""

from __future__ import annotations

import json
import re
from typing import Any

from taskbridge.observe.metrics import METRICS
from tests.docs import metrics_text
from tests.scraping import SAMPLES

DASHBOARD = metrics_text.PART.page.parents[2] / "examples" / "dashboard.json"


def queries(panels: list[dict[str, Any]]) -> list[str]:
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


def test_the_page_shows_the_metrics_that_the_code_has() -> None:
    assert metrics_text.PART.shown() == metrics_text.table(), "run `make docs`"


def test_the_dashboard_asks_only_for_metrics_that_there_are() -> None:
    dashboard = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    asked = queries(dashboard["panels"])
    named = {name for query in asked for name in re.findall(r"\btaskbridge_\w+", query)}
    assert named
    assert named - SAMPLES == set()
    assert {label for query in asked for label in re.findall(r"\bby \(([^)]*)\)", query)} <= {
        "pipeline",
        "server",
        "le, pipeline",
        "pipeline, le",
    }
    # Each worker tells the figures of the whole deployment: added up, they would be counted once for each.
    of_all = {one.name for one in METRICS if one.group.scope == "deployment"}
    for query in asked:
        if any(re.search(rf"\b{name}(?:_bucket|_sum|_count)?\b", query) for name in of_all):
            assert "sum" not in query.replace("_sum", ""), query


def test_every_metric_has_a_place_in_the_dashboard() -> None:
    asked = " ".join(queries(json.loads(DASHBOARD.read_text(encoding="utf-8"))["panels"]))
    assert [one.name for one in METRICS if one.name not in asked] == []
