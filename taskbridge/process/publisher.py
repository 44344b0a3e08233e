"""Publishes runs through Celery, for a gate whose scripts cannot push the messages themselves."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from functools import cached_property
from threading import BoundedSemaphore, Thread
from typing import TYPE_CHECKING, Any, Final

from taskbridge.gate import Keys, Queue, message
from taskbridge.process.connections import broker_connection

if TYPE_CHECKING:
    from celery import Celery

__all__ = ["BROKER_TIMEOUT", "Publisher"]

log = logging.getLogger(__name__)

BROKER_TIMEOUT: Final = 2.0
"""Seconds that an attempt to publish a run may take."""
BROKER_REST: Final = 1.0
"""Seconds in which nothing is published after a failed attempt, so that many runs do not wait one after the other."""
MOST_AT_ONCE: Final = 8
"""How many runs of events are published at the same time."""
_SOCKET_TIMEOUTS: Final = ("socket_connect_timeout", "socket_timeout")


class Publisher:
    """Publishes the runs of one process on connections of its own.

    Args:
        app: the app whose broker is used.
        keys: the deployment's queues.
        event_timeout: how many seconds an event may wait for its run to be published.
        broker: options of a connection, if it does not lead to the app's own broker.
        runs_by_hand: whether a test does the runs itself, so that Celery must not do them inline.
    """

    def __init__(
        self, app: Celery, keys: Keys, event_timeout: float, broker: Mapping[str, Any], *, runs_by_hand: bool = False
    ) -> None:
        self._app = app
        self._keys = keys
        self._event_timeout = event_timeout
        self._broker = broker
        self._runs_by_hand = runs_by_hand
        self.error: Exception | None = None
        """Why a run could not be published; None: all were published."""
        self._away_until = 0.0
        self._slow_until = 0.0
        self._publishing = BoundedSemaphore(MOST_AT_ONCE)

    def publish(self, queue: Queue, pipeline: str, tenant: str, token: str) -> None:
        """Publish a run.

        If the broker cannot be reached, this is only logged; the run is published again when its deadline passes.
        """
        task, arguments = self._app.tasks[message.RUN_TASK], (pipeline, tenant, token)
        options: dict[str, Any] = {
            "queue": self._keys.queue(queue),
            "argsrepr": message.arguments_text(*arguments),
            "serializer": message.serializer_of(self._app),
        }
        if self._app.conf.task_always_eager:
            # A test that does the runs itself finds them without a message.
            if not self._runs_by_hand:
                task.apply_async(arguments, **options)
            return
        if time.monotonic() < self._away_until:
            return
        ends = time.monotonic() + BROKER_TIMEOUT
        for last in (False, True):
            try:
                with self._producers.acquire(block=True, timeout=BROKER_TIMEOUT) as producer:
                    task.apply_async(arguments, producer=producer, retry=False, **options)
            except Exception as error:
                # An open connection may lead to a server that has been replaced.
                self.close()
                if last or time.monotonic() >= ends:
                    log.warning(
                        "a run of %s is not published: the broker cannot be used (%s); it is retried at its deadline",
                        pipeline,
                        type(error).__name__,
                    )
                    self._away_until = time.monotonic() + BROKER_REST
                    self.error = error
                    return
            else:
                return

    def publish_for_event(self, queue: Queue, pipeline: str, tenant: str, token: str) -> None:
        """Publish a run in a thread, and wait no longer than an event may take.

        After one that took longer, runs within the next second are not waited for: a request may notify several times.
        If too many are in progress, the run is left to its deadline.
        """
        seconds = 0.0 if time.monotonic() < self._slow_until else self._event_timeout
        ends = time.monotonic() + seconds
        if not self._publishing.acquire(timeout=seconds):
            self._slow_until = time.monotonic() + BROKER_REST
            return
        ended: Future[None] = Future()

        def publish() -> None:
            try:
                self.publish(queue, pipeline, tenant, token)
                ended.set_result(None)
            except BaseException as error:
                ended.set_exception(error)
            finally:
                self._publishing.release()

        # The process does not wait for this thread when it exits.
        thread = Thread(target=copy_context().run, args=(publish,), name="taskbridge-publishing", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            # The interpreter is shutting down and starts no threads (since Python 3.12), or the machine has none left.
            publish()
        try:
            ended.result(max(0.0, ends - time.monotonic()))
        except TimeoutError:
            if seconds:
                self._slow_until = time.monotonic() + BROKER_REST

    @property
    def is_connected(self) -> bool:
        """Whether this process has connections for publishing."""
        return "_producers" in vars(self)

    def delete_queues(self) -> None:
        """Delete the queues of runs with their messages, at the end of a test that may have published some."""
        from kombu import Exchange  # noqa: PLC0415 - for tests alone
        from kombu import Queue as KombuQueue  # noqa: PLC0415

        with self._producers.acquire(block=True, timeout=BROKER_TIMEOUT) as producer:
            for name in self._keys.queues:
                queue = KombuQueue(name, Exchange(name), routing_key=name).bind(producer.channel)
                # kombu deletes only what it has declared; the gate's scripts publish without declaring.
                queue.declare()
                queue.delete()

    def close(self) -> None:
        """Close the connections; new ones are opened when needed."""
        producers = vars(self).pop("_producers", None)
        if producers is not None:
            with suppress(Exception):
                producers.force_close_all()
            with suppress(Exception):
                producers.connections.force_close_all()

    @cached_property
    def _producers(self) -> Any:
        """Connections to the broker with a timeout, which those of the app may lack."""
        from kombu.pools import ProducerPool  # noqa: PLC0415 - not needed by producers whose gate publishes

        connection = broker_connection(self._app, write=True, connect_timeout=BROKER_TIMEOUT, **self._broker)
        options = connection.transport_options
        if connection.transport.driver_type == "redis":
            options |= {name: min(options.get(name) or math.inf, BROKER_TIMEOUT) for name in _SOCKET_TIMEOUTS}
        # Otherwise kombu waits for 2 s between two attempts, even if the connection is refused.
        options |= {"max_retries": max(0, len(connection.alt) - 1), "interval_start": 0}
        limit = self._app.conf.broker_pool_limit
        return ProducerPool(connection.Pool(limit), limit=limit, Producer=self._app.amqp.Producer)
