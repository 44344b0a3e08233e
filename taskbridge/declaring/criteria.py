"""Criteria: which tenant a stored message belongs to, and how soon after the tenant's last run it is due.

A criterion looks at a message's payload with two JSONPath queries (RFC 9535): one for the value that must match, such
as `$.level`, and one for the tenant, such as `$.service`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, cast

from taskbridge.common.limits import check_option
from taskbridge.common.names import check_tenant
from taskbridge.common.texts import JSON_TYPES, as_json, printable
from taskbridge.errors import InvalidName, InvalidPolicy

if TYPE_CHECKING:
    import jsonpath_rfc9535 as jsonpath

__all__ = ["Criterion", "Match", "Unmatched", "check_criteria", "compiled", "match"]

Scalar: TypeAlias = str | int | float | bool | None


_MOST_PATHS = 5


@dataclass(frozen=True)
class Criterion:
    """A rule for messages: which ones match, which tenant they belong to, and how long they wait.

    Args:
        match_path: a JSONPath that selects exactly one value.
        match_value: the value that a matching message has there. Values are compared as JSON: 1 equals 1.0, but not
            true or "1".
        parameter_path: a JSONPath that selects exactly one value, the tenant.
        delay: seconds from the start of the tenant's last run until the message is due; 0.001 to 30 days.

    Raises:
        InvalidPolicy: a path is not a JSONPath, the value is not a JSON scalar, or the delay is out of range.
    """

    match_path: str
    match_value: Scalar
    parameter_path: str
    delay: float
    _match: jsonpath.JSONPathQuery = field(init=False, repr=False, compare=False)
    _parameter: jsonpath.JSONPathQuery = field(init=False, repr=False, compare=False)
    _identity: tuple[str, bool, Scalar, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        matched, match_path = compiled("match_path", self.match_path)
        parameter, parameter_path = compiled("parameter_path", self.parameter_path)
        _check_scalar(self.match_path, self.match_value)
        check_option(f"criterion {self.label}: the delay", "delay", self.delay)
        object.__setattr__(self, "_match", matched)
        object.__setattr__(self, "_parameter", parameter)
        # True and 1 are equal in Python, but not in JSON.
        identity = (match_path, isinstance(self.match_value, bool), self.match_value, parameter_path)
        object.__setattr__(self, "_identity", identity)

    @property
    def label(self) -> str:
        """A short readable name, such as `$.level = "ERROR"`. It need not be unique."""
        return f"{printable(self.match_path)} = {as_json(self.match_value)}"

    @property
    def delay_ms(self) -> int:
        """The delay in whole milliseconds, at least 1."""
        return round(self.delay * 1000)


class Match(NamedTuple):
    """The tenant and delay of a payload; `criterion` is the label of the matching criterion with the smallest delay."""

    tenant: str
    delay_ms: int
    criterion: str


class Unmatched(NamedTuple):
    """The payload has no tenant. The reason says what an operator can correct in the criteria or at the sender."""

    reason: str


def match(criteria: Sequence[Criterion], payload: object) -> Match | Unmatched:
    """Return the tenant and the smallest delay of the criteria that match `payload`, or why none does.

    It never raises, whatever JSON the payload is. If the matching criteria give different tenants, the payload is
    unmatched, because a record belongs to one tenant.
    """
    applying: list[tuple[Criterion, str]] = []
    without_tenant: list[str] = []
    missed: dict[str, list[str]] = {}
    for criterion in criteria:
        if mismatch := _mismatch(criterion, payload):
            missed.setdefault(mismatch, []).append(as_json(criterion.match_value))
            continue
        try:
            applying.append((criterion, _tenant_of(criterion, payload)))
        except ValueError as problem:
            path = f"its parameter path {printable(criterion.parameter_path)}"
            without_tenant.append(f"criterion {criterion.label} has its value, but {path} {problem}")
    if applying:
        return _agreed(applying)
    # A criterion whose value is present explains more than those that need another value.
    return Unmatched(without_tenant[0] if without_tenant else _nothing_applies(missed))


def check_criteria(criteria: Sequence[Criterion]) -> tuple[Criterion, ...]:
    """Return `criteria` as a tuple; raise InvalidPolicy if there is none, or if two of them match the same thing."""
    checked: list[Criterion] = []
    # Two that differ only in the parameter path are allowed: senders may put the tenant in different places.
    seen: dict[tuple[str, bool, Scalar, str], int] = {}
    for position, item in enumerate(_items(criteria), start=1):
        if not isinstance(item, Criterion):
            raise InvalidPolicy(f"criterion {position} is of type {type(item).__name__}: pass a Criterion")
        earlier = seen.setdefault(item._identity, position)
        if earlier != position:
            raise InvalidPolicy(_repeated(earlier, checked[earlier - 1], position, item))
        checked.append(item)
    if not checked:
        raise InvalidPolicy("there are no criteria, so no message would ever be due: pass at least one `Criterion`")
    return tuple(checked)


def _items(criteria: object) -> tuple[object, ...]:
    try:
        return tuple(cast(Sequence[object], criteria))
    except TypeError:
        raise InvalidPolicy(
            f"the criteria are of type {type(criteria).__name__}: pass a list of Criterion, even for a single one"
        ) from None


def _repeated(earlier: int, first: Criterion, later: int, second: Criterion) -> str:
    both = f"criteria {earlier} and {later} ({first.label}, tenant from {printable(first.parameter_path)})"
    if first.delay == second.delay:
        return f"{both} are identical: remove one"
    return f"{both} contradict each other, with delays of {first.delay:g} s and {second.delay:g} s: keep one of the two"


def compiled(name: str, path: object) -> tuple[jsonpath.JSONPathQuery, str]:
    """Return the query and its canonical text, which is the same for `$.level` and `$['level']`."""
    if not isinstance(path, str):
        raise InvalidPolicy(f'the {name} is {as_json(path)}: give a JSONPath as text, such as "$.level"')
    import jsonpath_rfc9535 as jsonpath  # noqa: PLC0415 - only where there are criteria

    try:
        path.encode()
        query = jsonpath.compile(path)
        return query, str(query)
    # OverflowError: a number literal such as 1e999. RecursionError: hundreds of nested parentheses.
    except (jsonpath.JSONPathError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidPolicy(
            f"the {name} {as_json(path)} is no JSONPath ({error}): use the syntax of RFC 9535, "
            "such as $.level or $['log level']"
        ) from error


def _check_scalar(path: str, value: object) -> None:
    if value is not None and not isinstance(value, str | int | float):
        raise InvalidPolicy(
            f"the match_value for {printable(path)} is {as_json(value)}: give a string, a number, a boolean or None"
        )
    # Neither can be in a JSON document that Postgres stores.
    if value != value or value in (float("inf"), float("-inf")):
        raise InvalidPolicy(f"the match_value for {printable(path)} is {value}: give a finite number")
    if isinstance(value, str) and any("\ud800" <= character <= "\udfff" or character == "\0" for character in value):
        raise InvalidPolicy(
            f"the match_value for {printable(path)} is {as_json(value)}, with a lone surrogate or a NUL, so no stored "
            "payload could hold it: remove that character"
        )


def _mismatch(criterion: Criterion, payload: object) -> str:
    """Return why the match path does not select the criterion's value; empty if it does."""
    path = printable(criterion.match_path)
    try:
        value = _only_value(criterion._match, payload)
    except ValueError as problem:
        return f"{path} {problem}"
    return "" if _equal(criterion.match_value, value) else f"{path} gives {as_json(value)}"


def _tenant_of(criterion: Criterion, payload: object) -> str:
    """Return the tenant that the parameter path selects; raise a ValueError that explains why there is none."""
    tenant = _only_value(criterion._parameter, payload)
    if not isinstance(tenant, str):
        raise ValueError(f"gives {JSON_TYPES.get(type(tenant), type(tenant).__name__)}: a tenant is a string")
    try:
        return check_tenant(tenant)
    except InvalidName as problem:
        text = str(problem).replace(repr(tenant), as_json(tenant))
        raise ValueError(f"gives a string that is no tenant: {text}") from None


def _only_value(query: jsonpath.JSONPathQuery, payload: object) -> object:
    """Return the single value that the query selects; raise a ValueError that explains why there is none."""
    try:
        values = query.find(cast("jsonpath.JSONValue", payload)).values()
    except Exception as error:  # a filter may fail on a value, such as a pattern with a lone surrogate
        import jsonpath_rfc9535 as jsonpath  # noqa: PLC0415 - only where there are criteria

        if isinstance(error, (jsonpath.JSONPathRecursionError, RecursionError)):
            raise ValueError("cannot be followed in this payload, which is nested too deeply for it") from None
        raise ValueError(f"cannot be followed in this payload ({type(error).__name__})") from None
    if not values:
        raise ValueError("gives no value")
    if len(values) > 1:
        raise ValueError(f"gives {len(values)} values instead of one")
    return values[0]


def _equal(wanted: Scalar, found: object) -> bool:
    if isinstance(wanted, bool) or isinstance(found, bool):
        return wanted is found
    return wanted == found


def _agreed(applying: list[tuple[Criterion, str]]) -> Match | Unmatched:
    first, tenant = applying[0]
    for other, name in applying[1:]:
        if name != tenant:
            return Unmatched(
                f"criteria {first.label} and {other.label} give different tenants, {as_json(tenant)} by "
                f"{printable(first.parameter_path)} and {as_json(name)} by {printable(other.parameter_path)}: let "
                "only one of them apply to such a payload"
            )
    soonest = min((criterion for criterion, _ in applying), key=lambda criterion: criterion.delay_ms)
    return Match(tenant, soonest.delay_ms, soonest.label)


def _nothing_applies(missed: dict[str, list[str]]) -> str:
    reasons = [f"{given}, needed {' or '.join(dict.fromkeys(wanted))}" for given, wanted in missed.items()]
    if len(reasons) > _MOST_PATHS:
        reasons[_MOST_PATHS:] = [f"and {len(reasons) - _MOST_PATHS} more"]
    return f"no criterion applies: {'; '.join(reasons) or 'none is declared'}"
