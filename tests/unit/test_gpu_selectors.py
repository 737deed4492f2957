"""Selectors of nodes and of devices exclude a GPU only where that is sure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pgpu.kubernetes.extender.gpu_selectors import LabelRequirement, admits_device, admits_node
from pgpu.kubernetes.extender.scheduled_objects import SharedGpu
from pgpu.units import GIB

A100 = SharedGpu(
    "",
    40 * GIB,
    4 * GIB,
    GIB,
    "NVIDIA A100",
    frozenset({("productName", "NVIDIA A100"), ("cudaComputeCapability", (8, 0, 0))}),
)
ATTRIBUTES = 'device.attributes["gpu.pgpu.io"]'
MEMORY = 'device.capacity["gpu.pgpu.io"].memory'


@pytest.mark.parametrize(
    "expression",
    [
        f'{ATTRIBUTES}.productName == "NVIDIA A100"',
        f"{ATTRIBUTES}['productName'] != 'Tesla T4'",
        f'{ATTRIBUTES}.productName in ["NVIDIA A100", "Tesla T4"]',
        f'!({ATTRIBUTES}.productName == "Tesla T4")',
        f'{ATTRIBUTES}.productName.startsWith("NVIDIA") && device.driver == "gpu.pgpu.io"',
        f'{ATTRIBUTES}.productName == "Tesla T4" ||\n{ATTRIBUTES}.productName.contains("A100")',
        f'{MEMORY}.compareTo(quantity("40Gi")) >= 0',
        f'{MEMORY}.isGreaterThan(quantity("39Gi"))',
        f'{ATTRIBUTES}.cudaComputeCapability.compareTo(semver("8.0.0")) >= 0',
    ],
)
def test_a_device_that_a_selector_selects_is_admitted(expression: str) -> None:
    assert admits_device(expression, A100.fields)


@pytest.mark.parametrize(
    "expression",
    [
        f'{ATTRIBUTES}.productName == "Tesla T4"',
        f'{ATTRIBUTES}.productName in ["Tesla T4"]',
        f'{ATTRIBUTES}.uuid == "GPU-1" && {ATTRIBUTES}.productName == "Tesla T4"',
        f'device.allowMultipleAllocations && {MEMORY}.compareTo(quantity("80Gi")) >= 0',
        f'{ATTRIBUTES}.cudaComputeCapability.isGreaterThan(semver("8.9.0"))',
        "false",
    ],
)
def test_a_device_that_a_selector_surely_excludes_is_not_admitted(expression: str) -> None:
    assert not admits_device(expression, A100.fields)


@pytest.mark.parametrize(
    "expression",
    [
        f'{ATTRIBUTES}.uuid == "GPU-1"',
        f'{ATTRIBUTES}.uuid == "GPU-1" || {ATTRIBUTES}.productName == "Tesla T4"',
        f"!{ATTRIBUTES}.simulated",
        f'{ATTRIBUTES}.productName.matches("T4")',
        f"{ATTRIBUTES}.productName < 3",
        f"{ATTRIBUTES}.productName.contains(3)",
        'device.attributes["gpu.nvidia.com"].productName == "Tesla T4"',
        f"has({ATTRIBUTES}.model) ? false : true",
        'quantity("lots").compareTo(quantity("1")) < 0',
        f"{ATTRIBUTES}.productName ==",
        "(" * 5000,
        "!" * 5000 + "true",
        "9" * 5000 + " == 1",
        "\0",
        "__import__('os').getpid() == 0",
    ],
)
def test_what_cannot_be_read_admits(expression: str) -> None:
    assert admits_device(expression, A100.fields)


@given(st.text(alphabet="devic.attributs[\"gpnoNam]=!&|() 10\\'", max_size=60))
def test_any_text_is_a_selector(expression: str) -> None:
    assert admits_device(expression, A100.fields) in {True, False}


LABELS = {"nvidia.com/gpu.product": "NVIDIA-A100", "gpus": "8", "zone": "a"}


@pytest.mark.parametrize(
    ("requirement", "is_met"),
    [
        (LabelRequirement("zone", "In", ("a", "b")), True),
        (LabelRequirement("zone", "In", ("b",)), False),
        (LabelRequirement("zone", "NotIn", ("b",)), True),
        (LabelRequirement("rack", "NotIn", ("b",)), True),
        (LabelRequirement("rack", "In", ("b",)), False),
        (LabelRequirement("zone", "Exists"), True),
        (LabelRequirement("rack", "DoesNotExist"), True),
        (LabelRequirement("gpus", "Gt", ("4",)), True),
        (LabelRequirement("gpus", "Lt", ("4",)), False),
        (LabelRequirement("zone", "Gt", ("4",)), False),
        (LabelRequirement("zone", "Near", ("a",)), False),
    ],
)
def test_a_node_is_admitted_by_its_labels(requirement: LabelRequirement, is_met: bool) -> None:
    assert admits_node(((requirement,),), LABELS) is is_met


def test_of_terms_one_must_hold_and_of_its_requirements_all() -> None:
    is_a, is_b = LabelRequirement("zone", "In", ("a",)), LabelRequirement("zone", "In", ("b",))

    assert admits_node((), LABELS)
    assert admits_node(((is_b,), (is_a,)), LABELS)
    assert not admits_node(((is_a, is_b),), LABELS)
