"""The paths whose cost is counted: each prepares a tenant and returns the call that counts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from taskbridge.common.run_key import RunKey
from taskbridge.declaring.batch import Batch
from taskbridge.declaring.criteria import Criterion
from taskbridge.declaring.pipeline import INVOICES
from taskbridge.declaring.policy import DelaySinceLastRun, LatencyNeutral, Limits, RateLimit
from taskbridge.gate import Answer, Outcome, Settlement
from taskbridge.handlers.journal import journal
from taskbridge.producer.notify import notify, notify_many
from taskbridge.producer.recording import record_event
from taskbridge.store import record_invoice
from taskbridge.worker import slot
from taskbridge.worker.poller import poll_changes, reconcile
from taskbridge.worker.ticker import fire_due
from tests.costs.meter import Meter
from tests.runs import begin, settle

Call = Callable[[], object]
Path = Callable[[Meter, str], Call]

# So long that no lease and no tick ends by itself while a test runs.
LONG: Final = LatencyNeutral(lease=3600, tick=3600)
ALERTS: Final = DelaySinceLastRun((Criterion("$.level", "ERROR", "$.service", 60),))
BATCH_SIZE: Final = 10
MANY: Final = 100
TOGETHER: Final = 16


def do_nothing(batch: Batch) -> None:
    """Handle the batch without a word to Postgres."""


def reject_all(batch: Batch) -> None:
    """Put every record into quarantine."""
    for record in batch:
        batch.reject(record, "not now")


def fail(batch: Batch) -> None:
    """Raise."""
    raise ValueError(f"{batch.tenant} fails")


def absorbed_event(meter: Meter, tenant: str) -> Call:
    _notify(meter, tenant, Answer.STARTED)
    return partial(_notify, meter, tenant, Answer.ABSORBED)


def delayed_event(meter: Meter, tenant: str) -> Call:
    _run_of(meter, tenant, do_nothing, 1)()
    return partial(_notify, meter, tenant, Answer.DELAYED)


def many_absorbed_events(meter: Meter, tenant: str) -> Call:
    _notify_many(meter, tenant, Answer.STARTED)
    return partial(_notify_many, meter, tenant, Answer.ABSORBED)


def run_that_fails(meter: Meter, tenant: str) -> Call:
    run = _run_of(meter, tenant, fail, 1)

    def call() -> None:
        with suppress(ValueError):
            run()

    return call


def run_that_tries_again(meter: Meter, tenant: str) -> Call:
    _run_of(meter, tenant, reject_all, 1)()
    quarantine = meter.runtime.quarantine_of(INVOICES)
    found, _ = quarantine.find(INVOICES, tenant=tenant)
    assert quarantine.retry(INVOICES, found)
    meter.redis.flushdb()
    return _run_of(meter, tenant, do_nothing, 0, expected=1)


def runs_together(meter: Meter, tenant: str) -> Call:
    meter.inline.handle(do_nothing, BATCH_SIZE, LONG)
    for at in range(TOGETHER):
        record_invoice(meter.runtime.engine, f"{tenant}-{at}", "1", {})
        _notify(meter, f"{tenant}-{at}", Answer.STARTED)
    keys = [message.run for message in meter.runtime.gate.take(TOGETHER, TOGETHER)[0]]
    return lambda: _is_true(lambda: not any(slot.run_together(meter.runtime, keys)))


def end_of_a_lease(meter: Meter, tenant: str) -> Call:
    _run_of(meter, tenant, do_nothing, 1)()
    gate, due = meter.runtime.gate, meter.keys.due(INVOICES)
    meter.redis.hset(meter.keys.runner(INVOICES, tenant), "lease", 1)
    meter.redis.zadd(due, {tenant: 1})
    return lambda: _is_answer(gate.expire(INVOICES, [tenant]), Answer.ENDED)


def late_message(meter: Meter, tenant: str) -> Call:
    _notify(meter, tenant, Answer.STARTED)
    message = meter.inline.message()
    assert message is not None
    slot.run_tenant(meter.runtime, *message)
    return partial(slot.run_tenant, meter.runtime, *message)


def heartbeat(meter: Meter, tenant: str) -> Call:
    _notify(meter, tenant, Answer.STARTED)
    message = meter.inline.message()
    assert message is not None
    begin(meter.runtime.gate, RunKey(*message))
    return partial(_is_true, partial(meter.runtime.gate.beat, RunKey(*message)))


def ticker_with_nobody_due(meter: Meter, tenant: str) -> Call:
    _run_of(meter, tenant, do_nothing, 1)()
    return partial(fire_due, meter.runtime)


def ticker_with_many_due(meter: Meter, tenant: str) -> Call:
    gate = meter.runtime.gate
    _notify_many(meter, tenant, Answer.STARTED)
    while (message := meter.inline.message()) is not None:
        begin(gate, RunKey(*message))
        assert settle(gate, RunKey(*message), Settlement(Outcome.DONE), LONG.spacing) is Answer.LINGERING
    _notify_many(meter, tenant, Answer.DELAYED)
    meter.redis.zadd(meter.keys.due(INVOICES), dict.fromkeys(_names(tenant), 0))
    return partial(fire_due, meter.runtime)


def poll_without_news(meter: Meter, tenant: str) -> Call:
    _save_many(meter, tenant)
    poll_changes(meter.runtime, INVOICES)
    return lambda: _is_true(lambda: not poll_changes(meter.runtime, INVOICES, stores=False))


def poll_with_many_new(meter: Meter, tenant: str) -> Call:
    poll_changes(meter.runtime, INVOICES)
    _save_many(meter, tenant)
    # Where many runs are queued, reminders would add none.
    meter.redis.flushdb()
    return lambda: _is_true(lambda: poll_changes(meter.runtime, INVOICES))


def reconcile_many_pending(meter: Meter, tenant: str) -> Call:
    reconcile(meter.runtime, INVOICES)
    _save_many(meter, tenant)
    poll_changes(meter.runtime, INVOICES)
    meter.redis.flushdb()
    return partial(_reconcile, meter, MANY)


def new_alert(meter: Meter, tenant: str) -> Call:
    meter.inline.handle(do_nothing, BATCH_SIZE, ALERTS, "alerts")
    return partial(_record_alert, meter, tenant)


def event_without_its_delay(meter: Meter, tenant: str) -> Call:
    new_alert(meter, tenant)()
    return partial(notify, meter.deployment.app, tenant, "alerts")


def new_invoice(meter: Meter, tenant: str) -> Call:
    return partial(_is_true, partial(record_invoice, meter.runtime.engine, tenant, "1", {"number": "1"}))


def unchanged_invoice(meter: Meter, tenant: str) -> Call:
    new_invoice(meter, tenant)()
    return partial(record_invoice, meter.runtime.engine, tenant, "1", {"number": "1"})


PATHS: Final[dict[str, Path]] = {
    "first event": lambda meter, tenant: partial(_notify, meter, tenant, Answer.STARTED),
    "absorbed event": absorbed_event,
    "delayed event": delayed_event,
    "100 first events at once": lambda meter, tenant: partial(_notify_many, meter, tenant, Answer.STARTED),
    "100 absorbed events at once": many_absorbed_events,
    "run of one record": lambda meter, tenant: _run_of(meter, tenant, do_nothing, 1),
    "run of one record, by the journal": lambda meter, tenant: _run_of(meter, tenant, journal, 1),
    "run of one record, under a rate limit": lambda meter, tenant: _run_of(
        meter, tenant, do_nothing, 1, rate_limit=Limits(RateLimit("1000000/s", burst=BATCH_SIZE))
    ),
    "run of three batches": lambda meter, tenant: _run_of(meter, tenant, do_nothing, 2 * BATCH_SIZE + 1),
    "run that fails": run_that_fails,
    "run that rejects its record": lambda meter, tenant: _run_of(meter, tenant, reject_all, 1),
    "run of a record out of quarantine": run_that_tries_again,
    "16 runs of one record together": runs_together,
    "the end of a lease": end_of_a_lease,
    "late or doubled message": late_message,
    "heartbeat": heartbeat,
    "ticker, nobody due": ticker_with_nobody_due,
    "ticker, 100 tenants due": ticker_with_many_due,
    "poll, nothing new": poll_without_news,
    "poll, 100 tenants with news": poll_with_many_new,
    "reconciliation, 100 tenants with pending records": reconcile_many_pending,
    "record_invoice, new": new_invoice,
    "record_invoice, unchanged": unchanged_invoice,
    "record_event": new_alert,
    "event of a pipeline with criteria": event_without_its_delay,
}


def _notify(meter: Meter, tenant: str, expected: Answer) -> None:
    assert notify(meter.deployment.app, tenant) is expected


def _notify_many(meter: Meter, tenant: str, expected: Answer) -> None:
    assert set(notify_many(meter.deployment.app, _names(tenant))) == {expected}


def _names(tenant: str) -> list[str]:
    return [f"{tenant}-{number}" for number in range(MANY)]


def _save_many(meter: Meter, tenant: str) -> None:
    """Let `MANY` tenants be the only ones, each with a record that nobody took."""
    engine = meter.deployment.engine
    with engine.begin() as connection:
        connection.exec_driver_sql("TRUNCATE taskbridge.records")
        for one in _names(tenant):
            record_invoice(engine, one, "1", {"number": "1"}, connection)


def _reconcile(meter: Meter, started: int) -> None:
    assert len(reconcile(meter.runtime, INVOICES)) == started


def _is_answer(answers: list[Answer], expected: Answer) -> None:
    assert answers == [expected]


def _record_alert(meter: Meter, tenant: str) -> None:
    recorded = record_event(meter.deployment.app, "alerts", {"level": "ERROR", "service": tenant})
    assert recorded.answer is Answer.STARTED


def _is_true(call: Call) -> None:
    assert call() is True


def _run_of(
    meter: Meter,
    tenant: str,
    handler: Callable[[Batch], None],
    records: int,
    *,
    expected: int | None = None,
    **options: Any,
) -> Call:
    """Save records, notify, and return the run that takes them."""
    meter.inline.handle(handler, BATCH_SIZE, LONG, **options)
    meter.deployment.save(tenant, *map(str, range(records)), notify=False)
    _notify(meter, tenant, Answer.STARTED)
    return _run_of_message(meter, expected=records if expected is None else expected)


def _run_of_message(meter: Meter, *, expected: int) -> Call:
    """Return the run of the next message, which must be given `expected` records."""
    message = meter.inline.message()
    assert message is not None

    def call() -> None:
        meter.inline.seen.clear()
        try:
            slot.run_tenant(meter.runtime, *message)
        finally:
            assert len(meter.inline.seen) == expected

    return call
