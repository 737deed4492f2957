"""The name under which pgpu is distributed, its version, and the libraries of its extras.

The package index holds another project under the name `pgpu`, so the distribution is called `gpuslice`; the import package
and the command keep their name. A hint never names a bare distribution: it points to a wheel or a checkout.
"""

import os
import sys
from importlib.util import find_spec

from pgpu.errors import NodeError

NAME = "gpuslice"

# A distribution of this name installs the same import package and is another project's.
FOREIGN_NAME = "pgpu"


def installed_version() -> str:
    """Return the version of the installed distribution, for example `0.1.0`."""
    # importlib.metadata loads email and zipfile, which takes longer than all else that `pgpu --version` does. Installers
    # name the directory of a distribution's metadata `NAME-VERSION.dist-info`.
    start, end = f"{NAME}-", ".dist-info"
    for folder in filter(os.path.isdir, sys.path):
        for name in os.listdir(folder):  # noqa: PTH208 - pathlib takes milliseconds
            if name.startswith(start) and name.endswith(end):
                return name[len(start) : -len(end)]
    from importlib.metadata import version  # noqa: PLC0415 - likewise; for other layouts, such as eggs

    return version(NAME)


def foreign_version() -> str | None:
    """Return the version of a distribution `pgpu` in this environment, or None."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - likewise

    try:
        return version(FOREIGN_NAME)
    except PackageNotFoundError:
        return None


def extra_hint(*extras: str) -> str:
    """Return the hint that installs these extras, for example `pip install 'WHEEL_OR_CHECKOUT[lab]'`."""
    return f"pip install 'WHEEL_OR_CHECKOUT[{','.join(extras)}]', where that is the path of a wheel or of a checkout"


def has_module(name: str) -> bool:
    """Whether a module such as `cuda.bindings` is installed. Its parent packages are imported, the module itself is not."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # raised for a missing parent; a missing module without a parent gives None
        return False


def require_modules(needed_for: str, modules: tuple[str, ...], extra: str) -> None:
    """Check for the libraries of an extra before work starts that needs them.

    Args:
        needed_for: Start of the message, such as `figures need`.
        modules: Import names.
        extra: The extra that installs them.

    Raises:
        NodeError: One of them is not installed.
    """
    for module in modules:
        if not has_module(module):
            raise NodeError(f"{needed_for} {module}, which is not installed", hint=extra_hint(extra))


def require_workloads() -> None:
    """Check for the CUDA binding that the programs of `pgpu.workloads` call.

    Raises:
        NodeError: It is not installed.
    """
    require_modules("the workloads of pgpu need", ("cuda.bindings",), "workloads")
