"""Each scheme takes what its provider signs, in the way that the provider documents, and nothing else."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
import standardwebhooks
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given
from hypothesis import strategies as st

from taskbridge.errors import ConfigurationError
from taskbridge.store import Incoming
from taskbridge.web import (
    GitHub,
    Hmac,
    InvalidSignature,
    Request,
    Scheme,
    Shopify,
    Slack,
    StandardWebhooks,
    Stripe,
    Verified,
    Webhook,
)

SECRET = "whsec_" + base64.b64encode(b"k" * 32).decode()
OTHER = "whsec_" + base64.b64encode(b"o" * 24).decode()
NOW = 1_790_000_000.0
BODY = '{"a": "ä", "b": [1]}'.encode()


def digest(secret: str, content: bytes) -> bytes:
    return hmac.new(secret.encode(), content, hashlib.sha256).digest()


def of_the_standard(body: bytes, secret: str = SECRET, now: float = NOW) -> dict[str, str]:
    """Sign as the standard's own package does."""
    when = datetime.fromtimestamp(now, UTC)
    signature = standardwebhooks.Webhook(secret).sign("msg_1", when, body.decode())
    return {"webhook-id": "msg_1", "webhook-timestamp": str(int(now)), "webhook-signature": signature}


def of_github(body: bytes, secret: str = SECRET) -> dict[str, str]:
    return {"x-hub-signature-256": f"sha256={digest(secret, body).hex()}"}


def of_shopify(body: bytes, secret: str = SECRET) -> dict[str, str]:
    return {"x-shopify-hmac-sha256": base64.b64encode(digest(secret, body)).decode()}


def of_stripe(body: bytes, secret: str = SECRET) -> dict[str, str]:
    when = str(int(NOW))
    return {"stripe-signature": f"v0=6ffbb59b,t={when},v1={digest(secret, f'{when}.'.encode() + body).hex()}"}


def of_slack(body: bytes, secret: str = SECRET) -> dict[str, str]:
    when = str(int(NOW))
    signature = digest(secret, f"v0:{when}:".encode() + body).hex()
    return {"x-slack-request-timestamp": when, "x-slack-signature": f"v0={signature}"}


def of_anybody(body: bytes, secret: str = SECRET) -> dict[str, str]:
    return {"x-signature": f"v={base64.b64encode(digest(secret, body)).decode()}"}


Make = Callable[[Any], Scheme]
WAYS: dict[str, tuple[Make, Callable[..., dict[str, str]]]] = {
    "Standard Webhooks": (StandardWebhooks, of_the_standard),
    "GitHub": (GitHub, of_github),
    "Shopify": (Shopify, of_shopify),
    "Stripe": (Stripe, of_stripe),
    "Slack": (Slack, of_slack),
    "HMAC": (lambda secrets: Hmac(secrets, header="X-Signature", encoding="base64", prefix="v="), of_anybody),
}
each = pytest.mark.parametrize("way", WAYS)


@each
def test_during_a_rotation_both_secrets_are_taken_and_no_third_each_compared_in_constant_time(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compared: list[bool] = []
    original = hmac.compare_digest

    def compare(one: bytes, other: bytes) -> bool:
        compared.append(bool(original(one, other)))
        return compared[-1]

    make, sign = WAYS[way]
    headers = sign(BODY, SECRET)
    with pytest.raises(InvalidSignature):
        make([OTHER]).verify(headers, BODY, NOW)
    monkeypatch.setattr("taskbridge.web.signatures.hmac.compare_digest", compare)
    for secrets in ([SECRET, OTHER], [OTHER, SECRET]):
        compared.clear()
        make(secrets).verify(headers, BODY, NOW)
        assert compared == [secret == SECRET for secret in secrets]


@each
def test_what_is_signed_is_the_raw_body_and_not_its_json(way: str) -> None:
    make, sign = WAYS[way]
    same = json.dumps(json.loads(BODY)).encode()
    assert same != BODY
    for signed, sent in ((same, BODY), (BODY, BODY + b" ")):
        with pytest.raises(InvalidSignature, match="matches its content") as refused:
            make(SECRET).verify(sign(signed), sent, NOW)
        assert SECRET not in repr(make(SECRET)) + str(refused.value)


@each
def test_a_header_that_is_missing_cut_or_garbled_is_refused(way: str) -> None:
    make, sign = WAYS[way]
    scheme, headers = make(SECRET), sign(BODY)
    for name, value in headers.items():
        if name == "webhook-id":
            continue
        for wrong in ("", value[:-1], value + "x", "ä", "=", ",", "v1,", "sha256=", "t=,v1=", "\x00"):
            with pytest.raises(InvalidSignature):
                scheme.verify({**headers, name: wrong}, BODY, NOW)
        with pytest.raises(InvalidSignature, match="missing"):
            scheme.verify({key: text for key, text in headers.items() if key != name}, BODY, NOW)


@pytest.mark.parametrize("way", ["Standard Webhooks", "Stripe", "Slack"])
@pytest.mark.parametrize("options", [{}, {"tolerance": 10}])
def test_a_time_beyond_the_tolerance_is_refused(way: str, options: dict[str, float]) -> None:
    make: Any
    make, sign = WAYS[way]
    tolerance = options.get("tolerance", 300)
    scheme = make(SECRET, **options)
    for later in (-1, 1):
        scheme.verify(sign(BODY), BODY, NOW + later * (tolerance - 1))
        with pytest.raises(InvalidSignature, match=f"clock by more than {tolerance} s"):
            scheme.verify(sign(BODY), BODY, NOW + later * (tolerance + 2))


@given(st.dictionaries(st.sampled_from([name for _, sign in WAYS.values() for name in sign(BODY)]), st.text()))
def test_nothing_that_comes_raises_anything_else(headers: dict[str, str]) -> None:
    for make, _ in WAYS.values():
        with pytest.raises(InvalidSignature):
            make([SECRET, OTHER]).verify(
                {name: text.encode().decode("latin-1") for name, text in headers.items()}, BODY, NOW
            )


def test_several_signatures_in_one_header() -> None:
    headers = of_the_standard(BODY)
    headers["webhook-signature"] = f"v2,abc v1a,abc v1,abc {headers['webhook-signature']}"
    StandardWebhooks(SECRET).verify(headers, BODY, NOW)


def test_an_asymmetric_signature_of_the_standard() -> None:
    private = Ed25519PrivateKey.generate()
    public = "whpk_" + base64.b64encode(private.public_key().public_bytes_raw()).decode()
    signature = base64.b64encode(private.sign(f"msg_1.{int(NOW)}.".encode() + BODY)).decode()
    headers = {"webhook-id": "msg_1", "webhook-timestamp": str(int(NOW)), "webhook-signature": f"v1a,{signature}"}
    StandardWebhooks([OTHER, public]).verify(headers, BODY, NOW)
    for scheme, body in ((StandardWebhooks([OTHER, public]), b""), (StandardWebhooks(OTHER), BODY)):
        with pytest.raises(InvalidSignature):
            scheme.verify(headers, body, NOW)


COMMAND = (
    b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name=foobar"
    b"&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2Fhooks.slack.com"
    b"%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN"
    b"&trigger_id=398738663015.47445629121.803a0bc887a14d10d2c447fce8b6703c"
)


@pytest.mark.parametrize(
    ("scheme", "headers", "body", "now"),
    [
        (
            GitHub("It's a Secret to Everybody"),
            {"x-hub-signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"},
            b"Hello, World!",
            NOW,
        ),
        (
            Slack("8f742231b10e8888abcd99yyyzzz85a5"),
            {
                "x-slack-request-timestamp": "1531420618",
                "x-slack-signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
            },
            COMMAND,
            1_531_420_618.0,
        ),
        (
            StandardWebhooks("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
            {
                "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
                "webhook-timestamp": "1614265330",
                "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
            },
            b'{"test": 2432232314}',
            1_614_265_330.0,
        ),
    ],
    ids=["GitHub", "Slack", "Standard Webhooks"],
)
def test_the_example_that_the_provider_has_published(
    scheme: Scheme, headers: dict[str, str], body: bytes, now: float
) -> None:
    scheme.verify(headers, body, now)


def test_a_delivery_is_known_by_an_id_and_by_its_content_where_nobody_signed_the_id() -> None:
    def known_by(scheme: Scheme, headers: dict[str, str]) -> str:
        hook = Webhook("orders", scheme, tenant="$.t", key="$.k")
        found = hook.read(Request(headers, b"{}", {"t": "acme", "k": "1"}))
        assert isinstance(found, Incoming)
        return str(found.delivery)

    assert known_by(Verified(lambda *_: True, delivery="x-id", signs_delivery=True), {"x-id": "1001"}) == "1001"
    assert known_by(Verified(lambda *_: True, delivery="x-id"), {"x-id": "1001"}) != "1001"
    event, webhook = {"x-shopify-event-id": "event"}, {"x-shopify-webhook-id": "webhook"}
    for headers, which in ((event | webhook, "event"), (event, "event"), (webhook, "webhook")):
        assert known_by(Shopify(SECRET), headers).split()[0] == which


@pytest.mark.parametrize(
    ("delivery", "is_signed"),
    [
        (None, True),
        ("Webhook-Id", True),
        ("$.id", True),
        ("x-other", False),
        (lambda request: request.headers["x-other"], False),
    ],
)
def test_an_id_that_is_not_the_scheme_s_own_is_not_signed_unless_it_is_in_the_body(
    delivery: Any, is_signed: bool
) -> None:
    hook = Webhook("orders", StandardWebhooks(SECRET), tenant="$.t", key="$.k", delivery=delivery)
    found = hook.read(Request({"webhook-id": "1001", "x-other": "1001"}, b"{}", {"t": "acme", "k": "1", "id": "1001"}))
    assert isinstance(found, Incoming)
    assert (found.delivery == "1001") is is_signed


def test_a_scheme_of_one_s_own_signs_and_verifies_by_one_description() -> None:
    described: dict[str, Any] = {
        "header": "X-Sign",
        "separator": ";",
        "prefix": "s=",
        "time": "at=",
        "preamble": "{id}|{time}|",
        "delivery": "x-id",
    }
    scheme = Hmac([SECRET, OTHER], **described)
    headers = {name.lower(): text for name, text in scheme.sign("id-1", BODY, NOW).items()}
    assert (headers["x-id"], headers["x-sign"].count(";")) == ("id-1", 2)
    Hmac(OTHER, **described).verify(headers, BODY, NOW)
    assert scheme.signs_delivery
    for changed in ({"x-id": "id-2"}, {"x-sign": headers["x-sign"].replace("at=", "at=1")}):
        with pytest.raises(InvalidSignature):
            scheme.verify({**headers, **changed}, BODY, NOW)


def test_a_signed_id_needs_no_time_and_its_header_may_be_written_in_any_case() -> None:
    scheme = Hmac(SECRET, header="X-Sign", preamble="{id}.", delivery="X-Id")
    headers = {"x-id": "é-1", "x-sign": digest(SECRET, b"\xe9-1." + BODY).hex()}
    scheme.verify(headers, BODY, NOW)
    with pytest.raises(InvalidSignature):
        scheme.verify({**headers, "x-id": "é-2"}, BODY, NOW)


def test_what_cannot_be_verified_is_an_error_of_the_declaration() -> None:
    for delivery in (None, "x-id,x-other", "$.id"):
        with pytest.raises(ConfigurationError, match="single header"):
            Hmac(SECRET, header="x-sign", preamble="{id}.", delivery=delivery)
    with pytest.raises(ConfigurationError, match="set `time`"):
        Hmac(SECRET, header="x-sign", preamble="{time}.")
    for make, _ in WAYS.values():
        for secrets in ("", [], [SECRET, ""], None):
            with pytest.raises((ConfigurationError, TypeError)):
                make(secrets)
    for wrong in ("whsec_?", "whsec_", "whpk_", "whpk_YWJj"):
        with pytest.raises(ConfigurationError, match="copy all of it"):
            StandardWebhooks(wrong)


def test_the_first_request_of_a_provider_is_answered() -> None:
    assert Slack(SECRET).challenge({"type": "url_verification", "challenge": "3eZbrw1a"}) == "3eZbrw1a"
    assert Slack(SECRET).challenge({"type": "event_callback"}) is None
    assert GitHub(SECRET).challenge({"zen": "Design for failure.", "hook_id": 1}) == "pong"
    assert GitHub(SECRET).challenge({"action": "opened", "zen": "x"}) is None


def test_a_function_decides() -> None:
    scheme = Verified(lambda headers, body: headers.get("token") == "t" and bool(body))
    scheme.verify({"token": "t"}, b"1", NOW)
    for headers, body in (({"token": "t"}, b""), ({}, b"1")):
        with pytest.raises(InvalidSignature):
            scheme.verify(headers, body, NOW)
