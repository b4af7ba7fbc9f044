"""Decoding with a whole model: the engines' decoder, its statistics, and what it does differently.

The decoder itself is C++ (engine/model), compiled into each engine library beside its kernels;
this module loads it, and compares it with the reference model (kdtr.reference.decode).
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from kdtr import case as case_module
from kdtr import container, contract, convert, dtypes, engine
from kdtr.errors import EngineError, KdtrError
from kdtr.reference import decode as reference

if TYPE_CHECKING:
    from typing_extensions import Self

Folder = str | os.PathLike[str]
Array = NDArray[Any]


def load_reference(folder: Folder) -> reference.Model:
    """The reference model of a checkpoint folder. Raises KdtrError for a damaged file."""
    where = Path(folder)
    try:
        config = json.loads((where / "config.json").read_bytes())
    except (OSError, ValueError) as error:
        raise KdtrError(os.fspath(where / "config.json"), str(error)) from None
    weights = _tensors(where, "model")
    if any((where / f"draft_heads.{kind}").exists() for kind in _KINDS):
        weights |= _tensors(where, "draft_heads")
    return reference.Model(config, weights)


_KINDS: Final = ("safetensors", "kdtr")


def _tensors(folder: Path, stem: str) -> dict[str, Array]:
    """Tensors of STEM.safetensors, or of STEM.kdtr where there is only that."""
    path = folder / f"{stem}.safetensors"
    other = folder / f"{stem}.kdtr"
    if path.exists() or not other.exists():
        return convert.read_safetensors(path)
    with container.open(other) as file:
        return {name: file.values(name) for name in file.tensors}


# --- the C interface, engine/include/kdtr/model.h ------------------------------------------------


class _Options(ctypes.Structure):
    _fields_ = [
        ("struct_size", ctypes.c_uint32),
        ("requests", ctypes.c_int32),
        ("max_context", ctypes.c_int32),
        ("page_size", ctypes.c_int32),
        ("max_budget", ctypes.c_int32),
        ("precision", ctypes.c_int32),
        ("rank", ctypes.c_int32),
        ("world", ctypes.c_int32),
        ("group", ctypes.c_char_p),
    ]


class _DType(ctypes.Structure):
    _fields_ = [
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
    ]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("dtype", _DType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Call(ctypes.Structure):
    pass


_FIND: Final = ctypes.CFUNCTYPE(
    ctypes.POINTER(_Tensor), ctypes.POINTER(_Call), ctypes.c_char_p, ctypes.c_int
)
_I64: Final = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(_Call), ctypes.c_char_p, ctypes.POINTER(ctypes.c_int64)
)
_F64: Final = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(_Call), ctypes.c_char_p, ctypes.POINTER(ctypes.c_double)
)
_STR: Final = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(_Call), ctypes.c_char_p, ctypes.POINTER(ctypes.c_char_p)
)
_Call._fields_ = [
    ("struct_size", ctypes.c_uint32),
    ("reserved", ctypes.c_uint32),
    ("op", ctypes.c_char_p),
    ("arith", ctypes.c_char_p),
    ("tensor", _FIND),
    ("attr_i64", _I64),
    ("attr_f64", _F64),
    ("attr_str", _STR),
]
_GROUP_BYTES: Final = 128
_PRECISIONS: Final = ("f32", "bf16")
_TAP: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(_Call))
_ROLES: Final = {"in": 0, "out": 1, "inout": 2}


@dataclass(frozen=True)
class Stage:
    """One kernel call of a pass: its arguments by name as the kernel left them, copied."""

    name: str
    op: str
    arith: str
    tensors: dict[str, Array]
    attrs: dict[str, int | float | str | bool]


def _copied(tensor: _Tensor, fetch: Callable[[Any, int, int], None]) -> Array:
    """The values of a tensor in the decoder's memory; bf16 and f16 widened to f32."""
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    dtype = dtypes.by_code(tensor.dtype.code, tensor.dtype.bits)
    stored = np.empty(int(np.prod(shape, dtype=np.int64)), dtype.storage)
    if stored.size:
        fetch(stored.ctypes.data, tensor.data + tensor.byte_offset, stored.nbytes)
    return np.array(dtypes.decode(stored, dtype.name, shape))


def _stage(name: str, call: Any, fetch: Callable[[Any, int, int], None]) -> Stage:
    rules = contract.load(call.contents.op.decode())
    tensors: dict[str, Array] = {}
    for t in rules.tensors:
        found = call.contents.tensor(call, t.name.encode(), _ROLES[t.role])
        if found:
            tensors[t.name] = _copied(found.contents, fetch)
    attrs: dict[str, int | float | str | bool] = {}
    for a in rules.attrs:
        key = a.name.encode()
        if a.type == "utf-8":
            text = ctypes.c_char_p()
            if call.contents.attr_str(call, key, ctypes.byref(text)) == 0 and text.value:
                attrs[a.name] = text.value.decode()
        elif a.type == "f64":
            number = ctypes.c_double()
            if call.contents.attr_f64(call, key, ctypes.byref(number)) == 0:
                attrs[a.name] = number.value
        else:
            integer = ctypes.c_int64()
            if call.contents.attr_i64(call, key, ctypes.byref(integer)) == 0:
                attrs[a.name] = bool(integer.value) if a.type == "bool" else integer.value
    return Stage(name, rules.op, call.contents.arith.decode(), tensors, attrs)


def _library(spec: str) -> ctypes.CDLL:
    if spec in ("cpu", "cuda") and (why := engine.missing()):
        raise EngineError(f"engine {spec}", why)
    path = engine.resolve(spec)
    try:
        lib = ctypes.CDLL(path)
    except OSError as error:
        raise EngineError(f"engine {spec}", str(error)) from None
    if not hasattr(lib, "kdtr_decoder_open"):
        raise EngineError(path, "has no decoder")
    lib.kdtr_decoder_error.restype = ctypes.c_char_p
    lib.kdtr_decoder_size.restype = ctypes.c_int64
    return lib


def new_group(engine_spec: str = "cuda") -> bytes:
    """What the ranks of one model share: made in one process, handed to all of them.

    Raises:
        EngineError: the engine has no ranks, or NCCL is missing. It is looked for as the package
            nvidia-nccl-cu13, where `KDTR_NCCL` says and where the loader does.
    """
    lib = _library(engine_spec)
    _preload_nccl()
    group = ctypes.create_string_buffer(_GROUP_BYTES)
    error = ctypes.create_string_buffer(1000)
    if lib.kdtr_decoder_group(group, error, ctypes.c_size_t(len(error))):
        where, _, what = error.value.decode(errors="replace").partition(": ")
        raise EngineError(where, what)
    return group.raw


def _preload_nccl() -> None:
    """Load the wheel's NCCL where there is one: the engine then finds it by its name."""
    if "KDTR_NCCL" in os.environ:
        return
    with contextlib.suppress(ImportError, OSError):
        found = importlib.util.find_spec("nvidia.nccl")
        for folder in (found.submodule_search_locations or ()) if found else ():
            ctypes.CDLL(os.path.join(folder, "lib", "libnccl.so.2"))


class Decoder:
    """A model on an engine, with the caches of its live requests.

    Args:
        folder: checkpoint: config.json, model.safetensors and, for trees, draft_heads.safetensors;
            or model.kdtr and draft_heads.kdtr.
        engine_spec: "cpu", "cuda" or the path of an engine library.
        requests: the most that are live at once.
        max_context: rows that each request may cache, speculation included.
        page_size: rows per cache page, 16 or 64.
        max_budget: the most draft nodes of a tree.
        precision: "f32", or "bf16" for rows, cache and weights; all weights must be stored as bf16
            then. Router and vocabulary logits are f32 in both.
        rank, world, group: this process's shard of a model that `world` processes decode together,
            each on a device of its own; `group` is that of `new_group` in one of them. All make
            the same calls and get the same tokens.

    Raises:
        EngineError: the engine or the model cannot be used; every method raises it too.
    """

    def __init__(
        self,
        folder: Folder,
        engine_spec: str = "cpu",
        *,
        requests: int = 1,
        max_context: int = 2048,
        page_size: int = 16,
        max_budget: int = 64,
        precision: str = "f32",
        rank: int = 0,
        world: int = 1,
        group: bytes | None = None,
    ) -> None:
        self._lib = _library(engine_spec)
        self._handle = ctypes.c_void_p()
        self._tap: Any = None
        self._raised: BaseException | None = None
        if group is not None and len(group) != _GROUP_BYTES:
            raise EngineError("decoder", "bytes of the group", _GROUP_BYTES, len(group))
        if precision not in _PRECISIONS:
            raise EngineError("decoder", "precision", " or ".join(_PRECISIONS), precision)
        self.precision = precision
        options = _Options(
            ctypes.sizeof(_Options),
            requests,
            max_context,
            page_size,
            max_budget,
            _PRECISIONS.index(precision),
            rank,
            world,
            group,
        )
        container.want_file(Path(folder, "config.json"))
        for stem in ("model", "draft_heads"):
            for kind in _KINDS:
                container.want_file(Path(folder, f"{stem}.{kind}"))
        where = os.fsencode(folder)
        if group is not None:
            _preload_nccl()
        try:
            self._check(
                self._lib.kdtr_decoder_open(
                    where, ctypes.byref(options), ctypes.byref(self._handle)
                )
            )
        except EngineError:
            self.close()
            raise
        self.vocab, self.layers, self.depth, self.row, self.hidden, self.eos = (
            int(self._lib.kdtr_decoder_size(self._handle, name))
            for name in (b"vocab", b"layers", b"depth", b"row", b"hidden", b"eos")
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Free the model and its caches."""
        if self._handle:
            self._lib.kdtr_decoder_close(self._handle)
            self._handle = ctypes.c_void_p()

    def _check(self, code: int) -> None:
        if self._raised is not None:
            error, self._raised = self._raised, None
            raise error
        if code:
            where, _, what = self._lib.kdtr_decoder_error(self._handle).decode().partition(": ")
            raise EngineError(where, what)

    def prefill(self, prompt: Sequence[int], request: int = 0) -> int:
        """Start a request over with a prompt; the first token."""
        for at, given in enumerate(prompt):  # ctypes would wrap it into another token
            if not 0 <= given < 1 << 31:
                raise EngineError("prefill", f"id {at}", "0 to 2^31 - 1", given)
        ids = (ctypes.c_int32 * len(prompt))(*prompt)
        token = ctypes.c_int32()
        self._check(
            self._lib.kdtr_decoder_prefill(
                self._handle, request, ids, len(prompt), ctypes.byref(token)
            )
        )
        return token.value

    def greedy(self, requests: Sequence[int] = (0,)) -> list[int]:
        """One step of each request: its next token."""
        n = len(requests)
        tokens = (ctypes.c_int32 * n)()
        ids = (ctypes.c_int32 * n)(*requests)
        self._check(self._lib.kdtr_decoder_greedy(self._handle, ids, n, tokens))
        return list(tokens)

    def tree(self, budget: int, requests: Sequence[int] = (0,)) -> list[list[int]]:
        """One draft-tree round of each request: its new tokens, accepted drafts then the bonus."""
        n, width = len(requests), self.depth + 1
        lengths, tokens = (ctypes.c_int32 * n)(), (ctypes.c_int32 * (n * width))()
        ids = (ctypes.c_int32 * n)(*requests)
        self._check(self._lib.kdtr_decoder_tree(self._handle, ids, n, budget, lengths, tokens))
        return [tokens[i * width : i * width + lengths[i] + 1] for i in range(n)]

    def read(self, name: str, dtype: type[np.generic] | np.dtype[Any] = np.int32) -> Array:
        """A buffer of the last step, flat: "tree.tokens", "tree.parents", "logits", ..."""
        size = ctypes.c_uint64()
        key = name.encode()
        self._check(self._lib.kdtr_decoder_read(self._handle, key, None, ctypes.byref(size)))
        out = np.empty(size.value // np.dtype(dtype).itemsize, dtype)
        data = out.ctypes.data_as(ctypes.c_void_p)
        self._check(self._lib.kdtr_decoder_read(self._handle, key, data, ctypes.byref(size)))
        return out

    def rows(self, layer: int, request: int = 0) -> Array:
        """The cached rows of a request, in order: f32 [length, row], bf16 widened."""
        dtype = dtypes.by_name(self.precision)
        stored = self.read(f"rows.{layer}.{request}", dtype.storage)
        shape = (stored.size // self.row, self.row)
        return np.array(dtypes.decode(stored, self.precision, shape))

    def tap(self, see: Callable[[Stage], None] | None) -> None:
        """Call `see` after each kernel with its arguments, copied; None ends it.

        What `see` raises stops nothing at once, but is raised by the method that ran the kernel.
        """
        if see is None:
            self._check(self._lib.kdtr_decoder_set_tap(self._handle, None, None))
            self._tap = None
            return

        def fetch(host: Any, data: int, count: int) -> None:
            self._check(
                self._lib.kdtr_decoder_fetch(
                    self._handle,
                    ctypes.c_void_p(host),
                    ctypes.c_void_p(data),
                    ctypes.c_uint64(count),
                )
            )

        def called(_: Any, name: bytes, call: Any) -> None:
            if self._raised is None:
                try:
                    see(_stage(name.decode(), call, fetch))
                except BaseException as error:  # noqa: BLE001 (C cannot carry it: _check raises it)
                    self._raised = error

        tap = _TAP(called)
        self._check(self._lib.kdtr_decoder_set_tap(self._handle, tap, None))
        self._tap = tap  # keeps the callback alive


# --- generation ----------------------------------------------------------------------------------


@dataclass
class Statistics:
    """What a run of `generate` did: drafts accepted in each round (without bonus), and tokens."""

    accepted: list[int] = field(default_factory=list)
    tokens: int = 0

    @property
    def mean_accepted(self) -> float:
        return sum(self.accepted) / len(self.accepted) if self.accepted else 0.0

    @property
    def histogram(self) -> list[int]:
        return np.bincount(self.accepted, minlength=1).tolist() if self.accepted else []


def generate(
    decoder: Decoder,
    prompt: Sequence[int],
    count: int,
    tree_budget: int = 0,
    statistics: Statistics | None = None,
    request: int = 0,
) -> Iterator[int]:
    """The first `count` tokens after a prompt, as they come; fewer when the model ends.

    Args:
        decoder: the model.
        prompt: token ids, one at least.
        count: tokens wanted.
        tree_budget: draft nodes a round; 0 decodes token by token.
        statistics: filled on the way.
        request: which of the decoder's requests to use; it starts over.
    """
    seen = Statistics() if statistics is None else statistics
    ready = [decoder.prefill(prompt, request)]
    while True:
        for token in ready:
            if seen.tokens == count:
                return
            seen.tokens += 1
            yield token
            if token == decoder.eos:
                return
        if seen.tokens == count:
            return
        if tree_budget:
            (ready,) = decoder.tree(tree_budget, [request])
            seen.accepted.append(len(ready) - 1)
        else:
            ready = decoder.greedy([request])


# --- diagnosis -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """How one stage compares with its op's reference on the stage's own inputs.

    `worst` is the greatest error in units of the hard budget: at most 1 passes; infinite for a
    difference in an exact output. `output` is where.
    """

    stage: str
    op: str
    output: str
    worst: float


def judge(stage: Stage, before: Mapping[str, Array] | None = None) -> Verdict:
    """One stage against the reference of its op, teacher-forced: on the engine's own inputs.

    Args:
        stage: as the kernel left it.
        before: the arguments that the kernel works on in place, as they were.
    """
    rules = contract.load(stage.op)
    written = {t.name for t in rules.tensors if t.role != "in"}
    inputs = {name: x for name, x in stage.tensors.items() if name not in written}
    inputs = {name: case_module.widen(x) for name, x in {**inputs, **(before or {})}.items()}
    profile = stage.arith if stage.arith in rules.profiles else next(iter(rules.profiles))
    want = dict(case_module.reference(stage.op)(inputs, stage.attrs, profile))
    if rules.op == "topk_logprobs":  # exact given the engine's own lse
        kept = np.take_along_axis(inputs["logits"], np.maximum(want["ids"], 0).astype(np.int64), -1)
        with np.errstate(invalid="ignore"):
            logprobs = kept.astype(np.float32) - stage.tensors["lse"][..., None]
        want["logprobs"] = np.where(want["ids"] < 0, np.float32(-np.inf), logprobs)
    worst, where = 0.0, ""
    for name in sorted(written):
        got, gold = stage.tensors[name], want[name]
        if f"{name}/hard" in want:
            error = np.abs(got.astype(np.float64) - gold)
            budget = want[f"{name}/hard"]
            with np.errstate(invalid="ignore", divide="ignore"):
                ratio = np.where(got == gold, 0.0, error / budget)
            here = float(np.max(np.where(np.isnan(ratio), np.inf, ratio), initial=0.0))
        else:
            here = 0.0 if np.array_equal(got, gold) else float("inf")
        if here > worst:
            worst, where = here, name
    return Verdict(stage.name, stage.op, where, worst)


def localize(decoder: Decoder, prompt: Sequence[int], tree_budget: int = 0) -> list[Verdict]:
    """Every stage of a prefill, and of a draft-tree round, judged on its own inputs, in order.

    The first verdict above 1 is the first stage at fault: later stages are judged on what they
    were given, so a fault upstream does not spread. `kv_commit` works in place; what it started
    from is what attention and the last norm showed.

    Args:
        decoder: the model.
        prompt: token ids, one at least; request 0 starts over.
        tree_budget: draft nodes of the round after the prompt; 0: none.

    Raises:
        EngineError: the model cannot be run, and no stage before it failed is at fault.
    """
    verdicts: list[Verdict] = []
    before: dict[str, Array] = {}
    pools: list[Array] = []

    def as_bytes(x: Array) -> Array:
        stored = dtypes.encode(x, decoder.precision)
        return stored.reshape(x.shape).view(np.uint8)

    def see(stage: Stage) -> None:
        if stage.op == "verify_attn":
            pools.append(as_bytes(stage.tensors["kv_pool"]))
            before.update({name: stage.tensors[name] for name in ("page_table", "tree_slots")})
        if stage.name == "final_norm":
            n = stage.tensors["out"]
            before["hidden"] = as_bytes(n).reshape(*before["tree_slots"].shape, -1)
        if stage.op == "kv_commit":
            before["rows"] = np.stack(pools)
            pools.clear()
        verdicts.append(judge(stage, before if stage.op == "kv_commit" else None))

    decoder.tap(see)
    try:
        decoder.prefill(prompt)
        if tree_budget:
            decoder.tree(tree_budget)
    except KdtrError:  # what a faulty stage gave may be refused by a later one
        if all(v.worst <= 1 for v in verdicts):
            raise
    finally:
        decoder.tap(None)
    return verdicts


def diagnose(folder: Folder, decoder: Decoder, prompt: Sequence[int]) -> tuple[str, float, float]:
    """Which known-wrong choice an engine follows on a prompt of at most 32 tokens.

    Returns (label, "published" when none; distance of its hidden rows; that of the runner-up).
    """
    rows: list[Array] = []

    def see(stage: Stage) -> None:
        if stage.name == "final_norm":
            rows.append(stage.tensors["out"])

    decoder.tap(see)
    try:
        decoder.prefill(prompt)
    finally:
        decoder.tap(None)
    return reference.name_of(load_reference(folder), prompt, np.concatenate(rows))
