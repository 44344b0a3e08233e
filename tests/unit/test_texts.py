"""Texts from outside, whatever they hold."""

from __future__ import annotations

from typing import Any

from taskbridge.common.texts import error_text, shown


def test_a_group_of_errors_says_which_ones() -> None:
    group = ExceptionGroup("in a TaskGroup", [ValueError("a"), ExceptionGroup("more", [TypeError("b")])])

    assert error_text(group) == (
        "ExceptionGroup: in a TaskGroup (2 sub-exceptions): ValueError: a; "
        "ExceptionGroup: more (1 sub-exception): TypeError: b"
    )
    many = error_text(ExceptionGroup("many", [ValueError(str(number)) for number in range(5)]))
    assert many.endswith("ValueError: 2; 2 more")


def test_what_is_no_string_is_shown_however_deep_it_is() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert shown(deep) == "[[[[[[[...]]]]]]]"
    assert shown("abc", 2) == "'ab'"
    assert shown(7) == "7"
