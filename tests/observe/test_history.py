"""What the run history tells: the last runs, bursts, what they saved, who is noisy, and what there is without one."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import datetime
from typing import Final

import pytest
from sqlalchemy import Engine

from taskbridge.errors import UnknownPipeline
from taskbridge.observe import history
from taskbridge.observe.context import Context
from taskbridge.observe.history import Before
from taskbridge.store import sum_runs
from tests.deployment import Deployment
from tests.observe.conftest import PIPELINES
from tests.store.adopting import run

RUNS: Final = """
INSERT INTO taskbridge.runs
    (pipeline, tenant, token, began_at, ended_at, reason, worker, events, burst_run, records, rejected, outcome, error,
     first_event_ms)
SELECT p.pipeline, t.tenant, to_char(extract(epoch FROM began) * 1e6, 'FM0000000000000000') || '-' || t.tenant, began,
       began + t.took * interval '1 ms', 'event', 'celery@one', t.events, (n - 1) % 3 + 1, n, 0,
       CASE WHEN t.tenant = 'bolt' AND n = 2 THEN 'failed' ELSE 'handled' END,
       CASE WHEN t.tenant = 'bolt' AND n = 2 THEN 'ValueError: no price' END,
       CASE WHEN (n - 1) % 3 = 0 THEN t.delay END
FROM (VALUES ('orders'), ('calls')) p (pipeline),
     (VALUES ('zinc', 50, 10, 20), ('bolt', 1, 400, 90000)) t (tenant, events, took, delay), generate_series(1, 6) n,
     LATERAL (SELECT date_trunc('minute', now()) - interval '30 min' + n * interval '4 min' AS began) b
"""
"""Of each of two tenants two bursts of three runs, 4 min apart; the last run began 6 min ago."""


def fill(engine: Engine) -> None:
    run(engine, RUNS)
    # Each call sums 20 minutes at the most.
    for pipeline in ("orders", "calls") * 2:
        sum_runs(engine, pipeline)


def test_without_a_history_nothing_fails(context: Context) -> None:
    assert not any((history.runs(context), history.bursts(context, "orders", "a"), history.over_time(context)))
    assert [(one.events, one.runs) for one in history.saved(context, "orders")] == [(0, 0)]
    assert (history.noisy(context).tenants, history.failed(context).groups) == ([], [])
    for ask in (history.saved, history.runs, history.over_time, history.failed, history.noisy):
        with pytest.raises(UnknownPipeline, match="nobody"):
            ask(context, "nobody")


def test_the_last_runs_are_told_of_all_tenants_of_one_and_of_those_that_failed(
    deployment: Deployment, context: Context
) -> None:
    fill(deployment.engine)
    every = history.runs(context)
    assert len(every) == 24
    assert [one.ended_at for one in every] == sorted((one.ended_at for one in every), reverse=True)
    assert {one.pipeline for one in history.runs(context, "calls")} == {"calls"}
    assert [one.records for one in history.runs(context, "orders", "zinc", limit=2)] == [6, 5]
    (failed,) = history.runs(context, "orders", failed=True)
    assert (failed.tenant, failed.records, failed.error) == ("bolt", 2, "ValueError: no price")
    assert history.runs(context, "orders", "bolt", failed=True) == [failed]
    assert round(failed.run_ms) == 400
    before = history.runs(context, "orders", before=Before(failed.ended_at))
    assert len(before) == 3
    assert all(one.ended_at < failed.ended_at for one in before)
    assert len(history.runs(context, limit=3)) == 3


def test_pages_of_runs_that_ended_at_once_have_each_run_once(deployment: Deployment, context: Context) -> None:
    run(
        deployment.engine,
        RUNS.replace("now() - interval '30 min' + n * interval '4 min'", "now() - interval '1 s'").replace(
            "'-' || t.tenant", "'-' || t.tenant || n || p.pipeline"
        ),
    )
    every = [(one.ended_at, one.token) for one in history.runs(context)]
    assert len(every) > 2
    assert len({at for at, _ in every}) < len(every), "some ended at one time"
    paged, before = list[tuple[datetime, str]](), None
    while page := history.runs(context, before=before, limit=1):
        paged += [(one.ended_at, one.token) for one in page]
        before = Before(*paged[-1])
    assert paged == every


def test_bursts_and_days_say_what_was_saved(deployment: Deployment, context: Context) -> None:
    fill(deployment.engine)
    bursts = history.bursts(context, "orders", "zinc")
    assert [(one.events, one.runs, one.records, one.first_event_ms) for one in bursts] == [
        (150, 3, 15, 20),
        (150, 3, 6, 20),
    ]
    assert [one.failed for one in history.bursts(context, "orders", "bolt")] == [0, 1]
    (saved,) = history.saved(context, "orders", days=2)
    assert (saved.events, saved.runs, saved.runs_saved) == (306, 12, 294)
    # Records of which nobody notified count as well.
    assert replace(saved, records=1_012).runs_saved == 1_000
    assert [one.pipeline for one in history.saved(context)] == [*sorted(PIPELINES)]
    points = history.over_time(context, "orders", hours=1)
    assert sum(one.runs for one in points) == 12
    assert {one.seconds for one in points} == {60}
    # What is beyond the last bound is not told as within it.
    assert {(one.first_event_p50_ms, one.first_event_p99_ms) for one in points if one.bursts} == {(25, math.inf)}
    assert {one.seconds for one in history.over_time(context, hours=24 * 7)} == {6_060}


def test_the_noisy_come_first_also_where_there_are_too_many_runs_to_count(
    deployment: Deployment, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(deployment.engine)
    by_events = history.noisy(context, "orders")
    assert [(one.tenant, one.events, one.runs) for one in by_events.tenants] == [("zinc", 300, 6), ("bolt", 6, 6)]
    assert by_events.basis == "from 12 runs of the last 24 hours"
    assert history.noisy(context, "orders", hours=1).basis == "from 12 runs of the last hour"
    assert [one.tenant for one in history.noisy(context, "orders", by="run time").tenants] == ["bolt", "zinc"]
    assert history.noisy(context, hours=0.01).tenants == []
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
    drawn = history.noisy(context, "orders")
    assert drawn.basis.startswith("estimated from "), drawn.basis
    assert drawn.tenants[0].tenant == "zinc"
    assert 0.7 < drawn.tenants[0].events / 600_300 < 1.3, drawn
