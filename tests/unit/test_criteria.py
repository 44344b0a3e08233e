"""Criteria refuse nonsense when they are made, match as JSON compares, and say why a payload has no tenant."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from taskbridge.common.names import check_tenant
from taskbridge.declaring.criteria import Criterion, Match, Unmatched, check_criteria, match
from taskbridge.errors import InvalidName, InvalidPolicy

ERROR = Criterion("$.level", "ERROR", "$.service", 300)
WARNING = Criterion("$.level", "WARNING", "$.service", 900)


def reason(criteria: Any, payload: object) -> str:
    result = match(criteria, payload)
    assert isinstance(result, Unmatched), result
    return result.reason


def nested(depth: int, key: str | None = None) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value] if key is None else {key: value}
    return value


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("level", r'"level" is no JSONPath \(expected \'\$\', found \'l\', line 1, column 0\): use the syntax'),
        ("", "is no JSONPath"),
        ("$[?" + "(" * 3000 + "@" + ")" * 3000 + "]", "recursion"),
        ("$.\ud800", "is no JSONPath"),
        (5, "is 5: give a JSONPath as text"),
    ],
)
@pytest.mark.parametrize("name", ["match_path", "parameter_path"])
def test_a_path_that_is_no_jsonpath_is_refused_with_its_place(name: str, path: Any, text: str) -> None:
    values: dict[str, Any] = {"match_path": "$.a", "match_value": 1, "parameter_path": "$.b", "delay": 1, name: path}
    with pytest.raises(InvalidPolicy, match=f"the {name} .*{text}") as caught:
        Criterion(**values)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ([1], "is an array: give"),
        (b"x", "is of type bytes: give"),
        (float("nan"), "is nan: give a finite number"),
        ("a\ud800", r"a\\ud800.*remove that character"),
        ("a\0", r"a\\u0000.*remove that character"),
    ],
)
def test_a_match_value_that_no_payload_could_hold_is_refused(value: Any, text: str) -> None:
    with pytest.raises(InvalidPolicy, match=rf"match_value for \$\.level .*{text}"):
        Criterion("$.level", value, "$.service", 1)


@pytest.mark.parametrize("path", ["$.level", "$['level']", '$["level"]', "$ .level"])
def test_the_same_criterion_twice_is_refused_however_its_path_is_written(path: str) -> None:
    with pytest.raises(InvalidPolicy, match=r"criteria 1 and 3 \(.*are identical"):
        check_criteria([ERROR, WARNING, Criterion(path, "ERROR", "$['service']", 300.0)])


def test_a_criterion_that_fails_does_not_stop_one_that_applies() -> None:
    payload = {"level": "ERROR", "service": "A", "deep": nested(5000, "a")}
    criteria = [Criterion("$..level", "ERROR", "$.service", 1), Criterion("$.level", "ERROR", "$.none", 1), ERROR]
    assert match(criteria, payload) == Match("A", 300_000, ERROR.label)


@pytest.mark.parametrize(
    ("service", "text"),
    [
        ([], "parameter path $.service[*] gives no value"),
        (["A", "A"], "parameter path $.service[*] gives 2 values instead of one"),
        ([5], "parameter path $.service[*] gives a number: a tenant is a string"),
        ([" A"], 'gives a string that is no tenant: the tenant " A" begins or ends with space: strip it'),
        (["A\n"], 'gives a string that is no tenant: the tenant "A\\n" contains the control character U+000A'),
    ],
)
def test_a_parameter_that_is_no_tenant_is_reported_before_criteria_about_other_values(service: Any, text: str) -> None:
    criteria = [WARNING, Criterion("$.level", "ERROR", "$.service[*]", 1), WARNING]
    said = reason(criteria, {"level": "ERROR", "service": service})
    assert said.startswith('criterion $.level = "ERROR" has its value, but its parameter path $.service[*] ')
    assert text in said


SECRET = "s3cret" * 30


@pytest.mark.parametrize(
    "payload",
    [
        {"level": SECRET},
        {"level": "ERROR", "service": SECRET + "\n"},
        {"level": "ERROR", "service": SECRET * 10},
        {"level": "ERROR", "service": SECRET, "host": SECRET[1:]},
        {"level": "ERROR", "service": {SECRET: SECRET}},
        {"level": 10**5000},
    ],
)
def test_a_reason_repeats_no_long_text_of_the_payload(payload: object) -> None:
    said = reason([ERROR, Criterion("$.level", "ERROR", "$.host", 1)], payload)
    assert SECRET[:41] not in said
    assert SECRET[1:42] not in said
    assert len(said) < 400


def test_a_payload_nested_too_deeply_for_a_path_is_called_that() -> None:
    deep = {"level": "ERROR", "deep": nested(5000)}
    text = "cannot be followed in this payload, which is nested too deeply for it"
    assert reason([Criterion("$..level", "ERROR", "$.service", 1)], deep).startswith(
        f"no criterion applies: $..level {text}"
    )
    assert reason([Criterion("$.level", "ERROR", "$..service", 1)], deep).endswith(f"parameter path $..service {text}")
    assert f"$[?@ == $] {text}" in reason([Criterion("$[?@ == $]", "ERROR", "$.service", 1)], nested(50_000))


names = st.sampled_from("abc")
texts = st.sampled_from(["", "x", "y", " x", "1", "\ud800", "[", "x" * 300]) | st.text(
    st.characters(exclude_categories=()), max_size=4
)
scalars = st.none() | st.booleans() | st.sampled_from([0, 1, 1.0, -0.0]) | st.integers() | st.floats() | texts
payloads = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3), max_leaves=12
)
wanted = st.sampled_from(["x", "1", "", "null", 1, 0, 1.0, True, False, None, 10**400])
PATHS = """
    $  $.a  $..a  $[*]  $[0]  $[::2]  $.*.b  $[?@.a]  $[?@.a==@.b]  $[?@==$]  $[?@<1]  $[?match(@.a,@.b)]
    $[?search(@,'x')]  $[?length(@)>1]  $[?count(@.*)==2]  $[?value(@..a)==1]
"""
paths = st.sampled_from(PATHS.split())
delays = st.sampled_from([0.001, 1, 2.5])


@settings(derandomize=True, max_examples=80)
@given(criteria=st.lists(st.builds(Criterion, paths, wanted, paths, delays), max_size=4), payload=payloads)
def test_no_payload_makes_matching_raise(criteria: list[Criterion], payload: object) -> None:
    result = match(criteria, payload)
    if isinstance(result, Match):
        assert check_tenant(result.tenant) == result.tenant
        assert (result.criterion, result.delay_ms) in {(made.label, made.delay_ms) for made in criteria}
    else:
        assert result.reason.isprintable()


def naive(criteria: list[Criterion], payload: object) -> tuple[str, int] | None:
    """What `$.name` paths must give, without JSONPath."""
    found: dict[str, int] = {}
    for criterion in criteria:
        name, parameter = criterion.match_path[2:], criterion.parameter_path[2:]
        if not isinstance(payload, dict) or name not in payload:
            continue
        value = payload[name]
        if value != criterion.match_value or isinstance(value, bool) != isinstance(criterion.match_value, bool):
            continue
        try:
            tenant = check_tenant(payload.get(parameter))
        except InvalidName:
            continue
        delay = round(criterion.delay * 1000)
        found[tenant] = min(found.get(tenant, delay), delay)
    return next(iter(found.items())) if len(found) == 1 else None


named = st.builds("$.{}".format, names)
few = st.sampled_from(["x", "y", "1", " x", "null", 1, 1.0, 0, -0.0, 10**400, True, False, None, ["x"], {"a": "x"}])


@settings(derandomize=True, max_examples=150)
@given(
    criteria=st.lists(st.builds(Criterion, named, wanted, named, delays), max_size=4),
    payload=st.dictionaries(names, few, max_size=3) | payloads,
)
@example([Criterion("$.a", 1, "$.b", 2.5), Criterion("$.c", True, "$.b", 1)], {"a": 1, "b": "x", "c": True})
@example([Criterion("$.a", 1, "$.b", 2.5), Criterion("$.a", 1, "$.c", 1)], {"a": 1, "b": "x", "c": "y"})
def test_matching_agrees_with_reading_the_payload_by_hand(criteria: list[Criterion], payload: object) -> None:
    result = match(criteria, payload)
    assert (result[:2] if isinstance(result, Match) else None) == naive(criteria, payload)
