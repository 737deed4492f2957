"""The entry point of `pgpu`: reads a command line, and is the edge where errors become lines and exit codes.

`pgpu --version` imports neither the parsers nor the log.
"""

import atexit
import gc
import sys
from collections.abc import Sequence

from pgpu.cli import exits
from pgpu.cli.invocation import Invocation
from pgpu.cli.output import console
from pgpu.errors import NodeError, PgpuError

_OBJECTS_BETWEEN_COLLECTIONS = 50_000


def main(arguments: Sequence[str] | None = None, invocation: Invocation | None = None) -> int:
    """Run one command line and return its exit code."""
    console.prepare_streams()
    words = list(sys.argv[1:] if arguments is None else arguments)
    called = invocation or Invocation()
    try:
        result = _run(words, called)
        # A full disk or a closed pipe is then an error of this call; at the interpreter's exit it would be a traceback.
        sys.stdout.flush()
    except PgpuError as exc:
        return _fail(exc, as_json=called.as_json)
    except KeyboardInterrupt:
        return exits.CANCELLED
    # Python ignores SIGPIPE, so a reader that is gone, such as `head`, is an exception here and not the end of the process.
    except BrokenPipeError:
        console.silence_output()
        return exits.READER_GONE
    except Exception as exc:  # noqa: BLE001 - the edge: users get one line and a file with details, never a traceback
        if console.is_full(exc):
            # The buffer still holds what could not be written; Python's flush at exit would fail on it again.
            console.silence_output()
            error: PgpuError = NodeError(f"the output cannot be written: {exc.strerror}")
        else:
            error = exits.record_bug(exc)
        return _fail(error, as_json=called.as_json)
    return exits.OK if result is None else result


def _run(words: list[str], invocation: Invocation) -> int | None:
    if words == ["--version"]:
        from pgpu.distribution import installed_version

        print(f"pgpu {installed_version()}")
        return exits.OK
    from pgpu.cli.direct_parser import read_call
    from pgpu.cli.option_table import wants_json
    from pgpu.host.stderr_log import log_to_stderr, log_to_stderr_on_demand

    # What imports create lives to the end: collections in between, one for each 700 objects by default, free nothing.
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    # Nor do those of the interpreter's end.
    atexit.register(gc.freeze)
    call = read_call(words)
    if call is None:
        from pgpu.cli.typer_app import run

        log_to_stderr()  # servers are among these verbs, and log in many places
        return run(words, invocation)
    log_to_stderr_on_demand()
    invocation.flags.update(call.flags)
    invocation.typed = call.typed
    invocation.as_json = wants_json(call.values)
    return call.verb.function(invocation, **call.values)


def _fail(error: PgpuError, *, as_json: bool) -> int:
    console.print_error(error, as_json=as_json)
    return exits.of_error(error)
