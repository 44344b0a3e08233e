"""The tutorial runs as written: its files are saved, its commands typed, and they print what it says.

TASKBRIDGE_TEST_PYTHON names the Python of another environment, in which a wheel is installed (`make dist`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from taskbridge.embedded import Servers
from taskbridge.testing.servers import open_directory
from tests.docs.pages import Block, blocks
from tests.ending import ended
from tests.waiting import TIME_FACTOR, wait_until

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tutorial" / "first-pipeline.md"
PYTHON = os.environ.get("TASKBRIDGE_TEST_PYTHON", sys.executable)
PROGRAMS = {"taskbridge": "taskbridge.cli.main", "pytest": "pytest", "python": ""}


class Reader:
    """Somebody who does what a page says, in a directory and in shells of their own."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self.directory = directory
        self.environment = environment
        self.exports: dict[str, str] = {}
        self.printed = ""

    def do(self, block: Block, stack: ExitStack) -> None:
        """Save a file, type commands, or compare what they printed."""
        if block.kind == "file":
            (self.directory / block.name).write_text(block.text, encoding="utf-8")
        elif block.kind == "prints":
            # The worker's poller may find a record before its event comes, and a run may be over before the next event.
            printed = self.printed
            printed += printed.replace("absorbed", "started") + printed.replace("delayed", "absorbed")
            assert [line for line in block.text.splitlines() if line not in printed] == [], self.printed
        elif block.kind == "shell" and block.until:
            stack.enter_context(self._staying(block))
        elif block.kind == "shell":
            self._type(block)

    def _type(self, block: Block) -> None:
        """Type commands; what a shell exported it knows in its next block."""
        text = self.exports.get(block.name, "") + block.text
        self.exports[block.name] = "".join(
            line + "\n" for line in text.splitlines() if line.startswith(("export ", "eval "))
        )
        done = ended(["/bin/sh", "-eu", "-c", text], self.environment, self.directory)
        assert done.returncode == 0, done.stdout + done.stderr
        self.printed = done.stdout

    @contextmanager
    def _staying(self, block: Block) -> Iterator[None]:
        log = self.directory / f"{block.name}-shell.log"
        with (
            log.open("wb") as output,
            subprocess.Popen(
                ["/bin/sh", "-eu", "-c", block.text],
                cwd=self.directory,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                process_group=0,
            ) as process,
        ):
            try:
                wait_until(lambda: block.until in log.read_text() or process.poll() is not None, block.until, 60)
                assert process.poll() is None, log.read_text()
                yield
            finally:
                os.killpg(process.pid, signal.SIGINT)  # Ctrl-C
                process.wait(30 * TIME_FACTOR)


@pytest.fixture
def reader(root: Path, servers: Servers) -> Iterator[Reader]:
    """A reader whose PATH has the programs that the page installs."""
    with open_directory() as directory:
        programs, home = directory / "bin", directory / "home"
        programs.mkdir()
        home.mkdir()
        for name, module in PROGRAMS.items():
            how = f"-m {module} " if name == "pytest" else '-c "from taskbridge.cli.main import main; main()" '
            script = programs / name
            script.write_text(f'#!/bin/sh\nexec "{PYTHON}" {how if module else ""}"$@"\n', encoding="utf-8")
            script.chmod(0o755)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TASKBRIDGE_", "PYTEST_"))}
        yield Reader(
            home,
            {
                **kept,
                "PATH": f"{programs}:{os.environ['PATH']}",
                "PYTHONPATH": "" if "TASKBRIDGE_TEST_PYTHON" in os.environ else str(root),
                # A slow machine may need longer to connect than a producer waits.
                "TASKBRIDGE_NOTIFY_TIMEOUT": "10",
                "TASKBRIDGE_TEST_POSTGRES_URL": servers.postgres_url,
                "TASKBRIDGE_TEST_REDIS_URL": servers.redis_url,
            },
        )


@pytest.mark.e2e
@pytest.mark.timeout(400)
def test_the_tutorial_runs_as_written(reader: Reader) -> None:
    with ExitStack() as stack:
        for block in blocks(PAGE):
            reader.do(block, stack)


def test_each_block_of_the_tutorial_is_run_but_the_installation() -> None:
    found = blocks(PAGE)
    assert {block.kind for block in found} == {"file", "shell", "prints", "not run"}
    assert [block.text.split()[:2] for block in found if block.kind == "not run"] == [["pip", "install"]]
