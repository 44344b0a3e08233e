"""Hostile requests are refused without an error, and the attack would notice an error."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from starlette.responses import JSONResponse

from taskbridge.web import endpoint, posting, receiver, receiving, signatures
from tests.deployment import Deployment
from verification.web.fuzz import attack, called
from verification.web.hostile import CANARY, MATCHED, POSTED, SECRETS, SOURCES, TOKENS, Expected, Input, hooks

SEED = 20_261_123


@pytest.mark.timeout(400)
def test_hostile_requests_are_refused_and_what_is_right_is_taken(deployment: Deployment) -> None:
    result = attack(deployment.app, SEED, range(4_000))
    assert result.violations == [], f"python -m verification.web.fuzz --seed {SEED}"
    assert result.over_socket == 40
    assert {POSTED, MATCHED, "stripe"} <= {source for source, _, _ in result.stored}
    assert {200, 400, 401, 404, 405, 413} <= result.answers.keys()


NESTED = b'{"customer": "a", "order": ' + b'{"x":' * 200 + b"1" + b"}" * 201
CHALLENGE = b'{"type": "url_verification", "challenge": %s}'


@pytest.mark.parametrize(
    ("source", "body", "changed", "status", "text"),
    [
        pytest.param("github", b"{", {"length": b"\xb2"}, 400, b"", id="a length in digits that are not ASCII"),
        pytest.param("github", b"{}", {"path": "/github/"}, 404, b"", id="no redirect to another host"),
        pytest.param("slack", CHALLENGE % b'"\\ud800"', {}, 200, b"?", id="a challenge that cannot be encoded"),
        pytest.param("slack", CHALLENGE % b"[[1]]", {}, 200, b"unmatched", id="a challenge that is no text"),
        pytest.param("shopify", NESTED, {}, 200, b"nested too deeply to find the key", id="a path finds no end"),
    ],
)
def test_what_is_signed_and_odd_is_answered(
    deployment: Deployment, source: str, body: bytes, changed: dict[str, Any], status: int, text: bytes
) -> None:
    (one,) = (one for one in SOURCES if one.webhook.source == source)
    signed = one.signer.sign("id-1", body, time.time())
    headers = [(name.lower().encode(), value.encode()) for name, value in signed.items()]
    if "length" in changed:
        headers.append((b"content-length", changed["length"]))
    path = changed.get("path", one.webhook.route)
    request = Input(0, "POST", path, b"\xff", headers, [body], True, False, "1.1", Expected.ANY, None)

    async def ask() -> Any:
        app = receiver(*hooks(), app=deployment.app)
        async with app.router.lifespan_context(app):
            return await called(app, request)

    answer = asyncio.run(ask())
    assert (answer.status, text in answer.body) == (status, True), answer.body


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
        (posting._Events, "_is_allowed", allow, "/events', REFUSED): taken, and should be refused"),
        (receiving, "parsed", fail, "in the log: taskbridge.web.endpoint ERROR"),
        (posting._Events, "store", answer_first, "answered with 200 and not there"),
        (posting, "Refusal", refuse_with(TOKENS[0]), "it has a secret"),
        (receiving, "Refusal", refuse_with(SECRETS[0]), "it has a secret"),
        (receiving, "Refusal", refuse_with(CANARY), "it has a document"),
    ],
)
def test_the_attack_notices_what_is_wrong(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, broken: Any, wrong: str
) -> None:
    monkeypatch.setattr(place, name, broken)
    assert wrong in "\n".join(attack(deployment.app, SEED, range(200)).violations)
