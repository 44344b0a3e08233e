"""`manage.py taskbridge ...`: run the program `taskbridge` with the project's settings."""

from __future__ import annotations

import os
from argparse import REMAINDER
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from taskbridge.django.configuration import variables
from taskbridge.errors import TaskBridgeError
from taskbridge.settings import PREFIX

if TYPE_CHECKING:
    import click

__all__ = ["Command"]


class Command(BaseCommand):
    """Passes the whole command line to the program, without Django's own options."""

    help = "Run the program `taskbridge` with this project's settings; see `manage.py taskbridge --help`."
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the program and exit with its status."""
        from taskbridge.cli.main import cli, main  # noqa: PLC0415 - not needed for the help of manage.py

        self._enter()
        _adapt_examples(cli)
        main(argv[2:], f"{Path(argv[0]).name} taskbridge")

    def add_arguments(self, parser: CommandParser) -> None:
        """Accept the arguments of `call_command`."""
        parser.add_argument("arguments", nargs=REMAINDER)

    def handle(self, *_: Any, arguments: Sequence[str], **__: Any) -> None:
        """Run the program for `call_command("taskbridge", "migrate")`.

        Raises:
            CommandError: it failed; the error has been written to stderr.
        """
        from taskbridge.cli.main import cli  # noqa: PLC0415 - as above

        before = set(os.environ)
        self._enter()
        try:
            cli.main(list(arguments), prog_name="taskbridge", standalone_mode=True)
        except SystemExit as ended:
            if ended.code:
                raise CommandError(f"taskbridge {' '.join(arguments)} failed", returncode=int(ended.code)) from None
        finally:
            # The process continues, maybe with another database, and the environment would override Django's settings.
            for name in [one for one in set(os.environ) - before if one.startswith(PREFIX)]:
                del os.environ[name]

    def _enter(self) -> None:
        """Pass the settings to child processes, such as the workers of `up`."""
        # The program itself reports settings that cannot be read.
        with suppress(TaskBridgeError):
            for name, text in variables().items():
                os.environ.setdefault(name, text)


def _adapt_examples(command: click.Command) -> None:
    """Let the examples in the help of a command, and of those below it, be what one types in this project."""
    command.epilog = (command.epilog or "").replace("taskbridge ", "manage.py taskbridge ")
    for each in getattr(command, "commands", {}).values():
        _adapt_examples(each)
