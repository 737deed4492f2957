"""Verbs for jobs that exist: `ps`, `logs`, `stop`, `queue`, `cancel`, `hold`, `release`, `wait`, `resize`."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from pgpu.cli import exits
from pgpu.cli.invocation import Invocation
from pgpu.cli.listings import LIST_OPTIONS, OPTIONS_OF_FIRST, Kind, ListOptions, print_listing
from pgpu.cli.option_table import GRACE, JOBS, JSON, ONE_JOB, Option, OptionKind, takes
from pgpu.cli.output import console, documents
from pgpu.client import Client, JobReport, QueueReport
from pgpu.errors import FunctionNotFoundError, JobNotFoundError, PgpuError, RequestError, UsageError
from pgpu.model import Job
from pgpu.structs import Struct, replace
from pgpu.units import is_number, quoted

if TYPE_CHECKING:
    from pgpu.cli.output.plain_table import FittedTable

_POLL_SECONDS = 1.0
"""How often `logs --follow` of a function checks for new replicas."""

_MOST_ENDED_REPLICAS = 10
"""Ended replicas that a function's log includes; logs of older ones are read by the ids of their jobs."""

_MOST_QUEUED_PIECES = 1000
"""Limit of pieces that wait to be printed: a replica that writes faster than the terminal reads is slowed down."""

_FOLLOW = Option("follow", OptionKind.FLAG, ("--follow", "-f"), "Go on with new output until the job ends, or Ctrl-C.")
_TAIL = Option(
    "tail",
    OptionKind.TEXT,
    ("--tail", "-n"),
    "Print only this many lines, the last ones.",
    "LINES",
    default="all",
)
_LOGS_JSON = replace(JSON, help="Print one JSON object for each piece of output; errors are JSON on stderr.")


@takes(
    Option("include_final", OptionKind.FLAG, ("--all", "-a"), "Include jobs that ended."),
    *LIST_OPTIONS,
    Option("is_uncut", OptionKind.FLAG, ("--no-trunc",), "As --output wide."),
    Option(
        "of_kubernetes",
        OptionKind.FLAG,
        ("--kubernetes",),
        "List the containers of this node's pods; run it in the pod of the driver.",
    ),
    Option(
        "driver",
        OptionKind.TEXT,
        ("--driver",),
        "With --kubernetes: the driver's metrics address.",
        "HOST:PORT",
        default="127.0.0.1:9410",
    ),
    JSON,
)
def ps(
    invocation: Invocation,
    *,
    include_final: bool,
    is_uncut: bool,
    of_kubernetes: bool,
    driver: str,
    **given: Any,
) -> None:
    """List jobs: what runs, what it holds, and why others wait."""
    options = ListOptions(**given)
    if is_uncut and options.wants_table:
        options = replace(options, output="wide")
    if of_kubernetes:
        _list_pods(options, driver, include_final=include_final)
        return
    client = invocation.client()
    # A filter by state is about jobs that ended, too.
    include_final = include_final or bool(options.filtered_values("state"))
    print_listing(
        options,
        Kind(_table_of_jobs, documents.of_jobs, lambda report: _identity(report.job)),
        lambda: client.jobs(include_final=include_final),
        lambda: _notes_of_outsiders(client),
    )


def _list_pods(options: ListOptions, driver: str, *, include_final: bool) -> None:
    if include_final:
        raise UsageError("--kubernetes lists what runs now", hint="leave out --all")
    options.refuse_rows("--kubernetes lists containers")
    from pgpu.kubernetes.pod_shares import shares_at

    shares = shares_at(driver)
    if options.wants_json:
        console.print_json(documents.of_pods(shares))
        return
    from pgpu.cli.output import gpu_tables

    console.print_table(gpu_tables.of_pods(shares))


def _table_of_jobs(reports: Sequence[JobReport], is_uncut: bool) -> "FittedTable":
    from pgpu.cli.output import job_tables

    return job_tables.of_jobs(reports, is_uncut=is_uncut)


def _table_of_queue(reports: Sequence[QueueReport], is_uncut: bool) -> "FittedTable":
    from pgpu.cli.output import waits

    return waits.of_queue(reports, is_uncut=is_uncut)


def _identity(job: Job) -> tuple[str, str]:
    # Of other users' jobs only the memory is disclosed, not the id.
    return ("", "") if job.is_anonymous else (job.id, job.spec.name or "")


def _notes_of_outsiders(client: Client) -> Iterator[str]:
    from pgpu.cli.output import gpu_tables

    yield from gpu_tables.notes_of_outsiders(client.outsiders())


@takes(ONE_JOB, _FOLLOW, _TAIL, _LOGS_JSON)
def logs(invocation: Invocation, *, job: str, follow: bool, tail: str, as_json: bool) -> None:
    """Print the output of a job, or of a function's replicas.

    stdout of the job goes to stdout, its stderr to stderr. Lines of replicas begin with the ids of their jobs.
    """
    tail_lines = _line_count(tail)
    client = invocation.client()
    # Jobs come first: a function is looked up only if no job has this id or name.
    try:
        for stream, data in client.logs(job, follow=follow, tail_lines=tail_lines):
            _print_piece(stream, data, as_json=as_json)
    except JobNotFoundError:
        if not _is_function(invocation, client, job):
            raise
        _print_lines(function_logs(client, job, follow=follow, tail_lines=tail_lines), as_json=as_json)


_PREVIOUS = Option(
    "previous",
    OptionKind.FLAG,
    ("--previous", "-p"),
    "Print the replica or failed build that ended last, and how it ended; with -f those that end later, too.",
)


@takes(Option("name", OptionKind.WORD, (), "Name of the function.", "NAME"), _FOLLOW, _PREVIOUS, _TAIL, _LOGS_JSON)
def logs_of_function(
    invocation: Invocation, *, name: str, follow: bool, previous: bool, tail: str, as_json: bool
) -> None:
    """Print the output of a function's replicas and builds.

    Each line begins with the id of the job.
    """
    tail_lines = _line_count(tail)
    client = invocation.client()
    if not _is_function(invocation, client, name):
        raise FunctionNotFoundError(f"there is no function {quoted(name)}", hint="pgpu function ls")
    pieces = (previous_logs if previous else function_logs)(client, name, follow=follow, tail_lines=tail_lines)
    _print_lines(pieces, as_json=as_json)


def _line_count(text: str) -> int | None:
    if text == "all":
        return None
    if not is_number(text):
        raise RequestError(f"--tail {quoted(text)} is no number of lines", hint="write --tail 100 or --tail all")
    return int(text)


def _print_piece(stream: str, data: bytes, *, as_json: bool, **more: str) -> None:
    if as_json:
        console.print_json_line(documents.document(stream=stream, text=data.decode("utf-8", "replace"), **more))
        return
    # Bytes as the job wrote them, not through the text layer: its output may be binary or in another encoding.
    target = sys.stdout.buffer if stream == "stdout" else sys.stderr.buffer
    target.write(data)
    target.flush()


def _is_function(invocation: Invocation, client: Client, name: str) -> bool:
    """Whether a function has, or had, this name."""
    try:
        invocation.functions().function(name)
    except PgpuError:  # No server, or no such function; jobs of its replicas may be left.
        return bool(_replica_jobs(client, name))
    return True


def _print_lines(pieces: "Iterable[LogLine]", *, as_json: bool) -> None:
    for piece in pieces:
        line = piece.data if as_json else f"{piece.job_id} ".encode() + piece.data
        _print_piece(piece.stream, line, as_json=as_json, job=piece.job_id)


class LogLine(Struct, frozen=True):
    """One line of a replica's output."""

    job_id: str
    stream: str
    data: bytes


def function_logs(client: Client, name: str, *, follow: bool, tail_lines: int | None) -> Iterator[LogLine]:
    """Yield whole lines of a function's replicas, with `follow` without end.

    To follow, one daemon thread blocks in each replica's log and puts lines into a bounded queue; the threads end with
    this process. Replicas that start later are found within `_POLL_SECONDS`.
    """
    import queue as queues
    import threading

    job_ids = _replica_jobs(client, name)
    if not follow:
        for job_id in job_ids:
            yield from _whole_lines(client, job_id, follow=False, tail_lines=tail_lines)
        return
    lines: queues.Queue[LogLine] = queues.Queue(_MOST_QUEUED_PIECES)
    followed: set[str] = set()

    def read(job_id: str) -> None:
        try:
            for line in _whole_lines(client, job_id, follow=True, tail_lines=tail_lines):
                lines.put(line)
        except JobNotFoundError:
            pass  # Another user's replica, or one that never became a job.
        except PgpuError as exc:
            lines.put(LogLine(job_id, "stderr", f"pgpu: {exc}\n".encode()))

    while True:
        for job_id in [each for each in job_ids if each not in followed]:
            threading.Thread(target=read, args=(job_id,), daemon=True).start()
        followed.update(job_ids)
        # Print what comes until it is time to look for new replicas.
        deadline_seconds = time.monotonic() + _POLL_SECONDS
        while (left_seconds := deadline_seconds - time.monotonic()) > 0:
            with suppress(queues.Empty):
                yield lines.get(timeout=left_seconds)
        job_ids = _replica_jobs(client, name, include_final=False)


def previous_logs(client: Client, name: str, *, follow: bool, tail_lines: int | None) -> Iterator[LogLine]:
    """Yield whole lines of the function's replica or failed build that ended last, and how it ended.

    With `follow` also of each that ends later, without end.
    """
    import threading

    printed: set[str] | None = None
    while True:
        # As `_replica_jobs`: also of functions that are gone.
        jobs = [report.job for report in client.jobs(include_final=True)]
        ended = [job for job in jobs if job.spec.serves == name and not job.is_anonymous and job.state.is_final]
        ended.sort(key=lambda job: job.finished_at_seconds or 0.0)
        new = ended[::-1] if printed is None else [job for job in ended if job.id not in printed]
        for job in islice((job for job in new if not _is_done_build(client, job)), 1 if printed is None else None):
            yield from _whole_lines(client, job.id, follow=False, tail_lines=tail_lines)
            end = job.error or job.reason or f"it ended with exit code {job.exit_code}"
            yield LogLine(job.id, "stderr", f"pgpu: {end}\n".encode())
        printed = {job.id for job in ended}
        if not follow:
            return
        threading.Event().wait(_POLL_SECONDS)


def _is_done_build(client: Client, job: Job) -> bool:
    """Whether a function's job has installed packages, filled a cache or compiled byte code: then it is no failed start."""
    from pgpu.functions.deploy.version_jobs import output_directory_of

    # Lists abridge commands.
    return job.exit_code == 0 and output_directory_of(client.job(job.id).job.spec) is not None


def _replica_jobs(client: Client, name: str, *, include_final: bool = True) -> list[str]:
    """Return the ids of a function's jobs, oldest first: those that run, and the last ones that ended."""
    jobs = [report.job for report in client.jobs(include_final=include_final)]
    # By the spec of the jobs, not by the server's list of replicas: that one forgets replicas when they end.
    found = [job for job in jobs if job.spec.serves == name and not job.is_anonymous]
    too_old = [job.id for job in found if job.state.is_final][:-_MOST_ENDED_REPLICAS]
    return [job.id for job in found if job.id not in too_old]


def _whole_lines(client: Client, job_id: str, *, follow: bool, tail_lines: int | None) -> Iterator[LogLine]:
    # Pieces end anywhere. Replicas write at the same time: printed by the piece, their lines would be mixed.
    partial = {"stdout": b"", "stderr": b""}
    for stream, data in client.logs(job_id, follow=follow, tail_lines=tail_lines):
        *whole, partial[stream] = (partial[stream] + data).split(b"\n")
        yield from (LogLine(job_id, stream, line + b"\n") for line in whole)
    yield from (LogLine(job_id, stream, rest + b"\n") for stream, rest in partial.items() if rest)


@takes(JOBS, GRACE, JSON)
def stop(invocation: Invocation, *, jobs: Sequence[str], grace: str | None, as_json: bool) -> int:
    """Stop running jobs and cancel waiting ones.

    A job gets SIGTERM; after the grace time, all processes that it started get SIGKILL.
    """
    settings = invocation.settings(stop_grace=grace)
    client = invocation.make_client(settings)
    return _print_ends(
        client,
        jobs,
        lambda word: [job.id for job in client.request_cancel([word], settings.stop_grace)],
        lambda job: job.id,
        as_json=as_json,
    )


@takes(replace(ONE_JOB, kind=OptionKind.OPTIONAL_WORD, metavar="[JOB]"), *OPTIONS_OF_FIRST, JSON)
def queue(invocation: Invocation, *, job: str | None, **given: Any) -> None:
    """List waiting jobs: order, reason, expected start.

    A job that waits for others (--after), for its --begin, or that is held, has no place in the order. With a JOB, explain why it waits: the
    rule that decides, its figures, and what is free on each GPU.
    """
    kind = Kind(_table_of_queue, documents.of_queue, lambda report: _identity(report.job), keeps_first=True)
    options = ListOptions(**given)
    if job is None:
        print_listing(options, kind, invocation.client().queue)
        return
    settings = invocation.settings()
    members = invocation.make_client(settings).members(job)
    # The queue of the job counts, whether --simulate was given or not.
    client = invocation.make_client(replace(settings, simulate=members[0].job.gpu_model))
    ids = {report.job.id for report in members}
    count = 0

    def read() -> list[QueueReport]:
        nonlocal count
        line = client.queue()
        found = [report for report in line if report.job.id in ids]
        count = sum(each.position is not None for each in line)
        if not found:
            first = client.job(members[0].job.id).job
            which = f"job {first.id} does" if len(ids) == 1 else f"the jobs of {quoted(job)} do"
            state = f"it is {first.state.value}" if len(ids) == 1 else f"the first is {first.state.value}"
            raise RequestError(f"{which} not wait: {state}", hint="pgpu ps --all lists it")
        return found

    if len(ids) == 1:
        if options.filters or options.limit is not None or options.output == "wide":
            raise UsageError("queue JOB explains one job and lists none", hint="leave out --filter, --last and -o wide")
        from pgpu.cli.output.waits import explain

        kind = replace(
            kind,
            explain=lambda reports: explain(reports[0], count, client.gpus()),
            document=lambda reports: {**documents.of_queue(reports), **documents.of_gpus(client.gpus())},
        )
    print_listing(options, kind, read)


@takes(JOBS, GRACE, JSON)
def cancel(invocation: Invocation, *, jobs: Sequence[str], grace: str | None, as_json: bool) -> None:
    """Cancel jobs with all that wait for them; stop running ones.

    An array's id cancels all its jobs. If one of the words names no job, nothing is changed.
    """
    settings = invocation.settings(stop_grace=grace)
    _print_jobs(invocation.make_client(settings).cancel(jobs, grace_seconds=settings.stop_grace), as_json=as_json)


@takes(JOBS, JSON)
def hold(invocation: Invocation, *, jobs: Sequence[str], as_json: bool) -> None:
    """Hold waiting jobs: none starts until it is released.

    Of an array, those that wait. Only an administrator releases what an administrator holds.
    """
    _print_jobs(invocation.client().hold(jobs), as_json=as_json)


@takes(JOBS, JSON)
def release(invocation: Invocation, *, jobs: Sequence[str], as_json: bool) -> None:
    """Release held jobs: they may start again.

    Their wait counts from now on.
    """
    _print_jobs(invocation.client().release(jobs), as_json=as_json)


def _print_jobs(jobs: Sequence[Job], *, as_json: bool) -> None:
    if as_json:
        console.print_json(documents.of_jobs(JobReport(job, ()) for job in jobs))
    else:
        for job in jobs:
            print(job.id)


@takes(JOBS, JSON)
def wait(invocation: Invocation, *, jobs: Sequence[str], as_json: bool) -> int:
    """Wait for jobs to end and print their exit codes."""
    client = invocation.client()
    return _print_ends(
        client,
        jobs,
        lambda word: [report.job.id for report in client.members(word)],
        lambda job: str(exits.of_job(job)),
        as_json=as_json,
    )


@takes(
    ONE_JOB,
    Option("memory", OptionKind.TEXT, ("--memory", "-m"), "New size of each slice.", "AMOUNT"),
    Option("compute", OptionKind.TEXT, ("--compute",), "New share of each GPU's time, such as 50%, or none.", "SHARE"),
    Option("strict", OptionKind.FLAG, ("--strict",), "Never exceed the share, even on an idle GPU."),
    Option("fair", OptionKind.FLAG, ("--fair",), "Get idle time on top of the share."),
    JSON,
)
def resize(
    invocation: Invocation,
    *,
    job: str,
    memory: str | None,
    compute: str | None,
    strict: bool,
    fair: bool,
    as_json: bool,
) -> None:
    """Change the memory or compute share of a job while it runs.

    A larger slice holds at once, if it fits; a smaller one refuses new allocations until the job's use is below it.
    A new share holds from the job's next launch on.
    """
    from pgpu.cli.job_arguments import read_resize

    if strict and fair:
        raise RequestError("--strict and --fair contradict each other", hint="leave one of them out")
    change = read_resize(memory, compute, is_strict=strict if strict or fair else None)
    # The GPUs of the job count, whether --simulate was given or not.
    settings = invocation.settings()
    found = invocation.make_client(settings).job(job).job
    client = invocation.make_client(replace(settings, simulate=found.gpu_model))
    changed = client.resize(job, change.memory_bytes, compute_share=change.compute_share, is_strict=change.is_strict)
    if as_json:
        console.print_json(documents.of_job(client.job(changed.id)))
    else:
        print(changed.id)


def _print_ends(
    client: Client,
    words: Sequence[str],
    find: Callable[[str], Sequence[str]],
    describe: Callable[[Job], str],
    *,
    as_json: bool,
) -> int:
    """Wait for the jobs that words stand for, and print a line for each as it ends.

    As in Docker, a failure does not end the loop, and the last one sets the exit code.
    """
    job_ids: dict[str, None] = {}
    done: list[Job] = []
    exit_code = exits.OK
    for word in words:
        try:
            job_ids |= dict.fromkeys(find(word))
        except PgpuError as exc:
            console.print_error(exc, as_json=as_json)
            exit_code = exits.of_error(exc)
    try:
        for job in client.wait_all(list(job_ids)):
            done.append(job)
            if not as_json:
                print(describe(job), flush=True)
    except PgpuError as exc:
        console.print_error(exc, as_json=as_json)
        exit_code = exits.of_error(exc)
    if as_json:
        console.print_json(documents.of_jobs(JobReport(job, ()) for job in done))
    return exit_code
