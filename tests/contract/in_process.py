"""The server's application in this process, asked without sockets."""

import asyncio
from pathlib import Path

from fastapi import FastAPI
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from tests.fakes.machine import make_machine

from pgpu.engine.agent.agents import Agents
from pgpu.engine.engine import Engine
from pgpu.functions.deploy.bundle_store import BundleStore
from pgpu.functions.deploy.deployer import Deployer
from pgpu.functions.deploy.secret_store import SecretStore
from pgpu.server.application import create_app
from pgpu.server.health import Maintenance
from pgpu.server.peer_credentials import STATE_KEY, PeerCredentials
from pgpu.services.access import AccessRules
from pgpu.services.administration import uid_of_token
from pgpu.services.engine_pool import EnginePool
from pgpu.units import GIB


class AsPeer:
    """An application whose every caller is one user, as the kernel would have said."""

    def __init__(self, app: ASGIApp, peer: PeerCredentials) -> None:
        self._app = app
        self._peer = peer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["state"] = {**scope.get("state", {}), STATE_KEY: self._peer}
        await self._app(scope, receive, send)


def make_engine(root: Path, **settings: object) -> Engine:
    """Make a machine on whose full GPU nothing that is submitted ever starts."""
    engine = make_machine(root, [10 * GIB], **settings)
    engine.gpus.set_outsiders("GPU-0", 10 * GIB)  # type: ignore[attr-defined] # a fake
    engine.agents = Agents(engine.settings, ("/bin/true",))  # ends at once, and its guard with it
    return engine


def make_app(root: Path, **settings: object) -> FastAPI:
    """Serve the machine of `make_engine`."""
    engine = make_engine(root, **settings)
    deployer = Deployer(BundleStore(root / "functions"), SecretStore(root / "secrets"), root / "replicas")
    rules = AccessRules(lambda token: uid_of_token(engine.ledger.tokens, token))
    return create_app(EnginePool(engine, is_server=True), rules, Maintenance(engine), deployer)


def asked(
    app: ASGIApp, method: str, target: str, body: bytes = b"", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Return what `answer_of` returns."""
    return asyncio.run(answer_of(app, method, target, body, **headers))


async def answer_of(
    app: ASGIApp, method: str, target: str, body: bytes = b"", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    """Return an answer's status, headers and body; the names of headers to send have `_` for `-`, and Host is that of clients."""
    path, _, query = target.partition("?")
    scope: Scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "headers": [
            (b"content-type", b"application/json"),
            *((name.replace("_", "-").encode(), value.encode()) for name, value in {"host": "pgpu", **headers}.items()),
        ],
        "http_version": "1.1",
        "scheme": "http",
        "server": ("pgpu", 80),
        "client": None,
    }
    said: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Message) -> None:
        said.append(message)

    await app(scope, receive, send)
    found = {name.decode().lower(): value.decode() for name, value in said[0]["headers"]}
    return said[0]["status"], found, b"".join(message.get("body", b"") for message in said)
