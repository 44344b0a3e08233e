"""The user that the servers run as, and what that user can reach."""

from __future__ import annotations

import os
import pwd
import subprocess
from dataclasses import dataclass
from pathlib import Path

from taskbridge.errors import Unavailable

__all__ = ["Account", "reaches", "server_account"]


@dataclass(frozen=True)
class Account:
    """A user that a server runs as, if that is not the user of this process."""

    name: str
    uid: int
    gid: int


def server_account(cluster: Path) -> Account | None:
    """Return the account for the servers: None (this user) unless this is root, as whom PostgreSQL does not run.

    For root it is the owner of the directory `cluster` if that exists and is not root's, else `nobody`.

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
            "PostgreSQL does not run as root, and this machine has no user 'nobody': "
            "run the command as an ordinary user, or set TASKBRIDGE_POSTGRES_URL"
        ) from error
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def reaches(account: Account | None, path: Path) -> bool:
    """Say whether `account` can enter the directory `path`, or run the program `path`."""
    if account is None:
        return True
    asked = ["/bin/sh", "-c", 'test -x "$0" && test -r "$0" || test -d "$0" -a -x "$0"', str(path)]
    return subprocess.run(asked, user=account.uid, group=account.gid, extra_groups=(), check=False).returncode == 0
