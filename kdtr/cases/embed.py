"""Cases of `embed@1`."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from kdtr import numerics as nx
from kdtr.case import Arrays, Attrs, Case, Reference
from kdtr.reference.embed import reference

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Array = NDArray[Any]


def table(seed: int, v: int, n: int, ids: tuple[int, ...], bf16: bool = False) -> dict[str, Array]:
    """A random table and the ids to look up."""
    rows = nx.normal(seed, (v, n), 18)
    return {"ids": np.array(ids, np.int32), "table": nx.round_bf16(rows) if bf16 else rows}


def _clamped(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    ids = np.clip(inputs["ids"], 0, inputs["table"].shape[0] - 1)
    return reference({**inputs, "ids": ids}, attrs, profile)


WRONG: Mapping[str, Reference] = {"clamped": _clamped}


def cases() -> Iterator[Case]:
    """First and last rows, repeats, ids beyond a byte, odd widths, ids out of range."""
    yield Case(
        "first_and_last",
        "The wrong row, a scaled row, the first token's row for all.",
        partial(table, 1, 300, 24, (299, 0, 1, 256, 299, 257)),
        profile="exact",
        family="random",
        seed=1,
        kills=("off_by_one", "scaled", "first_token", "uint8_id"),
    )
    yield Case(
        "width_13",
        "A copy of whole groups only.",
        partial(table, 2, 20, 13, (3, 19, 7)),
        profile="exact",
        family="random",
        seed=2,
        kills=("tail",),
    )
    yield Case(
        "out_of_range",
        "An id of -1, of V, or far beyond, taken as a row or not reported.",
        partial(table, 3, 10, 8, (4, -1, 10, 9, -2147483648, 2147483647, 0)),
        profile="exact",
        family="extreme",
        seed=3,
        wrong=("clamped",),
        kills=("clamps", "wraps_negative", "no_status"),
    )
    yield Case(
        "bf16_table",
        "bf16 rows that are not widened exactly.",
        partial(table, 4, 40, 16, (39, 0, 20), True),
        profile="exact",
        dtypes={"table": "bf16"},
        family="random",
        seed=4,
        kills=("off_by_one", "scaled"),
    )
    yield Case(
        "bf16_rows",
        "bf16 rows copied as bf16, of an odd width.",
        partial(table, 6, 300, 21, (299, 0, -1, 256), True),
        profile="exact",
        dtypes={"table": "bf16", "out": "bf16"},
        family="random",
        seed=6,
        wrong=("clamped",),
        kills=("off_by_one", "scaled", "tail", "uint8_id", "clamps", "no_status"),
    )
    yield Case(
        "no_tokens",
        "A launch with an empty grid.",
        partial(table, 5, 4, 8, ()),
        profile="exact",
        null_ok="no tokens: nothing is written",
    )
