"""How providers sign their webhooks. Each scheme looks at the raw bytes and compares in constant time.

Where the rules come from: the specification of Standard Webhooks (https://www.standardwebhooks.com), and the pages of
GitHub, Stripe, Shopify and Slack on validating deliveries.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, Final, Literal, Protocol, runtime_checkable

from taskbridge.errors import ConfigurationError, TaskBridgeError

__all__ = [
    "GitHub",
    "Hmac",
    "InvalidSignature",
    "Scheme",
    "Shopify",
    "Signer",
    "Slack",
    "StandardWebhooks",
    "Stripe",
    "Verified",
]

TOLERANCE: Final = 300.0
"""Seconds by which a signed time may differ from this machine's; what Standard Webhooks, Stripe and Slack advise."""
MOST_SIGNATURES: Final = 20
"""Signatures of one request that are looked at."""
MOST_ASYMMETRIC: Final = 3
"""Of these, such as cost much to look at."""
SHA256: Final = 32
"""Bytes of a signature."""
ED25519: Final = 64
SHORTEST_KEY: Final = 24
"""Bytes of a secret with which somebody sends, as Standard Webhooks asks."""
LONGEST_KEY: Final = 64

Headers = Mapping[str, str]
"""Names in lower case; values as latin-1, which keeps each byte."""
Secrets = str | Sequence[str]
"""One secret, or several while they are exchanged: each is accepted."""


class InvalidSignature(TaskBridgeError):
    """A request is not signed by who should have sent it. The text holds no secret and no signature."""


class Scheme(Protocol):
    """What a receiver asks of a scheme."""

    @property
    def delivery(self) -> str | None:
        """Where the provider's id of the webhook is: a JSONPath that begins with `$`, or a header; None: nowhere.

        Of several headers, separated by commas, the first one that is there counts.
        """

    @property
    def signs_delivery(self) -> bool:
        """Whether the header with the webhook's id is signed, too."""

    def verify(self, headers: Headers, body: bytes, now: float) -> None:
        """Return if the request is signed; `now` is the Unix time in seconds.

        Raises:
            InvalidSignature: it is not, or too old.
        """

    def challenge(self, payload: Any) -> str | None:
        """Return the answer to a request by which the provider only asks whether this is its receiver; else None."""


@runtime_checkable
class Signer(Protocol):
    """A scheme by which requests can be sent, too."""

    def sign(self, message_id: str, body: bytes, now: float) -> dict[str, str]:
        """Return the headers of a request; `message_id` is the webhook's, where the scheme has it in a header."""


@dataclass(frozen=True, slots=True)
class _Secret:
    """What all schemes with a shared secret have."""

    secrets: Secrets = field(repr=False)
    tolerance: float = field(default=TOLERANCE, kw_only=True)
    signs_delivery: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self._keys()

    def _keys(self) -> list[bytes]:
        return [secret.encode() for secret in _several(self.secrets)]

    def challenge(self, payload: Any) -> str | None:  # noqa: ARG002 - most providers ask nothing
        """See `Scheme`."""
        return None

    def _sign(self, content: bytes) -> bytes:
        """Return the signature of the first secret."""
        return hmac.digest(self._keys()[0], content, "sha256")

    def _check(self, content: bytes, given: Iterable[bytes]) -> None:
        """Compare each signature that was given with that of each secret, however soon one of them is right."""
        right, digests = False, [hmac.digest(key, content, "sha256") for key in self._keys()]
        for signature in list(given)[:MOST_SIGNATURES]:
            for digest in digests:
                right |= hmac.compare_digest(digest, signature)
        if not right:
            raise InvalidSignature("no signature of the request belongs to its content and a secret of this receiver")

    def _check_time(self, header: str, text: str, now: float) -> None:
        if not (text.isascii() and text.isdigit() and len(text) <= 15):
            raise InvalidSignature(f"{header} is no Unix time in seconds")
        if abs(int(text) - now) > self.tolerance:
            raise InvalidSignature(f"{header} differs from this machine's clock by more than {self.tolerance:g} s")


@dataclass(frozen=True, slots=True)
class StandardWebhooks(_Secret):
    """Standard Webhooks: `v1` with secrets `whsec_...`, `v1a` with public keys `whpk_...`.

    Args:
        secrets: one, or several during a rotation.
        tolerance: seconds by which `webhook-timestamp` may differ from this machine's clock.

    Raises:
        ConfigurationError: a secret is not written as the standard says, or there is none.
    """

    delivery: str | None = field(default="webhook-id", init=False)
    signs_delivery: ClassVar[bool] = True

    def __post_init__(self) -> None:
        for secret in _several(self.secrets):
            if secret.startswith("whpk_"):
                _public_key(secret)
        self._keys()

    def _keys(self) -> list[bytes]:
        return [
            _decoded(secret.removeprefix("whsec_"))
            for secret in _several(self.secrets)
            if not secret.startswith("whpk_")
        ]

    def verify(self, headers: Headers, body: bytes, now: float) -> None:
        """See `Scheme`."""
        message_id = _header(headers, "webhook-id")
        time = _header(headers, "webhook-timestamp")
        given = [text.partition(",") for text in _header(headers, "webhook-signature").split(" ")][:MOST_SIGNATURES]
        self._check_time("webhook-timestamp", time, now)
        content = b".".join((message_id.encode("latin-1"), time.encode("latin-1"), body))
        if not self._has_asymmetric(content, [value for version, _, value in given if version == "v1a"]):
            self._check(content, _of_base64(value for version, _, value in given if version == "v1"))

    def sign(self, message_id: str, body: bytes, now: float) -> dict[str, str]:
        """See `Signer`; each secret signs."""
        when = str(int(now))
        content = b".".join((message_id.encode(), when.encode(), body))
        digests = [hmac.digest(key, content, "sha256") for key in self._keys()]
        signatures = " ".join(f"v1,{base64.b64encode(one).decode()}" for one in digests)
        return {"webhook-id": message_id, "webhook-timestamp": when, "webhook-signature": signatures}

    def check_for_sending(self) -> None:
        """Look whether each secret that signs is as long as the standard asks. A receiver takes what it was given.

        Raises:
            ConfigurationError: one is not, or there is none.
        """
        keys = self._keys()
        if not keys:
            raise ConfigurationError("requests are signed with secrets whsec_..., and there is none")
        for key in keys:
            if not SHORTEST_KEY <= len(key) <= LONGEST_KEY:
                raise ConfigurationError(
                    f"a secret that signs has {len(key)} bytes, and Standard Webhooks asks for {SHORTEST_KEY} to "
                    f'{LONGEST_KEY} random ones: make another, for example by `echo "whsec_$(openssl rand -base64 32)"`'
                )

    def _has_asymmetric(self, content: bytes, given: Sequence[str]) -> bool:
        keys = [secret for secret in _several(self.secrets) if secret.startswith("whpk_")]
        signatures = _of_base64(given, ED25519)[:MOST_ASYMMETRIC]
        return any(_is_signed(key, content, signature) for key in keys for signature in signatures)


@dataclass(frozen=True, slots=True)
class GitHub(_Secret):
    """GitHub: `X-Hub-Signature-256`. It answers the `ping` with which a new webhook begins.

    GitHub signs the body alone, neither a time nor the webhook's id.
    """

    delivery: str | None = field(default="x-github-delivery", init=False)

    def verify(self, headers: Headers, body: bytes, now: float) -> None:  # noqa: ARG002 - no time is signed
        """See `Scheme`."""
        self._check(body, _of_hex([_after("sha256=", _header(headers, "x-hub-signature-256"))]))

    def challenge(self, payload: Any) -> str | None:
        """See `Scheme`."""
        return "pong" if isinstance(payload, dict) and {"zen", "hook_id"} <= payload.keys() else None

    def sign(self, message_id: str, body: bytes, now: float) -> dict[str, str]:  # noqa: ARG002 - no time is signed
        """See `Signer`."""
        return {"x-github-delivery": message_id, "x-hub-signature-256": f"sha256={self._sign(body).hex()}"}


@dataclass(frozen=True, slots=True)
class Shopify(_Secret):
    """Shopify: `X-Shopify-Hmac-Sha256`; the webhook's id is `X-Shopify-Event-Id`, or else `X-Shopify-Webhook-Id`.

    Shopify signs the body alone, neither a time nor the webhook's id.
    """

    delivery: str | None = field(default="x-shopify-event-id,x-shopify-webhook-id", init=False)

    def verify(self, headers: Headers, body: bytes, now: float) -> None:  # noqa: ARG002 - no time is signed
        """See `Scheme`."""
        self._check(body, _of_base64([_header(headers, "x-shopify-hmac-sha256")]))

    def sign(self, message_id: str, body: bytes, now: float) -> dict[str, str]:  # noqa: ARG002 - no time is signed
        """See `Signer`."""
        signature = base64.b64encode(self._sign(body)).decode()
        return {"x-shopify-event-id": message_id, "x-shopify-hmac-sha256": signature}


@dataclass(frozen=True, slots=True)
class Stripe(_Secret):
    """Stripe: `Stripe-Signature`, with a time and signatures `v1`; the webhook's id is that of the event."""

    delivery: str | None = field(default="$.id", init=False)

    def verify(self, headers: Headers, body: bytes, now: float) -> None:
        """See `Scheme`."""
        parts = [part.strip().partition("=") for part in _header(headers, "stripe-signature").split(",")]
        times = [value for name, _, value in parts if name == "t"]
        if len(times) != 1:
            raise InvalidSignature("stripe-signature has no t=, or more than one")
        self._check_time("t in stripe-signature", times[0], now)
        content = times[0].encode("latin-1") + b"." + body
        self._check(content, _of_hex(value for name, _, value in parts if name == "v1"))

    def sign(self, message_id: str, body: bytes, now: float) -> dict[str, str]:  # noqa: ARG002 - it is in the body
        """See `Signer`."""
        when = str(int(now))
        return {"stripe-signature": f"t={when},v1={self._sign(when.encode() + b'.' + body).hex()}"}


@dataclass(frozen=True, slots=True)
class Slack(_Secret):
    """Slack: `X-Slack-Signature` with `X-Slack-Request-Timestamp`. It asks once by `url_verification`."""

    delivery: str | None = field(default="$.event_id", init=False)

    def verify(self, headers: Headers, body: bytes, now: float) -> None:
        """See `Scheme`."""
        time = _header(headers, "x-slack-request-timestamp")
        self._check_time("x-slack-request-timestamp", time, now)
        content = b":".join((b"v0", time.encode("latin-1"), body))
        self._check(content, _of_hex([_after("v0=", _header(headers, "x-slack-signature"))]))

    def challenge(self, payload: Any) -> str | None:
        """See `Scheme`."""
        asked = isinstance(payload, dict) and payload.get("type") == "url_verification"
        return found if asked and isinstance(found := payload.get("challenge"), str) else None

    def sign(self, message_id: str, body: bytes, now: float) -> dict[str, str]:  # noqa: ARG002 - it is in the body
        """See `Signer`."""
        when = str(int(now))
        signature = self._sign(b":".join((b"v0", when.encode(), body))).hex()
        return {"x-slack-request-timestamp": when, "x-slack-signature": f"v0={signature}"}


@dataclass(frozen=True, slots=True)
class Hmac(_Secret):
    """An HMAC with SHA-256 over the body, in a header.

    Args:
        secrets: one, or several during a rotation.
        header: which header has the signature.
        encoding: how the signature is written.
        prefix: what stands before it, such as `sha256=`.
        delivery: where the webhook's id is; see `Scheme`.
    """

    header: str = field(kw_only=True)
    encoding: Literal["hex", "base64"] = field(default="hex", kw_only=True)
    prefix: str = field(default="", kw_only=True)
    delivery: str | None = field(default=None, kw_only=True)

    def verify(self, headers: Headers, body: bytes, now: float) -> None:  # noqa: ARG002 - no time is signed
        """See `Scheme`."""
        text = _after(self.prefix, _header(headers, self.header.lower()))
        self._check(body, _of_hex([text]) if self.encoding == "hex" else _of_base64([text]))

    def sign(self, message_id: str, body: bytes, now: float) -> dict[str, str]:  # noqa: ARG002 - no time is signed
        """See `Signer`."""
        signature = self._sign(body)
        text = signature.hex() if self.encoding == "hex" else base64.b64encode(signature).decode()
        named = {} if self.delivery is None or self.delivery.startswith("$") else {self.delivery: message_id}
        return {self.header: f"{self.prefix}{text}", **named}


@dataclass(frozen=True, slots=True)
class Verified:
    """A function of the headers and the body decides: it returns True for a request that is genuine.

    A request over which it raises an error of Python's for values that are wrong or missing is not genuine; after any
    other error the sender is told to come again.
    """

    function: Callable[[Headers, bytes], bool]
    delivery: str | None = None
    signs_delivery: ClassVar[bool] = False

    def verify(self, headers: Headers, body: bytes, now: float) -> None:  # noqa: ARG002 - the function's own affair
        """See `Scheme`."""
        if self.function(headers, body) is not True:
            raise InvalidSignature("the request is not signed as this receiver wants it")

    def challenge(self, payload: Any) -> str | None:  # noqa: ARG002 - see `Scheme`
        """See `Scheme`."""
        return None


def _several(secrets: Secrets) -> list[str]:
    found = [secrets] if isinstance(secrets, str) else list(secrets)
    if not found or not all(found):
        raise ConfigurationError("a webhook has no secret, or an empty one: set it, for example from the environment")
    return found


def _decoded(secret: str) -> bytes:
    try:
        found = base64.b64decode(secret + "=" * (-len(secret) % 4), validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if not found:
        raise ConfigurationError("a secret of Standard Webhooks is not base64: copy it whole, as whsec_...")
    return found


@cache
def _public_key(secret: str) -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415 - for v1a alone
    except ImportError:
        raise ConfigurationError("a public key whpk_... needs the package cryptography: install it") from None
    try:
        return Ed25519PublicKey.from_public_bytes(_decoded(secret.removeprefix("whpk_")))
    except ValueError:
        raise ConfigurationError("a public key whpk_... is no Ed25519 key of 32 bytes: copy it whole") from None


def _is_signed(key: str, content: bytes, signature: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature as Wrong  # noqa: PLC0415 - for v1a alone

    try:
        _public_key(key).verify(signature, content)
    except Wrong:
        return False
    return True


def _header(headers: Headers, name: str) -> str:
    if not (found := headers.get(name)):
        raise InvalidSignature(f"the header {name} is missing")
    return found


def _after(prefix: str, text: str) -> str:
    if not text.startswith(prefix):
        raise InvalidSignature(f"the signature does not begin with {json.dumps(prefix)}")
    return text.removeprefix(prefix)


def _of_hex(texts: Iterable[str], length: int = SHA256) -> list[bytes]:
    """Return the signatures among `texts`; what is none cannot be right."""
    return [bytes.fromhex(text) for text in texts if len(text) == 2 * length and _is_hex(text)]


def _is_hex(text: str) -> bool:
    return all(character in "0123456789abcdefABCDEF" for character in text)


def _of_base64(texts: Iterable[str], length: int = SHA256) -> list[bytes]:
    found = []
    for text in texts:
        try:
            one = base64.b64decode(text.encode("ascii"), validate=True)
        except (binascii.Error, UnicodeEncodeError):
            continue
        if len(one) == length:
            found.append(one)
    return found
