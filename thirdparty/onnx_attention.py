"""ONNX `Attention`, opset 23, in onnxruntime: a 576/512 head with a boolean mask. No lse."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import onnx
import onnxruntime
import torch
from common import blank, requests
from onnx import TensorProto, helper

from kdtr.adapter import Call

__version__ = onnxruntime.__version__
outputs = {"verify_attn": ["out", "status"]}
_TYPES = {
    "f32": TensorProto.FLOAT,
    "f16": TensorProto.FLOAT16,
    "bf16": TensorProto.BFLOAT16,
}


@cache
def session(dtype: str, scale: float) -> Any:
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
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 23)], ir_version=11)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def unsupported(call: Call) -> str:
    """Types that the CPU provider has no kernel for."""
    try:
        session(call.inputs["q"].dtype, 1.0)
    except onnxruntime.capi.onnxruntime_pybind11_state.NotImplemented as error:
        return f"onnxruntime: {str(error).splitlines()[0]}"
    return ""


def verify_attn(call: Call) -> None:
    """One run of the model for each request."""
    scale, Dv = float(call.attrs["scale"]), int(call.attrs["Dv"])
    run = session(call.inputs["q"].dtype, scale).run
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
