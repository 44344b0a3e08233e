"""No two (pipeline, tenant) pairs share a key."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from taskbridge.common.names import check_key, check_message_id, check_pipeline_name, check_tenant
from taskbridge.errors import InvalidInput, InvalidName
from taskbridge.gate import Keys


def allowed(check: object, text: str) -> bool:
    try:
        return bool(check(text))  # type: ignore[operator]
    except InvalidName:
        return False


tenants = st.text(max_size=12).filter(lambda text: allowed(check_tenant, text))
pipelines = st.from_regex(r"[a-z][a-z0-9_-]{0,6}", fullmatch=True)
KINDS = (Keys.runner, Keys.lease, Keys.last)


@settings(derandomize=True)
@given(pairs=st.lists(st.tuples(pipelines, tenants), unique=True, max_size=5))
def test_different_pairs_have_different_keys(pairs: list[tuple[str, str]]) -> None:
    keys = Keys("sync")
    made = [kind(keys, *pair) for kind in KINDS for pair in pairs]
    made += {keys.due(pipeline) for pipeline, _ in pairs}
    made += {keys.tailing(pipeline) for pipeline, _ in pairs}
    assert len(made) == len(set(made))


@pytest.mark.parametrize("name", ["", "a:b", "A", "1a", "a b", "a" * 64, "a.b", "ä", "a\n", None, 7])
def test_a_pipeline_name_that_could_share_a_key_is_refused(name: object) -> None:
    with pytest.raises(InvalidName, match="use 1 to 63"):
        check_pipeline_name(name)


@pytest.mark.parametrize(
    ("tenant", "text"),
    [
        ("", "is empty"),
        ("a" * 201, "has 201 characters, at most 200"),
        ("a\tb", "U\\+0009 at position 1"),
        ("a\x7f", "U\\+007F at position 1"),
        ("a ", "begins or ends with space"),
        (b"acme", "not bytes"),
    ],
)
def test_a_refused_tenant_is_named_with_its_fault(tenant: object, text: str) -> None:
    with pytest.raises(InvalidName, match=text):
        check_tenant(tenant)


@pytest.mark.parametrize("tenant", ["a", "a" * 200, "Müller & Söhne", "a:b", "{x}", "می‌خواهم", "👩‍👩‍👧"])
def test_names_of_real_businesses_are_allowed(tenant: str) -> None:
    assert check_tenant(tenant) == tenant


@pytest.mark.parametrize("given", [5, 5.0, b"5", None, ["5"]])
def test_a_key_that_is_no_text_is_told_how_to_become_one(given: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_key("acme", given)
    kind = type(given).__name__
    expected = f"tenant 'acme': the key {given!r} is not a string but {kind}: pass a string, such as str(key)"
    assert str(caught.value) == expected
    if given is not None:
        with pytest.raises(InvalidInput, match=rf"is not a string but {kind}: pass a string, such as str\(message_i"):
            check_message_id("alerts", given)
