"""The user that a job is submitted for, and what the job inherits: environment, umask and resource limits.

In the embedded form that is this process. A server takes environment and umask from its client and the user id from the
kernel alone. The ledger keeps all of it until the job has ended, since an agent starts the job.
"""

import json
import os
import resource
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from pgpu.model import Account, ProcessHolder
from pgpu.structs import Struct, to_builtins

_STATUS = Path("/proc/self/status")
_NAMES = sorted(name for name in dir(resource) if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE")
"""Resource limits of this machine; RLIMIT_OFILE is another name of RLIMIT_NOFILE."""


class Submitter(Struct, frozen=True):
    """A user, and what their jobs inherit."""

    uid: int
    environment: tuple[tuple[str, str], ...]
    inherited: str | None
    """Written by `inheritance` or `inheritance_of`; None for this process's own."""

    @property
    def account(self) -> Account | None:
        """The account under which the jobs run; None for that of the process that runs the engine."""
        return account_of(self.inherited, self.environment)


def this_process() -> Submitter:
    """Return this process's user; jobs inherit from this process."""
    return Submitter(os.getuid(), tuple(os.environ.items()), inheritance())


def inheritance(starter: ProcessHolder | None = None) -> str:
    """Return this process's umask and limits as text for the ledger, with the starter as of `Account.starter`."""
    limits = {name: resource.getrlimit(getattr(resource, name)) for name in _NAMES}
    # Not os.umask(), which changes it for other threads. Source: proc_pid_status(5), since Linux 4.7.
    lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    umask = next(int(line.split()[1], 8) for line in lines if line.startswith("Umask:"))
    named = {} if starter is None else {"starter": to_builtins(starter)}
    return json.dumps({"umask": umask, "limits": limits, **named})


def inheritance_of(account: Account) -> str:
    """Return what a job under an account inherits as text for the ledger; without the environment."""
    return json.dumps(
        {
            "umask": account.umask,
            "limits": {name: (soft, hard) for name, soft, hard in account.limits},
            "account": {"uid": account.uid, "gid": account.gid, "groups": account.groups},
        }
    )


def account_of(text: str | None, environment: Sequence[tuple[str, str]]) -> Account | None:
    """Return the account that `inheritance_of` wrote; None where the job runs as the engine's own user."""
    fields = {} if text is None else _fields_of(text)
    if "account" not in fields:
        return None
    named = fields["account"]
    return Account(
        named["uid"], named["gid"], tuple(named["groups"]), fields["umask"], _limits_of(fields), tuple(environment)
    )


def own_account(text: str | None, environment: Sequence[tuple[str, str]]) -> Account | None:
    """Return this process's user with what `inheritance` returned in another process; None in ledgers of older versions.

    Limits that this process has itself are left out.
    """
    if text is None:
        return None
    fields = _fields_of(text)
    limits = tuple(each for each in _limits_of(fields) if resource.getrlimit(getattr(resource, each[0])) != each[1:])
    starter = ProcessHolder(**fields["starter"]) if "starter" in fields else None
    groups = tuple(os.getgroups())
    return Account(os.geteuid(), os.getegid(), groups, fields["umask"], limits, tuple(environment), starter)


@lru_cache(maxsize=64)
def _fields_of(text: str) -> dict[str, Any]:
    # Cached, since the jobs of an array have one text; not to be changed.
    fields: dict[str, Any] = json.loads(text)
    return fields


def _limits_of(fields: dict[str, Any]) -> tuple[tuple[str, int, int], ...]:
    # Another version of pgpu, or kernel, may have written limits that this machine does not know.
    return tuple((name, soft, hard) for name, (soft, hard) in fields["limits"].items() if name in _NAMES)
