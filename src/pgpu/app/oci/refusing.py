"""How a container is refused: one line for the engine, which shows it to whoever asked, and a hint."""


class RefusedError(Exception):
    """The container cannot be created; nothing was changed."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message} ({hint})")
