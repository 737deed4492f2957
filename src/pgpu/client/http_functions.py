"""The functions of a server, over HTTP: the server asks the kernel, or a token, whose they are."""

import os
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, TypeVar
from urllib.parse import quote, urlencode

from pgpu.client.connection import HttpTransport
from pgpu.errors import FunctionNotFoundError
from pgpu.model import ColdStart, Deployment, Event, Function, FunctionToken, Job, Replica, ReplicaState, Version
from pgpu.services import wire
from pgpu.services.function_messages import Bearer, Judgement, NewFunctionToken, ReplicaAsk, Rollout, Shown

T = TypeVar("T")

_ROOT = "/v1/functions"
_BEGINS, _DATA = b": what happens", b"data: "
"""Of lines of server-sent events: a comment, and a field."""


class HttpFunctions:
    """The `Functions` and the `Serving` of one server."""

    def __init__(self, server: HttpTransport) -> None:
        self._server = server

    def deploy(self, deployment: Deployment, bundle: BinaryIO) -> Version:
        """Keep a new version; see `Functions.deploy`."""
        path = f"/v1/bundles/{deployment.bundle}"
        try:
            self._server.ask("GET", path)
        except FunctionNotFoundError:
            self._server.send("PUT", path, bundle)
        return self._told(Version, "POST", _ROOT, deployment, is_repeatable=False)

    def functions(self) -> Sequence[Function]:
        """List functions; see `Functions.functions`."""
        return self._told(tuple[Function, ...], "GET", _ROOT)

    def function(self, name: str) -> Function:
        """Return one function; see `Functions.function`."""
        return self._told(Function, "GET", _path(name))

    def undeploy(self, name: str) -> Sequence[str]:
        """Forget a function; see `Functions.undeploy`."""
        return self._told(tuple[str, ...], "DELETE", _path(name), is_repeatable=False)

    def roll_out(self, name: str, rollout: Rollout) -> Function:
        """Give traffic to a version; see `Functions.roll_out`."""
        return self._told(Function, "POST", _path(name, "/rollout"), rollout, is_repeatable=False)

    def roll_back(self, name: str) -> Function:
        """Go back to the traffic of before; see `Functions.roll_back`."""
        return self._told(Function, "POST", _path(name, "/rollback"), is_repeatable=False)

    def tokens(self, name: str) -> Sequence[FunctionToken]:
        """List tokens; see `Functions.tokens`."""
        return self._told(tuple[FunctionToken, ...], "GET", _path(name, "/tokens"))

    def create_token(self, name: str, label: str) -> NewFunctionToken:
        """Make a token; see `Functions.create_token`."""
        path = _path(name, f"/tokens?{urlencode({'label': os.fsencode(label)})}")
        return self._told(NewFunctionToken, "POST", path, is_repeatable=False)

    def revoke_token(self, name: str, token_id: str) -> None:
        """Revoke a token; see `Functions.revoke_token`."""
        self._server.ask("DELETE", _path(name, f"/tokens/{_quoted(token_id)}"), is_repeatable=False)

    def replicas(self, name: str) -> Sequence[Replica]:
        """Tell what serves a function; see `Functions.replicas`."""
        return self._told(tuple[Replica, ...], "GET", _path(name, "/replicas"))

    def cold_starts(self, name: str, most: int = 100) -> Sequence[ColdStart]:
        """List cold starts; see `Functions.cold_starts`."""
        return self._told(tuple[ColdStart, ...], "GET", _path(name, f"/cold-starts?limit={most}"))

    def all_replicas(self) -> Sequence[Replica]:
        """Tell everything that serves; see `Serving.all_replicas`."""
        return self._told(tuple[Replica, ...], "GET", "/v1/replicas")

    def start_replica(self, ask: ReplicaAsk) -> Replica:
        """Ask for a replica; see `Serving.start_replica`."""
        return self._told(Replica, "POST", "/v1/replicas", ask, is_repeatable=False)

    def build(self, ask: ReplicaAsk) -> Job:
        """Ask for packages; see `Serving.build`."""
        return self._told(Job, "POST", "/v1/builds", ask, is_repeatable=False)

    def note_replica(self, job_id: str, state: ReplicaState) -> None:
        """Note a replica's state; see `Serving.note_replica`."""
        self._server.ask("PUT", f"/v1/replicas/{_quoted(job_id)}?state={state.value}")

    def forget_replica(self, job_id: str) -> None:
        """Forget a replica; see `Serving.forget_replica`."""
        self._server.ask("DELETE", f"/v1/replicas/{_quoted(job_id)}")

    def judge(self, name: str, judgement: Judgement) -> None:
        """Note whether a version can be served; see `Serving.judge`."""
        self._server.ask("POST", _path(name, "/judgement"), judgement)

    def note_cold_start(self, start: ColdStart) -> None:
        """Keep how long a start took; see `Serving.note_cold_start`."""
        self._server.ask("POST", _path(start.function, "/cold-starts"), start, is_repeatable=False)

    def events(self) -> Iterator[Event | None]:
        """Yield what happens; see `Serving.events`."""
        with self._server.streaming("/v1/events") as answer:
            yield from map(_event_of, filter(_says_something, answer.lines()))

    def bearer(self, shown: Shown) -> Bearer:
        """Tell what a token is good for; see `Serving.bearer`."""
        return self._told(Bearer, "POST", "/v1/bearers", shown)

    def _told(self, kind: type[T], method: str, path: str, body: Any = None, **options: Any) -> T:
        return wire.decode(kind, self._server.ask(method, path, body, **options))


def _path(name: str, rest: str = "") -> str:
    return f"{_ROOT}/{_quoted(name)}{rest}"


def _quoted(word: str) -> str:
    return quote(os.fsencode(word), safe="")


def _says_something(line: bytes) -> bool:
    return line.startswith((_BEGINS, _DATA))


def _event_of(line: bytes) -> Event | None:
    return wire.decode(Event, wire.parse(line.removeprefix(_DATA))) if line.startswith(_DATA) else None
