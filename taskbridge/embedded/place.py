"""Where the servers' own files are: in the data directory, or elsewhere if their user cannot reach them there."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from taskbridge.embedded.account import Account, can_enter
from taskbridge.embedded.files import write_private
from taskbridge.errors import Unavailable

SHARED = Path("/var/lib/taskbridge")

_NOTE = "postgres.location"


def noted_place(data_dir: Path) -> Path:
    """Return the directory of the cluster of `data_dir`: the one that a note there names, else `data_dir` itself."""
    try:
        return Path((data_dir / _NOTE).read_text(encoding="utf-8").removesuffix("\n"))
    except FileNotFoundError:
        return data_dir


def choose_place(data_dir: Path, account: Account | None) -> Path:
    """Return the directory for the cluster, made where it is missing.

    It is `data_dir` if the servers' account can enter it; else a new directory under /var/lib/taskbridge, which a note
    in `data_dir` names. Its name is random, so that a data directory that was deleted and made again gets a new
    cluster. No mode of an existing directory changes.

    Raises:
        Unavailable: the servers' account cannot reach the directory.
    """
    place = noted_place(data_dir)
    if place == data_dir and (account is None or can_enter(account, data_dir)):
        return place
    if place == data_dir:
        if (data_dir / "postgres").exists():
            raise Unavailable(
                f"the cluster in {data_dir / 'postgres'} can no longer be reached by the user {account_name(account)}, "
                "who runs PostgreSQL for root: make every directory above it searchable again (chmod o+x)"
            )
        place = SHARED / secrets.token_hex(8)
        write_private(data_dir / _NOTE, f"{place}\n")
    if account is not None:
        _make_shared(place, account)
        write_private(place / "owner", f"PostgreSQL cluster of the TaskBridge data directory {data_dir}\n")
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
    wanted = target / package.name / part
    if wanted.exists():
        return wanted
    building = Path(tempfile.mkdtemp(prefix=".", dir=parent))
    try:
        copy = building / target.name
        libraries = f"{package.name}.libs"
        for name in (f"{package.name}/{part}", libraries):
            source = package.parent / name
            if name != libraries or source.exists():
                shutil.copytree(source, copy / name, symlinks=True, ignore=shutil.ignore_patterns("include"))
        _open_to_all(copy)
        try:
            copy.rename(target)
        except OSError:
            if not target.exists():
                raise
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return wanted


def account_name(account: Account | None) -> str:
    """Return the name to use in a message."""
    return "of this process" if account is None else repr(account.name)


def _make_shared(directory: Path, account: Account) -> None:
    for path in (SHARED, directory):
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            continue
        path.chmod(0o755)  # made just now, so it is ours to open, whatever the umask
    if not can_enter(account, directory):
        raise Unavailable(
            f"{directory} cannot be reached by the user {account.name!r}, who runs PostgreSQL for root: make it "
            "searchable (chmod o+x), run the command as an ordinary user, or set TASKBRIDGE_POSTGRES_URL"
        )


def _open_to_all(tree: Path) -> None:
    for directory, _, files in os.walk(tree):
        Path(directory).chmod(0o755)
        for name in files:
            path = Path(directory, name)
            if not path.is_symlink():
                path.chmod(0o755 if path.stat().st_mode & 0o100 else 0o644)
