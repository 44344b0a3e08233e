"""A message that Postgres refuses because of what it holds is stored as unmatched, and holds no other back."""

from __future__ import annotations

from typing import Any

import pytest

from taskbridge.declaring.pipeline import DECLARED
from taskbridge.process.runtime import runtime_of
from tests.deployment import Deployment

PIPELINE = "alerts-of-services"


@pytest.mark.parametrize(
    ("state", "becomes_unmatched"), [("54001", True), ("22000", True), ("57014", False), ("42501", False)]
)
def test_what_one_message_is_refused_for_says_nothing_about_the_others(
    deployment: Deployment, state: str, becomes_unmatched: bool
) -> None:
    DECLARED.load(["tests.pipelines_with_criteria"])
    runtime, app = runtime_of(deployment.app), deployment.app
    runtime.pipelines = DECLARED
    with deployment.engine.begin() as connection:
        connection.exec_driver_sql(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"IF NEW.document ? 'bad' THEN RAISE EXCEPTION 'refused' USING ERRCODE = '{state}'; END IF; "
            "RETURN NEW; END $$"
        )
        connection.exec_driver_sql(
            "CREATE TRIGGER refuse BEFORE INSERT ON taskbridge.records FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
    task = app.tasks["taskbridge.record_event"]
    payloads: list[dict[str, Any]] = [{"good": 0}, {"bad": 1}, {"good": 2}]
    failed = [task.apply((PIPELINE, payload, f"message-{number}")).failed() for number, payload in enumerate(payloads)]
    assert failed == [False, not becomes_unmatched, False]
    ((good, quarantined),) = deployment.rows(
        "SELECT count(*) FILTER (WHERE document ? 'good'), count(*) FILTER (WHERE document ? 'unstorable') "
        "FROM taskbridge.records"
    )
    assert (good, quarantined) == (2, int(becomes_unmatched))
