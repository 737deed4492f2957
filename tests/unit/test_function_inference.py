"""The Open Inference Protocol V2: tensors in JSON or as bytes after it, bound to parameters and written back."""

import contextlib
import json
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tests.function_calls import asked, called, reply, told

from pgpu.functions.ipc.call_messages import Reply
from pgpu.functions.protocols import ParsedCall, Refusal
from pgpu.functions.protocols.inference_request import HEADER_LENGTH
from pgpu.functions.protocols.tensors import DATATYPES, Tensor, nest

PATH = "/v2/models/it/infer"


@dataclass
class Box:
    left: int
    right: int = 1


def doubled(it: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    return it * 2


def optional(it: npt.NDArray[np.int32] | None = None) -> Any:
    return it


def anything(it, k=1):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201
    return {"it": it, "k": k}


def box(it: Box) -> Box:
    return it


def same(it: Any) -> Any:
    return it


def typed(it: list[float], text: str = "", flag: bool = False, data: bytes = b"", *, n: int = 0) -> list[Any]:
    return [it, text, flag, list(data), n]


def others(**rest: Any) -> Any:
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in rest.items()}


HANDLERS = [doubled, optional, anything, box, same, typed, others]


def tensor(name: str, datatype: str, shape: list[int], data: Any = None, **parameters: Any) -> dict[str, Any]:
    said = {"data": data} if data is not None else {}
    return {
        "name": name,
        "datatype": datatype,
        "shape": shape,
        **said,
        **({"parameters": parameters} if parameters else {}),
    }


def sent(*inputs: dict[str, Any], tail: bytes = b"", **more: Any) -> tuple[bytes, dict[str, str]]:
    head = json.dumps({"inputs": inputs, **more}).encode()
    has_tail = tail or any("binary_data_size" in each.get("parameters", {}) for each in inputs)
    return head + tail, {HEADER_LENGTH: str(len(head))} if has_tail else {"content-type": "application/json"}


def infer(handler: Callable[..., Any], *inputs: dict[str, Any], tail: bytes = b"", **more: Any) -> Reply:
    body, headers = sent(*inputs, tail=tail, **more)
    return reply(handler, body, headers, path=PATH)


def outputs(answer: Reply) -> dict[str, Any]:
    assert answer.status == 200, bytes(answer.body)
    return {each["name"]: each for each in told(answer)["outputs"]}


def test_tensors_in_json_are_flat_or_nested_and_answers_flat() -> None:
    for data in ([1, 2, 3, 4], [[1, 2], [3, 4]]):
        answer = infer(doubled, tensor("it", "FP32", [2, 2], data), id="7")
        assert told(answer) == {
            "model_name": "it",
            "model_version": "1",
            "id": "7",
            "outputs": [{"name": "output", "datatype": "FP32", "shape": [2, 2], "data": [2, 4, 6, 8]}],
        }


def test_the_binary_extension_goes_both_ways() -> None:
    data = np.arange(4, dtype="<f4")
    answer = infer(
        doubled,
        tensor("it", "FP32", [2, 2], binary_data_size=16),
        tail=data.tobytes(),
        parameters={"binary_data_output": True},
    )
    assert answer.headers["content-type"] == "application/octet-stream"
    length = int(answer.headers[HEADER_LENGTH])
    head, tail = json.loads(bytes(answer.body[:length])), bytes(answer.body[length:])
    assert head["outputs"] == [
        {"name": "output", "datatype": "FP32", "shape": [2, 2], "parameters": {"binary_data_size": 16}}
    ]
    assert np.frombuffer(tail, "<f4").tolist() == [0, 2, 4, 6]


def test_each_output_may_be_asked_for_as_bytes_or_not() -> None:
    answer = infer(
        anything,
        tensor("it", "INT8", [2], [1, 2]),
        outputs=[{"name": "k"}, {"name": "it", "parameters": {"binary_data": True}}],
    )
    length = int(answer.headers[HEADER_LENGTH])
    first, second = json.loads(bytes(answer.body[:length]))["outputs"]
    assert (first["name"], first["data"], second["parameters"]) == ("k", [1], {"binary_data_size": 2})
    assert bytes(answer.body[length:]) == b"\1\2"


def test_an_optional_array_is_an_array() -> None:
    assert outputs(infer(optional, tensor("it", "INT16", [1], [3])))["output"]["datatype"] == "INT32"


def test_names_of_the_only_input_and_output_are_the_clients() -> None:
    answer = infer(doubled, tensor("INPUT0", "FP32", [1], [1]), outputs=[{"name": "OUTPUT0"}])
    assert outputs(answer)["OUTPUT0"]["data"] == [2]


@pytest.mark.parametrize(
    ("name", "given_tensor", "tail", "index", "expected"),
    [
        ("text", tensor("text", "BYTES", [1], ["grüß"]), b"", 1, "grüß"),
        ("text", tensor("text", "BYTES", [1], binary_data_size=6), b"\2\0\0\0hi", 1, "hi"),
        ("flag", tensor("flag", "BOOL", [1, 1], [True]), b"", 2, True),
        ("data", tensor("data", "BYTES", [1], binary_data_size=6), b"\2\0\0\0\xff\xfe", 3, [255, 254]),
        ("data", tensor("data", "UINT8", [2], [255, 254]), b"", 3, [255, 254]),
        ("n", tensor("n", "INT64", [], 5), b"", 4, 5),
        ("it", tensor("it", "BF16", [2], binary_data_size=4), b"\x80\x3f\x00\x40", 0, [1.0, 2.0]),
        ("it", tensor("it", "FP16", [1], binary_data_size=2), b"\x00\x3c", 0, [1.0]),
    ],
)
def test_elements_become_numbers_text_and_bytes(
    name: str, given_tensor: dict[str, Any], tail: bytes, index: int, expected: Any
) -> None:
    inputs = [given_tensor] if name == "it" else [given_tensor, tensor("it", "FP64", [0], [])]
    answer = infer(typed, *inputs, tail=tail)
    assert json.loads(outputs(answer)["output"]["data"][0])[index] == expected


def test_every_function_can_be_called_since_one_element_may_hold_json() -> None:
    answer = infer(box, tensor("it", "BYTES", [1], ['{"left": 3}']))
    assert {name: each["data"] for name, each in outputs(answer).items()} == {"left": [3], "right": [1]}
    answer = infer(typed, tensor("it", "FP32", [1], [1]), parameters={"n": 3, "binary_data_output": False})
    assert outputs(answer)["output"]["parameters"] == {"content_type": "application/json"}
    assert json.loads(outputs(answer)["output"]["data"][0])[-1] == 3


@pytest.mark.parametrize(
    ("handler", "inputs", "tail", "status", "error"),
    [
        (doubled, [tensor("it", "FP32", [2, 2], [1, 2, 3])], b"", 422, "3 elements and its shape 4"),
        (doubled, [tensor("it", "FP32", [2, 2], [[1, 2, 3], [4]])], b"", 422, "not nested like its shape"),
        (doubled, [tensor("it", "FP32", [2, 2, 1], [[[1]], [[2], [3], [4]]])], b"", 422, "not nested like its shape"),
        (doubled, [tensor("it", "FP32", [2, 2], [[[1]]])], b"", 422, "neither flat nor nested"),
        (doubled, [tensor("it", "FP32", [1], ["1"])], b"", 422, "Expected `float`"),
        (doubled, [tensor("it", "FP64", [1], [1])], b"", 422, "FP64 does not fit into float32"),
        (doubled, [tensor("it", "FP16", [1], [1e9])], b"", 422, "FP16 does not"),
        (anything, [tensor("it", "UINT8", [1], [256])], b"", 422, "<= 255"),
        (anything, [tensor("it", "UINT64", [1], [2**64])], b"", 422, "UINT64 does not"),
        (doubled, [tensor("it", "FP32", [2], binary_data_size=7)], b"1234567", 422, "7 bytes, its type and shape 8"),
        (same, [tensor("it", "BYTES", [1], binary_data_size=6)], b"\3\0\0\0hi", 422, "not as many strings"),
        (same, [tensor("it", "BYTES", [2**40], ["a"])], b"", 422, "1 elements and its shape 1099511627776"),
        (same, [tensor("it", "BYTES", [2**40] * 9, binary_data_size=0)], b"", 422, "not as many strings"),
        (doubled, [tensor("it", "FP32", [2**40, 2**40, 2**40], [1])], b"", 422, "1 elements and its shape"),
        (doubled, [tensor("it", "FP32", [2**40, 0], [])], b"", 400, "no elements and a shape of more than 65536 rows"),
        (doubled, [tensor("it", "FP32", [0, 2**40, 2**40], binary_data_size=0)], b"", 400, "no elements"),
        (box, [tensor("it", "BYTES", [1], ["{"])], b"", 400, "not JSON"),
        (box, [tensor("it", "BYTES", [1], ['{"left": "x"}'])], b"", 422, "`$.left`"),
        (
            doubled,
            [tensor("it", "FP32", [2], binary_data_size=4)],
            b"12345678",
            400,
            "4 bytes of binary data, the body 8",
        ),
        (doubled, [tensor("it", "FP32", [2], binary_data_size=80)], b"12345678", 400, "80 bytes of binary data"),
        (doubled, [tensor("it", "FP32", [2], binary_data_size=-8)], b"12345678", 400, "no number of bytes"),
        (doubled, [tensor("it", "FP32", [1], [1], binary_data_size=4)], b"1234", 400, "data twice"),
        (doubled, [tensor("it", "FP32", [1])], b"", 400, "has no data"),
        (doubled, [tensor("it", "FP128", [1], [1])], b"", 400, "a datatype that is not in V2"),
        (doubled, [tensor("it", "FP32", [-1], [1])], b"", 400, "Expected `int` >= 0"),
        (doubled, [tensor("it", "FP32", [1] * 33, [1])], b"", 400, "length <= 32"),
        (doubled, [tensor("it", "FP32", [1], shared_memory_region="x")], b"", 400, "shared memory"),
        (doubled, [tensor("it", "FP32", [1], [1]), tensor("it", "FP32", [1], [1])], b"", 400, "one name"),
        (anything, [tensor("k", "INT8", [1], [1])], b"", 422, "input 'it' is missing"),
        (anything, [tensor("it", "INT8", [1], [1]), tensor("q", "INT8", [1], [1])], b"", 422, "no input 'q'"),
        (doubled, [], b"", 422, "input 'it' is missing"),
    ],
)
def test_what_does_not_add_up_is_the_callers_error(
    handler: Callable[..., Any], inputs: list[dict[str, Any]], tail: bytes, status: int, error: str
) -> None:
    answer = infer(handler, *inputs, tail=tail)
    assert (answer.status, error in told(answer)["error"]) == (status, True), bytes(answer.body)


@pytest.mark.parametrize("length", ["-1", "1e3", "", "999999", "٣", "9" * 5000])
def test_a_length_that_is_none_within_the_body_is_refused(length: str) -> None:
    assert reply(doubled, b'{"inputs": []}', {HEADER_LENGTH: length}, path=PATH).status == 400


def test_an_output_that_the_function_does_not_give_is_refused() -> None:
    answer = infer(anything, tensor("it", "INT8", [1], [1]), outputs=[{"name": "z"}])
    assert (answer.status, told(answer)["code"]) == (422, "bad_input")


def test_an_array_may_be_written_to_and_shares_memory_that_may_be() -> None:
    body, headers = sent(tensor("it", "INT8", [4], binary_data_size=4), tail=b"\1\2\3\4")
    for received, shares in ((bytes(body), False), (bytearray(body), True)):
        found = asked(same, received, headers, path=PATH)
        assert isinstance(found, ParsedCall)
        (array,) = found.values
        array += 1
        assert array.tolist() == [2, 3, 4, 5]
        assert (received[-4:] == b"\2\3\4\5") is shares


def test_a_handler_without_numpy_gets_plain_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "numpy")
    answer = infer(
        same,
        tensor("it", "INT16", [2, 2], binary_data_size=8),
        tail=struct.pack("<4h", 1, 2, 3, 4),
        outputs=[{"name": "output", "parameters": {"binary_data": True}}],
    )
    head = int(answer.headers[HEADER_LENGTH])
    assert json.loads(bytes(answer.body[:head]))["outputs"][0]["shape"] == [2, 2]
    assert struct.unpack("<4q", bytes(answer.body[head:])) == (1, 2, 3, 4)


numeric = [name for name, each in DATATYPES.items() if each.numpy]


@given(st.data(), st.sampled_from(numeric), st.booleans(), st.booleans())
def test_a_tensor_goes_through_unchanged_in_every_form(
    data: st.DataObject, datatype: str, is_binary: bool, wants: bool
) -> None:
    dtype = np.dtype(DATATYPES[datatype].numpy)
    finite = {"allow_nan": False, "allow_infinity": False} if dtype.kind == "f" else {}
    array = data.draw(arrays.arrays(dtype, arrays.array_shapes(min_dims=0, max_dims=3, max_side=3), elements=finite))
    given_tensor = (
        tensor("it", datatype, list(array.shape), binary_data_size=array.nbytes)
        if is_binary
        else tensor("it", datatype, list(array.shape), array.ravel().tolist())
    )
    answer = infer(
        same, given_tensor, tail=array.tobytes() if is_binary else b"", parameters={"binary_data_output": wants}
    )
    length = int(answer.headers.get(HEADER_LENGTH, len(answer.body)))
    (output,) = json.loads(bytes(answer.body[:length]))["outputs"]
    came = np.frombuffer(bytes(answer.body[length:]), dtype) if wants else np.array(output["data"], dtype)
    assert (output["datatype"], output["shape"]) == (datatype, list(array.shape) or [1])
    assert came.tobytes() == array.tobytes() or (came == array.ravel()).all()


@given(arrays.arrays("<i4", arrays.array_shapes(min_side=1, max_dims=4, max_side=3)))
def test_elements_nest_like_their_shape(array: npt.NDArray[np.int32]) -> None:
    assert nest(array.ravel().tolist(), array.shape) == array.tolist()
    assert Tensor("it", "INT32", array.shape, json.dumps(array.tolist()).encode()).as_lists() == array.tolist()


small = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=5,
)
tensors = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["it", "k", "text", "n", "z"]) | small,
        "datatype": st.sampled_from(list(DATATYPES)) | small,
        "shape": st.lists(st.integers(-1, 3), max_size=3) | small,
    },
    optional={
        "data": st.lists(st.integers(0, 5) | st.text(max_size=2) | st.booleans(), max_size=4) | small,
        "parameters": st.fixed_dictionaries({}, optional={"binary_data_size": st.integers(-1, 20) | small}) | small,
    },
)
heads = st.fixed_dictionaries(
    {"inputs": st.lists(tensors, max_size=3) | small},
    optional={"id": small, "outputs": st.lists(tensors, max_size=2) | small, "parameters": small},
)


@given(st.sampled_from(HANDLERS), heads | small, st.binary(max_size=24), st.sampled_from([None, 0, 0, 3, 10**6]))
def test_no_request_makes_anything_but_arguments_or_a_refusal_of_the_caller(
    handler: Callable[..., Any], head: Any, tail: bytes, off_by: int | None
) -> None:
    encoded = json.dumps(head).encode()
    headers = {} if off_by is None else {HEADER_LENGTH: str(len(encoded) + off_by)}
    found = asked(handler, encoded + tail, headers, path=PATH)
    if isinstance(found, Refusal):
        assert 400 <= found.status < 500
        return
    with contextlib.suppress(ArithmeticError, TypeError):  # of the handler itself
        answer = found.form.write(called(handler, found))
        assert isinstance(answer, Reply) or answer.status in {422, 500}
