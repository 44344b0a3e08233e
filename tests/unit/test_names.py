"""Names that could be mistaken are refused, with what is wrong with them; those of real businesses are not."""

from __future__ import annotations

import pytest

from taskbridge.common.names import check_pipeline_name, check_tenant
from taskbridge.errors import InvalidName


@pytest.mark.parametrize("name", ["", "a:b", "A", "1a", "a b", "a" * 64, "a.b", "ä", "a\n", None, 7])
def test_a_pipeline_name_that_could_share_a_key_is_refused(name: object) -> None:
    with pytest.raises(InvalidName, match="use 1 to 63"):
        check_pipeline_name(name)


@pytest.mark.parametrize("tenant", ["a", "a" * 200, "Müller & Söhne", "a:b", "{x}", "می‌خواهم", "👩‍👩‍👧"])
def test_names_of_real_businesses_are_allowed(tenant: str) -> None:
    assert check_tenant(tenant) == tenant
