"""What a function says about itself: its OpenAPI is valid, and allows what its reader takes and nothing else."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import jsonschema
import msgspec
import numpy as np
import numpy.typing as npt
import pydantic
import pytest
from tests.function_calls import asked, values

from pgpu.functions.api import Declaration
from pgpu.functions.handler import signature_of
from pgpu.functions.protocols import Refusal, example_body, openapi, pages


class Corner(pydantic.BaseModel):
    x: int


class Model(pydantic.BaseModel):
    corners: list[Corner]


def detect(image: bytes, top_k: int = 10) -> list[float]:
    """Find things."""
    return [0.5] * top_k * len(image)


def prompt(text: str, mood: str | None = None) -> Iterator[str]:
    yield text + str(mood)


def models(model: Model, **others: int) -> object:
    return model, others


def embed(it: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    return it.astype(np.float64)


HANDLERS: list[Callable[..., Any]] = [detect, prompt, models, embed]


def described(handler: Callable[..., Any]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(pages("it", signature_of(handler), Declaration())["/openapi.json"])
    return found


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from ([value["$ref"]] if isinstance(value.get("$ref"), str) else [])
        value = list(value.values())
    for each in value if isinstance(value, list) else []:
        yield from references(each)


@pytest.mark.parametrize("handler", HANDLERS)
def test_every_reference_leads_somewhere_and_every_operation_has_its_own_id(handler: Callable[..., Any]) -> None:
    document = described(handler)
    ids = [operation["operationId"] for path in document["paths"].values() for operation in path.values()]
    assert len(set(ids)) == len(ids)
    for each in references(document):
        _, *path = each.split("/")
        found = document
        for part in path:
            found = found[part]


@pytest.mark.parametrize(
    ("handler", "body", "is_allowed"),
    [
        (detect, {"image": "aGk=", "top_k": 3}, True),
        (detect, {"image": "aGk=", "topk": 3}, False),
        (detect, {"top_k": 3}, False),
        (prompt, {"text": "a", "mood": None}, True),
        (prompt, {"text": 1}, False),
        (models, {"model": {"corners": [{"x": 1}]}, "more": 1}, True),
        (models, {"model": {"corners": [{"x": 1}]}, "more": "1"}, False),
        (models, {"model": {"corners": [{}]}}, False),
        (embed, [[1, 2], [3, 4]], True),
        (embed, {"it": [1]}, True),
        (embed, {"it": ["a"]}, False),
    ],
)
def test_the_schema_allows_what_the_reader_takes(handler: Callable[..., Any], body: Any, is_allowed: bool) -> None:
    document = described(handler)
    schema = document["paths"]["/functions/it"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    validator = jsonschema.Draft202012Validator({**schema, "components": document["components"]})
    assert validator.is_valid(body) is is_allowed
    assert (values(handler, json.dumps(body).encode())[0] == 422) is not is_allowed


def test_a_page_says_how_to_call_and_what_comes() -> None:
    operation = openapi("it", signature_of(detect), Declaration())["paths"]["/functions/it"]["post"]
    assert operation["summary"] == "Find things."
    assert list(operation["requestBody"]["content"])[:2] == ["*/*", "application/json"]
    assert [each["name"] for each in operation["parameters"]] == ["Request-Timeout", "top_k"]
    assert operation["responses"]["200"]["content"]["application/json"]["schema"] == {
        "type": "array",
        "items": {"type": "number"},
    }
    stream = openapi("it", signature_of(prompt), Declaration())["paths"]["/functions/it"]["post"]["responses"]["200"][
        "content"
    ]
    assert list(stream)[:2] == ["text/event-stream", "application/x-ndjson"]


def test_a_function_is_a_model_of_v2() -> None:
    found = pages("it", signature_of(embed), Declaration(), "3")
    assert json.loads(found["/v2"])["extensions"] == ["binary_tensor_data"]
    assert (
        json.loads(found["/v2/models/it"])
        == json.loads(found["/v2/models/it/versions/3"])
        == {
            "name": "it",
            "versions": ["3"],
            "platform": "pgpu",
            "inputs": [{"name": "it", "datatype": "FP32", "shape": [-1]}],
            "outputs": [{"name": "output", "datatype": "FP64", "shape": [-1]}],
        }
    )
    inputs = json.loads(pages("it", signature_of(detect), Declaration())["/v2/models/it"])["inputs"]
    assert [(each["datatype"], each["shape"]) for each in inputs] == [("BYTES", [1]), ("INT64", [1])]


@dataclass
class Tree:
    name: str
    kind: Literal["leaf", "branch"]
    sizes: list[int]
    parts: "list[Tree]"
    note: "Tree | None"
    weight: Annotated[float, msgspec.Meta(ge=3)]
    age: int = 4


def test_an_example_is_a_request_that_is_taken() -> None:
    def grow(
        tree: Tree, image: npt.NDArray[np.float32], count: int, rest: int | None, key: bytes, top: int = 3
    ) -> None:
        """Take whatever there is."""

    body = example_body(signature_of(grow))
    assert set(body) == {"tree", "image", "count", "rest", "key"}
    assert not isinstance(asked(grow, json.dumps(body).encode()), Refusal)
    for handler in HANDLERS:
        assert not isinstance(asked(handler, json.dumps(example_body(signature_of(handler))).encode()), Refusal)


def test_a_client_made_of_the_description_may_show_a_token_and_need_not() -> None:
    document = described(detect)
    assert document["security"] == [{"token": []}, {}]
    assert document["components"]["securitySchemes"]["token"]["scheme"] == "bearer"
