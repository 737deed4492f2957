"""Who asks for a job, and what the job has of them: the user, the environment, the umask and the limits.

In the embedded form it is this very process; a server is told by its client, and believes the user id of the kernel
alone. This module refuses to say what an asker may.
"""

import os
from dataclasses import dataclass

from pgpu.engine.submission.inheritance import account_of, inheritance
from pgpu.model import Account


@dataclass(frozen=True, slots=True)
class Submitter:
    """What a job has of whoever asked for it."""

    uid: int
    environment: tuple[tuple[str, str], ...]
    inherited: str | None
    """As `inheritance` or `inheritance_of` writes it; None for what this process has."""

    @property
    def account(self) -> Account | None:
        """Under which account their jobs run; None for that of whoever runs the engine."""
        return account_of(self.inherited, self.environment)


def this_process() -> Submitter:
    """Return this process as an asker."""
    return Submitter(os.getuid(), tuple(os.environ.items()), inheritance())
