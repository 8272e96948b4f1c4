"""Vector integer, conversion and single-precision instructions, lane by lane."""

from __future__ import annotations

import numpy as np

from moon_diffusers.evidence import bf16

from . import fp
from .harness import Row, State, lanes_of, mask_of
from .table import FLOAT_MODES, compare, valu

U, I, L = np.uint32, np.int32, np.uint64
TWO = ("clang", "flush")


def _sext24(x):
    return (x.astype(U) << 8).view(I) >> 8


def _bfe(a, offset, width):
    width = (width & 31).astype(U)
    return np.where(width == 0, 0, (a >> (offset & 31)) & ((U(1) << width) - U(1))).astype(U)


def _bfi(a, b, c):
    return (a & b) | (~a & c)


def _alignbit(a, b, c):
    return (((a.astype(L) << L(32)) | b) >> (c & 31).astype(L)).astype(U)


def _reverse(a):
    bits = np.unpackbits(np.ascontiguousarray(a).view(np.uint8).reshape(*a.shape, 4), axis=-1, bitorder="little")
    return np.packbits(bits[..., ::-1], axis=-1, bitorder="little").view(U)[..., 0]


def _popcount(a, b):
    bits = np.unpackbits(np.ascontiguousarray(a).view(np.uint8).reshape(*a.shape, 4), axis=-1)
    return bits.sum(axis=-1, dtype=U) + b


def _perm(a, b, selector):
    """Bytes 0 to 3 are b's, 4 to 7 a's; 8 to 11 replicate a sign; 12 is 0x00; above is 0xFF."""
    data = (a.astype(L) << L(32)) | b
    out = np.zeros(a.shape, U)
    for place in range(4):
        select = (selector >> (8 * place)) & 0xFF
        byte = (data >> (L(8) * (select & 7).astype(L))) & L(0xFF)
        sign_at = (L(16) * (select & 3).astype(L)) + L(15)
        sign = ((data >> sign_at) & L(1)) * L(0xFF)
        byte = np.where(select >= 13, 0xFF, np.where(select == 12, 0, np.where(select >= 8, sign, byte)))
        out |= (byte.astype(U) & 0xFF) << (8 * place)
    return out


_SDWA = "dst_sel:DWORD dst_unused:UNUSED_PAD"


def _byte(x, place):
    return ((x >> (8 * place)) & 0xFF).astype(np.uint8).view(np.int8).astype(np.int16)


def _bitop3(table):
    """A truth table of three bits: bit 4 a + 2 b + c of it is the result."""

    def apply(a, b, c):
        out = np.zeros(np.broadcast(a, b, c).shape, U)
        for index in range(8):
            if table >> index & 1:
                match = [x if index >> place & 1 else ~x for place, x in ((2, a), (1, b), (0, c))]
                out |= match[0] & match[1] & match[2]
        return out

    return apply


def _mulhi(a, b):
    return (a.astype(L) * b.astype(L)) >> L(32)


def _med3(a, b, c):
    return np.sort(np.stack([a, b, c]), axis=0)[1]


def _carry_out(function):
    """d and VCC from 64-bit arithmetic on the operands."""

    def model(state: State) -> None:
        wide = function(state.a.astype(np.int64), state.b.astype(np.int64))
        state.d = np.where(state.active, wide.astype(U), state.d[:, :, 0])[:, :, None]
        state.vcc = mask_of(((wide < 0) | (wide > 0xFFFFFFFF)) & state.active)

    return model


def _carry_in_out(sign):
    def model(state: State) -> None:
        carry = lanes_of(state.vcc).astype(np.int64)
        wide = state.a.astype(np.int64) + sign * (state.b.astype(np.int64) + carry)
        if sign > 0:
            wide = state.a.astype(np.int64) + state.b.astype(np.int64) + carry
        state.d = np.where(state.active, wide.astype(U), state.d[:, :, 0])[:, :, None]
        state.vcc = mask_of(((wide < 0) | (wide > 0xFFFFFFFF)) & state.active)

    return model


def _mad_u64(state: State) -> None:
    low = state.a.astype(L) * state.b.astype(L)
    total = low + state.c
    carry = total < low
    raw = np.ascontiguousarray(total)[..., None].view(U)
    state.d = np.where(state.active[:, :, None], raw, state.d)
    state.sd = mask_of(carry & state.active)[:, None].view(U)


def _cvt_u32(x):
    x = fp.read(x).astype(np.float64)
    return np.where(np.isnan(x), 0, np.clip(np.trunc(x), 0, 0xFFFFFFFF)).astype(np.int64).astype(U)


def _cvt_i32(x):
    x = fp.read(x).astype(np.float64)
    return np.where(np.isnan(x), 0, np.clip(np.trunc(x), -0x80000000, 0x7FFFFFFF)).astype(np.int64).astype(U)


def _pk_bf16(a, b):
    halves = []
    for x in (a, b):
        halves.append(bf16.from_float(fp.read(x)).astype(U))
    return halves[0] | halves[1] << 16


def _cvt_f32_f16(x):
    return (x & 0xFFFF).astype(np.uint16).view(np.float16).astype(np.float32)


# Transcendentals: within one unit in the last place of the true value.


def _exp2(x):
    """Denormal results are flushed whatever the mode says."""
    wide = np.exp2(fp.read(x).astype(np.float64))
    return np.where(wide < 2.0**-126, 0, wide).astype(np.float32)


def _log2(x):
    return np.log2(x.astype(np.float64)).astype(np.float32)


def _rcp(x):
    return (1 / x.astype(np.float64)).astype(np.float32)


def _rsq(x):
    return (1 / np.sqrt(x.astype(np.float64))).astype(np.float32)


def _sqrt(x):
    return np.sqrt(x.astype(np.float64)).astype(np.float32)


def _max3(a, b, c):
    return fp.maximum_number(fp.maximum_number(a, b), c)


def _min3(a, b, c):
    return fp.minimum_number(fp.minimum_number(a, b), c)


def _pair(function, low=(0, 0, 0), high=(1, 1, 1), negate=(1, 1)):
    """A packed operation: which half of each operand feeds the low and the high result."""

    def apply(*operands):
        low_result = function(*(x[..., h] for x, h in zip(operands, low, strict=False)))
        high_result = function(*(x[..., h] for x, h in zip(operands, high, strict=False)))
        return np.stack([low_result, high_result], axis=-1)

    return apply


def _denormal(x):
    return fp.is_denormal(np.asarray(x, np.float32))


def _div_scale(operand):
    """v_div_scale_f32 of denominator b (``operand`` 1) or numerator a (0); VCC tells that v_div_fmas must scale back."""

    def model(state: State) -> None:
        n, den = state.a, state.b
        s0 = den if operand else n
        with np.errstate(all="ignore"):
            quotient = n.astype(np.float64) / den.astype(np.float64)
            reciprocal = 1.0 / den.astype(np.float64)
        tiny_quotient = (np.abs(quotient) < 2.0**-126) & (quotient != 0)
        tiny_reciprocal = (np.abs(reciprocal) < 2.0**-126) & (reciprocal != 0)
        zero = (n == 0) | (den == 0)
        far = fp.exponent(n) - fp.exponent(den) >= 96
        up, down = fp.ldexp(s0, 64), fp.ldexp(s0, -64)
        conditions = [zero, far, _denormal(den), tiny_reciprocal & tiny_quotient, tiny_reciprocal, tiny_quotient,
                      fp.exponent(n) <= 23]  # fmt: skip
        is_den, is_num = s0 == den, s0 == n
        values = [np.full_like(s0, np.nan), np.where(is_den, up, s0), up, np.where(is_den, up, s0), down,
                  np.where(is_num, up, s0), up]  # fmt: skip
        flags = [False, True, False, True, False, True, False]
        value = np.select(conditions, values, s0)
        flag = np.select(conditions, [np.full(s0.shape, f) for f in flags], np.zeros(s0.shape, bool))
        state.d = np.where(state.active[:, :, None], np.ascontiguousarray(value)[..., None].view(U), state.d)
        state.vcc = mask_of(flag & state.active)

    return model


def _div_fmas(state: State) -> None:
    """Where VCC is set the sum is scaled back by 2^64, up or down by the exponent of c, before its one rounding."""
    scale = np.where(fp.exponent(state.c) > 127, 2.0**64, 2.0**-64)
    scale = np.where(lanes_of(state.vcc), scale, 1.0)
    value = fp.round32(fp.two_sum(state.a.astype(np.float64) * state.b, state.c.astype(np.float64)) * scale)
    state.d = np.where(state.active[:, :, None], np.ascontiguousarray(value)[..., None].view(U), state.d)


_DIVIDE = """v_div_scale_f32 v96, s[48:49], {b}, {b}, {a}
v_div_scale_f32 v97, vcc, {a}, {b}, {a}
v_rcp_f32_e32 v98, v96
s_nop 1
v_fma_f32 v99, -v96, v98, 1.0
v_fma_f32 v98, v99, v98, v98
v_mul_f32_e32 v100, v97, v98
v_fma_f32 v101, -v96, v100, v97
v_fma_f32 v100, v101, v98, v100
v_fma_f32 v101, -v96, v100, v97
s_nop 3
v_div_fmas_f32 v102, v101, v98, v100
v_div_fixup_f32 {d}, v102, {b}, {a}
s_mov_b64 vcc, 0"""


def _divided(state: State) -> None:
    """The whole division is correctly rounded, denormals included: that is what its three helpers are for."""
    with np.errstate(all="ignore"):
        value = (state.a.astype(np.float64) / state.b.astype(np.float64)).astype(np.float32)
    # The manual's pseudo-code breaks down for divisors of 2^126 and above with a denormal quotient, and where a finite
    # quotient overflows: nothing is pinned there.
    overflow = np.isinf(value) & np.isfinite(state.a) & (state.b != 0)
    open_question = ((np.abs(state.b) >= 2.0**126) & _denormal(value)) | overflow
    state.inputs = {**state.inputs, "ignore": open_question}
    state.d = np.where(state.active[:, :, None], np.ascontiguousarray(value)[..., None].view(U), state.d)
    state.vcc = state.vcc * L(0)


def _fixup(a, b, c):
    """a: the quotient so far, b: denominator, c: numerator."""
    negative = np.signbit(b) ^ np.signbit(c)
    sign = np.where(negative, np.float32(-1), np.float32(1))
    infinite = (b == 0) | np.isinf(c)
    out = sign * np.abs(a)
    out = np.where(np.isinf(b) | (c == 0), sign * np.float32(0), out)
    out = np.where(infinite, sign * np.float32(np.inf), out)
    out = np.where(((b == 0) & (c == 0)) | (np.isinf(b) & np.isinf(c)), np.float32(np.nan), out)
    return np.where(np.isnan(b) | np.isnan(c), np.float32(np.nan), out)


def _class(a, b):
    bits = a
    exponent, fraction, negative = (bits >> 23) & 0xFF, bits & 0x7FFFFF, bits >> 31 == 1
    nan = (exponent == 255) & (fraction != 0)
    which = np.select(
        [nan & (fraction >> 22 == 0), nan, exponent == 255, exponent > 0, fraction != 0],
        [0, 1, np.where(negative, 2, 9), np.where(negative, 3, 8), np.where(negative, 4, 7)],
        np.where(negative, 5, 6),
    ).astype(U)
    return (b >> which) & 1 == 1


_ORDER = {
    "lt": lambda a, b: a < b, "eq": lambda a, b: a == b, "le": lambda a, b: a <= b, "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
}  # fmt: skip
_FLOAT_ONLY = {
    "lg": lambda a, b: (a < b) | (a > b), "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "u": lambda a, b: np.isnan(a) | np.isnan(b), "nge": lambda a, b: ~(a >= b), "nlg": lambda a, b: ~((a < b) | (a > b)),
    "ngt": lambda a, b: ~(a > b), "nle": lambda a, b: ~(a <= b), "neq": lambda a, b: ~(a == b), "nlt": lambda a, b: ~(a < b),
}  # fmt: skip

INTEGER: list[Row] = [
    *valu("v_mov_b32_e32", "u32", lambda a: a),
    *valu("v_mov_b32_e32 scalar", "s:u32", lambda a: a, asm="v_mov_b32_e32 {d}, {sa}"),
    *valu("v_mov_b32_e32 inline", "", lambda: np.full((1, 1), 0x3E22F983, U), asm="v_mov_b32_e32 {d}, 0.15915494"),
    *valu("v_mov_b64_e32", "u64", lambda a: a, "u64"),
    *valu("v_not_b32_e32", "u32", lambda a: ~a),
    *valu("v_bfrev_b32_e32", "u32", _reverse),
    *valu("v_bcnt_u32_b32", "u32 u32", _popcount),
    *valu("v_add_u32_e32", "u32 u32", lambda a, b: a + b),
    *valu("v_add_u32_e64 clamp", "u32 u32", lambda a, b: np.minimum(a.astype(L) + b, 0xFFFFFFFF), asm="v_add_u32_e64 {d}, {a}, {b} clamp"),
    *valu("v_sub_u32_e32", "u32 u32", lambda a, b: a - b),
    *valu("v_sub_u32_e64 clamp", "s:u32 u32", lambda a, b: np.where(a > b, a - b, 0), asm="v_sub_u32_e64 {d}, {sa}, {b} clamp"),
    *valu("v_subrev_u32_e32", "s:u32 u32", lambda a, b: b - a),
    *valu("v_add_i32", "u32 s:u32", lambda a, b: a + b),
    *valu("v_sub_i32", "u32 u32", lambda a, b: a - b),
    *valu("v_and_b32_e32", "u32 u32", lambda a, b: a & b),
    *valu("v_and_b32_e32 literal", "u32", lambda a: a & U(0x3FF), asm="v_and_b32_e32 {d}, 0x3ff, {a}"),
    *valu("v_or_b32_e32", "u32 u32", lambda a, b: a | b),
    *valu("v_xor_b32_e32", "u32 u32", lambda a, b: a ^ b),
    *valu("v_lshlrev_b32_e32", "shift u32", lambda a, b: b << (a & 31)),
    *valu("v_lshrrev_b32_e32", "shift u32", lambda a, b: b >> (a & 31)),
    *valu("v_ashrrev_i32_e32", "shift i32", lambda a, b: b >> (a & 31).astype(I), "i32"),
    *valu("v_lshlrev_b64", "shift u64", lambda a, b: b << (a & 63).astype(L), "u64"),
    *valu("v_lshrrev_b64", "shift u64", lambda a, b: b >> (a & 63).astype(L), "u64"),
    *valu("v_ashrrev_i64", "shift u64", lambda a, b: (b.view(np.int64) >> (a & 63).astype(np.int64)).view(L), "u64"),
    *valu("v_min_i32_e32", "i32 i32", np.minimum, "i32"),
    *valu("v_max_i32_e32", "i32 i32", np.maximum, "i32"),
    *valu("v_min_u32_e32", "u32 u32", np.minimum),
    *valu("v_max_u32_e32", "u32 u32", np.maximum),
    *valu("v_min3_i32", "i32 i32 i32", lambda a, b, c: np.minimum(np.minimum(a, b), c), "i32"),
    *valu("v_max3_i32", "i32 i32 i32", lambda a, b, c: np.maximum(np.maximum(a, b), c), "i32"),
    *valu("v_med3_i32", "i32 i32 i32", _med3, "i32"),
    *valu("v_med3_u32", "u32 u32 u32", _med3),
    *valu("v_add3_u32", "u32 u32 u32", lambda a, b, c: a + b + c),
    *valu("v_add_lshl_u32", "u32 u32 shift", lambda a, b, c: (a + b) << (c & 31)),
    *valu("v_lshl_add_u32", "u32 shift u32", lambda a, b, c: (a << (b & 31)) + c),
    *valu("v_lshl_or_b32", "u32 shift u32", lambda a, b, c: (a << (b & 31)) | c),
    *valu("v_and_or_b32", "u32 u32 u32", lambda a, b, c: (a & b) | c),
    *valu("v_or3_b32", "u32 u32 u32", lambda a, b, c: a | b | c),
    *valu("v_xad_u32", "u32 u32 u32", lambda a, b, c: (a ^ b) + c),
    *valu("v_bfe_u32", "u32 shift shift", _bfe),
    *valu("v_bfe_u32 constants", "u32", lambda a: (a >> 16) & 1, asm="v_bfe_u32 {d}, {a}, 16, 1"),
    *valu("v_bfi_b32", "u32 u32 u32", _bfi),
    *valu("v_alignbit_b32", "u32 u32 shift", _alignbit),
    *valu("v_perm_b32", "u32 u32 selector", _perm),
    *valu("v_perm_b32 any selector", "u32 u32 s:u32", _perm),
    *valu("v_bitop3_b32", "u32 u32 u32", _bitop3(0x6C), asm="v_bitop3_b32 {d}, {a}, {b}, {c} bitop3:0x6c", archs=("gfx950",)),
    *valu("v_bitop3_b32 constant", "u32 u32", lambda a, b: _bitop3(0x1B)(a, b, U(3)), asm="v_bitop3_b32 {d}, {a}, {b}, 3 bitop3:0x1b", archs=("gfx950",)),
    # 16-bit results clear the upper half.
    *valu("v_add_u16_e32", "u32 u32", lambda a, b: (a + b) & U(0xFFFF)),
    *valu("v_sub_u16_e32", "u32 u32", lambda a, b: (a - b) & U(0xFFFF)),
    *valu("v_mul_lo_u16_e32", "u32 u32", lambda a, b: (a * b) & U(0xFFFF)),
    *valu("v_lshlrev_b16_e32", "shift u32", lambda a, b: (b << (a & 15)) & U(0xFFFF)),
    *valu("v_lshrrev_b16_e32", "shift u32", lambda a, b: (b & U(0xFFFF)) >> (a & 15)),
    *valu("v_ashrrev_i16_e32", "shift u32", lambda a, b: ((b.astype(np.int16) >> (a & 15).astype(np.int16)).astype(np.uint16))),
    *valu("v_ashrrev_i16_sdwa", "shift u32", lambda a, b: (_byte(b, 0) >> (a & 15).astype(np.int16)).astype(np.uint16), asm=f"v_ashrrev_i16_sdwa {{d}}, {{a}}, sext({{b}}) {_SDWA} src0_sel:DWORD src1_sel:BYTE_0"),
    *valu("v_lshrrev_b16_sdwa", "shift u32", lambda a, b: _byte(b, 2).view(np.uint16) >> (a & 15).astype(np.uint16), asm=f"v_lshrrev_b16_sdwa {{d}}, {{a}}, sext({{b}}) {_SDWA} src0_sel:DWORD src1_sel:BYTE_2"),
    *valu("v_mul_i32_i24_sdwa", "u32 s:u32", lambda a, b: a.astype(np.int16).astype(np.int64) * _sext24(b), asm=f"v_mul_i32_i24_sdwa {{d}}, sext({{a}}), {{sb}} {_SDWA} src0_sel:WORD_0 src1_sel:DWORD"),
    *valu("v_and_b32_sdwa", "u32 u32", lambda a, b: a & (b >> 16), asm=f"v_and_b32_sdwa {{d}}, {{a}}, {{b}} {_SDWA} src0_sel:DWORD src1_sel:WORD_1"),
    *valu("v_or_b32_sdwa", "u32 u32", lambda a, b: ((a >> 8) & U(0xFF)) | b, asm=f"v_or_b32_sdwa {{d}}, {{a}}, {{b}} {_SDWA} src0_sel:BYTE_1 src1_sel:DWORD"),
    *valu("v_add_u32_sdwa kept", "u32 u32", lambda a, b, d: (d & U(0xFFFF)) | ((a + b) & U(0xFFFF)) << 16, accumulate=True, asm="v_add_u32_sdwa {d}, {a}, {b} dst_sel:WORD_1 dst_unused:UNUSED_PRESERVE src0_sel:DWORD src1_sel:DWORD"),
    *valu("v_mul_lo_u32", "u32 u32", lambda a, b: a * b),
    *valu("v_mul_hi_u32", "u32 u32", _mulhi),
    *valu("v_mul_hi_i32", "i32 i32", lambda a, b: ((a.astype(np.int64) * b.astype(np.int64)) >> 32).astype(U)),
    *valu("v_mul_i32_i24_e32", "u32 u32", lambda a, b: _sext24(a).astype(np.int64) * _sext24(b)),
    *valu("v_mul_u32_u24_e32", "u32 u32", lambda a, b: (a & U(0xFFFFFF)).astype(L) * (b & U(0xFFFFFF))),
    *valu("v_mad_u32_u24", "u32 s:u32 u32", lambda a, b, c: (a & U(0xFFFFFF)).astype(L) * (b & U(0xFFFFFF)) + c),
    *valu("v_mad_i32_i24", "u32 u32 u32", lambda a, b, c: _sext24(a).astype(np.int64) * _sext24(b) + c),
    *valu("v_lshl_add_u64", "u64 s:u64", lambda a, b: (a << L(3)) + b, "u64", asm="v_lshl_add_u64 {d}, {a}, 3, {sb}"),
    Row("v_add_co_u32_e32", "v_add_co_u32_e32 {d}, vcc, {a}, {b}", _carry_out(lambda a, b: a + b), {"a": "u32", "b": "u32"}, d=1),
    Row("v_sub_co_u32_e32", "v_sub_co_u32_e32 {d}, vcc, {a}, {b}", _carry_out(lambda a, b: a - b), {"a": "u32", "b": "u32"}, d=1),
    Row("v_addc_co_u32_e32", "v_addc_co_u32_e32 {d}, vcc, {a}, {b}, vcc", _carry_in_out(1), {"a": "u32", "b": "u32"}, d=1),
    Row("v_subb_co_u32_e32", "v_subb_co_u32_e32 {d}, vcc, {a}, {b}, vcc", _carry_in_out(-1), {"a": "u32", "b": "u32"}, d=1),
    Row("v_mad_u64_u32", "v_mad_u64_u32 {d}, {sd}, {a}, {b}, {c}", _mad_u64, {"a": "u32", "b": "u32", "c": "u64"}, d=2, sd=2),
    *[r for op, f in _ORDER.items() for kind in ("u32", "i32") for r in compare(f"v_cmp_{op}_{kind}", f"{kind} {kind}", f)],
    *[r for kind in ("u32", "i32") for r in compare(f"v_cmp_ne_{kind}", f"{kind} {kind}", lambda a, b: a != b)],
    *[r for op, f in (*_ORDER.items(), *_FLOAT_ONLY.items()) for r in compare(f"v_cmp_{op}_f32", "f32 f32", f)],
    *compare("v_cmp_eq_u64", "u64 u64", lambda a, b: a == b),
    *compare("v_cmp_ne_u64", "u64 u64", lambda a, b: a != b),
    *compare("v_cmp_gt_u64", "u64 u64", lambda a, b: a > b),
    *compare("v_cmp_class_f32", "fbits u32", _class),
    *valu("v_cvt_f32_u32_e32", "u32", lambda a: fp.round32(a.astype(np.float64)), "f32", modes=FLOAT_MODES),
    *valu("v_cvt_f32_i32_e32", "i32", lambda a: fp.round32(a.astype(np.float64)), "f32", modes=FLOAT_MODES),
    *valu("v_cvt_u32_f32_e32", "f32", _cvt_u32),
    *valu("v_cvt_i32_f32_e32", "f32", _cvt_i32),
    *valu("v_cvt_pk_bf16_f32", "f32 f32", _pk_bf16, "bf16x2", compare="bf16x2", archs=("gfx950",)),
    *valu("v_cvt_pk_bf16_f32 rounding ignored", "finite finite", _pk_bf16, "bf16x2", compare="bf16x2", archs=("gfx950",), modes=("zero",)),
    Row("v_nop", "v_nop", lambda state: None),
]  # fmt: skip

FLOAT: list[Row] = [
    *valu("v_add_f32_e32", "f32 f32", fp.add, "f32", modes=FLOAT_MODES),
    *valu("v_sub_f32_e32", "f32 f32", fp.sub, "f32", modes=FLOAT_MODES),
    *valu("v_subrev_f32_e32", "f32 f32", lambda a, b: fp.sub(b, a), "f32", modes=TWO),
    *valu("v_mul_f32_e32", "f32 f32", fp.mul, "f32", modes=FLOAT_MODES),
    *valu("v_mul_f32_e64 negated", "f32 s:f32", lambda a, b: fp.mul(a, -b), "f32", asm="v_mul_f32_e64 {d}, {a}, -{sb}", modes=TWO),
    *valu("v_mul_f32_e64 absolute", "f32 f32", lambda a, b: fp.mul(-np.abs(a), b), "f32", asm="v_mul_f32_e64 {d}, -|{a}|, {b}"),
    *valu("v_add_f32_e64 clamp", "f32 f32", lambda a, b: fp.clamp(fp.add(a, b)), "f32", asm="v_add_f32_e64 {d}, {a}, {b} clamp", modes=TWO, compare="f32~"),
    *valu("v_mul_f32_e64 doubled", "finite finite", lambda a, b: fp.mul(a, b) * np.float32(2), "f32", asm="v_mul_f32_e64 {d}, {a}, {b} mul:2", modes=("flush",)),
    *valu("v_fma_f32", "f32 f32 f32", fp.fma, "f32", modes=FLOAT_MODES),
    *valu("v_fma_f32 near cancellation", "finite finite finite", fp.fma, "f32", modes=FLOAT_MODES),
    *valu("v_fma_f32 negated", "f32 s:f32 f32", lambda a, b, c: fp.fma(-a, b, -c), "f32", asm="v_fma_f32 {d}, -{a}, {sb}, -{c}", modes=TWO),
    *valu("v_fmac_f32_e32", "f32 f32", fp.fma, "f32", accumulate=True, modes=FLOAT_MODES),
    *valu("v_fmac_f32_e32 scalar", "s:finite finite", fp.fma, "f32", accumulate=True),
    *valu("v_fmamk_f32", "f32 f32", lambda a, c: fp.fma(a, np.float32(-(2.0**32)), c), "f32", asm="v_fmamk_f32 {d}, {a}, 0xcf800000, {b}", modes=TWO),
    *valu("v_fmaak_f32", "f32 f32", lambda a, b: fp.fma(a, b, np.float32(0.1)), "f32", asm="v_fmaak_f32 {d}, {a}, {b}, 0x3dcccccd", modes=TWO),
    *valu("v_trunc_f32_e32", "f32", lambda a: np.trunc(fp.read(a)), "f32", modes=TWO),
    *valu("v_floor_f32_e32", "f32", lambda a: np.floor(fp.read(a)), "f32"),
    *valu("v_ceil_f32_e32", "f32", lambda a: np.ceil(fp.read(a)), "f32"),
    *valu("v_rndne_f32_e32", "f32", lambda a: np.rint(fp.read(a)), "f32"),
    *valu("v_max_f32_e32", "f32 f32", fp.maximum_number, "f32", modes=TWO),
    *valu("v_min_f32_e32", "f32 f32", fp.minimum_number, "f32", modes=TWO),
    *valu("v_max3_f32", "f32 f32 f32", _max3, "f32", modes=TWO),
    *valu("v_min3_f32", "f32 f32 f32", _min3, "f32", modes=TWO),
    *valu("v_maximum3_f32", "f32 f32 f32", lambda a, b, c: fp.maximum(fp.maximum(a, b), c), "f32", archs=("gfx950",), modes=TWO),
    *valu("v_minimum3_f32", "f32 f32 f32", lambda a, b, c: fp.minimum(fp.minimum(a, b), c), "f32", archs=("gfx950",), modes=TWO),
    *valu("v_exp_f32_e32", "exponent", _exp2, "f32", compare="ulp1", modes=TWO),
    *valu("v_exp_f32_e64 negated", "exponent", lambda a: _exp2(-a), "f32", asm="v_exp_f32_e64 {d}, -{a}", compare="ulp1", modes=TWO),
    *valu("v_log_f32_e32", "positive", _log2, "f32", compare="ulp1", modes=TWO),
    *valu("v_log_f32_e32 special", "", lambda: np.full((1, 1), -np.inf, np.float32), "f32", asm="v_log_f32_e32 {d}, 0"),
    *valu("v_log_f32_e32 negative", "", lambda: np.full((1, 1), np.nan, np.float32), "f32", asm="v_log_f32_e32 {d}, -1.0"),
    *valu("v_rcp_f32_e32", "finite", _rcp, "f32", compare="ulp1", modes=TWO),
    *valu("v_rcp_f32_e32 zero", "", lambda: np.full((1, 1), np.inf, np.float32), "f32", asm="v_rcp_f32_e32 {d}, 0"),
    *valu("v_rcp_iflag_f32_e32", "finite", _rcp, "f32", compare="ulp1"),
    *valu("v_rsq_f32_e32", "positive", _rsq, "f32", compare="ulp1"),
    *valu("v_sqrt_f32_e32", "positive", _sqrt, "f32", compare="ulp1"),
    *valu("v_pk_mul_f32", "f32x2 f32x2", _pair(fp.mul), "f32x2", modes=TWO),
    *valu("v_pk_mul_f32 low scalar", "f32x2 f32x2", _pair(fp.mul, high=(0, 1)), "f32x2", asm="v_pk_mul_f32 {d}, {a}, {b} op_sel_hi:[0,1]"),
    *valu("v_pk_mul_f32 second low", "f32x2 f32x2", _pair(fp.mul, high=(1, 0)), "f32x2", asm="v_pk_mul_f32 {d}, {a}, {b} op_sel_hi:[1,0]"),
    *valu("v_pk_mul_f32 crossed", "f32x2 f32x2", _pair(fp.mul, low=(1, 0), high=(0, 1)), "f32x2", asm="v_pk_mul_f32 {d}, {a}, {b} op_sel:[1,0] op_sel_hi:[0,1]"),
    *valu("v_pk_add_f32", "f32x2 f32x2", _pair(fp.add), "f32x2", modes=TWO),
    *valu("v_pk_add_f32 negated", "f32x2 f32x2", lambda a, b: _pair(fp.add)(a, np.stack([-b[..., 0], b[..., 1]], -1)), "f32x2", asm="v_pk_add_f32 {d}, {a}, {b} neg_lo:[0,1]"),
    *valu("v_pk_fma_f32", "f32x2 f32x2 f32x2", _pair(fp.fma), "f32x2", modes=TWO),
    *valu("v_pk_mov_b32", "f32x2 f32x2", lambda a, b: np.stack([a[..., 0], b[..., 1]], -1), "f32x2", asm="v_pk_mov_b32 {d}, {a}, {b} op_sel:[0,1]", compare="bits"),
    Row("v_div_scale_f32", "v_div_scale_f32 {d}, vcc, {b}, {b}, {a}", _div_scale(1), {"a": "f32", "b": "f32"}, d=1, compare="f32"),
    Row("v_div_scale_f32 numerator", "v_div_scale_f32 {d}, vcc, {a}, {b}, {a}", _div_scale(0), {"a": "f32", "b": "f32"}, d=1, compare="f32"),
    Row("v_div_fmas_f32", "s_mov_b64 vcc, 0\ns_nop 7\nv_div_fmas_f32 {d}, {a}, {b}, {c}",
        lambda s: (setattr(s, "vcc", s.vcc * L(0)), setattr(s, "d", np.where(s.active[:, :, None], fp.fma(s.a, s.b, s.c)[..., None].view(U), s.d)))[0],
        {"a": "finite", "b": "finite", "c": "finite"}, d=1, compare="f32"),
    Row("v_div_fmas_f32 scaled", "v_div_fmas_f32 {d}, {a}, {b}, {c}", _div_fmas, {"a": "finite", "b": "finite", "c": "finite"}, d=1, compare="f32"),
    *valu("v_div_fixup_f32", "f32 finite finite", _fixup, "f32"),
    Row("v_div_fmas_f32 division", _DIVIDE, _divided, {"a": "f32", "b": "f32"}, d=1, compare="f32"),
    Row("v_div_fmas_f32 division of ordinary numbers", _DIVIDE, _divided, {"a": "finite", "b": "finite"}, d=1, compare="f32"),
]  # fmt: skip

ROWS: list[Row] = INTEGER + FLOAT
