"""What of a job is to become something else while it waits or runs."""

from dataclasses import dataclass, replace

from pgpu.model.request import Request


@dataclass(frozen=True, slots=True)
class Resize:
    """New amounts of a job; None leaves one as it is."""

    memory_bytes: int | None = None
    """Of each slice."""

    compute_share: float | None = None
    """Of each GPU's time, above 0 to 1; 0 takes the share away."""

    is_strict: bool | None = None
    """As of a request."""

    def of(self, request: Request) -> Request:
        """Return the request as it is then. An amount of memory that was said is no longer pgpu's choice."""
        if self.memory_bytes is not None:
            request = replace(request, memory_bytes=self.memory_bytes, basis=None)
        if self.compute_share is not None:
            request = replace(request, compute_share=self.compute_share or None)
        is_strict = request.is_strict if self.is_strict is None else self.is_strict
        takes_strictness_away = self.is_strict is None and self.compute_share == 0
        return replace(request, is_strict=is_strict and not takes_strictness_away)
