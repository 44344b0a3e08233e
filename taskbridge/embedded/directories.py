"""Where root keeps what PostgreSQL's user must be able to access, if that user cannot enter the directory it is in."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import tempfile
from importlib.metadata import version
from pathlib import Path

from taskbridge.embedded.account import Account, reaches
from taskbridge.errors import Unavailable

__all__ = ["choose_cluster", "reachable_copy"]

SHARED = Path("/var/lib/taskbridge")


def choose_cluster(data_dir: Path, account: Account | None) -> Path:
    """Return the directory of the cluster of `data_dir`, which may not exist yet. Modes of existing directories stay.

    It is `data_dir`/postgres. If the account cannot enter `data_dir`, for example below /root, that is a link to a
    directory in /var/lib/taskbridge. Its name is random, so a data directory that is deleted and recreated gets a new
    cluster.

    Raises:
        Unavailable: the account has no access to the directory.
    """
    cluster = data_dir / "postgres"
    if not cluster.exists() and not cluster.is_symlink() and not reaches(account, data_dir):
        cluster.symlink_to(SHARED / secrets.token_hex(8))
    cluster = cluster.resolve()
    _make_public(cluster.parent)
    if account is not None and not reaches(account, cluster.parent):
        raise Unavailable(
            f"the user {account.pw_name!r}, who runs PostgreSQL for root, has no access to {cluster.parent}: make it "
            "searchable (chmod o+x), run the command as an ordinary user, or set TASKBRIDGE_POSTGRES_URL"
        )
    return cluster


def reachable_copy(account: Account, installed: Path) -> Path:
    """Return a copy of PostgreSQL's directory in its wheel that `account` can access, made once per version.

    It includes the libraries that the wheel keeps next to its package.

    Raises:
        Unavailable: the account has no access to the copy.
    """
    package, parent = installed.parent, SHARED / "binaries"
    _make_public(SHARED, parent)
    target = parent / f"{package.name}-{version(package.name)}"
    if not target.exists():
        with tempfile.TemporaryDirectory(prefix=".", dir=parent) as building:
            copy = Path(building, target.name)
            ignored = shutil.ignore_patterns("include")
            for source in (installed, package.with_name(f"{package.name}.libs")):
                if source.exists():
                    place = copy / source.relative_to(package.parent)
                    shutil.copytree(source, place, symlinks=True, ignore=ignored)
            subprocess.run(["/bin/chmod", "-R", "a+rX", copy], check=True)
            try:
                copy.rename(target)
            except OSError:
                # Another process has made it first.
                if not target.exists():
                    raise
    found = target / installed.relative_to(package.parent)
    if not reaches(account, found / "bin" / "postgres"):
        raise Unavailable(f"the user {account.pw_name!r}, who runs PostgreSQL for root, has no access to {found}")
    return found


def _make_public(*directories: Path) -> None:
    for directory in directories:
        if not directory.exists():
            directory.mkdir(parents=True, exist_ok=True)
            directory.chmod(0o755)  # regardless of the umask
