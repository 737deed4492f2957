"""The entry point of `pgpu`: global options, the table of verbs, and the edge where errors become lines and exit codes.

Every verb imports what it needs when it runs: `pgpu version` loads no tables, SQLite or NVML.
"""

import sys
from collections.abc import Sequence
from typing import Annotated, cast

import typer

from pgpu.cli import exits
from pgpu.cli.command_group import CommandEntry, group_of
from pgpu.cli.invocation import Invocation
from pgpu.cli.output import console
from pgpu.errors import NodeError, PgpuError, RequestError
from pgpu.host.stderr_log import log_to_stderr

QUEUE, LEARNING, FUNCTIONS, SERVING, CLUSTER, LAB, ADMIN = (
    "Queue",
    "Learning and advice",
    "Functions",
    "Serving",
    "Cluster",
    "Lab",
    "Admin",
)

FUNCTION_VERBS = {
    "deploy": CommandEntry("function_versions:deploy"),
    "ls": CommandEntry("function_versions:functions"),
    "invoke": CommandEntry("function_calls:invoke"),
    "logs": CommandEntry("jobs:logs_of_function"),
    "rollout": CommandEntry("function_versions:rollout"),
    "rollback": CommandEntry("function_versions:rollback"),
    "undeploy": CommandEntry("function_versions:undeploy"),
    "token": CommandEntry("function_versions:token"),
    "dev": CommandEntry("function_calls:dev"),
}

VERBS = {
    "run": CommandEntry("run:run", takes_command=True),
    "submit": CommandEntry("run:submit", takes_command=True),
    "ps": CommandEntry("jobs:ps"),
    "logs": CommandEntry("jobs:logs"),
    "stop": CommandEntry("jobs:stop"),
    "top": CommandEntry("machine:top"),
    "gpus": CommandEntry("machine:gpus"),
    "doctor": CommandEntry("machine:doctor"),
    "queue": CommandEntry("jobs:queue", QUEUE),
    "cancel": CommandEntry("jobs:cancel", QUEUE),
    "wait": CommandEntry("jobs:wait", QUEUE),
    "resize": CommandEntry("jobs:resize", QUEUE),
    "history": CommandEntry("learning:history", LEARNING),
    "waste": CommandEntry("learning:waste", LEARNING),
    "profile": CommandEntry("learning:profile", LEARNING, takes_command=True),
    "advise": CommandEntry("learning:advise", LEARNING),
    "calibrate": CommandEntry("learning:calibrate", LEARNING),
    "function": CommandEntry("", FUNCTIONS, entries=FUNCTION_VERBS, help="Deploy, call and manage functions."),
    "serve": CommandEntry("serve:serve", SERVING),
    "install-runtime": CommandEntry("serve:install_runtime", SERVING),
    "kubernetes": CommandEntry("kubernetes:verbs", CLUSTER),
    "lab": CommandEntry("lab:verbs", LAB),
    "admin": CommandEntry("admin:verbs", ADMIN),
    "version": CommandEntry("machine:version", ADMIN),
    # Hidden: earlier spellings of `pgpu lab` and `pgpu function …`.
    "experiment": CommandEntry("lab:verbs", None),
    "dev": CommandEntry("function_calls:dev", None),
    "deploy": CommandEntry("function_versions:deploy", None),
    "functions": CommandEntry("function_versions:functions", None),
    "rollout": CommandEntry("function_versions:rollout", None),
    "rollback": CommandEntry("function_versions:rollback", None),
    "undeploy": CommandEntry("function_versions:undeploy", None),
    "token": CommandEntry("function_versions:token", None),
    "invoke": CommandEntry("function_calls:invoke", None),
}
"""Every verb, in the order of `pgpu --help`."""

_UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])
"""The base of Typer's usage errors, which Typer exports only through this subclass."""


def _print_version(is_given: bool) -> None:
    if is_given:
        from pgpu.distribution import installed_version

        print(f"pgpu {installed_version()}")
        raise typer.Exit


def _global_options(
    context: typer.Context,
    *,
    simulate: Annotated[
        str | None,
        typer.Option(
            "--simulate",
            metavar="MODEL[xN]",
            help="Use simulated GPUs, such as 'RTX 3090' or 'RTX 3090x4'; kernels compute nothing (PGPU_SIMULATE).",
        ),
    ] = None,
    state_dir: Annotated[
        str | None,
        typer.Option("--state-dir", metavar="DIR", help="Directory of the ledger and the logs (PGPU_STATE_DIR)."),
    ] = None,
    _version: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """Run programs in hard slices of GPU memory; a job that does not fit waits instead of failing."""
    invocation = context.ensure_object(Invocation)
    invocation.flags.update(simulate=simulate, state_dir=state_dir)


def make_app() -> typer.Typer:
    """Return the application; verbs are imported when they are looked up."""
    return typer.Typer(
        name="pgpu",
        cls=group_of(VERBS),
        callback=_global_options,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        rich_markup_mode=None,
    )


def main(arguments: Sequence[str] | None = None, invocation: Invocation | None = None) -> int:
    """Run one command line and return its exit code."""
    console.prepare_streams()
    log_to_stderr()
    words = list(sys.argv[1:] if arguments is None else arguments)
    called = invocation or Invocation()
    try:
        command = typer.main.get_command(make_app())
        # Not standalone: Typer returns the code of `typer.Exit` and raises its own errors, instead of ending the process.
        result = command.main(words, prog_name="pgpu", standalone_mode=False, obj=called)
        # A full disk or a closed pipe is then an error of this call; at the interpreter's exit it would be a traceback.
        sys.stdout.flush()
    except PgpuError as exc:
        return _fail(exc, as_json=called.as_json)
    except _UsageError as exc:
        # The words could not be parsed, so --json was not noted; behind "--" it would be the job's own option.
        return _help_or_fail(exc, as_json="--json" in (words[: words.index("--")] if "--" in words else words))
    except (KeyboardInterrupt, typer.Abort):
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
    return result if isinstance(result, int) else exits.OK


def _fail(error: PgpuError, *, as_json: bool) -> int:
    console.print_error(error, as_json=as_json)
    return exits.of_error(error)


def _help_or_fail(error: Exception, *, as_json: bool) -> int:
    """Print the help of a group that was called without a command; fail with 125 for any other usage error.

    Typer's own code for those, 2, could be the job's.
    """
    context = getattr(error, "ctx", None)
    if context is not None and type(error).__name__ == "NoArgsIsHelpError":
        print(context.get_help())
        return exits.OK
    text = getattr(error, "format_message", lambda: str(error))().rstrip(".")
    # click reads options before the verb as those of the group; behind it they are unknown.
    misplaced = next((option for option in ("--simulate", "--state-dir") if f"No such option: {option}" in text), None)
    if misplaced:
        hint = f"write pgpu {misplaced} … before the verb"
        return _fail(RequestError(f"{misplaced} is an option of pgpu itself", hint=hint), as_json=as_json)
    where = context.command_path if context else "pgpu"
    return _fail(RequestError(text, hint=f"see `{where} --help`"), as_json=as_json)
