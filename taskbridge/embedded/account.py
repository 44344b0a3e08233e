"""The user that the servers run as, and what that user can reach."""

from __future__ import annotations

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

from taskbridge.errors import Unavailable


@dataclass(frozen=True)
class Account:
    """A user that a server runs as, when that is not the user of this process."""

    name: str
    uid: int
    gid: int


def server_account(cluster: Path) -> Account | None:
    """Return the account for the servers: None (this user) unless this is root, whom PostgreSQL refuses.

    For root it is the owner of the directory `cluster` where that exists and is not root's, else `nobody`.

    Raises:
        Unavailable: there is no user `nobody`.
    """
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwuid(cluster.stat().st_uid)
        if entry.pw_uid != 0:
            return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)
    except (FileNotFoundError, KeyError):
        pass
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError as error:
        raise Unavailable(
            "PostgreSQL does not run as root, and this machine has no user 'nobody' to run it as: "
            "run the command as an ordinary user, or set TASKBRIDGE_POSTGRES_URL"
        ) from error
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def can_enter(account: Account, directory: Path) -> bool:
    """Say whether `account` may search `directory` and every parent of it, by their modes."""
    return all(_allows(account, path, stat.S_IXOTH) for path in (directory, *directory.parents))


def can_run(account: Account, program: Path) -> bool:
    """Say whether `account` may read and execute `program`, by its mode and those of its parents."""
    return all(
        can_enter(account, path.parent) and _allows(account, path, stat.S_IROTH | stat.S_IXOTH)
        for path in (program, program.resolve())
    )


def _allows(account: Account, path: Path, wanted: int) -> bool:
    status = path.stat()
    if status.st_uid == account.uid:
        wanted <<= 6
    elif status.st_gid == account.gid:
        wanted <<= 3
    return status.st_mode & wanted == wanted
