"""The client of the container engine, Docker or Podman: its address, its calls, and attaching to a container's streams.

The address is searched in Docker's order: DOCKER_HOST, CONTAINER_HOST (Podman's), the current `docker context`, then the usual
sockets. Engines on other machines are rejected, since a lease's files are bind-mounted from this machine. Errors of the SDK
become pgpu's errors, each with the message of its call.
"""

import contextlib
import hashlib
import json
import os
import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import docker
from docker import errors as docker_errors

from pgpu.errors import EngineAwayError, RequestError, RuntimeUnavailableError
from pgpu.runtimes.docker.engine_errors import FOREIGN_ERRORS, one_line, start_error, translated
from pgpu.runtimes.docker.refusals import is_image_id, refuse_bad_reference

_TIMEOUT_SECONDS = 120
"""For calls that normally return at once; an engine under load is slow."""

_GONE, _CONFLICT = 404, 409
_SIGKILL_NAME = "SIGKILL"


class EngineGoneError(Exception):
    """The engine disconnected during `wait`; it may come back."""


class DockerEngine:
    """A connection to one engine; safe to use from several threads."""

    def __init__(self, url: str) -> None:
        """Connect.

        Raises:
            RuntimeUnavailableError: The engine cannot be reached.
        """
        self.url = url
        with translated("cannot reach the container engine"):
            # `auto` requests its API version, so an unreachable engine fails here and not in a later call.
            self._api = docker.APIClient(base_url=url, version="auto", timeout=_TIMEOUT_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def close(self) -> None:
        self._api.close()

    @property
    def api(self) -> docker.APIClient:
        """The SDK's client, for reading a container's files."""
        return self._api

    def information(self) -> dict[str, Any]:
        """Return the response of `GET /info`."""
        with translated("cannot ask the container engine about itself"):
            return dict(self._api.info())

    def version(self) -> dict[str, Any]:
        """Return the engine's name and versions."""
        with translated("cannot ask the container engine for its version"):
            return dict(self._api.version())

    def image(self, name: str) -> dict[str, Any]:
        """Return an image's description.

        Raises:
            RequestError: The image is not on this machine, or the name is invalid.
            RuntimeUnavailableError: The response does not describe an image.
        """
        refuse_bad_reference(name)
        with translated(f"cannot inspect the image {name}"):  # Podman's message may lack the name
            try:
                found = dict(self._api.inspect_image(name))  # type: ignore[no-untyped-call]
            except docker_errors.ImageNotFound as error:
                raise RequestError(f"the image {name} is not on this machine", hint=f"docker pull {name}") from error
        if not is_image_id(found.get("Id")):
            raise RuntimeUnavailableError(f"the container engine's answer for the image {name} is not an image")
        return found

    def container(self, id_or_name: str) -> dict[str, Any] | None:
        with translated("cannot inspect the container"):
            try:
                return dict(self._api.inspect_container(id_or_name))
            except docker_errors.NotFound:
                return None

    def containers_with_label(self, label: str) -> list[str]:
        """Return the IDs of all containers, including stopped ones, with a label `NAME=VALUE`."""
        with translated("cannot list the containers"):
            return [str(each["Id"]) for each in self._api.containers(all=True, filters={"label": label})]

    def create(self, configuration: dict[str, Any], name: str | None = None) -> str:
        """Create a container and return its ID.

        Raises:
            RequestError: The name is taken, or the engine rejects the configuration.
        """
        with translated("cannot create the container"):
            try:
                answer = self._api.create_container_from_config(configuration, name)  # type: ignore[no-untyped-call]
            except docker_errors.APIError as error:
                if error.status_code == _CONFLICT:
                    raise RequestError(one_line(error), hint=f"docker rm {name}, or use another --name") from error
                raise
            return str(answer["Id"])

    def start(self, container_id: str) -> None:
        """Start a container.

        Raises:
            CommandNotFoundError: `docker run` exits with 127.
            CommandNotExecutableError: `docker run` exits with 126.
            RuntimeUnavailableError: The engine cannot start it for another reason.
        """
        with translated("cannot start the container"):
            try:
                self._api.start(container_id)
            except docker_errors.APIError as error:
                raise start_error(one_line(error)) from error

    def attach(self, container_id: str, *, has_stdin: bool) -> socket.socket:
        """Return a connection that carries a container's streams from now on.

        Raises:
            CommandNotFoundError: As in `start`: some engines prepare the command here.
            CommandNotExecutableError: Likewise.
            RuntimeUnavailableError: The engine refused for another reason.
        """
        with translated("cannot attach to the container"):
            try:
                return attach(self.url, str(self._api.api_version), container_id, has_stdin=has_stdin)
            except AttachRefusedError as error:
                raise start_error(str(error)) from error

    def wait(self, container_id: str) -> int | None:
        """Block until a container has ended and return its exit code, or None if it is gone.

        Raises:
            EngineGoneError: The engine disconnected.
        """
        try:
            # No timeout: the SDK's limits the silence on the connection, and a job may run for days.
            return int(self._api.wait(container_id, timeout=None)["StatusCode"])
        except docker_errors.NotFound:
            return None
        except FOREIGN_ERRORS as error:
            raise EngineGoneError(str(error)) from error

    def signal(self, container_id: str, number: int) -> None:
        """Send a signal to a container's first process; no effect if it has ended."""
        self._unless_ended("cannot signal the container", container_id, lambda: self._api.kill(container_id, number))

    def kill(self, container_id: str) -> None:
        """End all processes of a container, also of a paused one; no effect if it has ended."""
        self._unless_ended(
            "cannot kill the container", container_id, lambda: self._api.kill(container_id, _SIGKILL_NAME)
        )

    def resize(self, container_id: str, size: os.terminal_size) -> None:
        """Set the size of a container's terminal in characters; no effect if it has ended."""
        question = lambda: self._api.resize(container_id, height=size.lines, width=size.columns)  # noqa: E731 - one use
        self._unless_ended("cannot resize the container's terminal", container_id, question)

    def remove(self, container_id: str) -> None:
        """Remove a container, running or not, and its anonymous volumes; no effect if it is gone."""
        with translated("cannot remove the container"):
            try:
                self._api.remove_container(container_id, v=True, force=True)
            except docker_errors.APIError as error:
                # A concurrent removal, such as by the engine's own clean-up, has the same result.
                if error.status_code != _GONE and "already in progress" not in one_line(error):
                    raise

    def _unless_ended(self, doing: str, container_id: str, question: Callable[[], object]) -> None:
        """Run a call; an error counts only if the container still runs, since engines report "ended" in different ways."""
        with translated(doing):
            try:
                question()
            except docker_errors.APIError:
                if ((self.container(container_id) or {}).get("State") or {}).get("Running"):
                    raise


_LARGEST_HEAD_BYTES = 65536
_LARGEST_REASON_BYTES = 65536
# 101 from engines that upgrade the connection; others return 200 and use it the same way.
_ACCEPTED = (b"101", b"200")


class AttachRefusedError(Exception):
    """The engine refused to attach; carries its message. Podman prepares the command here already and reports its errors."""


def attach(url: str, api_version: str, container_id: str, *, has_stdin: bool) -> socket.socket:
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
        connection.sendall(_request(api_version, container_id, has_stdin=has_stdin))
        head = b""
        # Byte by byte: a larger read could take the first bytes of the streams, and the SDK's own call loses them that way.
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


def _request(api_version: str, container_id: str, *, has_stdin: bool) -> bytes:
    query = f"stream=1&stdout=1&stderr=1&stdin={int(has_stdin)}"
    lines = (
        f"POST /v{api_version}/containers/{container_id}/attach?{query} HTTP/1.1",
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
    text = body.decode(errors="replace") or head.split(b"\r\n", 1)[0].decode("ascii", errors="replace")
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return " ".join(text.split())


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
    with DockerEngine(engine_url()) as engine:
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
