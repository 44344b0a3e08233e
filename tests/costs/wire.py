"""A relay before the real Postgres that reads the protocol and counts what goes over the wire.

Round trips cannot be told from the times at which bytes pass, so what counts is where the client asks for an answer: a
simple query, a Sync, or a Flush that follows something to be answered. (Of a pipeline's statements none is answered
before one of these.) What the server did is counted from its answers: one for each statement, BEGIN and COMMIT too.
"""

from __future__ import annotations

import re
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, Final

from sqlalchemy import Engine, inspect

Seen = Callable[[bytes, bytes], None]

SIMPLE_QUERY, SYNC, FLUSH = b"Q", b"S", b"H"
COMMAND_COMPLETE, EMPTY_QUERY, ERROR, NOTICE = b"C", b"I", b"E", b"N"

# Each transaction that changed a row says, as it commits, whether it waits for the disk; the relay reads the notice.
TELL: Final = """
CREATE FUNCTION tell_commit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE NOTICE USING MESSAGE = concat_ws(' ', 'commits', pg_current_xact_id(), current_setting('synchronous_commit'));
    RETURN NULL;
END $$
"""
TELL_OF: Final = """
CREATE CONSTRAINT TRIGGER tell_commit AFTER INSERT OR UPDATE OR DELETE ON taskbridge.{table}
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION tell_commit()
"""


def tell_commits(engine: Engine) -> None:
    """Let each transaction that changes a row say how it commits."""
    with engine.begin() as connection:
        connection.exec_driver_sql(TELL)
        for table in inspect(connection).get_table_names("taskbridge"):
            # A partition gets it with its table.
            if table.startswith("runs_"):
                continue
            connection.exec_driver_sql(TELL_OF.format(table=table))


class Wire:
    """What went over: round trips, the tag of each statement, and `synchronous_commit` by transaction."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.round_trips = 0
        self.statements: list[str] = []
        self.commits: dict[str, str] = {}

    def client(self) -> Seen:
        """Return what counts the messages of one client."""
        unanswered = False

        def seen(kind: bytes, _: bytes) -> None:
            nonlocal unanswered
            asks = kind in (SIMPLE_QUERY, SYNC) or (kind == FLUSH and unanswered)
            self.round_trips += asks
            unanswered = kind not in (SIMPLE_QUERY, SYNC, FLUSH)

        return seen

    def server(self, kind: bytes, body: bytes) -> None:
        """Count one message of the server."""
        if kind == COMMAND_COMPLETE:
            self.statements.append(body.rstrip(b"\0").decode())
        elif kind in (EMPTY_QUERY, ERROR):
            self.statements.append("nothing" if kind == EMPTY_QUERY else "error")
        elif kind == NOTICE and (found := re.search(rb"\0Mcommits (\d+) (\w+)\0", body)):
            self.commits[found[1].decode()] = found[2].decode()


@contextmanager
def relay(host: str, port: int, wire: Wire) -> Iterator[int]:
    """Relay connections to a server, counting in `wire`; give the port to connect to."""

    class Relay(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            client: socket.socket = self.request
            with socket.create_connection((host, port)) as server:
                for end in (client, server):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                back = threading.Thread(target=_pump, args=(server, client, wire.server))
                back.start()
                _pump(client, server, wire.client(), starts=True)
                back.join()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Relay) as listener:
        thread = threading.Thread(target=listener.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield listener.server_address[1]
        finally:
            listener.shutdown()
            thread.join()


def _pump(source: socket.socket, target: socket.socket, seen: Seen, *, starts: bool = False) -> None:
    """Pass on message by message until one end closes; a client's first message has no type."""
    with suppress(OSError), source.makefile("rb") as stream:
        while message := _next(stream, typed=not starts):
            starts = False
            kind, body = message
            seen(kind, body)
            target.sendall(kind + (len(body) + 4).to_bytes(4, "big") + body)
    with suppress(OSError):
        target.shutdown(socket.SHUT_WR)


def _next(stream: BinaryIO, *, typed: bool) -> tuple[bytes, bytes] | None:
    kind = stream.read(1) if typed else b""
    length = stream.read(4)
    return (kind, stream.read(int.from_bytes(length, "big") - 4)) if len(length) == 4 else None
