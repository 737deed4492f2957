"""`pgpu version`."""

import platform

from pgpu.cli import documents, options, speech


def of_pgpu() -> str:
    """Return the version of the pgpu that is installed."""
    from importlib.metadata import version as installed_version

    return installed_version("pgpu")


def version(*, as_json: options.Json = False) -> None:
    """Print the versions of pgpu and of what it runs on."""
    versions = {"pgpu": of_pgpu(), "python": platform.python_version(), "linux": platform.release()}
    if as_json:
        speech.print_json(documents.document(versions=versions))
        return
    for name, number in versions.items():
        print(f"{name} {number}")
