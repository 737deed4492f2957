"""The options of a job, in one table: `pgpu run`, `submit` and `profile` and the job file are all made from it.

Each field of `JobOptions` is one option, defined by its row: kind, flags, help text, environment variable, and the commands
that have it. Nothing here depends on Typer: `pgpu.cli.options` makes command-line options of the
rows, `job_arguments` makes TOML keys of them and reads a filled `JobOptions` into a submission.
"""

from collections.abc import Mapping
from typing import Any

from pgpu.cli.option_table import Option, OptionKind
from pgpu.structs import Struct, replace

AUTO = "auto"
"""The amount of memory with which pgpu chooses the size from earlier runs."""

RUN, SUBMIT, PROFILE, FILE = "run", "submit", "profile", "file"
_ALL = (RUN, SUBMIT, PROFILE, FILE)
_QUEUED = (RUN, SUBMIT, FILE)


class JobOption(Option, frozen=True):
    """One row of the table; its name is the field of `JobOptions`."""

    used_by: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """The key in a job file: the long flag without its dashes."""
        return self.flags[0].partition("/")[0].removeprefix("--") if self.flags else self.name


_rows: list[Mapping[str, Any]] = []
"""Of the fields of `JobOptions`, in their order, without their names."""


def _option(
    kind: OptionKind,
    *flags: str,
    help: str = "",  # noqa: A002 - as Typer calls it
    metavar: str | None = None,
    variable: str | None = None,
    used_by: tuple[str, ...] = _ALL,
    default: Any = None,
) -> Any:
    """Define a field of `JobOptions`: add its row, and return its default."""
    _rows.append(
        {
            "kind": kind,
            "flags": flags,
            "help": help,
            "metavar": metavar,
            "variable": variable,
            "default": default,
            "used_by": used_by,
        }
    )
    return default


class JobOptions(Struct, frozen=True, kw_only=True):
    """Everything that was given for one job, unread: text as typed, None for what was left out."""

    command: tuple[str, ...] = _option(OptionKind.COMMAND, used_by=(FILE,), default=())
    memory: str | None = _option(
        OptionKind.QUANTITY,
        "--memory",
        "-m",
        metavar="AMOUNT",
        help="GPU memory of the slice, CUDA context included, such as 2GiB; auto uses the peak of earlier runs.",
    )
    gpus: int = _option(
        OptionKind.NUMBER, "--gpus", metavar="N", default=1, help="Number of GPUs, with one slice on each; 0 for none."
    )
    gpu_models: tuple[str, ...] = _option(
        OptionKind.TEXTS,
        "--gpu-model",
        metavar="MODEL",
        used_by=_QUEUED,
        default=(),
        help="Run only on GPUs whose name contains this, such as A100; with several, on any of them.",
    )
    compute: str | None = _option(
        OptionKind.QUANTITY,
        "--compute",
        metavar="SHARE",
        used_by=_QUEUED,
        help="Guaranteed share of each GPU's time, such as 30%; idle time comes on top.",
    )
    strict: bool = _option(
        OptionKind.FLAG, "--strict", used_by=_QUEUED, default=False, help="Never exceed --compute, even on an idle GPU."
    )
    sharing: str | None = _option(
        OptionKind.TEXT,
        "--sharing",
        metavar="MODE",
        variable="PGPU_SHARING",
        help="How to share the GPU: time-slice, mps, exclusive or auto.",
    )
    oversubscribe: bool = _option(
        OptionKind.FLAG,
        "--oversubscribe",
        used_by=_QUEUED,
        default=False,
        help="Let its memory move to the host while other jobs use the GPU; slices may then exceed the GPU's memory.",
    )
    preempt: bool = _option(
        OptionKind.FLAG,
        "--preempt",
        used_by=_QUEUED,
        default=False,
        help="Suspend running jobs of lower priority if there is no room otherwise.",
    )
    priority: str = _option(
        OptionKind.QUANTITY,
        "--priority",
        metavar="P",
        default="normal",
        help="Order in the queue and share of idle GPU time: low, normal, high, or -100 to 100.",
    )
    objective: str = _option(
        OptionKind.TEXT,
        "--objective",
        metavar="GOAL",
        used_by=(SUBMIT, FILE),
        default="response",
        help="response: where jobs end earlier on average, a job that fits waits for a less busy GPU; soonest: it starts.",
    )
    after: tuple[str, ...] = _option(
        OptionKind.TEXTS,
        "--after",
        metavar="JOB",
        used_by=_QUEUED,
        default=(),
        help="Start once this job or array ended with exit code 0; cancel if it fails.",
    )
    array: str | None = _option(
        OptionKind.QUANTITY,
        "--array",
        metavar="INDICES[%N]",
        used_by=(SUBMIT, FILE),
        help="One job for each index (0-9, 0-9:2, 1,3,7), set in PGPU_ARRAY_INDEX; at most N at a time.",
    )
    retry_oom: bool = _option(
        OptionKind.FLAG,
        "--retry-oom",
        used_by=_QUEUED,
        default=False,
        help="Queue it again with a larger slice, up to twice, if it fails at its own limit.",
    )
    no_retry: bool = _option(
        OptionKind.FLAG,
        "--no-retry",
        used_by=(SUBMIT, FILE),
        default=False,
        help="With --memory auto: do not queue it again if it fails because its slice could not grow.",
    )
    no_wait: bool = _option(
        OptionKind.FLAG,
        "--no-wait",
        used_by=(RUN,),
        default=False,
        help="Give up with exit code 124 unless it can start now.",
    )
    wait_timeout: str | None = _option(
        OptionKind.QUANTITY,
        "--wait-timeout",
        metavar="TIME",
        variable="PGPU_WAIT_TIMEOUT",
        help="Give up with exit code 124 after this long in the queue, such as 30s or 5m.",
    )
    time_limit: str | None = _option(
        OptionKind.QUANTITY,
        "--time-limit",
        "--time",
        metavar="TIME",
        used_by=_QUEUED,
        help="Longest run, such as 90m, 2h or 1-12:00:00; time in which it is suspended does not count.",
    )
    on_time_limit: str | None = _option(
        OptionKind.TEXT,
        "--on-time-limit",
        metavar="ACTION",
        variable="PGPU_ON_TIME_LIMIT",
        used_by=_QUEUED,
        help="At the limit stop it with exit code 124, or mark it with a warning: stop or mark.",
    )
    begin: str | None = _option(
        OptionKind.TEXT,
        "--begin",
        metavar="TIME",
        used_by=(SUBMIT, FILE),
        help="Start it no earlier, such as 16:00, 2026-11-30T08:00 or now+2h.",
    )
    hold: bool = _option(
        OptionKind.FLAG, "--hold", used_by=(SUBMIT, FILE), default=False, help="Hold it until pgpu release."
    )
    notify: str | None = _option(
        OptionKind.TEXT,
        "--notify",
        metavar="COMMAND",
        used_by=_QUEUED,
        help="When it has ended, run this in a shell on the host, as you; PGPU_JOB, PGPU_STATE, PGPU_EXIT_CODE are set.",
    )
    image: str | None = _option(OptionKind.TEXT, "--image", metavar="IMAGE", help="Run in a container of this image.")
    environment: tuple[str, ...] = _option(
        OptionKind.VARIABLES,
        "--env",
        "-e",
        metavar="KEY[=VALUE]",
        default=(),
        help="Set an environment variable; KEY alone passes on yours.",
    )
    environment_files: tuple[str, ...] = _option(
        OptionKind.TEXTS, "--env-file", metavar="FILE", default=(), help="Read environment variables from a file."
    )
    volumes: tuple[str, ...] = _option(
        OptionKind.TEXTS,
        "--volume",
        "-v",
        metavar="HOST:CONTAINER[:OPTIONS]",
        default=(),
        help="Mount a host path or a named volume into the container.",
    )
    working_directory: str | None = _option(
        OptionKind.TEXT, "--workdir", "-w", metavar="PATH", help="Start the command in this directory."
    )
    user: str | None = _option(
        OptionKind.TEXT, "--user", "-u", metavar="USER[:GROUP]", help="Run as this user of the image."
    )
    name: str | None = _option(
        OptionKind.TEXT,
        "--name",
        metavar="NAME",
        used_by=(RUN, SUBMIT, PROFILE),
        help="Name the job and its container.",
    )
    detach: bool = _option(
        OptionKind.FLAG, "--detach", "-d", used_by=(RUN,), default=False, help="Print the job's id and return at once."
    )
    interactive: bool = _option(
        OptionKind.FLAG,
        "--interactive",
        "-i",
        used_by=(RUN,),
        default=False,
        help="Pass standard input to the command.",
    )
    tty: bool = _option(
        OptionKind.FLAG, "--tty", "-t", used_by=(RUN,), default=False, help="Give the command a terminal."
    )
    remove: bool = _option(
        OptionKind.FLAG, "--rm/--keep", default=True, help="Remove the container after its end, or keep it."
    )
    wait_for_memory: str = _option(
        OptionKind.QUANTITY,
        "--wait-for-memory",
        metavar="TIME",
        default="0s",
        help="How long an allocation within the slice waits while the device is out of memory; at least 10m where"
        " headroom yields.",
    )

    def settings(self) -> Mapping[str, str | None]:
        """Return the values that stand for settings, as `Invocation.settings` takes them."""
        return {
            "wait_timeout": "0" if self.no_wait else self.wait_timeout,
            "sharing": self.sharing,
            "on_time_limit": self.on_time_limit,
        }


TABLE: tuple[JobOption, ...] = tuple(
    JobOption(name=name, **row) for name, row in zip(JobOptions.__struct_fields__, _rows, strict=True)
)


def rows_of(verb: str, **defaults: Any) -> tuple[JobOption, ...]:
    """Return the options of a verb, in the order of the table.

    Args:
        verb: Name in the column `used_by`.
        defaults: Values by row name that differ from the table's.
    """
    return tuple(
        replace(row, default=defaults[row.name]) if row.name in defaults else row
        for row in TABLE
        if verb in row.used_by
    )
