"""Signature schemes of webhook providers. Each one verifies the raw bytes, in constant time.

The schemes follow the specification of Standard Webhooks (https://www.standardwebhooks.com), and what GitHub
(https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries), Stripe
(https://docs.stripe.com/webhooks#verify-manually), Shopify
(https://shopify.dev/docs/apps/build/webhooks/subscribe/https) and Slack
(https://docs.slack.dev/authentication/verifying-requests-from-slack) document.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Literal, TypeAlias

from taskbridge.errors import ConfigurationError, TaskBridgeError

__all__ = [
    "GitHub",
    "Hmac",
    "InvalidSignature",
    "Scheme",
    "Shopify",
    "Slack",
    "StandardWebhooks",
    "Stripe",
    "Verified",
]

TOLERANCE: Final = 300.0
"""How many seconds a signed time may differ from our clock, as Standard Webhooks, Stripe and Slack advise."""
MOST_SIGNATURES: Final = 20
"""How many signatures of a request are checked."""
MOST_ASYMMETRIC: Final = 3
"""How many of them are checked with a public key, which takes longer."""
SHORTEST_KEY: Final = 24
"""The minimum size of a signing secret in bytes, as Standard Webhooks requires."""
LONGEST_KEY: Final = 64

Headers = Mapping[str, str]
"""Names in lower case; values decoded as latin-1, which preserves every byte."""
Secrets = str | Sequence[str]
"""A secret, or several during a rotation, which are all accepted."""


class InvalidSignature(TaskBridgeError):
    """The request does not come from the expected sender. The message contains neither secrets nor signatures."""


def _no_challenge(_: Any) -> None:
    """The default for providers that do not check the URL."""


@dataclass(frozen=True, slots=True)
class Hmac:
    """A scheme with shared secrets: HMAC-SHA256 of an optional preamble and the body.

    Args:
        secrets: a secret, or several during a rotation.
        header: the header with the signature.
        encoding: the encoding of the signature.
        prefix: the prefix of a signature, such as `sha256=`.
        separator: the separator between the parts of the header, if it can have several.
        preamble: the text that is signed before the body. In it, `{time}` stands for the signed time (set `time`), and
            `{id}` for the webhook id (set `delivery` to a single header).
        time: where the signed time in Unix seconds is: a header, or a part of the signature header, such as `t=`.
        tolerance: how many seconds the signed time may differ from this machine's clock.
        delivery: where the webhook id is: a JSONPath that begins with `$`, or a header. Of several headers, separated
            by commas, the first one that the request contains is used. None: there is no id.
        challenge: a function of the payload that answers requests which only check the URL. It returns None for
            ordinary requests.

    Raises:
        ConfigurationError: there is no secret or an empty one; or `preamble` contains `{time}` without `time`, or
            `{id}` without a single header as `delivery`.
    """

    secrets: Secrets = field(repr=False)
    header: str = field(kw_only=True)
    encoding: Literal["hex", "base64"] = field(default="hex", kw_only=True)
    prefix: str = field(default="", kw_only=True)
    separator: str | None = field(default=None, kw_only=True)
    preamble: str = field(default="", kw_only=True)
    time: str | None = field(default=None, kw_only=True)
    tolerance: float = field(default=TOLERANCE, kw_only=True)
    delivery: str | None = field(default=None, kw_only=True)
    challenge: Callable[[Any], str | None] = field(default=_no_challenge, repr=False, compare=False, kw_only=True)
    _keys: tuple[bytes, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_keys", tuple(secret.encode() for secret in _several(self.secrets)))
        if "{time}" in self.preamble and self.time is None:
            raise ConfigurationError("the preamble of a signature has {time}: set `time` to where the signed time is")
        delivery = self.delivery or ""
        if self.signs_delivery and (not delivery or delivery.startswith("$") or "," in delivery):
            raise ConfigurationError(
                "the preamble of a signature has {id}: set `delivery` to the single header with the signed webhook id, "
                f"not {self.delivery!r}"
            )

    @property
    def signs_delivery(self) -> bool:
        """Whether the header with the webhook id is signed."""
        return "{id}" in self.preamble

    def verify(self, headers: Headers, body: bytes, now: float) -> None:
        """Verify the signature of the request. `now` is the Unix time in seconds.

        Raises:
            InvalidSignature: the signature is wrong, missing or too old.
        """
        text = _header(headers, self.header.lower())
        parts = [text] if self.separator is None else text.split(self.separator)[:MOST_SIGNATURES]
        time = "" if self.time is None else self._signed_time(headers, parts, now)
        message_id = _header(headers, (self.delivery or "").lower()) if self.signs_delivery else ""
        if not self._is_signed(self._content(time, message_id.encode("latin-1"), body), parts):
            raise InvalidSignature("no signature of the request matches its content and a secret of this receiver")

    def sign(self, message_id: str, body: bytes, now: float) -> dict[str, str]:
        """Return the signature headers of a request, including `message_id` if the scheme has a header for it."""
        time, headers = str(int(now)), dict[str, str]()
        content = self._content(time, message_id.encode(), body)
        parts = [f"{self.prefix}{signature}" for signature in self._signatures(content)]
        if self.time is not None and self.time.endswith("="):
            parts.insert(0, f"{self.time}{time}")
        elif self.time is not None:
            headers[self.time] = time
        if self.delivery is not None and not self.delivery.startswith("$"):
            headers[self.delivery.partition(",")[0]] = message_id
        return {**headers, self.header: parts[0] if self.separator is None else self.separator.join(parts)}

    def _content(self, time: str, message_id: bytes, body: bytes) -> bytes:
        """Return what is signed."""
        return self.preamble.encode().replace(b"{time}", time.encode()).replace(b"{id}", message_id) + body

    def _signed_time(self, headers: Headers, parts: Sequence[str], now: float) -> str:
        """Return the signed time, after checking that it is close to `now`."""
        name = self.time or ""
        times = _with_prefix(parts, name)
        where = f"{name} in {self.header}" if name.endswith("=") else name
        text = _header(headers, name.lower()) if where == name else times[0] if len(times) == 1 else ""
        if not (text.isascii() and text.isdigit() and len(text) <= 15):
            raise InvalidSignature(f"{where} is not a Unix time in seconds")
        if abs(int(text) - now) > self.tolerance:
            raise InvalidSignature(f"{where} differs from this machine's clock by more than {self.tolerance:g} s")
        return text

    def _signatures(self, content: bytes) -> list[str]:
        """Return the signature by each secret."""
        digests = [hmac.digest(key, content, "sha256") for key in self._keys]
        return [one.hex() if self.encoding == "hex" else base64.b64encode(one).decode() for one in digests]

    def _is_signed(self, content: bytes, parts: Sequence[str]) -> bool:
        """Compare all signatures with those of all secrets, even after a match."""
        is_right, signatures = False, self._signatures(content)
        for text in _with_prefix(parts, self.prefix):
            # Hexadecimal digits may be capitals.
            sent = text.lower() if self.encoding == "hex" else text
            for signature in signatures:
                is_right |= hmac.compare_digest(signature.encode(), sent.encode())
        return is_right


def _answer_ping(payload: Any) -> str | None:
    """Respond to the `ping` of a new GitHub webhook."""
    return "pong" if isinstance(payload, dict) and {"zen", "hook_id"} <= payload.keys() else None


def _answer_url_verification(payload: Any) -> str | None:
    """Respond to the request with which Slack checks a URL."""
    is_check = isinstance(payload, dict) and payload.get("type") == "url_verification"
    return text if is_check and isinstance(text := payload.get("challenge"), str) else None


GitHub: Final = partial(
    Hmac,
    header="x-hub-signature-256",
    prefix="sha256=",
    delivery="x-github-delivery",
    challenge=_answer_ping,
)
"""GitHub's signatures. They cover neither a time nor the webhook id. The receiver answers GitHub's `ping`."""

Shopify: Final = partial(
    Hmac,
    header="x-shopify-hmac-sha256",
    encoding="base64",
    delivery="x-shopify-event-id,x-shopify-webhook-id",
)
"""Shopify's signatures. They cover neither a time nor the webhook id."""

Stripe: Final = partial(
    Hmac,
    header="stripe-signature",
    prefix="v1=",
    separator=",",
    time="t=",
    preamble="{time}.",
    delivery="$.id",
)
"""Stripe's signatures. The webhook id is the id of the event."""

Slack: Final = partial(
    Hmac,
    header="x-slack-signature",
    prefix="v0=",
    time="x-slack-request-timestamp",
    preamble="v0:{time}:",
    delivery="$.event_id",
    challenge=_answer_url_verification,
)
"""Slack's signatures. The receiver answers Slack's `url_verification`."""


@dataclass(frozen=True, slots=True, init=False)
class StandardWebhooks(Hmac):
    """Standard Webhooks: `v1` with secrets `whsec_...`, `v1a` with public keys `whpk_...`.

    Args:
        secrets: a secret, or several during a rotation.
        tolerance: how many seconds `webhook-timestamp` may differ from this machine's clock.

    Raises:
        ConfigurationError: there is no secret, or it does not have the form that the standard requires.
    """

    _public_keys: tuple[Any, ...] = field(init=False, repr=False, compare=False)

    def __init__(self, secrets: Secrets, *, tolerance: float = TOLERANCE) -> None:
        Hmac.__init__(  # `super()` does not work in a dataclass with slots
            self,
            secrets,
            header="webhook-signature",
            encoding="base64",
            prefix="v1,",
            separator=" ",
            preamble="{id}.{time}.",
            time="webhook-timestamp",
            tolerance=tolerance,
            delivery="webhook-id",
        )

    def __post_init__(self) -> None:
        secrets = _several(self.secrets)
        shared = [secret.removeprefix("whsec_") for secret in secrets if not secret.startswith("whpk_")]
        public = [secret.removeprefix("whpk_") for secret in secrets if secret.startswith("whpk_")]
        object.__setattr__(self, "_keys", tuple(map(_key, shared)))
        object.__setattr__(self, "_public_keys", tuple(map(_public_key, public)))

    def check_for_sending(self) -> None:
        """Check that each signing secret has the length that the standard requires. Receivers accept any length.

        Raises:
            ConfigurationError: a secret is too short or too long, or there is none.
        """
        if not self._keys:
            raise ConfigurationError("signing requests needs a secret whsec_..., and there is none")
        for key in self._keys:
            if not SHORTEST_KEY <= len(key) <= LONGEST_KEY:
                raise ConfigurationError(
                    f"a signing secret has {len(key)} bytes, but Standard Webhooks requires {SHORTEST_KEY} to "
                    f'{LONGEST_KEY} random bytes: create one with `echo "whsec_$(openssl rand -base64 32)"`'
                )

    def _is_signed(self, content: bytes, parts: Sequence[str]) -> bool:
        if Hmac._is_signed(self, content, parts):
            return True
        signatures = _with_prefix(parts, "v1a,")[:MOST_ASYMMETRIC]
        return any(_is_signed_by(key, content, signature) for key in self._public_keys for signature in signatures)


@dataclass(frozen=True, slots=True)
class Verified:
    """A scheme that calls your function with the headers and the body. It returns True for a genuine request.

    If the function raises `KeyError`, `ValueError` or a similar error, the request is rejected. If it raises another
    error, the sender is asked to try again. `delivery` and `challenge` are those of `Hmac`. `signs_delivery`: whether
    the function also verifies the header with the webhook id.
    """

    function: Callable[[Headers, bytes], bool]
    delivery: str | None = None
    signs_delivery: bool = field(default=False, kw_only=True)
    challenge: Callable[[Any], str | None] = field(default=_no_challenge, kw_only=True)

    def verify(self, headers: Headers, body: bytes, now: float) -> None:  # noqa: ARG002 - the function decides
        """Raise InvalidSignature if the function does not return True."""
        if self.function(headers, body) is not True:
            raise InvalidSignature("the request is not signed as this receiver requires")


Scheme: TypeAlias = Hmac | Verified
"""A signature scheme."""


def _several(secrets: Secrets) -> list[str]:
    found = [secrets] if isinstance(secrets, str) else list(secrets)
    if not found or not all(found):
        raise ConfigurationError("a webhook has no secret, or an empty one: set one, for example from the environment")
    return found


def _key(text: str) -> bytes:
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
    except ValueError:
        key = b""
    if not key:
        raise ConfigurationError("a secret of Standard Webhooks is not base64: copy all of it, as whsec_...")
    return key


def _public_key(text: str) -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415 - for v1a alone
    except ImportError:
        raise ConfigurationError("a public key whpk_... needs the package cryptography: install it") from None
    try:
        return Ed25519PublicKey.from_public_bytes(_key(text))
    except ValueError:
        raise ConfigurationError("a public key whpk_... is not an Ed25519 key of 32 bytes: copy all of it") from None


def _is_signed_by(key: Any, content: bytes, signature: str) -> bool:
    from cryptography.exceptions import InvalidSignature as Wrong  # noqa: PLC0415 - for v1a alone

    try:
        key.verify(base64.b64decode(signature, validate=True), content)
    except (ValueError, Wrong):
        return False
    return True


def _header(headers: Headers, name: str) -> str:
    if not (text := headers.get(name)):
        raise InvalidSignature(f"the header {name} is missing")
    return text


def _with_prefix(parts: Sequence[str], prefix: str) -> list[str]:
    """Return the parts of a header that have this prefix, without it."""
    return [part.strip().removeprefix(prefix) for part in parts if part.strip().startswith(prefix)]
