"""Hostile KDTR files and the code that every reader must give each of them.

    python tests/malformed/generate.py OUT   writes OUT/<case>.kdtr and OUT/expected.tsv

Each file breaks one rule and is resealed, so that the rule is reached, unless the case says
otherwise. The codes and the byte offsets are derived by hand from the rules table of
docs/format.md. This file has its own writer, so that it shares no code, and no mistake, with
`kdtr.container`.
"""

from __future__ import annotations

import hashlib
import math
import struct
import sys
import zlib
from dataclasses import dataclass, field, replace
from pathlib import Path

MAGIC = b"KDTR\r\n\x1a\n"
M64 = (1 << 64) - 1
DTYPES = sorted(
    [(code, bits) for code in (0, 1, 2) for bits in (16, 32, 64)]
    + [(0, 2), (0, 4), (0, 8), (1, 1), (1, 2), (1, 4), (1, 8), (4, 16), (6, 8)]
    + [(5, 32), (5, 64), (5, 128), *((code, 8) for code in range(7, 15))]
    + [(15, 6), (16, 6), (17, 4)]
)
BOOL, I64, U64, F64, UTF8, BYTES = range(1, 7)


@dataclass(frozen=True)
class T:
    """A tensor; `over` replaces fields of its record after they are computed."""

    name: bytes
    dtype: tuple[int, int]
    dims: tuple[int, ...]
    data: bytes
    over: dict[str, int | bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class K:
    """A metadata record: an int is scalar bits, bytes go to the string pool."""

    owner: int
    key: bytes
    kind: int
    value: int | bytes
    over: dict[str, int | bytes] = field(default_factory=dict)


def align(x: int) -> int:
    return -(-x // 256) * 256


def build(
    tensors: list[T],
    kvs: list[K],
    pool_extra: bytes = b"",
    **over: int | bytes,
) -> bytes:
    """A file in the documented layout; `over` replaces header fields before it is sealed."""
    strings = b"".join(t.name for t in tensors)
    kv_records = []
    for k in kvs:
        f: dict[str, int | bytes] = {
            "owner": k.owner,
            "key_off": len(strings),
            "key_len": len(k.key),
            "kind": k.kind,
        }
        f |= {"reserved": 0, "val_len": 0}
        strings += k.key
        if isinstance(k.value, bytes):
            f |= {"val_len": len(k.value), "value": len(strings)}
            strings += k.value
        else:
            f["value"] = k.value
        f |= k.over
        order = ("owner", "key_off", "key_len", "kind", "reserved", "val_len", "value")
        kv_records.append(struct.pack("<IIHBBIQ", *(f[name] for name in order)))
    strings += pool_extra
    prefix_size = 128 + 128 * len(tensors) + 24 * len(kvs) + len(strings)
    offset, name_off, records, body = align(prefix_size), 0, [], b""
    for t in tensors:
        r: dict[str, int | bytes] = {
            "name_off": name_off,
            "name_len": len(t.name),
            "rank": len(t.dims),
            "reserved": 0,
            "code": t.dtype[0],
            "bits": t.dtype[1],
            "lanes": 1,
            "crc": zlib.crc32(t.data),
            "off": offset,
            "len": len(t.data),
            "dims": struct.pack("<8Q", *(t.dims + (0,) * 8)[:8]),
            "sha": hashlib.sha256(t.data).digest(),
        }
        r |= t.over
        records.append(struct.pack("<IHBBBBHIQQ64s32s", *r.values()))
        name_off += len(t.name)
        body += t.data.ljust(align(len(t.data)), b"\0")
        offset += align(len(t.data))
    h: dict[str, int | bytes] = {
        "size": offset,
        "n": len(tensors),
        "m": len(kvs),
        "s": len(strings),
        "reserved": b"",
    }
    h |= over
    covered = struct.pack("<QIII60s", *h.values()) + b"".join(records + kv_records) + strings
    return (
        seal(MAGIC + struct.pack("<I", 1) + bytes(36) + covered, len(covered) + 48)
        + bytes(align(prefix_size) - prefix_size)
        + body
    )


def seal(file: bytes, end: int) -> bytes:
    """`file` with the root and the prefix CRC made right for a prefix of `end` bytes."""
    root = hashlib.sha256(file[48:end]).digest()
    crc = zlib.crc32(file[48:end], zlib.crc32(root))
    return file[:12] + struct.pack("<I", crc) + root + file[48:]


def put(file: bytes, at: int, new: bytes) -> bytes:
    return file[:at] + new + file[at + len(new) :]


# The base file. Its map, by hand: n = 4, m = 7, s = 26.
TENSORS = [
    T(b"a/x", (2, 32), (2, 3), struct.pack("<6f", 0, 1, -2, 0.5, math.inf, 3)),
    T(b"b", (6, 8), (3,), b"\1\0\1"),
    T(b"n", (1, 4), (3,), b"\x21\x0f"),
    T(b"z", (2, 64), (0, 3), b""),
]
KVS = [
    K(0, b"b", BOOL, 1),
    K(0, b"f", F64, 0x3FF8 << 48),
    K(0, b"i", I64, M64),
    K(0, b"s", UTF8, "hé".encode()),
    K(0, b"u", U64, 1 << 63),
    K(0, b"y", BYTES, b"\0\xff"),
    K(1, b"role", UTF8, b"input"),
]
R = (128, 256, 384, 512)  # tensor records
KV = tuple(640 + 24 * j for j in range(7))  # metadata records
POOL, END, FIRST, SIZE = 808, 834, 1024, 1792
PAYLOAD = (1024, 1280, 1536, 1792)
BASE = build(TENSORS, KVS)


@dataclass(frozen=True)
class Case:
    """One file: the code that it must get, the byte at fault (-1 for none), and the reason."""

    name: str
    code: str
    at: int
    data: bytes
    why: str


CASES: list[Case] = []


def case(name: str, code: str, at: int, data: bytes, why: str) -> None:
    CASES.append(Case(name, code, at, data, why))


def base(number: int = -1, kv: int = -1, pool_extra: bytes = b"", **over: int | bytes) -> bytes:
    """The base file with record fields of one tensor or metadata record replaced, resealed."""
    tensors = [replace(t, over=over) if i == number else t for i, t in enumerate(TENSORS)]
    kvs = [replace(k, over=over) if j == kv else k for j, k in enumerate(KVS)]
    return build(tensors, kvs, pool_extra, **({} if number >= 0 or kv >= 0 else over))


def named(*names: bytes) -> bytes:
    """A file of scalar u8 tensors with these names in this order."""
    return build([T(n, (1, 8), (), b"\7") for n in names], [])


def keyed(*keys: bytes) -> bytes:
    """A file of these file-level bool keys in this order."""
    return build([], [K(0, k, BOOL, 1) for k in keys])


def one(dtype: tuple[int, int], shape: tuple[int, ...], data: bytes, **over: int | bytes) -> bytes:
    """A file of one tensor `t`: its name is at 256, its payload at 512."""
    return build([T(b"t", dtype, shape, data, over)], [])


def dims(*sizes: int) -> bytes:
    return struct.pack("<8Q", *(sizes + (0,) * 8)[:8])


def valid() -> None:
    case("ok_base", "OK", -1, BASE, "every kind of metadata and payload")
    case("ok_empty", "OK", -1, build([], []), "no tensors, no metadata: the smallest file")
    case("ok_rank8", "OK", -1, one((1, 8), (1,) * 8, b"\1"), "highest rank")
    case("ok_scalar", "OK", -1, one((2, 32), (), b"\0\0\x80\x3f"), "rank 0 has one element")
    case(
        "ok_utf8_names",
        "OK",
        -1,
        named("é".encode(), "日本".encode(), "𝛑".encode()),
        "2 to 4 bytes",
    )
    case(
        "ok_byte_order",
        "OK",
        -1,
        named("\uffff".encode(), "\U00010000".encode()),
        "sorted as bytes: UTF-16 order would be the other way round",
    )
    case("ok_dots_inside", "OK", -1, named(b"...", b".a", b"a..", b"a/..b"), "not dot segments")
    case("ok_name_1024", "OK", -1, named(b"a" * 1024), "longest name")
    case(
        "ok_nan_payload",
        "OK",
        -1,
        one((2, 32), (2,), b"\1\0\x80\x7f\xff\xff\xff\xff"),
        "payload NaNs are kept as they are",
    )
    case("ok_nan_meta", "OK", -1, build([], [K(0, b"f", F64, 0x7FF8 << 48)]), "canonical NaN")
    case("ok_inf_meta", "OK", -1, build([], [K(0, b"f", F64, 0xFFF0 << 48)]), "-inf is no NaN")
    case(
        "ok_empty_values", "OK", -1, build([], [K(0, b"a", UTF8, b""), K(0, b"b", BYTES, b"")]), ""
    )
    case("ok_zero_dim_max", "OK", -1, one((1, 8), (1 << 48, 0), b""), "2^48 is the largest dim")
    case(
        "ok_all_dtypes",
        "OK",
        -1,
        build([T(b"%02d_%03d" % d, d, (1,), bytes(-(-d[1] // 8))) for d in DTYPES], []),
        "all 32 types",
    )
    case("ok_full_block", "OK", -1, one((1, 8), (256,), bytes(range(256))), "no padding needed")


def header() -> None:
    case("empty_file", "E_TRUNCATED", 0, b"", "cannot even be mapped")
    case("one_byte", "E_TRUNCATED", 1, b"K", "")
    case("magic_only", "E_TRUNCATED", 8, MAGIC, "")
    case("bytes_255", "E_TRUNCATED", 255, BASE[:255], "one short of the smallest file")
    case("cut_in_records", "E_TRUNCATED", 48, BASE[:512], "")
    case("cut_in_strings", "E_TRUNCATED", 48, BASE[:820], "")
    case("cut_in_padding", "E_TRUNCATED", 48, BASE[:1000], "")
    case("cut_in_payload", "E_TRUNCATED", 48, BASE[:1030], "")
    case("cut_last_byte", "E_TRUNCATED", 48, BASE[:-1], "")
    case("cut_whole_block", "E_TRUNCATED", 48, BASE[:-256], "")
    lf = BASE.replace(b"\r\n", b"\n")
    case("crlf_to_lf", "E_MAGIC_TEXTMODE", 0, lf, "git autocrlf on commit")
    case("lf_to_crlf", "E_MAGIC_TEXTMODE", 0, BASE.replace(b"\n", b"\r\n"), "text mode on write")
    case(
        "lf_to_crlf_smart",
        "E_MAGIC_TEXTMODE",
        0,
        put(BASE, 0, b"KDTR\r\n\x1a\r"),
        "only the bare newline was converted",
    )
    case("cr_to_lf", "E_MAGIC_TEXTMODE", 0, put(BASE, 0, b"KDTR\n\n\x1a\n"), "old Mac conversion")
    case("magic_zero", "E_MAGIC", 0, put(BASE, 0, bytes(8)), "an interrupted write")
    case("magic_case", "E_MAGIC", 0, put(BASE, 0, b"kdtr"), "")
    case("magic_cr_only", "E_MAGIC", 0, put(BASE, 4, b"\r\n\x1a\x00"), "")
    case("magic_stripped_bit", "E_MAGIC", 0, put(BASE, 4, b"\r\n\x9a\n"), "")
    case("magic_ctrl_z", "E_MAGIC", 0, put(BASE, 4, b"\r\n\x00\n"), "")
    case("magic_npy", "E_MAGIC", 0, b"\x93NUMPY\1\0".ljust(512, b"\0"), "another format")
    case("magic_gguf", "E_MAGIC", 0, b"GGUF\3\0\0\0".ljust(512, b"\0"), "another format")
    case("magic_safetensors", "E_MAGIC", 0, struct.pack("<Q", 8).ljust(512, b"{"), "another format")
    for value in (0, 2, 1 << 24, 0xFFFFFFFF):
        why = "byte-swapped 1" if value == 1 << 24 else ""
        case(f"version_{value}", "E_VERSION", 8, put(BASE, 8, struct.pack("<I", value)), why)
    for name, at, limit in (("n", 56, 20), ("m", 60, 20), ("s", 64, 26)):
        for text, value in (
            (f"2e{limit}_1", (1 << limit) + 1),
            ("2e31", 1 << 31),
            ("max", 0xFFFFFFFF),
        ):
            case(f"limit_{name}_{text}", "E_LIMIT", at, put(BASE, at, struct.pack("<I", value)), "")
    case("n_byteswapped", "E_LIMIT", 56, put(BASE, 56, struct.pack(">I", 4)), "big-endian writer")
    for text, value in (
        ("plus_256", SIZE + 256),
        ("max", M64),
        ("2e63", 1 << 63),
        ("2e32", SIZE + (1 << 32)),
    ):
        case(f"size_{text}", "E_TRUNCATED", 48, base(size=value), "")
    case(
        "size_byteswapped",
        "E_TRUNCATED",
        48,
        base(size=int.from_bytes(SIZE.to_bytes(8, "big"), "little")),
        "",
    )
    for text, value in (("minus_256", SIZE - 256), ("zero", 0), ("minus_1", SIZE - 1)):
        case(f"size_{text}", "E_TRAILING", 48, base(size=value), "")
    case("trailing_byte", "E_TRAILING", 48, BASE + b"\0", "")
    case("trailing_block", "E_TRAILING", 48, BASE + bytes(256), "")
    case("trailing_zip", "E_TRAILING", 48, BASE + b"PK\5\6" + bytes(18), "a polyglot")
    case(
        "size_odd", "E_FILE_SIZE", 48, base(size=SIZE + 1) + b"\0", "true size, but no whole block"
    )
    case("prefix_n_max", "E_PREFIX_RANGE", 56, base(n=1 << 20), "index larger than the file")
    case("prefix_m_max", "E_PREFIX_RANGE", 56, base(m=1 << 20), "")
    case("prefix_s_max", "E_PREFIX_RANGE", 56, base(s=1 << 26), "")
    small = build([], [], b"", s=129)
    case("prefix_by_one", "E_PREFIX_RANGE", 56, small, "P = 257 in a file of 256 bytes")
    case("prefix_crc_zero", "E_PREFIX_CRC", 12, put(BASE, 12, bytes(4)), "zero is no 'unchecked'")
    case("prefix_crc_swapped", "E_PREFIX_CRC", 12, put(BASE, 12, BASE[12:16][::-1]), "")
    for text, at in (
        ("root", 16),
        ("reserved", 127),
        ("record", R[0] + 40),
        ("kv", KV[2]),
        ("string", END - 1),
    ):
        case(f"prefix_flip_{text}", "E_PREFIX_CRC", 12, put(BASE, at, bytes([BASE[at] ^ 1])), "")
    case(
        "prefix_not_resealed_size",
        "E_PREFIX_CRC",
        12,
        put(BASE + bytes(256), 48, struct.pack("<Q", SIZE + 256)),
        "",
    )
    case("reserved_first", "E_RESERVED", 68, base(reserved=b"\1"), "")
    case("reserved_last", "E_RESERVED", 127, base(reserved=bytes(59) + b"\x80"), "")


def names() -> None:
    case("tensor_reserved", "E_RESERVED", R[1] + 7, base(1, reserved=1), "")
    for text, value in (("shared", 0), ("skip", 4), ("max", 0xFFFFFFFF), ("wrap", 0xFFFFFFFE)):
        case(f"name_off_{text}", "E_NAME_SPAN", R[1], base(1, name_off=value), "")
    case("name_off_first", "E_NAME_SPAN", R[0], base(0, name_off=1), "")
    case("name_past_pool", "E_NAME_SPAN", R[0], base(0, name_len=27), "one byte past the pool")
    case("name_past_pool_max", "E_NAME_SPAN", R[3], base(3, name_len=0xFFFF), "")
    case("name_empty", "E_NAME_LENGTH", R[0] + 4, base(0, name_len=0), "")
    case("name_1025", "E_NAME_LENGTH", R[0] + 4, named(b"a" * 1025), "")
    bad_utf8 = {
        "overlong_2": b"\xc0\x80",
        "overlong_2_slash": b"\xc1\xaf",
        "overlong_3": b"\xe0\x9f\xbf",
        "overlong_4": b"\xf0\x8f\xbf\xbf",
        "surrogate": b"\xed\xa0\x80",
        "surrogate_low": b"\xed\xbf\xbf",
        "above_max": b"\xf4\x90\x80\x80",
        "f5": b"\xf5\x80\x80\x80",
        "lone_continuation": b"\x80",
        "cut_2": b"\xc3",
        "cut_3": b"\xe6\x97",
        "cut_4": b"\xf0\x9d\x9b",
        "bad_middle": b"\xe6a\xa5",
        "bad_last": b"\xf0\x9d\x9ba",
        "ff": b"\xff",
        "latin1": b"caf\xe9",
        "cesu8": b"\xed\xa0\xb5\xed\xbb\x91",
    }
    for text, raw in bad_utf8.items():
        case(f"name_utf8_{text}", "E_NAME_UTF8", 256, named(raw), "")
    for text, char in (
        ("nul", 0),
        ("newline", 10),
        ("escape", 27),
        ("us", 31),
        ("del", 127),
        ("backslash", 92),
    ):
        case(f"name_char_{text}", "E_NAME_CHAR", 256, named(b"a" + bytes([char]) + b"b"), "")
    case(
        "name_char_before_path",
        "E_NAME_CHAR",
        256,
        named(b"..\\a"),
        "the character rule comes first",
    )
    for text, raw in (
        ("absolute", b"/etc/passwd"),
        ("trailing", b"a/"),
        ("double", b"a//b"),
        ("slash", b"/"),
        ("dot", b"."),
        ("dotdot", b".."),
        ("up", b"../../x"),
        ("inner", b"a/../b"),
        ("inner_dot", b"a/./b"),
        ("tail_dotdot", b"a/.."),
    ):
        case(f"name_path_{text}", "E_NAME_PATH", 256, named(raw), "")
    case("name_dup", "E_NAME_DUP", R[1], named(b"a", b"a"), "")
    case("name_order", "E_NAME_ORDER", R[1], named(b"b", b"a"), "")
    case("name_order_prefix", "E_NAME_ORDER", R[1], named(b"ab", b"a"), "a prefix sorts first")
    case(
        "name_order_unsigned", "E_NAME_ORDER", R[1], named("é".encode(), b"z"), "bytes are unsigned"
    )
    case(
        "name_order_utf16",
        "E_NAME_ORDER",
        R[1],
        named("\U00010000".encode(), "\uffff".encode()),
        "",
    )
    case(
        "name_dup_apart",
        "E_NAME_ORDER",
        R[2],
        named(b"a", b"b", b"a"),
        "only neighbours can be equal",
    )


def shapes() -> None:
    for text, code, bits in (
        ("code_3", 3, 64),
        ("code_18", 18, 8),
        ("code_255", 255, 8),
        ("f80", 2, 80),
        ("f8", 2, 8),
        ("u3", 1, 3),
        ("i1", 0, 1),
        ("bool1", 6, 1),
        ("bits_0", 1, 0),
        ("zero", 0, 0),
        ("bits_255", 1, 255),
        ("bf32", 4, 32),
        ("c256_wraps", 5, 0),
        ("f6_as_8", 15, 8),
        ("i128", 0, 128),
    ):
        case(f"dtype_{text}", "E_DTYPE", R[0] + 8, base(0, code=code, bits=bits), "")
    for lanes in (0, 2, 0xFFFF, 0x100):
        case(f"dtype_lanes_{lanes}", "E_DTYPE", R[0] + 8, base(0, lanes=lanes), "")
    for rank in (9, 255):
        case(
            f"rank_{rank}",
            "E_RANK",
            R[0] + 6,
            base(0, rank=rank),
            "dims would be read past the record",
        )
    case("dim_unused_rank1", "E_DIM_UNUSED", R[0] + 40, base(0, rank=1), "dims [2, 3] under rank 1")
    case(
        "dim_unused_last", "E_DIM_UNUSED", R[0] + 88, base(0, dims=dims(2, 3, 0, 0, 0, 0, 0, 1)), ""
    )
    case("dim_unused_scalar", "E_DIM_UNUSED", 160, one((1, 8), (), b"\1", dims=dims(1)), "")
    case("dim_2e48_1", "E_DIM_RANGE", 160, one((1, 8), (1,), b"\1", dims=dims((1 << 48) + 1)), "")
    case(
        "dim_minus_1",
        "E_DIM_RANGE",
        160,
        one((1, 8), (1,), b"\1", dims=dims(M64)),
        "a symbolic size",
    )
    case("dim_2e63", "E_DIM_RANGE", 168, one((1, 8), (1, 1), b"\1", dims=dims(1, 1 << 63)), "")
    case(
        "dim_range_before_overflow",
        "E_DIM_RANGE",
        176,
        one((1, 8), (1, 1, 1), b"", dims=dims(1 << 48, 1 << 48, 1 << 49)),
        "all dims are checked before the product",
    )
    case(
        "numel_2e51",
        "E_DATA_LEN",
        152,
        one((1, 8), (1,), b"\1", dims=dims(1 << 48)),
        "2^51 bits are allowed, not there",
    )
    case("numel_2e52", "E_DATA_LEN", 152, one((1, 8), (1, 1), b"\1", dims=dims(1 << 48, 2)), "")
    case(
        "numel_at_limit",
        "E_DATA_LEN",
        152,
        one((1, 8), (1, 1), b"", dims=dims(1 << 48, 32)),
        "2^56 bits exactly",
    )
    case(
        "numel_over_limit",
        "E_NUMEL_OVERFLOW",
        168,
        one((1, 8), (1, 1), b"", dims=dims(1 << 48, 33)),
        "just over 2^56 bits",
    )
    case(
        "numel_wraps_to_0",
        "E_NUMEL_OVERFLOW",
        168,
        one((1, 8), (1, 1), b"", dims=dims(1 << 32, 1 << 32)),
        "2^64 wraps to 0",
    )
    case(
        "numel_wraps_small",
        "E_NUMEL_OVERFLOW",
        168,
        one((1, 8), (1, 1), b"\1", dims=dims(0x100000001, 0xFFFFFFFF)),
        "wraps to 2^64 - 1",
    )
    case(
        "numel_wraps_bits",
        "E_NUMEL_OVERFLOW",
        168,
        one((5, 128), (1, 1), b"", dims=dims(1 << 40, 1 << 17)),
        "only times 128 is too much",
    )
    case(
        "numel_bits_at_limit",
        "E_DATA_LEN",
        152,
        one((5, 128), (1, 1), b"", dims=dims(1 << 40, 1 << 9)),
        "2^56 bits",
    )
    case(
        "numel_behind_zero",
        "E_NUMEL_OVERFLOW",
        184,
        one((1, 8), (1,) * 4, b"", dims=dims(0, 1 << 48, 1, 1 << 48)),
        "a zero dim cannot hide an overflow",
    )
    case(
        "numel_before_zero",
        "E_NUMEL_OVERFLOW",
        168,
        one((1, 8), (1,) * 3, b"", dims=dims(1 << 48, 1 << 48, 0)),
        "",
    )
    for text, value in (("short", 23), ("long", 25), ("zero", 0), ("max", M64), ("block", 256)):
        case(f"len_{text}", "E_DATA_LEN", R[0] + 24, base(0, len=value), "")
    case("len_bits_floor", "E_DATA_LEN", R[2] + 24, base(2, len=1), "3 nibbles need 2 bytes")
    case("len_u1_floor", "E_DATA_LEN", 152, one((1, 1), (9,), b"\1"), "9 bits need 2 bytes")
    case("len_zero_size", "E_DATA_LEN", R[3] + 24, base(3, len=8), "")
    for text, value in (("1", 1025), ("64", 1024 + 64), ("4", 1028), ("max", M64)):
        case(f"off_unaligned_{text}", "E_DATA_ALIGN", R[0] + 16, base(0, off=value), "")
    case("off_alias", "E_DATA_OFFSET", R[1] + 16, base(1, off=1024), "payload shared with tensor 0")
    case("off_gap", "E_DATA_OFFSET", R[1] + 16, base(1, off=1536), "")
    case("off_into_index", "E_DATA_OFFSET", R[0] + 16, base(0, off=256), "")
    case("off_zero", "E_DATA_OFFSET", R[0] + 16, base(0, off=0), "relative offsets")
    case("off_past_end", "E_DATA_OFFSET", R[0] + 16, base(0, off=1 << 40), "")
    case(
        "off_wraps",
        "E_DATA_OFFSET",
        R[0] + 16,
        base(0, off=M64 - 255),
        "offset + length wraps to 0",
    )
    case(
        "off_zero_size",
        "E_DATA_OFFSET",
        R[3] + 16,
        base(3, off=2048),
        "an empty payload has its place too",
    )
    over = build([T(b"t", (1, 8), (256,), bytes(256), {"len": 257, "dims": dims(257)})], [])
    case("range_by_one", "E_DATA_RANGE", 144, over, "payload ends one byte after the file")
    far = build([T(b"t", (1, 8), (1,), b"", {"len": 1 << 48, "dims": dims(1 << 48)})], [])
    case("range_2e48", "E_DATA_RANGE", 144, far, "")
    case(
        "tail_block",
        "E_FILE_SIZE",
        48,
        base(size=SIZE + 256) + bytes(256),
        "a block that no tensor owns",
    )
    case("tail_no_tensors", "E_FILE_SIZE", 48, build([], [], size=512) + bytes(256), "")


def metadata() -> None:
    case("kv_reserved", "E_RESERVED", KV[0] + 11, base(kv=0, reserved=1), "")
    case("kv_owner_past", "E_KV_OWNER", KV[6], base(kv=6, owner=5), "there are 4 tensors")
    case("kv_owner_max", "E_KV_OWNER", KV[6], base(kv=6, owner=0xFFFFFFFF), "owner + 1 wraps")
    case(
        "kv_key_off",
        "E_KV_SPAN",
        KV[1] + 4,
        base(kv=1, key_off=6),
        "key shared with the one before",
    )
    case("kv_key_off_max", "E_KV_SPAN", KV[1] + 4, base(kv=1, key_off=0xFFFFFFFF), "")
    case("kv_key_past_pool", "E_KV_SPAN", KV[6] + 4, base(kv=6, key_len=10), "9 bytes are left")
    case("kv_value_off", "E_KV_SPAN", KV[3] + 16, base(kv=3, value=0), "value shared with a name")
    case(
        "kv_value_off_wide",
        "E_KV_SPAN",
        KV[3] + 16,
        base(kv=3, value=(1 << 32) + 10),
        "right in its low 32 bits",
    )
    case("kv_value_past_pool", "E_KV_SPAN", KV[6] + 16, base(kv=6, val_len=6), "")
    case(
        "kv_value_max",
        "E_KV_SPAN",
        KV[6] + 16,
        base(kv=6, val_len=0xFFFFFFFF),
        "offset + length wraps",
    )
    case("kv_key_empty", "E_KV_KEY_LENGTH", 136, keyed(b""), "")
    case("kv_key_1025", "E_KV_KEY_LENGTH", 136, keyed(b"k" * 1025), "")
    case("kv_key_utf8", "E_KV_KEY_UTF8", 152, keyed(b"\xc0\xaf"), "")
    case("kv_key_char", "E_KV_KEY_CHAR", 152, keyed(b"a\nb"), "")
    case("kv_key_path", "E_KV_KEY_PATH", 152, keyed(b"a//b"), "")
    case("kv_key_dotdot", "E_KV_KEY_PATH", 152, keyed(b".."), "")
    case("kv_dup", "E_KV_DUP", 152, keyed(b"a", b"a"), "")
    case("kv_order_key", "E_KV_ORDER", 152, keyed(b"b", b"a"), "")
    swapped = [K(1, b"a", BOOL, 1), K(0, b"b", BOOL, 1)]
    case("kv_order_owner", "E_KV_ORDER", 280, build([T(b"t", (1, 8), (), b"\7")], swapped), "")
    case(
        "ok_kv_owners",
        "OK",
        -1,
        build([T(b"t", (1, 8), (), b"\7")], [K(0, b"b", BOOL, 1), K(1, b"a", BOOL, 1)]),
        "keys start anew with each owner",
    )
    for kind in (0, 7, 255):
        case(f"kv_type_{kind}", "E_KV_TYPE", KV[0] + 10, base(kv=0, kind=kind), "")
    case("kv_scalar_length", "E_KV_VALUE", KV[2] + 12, base(kv=2, val_len=8), "")
    case("kv_bool_2", "E_KV_VALUE", KV[0] + 16, base(kv=0, value=2), "")
    case(
        "kv_bool_high",
        "E_KV_VALUE",
        KV[0] + 16,
        base(kv=0, value=1 << 32),
        "zero in its low 32 bits",
    )
    case(
        "kv_u64_small",
        "E_KV_VALUE",
        KV[4] + 16,
        base(kv=4, value=(1 << 63) - 1),
        "fits an i64: two encodings",
    )
    case("kv_u64_zero", "E_KV_VALUE", KV[4] + 16, base(kv=4, value=0), "")
    for text, bits in (
        ("signalling", 0x7FF0 << 48 | 1),
        ("negative", 0xFFF8 << 48),
        ("payload", 0x7FF8 << 48 | 1),
        ("all", M64),
    ):
        case(f"kv_nan_{text}", "E_KV_VALUE", KV[1] + 16, base(kv=1, value=bits), "one NaN only")
    for text, raw in (
        ("overlong", b"\xc0\x80"),
        ("surrogate", b"\xed\xa0\x80"),
        ("cut", b"ab\xe6"),
        ("latin1", b"\xe9t\xe9"),
    ):
        case(f"kv_utf8_{text}", "E_KV_UTF8", 153, build([], [K(0, b"k", UTF8, raw)]), "")
    case(
        "kv_utf8_as_bytes",
        "OK",
        -1,
        build([], [K(0, b"k", BYTES, b"\xc0\x80")]),
        "bytes need not be text",
    )
    case("strings_unused", "E_STRINGS_UNUSED", END, base(pool_extra=b"x"), "room to hide data in")
    case("strings_unused_zero", "E_STRINGS_UNUSED", END, base(pool_extra=b"\0" * 8), "")
    case("strings_unused_alone", "E_STRINGS_UNUSED", 128, build([], [], b"x"), "")
    case("padding_index_first", "E_PADDING", END, put(BASE, END, b"\1"), "")
    case("padding_index_last", "E_PADDING", FIRST - 1, put(BASE, FIRST - 1, b"\x80"), "")


def payloads() -> None:
    case(
        "crc_flip", "E_TENSOR_CRC", R[0] + 12, put(BASE, FIRST + 5, b"\1"), "a flipped payload bit"
    )
    case("crc_zero", "E_TENSOR_CRC", R[0] + 12, base(0, crc=0), "zero is no 'unchecked'")
    case("crc_empty", "E_TENSOR_CRC", R[3] + 12, base(3, crc=1), "the CRC of nothing is 0")
    case(
        "crc_before_padding", "E_TENSOR_CRC", R[0] + 12, put(base(0, crc=7), FIRST + 24, b"\1"), ""
    )
    case("payload_padding_first", "E_PADDING", FIRST + 24, put(BASE, FIRST + 24, b"\1"), "")
    case("payload_padding_last", "E_PADDING", SIZE - 1, put(BASE, SIZE - 1, b"\1"), "")
    for value in (2, 255):
        case(
            f"bool_{value}",
            "E_BOOL_VALUE",
            514,
            one((6, 8), (3,), bytes([0, 1, value])),
            "undefined behaviour in C++",
        )
    case("tail_u4", "E_SUBBYTE_TAIL", 512, one((1, 4), (1,), b"\x11"), "")
    case("tail_u1", "E_SUBBYTE_TAIL", 513, one((1, 1), (9,), b"\xff\x03"), "")
    case("tail_f6", "E_SUBBYTE_TAIL", 512, one((15, 6), (1,), b"\x40"), "")
    case("tail_f4_top", "E_SUBBYTE_TAIL", 513, one((17, 4), (3,), b"\x21\x80"), "")
    case(
        "tensors_in_turn",
        "E_BOOL_VALUE",
        512,
        build([T(b"a", (6, 8), (1,), b"\2"), T(b"b", (1, 8), (1,), b"\1", {"crc": 0})], []),
        "all payload rules of one tensor come before the next tensor",
    )
    case("sha_zero", "E_TENSOR_DIGEST", R[0] + 96, base(0, sha=bytes(32)), "")
    case("sha_last", "E_TENSOR_DIGEST", R[3] + 96, base(3, sha=b"\1" * 32), "")
    forged = b"\0\1\2\3"
    case(
        "sha_behind_crc",
        "E_TENSOR_DIGEST",
        224,
        one((1, 8), (4,), forged, sha=hashlib.sha256(b"other").digest()),
        "a forged payload with its CRC made right",
    )
    unrooted = put(BASE, 16, bytes(32))
    unrooted = put(unrooted, 12, struct.pack("<I", zlib.crc32(unrooted[16:END])))
    case("root_zero", "E_ROOT_DIGEST", 16, unrooted, "CRC right, root wrong")
    case(
        "digest_before_root",
        "E_TENSOR_DIGEST",
        R[0] + 96,
        put(
            put(base(0, sha=bytes(32)), 16, bytes(32)),
            12,
            struct.pack("<I", zlib.crc32(bytes(32) + base(0, sha=bytes(32))[48:END])),
        ),
        "",
    )


for _group in (valid, header, names, shapes, metadata, payloads):
    _group()


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    lines = []
    for c in CASES:
        (out / f"{c.name}.kdtr").write_bytes(c.data)
        lines.append(f"{c.name}.kdtr\t{c.code}\t{c.at}\t{c.why}\n")
    (out / "expected.tsv").write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
