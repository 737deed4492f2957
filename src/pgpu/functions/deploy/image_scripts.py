"""Scripts that run first in a function's container, in the Python of the image; they use the standard library alone.

The libraries of pgpu are mounted from the server, and their C extensions load only in a Python of the same minor version.
Elsewhere `BUILD` installs them into the layer of packages, and without that `START` ends with an explanation. `BUILD` installs them
in a call of pip of their own: pip rejects a lock file with hashes beside requirements without.
"""

NEEDS = ("msgspec", "httptools")
"""Libraries with C extensions."""

OWN_REQUIREMENTS = ("msgspec>=0.20", "uvicorn>=0.35,<0.56", "httptools>=0.6", "prometheus-client>=0.20")
"""As in the extra `functions`."""

BYTECODE = "/.pgpu-bytecode"
"""Mount point of the byte code that the image's Python made of its standard library and of pgpu."""

_CAN_LOAD = """
import importlib, os, sys
def load():
    try:
        return [importlib.import_module(name) for name in {needs!r}] and None
    except ImportError as error:
        return error
"""

START = (
    _CAN_LOAD.format(needs=NEEDS)
    + f"""
if os.path.isdir({BYTECODE!r}):
    usual, sys.pycache_prefix = sys.pycache_prefix, {BYTECODE!r}
    os.register_at_fork(after_in_child=lambda: setattr(sys, "pycache_prefix", usual))
"""
    + """
error = load()
if error is not None:
    mine, theirs = ".".join(map(str, sys.version_info[:2])), sys.argv.pop(1)
    sys.exit(f"pgpu: {error}: this image has Python {mine}, the server has {theirs}; name an image with that,"
             " or deploy with --requirements, so that what pgpu needs is installed, too")
del sys.argv[1]
import runpy
runpy.run_module("pgpu.functions.replica", run_name="__main__", alter_sys=True)
"""
)
"""`python3 -P -c START 3.11 [options of pgpu.functions.replica]`. The prefix for byte code is reset in forked children, before the
function's own modules are loaded: pip compiled those beside their files."""

COMPILE = f"""
import sys
sys.pycache_prefix = {BYTECODE!r}
import importlib, pkgutil
import pgpu.functions.http, pgpu.functions.replica.replica_server, pgpu.functions.requests, pgpu.functions.worker
for package in (pgpu.functions.http, pgpu.functions.replica, pgpu.functions.requests, pgpu.functions.worker):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
"""
"""`python3 -P -c COMPILE`: imports the modules of replica and worker, which writes their byte code."""

NEEDS_FOLDER = ".pgpu"
"""Folder of pgpu's own libraries in a function's packages, if they had to be installed; searched after those packages."""

BUILD = (
    _CAN_LOAD.format(needs=NEEDS)
    + f"""
import subprocess
target, lock, *words = sys.argv[1:]
can_load = load() is None
os.environ.pop("PYTHONPATH", None)
def install(target, *what):
    return subprocess.call([sys.executable, "-m", "pip", "install", *words, "--target", target, *what])
failed = install(target, "--requirement", lock)
if not failed and not can_load:
    failed = install(os.path.join(target, {NEEDS_FOLDER!r}), *{list(OWN_REQUIREMENTS)!r})
sys.exit(failed)
"""
)
"""`python3 -c BUILD TARGET LOCK [options of pip install]`."""
