"""`POST /events`: what was answered with 2xx is stored or told to Redis, and whatever is wrong is said."""

from __future__ import annotations

import hmac
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from taskbridge.declaring.criteria import Criterion
from taskbridge.declaring.pipeline import Pipeline, Pipelines
from taskbridge.declaring.policy import DelaySinceLastRun, LatencyNeutral
from taskbridge.errors import ConfigurationError
from taskbridge.integration.app import make_app
from taskbridge.process.runtime import EVENT_THREADS, runtime_of
from taskbridge.settings import Settings
from taskbridge.store import receiving, record
from taskbridge.web import Hmac, Webhook, events, receiver
from taskbridge.web.posting import MOST_ENTRIES, with_events
from tests.deployment import Deployment
from tests.store.adopting import adopted
from tests.transactions.black_hole import nobody_accepts
from tests.waiting import taking_at_most, wait_until
from tests.web.serving import nothing, served

TOKEN = "t0ken-of-a-program-1"
OTHER = "t0ken-of-a-program-2"
ALERTS = DelaySinceLastRun(
    (Criterion("$.level", "ERROR", "$.service", 60), Criterion("$.level", "INFO", "$.service", 90))
)


MESSAGE: dict[str, Any] = {
    "pipeline": "alerts",
    "message_id": "m1",
    "payload": {"level": "ERROR", "service": "billing"},
}


def declared() -> Pipelines:
    pipelines = Pipelines()
    for name, source in (("orders", "orders"), ("billing", "orders"), ("invoices", "invoices")):
        pipelines.declare(Pipeline(name, nothing, LatencyNeutral(), 100, source=source))
    for name, source in (("alerts", "alerts"), ("complaints", "invoices")):
        pipelines.declare(Pipeline(name, nothing, ALERTS, 100, source=source))
    return pipelines


@pytest.fixture
def url(deployment: Deployment) -> Iterator[str]:
    runtime_of(deployment.app).pipelines = declared()
    with served(events([TOKEN, OTHER], app=deployment.app)) as address:
        yield f"{address}/events"


def post(url: str, body: Any, token: str | None = TOKEN, **headers: str) -> httpx2.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return httpx2.post(url, content=content, headers=headers, timeout=60)


def an_order(number: int | str = 1, **document: Any) -> dict[str, Any]:
    return {"source": "orders", "tenant": "acme", "key": number, "document": document}


def records(deployment: Deployment) -> list[tuple[Any, ...]]:
    found = deployment.rows("SELECT source, tenant, key, document FROM taskbridge.records ORDER BY id")
    return [tuple(one) for one in found]


def active(deployment: Deployment, pipeline: str, *tenants: str) -> None:
    wait_until(lambda: sorted(deployment.gate.active(pipeline)) == sorted(tenants), f"events of {pipeline}")


def test_an_event_is_told_to_redis_before_its_answer_and_the_next_is_absorbed(url: str, deployment: Deployment) -> None:
    for _ in range(3):
        answer = post(url, {"pipeline": "orders", "tenant": "acme"})
        assert (answer.status_code, answer.json()) == (200, {"records": 0, "events": 1, "unmatched": 0})
        assert deployment.gate.active("orders") == ["acme"]
    assert deployment.redis.llen("taskbridge.first") == 1
    assert deployment.gate.active("billing") == []
    assert records(deployment) == []


def test_a_record_is_there_when_it_is_answered_and_all_that_read_it_are_notified_of_a_change(
    url: str, deployment: Deployment
) -> None:
    record(deployment.engine, "orders", "same", "1", {"a": 1})
    by_pipeline = {"pipeline": "billing", "tenant": 5, "key": "k", "document": {}}
    for body in (an_order(1, a=1) | {"tenant": "same"}, an_order(7, amount="3.50"), by_pipeline):
        answer = post(url, body)
        assert (answer.status_code, answer.json()) == (200, {"records": 1, "events": 0, "unmatched": 0})
    assert records(deployment)[1:] == [("orders", "acme", "7", {"amount": "3.50"}), ("orders", "5", "k", {})]
    for pipeline in ("orders", "billing"):
        active(deployment, pipeline, "acme", "5")


def test_a_message_finds_its_tenant_and_delay_by_its_criteria_and_is_taken_once(
    url: str, deployment: Deployment
) -> None:
    for payload in (MESSAGE["payload"], {"level": "INFO", "service": "another"}):
        answer = post(url, MESSAGE | {"payload": payload})
        assert (answer.status_code, answer.json()["records"]) == (200, 1)
    assert records(deployment) == [("alerts", "billing", "m1", MESSAGE["payload"])]
    assert deployment.rows("SELECT delay_ms FROM taskbridge.records") == [(60_000,)]
    active(deployment, "alerts", "billing")
    # its event has the delay of the record that waits
    deployment.redis.flushdb()
    assert post(url, {"pipeline": "alerts", "tenant": "billing"}).json()["events"] == 1
    assert deployment.gate.active("alerts") == ["billing"]
    # one that no criterion matches is stored and told
    answer = post(url, {"pipeline": "alerts", "payload": None})
    assert (answer.status_code, answer.json()) == (200, {"records": 1, "events": 0, "unmatched": 1})
    assert deployment.rows("SELECT count(reason) FROM taskbridge.records WHERE tenant = ''") == [(1,)]


@pytest.mark.parametrize("deployment", [{"notify_timeout": 0.5}], indirect=True)
def test_events_of_senders_that_were_told_to_come_again_are_not_sent(url: str, deployment: Deployment) -> None:
    def ask(tenant: str) -> int:
        return post(url, {"pipeline": "alerts", "tenant": tenant}).status_code

    asking = [f"t{at}" for at in range(EVENT_THREADS)]
    unsent = runtime_of(deployment.app).unsent
    post(url, {"pipeline": "orders", "tenant": "first"})
    with deployment.engine.begin() as other, ThreadPoolExecutor(EVENT_THREADS) as senders:
        other.exec_driver_sql("LOCK TABLE taskbridge.records IN ACCESS EXCLUSIVE MODE")
        # All threads wait for Postgres, each with one event.
        assert set(senders.map(ask, asking)) == {503}
        assert ask("late") == 503
        assert len(unsent) == EVENT_THREADS
        # Events that need nothing of Postgres wait for none that do.
        wait_until(lambda: post(url, {"pipeline": "orders", "tenant": "acme"}).status_code == 200, "taken", 3)
        other.rollback()
    wait_until(lambda: not unsent, "nothing waits")
    assert set(deployment.gate.active("alerts")) <= set(asking)
    assert ask("acme") == 200


def test_an_array_is_one_transaction_and_keeps_the_span_of_its_request(url: str, deployment: Deployment) -> None:
    import opentelemetry.trace  # noqa: F401, PLC0415 - only where it is loaded are traces kept

    several = [
        *(an_order(number, n=number) for number in range(300)),
        MESSAGE,
        {"pipeline": "invoices", "tenant": "bolt"},
    ]
    answer = post(url, several, traceparent=f"00-{'a' * 32}-{'b' * 16}-01")
    assert (answer.status_code, answer.json()) == (200, {"records": 301, "events": 1, "unmatched": 0})
    assert deployment.rows("SELECT count(traceparent), count(DISTINCT xid) FROM taskbridge.records") == [(301, 1)]
    assert deployment.gate.active("invoices") == ["bolt"]
    active(deployment, "orders", "acme")
    active(deployment, "alerts", "billing")
    assert post(url, []).json() == {"records": 0, "events": 0, "unmatched": 0}


def test_of_an_array_that_postgres_refuses_nothing_is_stored(url: str, deployment: Deployment) -> None:
    deployment.execute("CREATE TABLE invoices (id bigint PRIMARY KEY, customer text)")
    adopted(deployment.engine, "invoices")
    invoice = {"source": "invoices", "tenant": "acme", "key": "1", "document": {}}
    refused = MESSAGE | {"pipeline": "complaints", "message_id": "m2"}
    event = {"pipeline": "orders", "tenant": "acme"}
    for several in ([an_order(), MESSAGE, invoice, event], [an_order(), MESSAGE, refused, event], [invoice]):
        answer = post(url, several)
        assert answer.status_code == 400
        assert "the source invoices is a table that was adopted" in answer.json()["error"]
    assert records(deployment) == []
    assert deployment.rows("SELECT FROM taskbridge.messages") == []
    assert deployment.gate.active("orders") == []


def test_arrays_that_come_together_and_write_the_same_records_are_all_stored(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime_of(deployment.app).pipelines = declared()
    monkeypatch.setattr(receiving, "LOCK_TIMEOUT", "60s")

    def body(number: int) -> list[dict[str, Any]]:
        pair = number // 2
        # Those with records wait for each other's records, and so not for messages.
        several = [an_order(key, n=number) for key in range(50 * (pair % 2))]
        several += [{"pipeline": "alerts", "message_id": f"m{pair}-{key}", "payload": {}} for key in range(50)]
        return several if number % 2 else several[::-1]

    with (
        served(events(TOKEN, app=deployment.app)) as one,
        served(events(TOKEN, app=deployment.app)) as other,
        ThreadPoolExecutor(2) as threads,
    ):
        urls = (f"{one}/events", f"{other}/events")
        answers = [threads.submit(post, urls[number % 2], body(number)) for number in range(20)]
        assert {answer.result().status_code for answer in answers} == {200}
    assert deployment.rows("SELECT count(*) FROM taskbridge.records") == [(50 + 10 * 50,)]
    # Sessions tell the statistics at the latest when they end.
    deployment.engine.dispose()
    time.sleep(1)
    assert deployment.rows("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == [(0,)]


WRONG = [
    (5, "not a JSON object"),
    ({}, "an event lacks pipeline, tenant"),
    ({"pipeline": "orders", "tenant": ""}, "the tenant is empty"),
    ({"pipeline": "orders", "tenant": True}, "the tenant is neither a string nor an integer"),
    ({"pipeline": ["x"], "tenant": "acme"}, "no pipeline is called"),
    ({"pipeline": "x" * 900_000, "tenant": "acme"}, "no pipeline is called"),
    ({"pipeline": "orders", "tennant": "acme"}, "'tennant' is not a field of an event: use pipeline, tenant"),
    ({"source": "orders", "tenant": "acme"}, "a record lacks key, document"),
    ({"tenant": "acme", "key": "1", "document": {}}, "a record needs either a `source` or a `pipeline`"),
    (an_order() | {"pipeline": "orders"}, "a record needs either a `source` or a `pipeline`"),
    ({"source": "others", "tenant": "acme", "key": "1", "document": {}}, "no loaded pipeline reads"),
    ({"source": "orders", "tenant": "acme", "key": "", "document": {}}, "the key '' is not allowed"),
    ({"source": "orders", "tenant": "acme", "key": "1", "document": []}, "the document is not a JSON object"),
    ({"source": "orders", "tenant": "acme", "key": "1", "document": {"a": "\0"}}, "contains a NUL"),
    ({"pipeline": "orders", "payload": {}}, "the pipeline 'orders' has no criteria"),
    ({"pipeline": "alerts", "payload": {}, "message_id": "a\nb"}, "the message id"),
]


def test_what_is_wrong_is_refused_with_the_reason_and_its_place_in_the_array(url: str, deployment: Deployment) -> None:
    for entry, why in WRONG:
        answer = post(url, entry)
        assert answer.status_code == 400
        assert why in answer.json()["error"]
        assert answer.json().keys() == {"error"}
        assert len(answer.content) < 3_000
        answer = post(url, [an_order(), {"pipeline": "orders", "tenant": "acme"}, entry, an_order(2)])
        assert answer.status_code == 400
        assert why in answer.json()["error"]
        assert answer.json()["index"] == 2
    assert post(url, b"a=b").status_code == 400
    answer = post(url, [an_order(number) for number in range(MOST_ENTRIES + 1)])
    assert answer.status_code == 413
    assert "send at most 1,000" in answer.json()["error"]
    assert records(deployment) == []
    assert deployment.gate.active("orders") == []
    assert post(url, [an_order(number) for number in range(MOST_ENTRIES)]).status_code == 200


NO_TOKEN = [
    *(None, "", "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", f"Basic {TOKEN}", TOKEN),
    *("Bearer \xe9", f"Bearer {TOKEN}, {OTHER}"),
]


def test_who_has_no_token_is_refused_before_the_body_comes(
    url: str, deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    host, port = url.removeprefix("http://").removesuffix("/events").split(":")
    for header in NO_TOKEN:
        line = "" if header is None else f"Authorization: {header}\r\n"
        with socket.create_connection((host, int(port)), timeout=30) as opened:
            opened.sendall(f"POST /events HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n{line}\r\n".encode("latin-1"))
            answer = b"".join(iter(lambda: opened.recv(65_536), b"")).decode()
        assert answer.startswith("HTTP/1.1 401 "), header
        assert "www-authenticate: Bearer" in answer
        assert TOKEN not in answer + caplog.text
    assert records(deployment) == []


def test_who_has_no_token_and_frames_its_body_wrongly_leaves_no_traceback(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    host, port = url.removeprefix("http://").removesuffix("/events").split(":")
    for line in (b"POST /events", b"POST /another", b"PUT /events") * 7:
        with socket.create_connection((host, int(port)), timeout=30) as opened:
            opened.sendall(line + b" HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
            answer = b"".join(iter(lambda: opened.recv(65_536), b""))
        assert answer.startswith(b"HTTP/1.1 400 ")
    assert "Traceback" not in caplog.text
    assert [one.getMessage() for one in caplog.records if one.exc_info] == []


def test_each_token_is_compared_in_constant_time(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    original = hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return bool(original(one, other))

    monkeypatch.setattr("taskbridge.web.posting.hmac.compare_digest", compare)
    assert post(url, [], TOKEN).status_code == 200
    assert post(url, [], "x").status_code == 401
    assert compared == [(sent, one.encode()) for sent in (TOKEN.encode(), b"x") for one in (TOKEN, OTHER)]
    assert httpx2.post(url, json=[], headers={"Authorization": f"bearer  {TOKEN}"}).status_code == 200


@pytest.mark.parametrize("token", ["", "a" * 15, "a" * 201, "with spaces in between", "ümlaut-ümlaut-ümlaut"])
def test_a_token_that_is_easily_guessed_or_cannot_be_sent_is_refused(token: str) -> None:
    with pytest.raises(
        ConfigurationError, match="a token of TASKBRIDGE_EVENTS_TOKENS is not allowed: use 16"
    ) as refused:
        events([TOKEN, token])
    assert not token or token not in str(refused.value)


WAITS_FOR_REDIS = 1.0
"""Seconds for which an event waits for a Redis that does not answer."""


def test_tokens_come_from_the_environment_are_not_shown_and_without_postgres_the_sender_is_told_to_come_again(
    deployment: Deployment,
) -> None:
    settings = Settings.read({"TASKBRIDGE_EVENTS_TOKENS": f"{TOKEN}, {OTHER},"})
    assert settings.events_tokens == (TOKEN, OTHER)
    assert TOKEN not in repr(settings)
    with served(events(app=deployment.app)) as address:
        assert post(f"{address}/events", []).status_code == 404, "without a token there is no such path"
    away = "postgresql://nobody:wrong@127.0.0.1:1/nowhere"
    made = make_app(replace(settings, postgres_url=away, redis_url=deployment.settings.redis_url, notify_timeout=10))
    runtime_of(made.app).pipelines = declared()
    with served(events(app=made.app)) as address:
        for body in (an_order(), MESSAGE, {"pipeline": "alerts", "tenant": "acme"}):
            answer = post(f"{address}/events", body, OTHER)
            assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
            assert "wrong" not in answer.text
        # Its delay is the policy's own, so Postgres is not asked.
        assert post(f"{address}/events", {"pipeline": "orders", "tenant": "acme"}).status_code == 200
    assert deployment.gate.active("orders") == ["acme"]
    runtime_of(made.app).close()


@pytest.fixture(params=["away", "hung"])
def without_redis(deployment: Deployment, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of an app whose Redis is away, or swallows packets."""
    with nobody_accepts() as hung:
        redis_url = "redis://127.0.0.1:1/1" if request.param == "away" else hung
        made = make_app(Settings(deployment.settings.postgres_url, redis_url, notify_timeout=WAITS_FOR_REDIS))
        runtime_of(made.app).pipelines = declared()
        with served(events(TOKEN, app=made.app)) as address:
            post(f"{address}/events", [])
            yield f"{address}/events"
        runtime_of(made.app).close()


def test_without_redis_a_record_is_taken_at_once_and_an_event_is_not_said_to_be(
    without_redis: str, deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    post(without_redis, an_order(0))
    taken = []
    for number in range(1, 6):
        began = time.monotonic()
        assert post(without_redis, an_order(number)).status_code == 200
        taken.append(time.monotonic() - began)
    # As long as each would take that waits for Redis.
    assert min(taken) < WAITS_FOR_REDIS
    event = {"pipeline": "orders", "tenant": "bolt"}
    for body, stored in ((event, ""), ([an_order(7), event], "records and messages were stored, but ")):
        with taking_at_most(10):
            answer = post(without_redis, body)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        assert answer.json() == {"error": f"{stored}the events were not sent: try again"}
    assert len(records(deployment)) == 7
    told = [one for one in caplog.records if one.getMessage().startswith("no event for")]
    assert len(told) <= 1, "once a minute"


def test_a_webhook_at_the_same_path_is_refused() -> None:
    hook = Webhook("events", Hmac("secret", header="x-signature"), tenant="$.t", key="$.k")
    with pytest.raises(ConfigurationError, match="a webhook has the path /events"):
        with_events(receiver(hook))


def test_the_end_of_the_server_waits_for_what_was_begun(deployment: Deployment) -> None:
    runtime_of(deployment.app).pipelines = declared()
    with served(events(TOKEN, app=deployment.app)) as address:
        post(f"{address}/events", an_order())
    assert deployment.gate.active("orders") == ["acme"]
