"""The settings of pgpu and the places that they are read from.

Later places win: `/etc/pgpu/config.toml`, `$XDG_CONFIG_HOME/pgpu/config.toml`, the environment (`PGPU_` and the
setting's name in capitals), the command line's flags. An unknown key or a value that cannot be read is an error that
names the file and the key.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pgpu.client.address import parse_host
from pgpu.errors import NodeError, PgpuError, RequestError
from pgpu.host.ownership import check_own
from pgpu.model import SharingWish
from pgpu.scheduling.capacity import Headroom
from pgpu.structs import Struct, asdict, field
from pgpu.units import MIB, parse_duration_seconds, parse_memory_bytes, quoted

SYSTEM_FILE = Path("/etc/pgpu/config.toml")
ENVIRONMENT_PREFIX = "PGPU_"
_MOST_DIGITS = 8
_MOST_OVERSUBSCRIBED = 4


def _default_state_dir() -> Path:
    import platformdirs

    return platformdirs.user_state_path("pgpu")


def _path(text: str) -> Path:
    if not text:
        raise RequestError("an empty path names nothing")
    return Path(text).expanduser().absolute()


def _headroom(text: str) -> Headroom:
    if text == "auto":
        return Headroom(yields=True)
    if text == "0":
        return Headroom(0, 0.0)
    if not text.endswith("%"):
        return Headroom(parse_memory_bytes(text), 0.0)
    try:
        fraction = float(text[:-1]) / 100
    except ValueError:
        fraction = -1.0
    if not 0 <= fraction < 1:
        raise RequestError(f"'{text}' is not a share of a GPU", hint="write auto, 0, 3% or 512MiB")
    return Headroom(0, fraction)


def _one_of(*choices: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise RequestError(f"{quoted(text)} is neither {' nor '.join(map(repr, choices))}")
        return text

    return read


def _sharing(text: str) -> SharingWish:
    if text not in {*SharingWish}:
        raise RequestError(f"{quoted(text)} is no sharing mode", hint=f"write {', '.join(SharingWish)}")
    return SharingWish(text)


def _factor(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 1 <= factor <= _MOST_OVERSUBSCRIBED:
        raise RequestError(f"{quoted(text)} is not how often a GPU's memory is given away", hint="write 1 to 4")
    return factor


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < len(text) < _MOST_DIGITS and int(text)):
        raise RequestError(f"{text!r} is no count", hint="write a whole number, 1 or more")
    return int(text)


def _duration_or(word: str) -> Callable[[str], float | None]:
    """Return a reader of durations in seconds; the word reads as None."""
    return lambda text: None if text == word else parse_duration_seconds(text)


_readers: list[Callable[[str], Any]] = []
"""Of the fields of `Settings`, in their order."""


def _setting(read: Callable[[str], Any], **default: Any) -> Any:
    """Define a field of `Settings` by what converts its texts, and by its default."""
    _readers.append(read)
    return field(**default)


class Settings(Struct, frozen=True):
    """Every setting. The field names are the keys of the files and, in capitals behind `PGPU_`, the variables."""

    state_dir: Path = _setting(_path, default_factory=_default_state_dir)
    """Directory of the ledger and the jobs' logs. Default: `$XDG_STATE_HOME/pgpu`, since both must survive a
    reboot. Flag: `--state-dir`."""

    runtime_dir: Path | None = _setting(_path, default=None)
    """Directory of slices, sockets and simulated GPUs; must be on a tmpfs. Default: `/run/pgpu` for root, else
    `$XDG_RUNTIME_DIR/pgpu`, else `/dev/shm/pgpu-UID`, since locks and shared counters need memory, not a disk."""

    simulate: str | None = _setting(str, default=None)
    """Model and number of simulated GPUs, such as `RTX 3090` or `RTX 3090x4`. Default: none, so that a job that
    computed nothing is never taken for a result. Flag: `--simulate`."""

    host: str | None = _setting(parse_host, default=None)
    """The server to use, at `unix:///run/pgpu/pgpu.sock` or `https://HOST:PORT`, or `embedded` for an engine in
    each command. Default: this machine's server if one is installed, else `embedded`. Also the socket of `pgpu
    serve`."""

    token: str | None = _setting(str, default=None)
    """Token for a server over TCP; `pgpu admin token create` makes one. Default: none, since a Unix socket needs
    none."""

    tls_certificate: Path | None = _setting(_path, default=None)
    """PEM file of the certificate that a server over TCP must present. Default: the authorities that this machine
    trusts."""

    submitters: str = _setting(str, default="pgpu")
    """Group of this machine: its members may use root's server; apart from root, no other user can connect.
    Default: `pgpu`."""

    agent_unit: str | None = _setting(str, default=None)
    """Template unit of systemd whose instances are the agents of a server's queues: `pgpu-agent` in
    `deploy/systemd/pgpu.service`. Default: none, since an agent needs no systemd; the process that needs one starts it."""

    connections: int = _setting(_count, default=256)
    """Most connections of one user to a server at a time; a command that waits or follows holds one. Default: 256,
    more than one user's terminals and scripts need, and few enough for many users."""

    waiting_jobs: int = _setting(_count, default=10_000)
    """Most waiting jobs of one user, root excepted; more are refused. Default: 10000, the queue length that the
    scheduler is built for, so that one user's scripts do not slow down others."""

    waiting_size: int = _setting(parse_memory_bytes, default=128 * MIB)
    """How much of the ledger the waiting jobs of one user, root excepted, and the jobs of one request may take, such as
    `128MiB`; more are refused. Default: `128MiB`, ten thousand jobs with an environment of their own each, so that
    one user's scripts do not slow down others. Bytes in the program."""

    jobs_without_gpu: int = _setting(_count, default=128)
    """Most jobs without a GPU (`--gpus 0`) that run at a time, over all users; others wait. Default: 128, since
    each is a command and a monitor."""

    headroom: Headroom = _setting(_headroom, default=Headroom(yields=True))
    """Memory of each GPU that is kept free of slices: `auto`, or always `0`, a share (`3%`) or an amount (`512MiB`).
    Default: `auto`, the larger of 256 MiB and 3 %, for memory that drivers and displays allocate themselves; while
    that did not grow for `stable_time`, jobs that declare their size may use all but 64 MiB of it."""

    on_violation: Literal["report", "stop"] = _setting(_one_of("report", "stop"), default="report")
    """What happens to a job that holds over 5 % more than its slice according to the driver: `report` or `stop`.
    Default: `report`, since a driver's estimate should not end a job unless the operator chooses so."""

    idle_timeout: float | None = _setting(_duration_or("never"), default=None)
    """How long a job may hold memory without any work on its GPUs before it is reported as idle, such as `2h`, or
    `never`. Default: `never`, since an open notebook may be needed. Flag: `serve --idle-timeout`. Seconds in the
    program."""

    on_idle: Literal["report", "stop"] = _setting(_one_of("report", "stop"), default="report")
    """What happens to an idle job: `report` or `stop`. Default: `report`, since it may wait for its owner."""

    on_outsider: Literal["report", "stop"] = _setting(_one_of("report", "stop"), default="report")
    """What happens to a process that computes on a GPU without a lease: `report` or `stop` (SIGTERM, and SIGKILL
    after `stop_grace`). Default: `report`, in the event log and in `pgpu gpus`, since its owner may not use pgpu.
    Programs that only draw are never stopped."""

    wait_timeout: float | None = _setting(_duration_or("forever"), default=None)
    """How long a request waits before it fails with exit code 124, such as `5m`; `0` does not wait, `forever` waits
    without limit. Default: `forever`, as in a queue. Flag: `--wait-timeout`. Seconds in the program."""

    on_time_limit: Literal["mark", "stop"] = _setting(_one_of("mark", "stop"), default="stop")
    """What happens to a job that has run for its `--time-limit`: `stop` (SIGTERM, and SIGKILL after `stop_grace`; exit
    code 124) or `mark`, a warning. Default: `stop`, as in Slurm, since only the owner of a job gives it a limit.
    Flag: `--on-time-limit`."""

    objective: Literal["response", "makespan"] = _setting(_one_of("response", "makespan"), default="response")
    """Goal of the order of waiting jobs: `response`, an early end of each job, or `makespan`, the earliest end of
    all of them. With `makespan`, shares of users do not count, and a planned job is overdue after a day instead of
    half an hour. Default: `response`, since most queues have several users. The process that keeps the queue reads
    it: set it in `/etc/pgpu/config.toml`."""

    sharing: SharingWish = _setting(_sharing, default=SharingWish.TIME_SLICE)
    """How a job shares its GPUs unless it chooses itself: `time-slice`, `mps`, `exclusive` or `auto`. Default:
    `time-slice`, the mode of GPUs themselves: it suits every program and isolates the faults of each. Flag:
    `--sharing`."""

    oversubscription: float = _setting(_factor, default=1.5)
    """Largest sum of the slices of jobs with `--oversubscribe`, as a multiple of the GPU's memory: `1` (none) to
    `4`. Default: `1.5`, so that two thirds of each slice fit on the GPU; the host needs room for the rest."""

    turns: Literal["on", "off"] = _setting(_one_of("on", "off"), default="on")
    """Whether jobs with `--oversubscribe` take turns while their working sets together do not fit on the GPU: `on`
    or `off`. Default: `on`: without turns the GPU moves memory most of the time, unless its link is as fast as
    memory."""

    user_turns: Literal["on", "off"] = _setting(_one_of("on", "off"), default="on")
    """Whether a GPU's time is divided between users first, and then between each user's jobs, while jobs of several
    users have work for it: `on` or `off`. Default: `on`: GPUs divide their time between processes, so that sixty
    of one user leave another's one a sixty-first. Not under MPS; jobs of one user wait for nothing."""

    checkpoints: Literal["on", "off"] = _setting(_one_of("on", "off"), default="on")
    """Whether a job that is suspended for one with `--preempt` moves all its memory to the host, where the driver
    checkpoints processes (NVIDIA's from r570 on): `on` or `off`. Default: `on`: otherwise only jobs with
    `--oversubscribe` make room."""

    log_cap: int = _setting(parse_memory_bytes, default=100 * MIB)
    """How much of each job's output is kept, such as `100MiB`; the oldest part is dropped first. Default: 100 MiB,
    a day of a training with much output. Bytes in the program."""

    stop_grace: float = _setting(parse_duration_seconds, default=10.0)
    """Time between SIGTERM and SIGKILL when a job is stopped. Default: `10s`, as Docker's. Flag: `stop --time`.
    Seconds in the program."""

    build_timeout: float = _setting(parse_duration_seconds, default=1800.0)
    """Longest installation of the packages of a function's version. Default: `30m`, enough for the largest wheels
    over a slow line; an installation that hangs delays only its owner's next one. Seconds in the program."""

    image_requests: Literal["ignore", "allow"] = _setting(_one_of("ignore", "allow"), default="ignore")
    """What `PGPU_MEMORY` set in an image means to `docker run --runtime=pgpu`: `ignore` or `allow`. Default:
    `ignore`, since the author of an image should not decide about this machine's GPUs."""

    stable_time: float = _setting(parse_duration_seconds, default=60.0)
    """How long memory must be stable: the peak of a job before a slice that pgpu chose is shrunk (30 seconds at most), and
    what other programs hold of a GPU before `headroom` yields. Default: `1m`, longer than the first steps of a training.
    Seconds in the program."""

    def __repr__(self) -> str:
        # Without the token: the text may end in a log.
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in asdict(self).items() if name != 'token')})"


NAMES = Settings.__struct_fields__
_READERS = dict(zip(NAMES, _readers, strict=True))


def load_settings(
    flags: Mapping[str, str | None],
    environment: Mapping[str, str] = os.environ,
    system_file: Path = SYSTEM_FILE,
) -> Settings:
    """Join all places into settings.

    Args:
        flags: Texts of flags by setting name; None means not given.
        environment: Source of `PGPU_*` and `XDG_CONFIG_HOME`.
        system_file: The machine's file.

    Raises:
        NodeError: A file or variable cannot be read; the message names the place and the key.
        RequestError: A flag's value cannot be read.
    """
    texts: dict[str, tuple[str, str]] = {}
    for path in (system_file, user_file(environment)):
        texts.update({name: (text, f"{path}: {name}") for name, text in _file_texts(path)})
    for name in NAMES:
        variable = ENVIRONMENT_PREFIX + name.upper()
        if text := environment.get(variable):  # an empty variable counts as unset
            texts[name] = text, variable
    values = {}
    for name, (text, place) in texts.items():
        try:
            values[name] = _READERS[name](text)
        except PgpuError as exc:
            raise NodeError(f"{place}: {exc}", hint=exc.hint) from exc
    # The error of a flag names the flag itself, and blames the caller instead of the machine.
    values.update({name: _READERS[name](text) for name, text in flags.items() if text is not None})
    return Settings(**values)


def load_machine_settings(config: str, state_dir: str) -> Settings:
    """Read the settings for containers: the machine's file alone, without a user's file or environment.

    Args:
        config: The machine's settings file; a missing one sets nothing.
        state_dir: Directory of the machine's ledger.

    Raises:
        NodeError: The file cannot be read.
    """
    return load_settings({"state_dir": state_dir}, {"XDG_CONFIG_HOME": "/dev/null"}, Path(config))


def user_file(environment: Mapping[str, str]) -> Path:
    """Return the path of this user's settings."""
    # XDG Base Directory Specification: an empty variable counts as unset.
    home = environment.get("XDG_CONFIG_HOME") or str(Path(environment.get("HOME", "/")) / ".config")
    return Path(home) / "pgpu" / "config.toml"


def _file_texts(path: Path) -> Iterator[tuple[str, str]]:
    try:
        # What is checked is what is read: another file may have the name by then. A pipe is not waited for.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            check_own(path, "the settings file", is_only_read=True, descriptor=file.fileno())
            text = file.read().decode("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, UnicodeDecodeError) as exc:
        raise NodeError(f"{path} cannot be read: {exc}") from exc
    import tomllib  # most machines have no settings file

    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as exc:
        raise NodeError(f"{path} is not TOML: {exc}") from exc
    for name, value in table.items():
        if name not in NAMES:
            raise NodeError(f"{path}: {name} is no setting", hint=f"the settings are {', '.join(NAMES)}")
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise NodeError(f"{path}: {name} must be text or a number", hint=f"write {name} = '…'")
        yield name, str(value)
