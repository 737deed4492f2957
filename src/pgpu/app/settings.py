"""What an operator or a user may set, and where pgpu looks for it.

Later places win: `/etc/pgpu/config.toml`, `$XDG_CONFIG_HOME/pgpu/config.toml`, the environment (`PGPU_` and the
setting's name in capitals), the command line's flags. This module refuses to guess: an unknown key or a value that
cannot be read is an error that names the file and the key.
"""

import dataclasses
import os
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import platformdirs

from pgpu.client.address import parse_host
from pgpu.errors import NodeError, PgpuError, RequestError
from pgpu.model import SharingWish
from pgpu.scheduling.capacity import Headroom
from pgpu.units import MIB, parse_duration_seconds, parse_memory_bytes, quoted

SYSTEM_FILE = Path("/etc/pgpu/config.toml")
ENVIRONMENT_PREFIX = "PGPU_"
_MOST_DIGITS = 8
_MOST_OVERSUBSCRIBED = 4


def _path(text: str) -> Path:
    if not text:
        raise RequestError("an empty path names nothing")
    return Path(text).expanduser().absolute()


def _headroom(text: str) -> Headroom:
    if text == "0":
        return Headroom(0, 0.0)
    if text.endswith("%"):
        return Headroom(0, _percentage(text[:-1]))
    return Headroom(parse_memory_bytes(text), 0.0)


def _percentage(number: str) -> float:
    try:
        fraction = float(number) / 100
    except ValueError:
        fraction = -1.0
    if not 0 <= fraction < 1:
        raise RequestError(f"'{number}%' is not a share of a GPU", hint="write 0, 3% or 512MiB")
    return fraction


def _violation_answer(text: str) -> Literal["report", "stop"]:
    if text not in {"report", "stop"}:
        raise RequestError(f"{text!r} is neither 'report' nor 'stop'")
    return cast("Literal['report', 'stop']", text)


def _objective(text: str) -> Literal["response", "makespan"]:
    if text not in {"response", "makespan"}:
        raise RequestError(f"{text!r} is neither 'response' nor 'makespan'")
    return cast("Literal['response', 'makespan']", text)


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


def _on_or_off(text: str) -> Literal["on", "off"]:
    if text not in {"on", "off"}:
        raise RequestError(f"{quoted(text)} is neither 'on' nor 'off'")
    return cast("Literal['on', 'off']", text)


def _image_requests(text: str) -> Literal["ignore", "allow"]:
    if text not in {"ignore", "allow"}:
        raise RequestError(f"{text!r} is neither 'ignore' nor 'allow'")
    return cast("Literal['ignore', 'allow']", text)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < len(text) < _MOST_DIGITS and int(text)):
        raise RequestError(f"{text!r} is no count", hint="write a whole number, 1 or more")
    return int(text)


def _idle_timeout(text: str) -> float | None:
    return None if text == "never" else parse_duration_seconds(text)


def _wait(text: str) -> float | None:
    return None if text == "forever" else parse_duration_seconds(text)


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting. The names here are the keys of the file and, with `PGPU_`, the environment's names."""

    state_dir: Path = field(default_factory=lambda: platformdirs.user_state_path("pgpu"), metadata={"read": _path})
    """Where the ledger and the jobs' logs lie. Default: `$XDG_STATE_HOME/pgpu`, since they must survive a reboot.
    Flag: `--state-dir`."""

    runtime_dir: Path | None = field(default=None, metadata={"read": _path})
    """Where slices, sockets and simulated GPUs lie; must be on a tmpfs. Default: `/run/pgpu` for root, else
    `$XDG_RUNTIME_DIR/pgpu`, else `/dev/shm/pgpu-UID`, since locks and shared counters need memory, not a disk."""

    simulate: str | None = field(default=None, metadata={"read": str})
    """Model of the simulated GPU and how many, such as `RTX 3090` or `RTX 3090x4`. Default: none, so that a job that
    computed nothing never looks done. Flag: `--simulate`."""

    host: str | None = field(default=None, metadata={"read": parse_host})
    """Who answers: a server at `unix:///run/pgpu/pgpu.sock` or `https://HOST:PORT`, or `embedded`, the engine in each
    command. Default: this machine's server where one is installed, else `embedded`. Also where `pgpu serve` listens."""

    token: str | None = field(default=None, repr=False, metadata={"read": str})
    """What proves to a server over TCP who you are; `pgpu admin token create` makes one. Default: none, since a Unix
    socket needs none."""

    tls_certificate: Path | None = field(default=None, metadata={"read": _path})
    """PEM file of the certificate that a server over TCP must prove. Default: whom this machine trusts."""

    submitters: str = field(default="pgpu", metadata={"read": str})
    """Name of the group of this machine whose members may ask root's server; nobody else but root reaches its socket.
    Default: `pgpu`."""

    connections: int = field(default=256, metadata={"read": _count})
    """How many connections each user may have to a server at a time; a command that waits or follows has one. Default: 256,
    more than anybody's terminals and scripts, and few enough that many users fit beside each other."""

    waiting_jobs: int = field(default=10_000, metadata={"read": _count})
    """How many jobs of each user but root may wait in the queue; what would pass it is refused. Default: 10000, what one
    queue is built for, so that one user's scripts slow down nobody else's."""

    jobs_without_gpu: int = field(default=128, metadata={"read": _count})
    """How many jobs without a GPU (`--gpus 0`) run at a time, of all users together; the others wait. Default: 128, since each is
    a supervisor and a command of its own."""

    headroom: Headroom = field(default=Headroom(256 * MIB, 0.03), metadata={"read": _headroom})
    """Memory of each GPU that is never granted: `0`, a share (`3%`) or an amount (`512MiB`). Default: the larger of
    256 MiB and 3 %, for what drivers and displays take without asking."""

    on_violation: Literal["report", "stop"] = field(default="report", metadata={"read": _violation_answer})
    """What happens to a job that the driver sees holding over 5 % more than its slice: `report` or `stop`. Default:
    `report`, since a driver's own estimate should not end a job unless its operator says so."""

    idle_timeout: float | None = field(default=None, metadata={"read": _idle_timeout})
    """How long a job may hold memory without any work on its GPUs before it is reported as idle, such as `2h`, or
    `never`. Default: `never`, since an open notebook may be wanted. Flag: `serve --idle-timeout`. Seconds in the program."""

    on_idle: Literal["report", "stop"] = field(default="report", metadata={"read": _violation_answer})
    """What happens to a job that is idle: `report` or `stop`. Default: `report`, since it may wait for its owner."""

    on_outsider: Literal["report", "stop"] = field(default="report", metadata={"read": _violation_answer})
    """What happens to a process that computes on a GPU outside of every lease: `report` or `stop` (SIGTERM, and after
    `stop_grace` SIGKILL). Default: `report`, in the event log and by `pgpu gpus`, since it may be somebody's who knows
    nothing of pgpu. Programs that only draw are left alone."""

    wait_timeout: float | None = field(default=None, metadata={"read": _wait})
    """How long a request waits before it is given up (exit code 124), such as `5m`; `0` starts it now or never, and
    `forever` waits. Default: `forever`, as a queue does. Flag: `--wait-timeout`. Seconds in the program."""

    objective: Literal["response", "makespan"] = field(default="response", metadata={"read": _objective})
    """What the order of waiting jobs is for: `response`, that each job is soon done, or `makespan`, that all of them end
    soonest; then nobody's share counts, and whoever stands in the plan is overdue after a day instead of half an hour. Default: `response`,
    since most queues have several users. Who keeps the queue decides: set it in `/etc/pgpu/config.toml`."""

    sharing: SharingWish = field(default=SharingWish.TIME_SLICE, metadata={"read": _sharing})
    """How a job shares its GPUs where it does not say: `time-slice`, `mps`, `exclusive` or `auto`. Default: `time-slice`, as
    GPUs do by themselves: it suits every program and keeps the faults of one from the others. Flag: `--sharing`."""

    oversubscription: float = field(default=1.5, metadata={"read": _factor})
    """How many times a GPU's memory the slices of jobs with `--oversubscribe` may sum to: `1` (not at all) to `4`. Default:
    `1.5`, so that each is sure of two thirds of its slice on the GPU; the host must have room for the rest."""

    turns: Literal["on", "off"] = field(default="on", metadata={"read": _on_or_off})
    """Whether jobs with `--oversubscribe` take turns while what they work on does not fit onto their GPU: `on` or `off`.
    Default: `on`: without turns the GPU moves memory most of the time, unless its link is as fast as memory."""

    checkpoints: Literal["on", "off"] = field(default="on", metadata={"read": _on_or_off})
    """Whether a job that is suspended for one with `--preempt` leaves its GPU as a whole, where the driver checkpoints processes
    (NVIDIA's from r570 on): `on` or `off`. Default: `on`: else only jobs with `--oversubscribe` make room."""

    log_cap: int = field(default=100 * MIB, metadata={"read": parse_memory_bytes})
    """How much of each job's output is kept, such as `100MiB`; the oldest goes first. Default: 100 MiB, a day of
    chatty training. Bytes in the program."""

    stop_grace: float = field(default=10.0, metadata={"read": parse_duration_seconds})
    """How long a stopped job has between SIGTERM and SIGKILL. Default: `10s`, as Docker's. Flag: `stop --time`.
    Seconds in the program."""

    build_timeout: float = field(default=1800.0, metadata={"read": parse_duration_seconds})
    """How long the packages of a function's version may take to be installed. Default: `30m`, in which the largest wheels come
    over a slow line; what hangs holds up no more than its owner's next. Seconds in the program."""

    image_requests: Literal["ignore", "allow"] = field(default="ignore", metadata={"read": _image_requests})
    """What a `PGPU_MEMORY` that stands in an image itself means to `docker run --runtime=pgpu`: `ignore` or `allow`.
    Default: `ignore`, since whoever made an image does not decide who gets this machine's GPUs."""

    stable_time: float = field(default=60.0, metadata={"read": parse_duration_seconds})
    """How long the peak of a job of unknown size must not have grown before its slice is made to fit. Default: `1m`, in
    which a training has been through its first steps. Seconds in the program."""


NAMES = tuple(setting.name for setting in dataclasses.fields(Settings))


def load_settings(
    flags: Mapping[str, str | None],
    environment: Mapping[str, str] = os.environ,
    system_file: Path = SYSTEM_FILE,
) -> Settings:
    """Join all places into the settings that hold.

    Args:
        flags: Text of the flags that were given, by setting name; None means not given.
        environment: Where `PGPU_*` and `XDG_CONFIG_HOME` are looked up.
        system_file: The machine's own file.

    Raises:
        NodeError: A file or variable cannot be read or holds what is no setting; names the place and the key.
        RequestError: A flag's value cannot be read.
    """
    texts: dict[str, tuple[str, str]] = {}
    for path in (system_file, user_file(environment)):
        texts.update({name: (text, f"{path}: {name}") for name, text in _file_texts(path)})
    texts.update(_environment_texts(environment))
    values = {name: _read(name, text, place) for name, (text, place) in texts.items()}
    given = {name: text for name, text in flags.items() if text is not None}
    values.update({name: _readers()[name](text) for name, text in given.items()})
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
    """Return where this user's own settings are looked for."""
    home = environment.get("XDG_CONFIG_HOME") or str(Path(environment.get("HOME", "/")) / ".config")
    return Path(home) / "pgpu" / "config.toml"


def _readers() -> dict[str, Callable[[str], Any]]:
    return {setting.name: setting.metadata["read"] for setting in dataclasses.fields(Settings)}


def _file_texts(path: Path) -> Iterator[tuple[str, str]]:
    for name, value in _parsed(path).items():
        if name not in NAMES:
            raise NodeError(f"{path}: {name} is no setting", hint=f"the settings are {', '.join(NAMES)}")
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            raise NodeError(f"{path}: {name} must be text or a number", hint=f"write {name} = '…'")
        yield name, str(value)


def _parsed(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (OSError, UnicodeDecodeError) as exc:
        raise NodeError(f"{path} cannot be read: {exc}") from exc
    except tomllib.TOMLDecodeError as exc:
        raise NodeError(f"{path} is not TOML: {exc}") from exc


def _environment_texts(environment: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    found = {name: environment.get(ENVIRONMENT_PREFIX + name.upper()) for name in NAMES}
    return {name: (text, ENVIRONMENT_PREFIX + name.upper()) for name, text in found.items() if text}


def _read(name: str, text: str, place: str) -> Any:
    try:
        return _readers()[name](text)
    except PgpuError as exc:
        raise NodeError(f"{place}: {exc}", hint=exc.hint) from exc
