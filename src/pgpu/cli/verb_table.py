"""The table of verbs: where each is defined, and how it is listed.

Every verb imports what it needs when it runs: `pgpu version` loads no tables, SQLite or NVML.
"""

import importlib
from collections.abc import Mapping
from typing import Any

from pgpu.cli.option_table import Verb
from pgpu.structs import Struct

COMMANDS, QUEUE, LEARNING, FUNCTIONS, SERVING, CLUSTER, LAB, ADMIN = (
    "Commands",
    "Queue",
    "Learning and advice",
    "Functions",
    "Serving",
    "Cluster",
    "Lab",
    "Admin",
)


class CommandEntry(Struct, frozen=True):
    """Where a command is defined, and how it is listed."""

    target: str
    """`module:attribute` below `pgpu.cli.verbs`: a `Verb`, a function for Typer, or a `typer.Typer`; empty for a group."""

    section: str | None = COMMANDS
    """Title in the help of its group; None for a hidden alias."""

    takes_command: bool = False
    """Whether a job's command follows: options after its first word are then the job's own."""

    entries: "Mapping[str, CommandEntry] | None" = None
    """The commands of a group that has no module of its own."""

    help: str | None = None
    """Likewise the group's own line."""

    def load(self) -> Any:
        """Import the module and return the attribute."""
        module, _, attribute = self.target.partition(":")
        return getattr(importlib.import_module(f"pgpu.cli.verbs.{module}"), attribute)

    def verb(self) -> Verb | None:
        """Import the module and return the verb; None for what only Typer reads."""
        target = None if self.entries is not None else self.load()
        return target if isinstance(target, Verb) else None


FUNCTION_VERBS = {
    "deploy": CommandEntry("function_versions:deploy"),
    "ls": CommandEntry("function_versions:functions"),
    "invoke": CommandEntry("function_calls:invoke"),
    "logs": CommandEntry("jobs:logs_of_function"),
    "rollout": CommandEntry("function_versions:rollout"),
    "rollback": CommandEntry("function_versions:rollback"),
    "undeploy": CommandEntry("function_versions:undeploy"),
    "token": CommandEntry("function_versions:token"),
    "dev": CommandEntry("function_calls:dev"),
}

SECRET_VERBS = {
    "set": CommandEntry("secrets:set_secret"),
    "ls": CommandEntry("secrets:secrets"),
    "rm": CommandEntry("secrets:remove_secret"),
}

VERBS = {
    "run": CommandEntry("run:run", takes_command=True),
    "submit": CommandEntry("run:submit", takes_command=True),
    "ps": CommandEntry("jobs:ps"),
    "logs": CommandEntry("jobs:logs"),
    "stop": CommandEntry("jobs:stop"),
    "top": CommandEntry("machine:top"),
    "gpus": CommandEntry("machine:gpus"),
    "doctor": CommandEntry("machine:doctor"),
    "queue": CommandEntry("jobs:queue", QUEUE),
    "cancel": CommandEntry("jobs:cancel", QUEUE),
    "wait": CommandEntry("jobs:wait", QUEUE),
    "hold": CommandEntry("jobs:hold", QUEUE),
    "release": CommandEntry("jobs:release", QUEUE),
    "resize": CommandEntry("jobs:resize", QUEUE),
    "usage": CommandEntry("accounting:usage", QUEUE),
    "history": CommandEntry("learning:history", LEARNING),
    "waste": CommandEntry("learning:waste", LEARNING),
    "profile": CommandEntry("learning:profile", LEARNING, takes_command=True),
    "advise": CommandEntry("learning:advise", LEARNING),
    "calibrate": CommandEntry("learning:calibrate", LEARNING),
    "function": CommandEntry("", FUNCTIONS, entries=FUNCTION_VERBS, help="Deploy, call and manage functions."),
    "secret": CommandEntry("", FUNCTIONS, entries=SECRET_VERBS, help="Store secrets that functions get as files."),
    "serve": CommandEntry("serve:serve", SERVING),
    "dashboard": CommandEntry("serve:dashboard", SERVING),
    "install-runtime": CommandEntry("serve:install_runtime", SERVING),
    "kubernetes": CommandEntry("kubernetes:verbs", CLUSTER),
    "lab": CommandEntry("lab:verbs", LAB),
    "admin": CommandEntry("admin:verbs", ADMIN),
    "version": CommandEntry("machine:version", ADMIN),
    # Hidden: earlier spellings of `pgpu lab` and `pgpu function …`.
    "experiment": CommandEntry("lab:verbs", None),
    "dev": CommandEntry("function_calls:dev", None),
    "deploy": CommandEntry("function_versions:deploy", None),
    "functions": CommandEntry("function_versions:functions", None),
    "rollout": CommandEntry("function_versions:rollout", None),
    "rollback": CommandEntry("function_versions:rollback", None),
    "undeploy": CommandEntry("function_versions:undeploy", None),
    "token": CommandEntry("function_versions:token", None),
    "invoke": CommandEntry("function_calls:invoke", None),
}
"""Every verb, in the order of `pgpu --help`."""
