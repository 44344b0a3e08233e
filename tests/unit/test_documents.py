"""What jsonb holds is read as Python's own json reads it; what a worker cannot read is said, and not guessed."""

from __future__ import annotations

import json
import random

from taskbridge.store.documents import decoded


def test_the_largest_float_and_long_integers_are_read() -> None:
    text = f'{{"float": {int(1.5e308)}.0, "integer": {"7" * 4_000}}}'
    assert decoded(text) == ({"float": 1.5e308, "integer": int("7" * 4_000)}, None)


def test_what_python_wrote_is_read_back_equal_and_of_the_same_types() -> None:
    chance = random.Random(1)  # noqa: S311
    for _ in range(2_000):
        digits = "".join(chance.choices("0123456789", k=chance.randrange(1, 700)))
        characters = "".join(chr(chance.choice((chance.randrange(1, 0xD800), 0x1F600))) for _ in range(9))
        numbers = [int(digits), -int(digits), chance.uniform(-1, 1) * 10.0 ** chance.randint(-308, 308), 1.0, 0, True]
        near = [chance.choice((-1, 1)) * 2 ** chance.choice((53, 63, 64)) + chance.randint(-2, 2) for _ in range(3)]
        document = {characters: digits, "numbers": numbers, "near": near, "": [None, {"a": []}, {}, chance.random()]}
        for ascii_alone in (True, False):
            found, reason = decoded(json.dumps(document, ensure_ascii=ascii_alone))
            assert (repr(found), reason) == (repr(document), None)
