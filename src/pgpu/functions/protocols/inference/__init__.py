"""The Open Inference Protocol V2 with its binary extension: named tensors in, named tensors out.

Source: https://github.com/kserve/open-inference-protocol and Triton's "Binary Tensor Data Extension". It refuses shared
memory and classification, which need state between calls, and never copies a tensor that it can view.
"""

from pgpu.functions.protocols.inference.answers import InferenceForm
from pgpu.functions.protocols.inference.binding import TensorReader
from pgpu.functions.protocols.inference.metadata import model_metadata
from pgpu.functions.protocols.inference.requests import HEADER_LENGTH, InferenceRequest, read_request

__all__ = ["HEADER_LENGTH", "InferenceForm", "InferenceRequest", "TensorReader", "model_metadata", "read_request"]
