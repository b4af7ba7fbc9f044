"""Element types: `ml_dtypes`, exact rational arithmetic and hand-made bits are the oracles."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kdtr import dtypes
from kdtr.dtypes import DTYPES, FLOATS, decode, encode, pack, round_to, unpack
from kdtr.errors import KdtrError

ML = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "f8_e3m4": ml_dtypes.float8_e3m4,
    "f8_e4m3": ml_dtypes.float8_e4m3,
    "f8_e4m3b11fnuz": ml_dtypes.float8_e4m3b11fnuz,
    "f8_e4m3fn": ml_dtypes.float8_e4m3fn,
    "f8_e4m3fnuz": ml_dtypes.float8_e4m3fnuz,
    "f8_e5m2": ml_dtypes.float8_e5m2,
    "f8_e5m2fnuz": ml_dtypes.float8_e5m2fnuz,
    "f8_e8m0fnu": ml_dtypes.float8_e8m0fnu,
    "f6_e2m3fn": ml_dtypes.float6_e2m3fn,
    "f6_e3m2fn": ml_dtypes.float6_e3m2fn,
    "f4_e2m1fn": ml_dtypes.float4_e2m1fn,
}


def all_codes(name: str) -> tuple[Any, Any]:
    """Every code of a float type, and its value as f32 by an independent library."""
    bits = DTYPES[name].bits
    codes = np.arange(1 << bits, dtype=np.uint16 if bits == 16 else np.uint8)
    return codes, codes.view(ML[name]).astype(np.float32)


def stored(name: str, codes: Any) -> Any:
    if DTYPES[name].packed:
        return pack(codes, DTYPES[name].bits)
    return codes.view(DTYPES[name].storage)


def same_bits(a: Any, b: Any) -> bool:
    unsigned = f"u{a.dtype.itemsize}"
    return a.dtype == b.dtype and np.array_equal(a.view(unsigned), b.view(unsigned))


def test_table_is_dlpacks() -> None:
    codes = {"i": 0, "u": 1, "f": 2, "bf": 4, "c": 5}
    for name, dtype in DTYPES.items():
        if "_" not in name and name != "bool":
            kind, bits = name.rstrip("0123456789"), int(name.lstrip("abcdefghijklmnopqrstuvwxyz"))
            assert (dtype.code, dtype.bits) == (codes[kind], bits)
    small = [name for name in DTYPES if "_" in name]
    assert [DTYPES[name].code for name in small] == list(range(7, 18))
    assert [DTYPES[name].bits for name in small] == [8] * 8 + [6, 6, 4]
    assert (DTYPES["bool"].code, DTYPES["bool"].bits) == (6, 8)
    assert len(DTYPES) == 32


@pytest.mark.parametrize("name", DTYPES)
def test_lookups_agree(name: str) -> None:
    dtype = dtypes.by_name(name)
    assert dtypes.by_code(dtype.code, dtype.bits) is dtype
    assert str(dtype) == name


def test_unknown_types_are_named() -> None:
    with pytest.raises(KdtrError, match="f128"):
        dtypes.by_name("f128")
    with pytest.raises(KdtrError, match="3, 64"):
        dtypes.by_code(3, 64)
    with pytest.raises(KdtrError, match="datetime64"):
        dtypes.of_numpy(np.dtype("M8[s]"))


@pytest.mark.parametrize("name", ML)
def test_every_code_decodes_as_ml_dtypes_does(name: str) -> None:
    codes, want = all_codes(name)
    got = decode(stored(name, codes), name, codes.shape)
    nan = np.isnan(want)
    assert np.array_equal(np.isnan(got), nan)
    assert same_bits(got[~nan], want[~nan])


@pytest.mark.parametrize("name", ML)
def test_every_value_encodes_to_its_code(name: str) -> None:
    codes, values = all_codes(name)
    number = ~np.isnan(values)
    assert np.array_equal(encode(values[number], name), stored(name, codes[number]))
    assert np.array_equal(encode(values[number].astype(float), name), stored(name, codes[number]))


@pytest.mark.parametrize("name", sorted(set(ML) - {"f6_e2m3fn", "f6_e3m2fn", "f4_e2m1fn"}))
def test_nan_encodes_to_the_canonical_code(name: str) -> None:
    canonical = {"f8_e4m3fn": 0x7F, "f8_e5m2": 0x7E, "f8_e4m3": 0x7C, "f8_e3m4": 0x78}
    canonical |= {"bf16": 0x7FC0, "f16": 0x7E00, "f8_e8m0fnu": 0xFF}
    nans = np.array([math.nan, -math.nan])
    assert encode(nans, name).view(f"u{DTYPES[name].bits // 8}").tolist() == 2 * [
        canonical.get(name, 0x80)
    ]


def test_nan_of_native_floats_is_canonical() -> None:
    signalling = np.array([0x7F800001, 0xFFC00000], np.uint32).view(np.float32)
    assert encode(signalling, "f32").view(np.uint32).tolist() == [0x7FC00000] * 2
    wide = np.array([0x7FF0000000000001, 0xFFF8000000000000], np.uint64).view(np.float64)
    assert encode(wide, "f64").view(np.uint64).tolist() == [0x7FF8000000000000] * 2


@pytest.mark.parametrize("name", sorted(set(ML) - {"f8_e8m0fnu"}))
@np.errstate(over="ignore")
def test_rounding_is_ml_dtypes_rounding(name: str) -> None:
    # ml_dtypes rounds f64 to types above 8 bits by way of f32; inputs stay exact in f32.
    rng = np.random.default_rng(7)
    spread = rng.standard_normal(20000) * 2.0 ** rng.integers(-30, 20, 20000)
    values = all_codes(name)[1]
    values = np.sort(values[np.isfinite(values)].astype(np.float64))
    ties = (values[1:] + values[:-1]) / 2
    top = values[-1] * np.array([1.01, 1.03, 1.0625, 1.125, 1.25, 2.0])
    x = np.concatenate([spread, values, ties, top, -top]).astype(np.float32).astype(np.float64)
    want = x.astype(ML[name]).astype(np.float64)  # may overflow, as it should
    assert same_bits(np.abs(round_to(x, name)), np.abs(want))
    sign = ~np.isnan(want) & ((want != 0) | FLOATS[name].negative_zero)
    assert np.array_equal(np.signbit(round_to(x, name))[sign], np.signbit(want)[sign])


@pytest.mark.parametrize(("name", "precision", "smallest"), [("bf16", 8, -133), ("f16", 11, -24)])
@given(x=st.floats(allow_nan=False, allow_infinity=False))
def test_rounding_is_nearest_even_in_exact_arithmetic(
    name: str, precision: int, smallest: int, x: float
) -> None:
    got = round_to(np.array([x]), name)[0]
    exponent = max(math.frexp(x)[1] - precision, smallest)
    quotient = Fraction(x) / Fraction(2) ** exponent
    want = round(quotient) * Fraction(2) ** exponent  # Python rounds fractions half to even
    largest = Fraction(2**precision - 1) * Fraction(2) ** (16 - 11 if name == "f16" else 120)
    if abs(want) > largest:
        assert got == math.copysign(math.inf, x)
    else:
        assert Fraction(float(got)) == want
    assert math.copysign(1, got) == math.copysign(1, x)


def test_rounding_takes_one_step_only() -> None:
    # By way of f32, 1 + 2^-8 + 2^-40 would land on the tie and fall to the even 1.0.
    assert round_to(np.array(1 + 2.0**-8 + 2.0**-40), "bf16") == 1 + 2.0**-7
    assert round_to(np.array(1 + 2.0**-8), "bf16") == 1.0
    assert round_to(np.array(2.0**-134 * (1 + 2.0**-50)), "bf16") == 2.0**-133
    assert round_to(np.array(2.0**-134), "bf16") == 0.0
    assert round_to(np.array(65519.99), "f16") == 65504
    assert round_to(np.array(65520.0), "f16") == math.inf
    assert round_to(np.array(1.7e308), "bf16") == math.inf


def test_rounding_keeps_shape_and_specials() -> None:
    x = np.array([[math.nan, math.inf], [-math.inf, -0.0]])
    got = round_to(x, "bf16")
    assert got.shape == (2, 2)
    assert str(got.tolist()) == "[[nan, inf], [-inf, -0.0]]"
    with pytest.raises(KdtrError, match="NaN"):
        round_to(x, "f4_e2m1fn")
    with pytest.raises(KdtrError, match="u8"):
        round_to(x, "u8")


@pytest.mark.parametrize(
    ("values", "name", "words"),
    [
        ([[1.0, 1.1]], "bf16", r"element \[0, 1\].*want 1.1015625, got 1.1"),
        ([0.0, 1e39], "f32", r"element \[1\].*got 1e\+39"),
        ([2**63 + 1], "f64", "got 9223372036854775809"),
        ([300], "u8", "want an integer in \\[0, 255\\], got 300"),
        ([-1], "u64", "got -1"),
        ([2**63], "i64", "got 9223372036854775808"),
        ([2.5], "i32", "got 2.5"),
        ([2.0**64], "u64", "got 1.84"),
        ([math.nan], "i8", "got nan"),
        ([2], "bool", "got 2"),
        ([16], "u4", "got 16"),
        ([-9], "i4", "got -9"),
        ([-0.0], "f8_e4m3fnuz", "got -0.0"),
        ([0.0], "f8_e8m0fnu", "got 0.0"),
        ([math.nan], "f6_e2m3fn", "got nan"),
        ([math.inf], "f8_e4m3fn", "got inf"),
        ([1 + 1e-9j], "c32", "not exact"),
        ([1j], "f64", "complex"),
        (["a"], "f64", "not numbers"),
    ],
)
def test_inexact_values_are_refused_and_named(values: list[Any], name: str, words: str) -> None:
    with pytest.raises(KdtrError, match=words):
        encode(np.array(values), name)


@pytest.mark.parametrize("name", [n for n, d in DTYPES.items() if d.code in (0, 1)])
def test_integers_round_trip_at_their_limits(name: str) -> None:
    bits, signed = DTYPES[name].bits, DTYPES[name].code == 0
    low = -(1 << (bits - 1)) if signed else 0
    high = low + (1 << bits) - 1
    values = np.array([low, 0, high // 2, high] * 3, np.int64 if signed else np.uint64)
    assert decode(encode(values, name), name, (12,)).tolist() == values.tolist()


@given(st.integers(1, 8), st.lists(st.integers(0, 255), max_size=40))
def test_packing_is_one_lsb_first_stream(bits: int, values: list[int]) -> None:
    codes = [v % (1 << bits) for v in values]
    stream = sum(c << (bits * i) for i, c in enumerate(codes))
    want = stream.to_bytes((len(codes) * bits + 7) // 8, "little")
    packed = pack(np.array(codes, np.uint8), bits)
    assert packed.tobytes() == want
    assert unpack(packed, bits, len(codes)).tolist() == codes


def test_the_even_element_is_the_low_nibble() -> None:
    assert encode(np.array([1, 2, 15]), "u4").tobytes() == b"\x21\x0f"
    assert encode(np.array([-1, 3, -8]), "i4").tobytes() == b"\x3f\x08"
    assert decode(np.array([0x3F, 0x08], np.uint8), "i4", (3,)).tolist() == [-1, 3, -8]


def test_bits_pass_as_they_are() -> None:
    bits = np.array([0x7F81, 0xFFFF, 0x8000], np.uint16)
    assert np.array_equal(encode(bits, "bf16"), bits)
    codes = np.array([0xFF, 0x80], np.uint8)
    assert np.array_equal(encode(codes, "f8_e4m3fn"), codes)
    assert encode(np.array([15, 1, 8], np.uint8), "f4_e2m1fn").tobytes() == b"\x1f\x08"


def test_complex_is_real_then_imaginary() -> None:
    half = encode(np.array([[1 - 2j]]), "c32")
    assert half.shape == (1, 1)
    assert half.tobytes() == np.array([1, -2], "<f2").tobytes()
    assert decode(half, "c32", (1, 1)).tolist() == [[1 - 2j]]
    assert encode(np.array([1 - 2j]), "c64").tobytes() == np.array([1, -2], "<f4").tobytes()
    assert encode(np.array([3]), "c128").tobytes() == np.array([3, 0], "<f8").tobytes()


def test_scalars_and_empty_arrays_keep_their_shape() -> None:
    for name in ("bf16", "f32", "u8", "f8_e5m2", "c32", "bool"):
        assert encode(np.array(1), name).shape == ()
        assert decode(encode(np.array(1), name), name, ()).item() == 1
        assert encode(np.zeros((0, 3)), name).shape == (0, 3)
        assert decode(encode(np.zeros((0, 3)), name), name, (0, 3)).shape == (0, 3)
    assert decode(encode(np.zeros((0, 3)), "u4"), "u4", (0, 3)).shape == (0, 3)


def test_decode_refuses_the_wrong_array() -> None:
    with pytest.raises(KdtrError, match=r"uint16\[3\].*uint16\[2\]"):
        decode(np.zeros(2, np.uint16), "bf16", (3,))
    with pytest.raises(KdtrError, match="uint8"):
        decode(np.zeros(3, np.float32), "f8_e5m2", (3,))
