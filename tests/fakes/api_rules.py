"""What an API server refuses or drops: by RBAC, by feature gates, and by the validation of ResourceSlices.

The rules of slices are those of Kubernetes 1.36 (pkg/apis/resource/validation, pkg/registry/resource/resourceslice), as far
as pgpu's slices can break them.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lightkube.utils.quantity import parse_quantity
from tests.fakes.api_objects import Object

Rules = Sequence[Mapping[str, Sequence[str]]]
"""Of a ClusterRole: `apiGroups`, `resources`, `verbs`, `resourceNames`."""

CONSUMABLE_CAPACITY = "DRAConsumableCapacity"
PARTITIONABLE_DEVICES = "DRAPartitionableDevices"
DEVICE_TAINTS = "DRADeviceTaints"
EXTENDED_RESOURCE = "DRAExtendedResource"
GATES = frozenset({CONSUMABLE_CAPACITY, PARTITIONABLE_DEVICES, DEVICE_TAINTS, EXTENDED_RESOURCE})
"""On by default in 1.36, off in 1.34 and 1.35."""

_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_SUBDOMAIN = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
_VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


def allows(rules: Rules, verb: str, group: str, resource: str, name: str) -> bool:
    """Whether a role's rules allow a verb on `plural` or `plural/subresource`."""
    return any(
        _names(rule, "apiGroups", group)
        and _names(rule, "resources", resource)
        and _names(rule, "verbs", verb)
        and (not rule.get("resourceNames") or name in rule["resourceNames"])
        for rule in rules
    )


def _names(rule: Mapping[str, Sequence[str]], key: str, wanted: str) -> bool:
    return wanted in rule.get(key, ()) or "*" in rule.get(key, ())


def without_gated(found: Object, gates: Iterable[str]) -> Object:
    """Drop from a slice or a class the fields of disabled feature gates; like the API server, without a message."""
    spec = found.get("spec", {})
    if EXTENDED_RESOURCE not in gates:
        spec.pop("extendedResourceName", None)
    if PARTITIONABLE_DEVICES not in gates:
        spec.pop("sharedCounters", None)
    for device in spec.get("devices") or []:
        if PARTITIONABLE_DEVICES not in gates:
            device.pop("consumesCounters", None)
        if DEVICE_TAINTS not in gates:
            device.pop("taints", None)
        if CONSUMABLE_CAPACITY not in gates:
            device.pop("allowMultipleAllocations", None)
            for capacity in device.get("capacity", {}).values():
                capacity.pop("requestPolicy", None)
    return found


def wrongs(found: Object) -> list[str]:
    """Return the validation errors of a ResourceSlice; empty if it is valid."""
    spec = found["spec"]
    devices, counters = spec.get("devices") or [], spec.get("sharedCounters") or []
    said = [] if _SUBDOMAIN.fullmatch(found["metadata"]["name"]) else ["metadata.name: must be a DNS subdomain"]
    if devices and counters:
        said.append("spec: only one of `devices` and `sharedCounters` may be set")
    if spec["pool"]["resourceSliceCount"] < 1 or spec["pool"]["generation"] < 0:
        said.append("spec.pool: resourceSliceCount must be greater than zero, generation not negative")
    is_advanced = any(device.get("taints") or device.get("consumesCounters") for device in devices)
    if len(devices) > (64 if is_advanced else 128):
        said.append("spec.devices: too many")
    names = [device["name"] for device in devices]
    if len(set(names)) < len(names):
        said.append("spec.devices: duplicate")
    return said + _of_counters(counters) + [wrong for device in devices for wrong in _of_device(device)]


def _of_counters(sets: Sequence[Object]) -> list[str]:
    said = ["spec.sharedCounters: must have at most 8 items"] if len(sets) > 8 else []
    for each in sets:
        names = [each["name"], *each.get("counters", {})]
        if not all(_LABEL.fullmatch(name) for name in names):
            said.append(f"spec.sharedCounters: {names} must be DNS labels")
        if not 1 <= len(each.get("counters", {})) <= 32:
            said.append("spec.sharedCounters.counters: 1 to 32")
    return said


def _of_device(device: Object) -> list[str]:
    said = [] if _LABEL.fullmatch(device["name"]) else [f"spec.devices.name: {device['name']} must be a DNS label"]
    attributes, capacities = device.get("attributes", {}), device.get("capacity", {})
    if len(attributes) + len(capacities) > 32:
        said.append("spec.devices: more than 32 attributes and capacities")
    said += [
        f"spec.devices: {name} is no C identifier"
        for name in attributes | capacities
        if not _IDENTIFIER.fullmatch(name)
    ]
    for attribute in attributes.values():
        said += _of_attribute(attribute)
    if len(device.get("consumesCounters", [])) > 2 or len(device.get("taints", [])) > 16:
        said.append("spec.devices: too many counters or taints")
    for taint in device.get("taints", []):
        said += _of_taint(taint)
    for capacity in capacities.values():
        said += _of_capacity(capacity, shared=bool(device.get("allowMultipleAllocations")))
    return said


def _of_attribute(attribute: Object) -> list[str]:
    ((kind, value),) = attribute.items()
    if kind in {"string", "version"} and len(value) > 64:
        return ["spec.devices.attributes: longer than 64"]
    if kind == "version" and not _VERSION.fullmatch(value):
        return [f"spec.devices.attributes: {value} must be a string compatible with semver.org spec 2.0.0"]
    return []


def _of_taint(taint: Object) -> list[str]:
    if taint.get("effect") not in {"NoSchedule", "NoExecute", "None"}:
        return ["spec.devices.taints.effect: unsupported"]
    return [] if _LABEL_VALUE.fullmatch(taint.get("value", "")) else ["spec.devices.taints.value: no label value"]


def _of_capacity(capacity: Object, *, shared: bool) -> list[str]:
    policy = capacity.get("requestPolicy")
    if policy is None:
        return []
    if not shared:
        return ["spec.devices.capacity.requestPolicy: allowMultipleAllocations must be true"]
    value, default = _number(capacity["value"]), _number(policy["default"])
    if "validValues" in policy:
        return _of_values(value, default, [_number(text) for text in policy["validValues"]])
    return _of_range(value, default, policy["validRange"])


def _of_values(value: Any, default: Any, valid: list[Any]) -> list[str]:
    if len(valid) > 10 or valid != sorted(set(valid)) or valid[-1] > value or default not in valid:
        return [f"spec.devices.capacity: {default} of {valid}, at most {value}, at most 10, does not hold"]
    return []


def _of_range(value: Any, default: Any, valid: Object) -> list[str]:
    least = _number(valid["min"])
    most = _number(valid["max"]) if "max" in valid else value
    step = _number(valid["step"]) if "step" in valid else None
    if not least <= default <= most <= value:
        return [f"spec.devices.capacity: {least} ≤ {default} ≤ {most} ≤ {value} does not hold"]
    if step is not None and (least + step > value or (default - least) % step or (most - least) % step):
        return [f"spec.devices.capacity: step {step} does not fit {least} to {most}, {default}"]
    return []


def _number(text: str) -> Any:
    return parse_quantity(text)
