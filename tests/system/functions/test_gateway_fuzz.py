"""Whatever a gateway is asked, it answers, and blames itself for nothing."""

from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.system.functions.gateways import Gateway, free_port, function, gateway

NAMES = st.sampled_from(["echo", "reverse", "nobody"])


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Gateway, int]]:
    port = free_port()
    functions = [function("echo", "Echo", public=True), function("reverse", "Reverse", public=True)]
    with gateway(*functions, words=(str(port),)) as made:
        yield made, port


@pytest.mark.parametrize(("document", "fewest"), [("/openapi.json", 16), ("/functions/echo/openapi.json", 1)])
def test_nothing_that_is_asked_breaks_the_gateway(served: tuple[Gateway, int], document: str, fewest: int) -> None:
    """What the gateway says of itself, and what a function of it says of its own."""
    made, port = served
    api = schemathesis.openapi.from_url(f"http://127.0.0.1:{port}{document}")
    operations: list[Any] = [found.ok() for found in list[Any](api.get_all_operations())]
    assert len(operations) >= fewest
    for operation in operations:

        @given(case=operation.as_strategy(), name=NAMES)
        @settings(max_examples=15, deadline=None, derandomize=True, database=None, suppress_health_check=[*HealthCheck])
        def ask(case: Any, name: str) -> None:
            if "name" in (case.path_parameters or {}):
                case.path_parameters["name"] = name
            answer = case.call()
            is_own_wish = answer.status_code == 504 and "Request-Timeout" in (case.headers or {})
            assert answer.status_code < 500 or is_own_wish, f"{case.as_curl_command()}\n{answer.text}"

        ask()
    assert made.call("echo", {"x": 1}).status == 200


@settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=[*HealthCheck])
@given(
    body=st.binary(max_size=200) | st.sampled_from([b'{"id":"1","source":"s","specversion":"1.0"}', b'{"inputs":[]}']),
    kind=st.sampled_from(
        ["application/json", "application/cloudevents+json", "application/octet-stream", "x", "a/b;c=\xff"]
    ),
    path=st.sampled_from(["/functions/echo", "/v2/models/echo/infer", "/v2/models/echo/versions/1/infer"]),
    extra=st.sampled_from(
        [{}, {"ce-id": "1", "ce-source": "s"}, {"inference-header-content-length": "3"}, {"prefer": "x"}]
    ),
)
def test_malformed_tensors_and_events_are_their_callers_error(
    served: tuple[Gateway, int], body: bytes, kind: str, path: str, extra: dict[str, str]
) -> None:
    made, _ = served
    answer = made.call(
        "", body, path, content_type=kind, **{key.replace("-", "_"): word for key, word in extra.items()}
    )
    assert 200 <= answer.status < 500


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
TENSORS = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["x", "body", ""]) | JSONS,
        "datatype": st.sampled_from(["INT64", "FP16", "BYTES", "BOOL", "INT65"]) | JSONS,
        "shape": st.lists(st.sampled_from([0, 1, 2, -1, 1 << 40, 1 << 63]), max_size=3) | JSONS,
    },
    optional={
        "data": st.lists(JSONS, max_size=3) | JSONS,
        "parameters": st.just({"binary_data_size": 1 << 40}) | JSONS,
    },
)
TENSOR_REQUESTS = st.fixed_dictionaries({"inputs": st.lists(TENSORS, max_size=2) | JSONS}, optional={"outputs": JSONS})
EVENTS = st.fixed_dictionaries(
    {"specversion": st.just("1.0") | JSONS, "id": st.just("1") | JSONS, "source": st.just("s") | JSONS},
    optional={
        "type": JSONS,
        "data": JSONS,
        "data_base64": st.just("=") | JSONS,
        "datacontenttype": JSONS,
        "subject": JSONS,
    },
)


@settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=[*HealthCheck])
@given(name=st.sampled_from(["echo", "reverse"]), body=TENSOR_REQUESTS)
def test_tensors_that_are_nearly_right_are_their_callers_error(
    served: tuple[Gateway, int], name: str, body: object
) -> None:
    answer = served[0].call(name, body, f"/v2/models/{name}/infer")
    assert 200 <= answer.status < 500


@settings(max_examples=60, deadline=None, derandomize=True, database=None, suppress_health_check=[*HealthCheck])
@given(name=st.sampled_from(["echo", "reverse"]), body=EVENTS)
def test_events_that_are_nearly_right_are_their_callers_error(
    served: tuple[Gateway, int], name: str, body: object
) -> None:
    answer = served[0].call(name, body, content_type="application/cloudevents+json")
    assert 200 <= answer.status < 500
