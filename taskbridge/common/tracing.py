"""OpenTelemetry's API, if the program has loaded it. It is not imported here, so it costs nothing otherwise.

A span's context is stored as the text of W3C's `traceparent`, and only if its trace is sampled.
"""

from __future__ import annotations

import logging
import re
import sys
from functools import cache
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext, Tracer

__all__ = [
    "MOST_LINKS",
    "SYSTEM",
    "current",
    "end",
    "fail",
    "header",
    "loaded_api",
    "of_request",
    "parsed",
    "report",
    "text_of",
    "tracer",
]

log = logging.getLogger(__name__)

SYSTEM: Final = "taskbridge"
"""The name of the tracer, and the value of `messaging.system` in spans."""
MOST_LINKS: Final = 128
"""Maximum links of one span, which is also the default of SDKs."""

_TRACEPARENT: Final = re.compile(r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_SAMPLED: Final = 1


def loaded_api() -> Any:
    """Return the module `opentelemetry.trace`; None: the program has not loaded it."""
    module = sys.modules.get("opentelemetry.trace")
    # Another thread may be importing it right now.
    return module if hasattr(module, "use_span") else None


def tracer() -> Tracer | None:
    """Return the tracer; None: the program has not loaded OpenTelemetry. Without an SDK it makes no spans either."""
    api = loaded_api()
    return None if api is None else _tracer_of(api)


@cache
def _tracer_of(api: Any) -> Tracer:
    made: Tracer = api.get_tracer(SYSTEM)
    return made


def current() -> str | None:
    """Return the context of the current span; None: there is none, or it is not sampled."""
    api = loaded_api()
    return None if api is None else text_of(api.get_current_span().get_span_context())


def header() -> str | None:
    """Return the `traceparent` header for an outgoing request: that of the current span; None: there is none.

    This includes spans that are not sampled, so that the receiver does not sample either.
    """
    api = loaded_api()
    context = None if api is None else api.get_current_span().get_span_context()
    return _text(context) if context is not None and context.is_valid else None


def of_request(header: str | None) -> str | None:
    """Return the context of a request: that of the current span, or else that of its header `traceparent`."""
    api = loaded_api()
    if api is None:
        return None
    context = api.get_current_span().get_span_context()
    return text_of(parsed(header) if header and not context.is_valid else context)


def text_of(context: SpanContext | None) -> str | None:
    """Return a context as text; None: it is invalid or not sampled."""
    if context is None or not context.is_valid or not context.trace_flags & _SAMPLED:
        return None
    return _text(context)


def _text(context: SpanContext) -> str:
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def parsed(text: str) -> SpanContext | None:
    """Return the context of a `traceparent` of this or a later version; None: it is invalid."""
    api, found = loaded_api(), _TRACEPARENT.fullmatch(text)
    if api is None or found is None or (found[1] == "00" and found[5] is not None):
        return None
    context: SpanContext = api.SpanContext(
        int(found[2], 16), int(found[3], 16), is_remote=True, trace_flags=api.TraceFlags(int(found[4], 16))
    )
    return context if context.is_valid else None


def fail(span: Span, error: BaseException) -> None:
    """Set a span's error status, with the class of the error. Its text may quote a document, so it is left out."""
    try:
        span.set_attribute("error.type", _named(error))
        span.set_status(loaded_api().StatusCode.ERROR, _named(error))
    except Exception as second:
        report(second)


def end(span: Span, ended: int | None = None) -> None:
    """End a span now, or at `ended`, in nanoseconds since the Unix epoch."""
    try:
        span.end(ended)
    except Exception as error:
        report(error)


def report(error: Exception) -> None:
    """Log that a span is missing; the traced work continues."""
    log.warning("a span is missing: OpenTelemetry raised %s", _named(error))


def _named(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
