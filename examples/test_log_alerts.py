"""Tests of log_alerts.py, written as you would test a pipeline of your own: `pytest examples`."""

from __future__ import annotations

import log_alerts  # noqa: F401 - declares the pipeline
import pytest

from taskbridge import record_event
from taskbridge.testing import assert_notified, drain, drain_all, notified

pytest_plugins = ["taskbridge.testing.plugin"]
pytestmark = pytest.mark.usefixtures("taskbridge_settings")

PIPELINE = "log-alerts"


def log_line(level: str, service: str = "billing") -> dict[str, str]:
    return {"level": level, "service": service}


def test_an_error_is_alerted_at_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    record_event(PIPELINE, log_line("ERROR"))
    assert_notified("billing", PIPELINE)
    assert drain("billing", PIPELINE) == 1
    assert "alert: billing has 1 errors and 0 warnings" in caplog.messages


def test_what_follows_comes_as_one_alert_after_the_delay(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    record_event(PIPELINE, log_line("ERROR"))
    drain("billing", PIPELINE)
    for level in ("WARNING", "ERROR", "WARNING"):
        record_event(PIPELINE, log_line(level))
    assert drain("billing", PIPELINE) == 1  # five minutes later, and at once
    assert "alert: billing has 1 errors and 2 warnings" in caplog.messages


def test_services_do_not_share_an_alert(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    record_event(PIPELINE, log_line("ERROR", "billing"))
    record_event(PIPELINE, log_line("ERROR", "search"))
    assert notified(PIPELINE).keys() == {"billing", "search"}
    assert drain_all() == 2
    assert notified(PIPELINE) == {}
    assert {message.split()[1] for message in caplog.messages if message.startswith("alert:")} == {"billing", "search"}


def test_a_line_of_another_level_matches_nothing() -> None:
    recorded = record_event(PIPELINE, log_line("INFO"))
    assert (recorded.tenant, notified(PIPELINE)) == (None, {})
