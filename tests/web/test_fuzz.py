"""Hostile requests are refused without an error, and the attack would notice an error."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from starlette.responses import JSONResponse

from taskbridge.web import endpoint, posting, receiver, receiving, signatures
from tests.deployment import Deployment
from tests.web.fuzz import Answer, attack, called
from tests.web.hostile import CANARY, MATCHED, POSTED, SECRETS, SOURCES, TOKENS, Expected, Input, hooks

SEED = 20_261_123


@pytest.mark.timeout(400)
def test_hostile_requests_are_refused_and_what_is_right_is_taken(deployment: Deployment) -> None:
    result = attack(deployment.app, SEED, range(4_000))
    assert result.violations == [], f"python -m tests.web.fuzz --seed {SEED}"
    assert result.over_socket == 40
    assert {POSTED, MATCHED, "stripe"} <= {source for source, _, _ in result.stored}
    assert {200, 400, 401, 404, 405, 413} <= result.answers.keys()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_memory_does_not_grow_with_what_was_refused(deployment: Deployment) -> None:
    result = attack(deployment.app, SEED + 1, range(50_000))
    assert result.violations == [], f"python -m tests.web.fuzz --seed {SEED + 1}"


def asked(deployment: Deployment, source: str, body: bytes, path: str | None = None, length: bytes = b"") -> Answer:
    """Ask a receiver with a right signature, as a server would."""
    (one,) = (one for one in SOURCES if one.webhook.source == source)
    headers = [(name.encode(), value.encode()) for name, value in one.signer.sign("id-1", body, time.time()).items()]
    headers = [(name.lower(), value) for name, value in headers] + [(b"content-length", length)] * bool(length)
    path = one.webhook.route if path is None else path
    request = Input(0, "POST", path, b"\xff", headers, [body], True, False, "1.1", Expected.ANY, None)

    async def ask() -> Answer:
        app = receiver(*hooks(), app=deployment.app)
        async with app.router.lifespan_context(app):
            return await called(app, request)

    return asyncio.run(ask())


def test_a_length_in_digits_that_are_not_ascii_is_no_length(deployment: Deployment) -> None:
    assert asked(deployment, "github", b"{", length=b"\xb2").status == 400


def test_no_request_is_sent_to_another_host(deployment: Deployment) -> None:
    assert asked(deployment, "github", b"{}", "/github/").status == 404


@pytest.mark.parametrize(
    ("challenge", "status", "text"),
    [('"3eZb"', 200, b"3eZb"), ('"\\ud800"', 200, b"?"), ("[[1]]", 200, b"unmatched")],
)
def test_a_challenge_that_is_no_text_is_none(
    deployment: Deployment, caplog: pytest.LogCaptureFixture, challenge: str, status: int, text: bytes
) -> None:
    answer = asked(deployment, "slack", f'{{"type": "url_verification", "challenge": {challenge}}}'.encode())
    assert answer.status == status
    assert text in answer.body
    assert "Traceback" not in caplog.text


def test_a_body_in_which_a_path_finds_no_end_is_unmatched(
    deployment: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    answer = asked(deployment, "shopify", b'{"customer": "a", "order": ' + b'{"x":' * 200 + b"1" + b"}" * 201)
    assert answer.status == 200
    assert b"nested too deeply to find the key ($..number)" in answer.body
    assert "Traceback" not in caplog.text


def allow(*_: object) -> bool:
    return True


def fail(*_: object) -> Any:
    raise RuntimeError("a bug")


def refuse_with(text: str) -> Any:
    class Telling(endpoint.Refusal):
        def __init__(self, status: int, error: str, headers: dict[str, str] | None = None, **more: Any) -> None:
            super().__init__(status, text, headers, **{"why": error, **more})

    return Telling


async def answer_first(*_: object) -> Any:
    return JSONResponse({"new": True})


@pytest.mark.parametrize(
    ("place", "name", "broken", "wrong"),
    [
        (signatures.Hmac, "_is_signed", allow, "taken, and should be refused"),
        (receiving, "parsed", fail, "in the log: taskbridge.web.endpoint ERROR"),
        (receiving._OfWebhook, "store", fail, "in the log: taskbridge.web.endpoint ERROR"),
        (receiving._OfWebhook, "store", answer_first, "answered with 200 and not there"),
        (posting._Events, "_is_allowed", allow, "/events', REFUSED): taken, and should be refused"),
        (posting, "parsed", fail, "in the log: taskbridge.web.endpoint ERROR"),
        (posting._Events, "store", fail, "in the log: taskbridge.web.endpoint ERROR"),
        (posting._Events, "store", answer_first, "answered with 200 and not there"),
        (posting, "Refusal", refuse_with(TOKENS[0]), "it has a secret"),
        (posting, "Refusal", refuse_with(CANARY), "it has a document"),
        (receiving, "Refusal", refuse_with(SECRETS[0]), "it has a secret"),
        (receiving, "Refusal", refuse_with(CANARY), "it has a document"),
    ],
)
def test_the_attack_notices_what_is_wrong(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, broken: Any, wrong: str
) -> None:
    monkeypatch.setattr(place, name, broken)
    assert wrong in "\n".join(attack(deployment.app, SEED, range(200)).violations)
