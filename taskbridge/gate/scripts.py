"""The Lua scripts: their names, their parameters, and the text that is loaded into Redis."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from taskbridge.gate.constants import Constant
from taskbridge.gate.state import Answer

__all__ = ["SCRIPTS", "Script", "read", "render"]

_LABEL: Final = re.compile(r"^-- (USES|KEYS|KEYS OF EACH|ARGV|ARGV OF EACH|RETURNS): (.*(?:\n--   .*)*)", re.MULTILINE)
_AS_TYPE: Final = {"": "{}", "number": "tonumber({})", "flag": '{} == "1"'}


@dataclass(frozen=True, slots=True)
class Script:
    """One verb, as declared by the comment at the top of `{name}.lua`.

    KEYS and ARGV name the script's parameters: the key `due` becomes the local variable `due_key`, and `ttl_ms:number`
    the local `ttl_ms`. The last key of every script is the gate's clock, and a script with the argument `now_ms` has
    the time in `us` and `now`. A script for many tenants has keys and arguments OF EACH after the others: `count` is
    their number, and `of_each(1)` returns those of the first. USES names files whose functions the script calls.
    """

    name: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    keys_of_each: tuple[str, ...] = ()
    args_of_each: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()

    @property
    def variables(self) -> list[str]:
        """Lua that assigns the keys and arguments to local variables."""
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


@cache
def read(file_name: str) -> str:
    """Return the text of a `.lua` file of this package."""
    return files(__package__).joinpath(file_name).read_text(encoding="utf-8")


def render(script: Script, publish: str) -> str:
    """Return the full text of `script`: the numbers used, the prelude, the publishing function, its parts, itself.

    Redis runs the whole text at every call, so it contains only the definitions that the script uses.
    """
    parts = [read(f"{name}.lua") for name in ("prelude", *script.uses, script.name)]
    if "queue" in script.keys:
        parts.insert(1, publish)
    used = set(re.findall(r"[A-Z_]+", "".join(parts)))
    numbers = [number for number in (*Answer, *Constant) if number.name in used]
    names = "".join(f"local {number.name} = {int(number)}\n" for number in numbers)
    return "\n".join((names, *parts[:-1], *script.variables, parts[-1]))


def _variables(names: Sequence[str], ending: str = "") -> list[str]:
    return [name.partition(":")[0] + ending for name in names]


def _values(array: str, names: Sequence[str], before: str = "") -> list[str]:
    kinds = [name.partition(":")[2] for name in names]
    return [_AS_TYPE[kind].format(f"{array}[{before}{at}]") for at, kind in enumerate(kinds, 1)]


def _named(variables: Sequence[str], values: Sequence[str]) -> str:
    return f"local {', '.join(variables)} = {', '.join(values)}" if variables else ""


def _scripts() -> dict[str, Script]:
    """Return the script of each file with a RETURNS comment; the other files are parts of these."""
    scripts = {}
    for file in sorted(files(__package__).iterdir(), key=lambda file: file.name):
        name, _, kind = file.name.partition(".")
        declared = dict(_LABEL.findall(read(file.name))) if kind == "lua" else {}
        if "RETURNS" in declared:
            labels = ("KEYS", "ARGV", "KEYS OF EACH", "ARGV OF EACH", "USES")
            values = (tuple(declared.get(label, "").replace("--", "").split()) for label in labels)
            scripts[name] = Script(name, *values)
    return scripts


SCRIPTS: Final = _scripts()
