"""One call of `pgpu`: its global options, and the clients made from them on first use.

`pgpu version` and `pgpu --help` never import the engine.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

    from pgpu.app.settings import Settings
    from pgpu.client import Client
    from pgpu.client.remote_service import HttpFunctions

ClientFactory = Callable[["Settings"], "Client"]
FunctionsFactory = Callable[["Settings"], "HttpFunctions"]


def _open_client(settings: "Settings") -> "Client":
    # Imported at the first use of a client: `pgpu version` would pay for the engine's modules otherwise.
    from pgpu.app.client_factory import open_client

    return open_client(settings)


def _open_functions(settings: "Settings") -> "HttpFunctions":
    from pgpu.app.client_factory import open_functions

    return open_functions(settings)


class Invocation:
    def __init__(
        self, make_client: ClientFactory = _open_client, make_functions: FunctionsFactory = _open_functions
    ) -> None:
        """Begin a call without flags.

        Args:
            make_client: Makes the client; tests pass their own.
            make_functions: Likewise the client for functions.
        """
        self.make_client = make_client
        self.make_functions = make_functions
        self.flags: dict[str, str | None] = {}
        """Texts of the global flags that were given, by setting name."""

        self.as_json = False
        """Whether --json was given; set while the verb's options are parsed."""

        self.typed: frozenset[str] = frozenset()
        """Names of the verb's options that were typed; set likewise."""

    def settings(self, **verb_flags: str | None) -> "Settings":
        """Read the settings: files, environment, global flags and the verb's flags.

        Raises:
            PgpuError: One of them cannot be read.
        """
        from pgpu.app.settings import load_settings

        return load_settings({**self.flags, **verb_flags})

    def client(self) -> "Client":
        """Make the client of this call.

        Raises:
            PgpuError: The machine or its settings do not allow one.
        """
        return self.make_client(self.settings())

    def functions(self) -> "HttpFunctions":
        """Make the client for functions of this call.

        Raises:
            PgpuError: There is no server, or the settings do not allow one.
        """
        return self.make_functions(self.settings())


def invocation_of(context: "typer.Context") -> Invocation:
    """Return the invocation that `main` passed to Typer."""
    invocation = context.find_object(Invocation)
    if invocation is None:
        raise LookupError("a verb was called outside of main()")
    return invocation
