"""argmax: the reference against its definition."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kdtr.reference.argmax import reference

INF, NAN = math.inf, math.nan


def test_the_lowest_of_equal_maxima_wins() -> None:
    x = np.asarray([[[0, 1, 1], [-0.0, 0.0, -1], [0.0, -0.0, 0.0], [-INF, -INF, -INF]]])
    out = reference({"logits": x}, {}, "exact")
    assert out["ids"].tolist() == [[1, 0, 0, 0]]
    assert out["status"].tolist() == [0]


def test_plus_infinity_is_a_value_and_nan_refuses_its_request() -> None:
    x = np.zeros((3, 2, 3))
    x[0, 0, 2] = INF
    x[1, 1, 0] = NAN
    out = reference({"logits": x}, {}, "exact")
    assert out["ids"].tolist() == [[2, 0], [-1, -1], [0, 0]]
    assert out["status"].tolist() == [0, 1, 0]


def test_an_empty_vocabulary_has_no_id() -> None:
    assert reference({"logits": np.zeros((1, 2, 0))}, {}, "exact")["ids"].tolist() == [[-1, -1]]


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from([-INF, -1.5, -0.0, 0.0, 2.0**-149, 7.0, INF]), min_size=1))
def test_python_max_with_the_first_index_agrees(row: list[float]) -> None:
    out = reference({"logits": np.asarray([[row]])}, {}, "exact")
    assert out["ids"][0, 0] == row.index(max(row))
