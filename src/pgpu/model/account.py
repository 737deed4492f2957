"""Under which account of this machine a job runs, where a server runs it for many users."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Account:
    """A user as the kernel named who asked, and what a process of that user would inherit.

    A job without one is what the process that starts it is, as in the embedded form.
    """

    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    """Supplementary groups."""

    umask: int = 0o022
    limits: tuple[tuple[str, int, int], ...] = ()
    """(Name such as `RLIMIT_NOFILE`, soft, hard); -1 is no limit. Those left out are the server's own."""

    environment: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """All of it: a process inherits nothing of the server's. Left out of every text, since it holds secrets."""
