"""The user that runs PostgreSQL, and what that user can access."""

from __future__ import annotations

import os
import pwd
import subprocess
from pathlib import Path
from typing import Any

__all__ = ["Account", "as_user", "reaches", "server_account"]

Account = pwd.struct_passwd
"""A user, other than this process's, that runs a server."""


def server_account(cluster: Path) -> Account | None:
    """Return the account that runs PostgreSQL; None: the user of this process.

    PostgreSQL refuses to run as root. For root, the account is the owner of the directory `cluster` if it exists and is
    not owned by root, otherwise `nobody`.
    """
    if os.geteuid() != 0:
        return None
    owner = cluster.stat().st_uid if cluster.exists() else 0
    return pwd.getpwuid(owner) if owner else pwd.getpwnam("nobody")


def as_user(account: Account | None) -> dict[str, Any]:
    """Return the arguments of `subprocess.Popen` that make a process run as this account."""
    return {} if account is None else {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": ()}


def reaches(account: Account | None, path: Path) -> bool:
    """Whether `account` can enter the directory `path`, or run the program `path`."""
    if account is None:
        return True
    command = ["/bin/sh", "-c", 'test -x "$0" && test -r "$0" || test -d "$0" -a -x "$0"', str(path)]
    return subprocess.run(command, check=False, **as_user(account)).returncode == 0
