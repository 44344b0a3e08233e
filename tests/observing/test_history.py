"""What the run history tells: the last runs, bursts, what they saved, who is noisy, and what there is without one."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Final

import pytest
from sqlalchemy import Engine

from taskbridge.errors import UnknownPipeline
from taskbridge.observing import history
from taskbridge.observing.answers import Answers
from taskbridge.store import sum_runs
from taskbridge.store.past import Before
from tests.deployment import Deployment
from tests.store.adopting import run

RUNS: Final = """
INSERT INTO taskbridge.runs
    (pipeline, tenant, token, began_at, ended_at, reason, worker, events, burst_run, records, rejected, outcome, error,
     first_event_ms)
SELECT p.pipeline, t.tenant, to_char(extract(epoch FROM began) * 1e6, 'FM0000000000000000') || '-' || t.tenant, began,
       began + t.took * interval '1 ms', 'event', 'celery@one', t.events, (n - 1) % 3 + 1, n, 0,
       CASE WHEN t.tenant = 'bolt' AND n = 2 THEN 'failed' ELSE 'handled' END,
       CASE WHEN t.tenant = 'bolt' AND n = 2 THEN 'ValueError: no price' END,
       CASE WHEN (n - 1) % 3 = 0 THEN 20 END
FROM (VALUES ('orders'), ('calls')) p (pipeline),
     (VALUES ('zinc', 50, 10), ('bolt', 1, 400)) t (tenant, events, took), generate_series(1, 6) n,
     LATERAL (SELECT now() - interval '30 min' + n * interval '4 min' AS began) b
"""
"""Of each of two tenants two bursts of three runs, 4 min apart; the last run began 6 min ago."""


def fill(engine: Engine) -> None:
    run(engine, RUNS)
    # Each call sums 20 minutes at the most.
    for pipeline in ("orders", "calls") * 2:
        sum_runs(engine, pipeline)


def test_without_a_history_nothing_fails(answers: Answers) -> None:
    assert not answers.has_history
    assert not any((answers.runs(), answers.bursts("orders"), answers.saved("orders"), answers.over_time()))
    found = answers.noisy()
    assert (found.tenants, "there is no run history" in found.basis) == ([], True)
    assert answers.pulse().pipelines[0].runs_rate is None
    for ask in (answers.saved, answers.bursts, answers.runs, lambda name: answers.tenant(name, "x")):
        with pytest.raises(UnknownPipeline, match="nobody"):
            ask("nobody")


def test_the_last_runs_are_told_of_all_tenants_of_one_and_of_those_that_failed(
    deployment: Deployment, answers: Answers
) -> None:
    fill(deployment.engine)
    every = answers.runs()
    assert len(every) == 24
    assert [one.ended_at for one in every] == sorted((one.ended_at for one in every), reverse=True)
    assert {one.pipeline for one in answers.runs("calls")} == {"calls"}
    assert [one.records for one in answers.runs("orders", "zinc", limit=2)] == [6, 5]
    (failed,) = answers.runs("orders", failed=True)
    assert (failed.tenant, failed.records, failed.error) == ("bolt", 2, "ValueError: no price")
    assert answers.runs("orders", "bolt", failed=True) == [failed]
    assert round(failed.run_ms) == 400
    before = answers.runs("orders", before=Before(failed.ended_at))
    assert len(before) == 3
    assert all(one.ended_at < failed.ended_at for one in before)
    assert len(answers.runs(limit=3)) == 3


def test_pages_of_runs_that_ended_at_once_have_each_run_once(deployment: Deployment, answers: Answers) -> None:
    run(
        deployment.engine,
        RUNS.replace("now() - interval '30 min' + n * interval '4 min'", "now() - interval '1 s'").replace(
            "'-' || t.tenant", "'-' || t.tenant || n || p.pipeline"
        ),
    )
    every = [(one.ended_at, one.token) for one in answers.runs()]
    assert len(every) > 2
    assert len({at for at, _ in every}) < len(every), "some ended at one time"
    paged, before = list[tuple[datetime, str]](), None
    while page := answers.runs(before=before, limit=1):
        paged += [(one.ended_at, one.token) for one in page]
        before = Before(*paged[-1])
    assert paged == every


def test_bursts_and_days_say_what_was_saved(deployment: Deployment, answers: Answers) -> None:
    fill(deployment.engine)
    bursts = answers.bursts("orders", "zinc")
    assert [(one.events, one.runs, one.records, one.first_event_ms, one.windowed_ms) for one in bursts] == [
        (150, 3, 15, 20, 520),
        (150, 3, 6, 20, 520),
    ]
    assert len(answers.bursts("orders")) == 4
    assert [one.failed for one in answers.bursts("orders", "bolt")] == [0, 1]
    days = answers.saved("orders", days=2)
    assert sum(one.events for one in days) == 306
    assert sum(one.bursts for one in days) == 4
    assert {(one.first_event_p50_ms, one.first_event_p99_ms) for one in days if one.bursts} == {(25, 25)}
    points = answers.over_time("orders", hours=1)
    assert sum(one.runs for one in points) == 12
    assert {one.seconds for one in points} == {60}
    assert points[0].first_event_mean_ms == 20
    assert {one.seconds for one in answers.over_time(hours=24 * 7)} == {1_260}
    until = points[len(points) // 2].at
    before = answers.over_time("orders", hours=1, until=until)
    assert [one.at for one in before] == [one.at for one in points if one.at < until]
    assert answers.over_time("orders", hours=1, until=points[0].at) == []


def test_the_second_row_of_a_run_ends_no_burst(deployment: Deployment, answers: Answers) -> None:
    fill(deployment.engine)
    before = answers.bursts("orders", "zinc")
    run(deployment.engine, "UPDATE taskbridge.runs SET burst_run = 0 WHERE burst_run = 2")
    assert answers.bursts("orders", "zinc") == before
    assert [one.runs for one in before] == [3, 3]


def test_a_delay_beyond_the_last_bound_is_not_told_as_one_within_it(deployment: Deployment, answers: Answers) -> None:
    run(deployment.engine, RUNS.replace("THEN 20 END", "THEN CASE t.tenant WHEN 'bolt' THEN 90000 ELSE 20 END END"))
    for _ in range(2):
        sum_runs(deployment.engine, "orders")
    for day in answers.saved("orders", days=2):
        assert not day.bursts or (day.first_event_p50_ms, day.first_event_p99_ms) == (25, math.inf)
    for minute in answers.over_time("orders", hours=1):
        assert not minute.bursts or (minute.first_event_p50_ms, minute.first_event_p99_ms) == (25, math.inf)


def test_days_are_those_of_utc_wherever_the_database_is(deployment: Deployment, answers: Answers) -> None:
    fill(deployment.engine)
    (name,) = deployment.rows("SELECT quote_ident(current_database())")[0]
    for zone in ("America/Los_Angeles", "Asia/Tokyo"):
        run(deployment.engine, f"ALTER DATABASE {name} SET timezone = '{zone}'")
        deployment.engine.dispose()
        days = answers.saved("orders", days=2)
        assert {one.day.utcoffset() for one in days} == {timedelta(0)}
        assert {(one.day.hour, one.day.minute) for one in days} == {(0, 0)}
        assert sum(one.events for one in days) == 306, "none lies before the first day, or twice"
        today = datetime.now(UTC).date()
        assert {one.day.date() for one in days} <= {today, today - timedelta(days=1)}


def test_the_noisy_come_first_also_where_there_are_too_many_runs_to_count(
    deployment: Deployment, answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(deployment.engine)
    by_events = answers.noisy("orders")
    assert [(one.tenant, one.events, one.runs) for one in by_events.tenants] == [("zinc", 300, 6), ("bolt", 6, 6)]
    assert by_events.basis == "from 12 runs of the last 24 hours"
    assert answers.noisy("orders", hours=1).basis == "from 12 runs of the last hour"
    assert [one.tenant for one in answers.noisy("orders", by="run time").tenants] == ["bolt", "zinc"]
    failures = answers.noisy("orders", by="failures")
    assert [(one.tenant, one.failures) for one in failures.tenants] == [("bolt", 1)]
    assert answers.noisy(hours=0.01).tenants == []
    run(
        deployment.engine,
        RUNS.replace("generate_series(1, 6) n", "generate_series(1, 6) n, generate_series(1, 2000) more").replace(
            "'-' || t.tenant", "'-' || more || t.tenant"
        ),
        "TRUNCATE taskbridge.run_minutes",
    )
    for pipeline in ("orders", "calls") * 2:
        sum_runs(deployment.engine, pipeline)
    monkeypatch.setattr(history, "MOST_DRAWN", 9_000)
    drawn = answers.noisy("orders")
    assert drawn.basis.startswith("estimated from "), drawn.basis
    assert drawn.tenants[0].tenant == "zinc"
    assert 0.7 < drawn.tenants[0].events / 600_300 < 1.3, drawn


def test_of_equally_noisy_tenants_those_come_first_that_have_more_of_the_rest(
    deployment: Deployment, answers: Answers
) -> None:
    fill(deployment.engine)
    assert [one.tenant for one in answers.noisy("orders", by="runs").tenants] == ["zinc", "bolt"]
    run(deployment.engine, "UPDATE taskbridge.runs SET events = 1, records = records + (tenant = 'zinc')::int")
    assert [one.tenant for one in answers.noisy("orders").tenants] == ["zinc", "bolt"]
    run(deployment.engine, "TRUNCATE taskbridge.runs, taskbridge.run_minutes")
    run(
        deployment.engine,
        "INSERT INTO taskbridge.sync_cursors (pipeline, tenant, events, records, failures) "
        "VALUES ('orders', 'bolt', 1, 1, 1), ('orders', 'zinc', 1, 2, 1)",
    )
    now = answers.noisy("orders")
    assert "no run history" in now.basis
    assert [one.tenant for one in now.tenants] == ["zinc", "bolt"]


def test_rates_are_those_of_the_last_seconds(deployment: Deployment, answers: Answers) -> None:
    run(
        deployment.engine,
        RUNS.replace("now() - interval '30 min' + n * interval '4 min'", "now() - n * interval '1 ms'"),
    )
    pulse = answers.pulse()
    orders = next(one for one in pulse.pipelines if one.pipeline == "orders")
    assert orders.runs_rate == 12 / 5
    assert orders.events_rate == (6 * 51) / 5
    assert pulse.queued == 0
    assert abs(pulse.at - datetime.now(UTC)) < timedelta(minutes=1)
