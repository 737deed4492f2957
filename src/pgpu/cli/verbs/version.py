"""`pgpu version`."""

import platform

from pgpu.cli import options
from pgpu.cli.output import documents, speech


def version(*, as_json: options.Json = False) -> None:
    """Print the versions of pgpu and of what it runs on."""
    from importlib.metadata import version as installed_version

    versions = {"pgpu": installed_version("pgpu"), "python": platform.python_version(), "linux": platform.release()}
    if as_json:
        speech.print_json(documents.document(versions=versions))
        return
    for name, number in versions.items():
        print(f"{name} {number}")
