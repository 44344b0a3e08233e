"""Declare a webhook: how to verify its sender, and where a request has the tenant, key, version and document."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, Final, NamedTuple

from jsonpath_rfc9535 import JSONPathQuery, JSONPathRecursionError
from jsonpath_rfc9535.segments import JSONPathChildSegment
from jsonpath_rfc9535.selectors import NameSelector

from taskbridge.common.log_throttle import LogThrottle
from taskbridge.common.names import check_key, check_source_name, check_tenant
from taskbridge.common.texts import counted, log_error, shown
from taskbridge.declaring.criteria import compiled
from taskbridge.errors import ConfigurationError, InvalidInput, UsageError
from taskbridge.store import Incoming, exact_json_text
from taskbridge.web.signatures import Headers, Scheme

__all__ = ["VALUE_ERRORS", "Finder", "Request", "Unfit", "Webhook", "check_distinct", "finder", "parsed", "text_of"]

log = logging.getLogger(__name__)

VALUE_ERRORS: Final = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)
"""The errors that a function may raise for unexpected values."""
LONGEST_DELIVERY: Final = 200
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MOST_DIGITS: Final = 60
"""The maximum number of digits of a version, and the maximum exponent."""
LONGEST_SHOWN: Final = 40


class Request(NamedTuple):
    """A verified request: its headers (with names in lower case), its body, and the JSON value of the body (`payload`).

    In `payload`, numbers with a fraction or an exponent are `Decimal`, so that they keep all digits.
    """

    headers: Headers
    body: bytes
    payload: Any


class Unfit(NamedTuple):
    """A verified request without a valid record, and the reason."""

    source: str
    request: Request
    reason: str


Finder = str | Callable[[Request], Any]
"""A JSONPath that finds exactly one value in the payload, or a function that returns the value."""


@dataclass(frozen=True)
class Webhook:
    """A source whose records arrive by webhook.

    Args:
        source: the source of the records. By default a pipeline reads the source with its own name.
        signature: the provider's scheme, with its secrets.
        tenant: where the tenant is. A number is converted to text.
        key: where the record's key is.
        version: where the record's version is, a number or an ISO 8601 time. An older version never overwrites a newer
            one. None: the last request wins.
        document: where the document is. The default is the whole payload.
        deleted: where to find whether the record was deleted, as True or False. A deleted record has no document, and
            its `deleted` is True in the handler.
        when: a function that returns False for requests to ignore. They are answered with 200. None: ignore none.
        delivery: where the provider's webhook id is: a JSONPath, a header name, or a function. None: where the scheme
            defines it. A webhook is accepted only once within 30 days.
        path: the path of the requests, relative to the receiver. None: `/` and the source.

    Raises:
        InvalidName: the source is not allowed.
        InvalidPolicy: a JSONPath is invalid.
        ConfigurationError: the path does not begin with `/`.
    """

    source: str
    signature: Scheme
    tenant: Finder
    key: Finder
    version: Finder | None = None
    document: Finder = "$"
    deleted: Finder | None = None
    when: Callable[[Request], bool] | None = None
    delivery: Finder | None = None
    path: str | None = None
    _finders: dict[str, Callable[[Request], Any]] = field(init=False, repr=False, compare=False)
    _is_unsigned: bool = field(init=False, repr=False, compare=False)
    """Whether the webhook id may be in an unsigned header."""
    _unread: LogThrottle = field(default_factory=LogThrottle, init=False, repr=False, compare=False)
    """Requests for which a function raised an error, by class."""

    def __post_init__(self) -> None:
        check_source_name(self.source)
        if self.path is not None and not self.path.startswith("/"):
            raise ConfigurationError(f"the path {shown(self.path)} of webhook {self.source!r} does not begin with /")
        places = {name: getattr(self, name) for name in ("tenant", "key", "version", "document", "deleted")}
        places["delivery"] = self.signature.delivery if self.delivery is None else self.delivery
        finders = {name: finder(name, place) for name, place in places.items() if place is not None}
        object.__setattr__(self, "_finders", finders)
        object.__setattr__(self, "_is_unsigned", not self._signs(places["delivery"]))

    @property
    def route(self) -> str:
        """The path of the requests."""
        return self.path or f"/{self.source}"

    def _signs(self, delivery: Finder | None) -> bool:
        """Whether the sender signs the webhook id: it is in the body, or in the header that the scheme signs.

        A function may read any header.
        """
        if not isinstance(delivery, str):
            return False
        is_own = delivery.lower() == (self.signature.delivery or "").lower()
        return delivery.startswith("$") or (is_own and self.signature.signs_delivery)

    def read(self, request: Request) -> Incoming | Unfit | None:
        """Return the record of a request; None if it has none.

        If a function of the declaration raises one of `VALUE_ERRORS`, that is logged; other errors are raised.
        """
        try:
            if self.when is not None and not self.when(request):
                return None
            return self._incoming(request)
        except UsageError as error:
            return Unfit(self.source, request, str(error))
        except VALUE_ERRORS as error:
            # Its text may quote the document, so it is only logged.
            if count := self._unread.counted(type(error)):
                log_error(
                    log, error, "a function of %r failed for %s, the last", self.source, counted(count, "request")
                )
            return Unfit(self.source, request, f"a function of the webhook raised {type(error).__name__}")

    def _incoming(self, request: Request) -> Incoming:
        tenant = check_tenant(text_of("tenant", self._find("tenant", request)))
        key = text_of("key", self._find("key", request))
        check_key(tenant, key)
        is_deleted = self._find("deleted", request) or False
        if not isinstance(is_deleted, bool):
            raise InvalidInput("the value of `deleted` is neither true nor false")
        document = {} if is_deleted else self._find("document", request)
        if not isinstance(document, dict):
            raise InvalidInput("the document is not a JSON object")
        delivery = self._find("delivery", request)
        if delivery is not None:
            delivery = _delivery(delivery)
            if self._is_unsigned:
                # Anybody could have sent an old body with this id.
                delivery = f"{delivery} {hashlib.sha256(request.body).hexdigest()[:32]}"
        return Incoming(
            self.source,
            delivery,
            tenant,
            key,
            _version(self._find("version", request)) if "version" in self._finders else None,
            None if is_deleted else exact_json_text(f"tenant {tenant!r}, record {key!r}", document),
        )

    def _find(self, name: str, request: Request) -> Any:
        finder = self._finders.get(name)
        return None if finder is None else finder(request)


def parsed(body: bytes) -> Any:
    """Parse the JSON of a body; numbers keep all digits.

    Raises:
        InvalidInput: it is not JSON, or an object in it has a duplicate name.
    """
    try:
        return _DECODER.decode(body.decode("utf-8-sig"))
    except (ValueError, ArithmeticError, RecursionError):
        raise InvalidInput("the body is not JSON in UTF-8; if it is a form, choose JSON at the sender") from None


def _refused(constant: str) -> None:
    raise ValueError(constant)


def _object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(f"the body has an object with the duplicate name {shown(twice, LONGEST_SHOWN)}")
    return found


_DECODER: Final = json.JSONDecoder(parse_float=Decimal, parse_constant=_refused, object_pairs_hook=_object_of)


def finder(name: str, place: Finder) -> Callable[[Request], Any]:
    """Return a function that finds a value in a request, or raises InvalidInput.

    Raises:
        InvalidPolicy: `place` is not a valid JSONPath.
    """
    if callable(place):
        return place
    if name == "delivery" and not place.startswith("$"):
        header = place.lower()
        return lambda request: _header(header, request)
    query, _ = compiled(name, place)
    if (names := _names(query)) is not None:
        return lambda request: _by_names(name, place, names, request.payload)

    def find(request: Request) -> Any:
        try:
            found = query.find(request.payload).values()
        except (RecursionError, JSONPathRecursionError):
            raise InvalidInput(f"the body is nested too deeply to find the {name} ({place})") from None
        if len(found) != 1:
            raise _not_one(name, place, len(found))
        return found[0]

    return find


def _names(query: JSONPathQuery) -> list[str] | None:
    """Return the names of a path that consists only of names, such as `$.order.id`; None for other paths."""
    parts = [segment.selectors for segment in query.segments if isinstance(segment, JSONPathChildSegment)]
    names = [one.name for several in parts for one in several if isinstance(one, NameSelector)]
    return names if len(names) == len(query.segments) and all(len(several) == 1 for several in parts) else None


def _by_names(name: str, place: str, names: Sequence[str], payload: Any) -> Any:
    """Return the value under these nested names. This is ten times faster than a JSONPath query."""
    found = payload
    for one in names:
        if not isinstance(found, dict) or one not in found:
            raise _not_one(name, place, 0)
        found = found[one]
    return found


def _not_one(name: str, place: str, count: int) -> InvalidInput:
    return InvalidInput(f"the {name} ({place}) was found {count} times instead of once")


def _header(names: str, request: Request) -> str:
    for name in names.split(","):
        if found := request.headers.get(name.strip()):
            return found
    raise InvalidInput(f"the header {names} is missing")


def text_of(name: str, value: Any) -> str:
    """Return a string or an integer as text; raise InvalidInput for any other value."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise InvalidInput(f"the {name} is neither a string nor an integer")
    return str(value)


def _delivery(value: Any) -> str:
    text = text_of("webhook id", value)
    if not text or len(text) > LONGEST_DELIVERY or not text.isprintable():
        raise InvalidInput(f"the webhook id is not 1 to {LONGEST_DELIVERY} printable characters")
    return text


def _version(value: Any) -> Decimal:
    """Return a version as a number; a time as seconds since 1970."""
    if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
        raise InvalidInput("the version is neither a number nor an ISO 8601 time")
    try:
        # Try this first: `20261123` is a number, but could be parsed as a date.
        number = Decimal(str(value))
    except (InvalidOperation, ValueError):
        number = _seconds(str(value))
    if not number.is_finite() or len(number.as_tuple().digits) > MOST_DIGITS or abs(number.adjusted()) > MOST_DIGITS:
        raise InvalidInput(f"the version is neither a number of at most {MOST_DIGITS} digits nor an ISO 8601 time")
    return number


def _seconds(text: str) -> Decimal:
    """Return the seconds since 1970 of an ISO 8601 time, by default in UTC; NaN if it is not a time."""
    try:
        when = datetime.fromisoformat(text)
        since = (when if when.tzinfo else when.replace(tzinfo=UTC)) - EPOCH
    except (ValueError, OverflowError):
        return Decimal("nan")
    return Decimal(since // timedelta(microseconds=1)) / 1_000_000


def check_distinct(webhooks: tuple[Webhook, ...]) -> None:
    """Raise ConfigurationError if webhooks share a path, or only some webhooks of a source have a version."""
    routes = [webhook.route for webhook in webhooks]
    twice = sorted({route for route in routes if routes.count(route) > 1})
    if twice:
        raise ConfigurationError(f"two webhooks have the path {twice[0]}: give one of them another `path`")
    versioned = {one.source for one in webhooks if one.version is not None}
    mixed = sorted(versioned & {one.source for one in webhooks if one.version is None})
    if mixed:
        raise ConfigurationError(f"only some of the webhooks of {mixed[0]!r} have a `version`: set it for all of them")
