"""What a job inherits of whoever asked for it, beside the environment: the umask and the resource limits.

The first supervisor has them from the asker itself; one that another process started later takes them on from the
ledger. A server's supervisor stays the server's: the job alone gets the account of whoever asked. This module refuses
to raise a limit above what its process may: it goes as far as it can.
"""

import json
import os
import resource
from collections.abc import Sequence
from pathlib import Path

from pgpu.model import Account

_STATUS = Path("/proc/self/status")
_NAMES = sorted(name for name in dir(resource) if name.startswith("RLIMIT_") and name != "RLIMIT_OFILE")
"""The limits that this machine knows; the one left out is another name of RLIMIT_NOFILE."""


def inheritance() -> str:
    """Return this process's own, as a text for the ledger."""
    return json.dumps({"umask": _umask(), "limits": {name: resource.getrlimit(_number(name)) for name in _NAMES}})


def inheritance_of(account: Account) -> str:
    """Return what a job inherits that runs under this account, as a text for the ledger; without the environment."""
    return json.dumps(
        {
            "umask": account.umask,
            "limits": {name: (soft, hard) for name, soft, hard in account.limits},
            "account": {"uid": account.uid, "gid": account.gid, "groups": account.groups},
        }
    )


def account_of(text: str | None, environment: Sequence[tuple[str, str]]) -> Account | None:
    """Return the account that `inheritance_of` wrote; None where the job is of whoever runs the engine."""
    fields = {} if text is None else json.loads(text)
    if "account" not in fields:
        return None
    named = fields["account"]
    limits = tuple((name, soft, hard) for name, (soft, hard) in fields["limits"].items() if name in _NAMES)
    return Account(named["uid"], named["gid"], tuple(named["groups"]), fields["umask"], limits, tuple(environment))


def take_on(text: str | None) -> None:
    """Give this process what `inheritance` returned elsewhere; does nothing for a job of an older ledger.

    Limits that this process may not raise so far are raised as far as it may.
    """
    if text is None:
        return
    fields = json.loads(text)
    os.umask(fields["umask"])
    for name, (soft, hard) in fields["limits"].items():
        if name in _NAMES and resource.getrlimit(_number(name)) != (soft, hard):
            _limit(_number(name), soft, hard)


def _limit(number: int, soft: int, hard: int) -> None:
    try:
        resource.setrlimit(number, (soft, hard))
    except (ValueError, OSError):
        most = resource.getrlimit(number)[1]
        resource.setrlimit(number, (_smaller(soft, most), _smaller(hard, most)))


def _smaller(first: int, second: int) -> int:
    if resource.RLIM_INFINITY in {first, second}:
        return second if first == resource.RLIM_INFINITY else first
    return min(first, second)


def _number(name: str) -> int:
    return int(getattr(resource, name))


def _umask() -> int:
    """Read it without setting it, which other threads would see. Source: proc_pid_status(5), since Linux 4.7."""
    lines = _STATUS.read_text(encoding="ascii", errors="replace").splitlines()
    return next(int(line.split()[1], 8) for line in lines if line.startswith("Umask:"))
