"""Certificates for servers of tests, which expire within a day, and TLS before a server that has none."""

from __future__ import annotations

import select
import socket
import ssl
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.transactions.black_hole import BlackHole

__all__ = ["Encrypted", "certificate"]


def certificate(name: str, path: Path) -> ssl.SSLContext:
    """Write a certificate for a name and 127.0.0.1, with its key; the context of a server that has it."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    names = [x509.DNSName(name), x509.IPAddress(ip_address("127.0.0.1"))]
    now = datetime.now(UTC)
    # digital_signature and key_cert_sign
    usage = x509.KeyUsage(True, False, False, False, False, True, False, False, False)
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    written = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    path.write_bytes(written + made.public_bytes(pem))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path)
    return context


class Encrypted(BlackHole):
    """An address before a server that takes connections with TLS, and without it if it `takes_plain` ones.

    `addresses`: those from which the server sees the connections with TLS.
    """

    def __init__(self, url: str, context: ssl.SSLContext, *, takes_plain: bool = False) -> None:
        self._context, self._takes_plain = context, takes_plain
        self.addresses: set[str] = set()
        super().__init__(url)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        # One thread for both directions: a connection with TLS is not to be used by two at once.
        # A socket that `close` has closed has no descriptor to select.
        with suppress(OSError, ValueError), near, socket.create_connection(self._target) as far:
            if near.recv(1, socket.MSG_PEEK) == b"\x16" or not self._takes_plain:
                self.addresses.add("{}:{}".format(*far.getsockname()))
                near = self._context.wrap_socket(near, server_side=True)
            self._sockets += [near, far]
            while True:
                is_buffered = isinstance(near, ssl.SSLSocket) and near.pending()
                for source in [near] if is_buffered else select.select([near, far], [], [])[0]:
                    data = source.recv(65_536)
                    if not data:
                        return
                    (far if source is near else near).sendall(data)
