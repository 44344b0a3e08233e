"""Every statement of SQL is a named block of a `.sql` file, with a comment that says what it is for.

`BEGIN`, `COMMIT` and `SET` are blocks as well. Only expressions over the columns of an adopted table are made in
Python, since there are as many as a table has columns.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PACKAGE: Final = Path(__file__).resolve().parents[2] / "taskbridge"
VERBS: Final = (
    "ALTER|ANALYZE|BEGIN|CALL|CHECKPOINT|COMMENT|COMMIT|COPY|CREATE|DEALLOCATE|DECLARE|DELETE|DO|DROP|EXECUTE|EXPLAIN|"
    "FETCH|GRANT|INSERT|LISTEN|LOCK|MERGE|NOTIFY|PREPARE|REINDEX|RELEASE|RESET|REVOKE|ROLLBACK|SAVEPOINT|SELECT|SET|SHOW|"
    "START TRANSACTION|TRUNCATE|UNLISTEN|UPDATE|VACUUM|VALUES|WITH"
)
STATEMENT: Final = re.compile(rf"(?:^|[;(])\s*(?:{VERBS})(?:\s|;|$)")
"""How a statement begins, alone, after another one, or inside of one. The words of messages for people are small."""
FILES: Final = sorted(PACKAGE.rglob("*.sql"))


def _literals(tree: ast.Module) -> Iterator[ast.Constant]:
    """Return the texts of a module that are no docstrings, with the pieces of those that have places."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str | bytes) and id(node) not in docstrings:
            yield node


def _text(literal: ast.Constant) -> str:
    value = literal.value
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)


def test_no_statement_is_written_in_python() -> None:
    modules = sorted(PACKAGE.rglob("*.py"))
    assert modules

    found = [
        f"{path.relative_to(PACKAGE.parent)}:{one.lineno}: {_text(one)}"
        for path in modules
        for one in _literals(ast.parse(path.read_text(encoding="utf-8")))
        if STATEMENT.search(_text(one))
    ]

    assert not found, "write each into a block of a .sql file, which says what it is for:\n" + "\n".join(found)


def _blocks() -> dict[str, str]:
    """Return each block with its comments."""
    found: dict[str, str] = {}
    for path in FILES:
        _, *parts = re.split(r"^-- name: (\w+)\n", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        found |= zip(parts[::2], parts[1::2], strict=True)
    return found


def test_no_block_is_there_that_nobody_uses() -> None:
    named = {
        _text(one) for path in PACKAGE.rglob("*.py") for one in _literals(ast.parse(path.read_text(encoding="utf-8")))
    }
    placed = {name for text in _blocks().values() for name in re.findall(r"\{(\w+)\}", text)}

    assert not _blocks().keys() - named - placed
