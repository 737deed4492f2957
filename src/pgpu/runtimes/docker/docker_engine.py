"""The calls to a container engine, each with its own error messages. Errors of the SDK become pgpu's errors."""

import os
import socket
from collections.abc import Callable
from typing import Any, Self

import docker
from docker import errors as docker_errors

from pgpu.errors import RequestError, RuntimeUnavailableError
from pgpu.runtimes.docker.engine.attachment import AttachRefusedError, attach
from pgpu.runtimes.docker.engine_errors import FOREIGN_ERRORS, one_line, start_error, translated
from pgpu.runtimes.docker.references import is_image_id, refuse_bad_reference

_TIMEOUT_SECONDS = 120
"""For calls that normally return at once; an engine under load is slow."""

_GONE, _CONFLICT = 404, 409
_SIGKILL_NAME = "SIGKILL"


class EngineGoneError(Exception):
    """The engine disconnected during `wait`; it may come back."""


class Engine:
    """A connection to one engine; safe to use from several threads."""

    def __init__(self, url: str) -> None:
        """Connect.

        Raises:
            RuntimeUnavailableError: The engine cannot be reached.
        """
        self.url = url
        with translated("cannot reach the container engine"):
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
