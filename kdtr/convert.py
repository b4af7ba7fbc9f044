"""Lossless conversion between KDTR and safetensors or npz.

What the other format cannot say (element types, metadata) travels in one JSON note, so that
KDTR to X to KDTR gives the same identity. The files that this module writes depend on their
content only. Foreign files are read by own parsers, which trust no size before checking it.
"""

from __future__ import annotations

import io
import json
import lzma
import math
import os
import secrets
import struct
import tempfile
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import quote

import numpy as np

from kdtr import container, dtypes
from kdtr.container import Array, File, Scalar, TensorInfo, TensorSpec, Writer
from kdtr.errors import KdtrError

if TYPE_CHECKING:
    PathLike = str | os.PathLike[str]

_ALIGN: Final = 64
_NOTE: Final = "kdtr"
_NPZ_NOTE: Final = "__kdtr__.json"
_MAX_HEADER: Final = 100_000_000  # safetensors' own limit
_CHUNK: Final = 4 << 20

SAFETENSORS: Final = {
    "bool": "BOOL",
    **{f"{kind}{bits}": f"{kind.upper()}{bits}" for kind in "ui" for bits in (8, 16, 32, 64)},
    "f16": "F16",
    "f32": "F32",
    "f64": "F64",
    "bf16": "BF16",
    "c64": "C64",
    "f8_e4m3fn": "F8_E4M3",
    "f8_e4m3fnuz": "F8_E4M3FNUZ",
    "f8_e5m2": "F8_E5M2",
    "f8_e5m2fnuz": "F8_E5M2FNUZ",
    "f8_e8m0fnu": "F8_E8M0",
    "f6_e2m3fn": "F6_E2M3",
    "f6_e3m2fn": "F6_E3M2",
    "f4_e2m1fn": "F4",
}
_FROM_SAFETENSORS = {theirs: ours for ours, theirs in SAFETENSORS.items()}


@dataclass
class _Part:
    """A tensor on its way into a KDTR file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    payload: memoryview
    meta: Mapping[str, Scalar] = field(default_factory=dict)


# --- the note -----------------------------------------------------------------------------------


def _note(file: File, restored: Iterable[TensorInfo]) -> str:
    """JSON of all metadata, and of the type and shape of tensors stored as plain bytes."""
    plain = {info.name for info in restored}
    tensors: dict[str, Any] = {}
    for info in file.tensors.values():
        entry: dict[str, Any] = {}
        if info.name in plain:
            entry |= {"dtype": info.dtype.name, "shape": list(info.shape)}
        if info.meta:
            entry["meta"] = _meta_out(info.meta)
        if entry:
            tensors[info.name] = entry
    note = {"version": 1, "meta": _meta_out(file.meta), "tensors": tensors}
    return json.dumps(note, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def _meta_out(meta: Mapping[str, Scalar]) -> dict[str, list[str]]:
    return {key: _scalar_out(value) for key, value in meta.items()}


def _scalar_out(value: Scalar) -> list[str]:
    # Numbers go as text: JSON readers round what does not fit a double.
    if isinstance(value, bool):
        return ["bool", "1" if value else "0"]
    if isinstance(value, int):
        return ["int", str(value)]
    if isinstance(value, float):
        return ["f64", str(int.from_bytes(struct.pack("<d", value), "little"))]
    if isinstance(value, str):
        return ["utf8", value]
    return ["bytes", value.hex()]


def _scalar_in(where: str, given: Any) -> Scalar:
    match given:
        case ["bool", "0" | "1" as text]:
            return bool(text == "1")
        case ["int", str(text)] if text.removeprefix("-").isdecimal() and len(text) <= 20:
            return int(text)
        case ["f64", str(text)] if text.isdecimal() and len(text) <= 20 and int(text) < 1 << 64:
            return float(struct.unpack("<d", int(text).to_bytes(8, "little"))[0])
        case ["utf8", str(text)]:
            return str(text)
        case ["bytes", str(text)]:
            try:
                return bytes.fromhex(text)
            except ValueError:
                pass
    raise KdtrError(where, "bad value in the kdtr note", got=repr(given)[:80])


def _meta_in(where: str, given: Any) -> dict[str, Scalar]:
    if not isinstance(given, dict):
        raise KdtrError(where, "bad metadata in the kdtr note", "an object", type(given).__name__)
    return {key: _scalar_in(where, value) for key, value in given.items()}


def _restore(where: str, text: str | bytes, parts: Iterable[_Part]) -> dict[str, Scalar]:
    """Apply a note to the tensors that were read. Returns the file's metadata."""
    note = _json(where, text)
    if not isinstance(note, dict) or note.get("version") != 1:
        raise KdtrError(where, "unknown kdtr note", "version 1")
    entries = note.get("tensors", {})
    by_name = {part.name: part for part in parts}
    if not isinstance(entries, dict) or not set(entries) <= set(by_name):
        raise KdtrError(where, "kdtr note names tensors that are not there")
    for name, entry in entries.items():
        match entry:
            case {"dtype": str(dtype), "shape": list(shape), **rest}:
                by_name[name].dtype = dtype
                by_name[name].shape = _shape(where, name, shape)
            case dict(rest):
                pass
            case _:
                raise KdtrError(where, f"kdtr note: bad entry of tensor {name!a}")
        by_name[name].meta = _meta_in(where, rest.get("meta", {}))
    return _meta_in(where, note.get("meta", {}))


def _json(where: str, text: str | bytes) -> Any:
    """Parse JSON; duplicate keys, NaN and excessive nesting are errors."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        out = dict(pairs)
        if len(out) != len(pairs):
            raise ValueError("duplicate key")
        return out

    def no_constant(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    try:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        return json.loads(text, object_pairs_hook=unique, parse_constant=no_constant)
    except (ValueError, RecursionError) as error:
        raise KdtrError(where, "bad JSON", got=ascii(str(error))[:120]) from None


def _shape(where: str, name: str, given: Any) -> tuple[int, ...]:
    limit = container.MAX_DIM
    if not isinstance(given, list) or any(type(d) is not int or not 0 <= d <= limit for d in given):
        raise KdtrError(where, f"tensor {name!a}: shape", f"integers 0 to {limit}", str(given)[:80])
    return tuple(given)


# --- names from elsewhere -----------------------------------------------------------------------


def _renamed(name: str) -> str:
    """`name` with what the rules forbid percent-encoded."""
    encoded = "".join(
        quote(c, safe="") if ord(c) < 32 or c in "\x7f\\%" else c
        for c in name.encode("utf-8", "replace").decode("utf-8")
    )
    forbidden = {"": "%", ".": "%2E", "..": "%2E%2E"}
    return "/".join(forbidden.get(part, part) for part in encoded.split("/"))


def _write(target: PathLike, parts: list[_Part], meta: dict[str, Scalar], rename: bool) -> str:
    if rename:
        for part in parts:
            part.name = _renamed(part.name)
        before, volatile = meta, container.VOLATILE_KEYS
        meta = {f"foreign/{k}" if k in volatile else _renamed(k): v for k, v in before.items()}
        if len(meta) != len(before):
            raise KdtrError(os.fspath(target), "two metadata keys get the same name")
    specs = [TensorSpec(p.name, p.dtype, p.shape, p.meta) for p in parts]
    with Writer(target, specs, meta) as writer:
        for part in parts:
            writer.write(part.name, part.payload)
    return writer.identity


@contextmanager
def _replacing(path: PathLike) -> Iterator[IO[bytes]]:
    """A new file that takes the place of `path` when all went well, and vanishes otherwise."""
    container.want_file(path, target=True)
    temporary = Path(f"{os.fspath(path)}.{secrets.token_hex(8)}.tmp")
    with temporary.open("xb") as out:
        try:
            yield out
            out.flush()
            os.fsync(out.fileno())
            temporary.replace(path)
        except BaseException:
            temporary.unlink()
            raise


# --- safetensors --------------------------------------------------------------------------------


def to_safetensors(source: PathLike, target: PathLike) -> None:
    """Convert a KDTR file to safetensors.

    Types that safetensors lacks, and packed tensors that do not fill their last byte, go as U8
    [bytes]. The header is padded so that payloads start on a 64-byte boundary.
    """
    with container.open(source, verify="eager") as file:
        header: dict[str, Any] = {}
        plain, at = [], 0
        for info in file.tensors.values():
            theirs, shape = SAFETENSORS.get(info.dtype.name), list(info.shape)
            if theirs is None or info.numel * info.dtype.bits % 8:
                theirs, shape = "U8", [info.nbytes]
                plain.append(info)
            # No KDTR name ends in a slash, so the escaped one is free.
            key = "__metadata__/" if info.name == "__metadata__" else info.name
            end = at + info.nbytes
            header[key] = {"dtype": theirs, "shape": shape, "data_offsets": [at, end]}
            at = end
        header["__metadata__"] = {_NOTE: _note(file, plain)}
        text = json.dumps(header, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        raw = text.encode()
        raw += b" " * (-(8 + len(raw)) % _ALIGN)
        with _replacing(target) as out:
            out.write(struct.pack("<Q", len(raw)) + raw)
            for name in file:
                out.write(file.raw(name))


def from_safetensors(source: PathLike, target: PathLike, rename: bool = False) -> str:
    """Convert a safetensors file to KDTR. Returns the identity.

    Metadata without a kdtr note becomes text of the file. `rename` percent-encodes names and keys
    that KDTR forbids; without it they are errors. Raises KdtrError for a damaged file.
    """
    where = os.fspath(source)
    data = _read(where)
    parts, foreign = _parse_safetensors(where, data)
    note = foreign.pop(_NOTE, None)
    if note is None:
        return _write(target, parts, dict(foreign), rename)
    meta = _restore(where, note, parts)
    for key, text in foreign.items():
        meta.setdefault(key, text)
    return _write(target, parts, meta, rename)


def read_safetensors(source: PathLike) -> dict[str, Array]:
    """Tensors of a safetensors file by name; types that numpy lacks widen to f32.

    Raises KdtrError for a damaged file.
    """
    where = os.fspath(source)
    parts, _ = _parse_safetensors(where, _read(where))
    return {
        part.name: dtypes.decode(
            np.frombuffer(part.payload, dtypes.by_name(part.dtype).storage), part.dtype, part.shape
        )
        for part in parts
    }


def _read(where: str) -> memoryview:
    try:
        with Path(where).open("rb") as handle:
            size = os.fstat(handle.fileno()).st_size
            block = container.aligned_empty(size)
            return block.data[: handle.readinto(block.data)].toreadonly()
    except OSError as error:
        raise KdtrError(where, error.strerror or str(error)) from None


def _parse_safetensors(where: str, data: memoryview) -> tuple[list[_Part], dict[str, str]]:
    if len(data) < 8:
        raise KdtrError(where, "not a safetensors file", "8 bytes or more", len(data))
    (length,) = struct.unpack_from("<Q", data)
    if length > min(_MAX_HEADER, len(data) - 8):
        raise KdtrError(where, "header length", f"at most {len(data) - 8}", length)
    header = _json(where, bytes(data[8 : 8 + length]))
    body = data[8 + length :]
    if not isinstance(header, dict):
        raise KdtrError(where, "header", "an object", type(header).__name__)
    foreign = header.pop("__metadata__", {})
    if not isinstance(foreign, dict) or any(type(v) is not str for v in foreign.values()):
        raise KdtrError(where, "__metadata__", "an object of strings")
    spans, parts = [], []
    for key, entry in header.items():
        name = key.removesuffix("/") if key == "__metadata__/" else key
        match entry:
            case {
                "dtype": str(theirs),
                "shape": given,
                "data_offsets": [int(a), int(b)],
                **rest,
            } if not rest and 0 <= a <= b <= len(body):
                shape = _shape(where, name, given)
            case _:
                raise KdtrError(where, f"tensor {name!a}: bad entry", got=str(entry)[:80])
        if theirs not in _FROM_SAFETENSORS:
            raise KdtrError(where, f"tensor {name!a}: unknown type", got=theirs)
        ours = _FROM_SAFETENSORS[theirs]
        bits = math.prod(shape) * dtypes.by_name(ours).bits
        if bits != 8 * (b - a):
            raise KdtrError(where, f"tensor {name!a}: size in bits", bits, 8 * (b - a))
        spans.append((a, b))
        parts.append(_Part(name, ours, shape, body[a:b]))
    end = 0
    for a, b in sorted(spans):
        if a != end:
            raise KdtrError(where, "payloads overlap or leave a gap", end, a)
        end = b
    if end != len(body):
        raise KdtrError(where, "bytes after the last payload", end, len(body))
    return parts, foreign


# What zipfile and numpy raise for damaged, encrypted and unknown data.
_UNREADABLE: Final = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    SyntaxError,
    tokenize.TokenError,
    NotImplementedError,
    RuntimeError,
    EOFError,
    ValueError,
    OverflowError,
)

# --- npz ----------------------------------------------------------------------------------------


def to_npz(source: PathLike, target: PathLike) -> None:
    """Convert a KDTR file to an uncompressed npz that `numpy.load` can map.

    Types that numpy lacks go as uint8 [bytes]. Metadata is in the member `__kdtr__.json`.
    """
    with (
        container.open(source, verify="eager") as file,
        _replacing(target) as out,
        zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive,
    ):
        plain = []
        for name, info in file.tensors.items():
            array = file[name]
            if not _is_native(info):
                plain.append(info)
                array = np.frombuffer(file.raw(name), np.uint8)
            head = io.BytesIO()
            np.lib.format.write_array_header_1_0(
                head, np.lib.format.header_data_from_array_1_0(array)
            )
            _add_member(archive, f"{name}.npy", head.getvalue(), file.raw(name))
        _add_member(archive, _NPZ_NOTE, _note(file, plain).encode(), memoryview(b""))


def _is_native(info: TensorInfo) -> bool:
    return dtypes.of_numpy(info.dtype.storage).name == info.dtype.name


def _add_member(archive: zipfile.ZipFile, name: str, head: bytes, payload: memoryview) -> None:
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    info.create_system = 3
    info.external_attr = 0o100644 << 16
    info.file_size = len(head) + len(payload)
    # zipfile adds 20 bytes of zip64 sizes to the local header of a large member.
    zip64 = info.file_size * 1.05 > zipfile.ZIP64_LIMIT
    start = archive.start_dir + 30 + len(name.encode()) + (20 if zip64 else 0) + 4
    pad = -start % _ALIGN
    info.extra = struct.pack("<HH", 0xD935, pad) + bytes(pad)  # the alignment field of zipalign
    with archive.open(info, "w", force_zip64=zip64) as member:
        member.write(head)
        for start in range(0, len(payload), _CHUNK):
            member.write(payload[start : start + _CHUNK])


def from_npz(source: PathLike, target: PathLike, rename: bool = False) -> str:
    """Convert an npz file to KDTR. Returns the identity.

    Object arrays, members that are no arrays, duplicates, and members whose size differs from
    their header are errors. `rename` percent-encodes names that KDTR forbids.
    """
    where = os.fspath(source)
    parts, note = [], b""
    try:
        with zipfile.ZipFile(where) as archive:
            seen: set[str] = set()
            for info in archive.infolist():
                if info.filename in seen:
                    raise KdtrError(where, "member occurs twice", got=ascii(info.filename))
                seen.add(info.filename)
                _check_ratio(where, info)
                with archive.open(info) as member:
                    if info.filename == _NPZ_NOTE:
                        note = member.read()
                    else:
                        parts.append(_read_npy(where, info, member))
    except OSError as error:
        raise KdtrError(where, error.strerror or str(error)) from None
    except _UNREADABLE as error:
        raise KdtrError(where, "not a readable npz", got=ascii(str(error))[:120]) from None
    meta = _restore(where, note, parts) if note else {}
    return _write(target, parts, meta, rename)


def _check_ratio(where: str, info: zipfile.ZipInfo) -> None:
    # Deflate cannot do better than 1032 to 1: more is a lie that would allocate memory.
    if info.file_size > 1040 * info.compress_size + 1024:
        raise KdtrError(where, f"member {info.filename!a}: impossible size", got=info.file_size)


def _read_npy(where: str, info: zipfile.ZipInfo, member: IO[bytes]) -> _Part:
    name = info.filename.removesuffix(".npy")
    if name == info.filename:
        raise KdtrError(where, "member is no array", "*.npy", ascii(info.filename))
    version = np.lib.format.read_magic(member)
    if version == (1, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_1_0(member)
    elif version == (2, 0):
        shape, fortran, dtype = np.lib.format.read_array_header_2_0(member)
    else:
        raise KdtrError(where, f"tensor {name!a}: npy version", "1.0 or 2.0", version)
    if dtype.hasobject:
        raise KdtrError(where, f"tensor {name!a}: holds Python objects", "numbers")
    ours = dtypes.of_numpy(dtype)
    shape = _shape(where, name, list(shape))
    want = member.tell() + math.prod(shape) * dtype.itemsize
    if want != info.file_size:
        raise KdtrError(where, f"tensor {name!a}: bytes in its member", want, info.file_size)
    flat = np.frombuffer(member.read(), dtype)
    array: Array = flat.reshape(shape[::-1]).T if fortran else flat.reshape(shape)
    little = np.ascontiguousarray(array, ours.storage)
    return _Part(name, ours.name, shape, little.reshape(-1).view(np.uint8).data)


# --- by suffix ----------------------------------------------------------------------------------

_OUT: Final = {".safetensors": to_safetensors, ".npz": to_npz}
_IN: Final = {".safetensors": from_safetensors, ".npz": from_npz}


def convert(source: PathLike, target: PathLike, rename: bool = False) -> str:
    """Convert between `.kdtr` and `.safetensors` or `.npz`, as the suffixes say.

    Returns the identity of the KDTR file. Raises KdtrError for other pairs of suffixes.
    """
    pair = Path(source).suffix, Path(target).suffix
    if pair[0] in _IN and pair[1] == ".kdtr":
        return _IN[pair[0]](source, target, rename)
    if pair[0] == ".kdtr" and pair[1] in _OUT:
        _OUT[pair[1]](source, target)
        with container.open(source) as file:
            return file.identity
    raise KdtrError(
        "convert", "no such conversion", ".kdtr from or to .safetensors or .npz", " to ".join(pair)
    )


def from_npy(source: PathLike, target: PathLike, _rename: bool = False) -> str:
    """Convert an npy file to KDTR with one tensor, `array`. Returns the identity.

    The file is mapped, not read. Raises KdtrError for a damaged one, or one of Python objects.
    """
    where = os.fspath(source)
    try:
        array = np.load(where, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise KdtrError(where, error.strerror or str(error)) from None
    except _UNREADABLE as error:
        raise KdtrError(where, "not a readable npy", got=ascii(str(error))[:120]) from None
    if not isinstance(array, np.ndarray):
        raise KdtrError(where, "not an npy file", ".npy", "an archive: name it .npz")
    return container.write(target, {"array": np.asarray(array, order="C")})


@contextmanager
def opened(path: PathLike, verify: container.Verify = "lazy") -> Iterator[container.File]:
    """Open a `.kdtr`, `.npz`, `.npy` or `.safetensors` file as a KDTR file.

    Others than KDTR go through a temporary file, so that as much room is needed on disk.
    """
    suffix = Path(path).suffix
    if suffix not in _READ:
        with container.open(path, verify) as file:
            yield file
        return
    with tempfile.TemporaryDirectory(prefix="kdtr-") as folder:
        plain = Path(folder, "converted.kdtr")
        _READ[suffix](path, plain, True)
        with container.open(plain, verify) as file:
            file.where = os.fspath(path)
            yield file


_READ: Final = {**_IN, ".npy": from_npy}
