"""A kdtr engine in Python with one op, argmax@1, in numpy.

kdtr certify --engine mine            (from this folder)
"""

import numpy as np
from numpy.typing import NDArray

from kdtr.adapter import Call, View

__version__ = "1.0"
device = "cpu"


def wide(view: View) -> NDArray[np.float32]:
    """Values as f32; bf16 arrives as its bits."""
    array = view.numpy()
    if view.dtype == "bf16":
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


def argmax(call: Call) -> None:
    """Lowest id of the greatest logit; a request with a NaN is refused."""
    logits = wide(call.inputs["logits"])
    bad = np.isnan(logits).any(axis=(1, 2))
    ids = np.argmax(logits, axis=-1) if logits.size else np.full(logits.shape[:2], -1)
    call.outputs["ids"].write(np.where(bad[:, None], -1, ids))
    call.outputs["status"].write(bad.astype(np.int32))
