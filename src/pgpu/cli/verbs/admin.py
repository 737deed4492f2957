"""`pgpu admin`: quotas, GPUs that take no jobs, tokens, and the jobs of all users; for root."""

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from pgpu.cli import options
from pgpu.cli.invocation import invocation_of
from pgpu.cli.output import console
from pgpu.cli.typer_app import Group
from pgpu.errors import RequestError
from pgpu.model import Period
from pgpu.structs import to_builtins
from pgpu.units import format_memory, parse_memory_bytes, quoted

if TYPE_CHECKING:
    from pgpu.services.administration import AdministrationService

T = TypeVar("T")

verbs = typer.Typer(
    cls=Group,
    help="Set quotas, drain GPUs, issue tokens; for root.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
_tokens = typer.Typer(
    cls=Group, help="Manage tokens for callers over TCP.", no_args_is_help=True, rich_markup_mode=None
)
verbs.add_typer(_tokens, name="token")

_ALL_GPUS = "*"
"""Entry among the closed GPUs that stands for the whole machine."""

_NO_LIMIT = "none"

User = Annotated[str, typer.Argument(metavar="USER", help="User of this machine, by name or number.")]


@verbs.command()
def quota(
    context: typer.Context,
    user: Annotated[str | None, typer.Argument(metavar="[USER]", help="User to change; default: show all.")] = None,
    *,
    memory: Annotated[
        str | None,
        typer.Option("--memory", "-m", metavar="SIZE", help="Most GPU memory at a time, over all GPUs; or none."),
    ] = None,
    jobs: Annotated[str | None, typer.Option("--jobs", metavar="N", help="Most jobs at a time; or none.")] = None,
    weight: Annotated[
        float | None,
        typer.Option("--weight", metavar="W", help="Share beside other waiting users: 2 gets twice as much as 1."),
    ] = None,
    gpu_hours: Annotated[
        str | None,
        typer.Option("--gpu-hours", metavar="N", help="Most GPU hours in each period, see pgpu usage; or none."),
    ] = None,
    per: Annotated[
        str | None,
        typer.Option("--per", metavar="PERIOD", help="Of --gpu-hours: day, week (from Monday on) or month [week]."),
    ] = None,
    is_removed: Annotated[bool, typer.Option("--remove", help="Remove the user's quota.")] = False,
    as_json: options.Json = False,
) -> None:
    """Show or change what a user may hold at a time, and use in a period.

    What is not named stays as it is. Jobs beyond the quota wait; running jobs go on.
    """
    administration = _open_administration(context)
    uid = None if user is None else console.user_number(user)
    if uid is None or (not is_removed and {memory, jobs, weight, gpu_hours, per} == {None}):
        _show_quotas(administration, uid, as_json=as_json)
    elif is_removed:
        administration.remove_quota(uid)
    else:
        from pgpu.services.messages import QuotaChange, QuotaLimit

        if per is not None and per not in {*Period}:
            raise RequestError(f"--per {quoted(per)} is no period", hint=f"write {' or '.join(Period)}")
        limits: dict[QuotaLimit, str | None] = {"memory_bytes": memory, "jobs": jobs, "gpu_hours": gpu_hours}
        change = QuotaChange(
            uid,
            _limit("--memory", memory, parse_memory_bytes),
            _limit("--jobs", jobs, int),
            weight,
            _limit("--gpu-hours", gpu_hours, float),
            None if per is None else Period(per),
            tuple(name for name, text in limits.items() if text == _NO_LIMIT),
        )
        administration.set_quota(change)


def _limit(option: str, text: str | None, parse: Callable[[str], T]) -> T | None:
    """Return a limit that is set; None where it stays as it is or is taken away."""
    try:
        return None if text in {None, _NO_LIMIT} else parse(str(text))
    except ValueError as exc:
        raise RequestError(
            f"{option} {quoted(str(text))} is no number", hint="write one, or none for no limit"
        ) from exc


@verbs.command()
def drain(
    context: typer.Context,
    *,
    is_ended: Annotated[bool, typer.Option("--end", help="Let jobs start again.")] = False,
) -> None:
    """Start no more jobs on this machine.

    Running jobs go on; waiting and new jobs stay in the queue.
    """
    administration = _open_administration(context)
    if is_ended:
        administration.open_gpu(_ALL_GPUS)
    else:
        administration.close_gpu(_ALL_GPUS)


@verbs.command()
def exclude(
    context: typer.Context,
    gpu: Annotated[str | None, typer.Argument(metavar="[GPU]", help="UUID of a GPU; default: show all.")] = None,
    *,
    is_ended: Annotated[bool, typer.Option("--end", help="Let this GPU take jobs again.")] = False,
    as_json: options.Json = False,
) -> None:
    """Start no more jobs on one GPU; its running jobs go on."""
    administration = _open_administration(context)
    if gpu is None:
        closed = administration.closed_gpus()
        if as_json:
            excluded = [each for each in closed if each != _ALL_GPUS]
            console.print_json({"is_drained": _ALL_GPUS in closed, "excluded": excluded})
            return
        for each in closed:
            print("all of them: drained" if each == _ALL_GPUS else each)
    elif is_ended:
        administration.open_gpu(gpu)
    else:
        administration.close_gpu(gpu)


@verbs.command()
def stop(
    context: typer.Context,
    jobs: Annotated[list[str] | None, typer.Argument(metavar="[JOB]...", help="Ids or names.")] = None,
    *,
    user: Annotated[str | None, typer.Option("--user", metavar="USER", help="Stop all jobs of this user.")] = None,
    is_all: Annotated[bool, typer.Option("--all", help="Stop all jobs of all users.")] = False,
    grace: Annotated[
        str | None, typer.Option("--time", "-t", metavar="DURATION", help="Time between SIGTERM and SIGKILL.")
    ] = None,
) -> None:
    """Stop jobs of any user and print their ids.

    Waiting jobs are cancelled.
    """
    from pgpu.units import parse_duration_seconds

    if bool(jobs) + (user is not None) + is_all != 1:
        raise RequestError("no jobs are selected", hint="name jobs, or --user USER, or --all")
    _open_administration(context)  # refuses ordinary users first
    invocation = invocation_of(context)
    client = invocation.client()
    uid = None if user is None else console.user_number(user)
    chosen = jobs or [
        report.job.id
        for report in client.jobs(include_final=False)
        if not report.job.state.is_final and uid in {None, report.job.owner_uid}
    ]
    grace_seconds = invocation.settings().stop_grace if grace is None else parse_duration_seconds(grace)
    if chosen:
        for job in client.cancel(chosen, grace_seconds=grace_seconds):
            print(job.id)


@_tokens.command("create")
def create_token(
    context: typer.Context,
    *,
    user: Annotated[
        str, typer.Option("--user", metavar="USER", help="User whose jobs the token's holder submits and stops.")
    ],
    expires: options.Expires = None,
    as_json: options.Json = False,
) -> None:
    """Create a token and print it once.

    Its holder sets it as PGPU_TOKEN.
    """
    administration = _open_administration(context)
    made = administration.create_token(console.user_number(user), options.read_expires(expires))
    options.check_end(expires, made.expires_at_seconds, lambda: administration.revoke_token(made.id))
    if as_json:
        known = {"id": made.id, "uid": made.uid, "expires_at_seconds": made.expires_at_seconds}
        console.print_json({**known, "token": made.text})
    else:
        print(made.text)


@_tokens.command("list")
def list_tokens(context: typer.Context, *, as_json: options.Json = False) -> None:
    """List valid tokens, without their secret parts."""
    found = _open_administration(context).tokens()
    if as_json:
        console.print_json({"tokens": [to_builtins(each) for each in found]})
        return
    for each in found:
        day = _format_day(each.created_at_seconds)
        end = "" if each.expires_at_seconds is None else f"  expires {_format_day(each.expires_at_seconds)}"
        print(f"{each.id}  {console.user_name(each.uid)}  {day}{end}")


def _format_day(at_seconds: float) -> str:
    return time.strftime("%Y-%m-%d", time.localtime(at_seconds))


@_tokens.command("revoke")
def revoke_token(
    context: typer.Context,
    token: Annotated[str, typer.Argument(metavar="ID", help="Id of the token, as `token list` prints it.")],
) -> None:
    """Revoke a token, at once."""
    _open_administration(context).revoke_token(token)


def _open_administration(context: typer.Context) -> "AdministrationService":
    from pgpu.app.client_factory import open_administration

    return open_administration(invocation_of(context).settings())


def _show_quotas(administration: "AdministrationService", uid: int | None, *, as_json: bool) -> None:
    found = [each for each in administration.quotas() if uid in {None, each.uid}]
    if as_json:
        quotas = [
            {
                "uid": each.uid,
                "memory_bytes": each.memory_bytes,
                "jobs": each.jobs,
                "weight": each.weight,
                "gpu_hours": each.gpu_hours,
                "period": each.period,
                "used_gpu_hours": each.used_gpu_hours,
            }
            for each in found
        ]
        console.print_json({"quotas": quotas})
        return
    for each in found:
        memory = "any memory" if each.memory_bytes is None else format_memory(each.memory_bytes)
        jobs = "any number of jobs" if each.jobs is None else f"{each.jobs} jobs"
        hours = "" if each.gpu_hours is None else f", {each.gpu_hours:g} GPU hours a {each.period}"
        used = "" if each.gpu_hours is None else f" ({each.used_gpu_hours:.2f} used)"
        print(f"{console.user_name(each.uid)}: {memory}, {jobs}{hours}{used}, weight {each.weight:g}")
    if not found:
        console.print_note("no user has a quota" if uid is None else f"{console.user_name(uid)} has no quota")
