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


def _many_ids() -> dict[str, Array]:
    ids = np.array([65549, 0, 65536, 65535, 32768, 40000, 13] * 10, np.int32)
    return {"ids": ids, "table": (np.arange(65550) * 37 % 251 + 1.0)[:, None]}


def _exact_bits(bf16: bool) -> dict[str, Array]:
    """Signed zeros and infinities, subnormals, the largest values, and what f16 does not hold."""
    tiny = 2.0**-133 if bf16 else 2.0**-149
    most = float.fromhex("0x1.fep+127" if bf16 else "0x1.fffffep+127")
    sizes = np.array([0.0, tiny, 2.0**-127, 2.0**-25, 65536.0, 2.0**20, most, np.inf])
    return {"ids": np.array([1, 0, 1], np.int32), "table": np.stack([sizes, -sizes])}


def _through_f16(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    out = reference(inputs, attrs, profile)
    return out | {"out": nx.round_f16(out["out"]).astype(np.float32)}


def _clamped(inputs: Arrays, attrs: Attrs, profile: str) -> dict[str, Array]:
    ids = np.clip(inputs["ids"], 0, inputs["table"].shape[0] - 1)
    return reference({**inputs, "ids": ids}, attrs, profile)


WRONG: Mapping[str, Reference] = {"clamped": _clamped, "through_f16": _through_f16}


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
        kills=("clamps", "wraps_negative", "no_status", "end_accepted"),
    )
    yield Case(
        "bf16_table",
        "bf16 rows that are not widened exactly, or an id of V or -1 taken as one; tokens past 64.",
        partial(table, 4, 40, 8, (39, 0, 40, 20, -1) * 14, True),
        profile="exact",
        dtypes={"table": "bf16"},
        family="random",
        seed=4,
        kills=(
            "off_by_one",
            "scaled",
            "widened_end_accepted",
            "wraps_negative",
            "past_64_tokens",
            "checks_64_tokens",
        ),
    )
    yield Case(
        "bf16_rows",
        "bf16 rows copied as bf16, of an odd width; an id of V or -1 taken as one.",
        partial(table, 6, 300, 21, (299, 0, -1, 256, 300), True),
        profile="exact",
        dtypes={"table": "bf16", "out": "bf16"},
        family="random",
        seed=6,
        wrong=("clamped",),
        kills=(
            "off_by_one",
            "scaled",
            "tail",
            "uint8_id",
            "clamps",
            "no_status",
            "bf16_end_accepted",
        ),
    )
    yield Case(
        "ids_past_65536",
        "An id kept in 16 bits, with or without a sign; rows of one element; tokens past 64.",
        _many_ids,
        profile="exact",
        dtypes={"table": "bf16", "out": "bf16"},
        family="extreme",
        kills=("uint16_id", "int16_id", "uint8_id", "past_64_tokens"),
    )
    yield Case(
        "tokens_1031",
        "Tokens past 64, 256 and 1024, two of them bad.",
        partial(table, 8, 50, 1, (*(i * 7 % 50 for i in range(1029)), 50, -1)),
        profile="exact",
        family="random",
        seed=8,
        kills=("past_64_tokens", "past_1024_tokens", "checks_64_tokens", "first_token"),
    )
    for name, bf16, dtypes in (
        ("width_1031", False, {}),
        ("bf16_width_1031", True, {"table": "bf16", "out": "bf16"}),
    ):
        yield Case(
            name,
            "Rows longer than a block of 1024 threads.",
            partial(table, 9, 2, 1031, (1,), bf16),
            profile="exact",
            dtypes=dtypes,
            family="random",
            seed=9,
            kills=("past_1024_elements", "tail"),
        )
    for name, bf16, dtypes in (
        ("bits_kept", False, {}),
        ("bf16_bits_kept", True, {"table": "bf16", "out": "bf16"}),
        ("bf16_table_bits_kept", True, {"table": "bf16"}),
    ):
        yield Case(
            name,
            "Rows that pass through f16, are clamped to its range, lose subnormals or the sign of "
            "zero, or are refused for an infinity.",
            partial(_exact_bits, bf16),
            profile="exact",
            dtypes=dtypes,
            family="extreme",
            wrong=("through_f16",),
            kills=("through_f16", "clamps_to_f16", "flushes", "plus_zero", "infinity_refused"),
        )
    yield Case(
        "no_rows",
        "A table without rows, where the status and the zeros are not written.",
        partial(table, 7, 0, 2, (0, -1)),
        profile="exact",
        kills=("nothing_without_rows",),
    )
    yield Case(
        "no_tokens",
        "A launch with an empty grid.",
        partial(table, 5, 4, 8, ()),
        profile="exact",
        null_ok="no tokens: nothing is written",
    )
