"""Rules for names. Prefix, pipeline and tenant become Redis keys, and no two pairs (pipeline, tenant) share a key.

A key is `{prefix}:{kind}:{pipeline}:{tenant}`. Prefix and pipeline contain no colon and the tenant comes last, so the
first three colons split a key back into exactly one pair, whatever the tenant contains.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Callable, Iterable

from taskbridge.common.limits import NAMES
from taskbridge.common.texts import shown
from taskbridge.errors import InvalidInput, InvalidName

DEFAULT_PREFIX = "sync"
"""The default key prefix."""

DEFAULT_SCHEMA = "taskbridge"
"""The default Postgres schema."""

_FORBIDDEN_CATEGORIES = frozenset({"Cc", "Cs", "Zl", "Zp"})


def check_tenant(tenant: object) -> str:
    """Return `tenant` unchanged, or raise InvalidName.

    A tenant is a string of 1 to 200 characters without control characters (Unicode Cc), lone surrogates (Cs, which
    UTF-8 cannot encode) and line or paragraph separators (Zl, Zp), and without leading or trailing whitespace. Tenants
    are compared as they are: case matters, and so do different Unicode spellings of one letter.
    """
    if not isinstance(tenant, str):
        raise InvalidName(
            f"a tenant is a string, not {type(tenant).__name__}: pass its name or primary key as a string"
        )
    if not tenant:
        raise InvalidName("the tenant is empty: pass the key of the business that the work belongs to")
    if len(tenant) > NAMES["tenant"].longest:
        raise InvalidName(
            f"the tenant {tenant[:20]!r}... has {len(tenant)} characters, at most {NAMES['tenant'].longest} are "
            "allowed: use a shorter key, such as the tenant's id"
        )
    if (position := _control_character(tenant)) is not None:
        raise InvalidName(
            f"the tenant {tenant!r} contains the control character U+{ord(tenant[position]):04X} at position "
            f"{position}: remove it"
        )
    if tenant != tenant.strip():
        raise InvalidName(f"the tenant {tenant!r} begins or ends with space: strip it")
    return tenant


def check_tenants(tenants: Iterable[str]) -> list[str]:
    """Return the tenants, or raise InvalidName. A single string is rejected instead of being split into characters."""
    if isinstance(tenants, (str, bytes)):
        raise InvalidName(
            f"the tenants {shown(tenants, 80)} are {type(tenants).__name__}", "pass a list of tenants, even for one"
        )
    return [check_tenant(tenant) for tenant in tenants]


def check_pipeline_name(name: object) -> str:
    """Return `name` unchanged, or raise InvalidName.

    A pipeline's name is 1 to 63 characters of a-z, 0-9, `_` and `-`, and begins with a letter. It contains no colon, so
    ("a:b", "c") and ("a", "b:c") cannot become the same key.
    """
    return _checked("pipeline", name)


def check_source_name(name: object) -> str:
    """Return `name` unchanged, or raise InvalidName. The rules are those of a pipeline's name."""
    return _checked("source", name)


def check_redis_name(name: object) -> str:
    """Return the name of a Redis server unchanged, or raise InvalidName. A variable has it in capitals."""
    return _checked("Redis name", name)


def check_key(tenant: str, key: object) -> str:
    """Return a record's key unchanged, or raise InvalidInput unless it has 1 to 200 characters, as in a tenant."""
    return _checked_text(f"tenant {tenant!r}", "key", key, lambda text: _control_character(text) is None)


def key_spellings(key: str) -> list[str]:
    """Return a key as a user has written it and, if it is a JSON array, the key of several columns that it means.

    Such a key is an array of strings in the format of Postgres: `["eu",211]` means the key `["eu", "211"]`.
    """
    if not key.lstrip().startswith("["):
        return [key]
    try:
        values = json.loads(key, parse_int=str, parse_float=str)
        texts = [str(value).lower() if isinstance(value, bool) else value for value in values]
        # Escapes and spaces are those of Postgres.
        canonical = json.dumps(texts, ensure_ascii=False)
        canonical.encode()
    except (ValueError, RecursionError):  # including text that UTF-8 cannot encode, such as "\\ud800"
        return [key]
    return [*dict.fromkeys((key, canonical))] if all(isinstance(text, str) for text in texts) else [key]


def check_schema_name(name: str) -> str:
    """Return the name of a Postgres schema unchanged, or raise InvalidName.

    It has 1 to 63 characters of a-z, 0-9 and `_`, and does not begin with a digit or `pg_`. `public` is not allowed,
    because it is shared.
    """
    return _checked("schema", name, " (TASKBRIDGE_SCHEMA)")


def check_key_prefix(prefix: str) -> str:
    """Return `prefix` unchanged, or raise InvalidName unless it has 1 to 63 of A-Z, a-z, 0-9, `_`, `.` and `-`.

    All of it may be in braces: a Redis Cluster then keeps all keys and queues in one slot.
    """
    return _checked("key prefix", prefix, " (TASKBRIDGE_KEY_PREFIX)")


def check_message_id(pipeline: str, message_id: object) -> str:
    """Return a message's id unchanged, or raise InvalidInput."""
    return _checked_text(f"pipeline {pipeline!r}", "message id", message_id, str.isprintable)


def _control_character(text: str) -> int | None:
    """Return the position of the first character of a forbidden category."""
    if text.isprintable():  # a faster test: then there is none
        return None
    categories = map(unicodedata.category, text)
    return next((at for at, category in enumerate(categories) if category in _FORBIDDEN_CATEGORIES), None)


def _checked(kind: str, name: object, variable: str = "") -> str:
    """Return a name that its pattern matches unchanged, or raise InvalidName."""
    rule = NAMES[kind]
    if not isinstance(name, str) or len(name) > rule.longest or re.fullmatch(rule.pattern, name) is None:
        raise InvalidName(
            f"the {kind} {shown(name, 80)} is not allowed", f"use 1 to {rule.longest} of {rule.allowed}{variable}"
        )
    return name


def _checked_text(where: str, kind: str, text: object, is_allowed: Callable[[str], bool]) -> str:
    """Return a key or a message id unchanged, or raise InvalidInput."""
    what, rule = f"{where}: the {kind} {shown(text, 20)} is not", NAMES[kind]
    if not isinstance(text, str):
        kind_of_text, argument = type(text).__name__, kind.replace(" ", "_")
        raise InvalidInput(f"{what} a string but {kind_of_text}: pass a string, such as str({argument})")
    if not 0 < len(text) <= rule.longest or not is_allowed(text):
        raise InvalidInput(f"{what} allowed: use a string of 1 to {rule.longest} characters, {rule.allowed}")
    return text
