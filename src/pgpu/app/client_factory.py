"""Opens the client of a command: of a server, or of an engine in this process.

With a server, nothing of the engine is imported: the command is done sooner than an engine could start.
"""

from typing import TYPE_CHECKING

from pgpu.app.settings import Settings
from pgpu.client import Client
from pgpu.errors import RequestError
from pgpu.structs import replace

if TYPE_CHECKING:
    from pgpu.client.address import Address
    from pgpu.client.http_transport import HttpTransport
    from pgpu.client.remote_service import HttpFunctions
    from pgpu.engine.engine import Engine
    from pgpu.services.administration import AdministrationService


def open_client(settings: Settings) -> Client:
    """Return a client of the server that the settings name or this machine has, else of an engine in this process.

    Raises:
        PgpuError: This machine lacks something that the settings name.
    """
    # Imports of either branch stay in it: the engine takes longer to import than a request to a server takes.
    server = _server_transport(settings)
    if server is not None:
        from pgpu.client.http_client import HttpClient

        return HttpClient(server, settings.simulate)
    from pgpu.app.composition import make_engine
    from pgpu.client.embedded_client import EmbeddedClient

    def engine_of(model: str | None) -> "Engine":
        engine = make_engine(replace(settings, simulate=model))
        engine.leaves_rounds = True
        return engine

    return EmbeddedClient(engine_of(settings.simulate), engine_of)


def open_administration(settings: Settings) -> "AdministrationService":
    """Return the administration of the same server or engine.

    Raises:
        PgpuError: This machine lacks something that the settings name.
    """
    server = _server_transport(settings)
    if server is not None:
        from pgpu.client.remote_service import HttpAdministration

        return HttpAdministration(server)
    from pgpu.app.composition import make_engine
    from pgpu.services.access import Caller
    from pgpu.services.administration import AdministrationService

    return AdministrationService(make_engine(settings), Caller.this_process())


def open_functions(settings: Settings) -> "HttpFunctions":
    """Return the client for functions of the same server.

    Raises:
        RequestError: There is no server; an engine in this process would be gone when a call arrives.
    """
    server = _server_transport(settings)
    if server is None:
        raise RequestError(
            "functions are served by a server, and there is none",
            hint="start one: pgpu serve; pgpu function dev serves one in place",
        )
    from pgpu.client.remote_service import HttpFunctions

    return HttpFunctions(server)


def open_gateway(settings: Settings, url: str | None = None) -> "HttpTransport":
    """Return the transport to a gateway: the one at `url`, else that of the settings' server.

    Raises:
        RequestError: There is none, or `url` is not an address.
    """
    from pgpu.client.address import address_of, gateway_of
    from pgpu.client.http_transport import HttpTransport

    named = None if url is None else address_of(url, settings.token, settings.tls_certificate)
    return HttpTransport(named or gateway_of(server_address(settings)))


def server_address(settings: Settings) -> "Address | None":
    """Return the address of the server that the settings name or this machine has; None for an engine in this process."""
    from pgpu.client.address import address_of, installed_server

    # Without the setting, the socket of this machine's server decides; `embedded` as a host reads as no address.
    if settings.host is None:
        return installed_server()
    return address_of(settings.host, settings.token, settings.tls_certificate)


def _server_transport(settings: Settings) -> "HttpTransport | None":
    address = server_address(settings)
    if address is None:
        return None
    from pgpu.client.http_transport import HttpTransport

    return HttpTransport(address)
