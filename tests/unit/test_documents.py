"""Documents that jsonb holds and Python cannot read are found, wherever in the text the reason is."""

from __future__ import annotations

import json
import random

import pytest

from taskbridge.store.documents import decoded

OVERFLOWS = "9" + "0" * 308


@pytest.mark.parametrize("ahead", range(31))
def test_a_float_that_overflows_is_found_wherever_it_begins(ahead: int) -> None:
    text = f'{{"{"k" * ahead}": {OVERFLOWS}.5}}'
    document, reason = decoded(text)
    assert document == {}
    assert reason is not None
    assert "too large for a float" in reason


def test_the_largest_float_and_long_integers_are_read() -> None:
    text = f'{{"float": {int(1.5e308)}.0, "integer": {"7" * 4_000}}}'
    assert decoded(text) == ({"float": 1.5e308, "integer": int("7" * 4_000)}, None)


def test_what_python_wrote_is_read_back_equal() -> None:
    chance = random.Random(1)  # noqa: S311
    for _ in range(300):
        digits = "".join(chance.choices("0123456789", k=chance.randrange(1, 700)))
        document = {"text": digits, "integer": int(digits), "list": [chance.random(), None, digits[:9]]}
        assert decoded(json.dumps(document)) == (document, None)
