"""A request is answered with 2xx once its record is durable, and what cannot be stored is told to its sender."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx2
import jsonpath_rfc9535
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from taskbridge.errors import InvalidInput, Unavailable
from taskbridge.process.runtime import runtime_of
from taskbridge.store import receiving
from taskbridge.web import Request, StandardWebhooks, Webhook, endpoint, receiver, storing
from taskbridge.web.webhook import finder
from tests.deployment import Deployment
from tests.store.adopting import ORDERS as ORDERS_TABLE
from tests.store.adopting import Reader, adopted, run
from tests.transactions.conftest import producer
from tests.waiting import wait_until
from tests.web.serving import declared, served

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()
ORDERS = Webhook(
    "orders", StandardWebhooks(SECRET), tenant="$.customer", key="$.id", version="$.version", document="$.order"
)


def note_key(request: Request) -> Any:
    """Where a note's key stands, as a declaration's function that looks into a database."""
    if request.payload.get("away"):
        raise Unavailable("no database")
    if request.payload.get("broken"):
        raise OSError("no file")
    return request.payload["keys"][0]


NOTES = Webhook(
    "notes",
    StandardWebhooks(SECRET),
    tenant="$.customer",
    key=note_key,
    version="$.version",
    deleted=lambda request: request.payload.get("type") == "deleted",
    when=lambda request: request.payload.get("type") != "hello",
)


@pytest.fixture
def url(deployment: Deployment) -> Iterator[str]:
    runtime_of(deployment.app).pipelines = declared("orders", "notes")
    with served(receiver(ORDERS, NOTES, app=deployment.app)) as address:
        yield address


def an_order(number: int | str = 1, version: Any = 1, delivery: str | None = None, **order: Any) -> httpx2.Request:
    """An order of acme, signed; `delivery` is its own unless one is given."""
    body = json.dumps({"customer": "acme", "id": number, "version": version, "order": order}).encode()
    return signed(body, delivery or f"msg-{number}-{version}-{order}")


def a_note(**payload: Any) -> httpx2.Request:
    body = json.dumps({"customer": "acme", "version": 1} | payload).encode()
    return signed(body, f"msg-{payload}", path="notes")


def signed(body: bytes, delivery: str, secret: bytes = b"k" * 32, path: str = "orders") -> httpx2.Request:
    when = str(int(time.time()))
    content = f"{delivery}.{when}.".encode() + body
    signature = base64.b64encode(hmac.new(secret, content, hashlib.sha256).digest()).decode()
    headers = {"webhook-id": delivery, "webhook-timestamp": when, "webhook-signature": f"v1,{signature}"}
    return httpx2.Request("POST", f"http://x/{path}", content=body, headers=headers)


Send = Callable[[httpx2.Request], httpx2.Response]


@contextmanager
def sending(app: Any) -> Iterator[Send]:
    """Serve an app, and send requests to it."""
    with served(app) as url, sent_to(url) as send:
        yield send


@contextmanager
def sent_to(url: str, timeout: float = 60) -> Iterator[Send]:
    with httpx2.Client(timeout=timeout) as client:

        def send(request: httpx2.Request) -> httpx2.Response:
            # Over another connection where the receiver has closed the last one.
            headers = {name: text for name, text in request.headers.items() if name not in ("host", "content-length")}
            return client.request(request.method, url + request.url.path, content=request.content, headers=headers)

        yield send


@pytest.fixture
def send(url: str) -> Iterator[Send]:
    with sent_to(url) as send:
        yield send


def orders(deployment: Deployment) -> dict[str, Any]:
    return {row.key: row.document for row in deployment.rows("SELECT * FROM taskbridge.records WHERE tenant = 'acme'")}


def unmatched(deployment: Deployment) -> list[tuple[str, Any]]:
    found = deployment.rows("SELECT reason, document FROM taskbridge.records WHERE tenant = '' ORDER BY id")
    return [(row.reason, row.document) for row in found]


def wait_for_the_lock(deployment: Deployment) -> None:
    """Wait until the receiver's transaction waits for a lock."""
    waiting = "SELECT FROM pg_locks WHERE NOT granted"
    wait_until(lambda: deployment.rows(waiting), "the receiver's transaction waits")


def test_a_record_is_there_when_its_request_is_answered_and_its_tenant_is_notified(
    send: Send, deployment: Deployment
) -> None:
    answer = send(an_order(7, amount=3))
    assert (answer.status_code, answer.json()) == (200, {"new": True})
    assert orders(deployment) == {"7": {"amount": 3}}
    wait_until(lambda: deployment.gate.active("orders") == ["acme"], "its event")
    # a long body, and a delivery that is meant to bring no record
    assert send(an_order(8, delivery="long", text="x" * 200_000)).status_code == 200
    assert orders(deployment)["8"] == {"text": "x" * 200_000}
    answer = send(a_note(type="hello"))
    assert (answer.status_code, answer.json()) == (200, {"ignored": True})
    assert unmatched(deployment) == []


VERSIONS = [
    (2, 1),
    (10, 9),
    ("2026-11-23T10:00:00Z", "2026-11-23T10:30:00+01:00"),
    ("2026-11-23T10:00:00.000002Z", "2026-11-23T10:00:00.000001Z"),
    ("2026-11-24", "2026-11-23T23:59:59"),
    (12345678901234567890123, 12345678901234567890122),
    ("10000000000000000.02", "10000000000000000.01"),
    ("1970-01-01T00:01:41Z", 100),
]


def test_an_older_version_never_overwrites_a_newer_one(send: Send, deployment: Deployment) -> None:
    for number, (newer, older) in enumerate(VERSIONS):
        for version in (newer, older):
            assert send(an_order(number, version, amount=str(version))).json() == {"new": True}
        assert orders(deployment)[str(number)] == {"amount": str(newer)}
        assert send(an_order(number, newer, amount="corrected")).status_code == 200
        assert orders(deployment)[str(number)] == {"amount": "corrected"}


def test_in_any_order_and_all_at_once_the_newest_version_is_kept(
    locked: Callable[[], None], send: Send, deployment: Deployment
) -> None:
    with ThreadPoolExecutor(30) as threads:
        answers = [
            threads.submit(send, an_order(number % 3, version, v=version))
            for number in range(6)
            for version in (3, 9, 1, 7)
        ]
        wait_for_the_lock(deployment)
        locked()
        assert {answer.result().status_code for answer in answers} == {200}
    assert orders(deployment) == {key: {"v": 9} for key in "012"}


NO_JSON = [
    (b"", "not JSON"),
    (b"[" * 100_000, "not JSON"),
    (b"NaN", "not JSON"),
    (b'{"order": [{"a": {"b": 1, "c": 2, "b": 1}}]}', "an object with the duplicate name 'b'"),
]


def test_what_is_no_json_is_refused_with_a_reason(send: Send, deployment: Deployment) -> None:
    for body, why in NO_JSON:
        answer = send(signed(body, "msg"))
        assert answer.status_code == 400
        assert why in answer.json()["error"]
    assert orders(deployment) == {}
    assert unmatched(deployment) == []


NO_RECORD = [
    (b"[]", "the tenant"),
    (b'{"customer": true, "id": 1, "version": 1, "order": {}}', "the tenant is neither"),
    (b'{"customer": "a", "id": "\\ud800", "version": 1, "order": {}}', ""),
    (b'{"customer": "a", "id": 1.5, "version": 1, "order": {}}', "the key is neither"),
    (b'{"customer": "a", "id": 1, "version": "soon", "order": {}}', "version"),
    (b'{"customer": "a", "id": 1, "version": 1e400, "order": {}}', "version"),
    (b'{"customer": "a", "id": 1, "order": {}}', "the version"),
    (b'{"customer": "a", "id": 1, "version": 1, "order": 5}', "not a JSON object"),
    (b'{"customer": "a", "id": 1, "version": 1, "order": {"a": "\\u0000"}}', "NUL"),
]


def test_what_is_genuine_and_brings_no_record_is_kept_as_unmatched_and_not_sent_again(
    send: Send, deployment: Deployment
) -> None:
    for count, (body, why) in enumerate(NO_RECORD, 1):
        for delivery in ("msg", "again"):
            answer = send(signed(body, delivery))
            assert answer.status_code == 200
            assert why in answer.json()["unmatched"]
        reasons = [reason for reason, _ in unmatched(deployment)]
        assert (len(reasons), reasons[-1]) == (count, answer.json()["unmatched"])
    assert orders(deployment) == {}


def test_a_fault_that_is_not_the_sender_s_lets_it_come_again(send: Send, deployment: Deployment) -> None:
    run(deployment.engine, ORDERS_TABLE)
    adopted(deployment.engine)
    for request in (a_note(away=True), an_order()):
        answer = send(request)
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        assert answer.json() == {"error": "the request cannot be accepted now: try again"}
    assert unmatched(deployment) == []


def test_a_webhook_that_tells_of_a_deletion_deletes_by_the_same_rule_of_versions(
    send: Send, deployment: Deployment
) -> None:
    def read() -> list[tuple[int, bool, dict[str, Any]]]:
        records = Reader(deployment.engine, "notes", "notes").records("acme")
        return [(int(one.external_id), one.deleted, dict(one.document)) for one in records]

    assert send(a_note(keys=[1], version=1)).status_code == 200
    assert [deleted for _, deleted, _ in read()] == [False]
    for request in (a_note(keys=[1], version=3, type="deleted"), a_note(keys=[1], version=2)):
        assert send(request).json() == {"new": True}
    assert read() == [(1, True, {})]
    assert send(a_note(keys=[1], version=3, type="deleted", again=True)).json() == {"new": True}
    assert read() == []
    assert send(a_note(keys=[1], version=4)).status_code == 200
    assert [deleted for _, deleted, _ in read()] == [False]


def test_a_function_that_fails_over_each_request_does_not_fill_the_log(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    # Of its own: the webhook remembers what it has told.
    with sending(receiver(replace(NOTES), app=deployment.app)) as send:
        for number in range(3):
            answer = send(a_note(keys=[], number=number))
            assert answer.json() == {"unmatched": "a function of the webhook raised IndexError"}
            assert send(a_note(keys=[], broken=True)).status_code == 503
            assert send(signed(b"{}", "msg", secret=b"of somebody else", path="notes")).status_code == 401
    told = [one.getMessage().partition(",")[0] for one in caplog.records if "1 request" in one.getMessage()]
    assert told == [
        "a function of 'notes' failed for 1 request",
        "1 request to /notes failed with this error",
        "1 request to /notes answered with 503",
        "1 request to /notes answered with 401",
    ]


def test_a_path_gives_what_a_query_gives() -> None:
    payloads: tuple[Any, ...] = ({}, [], {"a": 1}, {"a": {"b": None}}, {"a": [{"b": 2}]}, {"a": {"b": {"c": 3}}})
    for place in ("$", "$.a", "$['a']['b']", "$.a.b.c", "$.a[0]", "$.a.*", "$..b", "$['a','b']"):
        for payload in payloads:
            values = jsonpath_rfc9535.find(place, payload).values()
            found, request = finder("key", place), Request({}, b"", payload)
            if len(values) == 1:
                assert found(request) is values[0]
            else:
                with pytest.raises(InvalidInput, match=f"was found {len(values)} times"):
                    found(request)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_is_too_long_is_refused_while_it_comes(url: str, *, chunked: bool) -> None:
    sent = 0

    def parts() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(2_000):
            sent += 65_536
            yield b" " * 65_536

    try:
        answer = httpx2.post(f"{url}/orders", content=parts() if chunked else b" " * 1_048_577, timeout=60)
        assert answer.status_code == 413
    except (httpx2.WriteError, httpx2.ReadError):
        # The connection was closed before all was sent.
        assert chunked
    assert sent < 100_000_000


def raw(url: str, text: str) -> socket.socket:
    """A connection over which the beginning of a request was sent."""
    host, port = url.removeprefix("http://").split(":")
    opened = socket.create_connection((host, int(port)), timeout=30)
    opened.sendall(f"POST /orders HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{text}".encode())
    return opened


def test_a_body_that_does_not_come_is_not_waited_for(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "BODY_SECONDS", 0.2)
    with raw(url, "{") as slow:
        assert slow.recv(100).startswith(b"HTTP/1.1 408")


def test_bodies_that_are_on_their_way_take_no_more_memory_than_is_said(
    send: Send, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint, "MOST_HELD", 420)
    monkeypatch.setattr(endpoint, "LONG_BODY", 0)
    with raw(url, "x" * 400):
        wait_until(lambda: send(an_order()).status_code == 503, "it is too much")
    wait_until(lambda: send(an_order()).status_code == 200, "that one has gone")


def test_who_goes_away_while_it_waits_costs_no_other(
    locked: Callable[[], None], send: Send, url: str, deployment: Deployment
) -> None:
    with pytest.raises(httpx2.ReadTimeout), sent_to(url, timeout=0.3) as impatient:
        impatient(an_order(1))
    with ThreadPoolExecutor(1) as threads:
        answer = threads.submit(send, an_order(2))
        wait_for_the_lock(deployment)
        locked()
        assert answer.result().status_code == 200
    wait_until(lambda: set(orders(deployment)) == {"1", "2"}, "the other is stored, too")


NUMBERS = """{"most": 9223372036854775807, "odd": 9007199254740993, "long": 123456789012345678901234567890,
    "price": 12.50, "tenth": 0.1, "wide": 10000000000000000.01, "text": "12345678901234567.890"}"""


def test_numbers_keep_their_digits_from_the_request_to_the_handler_and_on(send: Send, deployment: Deployment) -> None:
    body = f'{{"customer": "acme", "id": 9007199254740993, "version": 1, "order": {NUMBERS}}}'.encode()
    assert send(signed(body, "msg-numbers")).status_code == 200
    (record,) = Reader(deployment.engine, "orders", "orders").records("acme")
    assert record.external_id == "9007199254740993"
    assert json.loads(record.document_text, parse_float=str) == json.loads(NUMBERS, parse_float=str)
    assert dict(record.document) == json.loads(NUMBERS)


@pytest.fixture
def locked(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """The log is locked, so that transactions of a receiver that starts after this wait, until this is called."""
    monkeypatch.setattr(receiving, "LOCK_TIMEOUT", "60s")
    monkeypatch.setattr(receiving, "WAIT_SECONDS", 60.0)
    with deployment.engine.connect() as connection:
        connection.exec_driver_sql("LOCK TABLE taskbridge.records IN ACCESS EXCLUSIVE MODE")
        yield connection.rollback


@pytest.mark.parametrize("lock_timeout", ["60s", "1s"])
def test_a_record_that_somebody_else_holds_is_waited_for_a_short_while_and_keeps_no_other_waiting(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, lock_timeout: str
) -> None:
    is_released = lock_timeout == "60s"
    monkeypatch.setattr(receiving, "LOCK_TIMEOUT", lock_timeout)
    with sending(receiver(ORDERS, app=deployment.app)) as ask:
        for number in range(3):
            ask(an_order(number, 1))
        with deployment.engine.connect() as connection, ThreadPoolExecutor(20) as threads:
            connection.exec_driver_sql("SELECT FROM taskbridge.records WHERE key = '1' FOR UPDATE")
            answers = {number: threads.submit(ask, an_order(number, 2)) for number in range(20)}
            others = [answer.result() for number, answer in answers.items() if number != 1]
            assert {answer.status_code for answer in others} == {200}
            if is_released:
                assert not answers[1].done()
                connection.rollback()
            answer = answers[1].result()
        assert (answer.status_code, answer.headers.get("Retry-After")) == ((200, None) if is_released else (503, "1"))
        assert ask(an_order(1, 4)).status_code == 200


@pytest.mark.parametrize(("most", "seconds", "taken"), [(3, 60.0, 3), (1_000, 0.5, 0)], ids=["too many", "too long"])
def test_who_cannot_wait_for_a_session_is_asked_to_send_again(
    locked: Callable[[], None],
    send: Send,
    deployment: Deployment,
    monkeypatch: pytest.MonkeyPatch,
    most: int,
    seconds: float,
    taken: int,
) -> None:
    monkeypatch.setattr(receiving, "MOST_WAITING", most)
    monkeypatch.setattr(receiving, "WAIT_SECONDS", seconds)
    count = 20 - receiving.SESSIONS - taken
    with ThreadPoolExecutor(20) as threads:
        answers = [threads.submit(send, an_order(number)) for number in range(20)]
        wait_until(lambda: sum(answer.done() for answer in answers) == count, "some are refused")
        locked()
        refused = [answer.result() for answer in answers if answer.result().status_code == 503]
    assert len(refused) == count
    assert {answer.headers["Retry-After"] for answer in refused} == {"1"}
    assert len(orders(deployment)) == 20 - count


def test_errors_do_not_reduce_what_the_receiver_takes(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiving, "SESSIONS", 1)
    monkeypatch.setattr(receiving, "MOST_WAITING", 3)
    monkeypatch.setattr(receiving, "LOCK_TIMEOUT", "10ms")
    monkeypatch.setattr(receiving, "WAIT_SECONDS", 60.0)
    monkeypatch.setattr(endpoint, "LONG_BODY", 0)
    monkeypatch.setattr(endpoint, "MOST_HELD", 2_000)
    app = receiver(ORDERS, app=deployment.app)
    ours = "FROM pg_stat_activity WHERE query LIKE '%%received%%' AND pid <> pg_backend_pid()"
    with sending(app) as ask, ThreadPoolExecutor(4) as threads:
        assert ask(an_order(0)).status_code == 200
        with deployment.engine.connect() as connection:
            connection.exec_driver_sql("SELECT FROM taskbridge.records WHERE key = '0' FOR UPDATE")
            assert [ask(an_order(0, version)).status_code for version in range(2, 12)] == [503] * 10
        for number in range(1, 6):
            deployment.rows(f"SELECT pg_terminate_backend(pid) {ours}")
            wait_until(lambda: deployment.rows(f"SELECT {ours}") == [], "the session has ended")
            assert ask(an_order(number)).status_code == 200, "it was noticed before the session was used"
        for number in range(10):
            assert ask(signed(b"{", f"msg-{number}")).status_code == 400
        for _ in range(5):
            answers = [threads.submit(ask, an_order(f"last-{number}")) for number in range(4)]
            assert {answer.result().status_code for answer in answers} == {200}


def test_one_record_that_postgres_refuses_costs_no_other(send: Send, deployment: Deployment) -> None:
    run(
        deployment.engine,
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "IF NEW.key = '12' THEN RAISE EXCEPTION USING ERRCODE = '22P05', MESSAGE = 'its ä'; END IF; "
        "IF NEW.key = '13' THEN RAISE EXCEPTION USING ERRCODE = '22023', MESSAGE = 'no thirteen'; END IF; "
        "RETURN NEW; END $$",
        "CREATE TRIGGER refuse BEFORE INSERT ON taskbridge.records FOR EACH ROW EXECUTE FUNCTION refuse()",
    )
    with ThreadPoolExecutor(20) as threads:
        answers = dict(enumerate(threads.map(send, [an_order(number) for number in range(20)])))
    refused = {number: answer for number, answer in answers.items() if answer.status_code != 200}
    assert {number: answer.status_code for number, answer in refused.items()} == {12: 400, 13: 400}
    assert "cannot store in its encoding" in refused[12].json()["error"]
    assert refused[13].json() == {"error": "no thirteen"}
    assert len(orders(deployment)) == 18


def test_pipelines_that_do_not_import_keep_nobody_from_an_answer(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    made = producer(replace(deployment.settings, pipelines=("no_such_module",)))
    del runtime_of(made.app).__dict__["pipelines"]
    with sending(receiver(ORDERS, app=made.app)) as send:
        assert send(an_order()).status_code == 200
    assert "workers will find the records anyway" in caplog.text
    runtime_of(made.app).close()


def test_it_can_be_mounted(deployment: Deployment) -> None:
    whole = Starlette(routes=[Mount("/hooks", receiver(ORDERS, app=deployment.app))])
    with served(whole) as url, sent_to(f"{url}/hooks") as send:
        assert send(an_order()).status_code == 200
        assert httpx2.get(f"{url}/hooks/orders").status_code == 405


def test_ids_of_deliveries_are_kept_for_thirty_days(
    send: Send, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storing, "FORGETS_EVERY", 0.0)
    for days in (31, 29):
        send(an_order(days, delivery=f"d{days}"))
        run(
            deployment.engine,
            f"UPDATE taskbridge.received SET received_at = now() - interval '{days} days' "  # noqa: S608
            f"WHERE delivery = 'd{days}'",
        )
    send(an_order(3, delivery="d3"))
    left = "SELECT delivery FROM taskbridge.received ORDER BY 1"
    wait_until(lambda: deployment.rows(left) == [("d29",), ("d3",)], "the oldest is gone")
    assert send(an_order(29, delivery="d29", amount=2)).json() == {"new": False}
    assert send(an_order(31, delivery="d31", amount=2)).json() == {"new": True}


def test_a_request_whose_trace_ends_at_the_receiver(send: Send, deployment: Deployment) -> None:
    trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
    given = {
        1: (f"00-{trace}-{parent}-01", f"00-{trace}-{parent}-01"),
        2: (f"cc-{trace}-{parent}-01-what-comes-later", f"00-{trace}-{parent}-01"),
        3: (f"00-{trace}-{parent}-00", None),
        4: (f"00-{trace}-{parent}-01-more", None),
        5: (f"00-{'0' * 32}-{parent}-01", None),
        6: ("'; DROP TABLE taskbridge.records", None),
    }
    for number, (header, _) in given.items():
        request = an_order(number)
        request.headers["traceparent"] = header
        assert send(request).status_code == 200

    found = dict(deployment.rows("SELECT key, traceparent FROM taskbridge.records"))
    assert found == {str(number): kept for number, (_, kept) in given.items()}
