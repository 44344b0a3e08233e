"""The Lua scripts: which there are, what they take, and the text that Redis is given."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

from taskbridge.gate.constants import Constant
from taskbridge.gate.state import Answer

__all__ = ["SCRIPTS", "Script", "read", "render"]

_LABEL: Final = re.compile(r"^-- (USES|KEYS|KEYS OF EACH|ARGV|ARGV OF EACH|RETURNS): (.*(?:\n--   .*)*)", re.MULTILINE)
_AS_TYPE: Final = {"": "{}", "number": "tonumber({})", "flag": '{} == "1"'}


@dataclass(frozen=True, slots=True)
class Script:
    """One verb, as the comment at the head of `{name}.lua` declares it.

    KEYS and ARGV name what the script is given: the key `due` is the local variable `due_key`, and `ttl_ms:number` the
    local `ttl_ms`. The last key of every script is the gate's clock, and a script that is given `now_ms` has the time
    in `us` and `now`. A script for many tenants has keys and arguments OF EACH, after the others: `count` says how many
    there are, and `of_each(1)` returns those of the first. USES names files whose functions the script calls.
    """

    name: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    keys_of_each: tuple[str, ...] = ()
    args_of_each: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()

    @property
    def variables(self) -> list[str]:
        """Lua that names the keys and arguments."""
        keys, args = len(self.keys), len(self.args)
        timed = self.args[-1:] == ("now_ms",)
        lines = [_named(_variables(self.keys, "_key"), _values("KEYS", self.keys))]
        plain = self.args[:-1] if timed else self.args
        lines.append(_named(_variables(plain), _values("ARGV", plain)))
        if timed:
            lines.append(f"local us = clock_us(ARGV[{args}])\nlocal now = milliseconds(us)")
        if self.args_of_each:
            each_key, each_arg = len(self.keys_of_each), len(self.args_of_each)
            values = [
                *_values("KEYS", self.keys_of_each, f"{each_key} * (nth - 1) + {keys} + "),
                *_values("ARGV", self.args_of_each, f"{each_arg} * (nth - 1) + {args} + "),
            ]
            lines.append(f"local count = (#ARGV - {args}) / {each_arg}")
            lines.append(f"local function of_each(nth)\n  return {', '.join(values)}\nend")
        return lines


def read(file_name: str) -> str:
    """Return the text of a `.lua` file of this package."""
    return files(__package__).joinpath(file_name).read_text(encoding="utf-8")


def render(script: Script, publish: str) -> str:
    """Return what Redis is given for `script`: the numbers used, the prelude, how to publish, its parts, itself.

    Redis runs the whole text at every call, definitions and all, so a script has no more of them than it uses.
    """
    parts = [read(f"{name}.lua") for name in ("prelude", *script.uses, script.name)]
    if "queue" in script.keys:
        parts.insert(1, publish)
    used = set(re.findall(r"[A-Z_]+", "".join(parts)))
    numbers = [one for one in (*Answer, *Constant) if one.name in used]
    names = "".join(f"local {one.name} = {int(one)}\n" for one in numbers)
    return "\n".join((names, *parts[:-1], *script.variables, parts[-1]))


def _variables(names: Sequence[str], ending: str = "") -> list[str]:
    return [name.partition(":")[0] + ending for name in names]


def _values(array: str, names: Sequence[str], before: str = "") -> list[str]:
    kinds = [name.partition(":")[2] for name in names]
    return [_AS_TYPE[kind].format(f"{array}[{before}{at}]") for at, kind in enumerate(kinds, 1)]


def _named(variables: Sequence[str], values: Sequence[str]) -> str:
    return f"local {', '.join(variables)} = {', '.join(values)}" if variables else ""


def _scripts() -> dict[str, Script]:
    """Return the script of each file whose head says what it returns; the others are parts of these."""
    found = {}
    for file in sorted(files(__package__).iterdir(), key=lambda file: file.name):
        name, _, kind = file.name.partition(".")
        declared = dict(_LABEL.findall(read(file.name))) if kind == "lua" else {}
        if "RETURNS" in declared:
            labels = ("KEYS", "ARGV", "KEYS OF EACH", "ARGV OF EACH", "USES")
            found[name] = Script(name, *(tuple(declared.get(label, "").replace("--", "").split()) for label in labels))
    return found


SCRIPTS: Final = _scripts()
