"""The Open Inference Protocol V2 with its binary extension: named tensors in, named tensors out.

Source: https://github.com/kserve/open-inference-protocol and Triton's "Binary Tensor Data Extension". It refuses shared
memory and classification, which need state between calls, and never copies a tensor that it can view.
"""

from pgpu.functions.protocols.inference.inference_answer import InferenceWriter
from pgpu.functions.protocols.inference.inference_request import HEADER_LENGTH, InferenceRequest, read_request
from pgpu.functions.protocols.inference.model_metadata import model_metadata
from pgpu.functions.protocols.inference.tensor_binding import TensorReader

__all__ = ["HEADER_LENGTH", "InferenceRequest", "InferenceWriter", "TensorReader", "model_metadata", "read_request"]
