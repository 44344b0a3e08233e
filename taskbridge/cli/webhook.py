"""`taskbridge webhook`: requests as a provider sends them, to try a receiver, or to bring a lost day again."""

from __future__ import annotations

import json
import os
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import click

from taskbridge.cli import console
from taskbridge.cli.errors import Group
from taskbridge.cli.interrupts import Interrupted
from taskbridge.cli.options import examples, file_type, json_option
from taskbridge.cli.serve import app_named
from taskbridge.errors import ConfigurationError, InvalidInput, Unavailable

if TYPE_CHECKING:
    from taskbridge.web.webhook import Webhook

__all__ = ["webhook"]

SCHEMES: Final = ("standard", "github", "shopify", "slack", "stripe", "hmac")
TIMEOUT: Final = 30.0
"""Seconds for each step of a request."""
LONGEST_REST: Final = 5.0
"""Seconds between two tries of a request."""
LONGEST_WAIT: Final = 60.0
"""Seconds between two tries, where the receiver asks for more."""

Sign = Callable[[str, bytes], dict[str, str]]
"""Makes the headers of a request from the webhook's id and the body."""

_NAMESPACE: Final = uuid.UUID("b44c4a5e-3a53-5d0e-8f5c-0f5f4c7c8e11")


@click.group(
    cls=Group,
    short_help="Send requests as a provider does.",
    epilog=examples("taskbridge webhook send http://localhost:8000/orders order.json --scheme shopify"),
)
def webhook() -> None:
    """Send requests to a receiver of webhooks, signed as a provider signs them."""


def _options(command: Any) -> Any:
    for option in (
        click.option(
            "--scheme",
            type=click.Choice(SCHEMES),
            default="standard",
            show_default=True,
            help="How the request is signed.",
        ),
        click.option(
            "--secret-env",
            default="WEBHOOK_SECRET",
            show_default=True,
            metavar="NAME",
            help="The variable of the environment that holds the secret.",
        ),
        click.option(
            "--header", default="X-Signature", show_default=True, help="The header of the signature, for hmac."
        ),
        click.option(
            "--declared",
            metavar="MODULE:ATTRIBUTE",
            help="The receiver: what it declares for the URL's path signs, with its secret, in place of the former.",
        ),
    ):
        command = option(command)
    return command


@webhook.command(
    short_help="Send one request.",
    epilog=examples("taskbridge webhook send http://localhost:8000/orders order.json --scheme shopify"),
)
@click.argument("url")
@click.argument("file", type=file_type, default=Path("-"))
@click.option("--id", "webhook_id", metavar="ID", help="The webhook's id.  [default: a new one]")
@_options
def send(url: str, file: Path, webhook_id: str | None, **signing: Any) -> None:
    """Send the contents of FILE (`-`: standard input) as one request, and print the answer.

    Exit status: 0 the answer is 2xx; 1 it is another; 2 the file cannot be read.
    """
    sign, _ = _signing(url, **signing)
    try:
        body = sys.stdin.buffer.read() if file == Path("-") else file.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{file} cannot be read ({error.strerror}): pass a file that this user may read") from error
    status, _, answer = _Requests(url).post(body, sign(webhook_id or str(uuid.uuid4()), body))
    click.echo(console.plain(f"{status} {answer.decode(errors='replace')}"))
    if not 200 <= status < 300:
        raise click.exceptions.Exit(1)


@dataclass
class _Replay:
    """How far a file got."""

    line: int = 0
    """The last line that was answered."""
    new: int = 0
    known_before: int = 0
    problems: list[dict[str, Any]] = field(default_factory=list)

    def how_far(self) -> str:
        return f"{self.new + self.known_before} requests were taken; go on with `--from-line {self.line + 1}`"


@webhook.command(
    short_help="Send each line of a file.",
    epilog=examples("taskbridge webhook replay http://localhost:8000/orders lost-day.jsonl --from-line 4711"),
)
@click.argument("url")
@click.argument("file", type=file_type)
@click.option(
    "--from-line", type=click.IntRange(1), default=1, show_default=True, metavar="N", help="Begin at this line."
)
@click.option("--id", "id_path", metavar="JSONPATH", help="Where a line has the provider's id of the webhook.")
@click.option(
    "--body", "body_path", metavar="JSONPATH", help="Where a line has the body; text is sent as it is.  [default: all]"
)
@click.option("--anyway", is_flag=True, help="Send although no version keeps an old line from a newer record.")
@_options
@json_option
def replay(
    url: str,
    file: Path,
    from_line: int,
    id_path: str | None,
    body_path: str | None,
    anyway: bool,
    as_json: bool,
    **signing: Any,
) -> None:
    """Send each line of FILE, the JSON of one request, in their order.

    An old line overwrites what a newer webhook brought, unless the receiver has a version for the record, or knows the
    webhook: the same id, and where nobody signs the id the same body to the byte. Without --id the id is made of the
    line, so that who sends the file again changes nothing. With --declared, a webhook without a version is refused.

    A receiver that is away, fails, or asks to wait, is tried again until it answers. A line that it refuses is listed
    by its number; the others go on.

    Exit status: 0 all was taken; 1 some lines were not, or the command was ended; 2 the file cannot be read.
    """
    from taskbridge.cli import json_lines

    sign, declared = _signing(url, **signing)
    if declared is not None and declared.version is None and not anyway:
        raise ConfigurationError(
            f"the webhook {declared.source!r} has no version, so an old line would overwrite what came later: declare "
            "one, or say --anyway"
        )
    request_of = _request_of(id_path, body_path)
    requests, far = _Requests(url), _Replay()
    with json_lines.messages(file) as lines, console.progress(of=True) as progress:
        task = progress.add_task("sending", total=None)
        try:
            for line in lines:
                if line.number >= from_line:
                    _send_line(requests, sign, request_of, line, far)
                    progress.update(task, completed=far.new + far.known_before)
        except Interrupted:
            console.tell(far.how_far())
            raise
    _show(far, as_json=as_json)
    if far.problems:
        raise click.exceptions.Exit(1)


def _request_of(id_path: str | None, body_path: str | None) -> Callable[[Any], tuple[str, bytes]]:
    """Return what finds id and body of a request in a line; it raises InvalidInput where the line has none."""
    from taskbridge.web.webhook import Request, finder, text_of

    ids = None if id_path is None else finder("id", id_path)
    bodies = finder("body", body_path or "$")

    def found(payload: Any) -> tuple[str, bytes]:
        line = Request({}, b"", payload)
        body = bodies(line)
        text = body if isinstance(body, str) else json.dumps(body, ensure_ascii=False, separators=(",", ":"))
        raw = text.encode(errors="surrogatepass")
        return text_of("id", ids(line)) if ids else str(uuid.uuid5(_NAMESPACE, raw.decode(errors="replace"))), raw

    return found


def _send_line(
    requests: _Requests, sign: Sign, request_of: Callable[[Any], tuple[str, bytes]], line: Any, far: _Replay
) -> None:
    why = line.fault
    try:
        webhook_id, body = ("", b"") if why else request_of(line.payload)
    except InvalidInput as error:
        why = str(error)
    if not why:
        status, answer = _answered(requests, sign, webhook_id, body)
        said = _of_json(answer)
        if 200 <= status < 300 and "unmatched" not in said:
            is_known = said.get("new") is False
            far.new, far.known_before = far.new + (not is_known), far.known_before + is_known
        else:
            why = f"{status}: {said.get('error') or said.get('unmatched') or answer[:200].decode(errors='replace')}"
    if why:
        far.problems.append({"line": line.number, "text": why})
        if len(far.problems) <= console.SHOWN_PROBLEMS:
            console.tell(f"line {line.number}: {why}")
    far.line = line.number


def _answered(requests: _Requests, sign: Sign, webhook_id: str, body: bytes) -> tuple[int, bytes]:
    """Send a request until the receiver answers and neither fails nor asks to wait."""
    from taskbridge.declaring.batch import RetryAfter

    rest = 0.5
    while True:
        asked = rest
        try:
            status, headers, answer = requests.post(body, sign(webhook_id, body))
            if status not in (408, 429) and status < 500:
                return status, answer
            if "retry-after" in headers:
                asked = min(LONGEST_WAIT, RetryAfter(headers["retry-after"]).seconds)
        except Unavailable:
            pass
        time.sleep(asked)
        rest = min(rest * 2, LONGEST_REST)


def _of_json(answer: bytes) -> dict[str, Any]:
    try:
        found = json.loads(answer)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _show(far: _Replay, *, as_json: bool) -> None:
    counts = {"new": far.new, "known_before": far.known_before, "problems": len(far.problems)}
    if as_json:
        console.emit_json({**counts, "problem_lines": far.problems})
        return
    if len(far.problems) > console.SHOWN_PROBLEMS:
        console.tell(f"... and {len(far.problems) - console.SHOWN_PROBLEMS:,} more (--json lists all)")
    console.show_counts(counts, [*counts])


def _signing(url: str, scheme: str, secret_env: str, header: str, declared: str | None) -> tuple[Sign, Webhook | None]:
    """Return what signs requests to a URL, and the declaration that says so, if one was named."""
    from taskbridge.web import signatures

    if declared is not None:
        webhook = _declared(declared, url)
        signer = webhook.signature
        if not isinstance(signer, signatures.Signer):
            raise ConfigurationError(f"the webhook {webhook.source!r} is signed in a way of its own: use --scheme")
        named = webhook.delivery if isinstance(webhook.delivery, str) and webhook.delivery[:1] != "$" else None
        return (
            lambda webhook_id, body: signer.sign(webhook_id, body, time.time()) | ({named: webhook_id} if named else {})
        ), webhook
    secret = os.environ.get(secret_env, "")
    if not secret:
        raise ConfigurationError(f"the variable {secret_env} is not set: it holds the secret of the webhook")
    kinds: dict[str, Callable[[str], signatures.Signer]] = {
        "standard": signatures.StandardWebhooks,
        "github": signatures.GitHub,
        "shopify": signatures.Shopify,
        "slack": signatures.Slack,
        "stripe": signatures.Stripe,
        "hmac": lambda secret: signatures.Hmac(secret, header=header),
    }
    made = kinds[scheme](secret)
    return (lambda webhook_id, body: made.sign(webhook_id, body, time.time())), None


def _declared(target: str, url: str) -> Webhook:
    webhooks: list[Webhook] | None = getattr(getattr(app_named(target), "state", None), "webhooks", None)
    if webhooks is None:
        raise ConfigurationError(f"{target} is not what `taskbridge.web.receiver` returned: name that")
    path = urlsplit(url).path
    found = [one for one in webhooks if path.endswith(one.route)]
    if not found:
        raise ConfigurationError(f"no webhook of {target} has the path of {url}: correct one of them")
    return max(found, key=lambda one: len(one.route))


class _Requests:
    """Requests over a connection that is kept."""

    def __init__(self, url: str) -> None:
        import httpcore2

        if not url.startswith(("http://", "https://")):
            raise click.UsageError(f"{url!r} begins with neither http:// nor https://")
        self._url = url
        self._pool = httpcore2.ConnectionPool()
        self._errors = (httpcore2.NetworkError, httpcore2.TimeoutException, httpcore2.ProtocolError)

    def post(self, body: bytes, headers: dict[str, str]) -> tuple[int, dict[str, str], bytes]:
        """Send one request; return the answer's status, headers and body.

        Raises:
            Unavailable: there is no answer.
        """
        times = dict.fromkeys(("connect", "read", "write", "pool"), TIMEOUT)
        sent = [("content-type", "application/json"), *headers.items()]
        try:
            answer = self._pool.request("POST", self._url, headers=sent, content=body, extensions={"timeout": times})
        except self._errors as error:
            raise Unavailable(f"{self._url} does not answer ({type(error).__name__}): start the receiver") from error
        found = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in answer.headers}
        return answer.status, found, answer.content
