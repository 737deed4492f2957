"""The entry of `pgpu`: global options, the verbs, and the edge where every error becomes a line and an exit code.

Verbs import what they need when they run: `pgpu version` must not wait for tables, SQLite or NVML.
"""

import sys
from collections.abc import Sequence
from typing import Annotated, cast

import typer

from pgpu.cli import exits
from pgpu.cli.invocation import Invocation
from pgpu.cli.output import console, standard_streams
from pgpu.cli.verbs import (
    admin,
    advice,
    calibrating,
    doctor,
    function_calls,
    function_dev,
    function_versions,
    gpus,
    install_runtime,
    jobs,
    kubernetes,
    lab,
    learning,
    profile,
    queue,
    run,
    serve,
    submit,
    version,
)
from pgpu.errors import NodeError, PgpuError, RequestError
from pgpu.host.stderr_log import log_to_stderr

_UsageError = cast("type[Exception]", typer.BadParameter.__mro__[1])
"""Typer's error for wrong words on the command line; typer names only this subclass of it."""


def _print_version(*, is_asked: bool) -> None:
    if is_asked:
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
            help="Use simulated GPUs, such as 'RTX 3090' or 'RTX 3090x4' (PGPU_SIMULATE). Their kernels compute nothing.",
        ),
    ] = None,
    state_dir: Annotated[
        str | None,
        typer.Option("--state-dir", metavar="DIR", help="Where the ledger and logs lie (PGPU_STATE_DIR)."),
    ] = None,
    _is_version_asked: Annotated[
        bool,
        typer.Option(
            "--version", callback=lambda value: _print_version(is_asked=value), is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Run programs inside hard slices of a GPU's memory; what does not fit waits instead of failing."""
    invocation = context.ensure_object(Invocation)
    invocation.flags.update(simulate=simulate, state_dir=state_dir)


def make_app() -> typer.Typer:
    """Join the verbs."""
    app = typer.Typer(
        name="pgpu",
        callback=_global_options,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        rich_markup_mode=None,
    )
    app.command(context_settings={"allow_interspersed_args": False})(run.run)
    app.command(context_settings={"allow_interspersed_args": False})(submit.submit)
    app.command(context_settings={"allow_interspersed_args": False})(profile.profile)
    for verb in (
        queue.queue,
        queue.cancel,
        jobs.ps,
        jobs.logs,
        jobs.stop,
        jobs.wait,
        jobs.resize,
        gpus.gpus,
        gpus.top,
        learning.history,
        learning.waste,
        advice.advise,
        calibrating.calibrate,
        function_dev.dev,
        function_versions.deploy,
        function_versions.functions,
        function_versions.rollout,
        function_versions.rollback,
        function_versions.undeploy,
        function_versions.token,
        function_calls.invoke,
        serve.serve,
        install_runtime.install_runtime,
        doctor.doctor,
        version.version,
    ):
        app.command()(verb)
    app.add_typer(admin.verbs, name="admin")
    app.add_typer(lab.verbs, name="lab")
    app.add_typer(lab.verbs, name="experiment", hidden=True)  # an alias
    app.add_typer(kubernetes.verbs, name="kubernetes")
    return app


def main(arguments: Sequence[str] | None = None, invocation: Invocation | None = None) -> int:
    """Run one command line and return its exit code."""
    standard_streams.prepare()
    log_to_stderr()
    words = list(sys.argv[1:] if arguments is None else arguments)
    called = invocation or Invocation()
    try:
        return _run(words, called)
    except PgpuError as exc:
        return _fail(exc, as_json=called.as_json)
    except _UsageError as exc:
        # Words that cannot be read as they are: where the command of `run` begins is unknown then.
        return _help_or_fail(exc, as_json="--json" in (words[: words.index("--")] if "--" in words else words))
    except (KeyboardInterrupt, typer.Abort):
        return exits.CANCELLED
    except BrokenPipeError:
        standard_streams.silence_output()
        return exits.READER_GONE
    except Exception as exc:  # noqa: BLE001 - the edge: users see a line and where the details are, never a traceback
        return _fail(_explained(exc), as_json=called.as_json)


def _run(words: Sequence[str], invocation: Invocation) -> int:
    command = typer.main.get_command(make_app())
    result = command.main(list(words), prog_name="pgpu", standalone_mode=False, obj=invocation)
    sys.stdout.flush()
    return result if isinstance(result, int) else exits.OK


def _fail(error: PgpuError, *, as_json: bool) -> int:
    console.print_error(error, as_json=as_json)
    return exits.of_error(error)


def _explained(exc: Exception) -> PgpuError:
    if standard_streams.is_full(exc):
        standard_streams.silence_output()
        return NodeError(f"the output cannot be written: {exc.strerror}")
    from pgpu.cli.output.bugs import record_bug

    return record_bug(exc)


def _help_or_fail(error: Exception, *, as_json: bool) -> int:
    context = getattr(error, "ctx", None)
    if context is not None and type(error).__name__ == "NoArgsIsHelpError":
        print(context.get_help())
        return exits.OK
    return _fail(_of_usage(error, context), as_json=as_json)


def _of_usage(error: Exception, context: typer.Context | None) -> RequestError:
    """Turn Typer's complaint into ours: exit code 125, since 2 could be the job's own."""
    where = context.command_path if context else "pgpu"
    text = getattr(error, "format_message", lambda: str(error))().rstrip(".")
    misplaced = next((option for option in ("--simulate", "--state-dir") if f"No such option: {option}" in text), None)
    if misplaced:
        return RequestError(
            f"{misplaced} is an option of pgpu itself", hint=f"write pgpu {misplaced} … before the verb"
        )
    return RequestError(text, hint=f"see `{where} --help`")
