"""Runs the scorer until it is asked to leave. It refuses HTTP without TLS, except on loopback: who asks is believed."""

import contextlib
import ipaddress
import signal
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from pgpu.errors import NodeError, RequestError

_GRACE_SECONDS = 5


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """Where the scheduler finds it."""

    host: str
    port: int
    certificate: Path | None = None
    """TLS, with this chain of certificates; None: without."""

    key: Path | None = None
    client_authority: Path | None = None
    """Only who has a certificate of this authority is answered; None: anybody."""

    def check(self) -> None:
        """Raise where it must not listen like that.

        Raises:
            RequestError: Beyond this machine without TLS, or TLS without all that it takes.
        """
        if (self.certificate is None) != (self.key is None):
            raise RequestError("a certificate and its key belong together", hint="name --tls-cert and --tls-key")
        if self.client_authority is not None and self.certificate is None:
            raise RequestError("certificates of clients need TLS", hint="name --tls-cert and --tls-key, too")
        if self.certificate is None and not _is_loopback(self.host):
            raise RequestError(
                f"{self.host} can be reached from other machines, and this is not encrypted",
                hint="name --tls-cert and --tls-key, or listen at 127.0.0.1 beside the scheduler",
            )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _Server(uvicorn.Server):
    """uvicorn that says when it listens."""

    def __init__(self, config: uvicorn.Config, say: Callable[[int], None]) -> None:
        super().__init__(config)
        self._say = say

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave for a signal, and not by it: uvicorn would raise it again in the end."""
        former = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    async def startup(self, sockets: Any = None) -> None:
        """Listen, and say where."""
        await super().startup(sockets)
        if self.started:
            self._say(self.servers[0].sockets[0].getsockname()[1])


def serve(app: Any, listening: ListenOptions, say: Callable[[int], None]) -> None:
    """Answer until SIGTERM or SIGINT.

    Args:
        app: Of ASGI.
        listening: Where.
        say: Is told the port once it listens.

    Raises:
        RequestError: It must not listen like that.
        NodeError: It cannot listen there, or its certificate cannot be used.
    """
    listening.check()
    try:
        config = uvicorn.Config(
            app, host=listening.host, port=listening.port, lifespan="off", ws="none", log_level="critical",
            access_log=False, server_header=False, timeout_keep_alive=75, timeout_graceful_shutdown=_GRACE_SECONDS,
            ssl_certfile=listening.certificate, ssl_keyfile=listening.key,
            ssl_ca_certs=None if listening.client_authority is None else str(listening.client_authority),
            ssl_cert_reqs=ssl.CERT_NONE if listening.client_authority is None else ssl.CERT_REQUIRED,
        )  # fmt: skip
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise NodeError(f"the certificate cannot be used: {error}") from error
    server = _Server(config, say)
    try:
        server.run()
    except SystemExit as exit_:
        raise NodeError(
            f"nobody can listen at {listening.host}:{listening.port}", hint="is something there already?"
        ) from exit_
