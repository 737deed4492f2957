"""The client of the container engine, Docker or Podman: its address, its calls, and attaching to a container's streams.

The address is searched in Docker's order: DOCKER_HOST, CONTAINER_HOST (Podman's), the current `docker context`, then the usual
sockets. Engines on other machines are rejected, since a lease's files are bind-mounted from this machine. Paths of calls name
no version of the API, so an engine applies its own. Errors become pgpu's errors, each with the message of its call.

The calls are made without the Docker SDK: its import took a third of the time that pgpu adds to the start of a container, and
its requests for the engine's version, each of which starts `runc`, another third.
"""

import base64
import contextlib
import hashlib
import json
import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pgpu.errors import EngineAwayError, RequestError, RuntimeUnavailableError
from pgpu.host import unix_http
from pgpu.host.unix_http import HttpResponse
from pgpu.runtimes.docker.engine_errors import (
    FOREIGN_ERRORS,
    CallRefusedError,
    message_of,
    start_error,
    translated,
)
from pgpu.runtimes.docker.refusals import is_image_id, refuse_bad_reference

_TIMEOUT_SECONDS = 120
"""For calls that normally return at once; an engine under load is slow."""

_NOT_FOUND, _CONFLICT = 404, 409
_LARGEST_FILE_BYTES = 64 * 1024 * 1024
_READING = "cannot read the container's files"


class EngineGoneError(Exception):
    """The engine disconnected during `wait`; it may come back."""


class DockerEngine:
    """One engine; safe to use from several threads."""

    def __init__(self, url: str) -> None:
        """Connect to nothing yet: each call has a connection of its own."""
        self.url = url

    def information(self) -> dict[str, Any]:
        """Return the response of `GET /info`."""
        with translated("cannot ask the container engine about itself"):
            return dict(self._call("GET", "/info"))

    def version(self) -> dict[str, Any]:
        """Return the engine's name and versions."""
        with translated("cannot ask the container engine for its version"):
            return dict(self._call("GET", "/version"))

    def image(self, name: str) -> dict[str, Any]:
        """Return an image's description.

        Raises:
            RequestError: The image is not on this machine, or the name is invalid.
            RuntimeUnavailableError: The response does not describe an image.
        """
        refuse_bad_reference(name)
        with translated(f"cannot inspect the image {name}"):  # Podman's message may lack the name
            try:
                found = dict(self._call("GET", f"/images/{name}/json"))
            except CallRefusedError as error:
                if error.status != _NOT_FOUND:
                    raise
                raise RequestError(f"the image {name} is not on this machine", hint=f"docker pull {name}") from error
        if not is_image_id(found.get("Id")):
            raise RuntimeUnavailableError(f"the container engine's answer for the image {name} is not an image")
        return found

    def container(self, id_or_name: str) -> dict[str, Any] | None:
        with translated("cannot inspect the container"):
            try:
                return dict(self._call("GET", f"/containers/{id_or_name}/json"))
            except CallRefusedError as error:
                if error.status != _NOT_FOUND:
                    raise
                return None

    def containers_with_label(self, label: str) -> list[str]:
        """Return the IDs of all containers, including stopped ones, with a label `NAME=VALUE` of letters, digits, `.` and `=`."""
        with translated("cannot list the containers"):
            # {"label":["NAME=VALUE"]}, percent-encoded by hand: urllib takes milliseconds to import.
            found = self._call("GET", f"/containers/json?all=1&filters=%7B%22label%22%3A%5B%22{label}%22%5D%7D")
            return [str(each["Id"]) for each in found]

    def create(self, configuration: dict[str, Any], name: str | None = None) -> str:
        """Create a container and return its ID.

        Raises:
            RequestError: The name is taken, or the engine rejects the configuration.
        """
        with translated("cannot create the container"):
            query = "" if name is None else f"?name={name}"
            try:
                return str(self._call("POST", f"/containers/create{query}", configuration)["Id"])
            except CallRefusedError as error:
                if error.status == _CONFLICT:
                    raise RequestError(str(error), hint=f"docker rm {name}, or use another --name") from error
                raise

    def start(self, container_id: str) -> None:
        """Start a container.

        Raises:
            CommandNotFoundError: `docker run` exits with 127.
            CommandNotExecutableError: `docker run` exits with 126.
            RuntimeUnavailableError: The engine cannot start it for another reason.
        """
        with translated("cannot start the container"):
            try:
                self._call("POST", f"/containers/{container_id}/start")
            except CallRefusedError as error:
                raise start_error(str(error)) from error

    def attach(self, container_id: str, *, has_stdin: bool) -> socket.socket:
        """Return a connection that carries a container's streams from now on.

        Raises:
            CommandNotFoundError: As in `start`: some engines prepare the command here.
            CommandNotExecutableError: Likewise.
            RuntimeUnavailableError: The engine refused for another reason.
        """
        with translated("cannot attach to the container"):
            try:
                return attach(self.url, container_id, has_stdin=has_stdin)
            except AttachRefusedError as error:
                raise start_error(str(error)) from error

    def begin_wait(self, container_id: str) -> socket.socket:
        """Begin to wait for a container's end, and return the connection for `end_wait`.

        Raises:
            EngineGoneError: The engine is away.
        """
        try:
            # No timeout: a job may run for days.
            return self._send("POST", f"/containers/{container_id}/wait", timeout_seconds=None)
        except FOREIGN_ERRORS as error:
            raise EngineGoneError(str(error)) from error

    def end_wait(self, connection: socket.socket) -> int | None:
        """Block until the container has ended and return its exit code, or None if it is gone.

        Raises:
            EngineGoneError: The engine disconnected.
        """
        try:
            response = unix_http.receive(connection)
            return None if response.status == _NOT_FOUND else int(_content(response)["StatusCode"])
        except FOREIGN_ERRORS as error:
            raise EngineGoneError(str(error)) from error

    def signal(self, container_id: str, number: int) -> None:
        """Send a signal to a container's first process; no effect if it has ended."""
        self._unless_ended("cannot signal the container", container_id, f"kill?signal={number}")

    def kill(self, container_id: str) -> None:
        """End all processes of a container, also of a paused one; no effect if it has ended."""
        self._unless_ended("cannot kill the container", container_id, "kill?signal=SIGKILL")

    def resize(self, container_id: str, size: os.terminal_size) -> None:
        """Set the size of a container's terminal in characters; no effect if it has ended."""
        self._unless_ended(
            "cannot resize the container's terminal", container_id, f"resize?h={size.lines}&w={size.columns}"
        )

    def remove(self, container_id: str) -> None:
        """Remove a container, running or not, and its anonymous volumes; no effect if it is gone."""
        with translated("cannot remove the container"):
            try:
                self._call("DELETE", f"/containers/{container_id}?v=1&force=1")
            except CallRefusedError as error:
                # A concurrent removal, such as by the engine's own clean-up, has the same result.
                if error.status != _NOT_FOUND and "already in progress" not in str(error):
                    raise

    def path_status(self, container_id: str, encoded_path: str) -> dict[str, Any] | None:
        """Return what the engine reports of a file of a container; None if there is none."""
        # HEAD, since GET sends the content, which may be gigabytes for a directory.
        response = self._file_call("HEAD", container_id, encoded_path)
        if response is None:
            return None
        with translated(_READING):
            status = json.loads(base64.b64decode(response.header("X-Docker-Container-Path-Stat") or ""))
        return status if isinstance(status, dict) else None

    def archive(self, container_id: str, encoded_path: str) -> bytes | None:
        """Return a tar archive of a file of a container; None if there is none, or if it is larger than 64 MiB."""
        response = self._file_call("GET", container_id, encoded_path)
        return response.body if response is not None and len(response.body) <= _LARGEST_FILE_BYTES else None

    def _file_call(self, method: str, container_id: str, encoded_path: str) -> HttpResponse | None:
        with translated(_READING):
            connection = self._send(method, f"/containers/{container_id}/archive?path={encoded_path}")
            response = unix_http.receive(connection, _LARGEST_FILE_BYTES)
            if response.is_error and response.status != _NOT_FOUND:
                raise CallRefusedError(response)
            return None if response.is_error else response

    def _unless_ended(self, doing: str, container_id: str, call: str) -> None:
        """Make a call; an error counts only if the container still runs, since engines report "ended" in different ways."""
        with translated(doing):
            try:
                self._call("POST", f"/containers/{container_id}/{call}")
            except CallRefusedError:
                if ((self.container(container_id) or {}).get("State") or {}).get("Running"):
                    raise

    def _call(self, method: str, path: str, body: object = None) -> Any:
        return _content(unix_http.receive(self._send(method, path, body)))

    def _send(
        self, method: str, path: str, body: object = None, timeout_seconds: float | None = _TIMEOUT_SECONDS
    ) -> socket.socket:
        content = b"" if body is None else json.dumps(body).encode()
        return unix_http.send(self.url, method, path, content, timeout_seconds=timeout_seconds)


def _content(response: HttpResponse) -> Any:
    """Return the JSON of a response; None for an empty one.

    Raises:
        CallRefusedError: The engine answered with an error.
        ValueError: The response is no JSON.
    """
    if response.is_error:
        raise CallRefusedError(response)
    return json.loads(response.body) if response.body.strip() else None


_LARGEST_HEAD_BYTES = 65536
_LARGEST_REASON_BYTES = 65536
# 101 from engines that upgrade the connection; others return 200 and use it the same way.
_ACCEPTED = (b"101", b"200")


class AttachRefusedError(Exception):
    """The engine refused to attach; carries its message. Podman prepares the command here already and reports its errors."""


def attach(url: str, container_id: str, *, has_stdin: bool) -> socket.socket:
    """Return a connection that carries a container's streams from now on.

    Raises:
        AttachRefusedError: The engine refused.
        OSError: The connection was lost.

    Source: `POST /containers/{id}/attach`, Docker Engine API 1.41.
    """
    with contextlib.ExitStack() as stack:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        stack.callback(connection.close)
        connection.connect(str(Path(url.removeprefix("unix://"))))
        connection.sendall(_request(container_id, has_stdin=has_stdin))
        head = b""
        # Byte by byte: a larger read could take the first bytes of the streams.
        while not head.endswith(b"\r\n\r\n"):
            byte = connection.recv(1)
            if not byte or len(head) > _LARGEST_HEAD_BYTES:
                raise ConnectionResetError("the container engine closed the connection")
            head += byte
        status = head.split(b" ", 2)[1:2]
        if not status or status[0] not in _ACCEPTED:
            raise AttachRefusedError(_read_reason(connection, head))
        stack.pop_all()  # the connection stays open, and is the caller's from now on
        return connection


def _request(container_id: str, *, has_stdin: bool) -> bytes:
    query = f"stream=1&stdout=1&stderr=1&stdin={int(has_stdin)}"
    lines = (
        f"POST /containers/{container_id}/attach?{query} HTTP/1.1",
        "Host: engine",
        "Connection: Upgrade",
        "Upgrade: tcp",
        "Content-Length: 0",
        "",
        "",
    )
    return "\r\n".join(lines).encode("ascii")


def _read_reason(connection: socket.socket, head: bytes) -> str:
    """Return the engine's error message: the `message` field of a JSON body, or plain text."""
    length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
    left = min(int(length[1]), _LARGEST_REASON_BYTES) if length else 0
    body = b""
    while len(body) < left and (data := connection.recv(left - len(body))):
        body += data
    return message_of(body) or head.split(b"\r\n", 1)[0].decode("ascii", errors="replace")


_DEFAULT_SOCKETS = ("/var/run/docker.sock", "/run/podman/podman.sock")
_USER_SOCKETS = ("docker.sock", "podman/podman.sock")
"""Below XDG_RUNTIME_DIR: rootless Docker and rootless Podman."""


def engine_url(environment: Mapping[str, str] = os.environ) -> str:
    """Return the address of the engine, such as `unix:///var/run/docker.sock`.

    Raises:
        EngineAwayError: No engine is configured and no socket exists.
        RuntimeUnavailableError: It is not on this machine.
    """
    url = environment.get("DOCKER_HOST") or environment.get("CONTAINER_HOST") or _context_url(environment)
    if not url:
        user_directory = environment.get("XDG_RUNTIME_DIR")
        own = [f"{user_directory}/{name}" for name in _USER_SOCKETS] if user_directory else []
        url = next((f"unix://{path}" for path in (*_DEFAULT_SOCKETS, *own) if Path(path).is_socket()), None)
    if url is None:
        raise EngineAwayError(
            "no container engine was found",
            hint="install and start Docker or Podman, or set DOCKER_HOST to the engine's socket",
        )
    if not url.startswith("unix://"):
        raise RuntimeUnavailableError(
            f"the container engine {url} is not a socket of this machine",
            hint="set DOCKER_HOST to the socket of an engine on the machine that has the GPUs",
        )
    return url


def _context_url(environment: Mapping[str, str]) -> str | None:
    folder = Path(environment.get("DOCKER_CONFIG") or Path(environment.get("HOME", "/root")) / ".docker")
    name = environment.get("DOCKER_CONTEXT") or _read_json(folder / "config.json").get("currentContext")
    if not name or name == "default":
        return None
    # Docker stores a context in a directory that is named by the SHA-256 of its name.
    digest = hashlib.sha256(str(name).encode()).hexdigest()
    endpoints = _read_json(folder / "contexts/meta" / digest / "meta.json").get("Endpoints", {})
    url = endpoints.get("docker", {}).get("Host")
    if not url:
        raise RuntimeUnavailableError(f"the docker context {name!r} names no engine", hint="see `docker context ls`")
    return str(url)


def _read_json(path: Path) -> dict[str, dict[str, dict[str, str]]]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def describe_engine() -> str:
    """Return the engine's kind, version, address and its method to provide NVIDIA GPUs.

    Raises:
        RuntimeUnavailableError: No engine responds.
    """
    engine = DockerEngine(engine_url())
    version, information, url = engine.version(), engine.information(), engine.url
    # Podman's Docker-compatible socket reports itself as a component only.
    names = [component.get("Name", "") for component in version.get("Components") or ()]
    name = "Podman" if any("Podman" in each for each in names) else "Docker"
    devices = [device.get("ID", "") for device in information.get("DiscoveredDevices") or ()]
    if any(device.startswith("nvidia.com/gpu") for device in devices):
        support = "real GPUs by CDI"
    elif "nvidia" in (information.get("Runtimes") or {}):
        support = "real GPUs by the NVIDIA Container Toolkit"
    else:
        support = "no NVIDIA Container Toolkit, so only simulated GPUs"
    return f"{name} {version.get('Version', 'of unknown version')} at {url}; {support}"
