"""An API server over real HTTP: it stores, versions, lists and watches objects of the kinds in `api_objects`, and injects faults.

Its answers are those of a recorded 1.36 server, for the requests that pgpu sends. It has no scheduler and no controllers.
"""

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import cast
from urllib.parse import parse_qs, urlsplit

from tests.fakes.api_apply import applied
from tests.fakes.api_objects import KINDS, Happening, Kind, Object, Objects, RefusalError, merged, named
from tests.fakes.api_rules import GATES, Rules, allows, without_gated, wrongs
from tests.fakes.api_selectors import selected

SLICES = next(kind for kind in KINDS if kind.plural == "resourceslices")
CLAIMS = next(kind for kind in KINDS if kind.plural == "resourceclaims")
CLASSES = next(kind for kind in KINDS if kind.plural == "deviceclasses")
REVIEWS = next(kind for kind in KINDS if kind.plural == "subjectaccessreviews")
NODES = next(kind for kind in KINDS if kind.plural == "nodes")
PODS = next(kind for kind in KINDS if kind.plural == "pods")
EVENTS = next(kind for kind in KINDS if kind.group == "events.k8s.io")


@dataclass
class User:
    """The user of one token."""

    rules: Rules | None = None
    """None: everything."""

    node: str | None = None
    """Node in a projected token, for admission."""


@dataclass(frozen=True)
class Asked:
    """One parsed request."""

    verb: str
    """An RBAC verb: get, list, watch, create, update, patch, delete."""

    kind: Kind
    subresource: str
    namespace: str
    name: str
    dry_run: bool = False
    manager: str | None = None
    """Field manager of a server-side apply; None for other requests."""

    is_forced: bool = False

    @property
    def resource(self) -> str:
        return f"{self.kind.plural}/{self.subresource}" if self.subresource else self.kind.plural


@dataclass
class Fault:
    """Faulty answers, limited in number."""

    code: int
    times: int = 1
    verb: str | None = None
    plural: str | None = None
    retry_after: int | None = None
    after: bool = False
    """Whether the request is done and only its answer is lost."""

    def hits(self, asked: Asked) -> bool:
        return self.times > 0 and self.verb in {None, asked.verb} and self.plural in {None, asked.kind.plural}


Admission = Callable[[Asked, User, Object], str | None]
"""Returns why a write is refused (403), or None."""


@dataclass
class ApiServer:
    """A cluster's API server; its attributes may be changed while it runs."""

    objects: Objects = field(default_factory=Objects)
    gates: set[str] = field(default_factory=lambda: set(GATES))
    users: dict[str, User] = field(default_factory=dict)
    """By token; empty: every client may do everything."""

    accounts: dict[str, Rules] = field(default_factory=dict)
    """By user: the result of a SubjectAccessReview."""

    admission: Admission | None = None
    faults: list[Fault] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    kinds: list[Kind] = field(default_factory=lambda: list(KINDS))
    """A missing kind is not installed: 404."""

    bookmark_seconds: float = 0.05
    version: str = "v1.36.2"
    slow: threading.Event = field(default_factory=threading.Event)
    """While it is cleared, no request is answered."""

    url: str = ""
    _watch_ends: threading.Event = field(default_factory=threading.Event)
    _is_over: bool = False

    def __post_init__(self) -> None:
        self.slow.set()

    def add_node(self, name: str = "node1") -> Object:
        return self.objects.create(NODES, "", {"metadata": {"name": name}, "spec": {}, "status": {}})

    def slices(self) -> list[Object]:
        return self.objects.all(SLICES)

    def verbs(self, plural: str = "resourceslices") -> list[str]:
        """Return the requests for one kind of objects, in order, without dry runs."""
        return [each.verb for each in self.asked if each.kind.plural == plural and not each.dry_run]

    def break_watches(self) -> None:
        """Close the connection of every open watch."""
        ended, self._watch_ends = self._watch_ends, threading.Event()
        ended.set()
        with self.objects.changed:
            self.objects.changed.notify_all()

    def kubeconfig(self, directory: Path, token: str = "") -> Path:
        """Write a kubeconfig for this server."""
        path = directory / f"kubeconfig-{token or 'anyone'}.json"
        user = {"token": token} if token else {}
        written = {
            "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake", "namespace": "default"}}],
            "users": [{"name": "fake", "user": user}],
        }
        path.write_text(json.dumps(written))
        return path

    def answer(self, asked: Asked, user: User, body: Object) -> tuple[int, Object]:
        """Perform a request; returns status and object."""
        fault = self.enter(asked, user)
        done = self._write(asked, user, body) if asked.verb != "get" else (200, self._read(asked))
        if fault is not None:
            raise _failed(fault)
        return done

    def enter(self, asked: Asked, user: User) -> Fault | None:
        """Record a request; raise if it is not allowed or a fault is due. A returned fault applies to the response."""
        self.asked.append(asked)
        if user.rules is not None and not allows(user.rules, asked.verb, asked.kind.group, asked.resource, asked.name):
            message = f'cannot {asked.verb} resource "{asked.resource}" in API group "{asked.kind.group}"'
            raise RefusalError(403, "Forbidden", f"{asked.resource} is forbidden: {message}")
        fault = next((fault for fault in self.faults if fault.hits(asked)), None)
        if fault is None:
            return None
        fault.times -= 1
        if not fault.after:
            raise _failed(fault)
        return fault

    def told(self, asked: Asked, version: int, wanted: dict[str, str]) -> Iterator[Object]:
        """Yield the events of a watch."""
        ended = self._watch_ends
        try:
            for happened in self.objects.since(version, lambda: ended.is_set() or self._is_over, self.bookmark_seconds):
                if happened is None:
                    metadata = {"resourceVersion": str(max(version, self.objects.version))}
                    yield {"type": "BOOKMARK", "object": _bookmark(asked.kind, metadata)}
                elif _concerns(happened, asked, wanted):
                    yield {"type": happened.what, "object": happened.found}
        except RefusalError as refusal:
            yield {"type": "ERROR", "object": refusal.status}

    def stop(self) -> None:
        self._is_over = True
        self.slow.set()
        self.break_watches()

    def _read(self, asked: Asked) -> Object:
        return self.objects.get(asked.kind, asked.namespace, asked.name)

    def _write(self, asked: Asked, user: User, body: Object) -> tuple[int, Object]:
        if asked.verb == "delete":
            self._admit(asked, user, self._read(asked))
            return 200, self.objects.delete(asked.kind, asked.namespace, asked.name)
        if asked.manager is not None:
            return self._apply(asked, user, body)
        if asked.kind == REVIEWS:
            return 201, self._reviewed(body)
        wanted = named(body) if asked.verb != "patch" else self._patched(asked, body)
        self._admit(asked, user, wanted)
        if asked.kind == CLASSES:
            wanted = without_gated(wanted, self.gates)
        if asked.kind == SLICES:
            wanted = without_gated(wanted, self.gates)
            if said := wrongs(wanted):
                raise RefusalError(422, "Invalid", f'ResourceSlice "{wanted["metadata"]["name"]}" is invalid: {said}')
        if asked.verb == "create":
            return 201, self.objects.create(asked.kind, asked.namespace, wanted, dry_run=asked.dry_run)
        return 200, self.objects.update(asked.kind, asked.namespace, wanted)

    def _reviewed(self, review: Object) -> Object:
        spec = review["spec"]
        about = spec["resourceAttributes"]
        rules = self.accounts.get(spec["user"], ())
        is_allowed = allows(rules, about["verb"], about.get("group", ""), about["resource"], about.get("name", ""))
        return {**review, "status": {"allowed": is_allowed}}

    def _apply(self, asked: Asked, user: User, said: Object) -> tuple[int, Object]:
        try:
            old = self._read(asked)
        except RefusalError:
            old = None
        wanted = applied(old, said, asked.manager or "", is_forced=asked.is_forced)
        self._admit(asked, user, wanted)
        if old is None:
            return 201, self.objects.create(asked.kind, asked.namespace, wanted, dry_run=asked.dry_run)
        return 200, wanted if asked.dry_run else self.objects.update(asked.kind, asked.namespace, wanted)

    def _admit(self, asked: Asked, user: User, wanted: Object) -> None:
        refusal = None if self.admission is None else self.admission(asked, user, wanted)
        if refusal is not None:
            raise RefusalError(403, "Forbidden", f"ValidatingAdmissionPolicy denied request: {refusal}")

    def _patched(self, asked: Asked, patch: Object) -> Object:
        try:
            old = self._read(asked)
        except RefusalError:
            if "apiVersion" not in patch:
                raise
            return self.objects.create(asked.kind, asked.namespace, patch)
        return cast("Object", merged(old, patch))


@contextmanager
def running(server: ApiServer | None = None, certificate: Path | None = None) -> Iterator[ApiServer]:
    """Serve on a free port of this machine until the block ends; over TLS with a file of a certificate and its key."""
    served = ApiServer() if server is None else server

    class Handler(_Handler):
        api = served

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        if certificate is not None:
            context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            context.load_cert_chain(certificate)
            listening.socket = context.wrap_socket(listening.socket, server_side=True)
        served.url = f"{'http' if certificate is None else 'https'}://127.0.0.1:{listening.server_address[1]}"
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield served
        finally:
            served.stop()
            listening.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    """Request handler of the standard library's HTTP server."""

    api: ApiServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer is written in two parts

    def do_GET(self) -> None:
        self._serve("get")

    def do_POST(self) -> None:
        self._serve("create")

    def do_PUT(self) -> None:
        self._serve("update")

    def do_PATCH(self) -> None:
        self._serve("patch")

    def do_DELETE(self) -> None:
        self._serve("delete")

    def log_message(self, *_: object) -> None:
        pass

    def _serve(self, verb: str) -> None:
        body = self._body()
        self.api.slow.wait()
        address = urlsplit(self.path)
        wanted = {name: values[0] for name, values in parse_qs(address.query).items()}
        try:
            if not self._discovers(address.path):
                self._answer(self._understood(verb, address.path, wanted), wanted, body)
        except RefusalError as refusal:
            self._send(refusal.code, refusal.status, refusal.retry_after)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _body(self) -> Object:
        length = int(self.headers.get("Content-Length") or 0)
        return cast("Object", json.loads(self.rfile.read(length))) if length else {}

    def _answer(self, asked: Asked, wanted: dict[str, str], body: Object) -> None:
        user = self._user()
        if asked.verb == "watch":
            self._watch(asked, user, wanted)
        elif asked.verb == "list":
            self._send(200, self._list(asked, user, wanted))
        else:
            self._send(*self.api.answer(asked, user, body if asked.verb != "delete" else {}))

    def _user(self) -> User:
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if not self.api.users:
            return User()
        if token not in self.api.users:
            raise RefusalError(401, "Unauthorized", "Unauthorized")
        return self.api.users[token]

    def _understood(self, verb: str, path: str, wanted: dict[str, str]) -> Asked:
        parts = path.strip("/").split("/")
        base = "/".join(parts[: 2 if parts[0] == "api" else 3])
        rest = parts[2 if parts[0] == "api" else 3 :]
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces":
            namespace, rest = rest[1], rest[2:]
        kind = next((k for k in self.api.kinds if rest and (k.base, k.plural) == (base, rest[0])), None)
        if kind is None:
            raise RefusalError(404, "NotFound", "the server could not find the requested resource")
        name, subresource = [*rest[1:], "", ""][:2]
        if verb == "get" and not name:
            verb = "watch" if wanted.get("watch") in {"1", "true"} else "list"
        is_apply = self.headers.get("Content-Type") == "application/apply-patch+yaml"
        manager = wanted["fieldManager"] if is_apply else None
        is_forced = wanted.get("force") == "true"
        return Asked(verb, kind, subresource, namespace, name, "dryRun" in wanted, manager, is_forced)

    def _list(self, asked: Asked, user: User, wanted: dict[str, str]) -> Object:
        self.api.enter(asked, user)
        found = [each for each in self.api.objects.all(asked.kind, asked.namespace) if selected(each, wanted)]
        metadata = {"resourceVersion": str(self.api.objects.version)}
        return {
            "kind": f"{asked.kind.name}List",
            "apiVersion": asked.kind.api_version,
            "metadata": metadata,
            "items": found,
        }

    def _watch(self, asked: Asked, user: User, wanted: dict[str, str]) -> None:
        self.api.enter(asked, user)
        version = int(wanted.get("resourceVersion") or self.api.objects.version)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.flush()
        for event in self.api.told(asked, version, wanted):
            self.wfile.write(json.dumps(event).encode() + b"\n")
            self.wfile.flush()

    def _discovers(self, path: str) -> bool:
        if path == "/version":
            self._send(200, {"major": "1", "minor": self.api.version.split(".")[1], "gitVersion": self.api.version})
            return True
        here = [kind for kind in self.api.kinds if f"/{kind.base}" == path.rstrip("/")]
        if here:
            listed = [{"name": k.plural, "kind": k.name, "namespaced": k.is_namespaced} for k in here]
            self._send(200, {"kind": "APIResourceList", "groupVersion": here[0].api_version, "resources": listed})
        return bool(here)

    def _send(self, code: int, found: Object, retry_after: int | None = None) -> None:
        payload = json.dumps(found).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        if retry_after is not None:
            self.send_header("Retry-After", str(retry_after))
        self.end_headers()
        self.wfile.write(payload)


def _failed(fault: Fault) -> RefusalError:
    return RefusalError(fault.code, "InternalError", f"a fault on wish: {fault.code}", fault.retry_after)


def _bookmark(kind: Kind, metadata: Object) -> Object:
    empty: Object = {"kind": kind.name, "apiVersion": kind.api_version, "metadata": metadata}
    if kind == SLICES:
        empty["spec"] = {"driver": "", "pool": {"name": "", "generation": 0, "resourceSliceCount": 0}}
    return empty


def _concerns(happened: Happening, asked: Asked, wanted: dict[str, str]) -> bool:
    namespace = happened.found["metadata"].get("namespace", "")
    return happened.kind == asked.kind and asked.namespace in {"", namespace} and selected(happened.found, wanted)
