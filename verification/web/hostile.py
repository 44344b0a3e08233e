"""Requests that nobody who means well would send, drawn at random: their bodies, signatures, headers and framing.

An input is drawn from its seed and its number alone, so that it can be drawn again. What must never happen to it is
with it: what was not signed with the secret is never answered with 2xx, and what is as it should be always is.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from enum import Enum
from random import Random
from typing import Any, Final, NamedTuple

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from taskbridge.web import GitHub, Hmac, Shopify, Slack, StandardWebhooks, Stripe, Webhook
from taskbridge.web.posting import PATH
from taskbridge.web.signatures import Scheme

__all__ = [
    "CANARY",
    "MATCHED",
    "POSTED",
    "SECRETS",
    "SOURCES",
    "TOKENS",
    "Expected",
    "Input",
    "drawn",
    "framed",
    "hooks",
]

CANARY: Final = "c4n4ry-of-a-document"
"""It stands in each document, and neither in a tenant nor in a key: no answer and no line of a log may have it."""
LONGEST_HEADER: Final = 60_000
LONGEST_BODY: Final = 1_048_576

Header = tuple[bytes, bytes]
Place = tuple[str, str, str]
"""Source, tenant and key of a record."""


class Expected(Enum):
    """What the answer must be."""

    STORED = "200, and the record is there"
    REFUSED = "no 2xx and no 3xx"
    ANY = "nothing of 5xx"


class Input(NamedTuple):
    """One request, as an ASGI server would give it."""

    number: int
    method: str
    path: str
    query: bytes
    headers: list[Header]
    parts: list[bytes]
    ends: bool
    """Whether the body comes to its end; else the sender is gone after the parts."""
    stalls: bool
    """Whether the sender stays, and sends no more after the parts."""
    version: str
    expected: Expected
    record: Place | None
    """What must be stored."""

    @property
    def body(self) -> bytes:
        """The whole of it."""
        return b"".join(self.parts)


Drawn = tuple[str, list[Header], bytes, Expected, Place | None]
"""Path, headers, body, what must be answered, and the record that it brings."""


class Source(NamedTuple):
    """A webhook and who signs for it; `stranger` has other secrets."""

    webhook: Webhook
    signer: Hmac
    stranger: Hmac
    signature: str
    """The header of the signature."""
    signed: tuple[str, ...] = ()
    """Further headers that are signed."""


def _standard(text: bytes) -> str:
    return f"whsec_{base64.b64encode(text).decode()}"


_KEY: Final = Ed25519PrivateKey.from_private_bytes(b"5ecret-of-the-public-key-scheme-")
_PUBLIC: Final = f"whpk_{base64.b64encode(_KEY.public_key().public_bytes_raw()).decode()}"
POSTED: Final = "posted"
"""The source, and the pipeline, of records that are posted."""
MATCHED: Final = "matched"
"""The pipeline with criteria of messages that are posted: a level ERROR, and the tenant is the service."""
TOKENS: Final = ("5ecret-token-of-events-1", "5ecret-token-of-events-2")
STRANGER: Final = "5tranger-token-of-events"
POSTED_SHARE: Final = 0.25
"""Inputs of so many go to `POST /events`."""

_PLAIN: Final = {name: f"5ecret-{name}-9e1f" for name in ("github", "stripe", "slack", "shopify", "hex", "base64")}
_FIRST, _SECOND = _standard(b"5ecret-standard-1"), _standard(b"5ecret-standard-2")
SECRETS: Final = (*_PLAIN.values(), *TOKENS, _FIRST, _SECOND, "5ecret", _FIRST.removeprefix("whsec_").rstrip("="))
"""No answer and no line of a log may have one of these."""


def _source(
    name: str,
    make: Callable[[Any], Scheme],
    secret: Any,
    signature: str,
    *signed: str,
    **more: Any,
) -> Source:
    scheme: Any = make(secret)
    other = _standard(b"of somebody else") if isinstance(scheme, StandardWebhooks) else "of somebody else"
    stranger: Any = make(other)
    places: dict[str, Any] = {"tenant": "$.customer", "key": "$.order.number", **more}
    return Source(Webhook(name, scheme, **places), scheme, stranger, signature, signed)


SOURCES: Final = (
    _source(
        "standard",
        StandardWebhooks,
        _FIRST,
        "webhook-signature",
        "webhook-id",
        "webhook-timestamp",
        version="$.version",
        document="$.order",
    ),
    _source(
        "several",
        StandardWebhooks,
        [_FIRST, _SECOND, _PUBLIC],
        "webhook-signature",
        "webhook-id",
        "webhook-timestamp",
        path="/in/several",
    ),
    _source("github", GitHub, _PLAIN["github"], "x-hub-signature-256"),
    _source("stripe", Stripe, _PLAIN["stripe"], "stripe-signature", version="$.version"),
    _source("slack", Slack, _PLAIN["slack"], "x-slack-signature", "x-slack-request-timestamp"),
    _source("shopify", Shopify, _PLAIN["shopify"], "x-shopify-hmac-sha256", key="$..number", document="$.order"),
    _source(
        "hex",
        lambda secret: Hmac(secret, header="X-Signature", prefix="v1=", delivery="x-delivery"),
        _PLAIN["hex"],
        "x-signature",
        version="$.version",
    ),
    _source(
        "base64",
        lambda secret: Hmac(secret, header="X-Signature-64", encoding="base64"),
        _PLAIN["base64"],
        "x-signature-64",
        tenant=lambda request: request.payload.get("customer") if isinstance(request.payload, dict) else None,
        version=lambda request: request.payload.get("version"),
    ),
)


def hooks() -> list[Webhook]:
    """Return the webhooks that are attacked."""
    return [one.webhook for one in SOURCES]


_TEXTS: Final = (
    *("", " x", "x ", "\\u0000", "\\ud800", "a\\udfff", "\\ud83d\\ude00", "\u2028", "\\u2029", "\\u007f", "\u0085"),
    *("a" * 200, "a" * 201, "é" * 200, "𐍈" * 200, "e\u0301", "..", "../../etc", "%s", "{0}", "' OR 1=1 --", "\\r\\n"),
    *("2026-11-23T10:00:00Z", "20261123", "2026-13-45", "9999-12-31T23:59:59.999999+23:59", "0001-01-01T00:00-23:59"),
    *("1e60", "1e61", "-1e-60", "0e-61", "nan", "sNaN", "Infinity", "1_000", "\uff11\uff12", "0x10", "+1", "-0", "٣"),
)
_FRAGMENTS: Final = (
    *("null", "true", "false", "0", "-0", "1.5", "1e400", "-1e400", "1e-400", "1E5", "NaN", "Infinity", "-Infinity"),
    *("9" * 60, "9" * 61, "9" * 400, "9" * 4_300, "9" * 4_301, "0." + "1" * 400, "1e9999999999"),
    *("[]", "{}", '["a"]', '{"a":1}', "[[[[]]]]", f'["{CANARY}"]', f'{{"{CANARY}": 1}}', f'[{{"x": "{CANARY}"}}]'),
    *(
        "01",
        "+1",
        ".5",
        "1.",
        "'a'",
        '"\x00"',
        '"\t"',
        '"open',
        "--",
        ",",
        "",
        '"\\x"',
        '"\\u12"',
        "nul",
        "//",
        "/**/1",
    ),
    *(f'"{text}"' for text in _TEXTS),
)
_CONSTANTS: Final = (
    *(b"", b" ", b"null", b"true", b"0", b'"x"', b"[]", b"{}", b"[{}]", b"{", b"}", b'{"', b"[", b"]", b"NaN", b"\x00"),
    *(
        b"\xef\xbb\xbf{}",
        b"\xef\xbb\xbf",
        b"\xff\xfe{\x00}\x00",
        b"\xed\xa0\x80",
        b'"\xff"',
        b"{}{}",
        b"{}\x00",
        b"\r\n",
    ),
    *(b"a=b&c=d", b"<xml/>", b"--x\r\n", b"9" * 5_000, b"-" * 100, b'"' * 99, b"\\" * 99, b"{}" + b" " * 999),
)
_BYTES: Final = (b'"', b"{", b"}", b"[", b"\\", b"\x00", b"\xff", b"\xed\xa0\x80", b",", b":", b"9", b"\\u", b"\x7f")
_DEPTHS: Final = (10, 100, 499, 500, 501, 600)
_METHODS: Final = (
    "GET",
    "HEAD",
    "PUT",
    "DELETE",
    "OPTIONS",
    "PATCH",
    "TRACE",
    "CONNECT",
    "post",
    "",
    "P0ST",
    "X" * 999,
)
_PATHS: Final = (
    *("/events/", "/events/0", "//events", "/Events", "/events%"),
    *("/", "", "//", "/standard/", "/standard//", "//standard", "/standard/..", "/in/several/", "/in", "/in/"),
    *(
        "/\x00",
        "/standard\x00",
        "/stand%61rd",
        "/é",
        "/\udcff",
        "/" + "a" * 5_000,
        "*",
        "standard",
        "/standard?x",
        "/#",
    ),
)
_LENGTHS: Final = (
    b"-5",
    b"abc",
    b"\xb2",
    b"99999999999999999999",
    b"0",
    b"1048577",
    b"",
    b"1 1",
    b"+3",
    b"1e3",
    b"\xb9\xb2",
)


def drawn(seed: int, number: int, now: float) -> Input:
    """Draw an input. `now` is the time in its signature: nothing else differs from one drawing to another."""
    chance = Random(seed * 1_000_000_007 + number)  # noqa: S311 - no secret
    draw = _posted if chance.random() < POSTED_SHARE else _of_a_webhook
    route, headers, body, expected, record = draw(chance, number, now)
    method, path, query = "POST", route, b""
    if chance.random() < 0.05:
        method, path, query = _elsewhere(chance, path)
        expected = Expected.ANY
    stalls = chance.random() < 0.0002
    ends = not stalls and chance.random() >= 0.03
    if not ends:
        expected = Expected.REFUSED
    parts = _parts(chance, body, cut=not ends)
    length = [(b"content-length", str(len(body)).encode())]
    if chance.random() < 0.2:
        length = [(b"content-length", chance.choice(_LENGTHS)) for _ in range(chance.randrange(3))]
        expected = Expected.ANY if expected is Expected.STORED else expected
    version = chance.choice(("1.1", "1.1", "1.1", "1.0", "2", "3"))
    record = record if expected is Expected.STORED else None
    return Input(number, method, path, query, length + headers, parts, ends, stalls, version, expected, record)


def _names(chance: Random) -> tuple[str, str]:
    """Return a tenant and a key."""
    return f"t{chance.randrange(50)}", f"k{chance.randrange(500)}"


def _of_a_webhook(chance: Random, number: int, now: float) -> Drawn:
    """Draw what is sent to a receiver of webhooks."""
    source = chance.choice(SOURCES)
    kind = chance.choices(_KINDS, _WEIGHTS)[0]
    tenant, key = _names(chance)
    body = kind(chance, _document(chance, number, tenant, key))
    expected = Expected.STORED if kind is _as_it_is else Expected.ANY
    headers, body, expected = _signed(chance, source, number, body, now, expected)
    return source.webhook.route, headers, body, expected, (source.webhook.source, tenant, key)


def _posted(chance: Random, number: int, _: float) -> Drawn:
    """Draw what is sent to `POST /events`: a record, a message or an event, alone or in an array."""
    kind = chance.choices(_KINDS, _WEIGHTS)[0]
    tenant, key = _names(chance)
    document = f'{{"level": "ERROR", "service": "{tenant}", "note": "{CANARY}", "number": {number}}}'
    record = {"source": f'"{POSTED}"', "tenant": f'"{tenant}"', "key": f'"{key}"', "order": document}
    message = {"pipeline": f'"{MATCHED}"', "message_id": f'"m{number}"', "order": document}
    event = {"pipeline": f'"{POSTED}"', "tenant": f'"{tenant}"'}
    members, name, place = chance.choice(
        (
            (record, b'"document"', (POSTED, tenant, key)),
            (message, b'"payload"', (MATCHED, tenant, f"m{number}")),
            (event, b'"document"', None),
        )
    )
    whole = _text(chance.choice((record, event))).encode().replace(b'"order"', b'"document"')
    # What makes bodies odd knows the document by this name.
    body = kind(chance, members).replace(b'"order"', name)
    expected = Expected.STORED if kind is _as_it_is else Expected.ANY
    body, is_short = _with_others(chance, body, whole)
    if not is_short and expected is Expected.STORED:
        expected = Expected.REFUSED
    headers, expected = _authorized(chance, expected)
    return PATH, headers, body, expected, place


def _with_others(chance: Random, body: bytes, other: bytes) -> tuple[bytes, bool]:
    """Return a body in an array, or as it is; and whether the array is short enough."""
    others = chance.choice((None, None, 0, 1, 20)) if chance.random() < 0.99 else 1_000
    if others is None:
        return body, True
    entries = [other] * others
    entries.insert(chance.randrange(others + 1), body)
    return b"[%s]" % b",".join(entries), others < 1_000


def _authorized(chance: Random, expected: Expected) -> tuple[list[Header], Expected]:
    """Return headers with a token, and what must be answered."""
    header, how = f"Bearer {chance.choice(TOKENS)}", chance.random()
    if how < 0.75:
        return _lines({"authorization": header}), expected
    if how < 0.8:
        return [], Expected.REFUSED
    if how < 0.85:
        return _lines({"authorization": f"Bearer {STRANGER}"}), Expected.REFUSED
    if how < 0.98:
        return _lines({"authorization": _junk(chance, header)}), Expected.REFUSED
    # Doubled, beside a wrong one: which of them counts is not said.
    both = _lines({"authorization": header}) + _lines({"authorization": _junk(chance, header)})
    return both if chance.random() < 0.5 else both[::-1], Expected.ANY


def _document(chance: Random, number: int, tenant: str, key: str) -> dict[str, str]:
    """Return the members of a payload that is as it should be, each as JSON."""
    order = f'{{"number": "{key}", "note": "{CANARY}", "amount": {chance.randrange(1_000)}}}'
    version = str(number) if chance.random() < 0.7 else f'"2026-11-23T10:{chance.randrange(60):02}:00Z"'
    return {
        "id": f'"evt_{number}"',
        "event_id": f'"Ev{number}"',
        "customer": f'"{tenant}"',
        "order": order,
        "version": version,
    }


def _text(members: dict[str, str]) -> str:
    return f"{{{', '.join(f'{json.dumps(name)}: {value}' for name, value in members.items())}}}"


def _as_it_is(_: Random, members: dict[str, str]) -> bytes:
    return _text(members).encode()


def _odd_members(chance: Random, members: dict[str, str]) -> bytes:
    """Another value for some members; or none of them, or one more."""
    for _ in range(chance.randrange(1, 4)):
        name = chance.choice(list(members) or ["x"])
        how = chance.random()
        fragment = chance.choice(_FRAGMENTS)
        if how < 0.65:
            members[name] = fragment
        elif how < 0.75:
            members.pop(name, None)
        elif how < 0.9:
            members["order"] = f'{{"number": {fragment}, "note": "{CANARY}", "x": {chance.choice(_FRAGMENTS)}}}'
        else:
            members[chance.choice(("", "__proto__", "number", "\x00", "é", "a" * 999))] = fragment
    return _text(members).encode("utf-8", "surrogatepass")


def _odd_bytes(chance: Random, members: dict[str, str]) -> bytes:
    """Bytes changed, left out, doubled or put in."""
    body = bytearray(_text(members).encode())
    for _ in range(chance.randrange(1, 5)):
        at = chance.randrange(len(body) + 1)
        end = min(len(body), at + chance.randrange(1, 30))
        how = chance.randrange(5)
        if how == 0 and at < len(body):
            body[at] = chance.randrange(256)
        elif how == 1:
            del body[at:end]
        elif how == 2:
            body[at:at] = body[at:end]
        elif how == 3:
            body[at:at] = chance.choice(_BYTES) * chance.randrange(1, 4)
        else:
            del body[end:]
    return bytes(body)


def _constant(chance: Random, _: dict[str, str]) -> bytes:
    return chance.choice(_CONSTANTS)


def _noise(chance: Random, _: dict[str, str]) -> bytes:
    return chance.randbytes(chance.randrange(300))


def _deep(chance: Random, members: dict[str, str]) -> bytes:
    """Nested about as deep as Python, the receiver or Postgres can read, or deeper."""
    depth = chance.choice(_DEPTHS) if chance.random() < 0.6 else chance.randrange(850, 1_000)
    depth = chance.choice((5_000, 100_000)) if chance.random() < 0.02 else depth
    begin, end = chance.choice((("[", "]"), ('{"a":', "}"), ('[{"number":', "}]"), ("[[", "]]")))
    deep = begin * depth + "1" + end * (depth if chance.random() < 0.8 else chance.randrange(depth))
    how = chance.randrange(4)
    if how == 0:
        return deep.encode()
    if how == 1:
        return f'{{"type": "url_verification", "challenge": {deep}, "zen": 1, "hook_id": {deep}}}'.encode()
    members["order" if how == 2 else chance.choice(list(members))] = (
        f'{{"number": "k", "x": {deep}}}' if how == 2 else deep
    )
    return _text(members).encode()


def _doubled(chance: Random, members: dict[str, str]) -> bytes:
    """A member that is there twice or a thousand times."""
    name = chance.choice(list(members))
    many = 1 if chance.random() < 0.9 else 1_000
    more = f', "{name}": {chance.choice((members[name], chance.choice(_FRAGMENTS)))}' * many
    return f"{_text(members)[:-1]}{more}}}".encode("utf-8", "surrogatepass")


def _encoded(chance: Random, members: dict[str, str]) -> bytes:
    """Another encoding than UTF-8."""
    return _text(members).encode(chance.choice(("utf-16", "utf-16-le", "utf-32", "utf-7", "cp037", "utf-8-sig")))


def _challenge(chance: Random, _: dict[str, str]) -> bytes:
    """What a provider asks before it sends anything, with odd answers to it."""
    return (
        f'{{"type": "url_verification", "challenge": {chance.choice(_FRAGMENTS)}, '
        f'"zen": {chance.choice(_FRAGMENTS)}, "hook_id": {chance.choice(_FRAGMENTS)}}}'
    ).encode("utf-8", "surrogatepass")


def _long(chance: Random, members: dict[str, str]) -> bytes:
    """About as long as a body may be, or as one that is read in a thread."""
    length = chance.choice((65_000, 65_536, 66_000, 300_000, LONGEST_BODY - 300, LONGEST_BODY, LONGEST_BODY + 1))
    filler = chance.choice(('"%s"' % ("x" * length), f"[{'0,' * (length // 2)}0]", "9" * length, "[" * length))
    members["order"] = f'{{"number": "k", "x": {filler}}}'
    return _text(members).encode()


_KINDS: Final[Sequence[Callable[[Random, dict[str, str]], bytes]]] = (
    _as_it_is,
    _odd_members,
    _odd_bytes,
    _constant,
    _noise,
    _deep,
    _doubled,
    _encoded,
    _challenge,
    _long,
)
_WEIGHTS: Final = (10, 30, 22, 12, 6, 4, 6, 4, 5, 0.3)


def _signed(
    chance: Random, source: Source, number: int, body: bytes, now: float, expected: Expected
) -> tuple[list[Header], bytes, Expected]:
    """Return headers with a signature, the body that comes with them, and what must be answered."""
    name = (
        f"id-{number}" if chance.random() < 0.9 else chance.choice(("id", "a" * 201, "\xe9", "\xa0", "a b", "%00", "²"))
    )
    if name != f"id-{number}":
        expected = Expected.ANY
    how = chance.random()
    if how < 0.6:
        return _lines(source.signer.sign(name, body, now)), body, expected
    if how < 0.66:
        return _lines(source.stranger.sign(name, body, now)), body, Expected.REFUSED
    if how < 0.72:
        changed = _odd_bytes(chance, {"x": "1"}) if chance.random() < 0.5 else body + b" "
        refused = Expected.REFUSED if changed != body else Expected.ANY
        return _lines(source.signer.sign(name, body, now)), changed, refused
    if how < 0.78:
        shift = chance.choice((-1, 1)) * chance.choice((290, 310, 10_000, 10**9, 10**12))
        return _lines(source.signer.sign(name, body, max(0.0, now + shift))), body, Expected.ANY
    headers = source.signer.sign(name, body, now)
    if how < 0.8:
        other = chance.choice(SOURCES)
        return _lines(other.signer.sign(name, body, now)), body, Expected.ANY
    if how < 0.97:
        # Where there are several signatures, another of them may be whole.
        expected = Expected.ANY if " v1," in headers.get(source.signature, "") else Expected.REFUSED
        return _broken(chance, source, headers), body, expected
    # Doubled, beside a wrong one: which of them counts is not said.
    header = next(one for one in headers if one.lower() == source.signature)
    odd = _lines({header: _junk(chance, headers[header])})
    both = _lines(headers) + odd if chance.random() < 0.5 else odd + _lines(headers)
    return both, body, Expected.ANY


def _broken(chance: Random, source: Source, headers: dict[str, str]) -> list[Header]:
    """Break one of the headers that are signed, or the signature."""
    name = chance.choice((source.signature, source.signature, *source.signed))
    header = next(one for one in headers if one.lower() == name)
    how = chance.random()
    if how < 0.15:
        del headers[header]
    elif how < 0.25:
        headers[header] = ""
    else:
        headers[header] = _junk(chance, headers[header])
    return _lines(headers)


def _junk(chance: Random, text: str) -> str:
    """Return something else than `text`, which is a signature, an id or a time."""
    how = chance.randrange(9)
    if how == 0:
        found = "".join(chr(chance.randrange(0x21, 0x100)) for _ in range(chance.randrange(1, 100)))
    elif how == 1:
        found = text[: chance.randrange(len(text))]
    elif how == 2:
        at = chance.randrange(len(text))
        # One that is no hex digit and not in base64, so that it is another signature whatever it replaces.
        found = f"{text[:at]}!{text[at + 1 :]}"
    elif how == 3:
        found = chance.choice(("v1,", "v1a,", "v2,", "sha256=", "t=1,v1=", ",", "=", "v0=")) * chance.randrange(1, 300)
    elif how == 4:
        found = chance.choice("v1, \xff0=a") * chance.randrange(1, LONGEST_HEADER)
    elif how == 5:
        wrong = base64.b64encode(chance.randbytes(32)).decode()
        found = " ".join([f"v1,{wrong}"] * chance.randrange(1, 300))
    elif how == 6:
        found = f"t=1,{','.join([f'v1={chance.randbytes(32).hex()}'] * chance.randrange(1, 300))}"
    elif how == 7:
        wrong = base64.b64encode(chance.randbytes(64)).decode()
        found = " ".join([f"v1a,{wrong}"] * chance.randrange(1, 5))
    else:
        found = chance.choice(("²³", "-1", "1e9", "9" * 30, "0", "\xbd", "nan", "null", "v1,é", "sha256=é", "t=²,v1="))
    return found if found != text else f"{found}!"


def _lines(headers: dict[str, str]) -> list[Header]:
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]


def _elsewhere(chance: Random, path: str) -> tuple[str, str, bytes]:
    """Return another method, path or query."""
    method = chance.choice(_METHODS) if chance.random() < 0.5 else "POST"
    path = chance.choice(_PATHS) if chance.random() < 0.6 else path
    query = chance.choice((b"", b"\xff", b"a=b", b"%ff&&&=", b"\x00", b"x" * 9_999))
    return method, path, query


def _parts(chance: Random, body: bytes, *, cut: bool) -> list[bytes]:
    """Return the body in parts, some of them empty; without its end if it is cut."""
    if cut:
        body = body[: chance.randrange(len(body) + 1)]
    if chance.random() < 0.7:
        return [body]
    cuts = sorted(chance.randrange(len(body) + 1) for _ in range(chance.randrange(1, 6)))
    return [body[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(body)], strict=True)]


def framed(seed: int, one: Input) -> tuple[bytes, bool]:
    """Return an input as bytes for a socket, and whether its answer must be as expected.

    The framing is drawn, too: a length or chunks, right or wrong.
    """
    chance = Random(f"framing of {seed}-{one.number}")  # noqa: S311 - no secret
    target = one.path.encode("utf-8", "surrogatepass") + (b"?" + one.query if one.query else b"")
    lines = [one.method.encode() + b" " + target + b" HTTP/1.1", b"host: x", b"connection: close"]
    lines += [b": ".join(header) for header in one.headers if header[0] != b"content-length"]
    body, how = one.body, chance.random()
    is_right = one.ends
    if how < 0.6:
        lines.append(b"content-length: %d" % len(body))
    elif how < 0.75:
        lines.append(b"transfer-encoding: chunked")
        body = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in one.parts if part) + b"0\r\n\r\n"
    else:
        is_right = False
        wrong = chance.randrange(5)
        if wrong == 0:
            lines.append(b"content-length: " + chance.choice((*_LENGTHS, b"%d" % max(0, len(body) - 1))))
        elif wrong == 1:
            lines.append(b"transfer-encoding: chunked")
            body = chance.choice((b"zz\r\n", b"-1\r\n", b"fffffffffffffffff\r\n", b"5\r\nab", b"\r\n\r\n")) + body
        elif wrong == 2:
            lines += [b"transfer-encoding: chunked", b"content-length: %d" % len(body)]
        elif wrong == 3:
            lines.append(b"content-length: %d" % (len(body) + chance.randrange(1, 100)))
        else:
            lines += [b"x: \x00\xff", b"no colon", b"content-length: %d" % len(body)][chance.randrange(3) :]
    if one.stalls or not one.ends:
        is_right = False
        body = body[: chance.randrange(len(body) + 1)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body, is_right
