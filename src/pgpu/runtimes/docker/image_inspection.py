"""Reads an image's facts through a container that is created, read by the engine's archive call, removed, and never started.

Facts are cached by image ID. A volume over one of the inspected directories changes the result: then the container is
created with the volumes, and the result is not cached. Paths are the container's own; the engine resolves symbolic links
inside the container's root.
"""

import io
import posixpath
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from pgpu.runtimes.docker.docker_engine import DockerEngine, EngineGoneError
from pgpu.runtimes.docker.image_facts import FactsCache, ImageFacts, read_facts
from pgpu.structs import Struct


class CreatedContainerFiles(Struct, frozen=True):
    """The files of one container of an engine."""

    engine: DockerEngine
    container_id: str
    has_volumes: bool = False
    """True if a user's volume covers an inspected directory."""

    def resolve(self, path: str) -> str | None:
        """Return a path with all symbolic links resolved, or None if it does not exist.

        The engine reports a link only in the last component, so the directory is resolved first.
        """
        folder, name = posixpath.split(posixpath.normpath(path))
        if folder not in {"/", ""}:
            resolved_folder = self.resolve(folder)
            if resolved_folder is None:
                return None
            folder = resolved_folder
        stat = self._stat(posixpath.join(folder, name))
        if stat is None:
            return None
        target = str(stat.get("linkTarget") or "")
        if not target:
            return posixpath.join(folder, name)
        return target if self._stat(target) is not None else None

    def read(self, path: str) -> bytes | None:
        """Return a file's content, following symbolic links, or None if there is none that the engine can read."""
        import tarfile  # noqa: PLC0415 - 3 ms, for an image's first container only

        target = self.resolve(path)
        content = self.engine.archive(self.container_id, quote(target)) if target else None
        if content is None:
            return None
        try:
            with tarfile.open(fileobj=io.BytesIO(content)) as archive:
                member = archive.next()
                reader = archive.extractfile(member) if member and member.isfile() else None
                return reader.read() if reader else None
        except tarfile.TarError as exc:
            if self.has_volumes:  # truncated where root is squashed
                return None
            raise EngineGoneError("the container engine closed the connection within an archive") from exc

    def _stat(self, path: str) -> dict[str, Any] | None:
        return self.engine.path_status(self.container_id, quote(path))


_INSPECTED_DIRECTORIES = ("/usr", "/lib", "/lib64", "/etc")
_LOOK_LABEL = "io.pgpu.look"


def load_image_facts(
    engine: DockerEngine, image: dict[str, Any], binds: Sequence[str], cache: FactsCache
) -> ImageFacts:
    """Return the facts of an image.

    Args:
        engine: The engine.
        image: Its description of the image.
        binds: The job's volumes, in the engine's notation.
        cache: Cache of facts.
    """
    covering = [bind for bind in binds if _covers(bind)]
    cached = None if covering else cache.load(image["Id"])
    if cached is not None:
        return cached
    facts = _inspect(engine, image, covering)
    if not covering:
        cache.store(image["Id"], facts)
    return facts


def _covers(bind: str) -> bool:
    target = posixpath.normpath(bind.split(":")[1])
    return any(target == each or target.startswith(f"{each}/") for each in _INSPECTED_DIRECTORIES)


def _inspect(engine: DockerEngine, image: dict[str, Any], binds: Sequence[str]) -> ImageFacts:
    configuration = {
        "Image": image["Id"],
        # Engines reject a container without any command, and an image may have none.
        "Cmd": ["never-run"],
        "Labels": {_LOOK_LABEL: "1"},
        "NetworkDisabled": True,
        "HostConfig": {"Binds": list(binds), "NetworkMode": "none"},
    }
    container_id = engine.create(configuration)
    try:
        files = CreatedContainerFiles(engine, container_id, has_volumes=bool(binds))
        return read_facts(files, str(image.get("Architecture")), _library_path(image))
    finally:
        engine.remove(container_id)


def _library_path(image: dict[str, Any]) -> list[str]:
    variables = (image.get("Config") or {}).get("Env") or []
    values = [
        value for name, _, value in (variable.partition("=") for variable in variables) if name == "LD_LIBRARY_PATH"
    ]
    return [directory for value in values for directory in value.split(":") if directory]
