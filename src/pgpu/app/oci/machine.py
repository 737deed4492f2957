"""The settings of the machine, as its administrator wrote them: no user's file and no environment has a say in them."""

from pathlib import Path

from pgpu.app.settings import Settings, load_settings

_NO_USERS_FILE = {"XDG_CONFIG_HOME": "/dev/null"}


def machine_settings(config: str, state_dir: str) -> Settings:
    """Read the settings that hold for containers.

    Args:
        config: The machine's settings file; one that is not there says nothing.
        state_dir: Where the machine's ledger lies.

    Raises:
        NodeError: The file cannot be read.
    """
    return load_settings({"state_dir": state_dir}, _NO_USERS_FILE, Path(config))
