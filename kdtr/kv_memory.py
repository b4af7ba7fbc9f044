"""How much a model's cache takes, and what fits on a card, from its config.json alone.

A cache row is one token in one layer. MLA (DeepSeek-V3, Kimi-K2) keeps the latent and the rotated
key that all heads share: kv_lora_rank + qk_rope_head_dim elements. Grouped-query attention keeps a
key and a value for each KV head: 2 num_key_value_heads head_dim.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kdtr import svg
from kdtr.errors import KdtrError

GIB: Final = 1 << 30
BYTES: Final = {"f32": 4, "bf16": 2, "fp8": 1}
"""Bytes of an element; the scales that an fp8 cache may keep beside it are not counted."""


@dataclass(frozen=True)
class Cache:
    """What one token keeps.

    Attributes:
        kind: "MLA" or "GQA".
        layers: layers that keep rows.
        row: elements of a row.
        dtype: of an element: f32, bf16 or fp8.
        positions: the longest context that the model is made for; 0 = the configuration is silent.
    """

    kind: str
    layers: int
    row: int
    dtype: str
    positions: int = 0

    @property
    def row_bytes(self) -> int:
        """Bytes of a token in one layer."""
        return self.row * BYTES[self.dtype]

    @property
    def token_bytes(self) -> int:
        """Bytes of a token in all layers."""
        return self.row_bytes * self.layers


@dataclass(frozen=True)
class Fit:
    """What a card holds beside the weights.

    Attributes:
        cache_bytes: what is left for the cache.
        tokens: whole pages of it, in tokens, with no draft tree.
        context: tokens of one request.
        tree_rows: rows that its draft tree needs besides, the root counted.
        request_bytes: one request: whole pages of its context, and its tree's rows.
        requests: how many fit.
    """

    cache_bytes: int
    tokens: int
    context: int
    tree_rows: int
    request_bytes: int
    requests: int


def _integer(config: Mapping[str, Any], where: str, *names: str, default: int | None = None) -> int:
    for name in names:
        value = config.get(name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise KdtrError(where, name, "an integer of at least 1", value)
        return value
    if default is None:
        raise KdtrError(where, f"missing key {names[0]}")
    return default


def _require_full_attention(config: Mapping[str, Any], where: str) -> None:
    """Refuse what keeps something other than one row a token in every layer."""
    others = sorted({str(t) for t in config.get("layer_types") or ()} - {"full_attention"})
    if others:
        raise KdtrError(where, "layer_types", "full_attention only", ", ".join(others))
    if config.get("sliding_window") and config.get("use_sliding_window", True):
        raise KdtrError(where, "sliding_window", "none", config["sliding_window"])
    if config.get("index_head_dim"):
        raise KdtrError(where, "index_head_dim", "no indexer cache", config["index_head_dim"])


def cache_of(
    config: Mapping[str, Any], dtype: str = "bf16", draft_layers: int = 0, where: str = "config"
) -> Cache:
    """The cache of a configuration in transformers' spelling or in DeepSeek's own.

    Args:
        config: the configuration; a multimodal model's `text_config` is looked into.
        dtype: element type of the cache.
        draft_layers: layers of a draft model that keep rows of the same size (DeepSeek-V3's MTP
            layer is one), added to the model's own.
        where: name for errors.

    Raises:
        KdtrError: a key is missing or wrong, or some layers keep no or other rows (sliding
            windows, linear attention, sparse attention's indexer).
    """
    inner = config.get("text_config")
    c = inner if isinstance(inner, Mapping) else config
    _require_full_attention(c, where)
    layers = _integer(c, where, "num_hidden_layers", "n_layers") + draft_layers
    positions = _integer(c, where, "max_position_embeddings", "max_seq_len", default=0)
    if c.get("kv_lora_rank") is not None:
        row = _integer(c, where, "kv_lora_rank") + _integer(c, where, "qk_rope_head_dim")
        return Cache("MLA", layers, row, dtype, positions)
    heads = _integer(c, where, "num_attention_heads", "n_heads")
    shared = _integer(c, where, "num_key_value_heads", "n_kv_heads", default=heads)
    width = _integer(c, where, "head_dim", default=0)
    if not width:
        hidden = _integer(c, where, "hidden_size", "dim")
        if hidden % heads:
            raise KdtrError(where, "hidden_size", f"a multiple of {heads} heads", hidden)
        width = hidden // heads
    return Cache("GQA", layers, 2 * shared * width, dtype, positions)


def read(path: Path) -> Mapping[str, Any]:
    """A configuration file. Raises KdtrError when it is no JSON object."""
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise KdtrError(str(path), str(error)) from None
    if not isinstance(config, dict):
        raise KdtrError(str(path), "no JSON object")
    return config


def weight_bytes(folder: Path) -> int:
    """Bytes of the safetensors files in a folder, or else of the KDTR files; 0 without any."""
    return sum(
        p.stat().st_size for p in [*folder.glob("*.safetensors")] or [*folder.glob("*.kdtr")]
    )


def fit(
    cache: Cache, card: int, weights: int, context: int, tree_budget: int = 0, page_size: int = 64
) -> Fit:
    """What fits.

    Args:
        cache: of the model.
        card: bytes of the card that may be used.
        weights: bytes that the weights and everything else take on it.
        context: tokens of a request.
        tree_budget: draft nodes of a request's tree, the root not counted; 0 = no tree.
        page_size: tokens of a page.
    """
    left = max(0, card - weights)
    page = page_size * cache.token_bytes
    rows = tree_budget + 1 if tree_budget else 0
    request = -(-context // page_size) * page + rows * cache.token_bytes
    return Fit(left, left // page * page_size, context, rows, request, left // request)


def lengths(longest: int) -> list[int]:
    """Contexts to plot: eight at most, each half of the next, up to `longest`."""
    return sorted({max(1, longest >> i) for i in range(8)})


def plot(fits: Sequence[Fit], title: str) -> str:
    """Memory of a request, and requests that fit, against the context, as SVG."""
    return svg.chart(
        title,
        "context, tokens",
        [fit.context for fit in fits],
        [
            svg.Panel("memory of a request, GiB", {"": [f.request_bytes / GIB for f in fits]}),
            svg.Panel("requests that fit", {"": [float(f.requests) for f in fits]}),
        ],
    )
