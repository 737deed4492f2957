"""Reads an image's facts through a container that is created, read, removed, and never started.

Facts are cached by image ID. A volume over one of the inspected directories changes the result: then the container is
created with the volumes, and the result is not cached.
"""

import posixpath
from collections.abc import Sequence
from typing import Any

from pgpu.runtimes.docker.engine import Engine
from pgpu.runtimes.docker.image_facts import FactsCache, ImageFacts, read_facts
from pgpu.runtimes.docker.image_inspection import CreatedContainerFiles

_LOOKED_AT = ("/usr", "/lib", "/lib64", "/etc")
_LOOK_LABEL = "io.pgpu.look"


def image_facts(engine: Engine, image: dict[str, Any], binds: Sequence[str], cache: FactsCache) -> ImageFacts:
    """Return the facts of an image.

    Args:
        engine: The engine.
        image: Its description of the image.
        binds: The job's volumes, in the engine's notation.
        cache: Cache of facts.
    """
    covering = [bind for bind in binds if _covers(bind)]
    remembered = None if covering else cache.load(image["Id"])
    if remembered is not None:
        return remembered
    facts = _look(engine, image, covering)
    if not covering:
        cache.store(image["Id"], facts)
    return facts


def _covers(bind: str) -> bool:
    target = posixpath.normpath(bind.split(":")[1])
    return any(target == looked or target.startswith(f"{looked}/") for looked in _LOOKED_AT)


def _look(engine: Engine, image: dict[str, Any], binds: Sequence[str]) -> ImageFacts:
    configuration = {
        "Image": image["Id"],
        "Cmd": ["never-run"],
        "Labels": {_LOOK_LABEL: "1"},
        "NetworkDisabled": True,
        "HostConfig": {"Binds": list(binds), "NetworkMode": "none"},
    }
    container_id = engine.create(configuration)
    try:
        files = CreatedContainerFiles(engine.api, container_id)
        return read_facts(files, str(image.get("Architecture")), _library_path(image))
    finally:
        engine.remove(container_id)


def _library_path(image: dict[str, Any]) -> list[str]:
    variables = (image.get("Config") or {}).get("Env") or []
    values = [
        value for name, _, value in (variable.partition("=") for variable in variables) if name == "LD_LIBRARY_PATH"
    ]
    return [directory for value in values for directory in value.split(":") if directory]
