"""What runs first in a container, in whatever Python the image has: three short scripts of the standard library alone.

pgpu's own needs are mounted as they are on the server, and their C parts load in a Python of the same minor version only. Where
they do not, `BUILD` installs them, too, and `START` says so instead of a riddle. They refuse to import anything of pgpu's
before that is known, and to hand pgpu's needs to pip beside a lock file: one with hashes takes nothing else.
"""

NEEDS = ("msgspec", "httptools")
"""What has parts in C."""

OWN_REQUIREMENTS = ("msgspec>=0.20", "uvicorn>=0.35", "httptools>=0.6", "prometheus-client>=0.20")
"""As the extra `functions` has them."""

BYTECODE = "/.pgpu-bytecode"
"""Where a container finds what its Python made of the standard library's files and of pgpu's own before."""

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
"""`python3 -P -c START 3.11 [words of pgpu.functions.replica]`. Before the function's own modules are loaded byte code is where it
usually is: what pip compiled lies beside its files."""

COMPILE = f"""
import sys
sys.pycache_prefix = {BYTECODE!r}
import importlib, pkgutil
import pgpu.functions.http, pgpu.functions.replica.replica_server, pgpu.functions.requests, pgpu.functions.worker
for package in (pgpu.functions.http, pgpu.functions.replica, pgpu.functions.requests, pgpu.functions.worker):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
"""
"""`python3 -P -c COMPILE`: loads what a front and a worker load, and so leaves its byte code."""

NEEDS_FOLDER = ".pgpu"
"""Of a function's packages: where pgpu's own needs are, if they had to be installed; behind those packages on the search path."""

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
