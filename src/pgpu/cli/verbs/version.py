"""`pgpu version`."""

import platform

from pgpu.cli import options
from pgpu.cli.output import console, documents
from pgpu.distribution import installed_version


def version(*, as_json: options.Json = False) -> None:
    """Print the versions of pgpu and of what it runs on."""
    versions = {"pgpu": installed_version(), "python": platform.python_version(), "linux": platform.release()}
    if as_json:
        console.print_json(documents.document(versions=versions))
        return
    for name, number in versions.items():
        print(f"{name} {number}")
