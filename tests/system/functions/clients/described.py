"""Calls a function by its OpenAPI alone, with a client that knows nothing else of it: `described.py HOST:PORT`."""

import sys

from aiopenapi3 import OpenAPI

function = OpenAPI.load_sync(f"http://{sys.argv[1]}/openapi.json")
function.authenticate(token="as at a gateway")
answer = function._.call(data={"order": {"item": "cat", "count": 3}})
assert (answer.item, answer.count) == ("cat", 3), answer
assert function._.ready()
