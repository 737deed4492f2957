"""What a function says of itself is waited for as long as a start may take, whatever its calls may take."""

import asyncio
import json
import os

import pytest

from pgpu.functions.gateway.gateway_access import GatewayAccess, TokenCache
from pgpu.functions.gateway.gateway_handler import GatewayRequestHandler, describe_function
from pgpu.functions.gateway.gateway_routes import parse_route
from pgpu.functions.ipc.call_messages import Reply
from pgpu.functions.requests.prometheus_metrics import GatewayMetrics
from pgpu.functions.router.function_router import RouterTable
from pgpu.functions.scaling.replica_policy import Phase
from pgpu.model import Function, Share, Version, VersionState


class Silent:
    """A replica that is asked and never says a word."""

    version, offered_value, phase = 1, None, Phase.HOT

    def __init__(self) -> None:
        self.sent: dict[int, object] = {}

    def send(self, errand: object) -> None:
        self.sent[1] = errand
        errand.replica = self  # type: ignore[attr-defined] # as a link does

    def cancel(self, _errand: object) -> None:
        self.sent.clear()


@pytest.mark.parametrize(
    ("is_hot", "startup_seconds", "code"), [(False, 0.01, "starting_timeout"), (True, 600, "deadline")]
)
def test_a_replica_that_says_nothing_of_itself_is_not_waited_for(
    is_hot: bool,
    startup_seconds: float,
    code: str,
) -> None:
    words = json.dumps({"timeout": 3600, "startup_timeout": startup_seconds})
    version = Version("it", 1, os.geteuid(), "a:F", "0", words, "process", None, None, VersionState.READY, None, 1.0)

    async def asking() -> None:
        halls = RouterTable(GatewayMetrics())
        halls.adopt([Function("it", os.geteuid(), 1.0, (version,), (Share(1, 100),))])
        hall = halls.get("it")
        assert hall is not None
        if is_hot:
            hall.replicas["job"] = silent = Silent()  # type: ignore[assignment]
            hall.loads[1].hot.append(silent)  # type: ignore[arg-type]
        counter = GatewayRequestHandler(halls, GatewayAccess(TokenCache(None)))  # type: ignore[arg-type]
        target = parse_route("/functions/it/openapi.json")
        scope = {"method": "GET", "path": "/functions/it/openapi.json", "query_string": b""}
        answer = await describe_function(
            counter, counter.new_request(scope, {}, target, hall), target, patience_seconds=0.01
        )
        assert isinstance(answer, Reply)
        assert json.loads(bytes(answer.body))["code"] == code

    asyncio.run(asking())
