"""`taskbridge webhook` sends what a receiver takes: one request, or each line of a file."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest
from sqlalchemy import Engine

from tests.cli.program import Program
from tests.cli.test_bad_input import assert_one_clear_line
from tests.waiting import wait_until

HOOKS = """
from taskbridge.web import GitHub, Hmac, Shopify, Slack, StandardWebhooks, Stripe, Verified, Webhook, receiver

SECRET = "whsec_a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2s="
schemes = {
    "standard": StandardWebhooks(SECRET), "github": GitHub(SECRET), "shopify": Shopify(SECRET),
    "slack": Slack(SECRET), "stripe": Stripe(SECRET), "hmac": Hmac(SECRET, header="x-signature"),
}
carrier = Hmac(SECRET, header="X-Sum", encoding="base64", prefix="v=", delivery="X-Number")
app = receiver(
    *(Webhook(name, scheme, tenant="$.t", key="$.k") for name, scheme in schemes.items()),
    Webhook("parcels", carrier, tenant="$.t", key="$.k", version="$.v", path="/in/carrier"),
    Webhook("own", Verified(lambda headers, body: True), tenant="$.t", key="$.k"),
)
"""
SECRET = "whsec_a2tra2tra2tra2tra2tra2tra2tra2tra2tra2tra2s="
SCHEMES = ["standard", "github", "shopify", "slack", "stripe", "hmac"]


@pytest.fixture
def program(taskbridge: Program) -> Program:
    (taskbridge.directory / "hooks.py").write_text(HOOKS, encoding="utf-8")
    taskbridge.environment["WEBHOOK_SECRET"] = SECRET
    return taskbridge


@contextmanager
def receiving(program: Program, port: int = 0) -> Iterator[str]:
    with program.started("serve", "hooks:app", "--port", str(port)) as running:
        (url,) = wait_until(
            lambda: re.findall(r"running on (http://127\.0\.0\.1:[0-9]+)", running.stderr), "it listens"
        )
        yield url


def keys(engine: Engine) -> list[tuple[str, str]]:
    with engine.connect() as connection:
        found = connection.exec_driver_sql(
            "SELECT source, key FROM taskbridge.records WHERE tenant <> '' ORDER BY source, key"
        ).all()
    return [(source, key) for source, key in found]


def test_a_request_of_each_scheme_is_taken(program: Program, engine: Engine) -> None:
    (program.directory / "body.json").write_text('{"t": "acme", "k": "1", "id": "evt_1", "event_id": "Ev1"}')
    with receiving(program) as url:
        for scheme in SCHEMES:
            ended = program("webhook", "send", f"{url}/{scheme}", "body.json", "--scheme", scheme)
            assert (ended.status, ended.stdout) == (0, '200 {"new":true}\n'), ended.stderr
        ended = program("webhook", "send", f"{url}/standard", "body.json", WEBHOOK_SECRET="whsec_b2tv")
        assert (ended.status, ended.stdout[:3]) == (1, "401")
    assert keys(engine) == [(scheme, "1") for scheme in sorted(SCHEMES)]


def test_a_lost_day_is_sent_again_and_what_was_there_changes_nothing(program: Program, engine: Engine) -> None:
    lines = [json.dumps({"t": "acme", "k": str(number)}) for number in range(10)]
    lines[3], lines[7] = '{"t": "acme"}', "{"
    (program.directory / "day.jsonl").write_text("\n".join(lines))
    with receiving(program) as url:
        first = program("webhook", "replay", f"{url}/standard", "day.jsonl", "--json")
        assert first.status == 1
        counts = first.json
        assert (counts["new"], counts["known_before"], counts["problems"]) == (8, 0, 2)
        assert [(one["line"], one["text"][:4]) for one in counts["problem_lines"]] == [(4, "200:"), (8, "no J")]
        again = program("webhook", "replay", f"{url}/standard", "day.jsonl", "--json", "--from-line", "9")
        assert again.status == 0
        assert again.json == {"new": 0, "known_before": 2, "problems": 0, "problem_lines": []}
    assert [key for _, key in keys(engine)] == [str(number) for number in range(10) if number not in (3, 7)]


def documents(engine: Engine) -> list[object]:
    with engine.connect() as connection:
        return list(connection.exec_driver_sql("SELECT document FROM taskbridge.records ORDER BY id").scalars())


@pytest.mark.parametrize("scheme", ["standard", "github"])
def test_an_old_webhook_that_is_sent_again_with_its_provider_s_id_overwrites_nothing(
    program: Program, engine: Engine, scheme: str
) -> None:
    bodies = [f'{{"t": "acme",  "k": "1", "v": {version}}}' for version in (1, 2)]
    (program.directory / "day.jsonl").write_text(json.dumps({"guid": 1001, "request": bodies[0]}))
    with receiving(program) as url:
        for number, body in enumerate(bodies, 1001):
            (program.directory / "body.json").write_text(body)
            sent = program("webhook", "send", f"{url}/{scheme}", "body.json", "--scheme", scheme, "--id", str(number))
            assert sent.status == 0
        places = ("--id", "$.guid", "--body", "$.request")
        ended = program("webhook", "replay", f"{url}/{scheme}", "day.jsonl", "--scheme", scheme, *places, "--json")
        assert (ended.json["new"], ended.json["known_before"]) == (0, 1)
        wrong = program(
            "webhook", "replay", f"{url}/{scheme}", "day.jsonl", "--scheme", scheme, "--id", "$.x", "--json"
        )
        assert (wrong.status, wrong.json["problem_lines"][0]["line"]) == (1, 1)
    assert documents(engine) == [json.loads(bodies[1])]


def test_the_declaration_says_how_a_request_is_signed_and_what_has_no_version_is_not_replayed(
    program: Program, engine: Engine
) -> None:
    (program.directory / "body.json").write_text('{"t": "acme", "k": "1", "v": 2}')
    (program.directory / "day.jsonl").write_text('{"t": "acme", "k": "1", "v": 1}')
    del program.environment["WEBHOOK_SECRET"]
    declared = ("--declared", "hooks:app")
    with receiving(program) as url:
        sent = program("webhook", "send", f"{url}/in/carrier", "body.json", *declared)
        assert (sent.status, sent.stdout) == (0, '200 {"new":true}\n'), sent.stderr
        assert program("webhook", "replay", f"{url}/in/carrier", "day.jsonl", *declared).status == 0
        refused = program("webhook", "replay", f"{url}/github", "day.jsonl", *declared)
        assert_one_clear_line(refused, "say --anyway", status=1)
        assert program("webhook", "replay", f"{url}/github", "day.jsonl", *declared, "--anyway").status == 0
        assert_one_clear_line(program("webhook", "send", f"{url}/own", "body.json", *declared), "--scheme", status=1)
        assert_one_clear_line(program("webhook", "send", f"{url}/x", "body.json", *declared), "no webhook of", status=1)
    assert documents(engine) == [{"t": "acme", "k": "1", "v": 2}, {"t": "acme", "k": "1", "v": 1}]


def test_a_receiver_that_fails_or_asks_to_wait_is_tried_again(program: Program) -> None:
    answers = [500, 408, 502, 429, 503, 200]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(answers.pop(0))
            self.send_header("Retry-After", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    (program.directory / "day.jsonl").write_text("{}")
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        ended = program("webhook", "replay", f"http://127.0.0.1:{server.server_port}/x", "day.jsonl", "--json")
        server.shutdown()
    assert (ended.status, ended.json["new"], answers) == (0, 1, [])


@pytest.mark.slow
def test_a_receiver_that_is_away_is_waited_for(program: Program, engine: Engine) -> None:
    (program.directory / "day.jsonl").write_text('{"t": "acme", "k": "1"}')
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with ThreadPoolExecutor(1) as threads:
        replaying = threads.submit(program, "webhook", "replay", f"http://127.0.0.1:{port}/standard", "day.jsonl")
        assert wait([replaying], timeout=3).not_done, "it tries again"
        with receiving(program, port):
            ended = replaying.result()
    assert ended.status == 0, ended.stderr
    assert keys(engine) == [("standard", "1")]


@pytest.mark.parametrize(
    ("arguments", "why", "status"),
    [
        (["send", "http://127.0.0.1:1/x", "body.json"], "does not answer", 1),
        (["send", "ftp://x", "body.json"], "begins with neither", 2),
        (["send", "http://127.0.0.1:1/x", "none.json"], "cannot be read", 2),
        (["replay", "http://127.0.0.1:1/x", "none.jsonl"], "cannot be read", 2),
        (["send", "http://127.0.0.1:1/x", "body.json", "--secret-env", "NOT_SET"], "NOT_SET is not set", 1),
        (["send", "http://127.0.0.1:1/x", "body.json", "--secret-env", "TERM"], "copy it whole", 1),
    ],
)
def test_what_cannot_be_sent_is_told_in_one_line(program: Program, arguments: list[str], why: str, status: int) -> None:
    (program.directory / "body.json").write_text("{}")
    assert_one_clear_line(program("webhook", *arguments, TERM="x-256"), why, status=status)
