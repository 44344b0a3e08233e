"""Questions to workers by Celery's remote control, whatever serializer their app has chosen.

A worker answers with the serializer of its own app, which may be pickle while ours takes JSON. Such an answer is read
as plain values alone: an import in it, as each attack by pickle needs, is refused.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from io import BytesIO
from typing import Any, Final

from celery import Celery
from celery.app.control import Control
from kombu import Consumer
from kombu.exceptions import DecodeError
from kombu.pidbox import Mailbox
from kombu.serialization import prepare_accept_content

__all__ = ["ask"]

PICKLE: Final = "application/x-python-serialize"
PLAIN: Final = frozenset({"application/json", "application/x-yaml", "application/x-msgpack"})
"""Types whose decoders in kombu make plain values alone."""


def ask(app: Celery, command: str, workers: Sequence[str] | None = None, *, seconds: float) -> dict[str, Any]:
    """Return the answers of workers by their names.

    Args:
        app: the app whose broker is used.
        command: the name of a command of remote control.
        workers: who is asked; None for all. It is over once these have answered.
        seconds: how long an answer is waited for.

    Raises:
        KombuError: the broker cannot be used, or an answer cannot be read.
    """
    bounds = {} if workers is None else {"destination": [*workers], "limit": len(workers)}
    control: Any = _Control(app)
    answers: list[Any] = control.broadcast(command, reply=True, timeout=seconds, **bounds) or []
    return {worker: found for answer in answers if isinstance(answer, dict) for worker, found in answer.items()}


# Not the one in C: it keeps values in an array, and a few bytes of an answer can name a place that makes it 1 GB long.
class _Plain(pickle._Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "Counter"):
            # In the answer to `stats`; a dictionary is as good.
            return dict
        raise pickle.UnpicklingError(f"the answer is no plain value: it needs {module}.{name}")


class _Mailbox(Mailbox):
    """kombu's mailbox, which reads answers in more types than the app accepts."""

    def _collect(
        self,
        ticket: str,
        limit: int | None = None,
        timeout: float | None = 1,
        callback: Callable[..., Any] | None = None,  # noqa: ARG002 - kombu's
        channel: Any = None,
        accept: Sequence[str] | None = None,  # noqa: ARG002 - kombu's
    ) -> list[Any]:
        mailbox: Any = self
        answers: list[Any] = []
        accepted = PLAIN | set(prepare_accept_content(mailbox.accept) or ())

        def keep(message: Any) -> None:
            if message.headers.get("ticket", ticket) == ticket:
                answers.append(_read(message, accepted))

        chosen = channel or mailbox.connection.default_channel
        try:
            with Consumer(chosen, [mailbox.reply_queue], on_message=keep, no_ack=True):
                while limit is None or len(answers) < limit:
                    try:
                        mailbox.connection.drain_events(timeout=timeout)
                    except TimeoutError:
                        break
        finally:
            chosen.after_reply_message_received(mailbox.reply_queue.name)
        return answers


class _Control(Control):
    Mailbox = _Mailbox


def _read(message: Any, accepted: set[str] | frozenset[str]) -> Any:
    if message.content_type != PICKLE:
        message.accept = accepted
        return message.decode()
    try:
        return _Plain(BytesIO(message.body)).load()
    except Exception as error:
        raise DecodeError(str(error)) from error
