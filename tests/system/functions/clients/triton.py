"""Calls a model of V2 with NVIDIA's own client, as its users do: `triton.py HOST:PORT`."""

import sys

import numpy as np
import pytest
import tritonclient.http as triton

client = triton.InferenceServerClient(sys.argv[1])
assert client.is_server_live()
assert client.is_server_ready()
assert client.is_model_ready("scaler")
assert client.get_server_metadata()["extensions"] == ["binary_tensor_data"]
assert [each["name"] for each in client.get_model_metadata("scaler")["inputs"]] == ["image", "factor"]

image = np.arange(6, dtype=np.float32).reshape(2, 3)
for is_binary in (True, False):
    given = triton.InferInput("image", image.shape, "FP32")
    given.set_data_from_numpy(image, binary_data=is_binary)
    wanted = triton.InferRequestedOutput("output", binary_data=is_binary)
    answer = client.infer("scaler", [given], outputs=[wanted], parameters={"factor": 3.0}, request_id="mine")
    assert np.array_equal(answer.as_numpy("output"), image * 3)
    assert answer.get_response()["id"] == "mine"
assert np.array_equal(client.async_infer("scaler", [given]).get_result().as_numpy("output"), image * 2)

unknown = triton.InferInput("nothing", [1], "FP32")
unknown.set_data_from_numpy(np.zeros(1, np.float32))
with pytest.raises(triton.InferenceServerException, match="no input 'nothing'") as refused:
    client.infer("scaler", [given, unknown])
assert refused.value.status() == "422"
