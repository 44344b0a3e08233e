"""`taskbridge.testing`: runs in the test's process end where workers would, and never wait in real time."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import redis
from celery import Celery
from sqlalchemy import create_engine

from taskbridge import (
    Batch,
    RateLimit,
    RetryAfter,
    app,
    install,
    notify_event,
    pipeline,
    record_invoice,
)
from taskbridge.embedded import Servers
from taskbridge.errors import UnknownPipeline
from taskbridge.gate import State
from taskbridge.process.runtime import runtime_of
from taskbridge.settings import Settings
from taskbridge.testing import assert_notified, drain, drain_all, notified
from taskbridge.testing.deploying import own_deployment

pytest_plugins = ["pytester"]
pytestmark = pytest.mark.usefixtures("declarations", "taskbridge_settings")


def save(tenant: str, *numbers: str) -> None:
    for number in numbers:
        record_invoice(tenant, number, {"number": number})
        notify_event.delay(tenant)


def states(settings: Settings) -> dict[str, str]:
    engine = create_engine(settings.postgres_url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        rows = connection.exec_driver_sql(
            "SELECT external_id, state FROM taskbridge.record_states WHERE pipeline = 'invoices'"
        )
        found = {row[0]: row[1] for row in rows}
    engine.dispose()
    return found


def test_a_burst_is_one_run(taskbridge_settings: Settings) -> None:
    taken: list[list[str]] = []

    @pipeline("invoices")
    def note(batch: Batch) -> None:
        taken.append([record.external_id for record in batch])

    save("acme", "1", "2", "3")
    assert notified() == {"acme": 3}
    assert drain("acme") == 1
    assert taken == [["1", "2", "3"]]
    assert states(taskbridge_settings) == {"1": "handled", "2": "handled", "3": "handled"}
    assert runtime_of(app).gate.look("invoices", ["acme"])[0].state is State.IDLE
    assert drain("acme") == 0


def test_what_is_recorded_and_not_notified_is_not_run_so_that_the_test_sees_it(taskbridge_settings: Settings) -> None:
    record_invoice("acme", "1", {})
    with pytest.raises(AssertionError, match=r"'acme' was not notified in the pipeline 'invoices'.*: nobody"):
        assert_notified("acme")
    assert drain("acme") == 0
    assert states(taskbridge_settings) == {"1": "pending"}
    notify_event.delay("acme")
    assert_notified("acme")


def test_an_event_of_the_handler_is_drained_too() -> None:
    @pipeline("invoices")
    def go_on(batch: Batch) -> None:
        for record in batch:
            if record.external_id == "1":
                save("another", "2")

    save("acme", "1")
    assert drain("acme") == 1
    assert notified() == {"another": 1}
    assert drain_all() == 1  # its lease ended while the clock went on for acme
    assert notified() == {}


def test_a_handler_s_error_reaches_the_test_and_the_next_drain_tries_again() -> None:
    calls: list[str] = []

    @pipeline("invoices")
    def fail_once(batch: Batch) -> None:
        calls.append(batch.tenant)
        if len(calls) == 1:
            raise ValueError("no")

    save("acme", "1")
    with pytest.raises(ValueError, match="no"):
        drain("acme")
    assert drain("acme") > 0
    assert calls == ["acme", "acme"]


def test_through_failures_the_bad_record_is_in_quarantine_and_the_others_are_handled(
    taskbridge_settings: Settings,
) -> None:
    @pipeline("invoices")
    def fail(batch: Batch) -> None:
        if any(record.external_id == "bad" for record in batch):
            raise ValueError("no")

    save("acme", "1", "bad", "2", "3")
    drain("acme", through_failures=True)
    assert states(taskbridge_settings) == {"1": "handled", "bad": "quarantined", "2": "handled", "3": "handled"}


def test_back_off_and_rate_limits_are_not_waited_for() -> None:
    waited: list[float] = []

    @pipeline("invoices", batch_size=1, rate_limit=RateLimit("1/h"))
    def wait_once(batch: Batch) -> None:
        if not waited:
            waited.append(batch.seconds_left or 0)
            raise RetryAfter(3600)

    save("acme", "1", "2", "3")
    assert drain("acme") > 3


def test_a_tenant_that_never_ends_fails_the_test() -> None:
    @pipeline("invoices")
    def never(_: Batch) -> None:
        raise RetryAfter(1)

    save("acme", "1")
    told = r"tenant 'acme' of 'invoices' is not idle after 5 runs: .*RetryAfter"
    with pytest.raises(AssertionError, match=told):
        drain("acme", most_runs=5)
    with pytest.raises(AssertionError, match=told):
        drain_all(most_runs=5)


def test_a_pipeline_that_is_not_there_is_named() -> None:
    for call in (lambda: drain("acme", "nothing"), lambda: assert_notified("acme", "nothing")):
        with pytest.raises(UnknownPipeline, match="'nothing'"):
            call()


def test_nothing_stays_in_redis_whichever_app_it_was(
    taskbridge_servers: Servers, taskbridge_settings: Settings
) -> None:
    @pipeline("invoices")
    def take(_: Batch) -> None:
        pass

    second = Celery("second", broker=taskbridge_servers.redis_url)
    bridge = install(second)
    servers = {
        "TASKBRIDGE_POSTGRES_URL": taskbridge_settings.postgres_url,
        "TASKBRIDGE_REDIS_URL": taskbridge_servers.redis_url,
    }
    with redis.Redis.from_url(taskbridge_servers.redis_url, decode_responses=True) as client:
        with own_deployment(app, **servers) as runtime:
            prefix = runtime.settings.key_prefix
            for one in (notify_event, bridge.notify_event):
                one.delay("acme")
                one.apply_async(("acme",), countdown=0)
            drain("acme", app=second)
            assert [*client.scan_iter(f"*{prefix}*")]
        # Keys of idle tenants expire by themselves.
        assert [one for one in client.scan_iter(f"*{prefix}*") if not 0 <= client.ttl(one) <= 60] == []
    second.close()


USERS_TEST = """
    import os, pytest
    from taskbridge import Batch, app, notify_event, pipeline, record_invoice
    from taskbridge.errors import ConfigurationError
    from taskbridge.testing import assert_notified, drain, drain_all, notified

    seen = []

    @pipeline("invoices")
    def note(batch: Batch) -> None:
        seen.append((batch.tenant, [record.external_id for record in batch]))

    broker = app.conf.broker_url  # configured before any fixture ran

    @pytest.mark.parametrize("number", ["1", "2"])
    def test_each_has_its_own(number, taskbridge_settings):
        seen.clear()
        record_invoice("acme", number, {})
        notify_event.delay("acme")
        drain("acme")
        assert seen == [("acme", [number])]

    @pytest.mark.parametrize("ask", [lambda: drain("acme"), drain_all, notified, lambda: assert_notified("acme")])
    def test_forgot_the_fixture(ask):
        with pytest.raises(ConfigurationError, match="use the fixture `taskbridge_settings`"):
            ask()

    def test_after_the_fixture_all_is_as_before():
        assert "TASKBRIDGE_KEY_PREFIX" not in os.environ
        assert app.conf.broker_url == broker
        assert not app.conf.task_routes or "test-" not in str(app.conf.task_routes)
"""


def test_a_user_s_tests_run_in_a_process_of_their_own(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, root: Path, taskbridge_settings: Settings
) -> None:
    """It has the servers and no other setting of ours; one of its modules is that of the page, on an adopted table."""
    for name in [name for name in os.environ if name.startswith("TASKBRIDGE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("TASKBRIDGE_TEST_POSTGRES_URL", taskbridge_settings.postgres_url)
    monkeypatch.setenv("TASKBRIDGE_TEST_REDIS_URL", taskbridge_settings.redis_url)
    monkeypatch.setenv("PYTHONPATH", str(root))
    page = (root / "docs/how-to/test-your-pipeline.md").read_text(encoding="utf-8")
    (shown,) = (
        one for one in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE) if "CliRunner" in one
    )
    declared = '\nfrom taskbridge import pipeline\n\n@pipeline("orders")\ndef handle(batch):\n    pass\n'
    pytester.makepyfile(test_invoices=USERS_TEST, test_orders=shown + declared)
    result = pytester.runpytest_subprocess("-p", "taskbridge.testing.plugin", "-W", "error")
    result.assert_outcomes(passed=8)
