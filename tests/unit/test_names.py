"""Names that could be mistaken are refused, with what is wrong with them; those of real businesses are not."""

from __future__ import annotations

import pytest

from taskbridge.common.names import check_key, check_message_id, check_pipeline_name, check_tenant
from taskbridge.errors import InvalidInput, InvalidName


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
