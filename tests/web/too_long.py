"""A body that is longer than is taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import httpx2

__all__ = ["assert_refused_while_it_comes"]


def assert_refused_while_it_comes(url: str, headers: Mapping[str, str], *, chunked: bool) -> None:
    """See that `url` refuses a body as soon as it is too long; `chunked`: its length is not said before."""
    sent = 0

    def parts() -> Iterator[bytes]:
        nonlocal sent
        for _ in range(2_000):
            sent += 65_536
            yield b" " * 65_536

    content: Any = parts() if chunked else b" " * 1_048_577
    try:
        answer = httpx2.post(url, content=content, headers=headers, timeout=60)
        assert answer.status_code == 413
    except (httpx2.WriteError, httpx2.ReadError):
        # The connection was closed before all was sent.
        assert chunked
    assert sent < 100_000_000
