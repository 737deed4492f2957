"""What the global options chose, and the client made from them when a verb first needs it.

Start-up time is why this is late: `pgpu version` and `pgpu --help` never load the engine.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import typer

from pgpu.client import Client

if TYPE_CHECKING:
    from pgpu.app.settings import Settings
    from pgpu.client.remote_service import HttpFunctions

ClientFactory = Callable[["Settings"], Client]
FunctionsFactory = Callable[["Settings"], "HttpFunctions"]


def _embedded(settings: "Settings") -> Client:
    from pgpu.app.clients import open_client

    return open_client(settings)


def _served(settings: "Settings") -> "HttpFunctions":
    from pgpu.app.clients import open_functions

    return open_functions(settings)


@dataclass
class Invocation:
    """One invocation of `pgpu`."""

    flags: dict[str, str | None] = field(default_factory=dict)
    """Text of the global flags that were given, by setting name."""

    make_client: ClientFactory = _embedded
    """How the client is made; tests hand in their own."""

    make_functions: FunctionsFactory = _served
    """Likewise what answers about functions."""

    as_json: bool = False
    """Whether the verb was given --json, known once its words were read."""

    def settings(self, **verb_flags: str | None) -> "Settings":
        """Join files, environment, global flags and a verb's own flags.

        Raises:
            PgpuError: One of them cannot be read.
        """
        from pgpu.app.settings import load_settings

        return load_settings({**self.flags, **verb_flags})

    def client(self) -> Client:
        """Make the client that answers this invocation.

        Raises:
            PgpuError: The machine or its settings do not allow one.
        """
        return self.make_client(self.settings())

    def functions(self) -> "HttpFunctions":
        """Make what answers this invocation about functions.

        Raises:
            PgpuError: There is no server, or the settings do not allow one.
        """
        return self.make_functions(self.settings())


def invocation_of(context: typer.Context) -> Invocation:
    """Return what `main` made of this command line."""
    invocation = context.find_object(Invocation)
    if invocation is None:
        raise LookupError("a verb was called outside of main()")
    return invocation
