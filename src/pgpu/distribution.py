"""The name under which pgpu is distributed, its version, and how an extra is installed.

The package index holds another project under the name `pgpu`, so the distribution is called `gpuslice`; the import package
and the command keep their name. A hint never names a bare distribution: it points to a wheel or a checkout.
"""

from importlib.metadata import PackageNotFoundError, version

NAME = "gpuslice"
FOREIGN_NAME = "pgpu"
"""A distribution of this name installs the same import package and is another project's."""


def installed_version() -> str:
    """Return the version of the installed distribution, for example `0.1.0`."""
    return version(NAME)


def foreign_version() -> str | None:
    """Return the version of a distribution `pgpu` in this environment, or None."""
    try:
        return version(FOREIGN_NAME)
    except PackageNotFoundError:
        return None


def extra_hint(*extras: str) -> str:
    """Return the hint that installs these extras, for example `pip install 'WHEEL_OR_CHECKOUT[docker]'`."""
    return f"pip install 'WHEEL_OR_CHECKOUT[{','.join(extras)}]', where that is the path of a wheel or of a checkout"
