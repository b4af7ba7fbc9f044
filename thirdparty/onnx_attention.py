"""ONNX `Attention`, opset 23: as many as 576 key and 512 value columns, a boolean mask, no lse.

`runtime` is onnxruntime's CPU provider, `reference` the evaluator of the onnx package.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from common import blank, requests
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from kdtr.adapter import Call

_TYPES = {
    "f32": TensorProto.FLOAT,
    "f16": TensorProto.FLOAT16,
    "bf16": TensorProto.BFLOAT16,
}


def model(dtype: str, scale: float) -> Any:
    """A model of one node, K and V with one head."""
    kind = _TYPES[dtype]
    node = helper.make_node("Attention", ["q", "k", "v", "mask"], ["y"], scale=scale)
    graph = helper.make_graph(
        [node],
        "attention",
        [
            helper.make_tensor_value_info("q", kind, [1, "H", "n", "D"]),
            helper.make_tensor_value_info("k", kind, [1, 1, "m", "D"]),
            helper.make_tensor_value_info("v", kind, [1, 1, "m", "Dv"]),
            helper.make_tensor_value_info("mask", TensorProto.BOOL, ["n", "m"]),
        ],
        [helper.make_tensor_value_info("y", kind, [1, "H", "n", "Dv"])],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    onnx.checker.check_model(made)
    return made


@cache
def session(dtype: str, scale: float) -> Any:
    """onnxruntime's."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(
        model(dtype, scale).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


@cache
def evaluator(dtype: str, scale: float) -> Any:
    """onnx's own, in numpy."""
    return ReferenceEvaluator(model(dtype, scale))


class Engine:
    """One of the two as an engine of kdtr."""

    outputs: Mapping[str, Any] = {"verify_attn": ["out", "status"]}

    def __init__(self, version: str, load: Callable[[str, float], Any]) -> None:
        self.__version__, self.load = version, load

    def unsupported(self, call: Call) -> str:
        """Types that it has no kernel for."""
        kind = call.inputs["q"].dtype
        if kind == "bf16":
            return "numpy has no bf16, and onnxruntime's CPU provider no kernel for it"
        return ""

    def verify_attn(self, call: Call) -> None:
        """One run of the model for each request."""
        scale, Dv = float(call.attrs["scale"]), int(call.attrs["Dv"])
        run = self.load(call.inputs["q"].dtype, scale).run
        blank(call, lse=False)
        out = call.outputs["out"].torch()
        for r, q, rows, sees, _ in requests(call):
            k = rows.numpy()[None, None]
            feed = {
                "q": np.ascontiguousarray(q.transpose(0, 1).numpy()[None]),
                "k": k,
                "v": np.ascontiguousarray(k[..., :Dv]),
                "mask": sees.numpy(),
            }
            y = torch.from_numpy(run(["y"], feed)[0])
            out[r, : len(q)] = y[0].transpose(0, 1).to(out.dtype)


runtime = Engine(onnxruntime.__version__, session)
reference = Engine(onnx.__version__, evaluator)
