"""mla_project and mla_output: the references against unabsorbed attention."""

from __future__ import annotations

import numpy as np

from kdtr import numerics as nx
from kdtr.cases import mla_output as output_cases
from kdtr.cases import mla_project as project_cases
from kdtr.reference import mla_output, mla_project

ATTRS = {"eps": 1e-6, "rope_scale": 1.0, "store": "interleaved"}


def test_scores_of_absorbed_queries_are_those_of_expanded_keys() -> None:
    x = project_cases.layer(1, (0, 3, 900))
    out = mla_project.reference(x, ATTRS, "f32")
    h, c, n = 3, 32, 16
    latent, rope = out["kv"][:, :c], out["kv"][:, c:]
    keys = np.einsum("hnc,tc->thn", x["kv_b"][:, :n], latent)
    # Expanded queries: q_nope of each head, found again by the same op with identity key rows.
    eye = np.zeros((h, n + 8, n))
    eye[:, :n] = np.eye(n)
    plain = x | {
        "kv_b": eye,
        "kv_a": x["kv_a"][: n + 8],
        "kv_a_norm": x["kv_a_norm"][:n],
    }
    q_nope = mla_project.reference(plain, ATTRS, "f32")["q"][..., :n]
    q = out["q"]
    absorbed = np.einsum("thc,sc->hts", q[..., :c], latent) + np.einsum(
        "thr,sr->hts", q[..., c:], rope
    )
    expanded = np.einsum("thn,shn->hts", q_nope, keys) + np.einsum("thr,sr->hts", q[..., c:], rope)
    assert np.abs(absorbed - expanded).max() < 1e-12 * np.abs(expanded).max()


def test_the_cached_row_is_normalised_and_its_rope_part_rotated_but_not_normalised() -> None:
    x = project_cases.layer(2, (0, 5))
    x["kv_a_norm"] = np.ones(32)
    row = mla_project.reference(x, ATTRS | {"eps": 0.0}, "f32")["kv"]
    assert np.abs(nx.total(row[:, :32] ** 2) / 32 - 1).max() < 1e-14
    z = x["x"] @ x["kv_a"][32:].T
    assert np.abs(row[0, 32:] - z[0]).max() < 1e-14
    assert np.abs(nx.total(row[1, 32:] ** 2) / nx.total(z[1] ** 2) - 1) < 1e-14
    assert np.abs(row[1, 32:] - z[1]).max() > 0.1


def test_values_are_the_last_rows_of_each_head() -> None:
    x = output_cases.layer(3, 2, residual=True)
    values = np.einsum("hvc,thc->thv", x["kv_b"][:, 16:], x["latent"]).reshape(2, -1)
    want = values @ x["o"].T + x["residual"]
    assert np.abs(mla_output.reference(x, {}, "f32")["out"] - want).max() < 1e-13


def test_a_failed_token_leaves_its_neighbours() -> None:
    x = project_cases.layer(4, (1, -1, 2))
    out = mla_project.reference(x, ATTRS, "f32")
    alone = mla_project.reference(
        x | {"x": x["x"][[0, 2]], "positions": x["positions"][[0, 2]]}, ATTRS, "f32"
    )
    assert out["status"].tolist() == [0, 1, 0]
    for name in ("q", "kv"):
        assert not out[name][1].any()
        assert np.array_equal(out[name][[0, 2]], alone[name])
