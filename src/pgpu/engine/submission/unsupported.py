"""What of a request this installation cannot make true: refused before anything is stored, never accepted and left out."""

from collections.abc import Iterator

from pgpu.engine.settings import EngineSettings
from pgpu.errors import RequestError
from pgpu.model import Request, SharingWish


def refuse_unsupported(request: Request, settings: EngineSettings) -> None:
    """Raise RequestError where a request asks for what these GPUs, or this machine, do not have."""
    for option in _missing(request, settings):
        raise RequestError(f"{option} is not available on these GPUs", hint=f"leave {option} out")


def _missing(request: Request, settings: EngineSettings) -> Iterator[str]:
    if request.sharing is SharingWish.MPS and not settings.has_mps:
        yield "--sharing mps"
