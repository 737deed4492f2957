"""The opaque parameters of a claim and of its DeviceClass: what they may say, and which of them hold. Pure.

A claim is its user's, a DeviceClass the cluster's: what would take from others is heard from a class alone. It refuses words
that it does not know: a wish that is misspelt must not look granted.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pgpu.errors import RequestError
from pgpu.kubernetes import names
from pgpu.kubernetes.api import Configuration
from pgpu.kubernetes.names import DeviceKind
from pgpu.units import parse_duration_seconds, quoted

API_VERSION = "pgpu.io/v1alpha1"
KIND = "SliceParameters"

_MOST_PRIORITY = 100
_MOST_WAIT_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class SliceParameters:
    """What claim and class say of a slice besides its sizes."""

    wait_for_memory_seconds: float = 0.0
    is_strict: bool = False
    kind: DeviceKind | None = None
    """How its GPUs are shared; None where nothing was said of it."""

    priority: int = 0


@dataclass(frozen=True, slots=True)
class ParsedParameters:
    """What holds, and what was said in vain."""

    parameters: SliceParameters
    ignored: tuple[str, ...] = ()
    """Names of fields that a claim may not set, as the claim wrote them."""


def parse_parameters(configurations: Sequence[Configuration], requests: frozenset[str]) -> ParsedParameters:
    """Read the configuration of an allocation.

    Args:
        configurations: Of all drivers; those of others are passed over.
        requests: Names of the requests that this driver has devices for, without subrequests.

    Raises:
        RequestError: One of them cannot be read, or two of one source disagree; names the field.
    """
    ours = [each for each in configurations if _is_meant(each, requests)]
    of_class = _joined([each for each in ours if each.is_from_class])
    of_claim = _joined([each for each in ours if not each.is_from_class])
    heard = _applied(
        _applied(SliceParameters(), of_class), {name: of_claim[name] for name in of_claim if name in _FOR_CLAIMS}
    )
    is_strict = heard.is_strict or bool(of_class.get("strict"))  # a claim cannot take it back
    return ParsedParameters(
        replace(heard, is_strict=is_strict), tuple(name for name in of_claim if name not in _FOR_CLAIMS)
    )


def _is_meant(configuration: Configuration, requests: frozenset[str]) -> bool:
    named = {name.partition("/")[0] for name in configuration.requests}
    return configuration.driver == names.DRIVER and (not named or bool(named & requests))


def _joined(configurations: Sequence[Configuration]) -> dict[str, Any]:
    """Join all of one source."""
    joined: dict[str, Any] = {}
    for configuration in configurations:
        for name, value in _fields(configuration.parameters):
            if joined.setdefault(name, value) != value:
                raise RequestError(
                    f"parameters disagree about {name}: {quoted(str(joined[name]))} and {quoted(str(value))}"
                )
    return joined


def _fields(parameters: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, expected in (("apiVersion", API_VERSION), ("kind", KIND)):
        if parameters.get(name) != expected:
            raise RequestError(
                f"parameters: {name} is {quoted(str(parameters.get(name)))}, not {expected}", hint=_EXAMPLE
            )
    for name, value in parameters.items():
        if name in {"apiVersion", "kind"}:
            continue
        if name not in _READERS:
            raise RequestError(f"parameters: {quoted(name)} is no field", hint=f"there are {', '.join(_READERS)}")
        yield name, value


def _applied(parameters: SliceParameters, fields: Mapping[str, Any]) -> SliceParameters:
    changes: dict[str, Any] = {}
    for name, value in fields.items():
        attribute, read = _READERS[name]
        try:
            changes[attribute] = read(value)
        except RequestError as exc:
            raise RequestError(f"parameters: {name}: {exc}", hint=exc.hint) from exc
    return replace(parameters, **changes)


def _wait(value: object) -> float:
    if not isinstance(value, str):
        raise RequestError(f"{quoted(str(value))} is not a duration", hint='write it like "30s"')
    seconds = parse_duration_seconds(value)
    if seconds > _MOST_WAIT_SECONDS:
        raise RequestError(f"{quoted(value)} is more than an hour")
    return seconds


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise RequestError(f"{quoted(str(value))} is neither true nor false")
    return value


def _kind(value: object) -> DeviceKind:
    if not isinstance(value, str) or value not in {*DeviceKind}:
        raise RequestError(f"{quoted(str(value))} is no sharing mode", hint=f"write {', '.join(DeviceKind)}")
    return DeviceKind(value)


def _priority(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > _MOST_PRIORITY:
        raise RequestError(f"{quoted(str(value))} is no whole number from -{_MOST_PRIORITY} to {_MOST_PRIORITY}")
    return value


_READERS: dict[str, tuple[str, Callable[[object], Any]]] = {
    "waitForMemory": ("wait_for_memory_seconds", _wait),
    "strict": ("is_strict", _flag),
    "sharing": ("kind", _kind),
    "priority": ("priority", _priority),
}
_FOR_CLAIMS = frozenset({"waitForMemory", "strict"})
_EXAMPLE = f'write {{"apiVersion": "{API_VERSION}", "kind": "{KIND}", "waitForMemory": "30s"}}'
