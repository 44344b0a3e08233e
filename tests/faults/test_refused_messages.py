"""A message that Postgres refuses because of what it holds is stored as unmatched, and holds no other back."""

from __future__ import annotations

from typing import Any

import pytest

from taskbridge.declaring.pipeline import DECLARED
from taskbridge.process.runtime import runtime_of
from taskbridge.producing import intake, parking
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
    payloads: list[dict[str, Any]] = [{"bad": 1}, *({"good": number} for number in range(4))]
    for number, payload in enumerate(payloads):
        parking.park(app, (PIPELINE, payload), {}, f"message-{number}", 1, "a moment ago")
    expected = (4, int(becomes_unmatched), 0 if becomes_unmatched else 1)
    found = (0, 0, 0)
    for _ in range(100):
        intake.again(app)
        with app.connection_for_write() as broker, broker.channel() as channel:
            left = parking.count_parked(app, channel)
        ((good, quarantined),) = deployment.rows(
            "SELECT count(*) FILTER (WHERE document ? 'good'), count(*) FILTER (WHERE document ? 'unstorable') "
            "FROM taskbridge.records"
        )
        found = (good, quarantined, left)
        if found == expected:
            break
    assert found == expected
