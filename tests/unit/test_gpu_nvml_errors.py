import pynvml
import pytest

from pgpu.errors import NodeError, PgpuBug
from pgpu.gpu.nvml_errors import _HINTS, _OUR_FAULT, nvml_errors_translated, translate_error

ERRORS = sorted(
    ((name, value) for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")), key=lambda pair: pair[1]
)


def test_pynvml_still_knows_the_errors_this_test_walks() -> None:
    assert len(ERRORS) >= 30
    assert {value for _, value in ERRORS} == {error(value).value for value, error in _classes().items()}


@pytest.mark.parametrize(("name", "value"), ERRORS)
def test_every_nvml_error_is_mapped_exactly_once(name: str, value: int) -> None:
    assert (value in _HINTS) != (value in _OUR_FAULT), name


@pytest.mark.parametrize(("name", "value"), ERRORS)
def test_an_nvml_error_says_what_was_attempted_and_who_must_act(name: str, value: int) -> None:
    error = translate_error(pynvml.NVMLError(value), "read the memory of GPU-1")
    assert str(error).startswith("cannot read the memory of GPU-1: NVML reports ")
    assert isinstance(error, PgpuBug if value in _OUR_FAULT else NodeError), name
    assert (error.hint is None) == (value in _OUR_FAULT)


def test_an_error_code_of_a_newer_nvml_is_reported_with_its_number() -> None:
    error = translate_error(pynvml.NVMLError(12345), "list the GPUs")
    assert isinstance(error, PgpuBug)
    assert "12345" in str(error)


def test_an_nvml_error_leaves_a_block_as_ours_with_its_cause() -> None:
    with pytest.raises(NodeError) as caught, nvml_errors_translated("list the GPUs"):
        raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
    assert isinstance(caught.value.__cause__, pynvml.NVMLError)


def _classes() -> dict[int, type[pynvml.NVMLError]]:
    return dict(pynvml.NVMLError._valClassMapping)
