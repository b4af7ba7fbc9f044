"""The KDTR v1 tensor container: read, write, check. The bytes are described in docs/format.md.

Reading copies the index out of the file before it trusts a byte of it, checks every structural
rule in the documented order, and checks a payload when it is first used.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import mmap as _mmap
import os
import secrets
import stat
import struct
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kdtr import dtypes
from kdtr.errors import FormatError, KdtrError

if TYPE_CHECKING:
    import io

    from typing_extensions import Self

    from kdtr.dtypes import DType

Array = NDArray[Any]
Scalar = bool | int | float | str | bytes
TensorIn = Array | np.generic | tuple[str, Array] | tuple[str, Array, tuple[int, ...]]
Verify = Literal["none", "lazy", "eager", "deep"]
Meta = Mapping[str, Scalar]

MAGIC: Final = b"KDTR\r\n\x1a\n"
VERSION: Final = 1
ALIGN: Final = 256
MAX_COUNT: Final = 1 << 20
MAX_STRINGS: Final = 1 << 26
MAX_NAME: Final = 1024
MAX_RANK: Final = 8
MAX_DIM: Final = 1 << 48
MAX_BITS: Final = 1 << 56
READ_LIMIT: Final = 64 << 20
VOLATILE_KEYS: Final = frozenset({"created", "date", "host", "user", "path"})

_HEADER = struct.Struct("<8sII32sQIII60s")
_TENSOR = struct.Struct("<IHBBBBHIQQ8Q32s")
_KV = struct.Struct("<IIHBBIQ")
_BOOL, _I64, _U64, _F64, _UTF8, _BYTES = range(1, 7)
_NAN_BITS = 0x7FF8000000000000
_ZEROS = bytes(ALIGN)
_CHUNK = 4 << 20


def _align(offset: int) -> int:
    return (offset + ALIGN - 1) & -ALIGN


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file: what its record says.

    Attributes:
        dtype: element type.
        shape: logical elements, outermost first.
        offset, nbytes: the payload's place in the file, in bytes.
        crc32, sha256: checksums of the payload.
        meta: the tensor's metadata.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    offset: int
    nbytes: int
    crc32: int
    sha256: bytes
    meta: Mapping[str, Scalar]

    @property
    def numel(self) -> int:
        """Number of logical elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What a `Writer` must know of a tensor before its payload: name, type, shape, metadata."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    meta: Meta = field(default_factory=dict)


# --- rules: structure ---------------------------------------------------------------------------


class _Fault(NamedTuple):
    code: str
    offset: int
    what: str
    want: object = ""
    got: object = ""


@dataclass(slots=True)
class _Index:
    """The parts of a checked prefix."""

    size: int = 0
    prefix: bytes = b""
    root: bytes = b""
    tensors: dict[str, TensorInfo] | None = None
    meta: dict[str, Scalar] | None = None


_NAME_RULES = ("LENGTH", "UTF8", "CHAR", "PATH")


def _name_fault(raw: bytes) -> str | None:
    """Which of the name rules `raw` breaks first, or None."""
    if not 1 <= len(raw) <= MAX_NAME:
        return "LENGTH"
    if not _is_utf8(raw):
        return "UTF8"
    if any(b < 0x20 or b in (0x7F, 0x5C) for b in raw):
        return "CHAR"
    if any(segment in (b"", b".", b"..") for segment in raw.split(b"/")):
        return "PATH"
    return None


_NAME_WANT = {
    "LENGTH": "1 to 1024 bytes",
    "UTF8": "strict UTF-8",
    "CHAR": "no control character, DEL or backslash",
    "PATH": "no empty, '.' or '..' segment",
}


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _first_nonzero(raw: bytes | memoryview) -> int:
    """Index of the first byte that is not zero, or -1."""
    raw = bytes(raw)
    rest = raw.lstrip(b"\0")
    return len(raw) - len(rest) if rest else -1


def _text(raw: bytes) -> str:
    """`raw` for a message: quoted, escaped, and shortened."""
    return ascii(raw[:80].decode("utf-8", "backslashreplace"))


def _is_text_mode_magic(magic: bytes) -> bool:
    return magic[:4] == MAGIC[:4] and (
        magic[4:5] == b"\n" or magic[4:6] == b"\r\r" or magic[4:8] == b"\r\n\x1a\r"
    )


def _structure(
    actual: int, read: Callable[[int, int], bytes], out: _Index
) -> Generator[_Fault, None, None]:
    """Yield broken structural rules in the documented order, and fill `out`.

    Asked for one fault it stops there, which is how files are opened; asked for all, it goes on
    as far as the file still makes sense.
    """
    if actual < ALIGN:
        yield _Fault("E_TRUNCATED", actual, "file is too short", "256 bytes or more", actual)
        return
    head = read(0, 128)
    magic, version, crc, root, size, n, m, s, reserved = _HEADER.unpack(head)
    if _is_text_mode_magic(magic):
        yield _Fault(
            "E_MAGIC_TEXTMODE",
            0,
            "newlines were converted (mark *.kdtr as -text in .gitattributes)",
            MAGIC.hex(" "),
            magic.hex(" "),
        )
        return
    if magic != MAGIC:
        yield _Fault("E_MAGIC", 0, "not a KDTR file", MAGIC.hex(" "), magic.hex(" "))
        return
    if version != VERSION:
        yield _Fault("E_VERSION", 8, "unknown version", VERSION, version)
        return
    for count, limit, offset, what in (
        (n, MAX_COUNT, 56, "tensors"),
        (m, MAX_COUNT, 60, "metadata records"),
        (s, MAX_STRINGS, 64, "string bytes"),
    ):
        if count > limit:
            yield _Fault("E_LIMIT", offset, f"too many {what}", f"at most {limit}", count)
            return
    if size > actual:
        yield _Fault("E_TRUNCATED", 48, "file was cut short", f"{size} bytes", actual)
    if size < actual:
        yield _Fault("E_TRAILING", 48, "bytes after the end", f"{size} bytes", actual)
    if size % ALIGN:
        yield _Fault("E_FILE_SIZE", 48, "size is not whole blocks", "a multiple of 256", size)
    kv_at = 128 + 128 * n
    pool_at = kv_at + 24 * m
    end = pool_at + s
    if end > min(size, actual):
        yield _Fault("E_PREFIX_RANGE", 56, "index is larger than the file", size, end)
        if end > actual:
            return
    prefix = head + read(128, end)
    found = zlib.crc32(memoryview(prefix)[16:])
    if found != crc:
        yield _Fault("E_PREFIX_CRC", 12, "index checksum differs", f"{crc:08x}", f"{found:08x}")
    bad = _first_nonzero(reserved)
    if bad >= 0:
        yield _Fault("E_RESERVED", 68 + bad, "reserved byte is not 0", 0, reserved[bad])

    out.size, out.prefix, out.root = size, prefix, root
    pool = memoryview(prefix)[pool_at:]
    cursor = yield from _tensor_records(out, n, pool, _align(end))
    cursor = yield from _kv_records(out, m, pool, cursor)
    if cursor < s:
        yield _Fault("E_STRINGS_UNUSED", pool_at + cursor, "unused string bytes", cursor, s)
    bad = _first_nonzero(read(end, min(_align(end), actual)))
    if bad >= 0:
        yield _Fault("E_PADDING", end + bad, "byte after the index is not 0")


def _tensor_records(
    out: _Index, n: int, pool: memoryview, expected: int
) -> Generator[_Fault, None, int]:
    """Rules on tensor records. Returns the string cursor after the names."""
    out.tensors = {}
    pool_at = len(out.prefix) - len(pool)
    cursor, previous = 0, b""
    for i in range(n):
        at = 128 + 128 * i
        fields = _TENSOR.unpack_from(out.prefix, at)
        name_off, name_len, rank, reserved, code, bits, lanes, crc, data_off, data_len = fields[:10]
        dims, sha = fields[10:18], fields[18]
        if reserved:
            yield _Fault("E_RESERVED", at + 7, f"tensor {i}: reserved byte is not 0", 0, reserved)
        if name_off != cursor or name_len > len(pool) - cursor:
            yield _Fault(
                "E_NAME_SPAN",
                at,
                f"tensor {i}: name is not the next string",
                f"{cursor} of {len(pool)}",
                f"{name_off}+{name_len}",
            )
        raw = bytes(pool[name_off : name_off + name_len])
        rule = _name_fault(raw)
        if rule:
            yield _Fault(
                f"E_NAME_{rule}",
                at + 4 if rule == "LENGTH" else pool_at + name_off,
                f"tensor {i}: bad name",
                _NAME_WANT[rule],
                len(raw) if rule == "LENGTH" else _text(raw),
            )
        if i and raw == previous:
            yield _Fault("E_NAME_DUP", at, f"tensor {i}: name occurs twice", got=_text(raw))
        if i and raw < previous:
            yield _Fault(
                "E_NAME_ORDER",
                at,
                f"tensor {i}: names are not sorted",
                f"above {_text(previous)}",
                _text(raw),
            )
        previous, cursor = raw, name_off + name_len
        who = f"tensor {_text(raw)}"
        dtype = dtypes.find(code, bits) if lanes == 1 else None
        if dtype is None:
            got = f"({code}, {bits}, {lanes})"
            yield _Fault("E_DTYPE", at + 8, f"{who}: unknown type (code, bits, lanes)", got=got)
        yield from _shape_faults(at, who, rank, dims, max(bits, 1))
        rank = min(rank, MAX_RANK)
        want_len = (math.prod(dims[:rank]) * bits + 7) // 8
        if data_len != want_len:
            yield _Fault("E_DATA_LEN", at + 24, f"{who}: payload length", want_len, data_len)
        if data_off % ALIGN:
            yield _Fault(
                "E_DATA_ALIGN", at + 16, f"{who}: payload offset", "a multiple of 256", data_off
            )
        if data_off != expected:
            yield _Fault("E_DATA_OFFSET", at + 16, f"{who}: payload offset", expected, data_off)
        if data_off > out.size or data_len > out.size - data_off:
            yield _Fault(
                "E_DATA_RANGE",
                at + 16,
                f"{who}: payload ends outside the file",
                f"at most {out.size}",
                data_off + data_len,
            )
        expected = _align(data_off + data_len)
        if dtype is not None:
            name = raw.decode("utf-8", "backslashreplace")
            out.tensors[name] = TensorInfo(
                name, dtype, tuple(dims[:rank]), data_off, data_len, crc, sha, {}
            )
    if expected != out.size:
        yield _Fault("E_FILE_SIZE", 48, "file size differs from its content", expected, out.size)
    return cursor


def _shape_faults(
    at: int, who: str, rank: int, dims: tuple[int, ...], bits: int
) -> Iterator[_Fault]:
    if rank > MAX_RANK:
        yield _Fault("E_RANK", at + 6, f"{who}: rank", "at most 8", rank)
        return
    for k in range(rank, MAX_RANK):
        if dims[k]:
            yield _Fault("E_DIM_UNUSED", at + 32 + 8 * k, f"{who}: unused dim {k}", 0, dims[k])
            break
    for k in range(rank):
        if dims[k] > MAX_DIM:
            yield _Fault(
                "E_DIM_RANGE", at + 32 + 8 * k, f"{who}: dim {k}", f"at most {MAX_DIM}", dims[k]
            )
            break
    total = bits
    for k in range(rank):
        factor = max(dims[k], 1)
        if factor > MAX_BITS // total:
            yield _Fault(
                "E_NUMEL_OVERFLOW",
                at + 32 + 8 * k,
                f"{who}: size in bits",
                f"at most {MAX_BITS}",
                f"{total} * {factor}",
            )
            return
        total *= factor


def _kv_records(out: _Index, m: int, pool: memoryview, cursor: int) -> Generator[_Fault, None, int]:
    """Rules on metadata records. Returns the string cursor after the last string."""
    assert out.tensors is not None
    out.meta = {}
    owners = [out.meta, *(info.meta for info in out.tensors.values())]
    pool_at = len(out.prefix) - len(pool)
    kv_at = pool_at - 24 * m
    n = (kv_at - 128) // 128
    previous = (-1, b"")
    for j in range(m):
        at = kv_at + 24 * j
        owner, key_off, key_len, kind, reserved, val_len, value = _KV.unpack_from(out.prefix, at)
        if reserved:
            yield _Fault(
                "E_RESERVED", at + 11, f"metadata {j}: reserved byte is not 0", 0, reserved
            )
        if owner > n:
            yield _Fault("E_KV_OWNER", at, f"metadata {j}: owner", f"at most {n}", owner)
        if key_off != cursor or key_len > len(pool) - cursor:
            yield _Fault(
                "E_KV_SPAN",
                at + 4,
                f"metadata {j}: key is not the next string",
                f"{cursor} of {len(pool)}",
                f"{key_off}+{key_len}",
            )
        raw = bytes(pool[key_off : key_off + key_len])
        cursor = key_off + key_len
        text = b""
        if kind in (_UTF8, _BYTES):
            if value != cursor or val_len > len(pool) - cursor:
                yield _Fault(
                    "E_KV_SPAN",
                    at + 16,
                    f"metadata {j}: value is not the next string",
                    f"{cursor} of {len(pool)}",
                    f"{value}+{val_len}",
                )
            text = bytes(pool[value : value + val_len])
            cursor = value + val_len
        rule = _name_fault(raw)
        if rule:
            yield _Fault(
                f"E_KV_KEY_{rule}",
                at + 8 if rule == "LENGTH" else pool_at + key_off,
                f"metadata {j}: bad key",
                _NAME_WANT[rule],
                len(raw) if rule == "LENGTH" else _text(raw),
            )
        who = f"metadata {j} {_text(raw)}"
        if (owner, raw) == previous:
            yield _Fault("E_KV_DUP", at, f"{who}: key occurs twice")
        if (owner, raw) < previous:
            yield _Fault("E_KV_ORDER", at, f"{who}: records are not sorted")
        previous = (owner, raw)
        if not _BOOL <= kind <= _BYTES:
            yield _Fault("E_KV_TYPE", at + 10, f"{who}: type", "1 to 6", kind)
        if kind <= _F64:
            yield from _scalar_faults(at, who, kind, val_len, value)
        if kind == _UTF8 and not _is_utf8(text):
            yield _Fault("E_KV_UTF8", pool_at + value, f"{who}: value", "strict UTF-8", _text(text))
        if owner < len(owners) and _BOOL <= kind <= _BYTES:
            target = owners[owner]
            assert isinstance(target, dict)
            key = raw.decode("utf-8", "backslashreplace")
            target[key] = _read_value(kind, value, text)
    return cursor


def _scalar_faults(at: int, who: str, kind: int, val_len: int, value: int) -> Iterator[_Fault]:
    if val_len:
        yield _Fault("E_KV_VALUE", at + 12, f"{who}: length of a scalar", 0, val_len)
    if kind == _BOOL and value > 1:
        yield _Fault("E_KV_VALUE", at + 16, f"{who}: bool", "0 or 1", value)
    if kind == _U64 and value < 1 << 63:
        yield _Fault("E_KV_VALUE", at + 16, f"{who}: u64", "2^63 or more (else i64)", value)
    if kind == _F64 and value & ~(1 << 63) > 0x7FF0 << 48 and value != _NAN_BITS:
        yield _Fault("E_KV_VALUE", at + 16, f"{who}: NaN", f"{_NAN_BITS:x}", f"{value:x}")


def _read_value(kind: int, value: int, text: bytes) -> Scalar:
    if kind == _BOOL:
        return value != 0
    if kind == _I64:
        return value - (1 << 64) if value >> 63 else value
    if kind == _U64:
        return value
    if kind == _F64:
        return float(struct.unpack("<d", value.to_bytes(8, "little"))[0])
    return text.decode("utf-8", "backslashreplace") if kind == _UTF8 else text


# --- rules: payload -----------------------------------------------------------------------------


def _content_faults(info: TensorInfo, data: memoryview, at: int) -> Iterator[_Fault]:
    """What a writer must check too: bool bytes and spare bits of a payload at file offset `at`."""
    if info.dtype.name == "bool":
        wrong = np.frombuffer(data, np.uint8) > 1
        if wrong.any():
            k = int(np.argmax(wrong))
            yield _Fault("E_BOOL_VALUE", at + k, f"tensor {info.name!a}: bool", "0 or 1", data[k])
    used = info.numel * info.dtype.bits % 8
    if used and data[-1] >> used:
        yield _Fault(
            "E_SUBBYTE_TAIL",
            at + len(data) - 1,
            f"tensor {info.name!a}: unused bits of the last byte are not 0",
        )


def _payload(info: TensorInfo, number: int, data: memoryview) -> Iterator[_Fault]:
    """Rules 41 to 44 on one tensor of the file `data`."""
    body = data[info.offset : info.offset + info.nbytes]
    found = zlib.crc32(body)
    if found != info.crc32:
        yield _Fault(
            "E_TENSOR_CRC",
            128 + 128 * number + 12,
            f"tensor {info.name!a}: payload checksum differs",
            f"{info.crc32:08x}",
            f"{found:08x}",
        )
    end = info.offset + info.nbytes
    bad = _first_nonzero(data[end : _align(end)])
    if bad >= 0:
        yield _Fault("E_PADDING", end + bad, f"byte after tensor {info.name!a} is not 0")
    if info.nbytes:
        yield from _content_faults(info, body, info.offset)


def _digests(index: _Index, data: memoryview) -> Iterator[_Fault]:
    """Rules 45 and 46."""
    assert index.tensors is not None
    for i, info in enumerate(index.tensors.values()):
        found = hashlib.sha256(data[info.offset : info.offset + info.nbytes]).digest()
        if found != info.sha256:
            yield _Fault(
                "E_TENSOR_DIGEST",
                128 + 128 * i + 96,
                f"tensor {info.name!a}: payload SHA-256 differs",
                info.sha256.hex(),
                found.hex(),
            )
    found = hashlib.sha256(memoryview(index.prefix)[48:]).digest()
    if found != index.root:
        yield _Fault(
            "E_ROOT_DIGEST", 16, "SHA-256 of the index differs", index.root.hex(), found.hex()
        )


def _raise_first(where: str, faults: Iterable[_Fault]) -> None:
    for fault in faults:
        raise _error(where, fault)


def _error(where: str, f: _Fault) -> FormatError:
    return FormatError(where, f.code, f.what, f.want, f.got, f.offset)


# --- reading ------------------------------------------------------------------------------------


class File:
    """An open KDTR file. Made by `open`; usable in a `with` statement.

    Attributes:
        where: path, for messages.
        tensors: name to `TensorInfo`, in file order (names sorted as bytes).
        meta: the file's metadata.
        identity: `kdtr1:` and the root digest; equal content has equal identity.
    """

    def __init__(self, where: str, data: memoryview, index: _Index, verify: Verify) -> None:
        assert index.tensors is not None
        assert index.meta is not None
        self.where = where
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(index.tensors)
        self.meta: Mapping[str, Scalar] = MappingProxyType(index.meta)
        self.identity = "kdtr1:" + index.root.hex()
        self._data: memoryview | None = data
        self._number = {name: i for i, name in enumerate(index.tensors)}
        self._unchecked = set() if verify == "none" else set(index.tensors)
        if verify in ("eager", "deep"):
            for name in index.tensors:
                self.check(name)
        if verify == "deep":
            _raise_first(where, _digests(index, data))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __contains__(self, name: object) -> bool:
        return name in self.tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def close(self) -> None:
        """Let go of the file. Arrays that were handed out stay valid."""
        self._data = None

    def info(self, name: str) -> TensorInfo:
        """The record of tensor `name`. Raises FormatError E_NOT_FOUND."""
        try:
            return self.tensors[name]
        except KeyError:
            raise FormatError(
                self.where, "E_NOT_FOUND", "no such tensor", ", ".join(self.tensors), name
            ) from None

    def check(self, name: str) -> None:
        """Check the payload of tensor `name` if that has not been done: rules 41 to 44."""
        if name in self._unchecked:
            _raise_first(self.where, _payload(self.info(name), self._number[name], self._bytes()))
            self._unchecked.discard(name)

    def raw(self, name: str) -> memoryview:
        """Payload bytes of tensor `name`, read-only, without a copy."""
        info = self.info(name)
        self.check(name)
        return self._bytes()[info.offset : info.offset + info.nbytes]

    def __getitem__(self, name: str) -> Array:
        """Stored array of tensor `name`, read-only, without a copy.

        Its dtype is `info.dtype.storage` and its shape the tensor's; packed types come as
        uint8 [nbytes].
        """
        info = self.info(name)
        shape = (info.nbytes,) if info.dtype.packed else info.shape
        self.check(name)
        array: Array = np.ndarray(shape, info.dtype.storage, self._bytes(), info.offset)
        return array

    def values(self, name: str) -> Array:
        """Values of tensor `name` in its logical shape; see `kdtr.dtypes.decode`."""
        info = self.info(name)
        return dtypes.decode(self[name], info.dtype.name, info.shape)

    def _bytes(self) -> memoryview:
        if self._data is None:
            raise KdtrError(self.where, "file is closed")
        return self._data


def open(path: str | os.PathLike[str], verify: Verify = "lazy", mmap: bool | None = None) -> File:
    """Open a KDTR file and check its structure.

    Args:
        path: file to read; a pipe is read to its end first, a device is refused.
        verify: when payloads are checked: "lazy" on first access, "eager" now, "deep" now and
            with SHA-256, "none" never.
        mmap: map the file instead of reading it; by default only above 64 MiB, because a mapped
            file that someone else cuts short kills the process.

    Raises:
        FormatError: names the broken rule and the byte.
    """
    where = os.fspath(path)
    try:
        with Path(where).open("rb", buffering=0) as handle:
            return _open_handle(where, handle, verify, mmap)
    except OSError as error:
        raise _io_error(where, error) from None


def want_file(path: str | os.PathLike[str], *, target: bool = False) -> None:
    """Raise KdtrError for a pipe or a device, whose reader may wait for ever.

    A path where nothing is passes; so does a folder, unless the path is a `target` to be replaced.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return  # whoever opens it says why
    if stat.S_ISREG(mode) or (stat.S_ISDIR(mode) and not target):
        return
    got = "a folder" if stat.S_ISDIR(mode) else "a pipe or a device"
    fault = "cannot be replaced" if target else "cannot be read twice"
    raise KdtrError(os.fspath(path), fault, "a file", got)


def _io_error(where: str, error: OSError) -> FormatError:
    return FormatError(where, "E_IO", error.strerror or str(error))


def _open_handle(where: str, handle: io.FileIO, verify: Verify, mmap: bool | None) -> File:
    status = os.fstat(handle.fileno())
    if stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):  # it may have no end
        raise FormatError(where, "E_IO", "a device, not a file")
    if not stat.S_ISREG(status.st_mode):
        return _from_memory(where, memoryview(handle.readall()), verify)
    size = status.st_size
    if mmap is None:
        mmap = size > READ_LIMIT
    if not mmap:
        block = aligned_empty(size)
        view, done = block.data, 0
        while done < size:
            got = handle.readinto(view[done:])
            if not got:
                break
            done += got
        return _from_memory(where, view[:done].toreadonly(), verify)

    def read(start: int, stop: int) -> bytes:
        handle.seek(start)
        return handle.read(stop - start)

    # The index is read, not mapped: a mapping can change after it was checked.
    index = _Index()
    _raise_first(where, _structure(size, read, index))
    data = memoryview(_mmap.mmap(handle.fileno(), size, access=_mmap.ACCESS_READ))
    return File(where, data, index, verify)


def aligned_empty(size: int) -> NDArray[np.uint8]:
    """Uninitialised uint8 [size] that starts on a 256-byte boundary, as payloads do on disk."""
    block = np.empty(size + ALIGN, np.uint8)
    skip = -block.ctypes.data % ALIGN
    return block[skip : skip + size]


def _from_memory(where: str, data: memoryview, verify: Verify) -> File:
    index = _Index()
    _raise_first(where, _structure(len(data), lambda a, b: bytes(data[a:b]), index))
    return File(where, data, index, verify)


def loads(data: bytes, verify: Verify = "lazy", where: str = "<bytes>") -> File:
    """Open a KDTR file that is already in memory; like `open`."""
    return _from_memory(where, memoryview(data).toreadonly(), verify)


def validate(source: str | os.PathLike[str] | bytes, deep: bool = False) -> None:
    """Check every rule of the format on a file or on bytes; `deep` adds the SHA-256 digests.

    Raises FormatError for the first rule that is broken, in the documented order.
    """
    verify: Verify = "deep" if deep else "eager"
    if isinstance(source, bytes):
        loads(source, verify)
    else:
        open(source, verify)


def all_errors(data: bytes, where: str = "<bytes>", limit: int = 1000) -> list[FormatError]:
    """As many broken rules of a damaged file as can be told apart, at most `limit`.

    The first is the one that `validate(data, deep=True)` raises; later ones can follow from it.
    """
    index, view = _Index(), memoryview(data)
    faults: list[_Fault] = []

    def gather(more: Iterable[_Fault]) -> None:
        for fault in more:
            if len(faults) >= limit:
                return
            faults.append(fault)

    gather(_structure(len(data), lambda a, b: bytes(data[a:b]), index))
    if index.tensors is not None:
        for i, info in enumerate(index.tensors.values()):
            if info.offset + info.nbytes <= len(data):
                gather(_payload(info, i, view))
        gather(_digests(index, view))
    return [_error(where, fault) for fault in faults]


# --- writing ------------------------------------------------------------------------------------


class _Slot:
    """One tensor being written: its place, and its checksums so far."""

    def __init__(self, name: bytes, info: TensorInfo) -> None:
        self.name, self.info = name, info
        self.done, self.crc, self.sha = 0, 0, hashlib.sha256()

    def update(self, where: str, chunk: memoryview) -> None:
        info, at = self.info, self.info.offset + self.done
        if self.done + len(chunk) > info.nbytes:
            raise KdtrError(
                where,
                f"tensor {info.name!a}: payload is too long",
                info.nbytes,
                self.done + len(chunk),
            )
        last = self.done + len(chunk) == info.nbytes
        if len(chunk) and (last or info.dtype.name == "bool"):
            _raise_first(where, _content_faults(info, chunk, at))
        self.done += len(chunk)
        self.crc = zlib.crc32(chunk, self.crc)
        self.sha.update(chunk)


class _Layout:
    """All that a file's specs decide before a payload byte is known."""

    def __init__(self, where: str, specs: Iterable[TensorSpec], meta: Meta) -> None:
        self.where = where
        named = sorted(((self._name(s.name, "E_NAME"), s) for s in specs), key=lambda p: p[0])
        for (a, _), (b, spec) in itertools.pairwise(named):
            if a == b:
                raise FormatError(where, "E_NAME_DUP", "tensor name occurs twice", got=spec.name)
        volatile = sorted(VOLATILE_KEYS & set(meta))
        if volatile:
            raise KdtrError(
                where,
                "metadata that varies between runs would change the identity",
                f"no {volatile[0]!r}",
                remedy="keep it beside the file",
            )
        pool = bytearray(b"".join(name for name, _ in named))
        records: list[bytes] = []
        for owner, entries in enumerate([meta, *(spec.meta for _, spec in named)]):
            records += self._records(owner, entries, pool)
        for count, limit, what in (
            (len(named), MAX_COUNT, "tensors"),
            (len(records), MAX_COUNT, "metadata records"),
            (len(pool), MAX_STRINGS, "string bytes"),
        ):
            if count > limit:
                raise FormatError(where, "E_LIMIT", f"too many {what}", f"at most {limit}", count)
        self.counts = (len(named), len(records), len(pool))
        self.tail = b"".join(records) + bytes(pool)
        self.prefix_size = 128 + 128 * len(named) + len(self.tail)
        self.slots: dict[str, _Slot] = {}
        offset = _align(self.prefix_size)
        for name, spec in named:
            info = self._info(spec, offset)
            self.slots[spec.name] = _Slot(name, info)
            offset = _align(offset + info.nbytes)
        self.size = offset

    def _name(self, text: str, code: str) -> bytes:
        raw = text.encode("utf-8", "surrogatepass")
        rule = _name_fault(raw)
        if rule:
            raise FormatError(
                self.where, f"{code}_{rule}", "bad name", _NAME_WANT[rule], _text(raw)
            )
        return raw

    def _info(self, spec: TensorSpec, offset: int) -> TensorInfo:
        dtype, shape = dtypes.by_name(spec.dtype), tuple(int(d) for d in spec.shape)
        who = f"tensor {spec.name!a}"
        if any(d < 0 for d in shape):
            raise FormatError(self.where, "E_DIM_RANGE", f"{who}: shape", "0 or more", shape)
        dims = shape + (0,) * MAX_RANK
        _raise_first(self.where, _shape_faults(0, who, len(shape), dims, dtype.bits))
        return TensorInfo(
            spec.name, dtype, shape, offset, dtype.nbytes(math.prod(shape)), 0, b"", spec.meta
        )

    def _records(self, owner: int, entries: Meta, pool: bytearray) -> Iterator[bytes]:
        keyed = sorted((self._name(key, "E_KV_KEY"), key) for key in entries)
        for raw, key in keyed:
            key_off = len(pool)
            pool += raw
            kind, bits, text = self._value(key, entries[key])
            if text is not None:
                bits = len(pool)
                pool += text
            if len(pool) > MAX_STRINGS:
                raise FormatError(self.where, "E_LIMIT", "too many string bytes", MAX_STRINGS)
            yield _KV.pack(owner, key_off, len(raw), kind, 0, len(text or b""), bits)

    def _value(self, key: str, value: Scalar) -> tuple[int, int, bytes | None]:
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, bool):
            return _BOOL, int(value), None
        if isinstance(value, int):
            if not -(1 << 63) <= value < 1 << 64:
                raise FormatError(
                    self.where, "E_KV_VALUE", f"metadata {key!a}", "-2^63 to 2^64-1", value
                )
            return (_U64 if value >> 63 > 0 else _I64), value & ((1 << 64) - 1), None
        if isinstance(value, float):
            bits = int.from_bytes(struct.pack("<d", value), "little")
            return _F64, _NAN_BITS if math.isnan(value) else bits, None
        if isinstance(value, bytes):
            return _BYTES, 0, value
        if isinstance(value, str):
            raw = value.encode("utf-8", "surrogatepass")
            if not _is_utf8(raw):
                raise FormatError(
                    self.where, "E_KV_UTF8", f"metadata {key!a}", "no surrogates", ascii(value)
                )
            return _UTF8, 0, raw
        raise FormatError(
            self.where,
            "E_KV_TYPE",
            f"metadata {key!a}",
            "bool, int, float, str or bytes",
            type(value).__name__,
        )

    def slot(self, name: str) -> _Slot:
        try:
            return self.slots[name]
        except KeyError:
            raise FormatError(self.where, "E_NOT_FOUND", "no such tensor", got=name) from None

    def prefix(self) -> tuple[bytes, str]:
        """Header, records and strings, once all payloads have been seen; and the identity."""
        records, cursor = [], 0
        for slot in self.slots.values():
            info = slot.info
            if slot.done != info.nbytes:
                raise KdtrError(
                    self.where,
                    f"tensor {info.name!a}: payload is too short",
                    info.nbytes,
                    slot.done,
                )
            dims = info.shape + (0,) * (MAX_RANK - len(info.shape))
            records.append(
                _TENSOR.pack(
                    cursor,
                    len(slot.name),
                    len(info.shape),
                    0,
                    info.dtype.code,
                    info.dtype.bits,
                    1,
                    slot.crc,
                    info.offset,
                    info.nbytes,
                    *dims,
                    slot.sha.digest(),
                )
            )
            cursor += len(slot.name)
        covered = struct.pack("<QIII60x", self.size, *self.counts) + b"".join(records) + self.tail
        root = hashlib.sha256(covered).digest()
        crc = zlib.crc32(covered, zlib.crc32(root))
        return MAGIC + struct.pack("<II", VERSION, crc) + root + covered, "kdtr1:" + root.hex()


class Writer:
    """Writes one KDTR file, payloads in any order and in pieces, without holding them.

    The file appears under its name only when it is whole: on an error, or Ctrl-C, the temporary
    file beside it is removed. Use as a context manager, which commits at its end:

        with Writer(path, [TensorSpec("x", "f32", (2, 3))]) as w:
            w.write("x", chunk)
        w.identity

    Args:
        path: file to make or replace.
        specs: every tensor.
        meta: the file's metadata.
    """

    def __init__(
        self, path: str | os.PathLike[str], specs: Iterable[TensorSpec], meta: Meta | None = None
    ) -> None:
        self.path = os.fspath(path)
        self.identity = ""
        self._layout = _Layout(self.path, specs, meta or {})
        want_file(path, target=True)
        self._temporary = Path(f"{self.path}.{secrets.token_hex(8)}.tmp")
        try:
            # Closed by commit and abort.
            self._file: BinaryIO | None = self._temporary.open("xb", buffering=0)
        except OSError as error:
            raise _io_error(str(self._temporary), error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            if kind is None:
                self.commit()
            else:
                self.abort()

    def write(self, name: str, chunk: Array | bytes | memoryview) -> None:
        """Append bytes to the payload of tensor `name`; arrays give their bytes in C order."""
        slot = self._layout.slot(name)
        view = _as_bytes(chunk)
        for start in range(0, len(view), _CHUNK):
            piece = view[start : start + _CHUNK]
            at = slot.info.offset + slot.done
            slot.update(self.path, piece)
            self._put(at, piece)

    def commit(self) -> str:
        """Write the index, header last, and move the file to its name. Returns the identity."""
        try:
            prefix, identity = self._layout.prefix()
            handle = self._open_file()
            handle.truncate(self._layout.size)
            self._put(128, memoryview(prefix)[128:])
            self._put(0, memoryview(prefix)[:128])
            os.fsync(handle.fileno())
            handle.close()
            self._temporary.replace(self.path)
        except BaseException as error:
            self.abort()
            if isinstance(error, OSError):
                raise _io_error(self.path, error) from None
            raise
        self._file = None
        self.identity = identity
        return identity

    def abort(self) -> None:
        """Remove the temporary file. Nothing happens after `commit`."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._temporary.unlink()

    def _open_file(self) -> BinaryIO:
        if self._file is None:
            raise KdtrError(self.path, "writer is closed")
        return self._file

    def _put(self, at: int, piece: memoryview) -> None:
        handle = self._open_file()
        handle.seek(at)
        while piece:
            piece = piece[handle.write(piece) :]


def _as_bytes(chunk: Array | bytes | memoryview) -> memoryview:
    if isinstance(chunk, np.ndarray):
        little = chunk.astype(chunk.dtype.newbyteorder("<"), order="C", copy=False)
        return little.reshape(-1).view(np.uint8).data
    return memoryview(chunk).cast("B")


def _resolve(
    tensors: Mapping[str, TensorIn], tensor_meta: Mapping[str, Meta] | None, where: str
) -> tuple[list[TensorSpec], dict[str, Array]]:
    notes = tensor_meta or {}
    for name in notes:
        if name not in tensors:
            raise FormatError(where, "E_NOT_FOUND", "metadata for no tensor", got=name)
    specs, arrays = [], {}
    for name, given in tensors.items():
        if isinstance(given, tuple):
            dtype, array = dtypes.by_name(given[0]), np.asarray(given[1])
            shape = tuple(given[2]) if len(given) == 3 else array.shape
            if dtype.packed and len(given) == 2:
                raise KdtrError(
                    f"{where}: tensor {name!a}", "a packed type needs its logical shape"
                )
        else:
            array = np.asarray(given)
            dtype, shape = dtypes.of_numpy(array.dtype), array.shape
        numel = math.prod(shape)
        want = dtype.nbytes(numel) if dtype.packed else numel
        if array.dtype.newbyteorder("<") != dtype.storage or array.size != want:
            raise KdtrError(
                f"{where}: tensor {name!a}",
                f"array does not store {dtype.name} {list(shape)}",
                f"{dtype.storage}[{want}]",
                f"{array.dtype}[{array.size}]",
            )
        specs.append(TensorSpec(name, dtype.name, shape, notes.get(name, {})))
        arrays[name] = array
    return specs, arrays


def write(
    path: str | os.PathLike[str],
    tensors: Mapping[str, TensorIn],
    meta: Meta | None = None,
    tensor_meta: Mapping[str, Meta] | None = None,
) -> str:
    """Write a KDTR file; the same content gives the same bytes whatever the order of arguments.

    Args:
        path: file to make or replace, in one step.
        tensors: name to a numpy array, whose bytes are kept as they are; or to
            `(dtype_name, storage)` for a type that numpy lacks; or, for packed types, to
            `(dtype_name, storage, logical_shape)`. `kdtr.dtypes.encode` makes storage.
        meta: the file's metadata.
        tensor_meta: tensor name to its metadata.

    Returns:
        The identity, `kdtr1:<hex>`.

    Raises:
        FormatError: the content would break a rule of the format.
        KdtrError: an array does not fit its type or shape.
    """
    where = os.fspath(path)
    specs, arrays = _resolve(tensors, tensor_meta, where)
    with Writer(path, specs, meta) as writer:
        for name, array in arrays.items():
            writer.write(name, array)
    return writer.identity


def dumps(
    tensors: Mapping[str, TensorIn],
    meta: Meta | None = None,
    tensor_meta: Mapping[str, Meta] | None = None,
) -> bytes:
    """The bytes that `write` would put in a file."""
    where = "<bytes>"
    specs, arrays = _resolve(tensors, tensor_meta, where)
    layout = _Layout(where, specs, meta or {})
    out = bytearray(layout.size)
    for name, array in arrays.items():
        slot, view = layout.slot(name), _as_bytes(array)
        slot.update(where, view)
        out[slot.info.offset : slot.info.offset + len(view)] = view
    prefix, _ = layout.prefix()
    out[: len(prefix)] = prefix
    return bytes(out)
