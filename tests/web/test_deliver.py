"""What an endpoint answers decides what becomes of each record."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import standardwebhooks

from taskbridge.declaring.batch import Batch, Record, RetryAfter
from taskbridge.errors import ConfigurationError
from taskbridge.process.event_loop import EventLoop
from taskbridge.web import Refused, Undelivered, UnexpectedAnswer, addresses, deliver
from taskbridge.web.addresses import Network, is_public
from tests.certificates import certificate
from tests.failures.drill import Drill
from tests.traces.conftest import Spans, context_of
from tests.transactions.black_hole import nobody_accepts
from tests.waiting import taking_at_most, wait_until

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()
OTHER = "whsec_" + base64.b64encode(b"o" * 32).decode()
Answer = tuple[int, dict[str, str], bytes]


class Endpoint:
    """An HTTP server that answers as a test says, and remembers what came."""

    def __init__(self) -> None:
        self.answer: Callable[[Any], Answer] = lambda _: (200, {}, b"")
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.connections = 0
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                endpoint.connections += 1
                super().setup()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                endpoint.requests.append((self.path, headers, body))
                status, more, content = endpoint.answer(json.loads(body)["data"])
                self.send_response(status)
                for name, value in more.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if content == SLOWLY:
                    for at in range(len(content)):
                        time.sleep(0.1)
                        self.wfile.write(content[at : at + 1])
                else:
                    self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/hooks"

    def sent(self) -> list[list[str]]:
        """Return the ids of the records of each request."""
        return [[one["id"] for one in json.loads(body)["data"]] for _, _, body in self.requests]


SLOWLY = b"." * 600


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    thread = threading.Thread(target=made.server.serve_forever, args=(0.01,))
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


LOOP = EventLoop()


@pytest.fixture
def sender(endpoint: Endpoint) -> Iterator[Callable[..., Callable[[Batch], None]]]:
    """Makes handlers that send to the endpoint, and closes their connections at the end."""
    made: list[Any] = []

    def make(*, awaited: bool = True, **options: Any) -> Any:
        given: dict[str, Any] = {"url": endpoint.url, "secret": SECRET, "allow_private": True} | options
        made.append(deliver(**given))
        return (lambda batch, handler=made[-1]: LOOP.run(handler(batch))) if awaited else made[-1]

    yield make
    for handler in made:
        for loop, pool in handler._pools.items():
            asyncio.run_coroutine_threadsafe(pool.aclose(), loop).result(10)


Make = Callable[..., Callable[[Batch], None]]


def always(status: int, headers: dict[str, str] | None = None, body: bytes = b"") -> Callable[[Any], Answer]:
    return lambda _: (status, headers or {}, body)


def a_batch(tenant: str = "acme", count: int = 1, **options: Any) -> Batch:
    text = options.pop("document_text", "")
    records = [Record("invoices", tenant, str(number), number, {}, False, text) for number in range(count)]
    options = {"owned": lambda: True, **options}
    return Batch("invoices", tenant, "token", records, connect=pytest.fail, open_session=pytest.fail, **options)


def test_a_batch_is_one_signed_request_and_the_same_records_have_the_same_id(
    drill: Drill, endpoint: Endpoint, sender: Make, spans: Spans
) -> None:
    answers = iter([500, 200])
    endpoint.answer = lambda _: (next(answers), {}, b"")
    drill.handle(sender(awaited=False, headers={"X-Shop": "12", "Content-Type": "application/cloudevents+json"}))
    drill.save("acme", "1", "2")
    drill.go_on()
    assert [type(error) for error in drill.errors] == [Undelivered]
    assert drill.states() == {"handled": 2}
    assert endpoint.sent() == [["1", "2"], ["1", "2"]]
    (_, first, _), (path, second, body) = endpoint.requests
    assert first["webhook-id"] == second["webhook-id"]
    standardwebhooks.Webhook(SECRET).verify(body, second)
    assert (path, second["x-shop"], second["content-type"]) == ("/hooks", "12", "application/cloudevents+json")
    assert second["user-agent"].startswith("taskbridge")
    assert json.loads(body)["tenant"] == "acme"
    assert endpoint.connections == 1
    trace_id, span_id = context_of(spans.named("handle invoices")[-1])
    assert second["traceparent"] == f"00-{trace_id:032x}-{span_id:016x}-01"


def test_an_endpoint_gets_each_digit(endpoint: Endpoint, sender: Make) -> None:
    document = '{"odd": 9007199254740993, "wide": 12345678901234567.89, "price": 12.50}'
    sender()(a_batch(document_text=document))
    ((_, _, body),) = endpoint.requests
    (sent,) = json.loads(body, parse_float=str)["data"]
    assert sent["document"] == json.loads(document, parse_float=str)


UNREADABLE: list[tuple[dict[str, str], bytes]] = [
    *(
        ({}, json.dumps({"failures": failures}).encode())
        for failures in ([{"id": "9", "error": "x"}], [{"id": "1", "error": ""}], [1], "all")
    ),
    ({}, json.dumps({"failures": [{"id": "1", "error": "e" * 1_100_000}]}).encode()),
    ({"Content-Encoding": "gzip"}, gzip.compress(b'{"failures": [{"id": "1", "error": "e"}]}')),
    ({"Content-Type": "application/json"}, b"ok"),
    ({}, b'{"failures": [{"id'),
]


def test_the_failures_of_an_answer_are_rejected_and_one_that_cannot_be_read_handles_nothing(
    endpoint: Endpoint, sender: Make
) -> None:
    handler = sender()
    for headers, body in UNREADABLE:
        endpoint.answer = always(200, headers, body)
        batch = a_batch(count=2)
        with pytest.raises(UnexpectedAnswer):
            handler(batch)
        assert not batch.done, body[:100]
    for body in (b"", b"ok", b"[]", b'{"failures": null}', b"[" * 50_000, b'{"id": 1}'):
        endpoint.answer = always(202, body=body)
        batch = a_batch(count=2)
        handler(batch)
        assert (batch.done, dict(batch.rejected)) == ({"0", "1"}, {}), body
    endpoint.answer = always(200, body=b'{"failures": [{"id": "1", "error": "no such customer"}]}')
    batch = a_batch(count=2)
    handler(batch)
    assert (batch.done, dict(batch.rejected)) == ({"0", "1"}, {"1": "no such customer"})


@pytest.mark.parametrize("status", [429, 503])
def test_an_endpoint_that_asks_to_wait_is_left_alone_as_long(endpoint: Endpoint, sender: Make, status: int) -> None:
    """By its tenant if that has an endpoint of its own, else by the whole pipeline."""
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=100), usegmt=True)
    of_tenants = sender(url=endpoint.url + "/{tenant}", secret=lambda _: SECRET)
    for handler, scope in ((sender(), "pipeline"), (of_tenants, "tenant")):
        for text, least, most in (("7", 7, 7), (date, 60, 101)):
            endpoint.answer = always(status, {"Retry-After": text})
            with pytest.raises(RetryAfter) as raised:
                handler(a_batch())
            assert least <= raised.value.seconds <= most
            assert raised.value.scope == scope


def test_a_request_that_is_too_large_is_halved_at_once(endpoint: Endpoint, sender: Make) -> None:
    endpoint.answer = lambda data: (413 if len(data) > 3 else 200, {}, b"")
    batch = a_batch(count=10)
    sender()(batch)
    assert batch.done == set("0123456789")
    taken = [ids for ids in endpoint.sent() if len(ids) <= 3]
    assert [number for ids in taken for number in ids] == [*"0123456789"], "in their order"


@pytest.mark.parametrize(("status", "bad"), [(400, "0"), (422, "9")])
def test_one_record_that_is_refused_costs_no_other(endpoint: Endpoint, sender: Make, status: int, bad: str) -> None:
    def answer(data: Any) -> Answer:
        return (status, {}, b"not this " * 1_000) if any(one["id"] == bad for one in data) else (200, {}, b"")

    endpoint.answer = answer
    batch = a_batch(count=10)
    sender()(batch)
    ((number, reason),) = batch.rejected.items()
    assert (number, batch.done) == (bad, set("0123456789"))
    assert reason.startswith(f"{status}: not this not this")
    assert len(reason) < 1_100


def test_a_record_that_is_refused_alone_goes_to_quarantine_when_others_are_taken(
    drill: Drill, endpoint: Endpoint, sender: Make
) -> None:
    endpoint.answer = lambda data: (422, {}, b"not this") if data[0]["id"] == "bad" else (200, {}, b"")
    drill.handle(sender(awaited=False, per="record"))
    drill.save("acme", "bad")
    drill.run_one()
    assert drill.quarantine() == [], "nothing tells that the endpoint takes any"
    assert [type(error) for error in drill.errors] == [Refused]
    drill.save("globex", "1")
    drill.go_on()
    assert drill.states() == {"handled": 1, "quarantined": 1}
    ((_, _, _, reason, _),) = drill.quarantine()
    assert reason.endswith("422: not this")


@pytest.mark.parametrize("status", [401, 413])
def test_an_endpoint_that_refuses_everything_empties_no_backlog_into_quarantine(
    drill: Drill, endpoint: Endpoint, sender: Make, status: int
) -> None:
    endpoint.answer = always(status, body=b"wrong configuration")
    drill.handle(sender(awaited=False, per="record"))
    for tenant in ("acme", "bolt", "globex"):
        drill.save(tenant, "1", "2", "3")
    drill.go_on(until=lambda: drill.circuit().open, within_ms=1_000_000)
    assert drill.circuit().open
    assert all(f"{status}: wrong configuration" in str(error) for error in drill.errors)
    drill.go_on(within_ms=300_000)
    assert drill.quarantine() == []
    endpoint.answer = always(200)
    drill.go_on()
    assert drill.states() == {"handled": 9}


def test_an_endpoint_that_refuses_everything_is_not_asked_for_each_record(endpoint: Endpoint, sender: Make) -> None:
    endpoint.answer = always(400)
    with pytest.raises(Refused):
        sender()(a_batch(count=64))
    assert len(endpoint.requests) <= 10
    # nor are redirects followed
    endpoint.answer = always(302, {"Location": "/elsewhere"})
    with pytest.raises(Undelivered):
        sender()(a_batch())
    assert {path for path, _, _ in endpoint.requests} == {"/hooks"}


def test_a_tenant_whose_endpoint_is_gone_is_paused(drill: Drill, endpoint: Endpoint, sender: Make) -> None:
    endpoint.answer = always(410)
    with pytest.raises(RetryAfter):
        sender(app=drill.runtime.app)(a_batch())
    assert drill.runtime.pauses.of("invoices").tenants["acme"].reason == "its endpoint answered 410 (Gone)"


@pytest.mark.parametrize("is_of_the_call", [False, True])
def test_an_answer_that_comes_byte_by_byte_has_the_whole_time_and_no_more(
    endpoint: Endpoint, sender: Make, *, is_of_the_call: bool
) -> None:
    endpoint.answer = always(200, body=SLOWLY)
    handler = sender() if is_of_the_call else sender(timeout=0.5, connect_timeout=0.5)
    batch = a_batch(until=time.monotonic() + 0.5) if is_of_the_call else a_batch()
    with taking_at_most(20), pytest.raises(Undelivered):
        handler(batch)


def test_whoever_reads_slowly_has_the_whole_time_and_no_more(sender: Make) -> None:
    def read_slowly() -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            while connection.recv(65_536):
                time.sleep(0.2)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=read_slowly, daemon=True).start()
        handler = sender(url=f"http://127.0.0.1:{listener.getsockname()[1]}/", timeout=0.5, connect_timeout=0.5)
        # 12 MB at 0.3 MB a second
        batch = a_batch(document_text=f'"{"x" * 12_000_000}"')
        with taking_at_most(10), pytest.raises(Undelivered, match="took longer"):
            handler(batch)


def test_a_run_that_lost_its_tenant_sends_no_more(endpoint: Endpoint, sender: Make) -> None:
    with pytest.raises(Undelivered, match="another run"):
        sender(per="record")(a_batch(count=5, owned=lambda: len(endpoint.requests) < 2))
    assert endpoint.sent() == [["0"], ["1"]]
    assert len({headers["webhook-id"] for _, headers, _ in endpoint.requests}) == 2


def test_endpoints_that_hang_keep_no_other_from_a_connection(endpoint: Endpoint, sender: Make) -> None:
    released = threading.Event()

    def answer(_: Any) -> Answer:
        if len(endpoint.requests) <= 14:
            released.wait(60)
        return 200, {}, b""

    endpoint.answer = answer
    handler = sender(timeout=20)
    with ThreadPoolExecutor(15) as threads:
        hanging = [threads.submit(handler, a_batch()) for _ in range(14)]
        wait_until(lambda: len(endpoint.requests) == 14, "all hang at once")
        handler(a_batch())
        released.set()
        for one in hanging:
            one.result()


def test_whoever_runs_one_tenant_s_endpoint_cannot_sign_for_another(endpoint: Endpoint, sender: Make) -> None:
    secrets = {"a/b?c d": SECRET, "globex": [OTHER]}
    handler = sender(url=endpoint.url + "/{tenant}", secret=secrets.__getitem__)
    for tenant in secrets:
        handler(a_batch(tenant))
    assert [path for path, _, _ in endpoint.requests] == ["/hooks/a%2Fb%3Fc%20d", "/hooks/globex"]
    for (_, headers, body), (own, other) in zip(endpoint.requests, [(SECRET, OTHER), (OTHER, SECRET)], strict=True):
        standardwebhooks.Webhook(own).verify(body, headers)
        with pytest.raises(standardwebhooks.WebhookVerificationError):
            standardwebhooks.Webhook(other).verify(body, headers)


def test_a_tenant_s_url_that_is_none_or_leads_to_another_path_is_sent_nothing_and_not_shown(
    endpoint: Endpoint, sender: Make
) -> None:
    for url in ("", "ftp://partner.example/", "https:///hooks", "http://[::1"):
        handler = sender(url=lambda _, url=url: url, secret=lambda _: SECRET)
        with pytest.raises(Undelivered, match="not sent: the URL for tenant 'acme' is invalid") as refused:
            handler(a_batch())
        assert not any(part in str(refused.value) for part in ("ftp:", "hooks", "[::1"))
    handler = sender(url=endpoint.url + "/{tenant}/orders?of={tenant}", secret=lambda _: SECRET)
    for tenant in (".", ".."):
        with pytest.raises(Undelivered, match=r"contains `\.` or `\.\.`"):
            handler(a_batch(tenant))
    for tenant in ("%2e.", "...", ".acme"):
        handler(a_batch(tenant))
    assert [path.partition("?")[0].split("/")[2] for path, *_ in endpoint.requests] == ["%252e.", "...", ".acme"]


@pytest.mark.parametrize("url", ["https://x/{tenant}", lambda tenant: f"https://{tenant}.example"])
def test_one_secret_for_the_endpoints_of_all_tenants_is_refused(url: Any) -> None:
    with pytest.raises(ConfigurationError, match="pass `secret` as a function of the tenant"):
        deliver(url, SECRET)


def test_a_secret_that_is_easily_guessed_signs_nothing() -> None:
    for length in (2, 23, 24, 64, 65):
        secret = "whsec_" + base64.b64encode(b"k" * length).decode()
        if 24 <= length <= 64:
            deliver("https://x", [SECRET, secret])
            continue
        with pytest.raises(ConfigurationError, match=f"has {length} bytes.* requires 24 to 64 .*openssl") as raised:
            deliver("https://x", [SECRET, secret])
        assert secret not in str(raised.value)


def resolve(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Let names of `.example` have these addresses, one answer after the other; the names that are asked for."""
    asked: list[str] = []
    real = socket.getaddrinfo

    def getaddrinfo(host: Any, port: Any, *rest: Any, **options: Any) -> Any:
        if not str(host).endswith(".example"):
            return real(host, port, *rest, **options)
        asked.append(host)
        found = answers[min(len(asked), len(answers)) - 1]
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (one, port)) for one in found]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    return asked


def test_a_name_is_resolved_once_and_none_of_its_private_addresses_is_called(
    endpoint: Endpoint, sender: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(addresses, "is_public", "127.0.0.1".__eq__)
    port = endpoint.server.server_port
    with socket.create_server(("127.0.0.2", port)) as private:
        private.setblocking(False)
        asked = resolve(monkeypatch, ["127.0.0.2", "127.0.0.1"], ["127.0.0.2"])
        handlers = [sender(url=f"http://customer.example:{port}/hooks", allow_private=False) for _ in range(2)]
        handlers[0](a_batch())
        assert (asked, endpoint.connections) == (["customer.example"], 1)
        with pytest.raises(Undelivered, match=r"customer\.example has no public address.*allow_private=True"):
            handlers[1](a_batch())
        with pytest.raises(BlockingIOError):
            private.accept()


def test_an_address_that_is_silent_leaves_time_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    resolve(monkeypatch, ["127.0.0.1", "127.0.0.2"])

    async def connect(port: int) -> Any:
        stream = await Network(allow_private=True).connect_tcp("customer.example", port, 4.0)
        try:
            return stream.get_extra_info("server_addr")
        finally:
            await stream.aclose()

    with nobody_accepts() as silent:
        port = urlsplit(silent).port
        assert port is not None
        with socket.create_server(("127.0.0.2", port)):
            assert asyncio.run(connect(port)) == ("127.0.0.2", port)


def test_a_resolver_that_is_silent_has_the_time_of_the_request_and_no_more(
    sender: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: released.wait(60))
    for timeout in (0.5, 30):
        handler = sender(url="http://customer.example", timeout=timeout, connect_timeout=0.5)
        with taking_at_most(20), pytest.raises(Undelivered, match=r"took too long|took longer"):
            handler(a_batch())
    released.set()


def test_a_server_with_the_certificate_of_another_name_is_sent_nothing(
    endpoint: Endpoint, sender: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    context = certificate("customer.example", tmp_path / "certificate.pem")
    endpoint.server.socket = context.wrap_socket(endpoint.server.socket, server_side=True)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
    resolve(monkeypatch, ["127.0.0.1"])

    def send(host: str) -> None:
        sender(url=f"https://{host}:{endpoint.server.server_port}/hooks")(a_batch())

    send("customer.example")
    with pytest.raises(Undelivered, match="Hostname mismatch"):
        send("other.example")
    assert len(endpoint.requests) == 1


def test_addresses_that_are_not_public_are_not_called(endpoint: Endpoint, sender: Make) -> None:
    for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "2130706433"):
        with pytest.raises(Undelivered):
            sender(url=endpoint.url.replace("127.0.0.1", host), allow_private=False)(a_batch())
    assert endpoint.connections == 0


PUBLIC = """
    93.184.216.34 2606:2800:220:1:248:1893:25c8:1946 ::ffff:93.184.216.34 64:ff9b::5db8:d822
"""
NOT_PUBLIC = """
    10.0.0.1 172.16.0.1 192.168.1.1 127.8.9.1 169.254.169.254 100.64.0.1 100.127.255.255 0.0.0.1 224.0.0.1
    255.255.255.255 :: ::1 fe80::1%eth0 fc00::1 ff0e::1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 2002:0a00:0001::1
    64:ff9b::0a00:0001 64:ff9b:1::a9fe:a9fe 192.0.0.192 168.63.129.16 192.88.99.1 fec0::1 ::10.0.0.1
    ::ffff:0:10.0.0.1 2002:5db8:d822::1 5f00::1 3fff::1 2001:db8::1 2001:0:4136:e378:8000:63bf:3fff:fdd2
"""


def test_what_is_a_public_address() -> None:
    assert [one for one in PUBLIC.split() if not is_public(one)] == []
    assert [one for one in NOT_PUBLIC.split() if is_public(one)] == []


@pytest.mark.parametrize(
    "options",
    [
        {"url": "ftp://x"},
        {"secret": "whpk_" + base64.b64encode(b"k" * 32).decode()},
        {"headers": {"X-Shop": "caf\u00e9"}},
        {"headers": {"X Shop": "a"}},
        {"timeout": 0},
        {"timeout": 1, "connect_timeout": 2},
    ],
)
def test_what_can_never_work_is_refused_when_it_is_declared(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        deliver(**({"url": "https://x", "secret": SECRET} | options))
