"""Where the servers' own files are: in the data directory, or elsewhere if their user cannot reach it."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from taskbridge.embedded.account import Account, reaches
from taskbridge.embedded.files import write_private
from taskbridge.errors import Unavailable

__all__ = ["choose_place", "noted_place", "reachable_copy"]

SHARED = Path("/var/lib/taskbridge")
"""For root alone, below directories that the servers' user cannot enter, such as /root."""
_NOTE: Final = "postgres.location"


def noted_place(data_dir: Path) -> Path:
    """Return the directory of the cluster of `data_dir`: the one that a note there names, else `data_dir` itself."""
    try:
        return Path((data_dir / _NOTE).read_text(encoding="utf-8").removesuffix("\n"))
    except FileNotFoundError:
        return data_dir


def choose_place(data_dir: Path, account: Account | None) -> Path:
    """Return the directory for the cluster, made if it is missing; no mode of an existing directory changes.

    It is `data_dir` if the servers' account can enter it, else a new directory below /var/lib/taskbridge, which a note
    in `data_dir` names. Its name is random, so that a data directory that is deleted and made again gets a new cluster.

    Raises:
        Unavailable: the servers' account cannot reach the directory.
    """
    place = noted_place(data_dir)
    if place == data_dir and reaches(account, data_dir):
        return place
    if place == data_dir and (data_dir / "postgres").exists():
        raise Unavailable(
            f"the cluster in {data_dir / 'postgres'} can no longer be reached by the user "
            f"{account.name if account else ''!r}, who runs PostgreSQL for root: make every directory above it "
            "searchable again (chmod o+x)"
        )
    if place == data_dir:
        place = SHARED / secrets.token_hex(8)
        write_private(data_dir / _NOTE, f"{place}\n")
    if account is not None:
        _make_shared(place, account)
    return place


def reachable_copy(account: Account, package: Path, part: str, distribution: str) -> Path:
    """Return a copy of the directory `package`/`part` that `account` can reach, made once per version of its wheel.

    Libraries that the wheel keeps beside its package come with it, at the same distance.
    """
    try:
        number = version(distribution)
    except PackageNotFoundError:
        number = "unknown"
    parent = SHARED / "binaries"
    _make_shared(parent, account)
    target = parent / f"{distribution}-{number}"
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
                # Another process was faster.
                if not target.exists():
                    raise
    return target / package.name / part


def _make_shared(directory: Path, account: Account) -> None:
    for path in (SHARED, directory):
        if not path.exists():
            path.mkdir(parents=True, exist_ok=True)
            path.chmod(0o755)  # whatever the umask
    if not reaches(account, directory):
        raise Unavailable(
            f"{directory} cannot be reached by the user {account.name!r}, who runs PostgreSQL for root: make it "
            "searchable (chmod o+x), run the command as an ordinary user, or set TASKBRIDGE_POSTGRES_URL"
        )
