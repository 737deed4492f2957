"""The arguments of an OCI runtime, as a container engine passes them and runc parses them, with ours before them."""

OURS = "--pgpu-"
RUNC = "runc"
PYTHON = "python3"
CONFIG = "/etc/pgpu/config.toml"
STATE_DIR = "/var/lib/pgpu"
ENGINE = "unix:///var/run/docker.sock"

_VALUED = {"root", "log", "log-format", "criu", "rootless", "bundle", "b", "console-socket", "pid-file", "preserve-fds"}
_SHORT = {"b": "bundle"}


class RefusedError(Exception):
    """The container cannot be created; nothing was changed. The engine shows its one line to its user."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message if hint is None else f"{message} ({hint})")


class RuncCall:
    """One parsed call."""

    def __init__(self, words: list[str]) -> None:
        """Parse a call without its program's name."""
        count = next((at for at, word in enumerate(words) if not word.startswith(OURS)), len(words))
        ours = dict(word.removeprefix(OURS).partition("=")[::2] for word in words[:count])
        self.runc = ours.get("runc", RUNC)
        self.config = ours.get("config", CONFIG)
        self.state_dir = ours.get("state-dir", STATE_DIR)
        self.engine = ours.get("engine", ENGINE)
        self.python = ours.get("python", PYTHON)
        self.runcs = words[count:]
        """The arguments for runc."""

        self.flags, plain = _parse(self.runcs)
        self.command = plain[0] if plain else ""
        self.container_id = plain[-1] if len(plain) > 1 else ""

    @property
    def bundle(self) -> str:
        """The directory with the container's `config.json`."""
        return self.flags.get("bundle", ".")


def _parse(words: list[str]) -> tuple[dict[str, str], list[str]]:
    flags: dict[str, str] = {}
    plain: list[str] = []
    rest = iter(words)
    for word in rest:
        if not word.startswith("-"):
            plain.append(word)
            continue
        name, has_value, value = word.lstrip("-").partition("=")
        if not has_value and name in _VALUED:
            value = next(rest, "")
        flags[_SHORT.get(name, name)] = value
    return flags, plain
