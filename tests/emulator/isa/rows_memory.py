"""Memory instructions: LDS, scalar loads, global and buffer accesses, loads that go straight to LDS."""

from __future__ import annotations

import numpy as np

from .harness import LDS_BYTES, WORKGROUPS, Row, State

U = np.uint32
LANES = np.arange(64)
_W = np.arange(WORKGROUPS)
BUFFER_BYTES = 2048
BUFFER_BOUND = 1600
# The descriptor in s[48:51]; SCC is set anew because the address arithmetic has changed it.
_BASE = "s_add_u32 s48, s8, {mem}\ns_addc_u32 s49, s9, 0\ns_cmp_lg_u32 s30, 0\n"
_BUFFER = f"{_BASE}s_mov_b32 s50, {BUFFER_BOUND}\ns_mov_b32 s51, 0x00020000\ns_movk_i32 s52, 0x40\ns_nop 4\n"


def _fetch(source: np.ndarray, address: np.ndarray, size: int) -> np.ndarray:
    """Bytes (workgroup, lane, size) from (workgroup, n) bytes at addresses (workgroup, lane)."""
    at = np.minimum(address[:, :, None] + np.arange(size), source.shape[1] - 1)
    return source[_W[:, None, None], at]


def _to_d(state: State, data: np.ndarray, lanes: np.ndarray) -> None:
    raw = np.ascontiguousarray(data).view(U)
    state.d = np.where(lanes[:, :, None], raw, state.d)


def _extend(data: np.ndarray, signed: bool) -> np.ndarray:
    size = data.shape[2]
    value = np.ascontiguousarray(data).view({(1, False): np.uint8, (1, True): np.int8, (2, False): np.uint16,
                                             (2, True): np.int16}[size, signed])  # fmt: skip
    return value.astype(np.int32).view(np.uint8)


def _ds_read(mnemonic, size, offsets=(0,), scale=1, extend=None, suffix=""):
    def model(state: State) -> None:
        parts = [_fetch(state.lds, state.a.astype(np.int64) + scale * o, size) for o in offsets]
        data = np.concatenate(parts, axis=2)
        _to_d(state, data if extend is None else _extend(data, extend), state.active)

    dwords = max(1, size * len(offsets) // 4)
    kind = f"lds{max(4, min(size, 16))}"
    text = f"{mnemonic} {{d}}, {{a}}{suffix}"
    return Row(f"{mnemonic}{suffix}", text, model, {"a": kind}, d=dwords, lds=True)


def _put(target: np.ndarray, address: np.ndarray, data: np.ndarray, lanes: np.ndarray) -> None:
    """Write lane by lane; where lanes meet, the highest lane is last."""
    size = data.shape[2]
    for w in range(WORKGROUPS):
        for lane in LANES[lanes[w]]:
            target[w, address[w, lane] : address[w, lane] + size] = data[w, lane]


def _ds_write(mnemonic, size, offset=0):
    """Addresses do not overlap: who wins on real hardware is not defined."""
    step = max(size, 4)

    def model(state: State) -> None:
        data = np.ascontiguousarray(state.b.reshape(WORKGROUPS, 64, -1)).view(np.uint8)[:, :, :size]
        place = np.broadcast_to(LANES * step + offset, (WORKGROUPS, 64))
        _put(state.lds, place, data, state.active)

    tail = f" offset:{offset}" if offset else ""
    text = f"v_mul_u32_u24_e32 v96, {step}, v0\n{mnemonic} v96, {{b}}{tail}"
    return Row(f"{mnemonic}{tail}", text, model, {"b": f"raw{max(1, size // 4)}"}, lds=True)


def _ds_write2(mnemonic, size, first, second):
    def model(state: State) -> None:
        for data, offset in ((state.b, first), (state.c, second)):
            raw = np.ascontiguousarray(data.reshape(WORKGROUPS, 64, -1)).view(np.uint8)
            _put(state.lds, np.broadcast_to(LANES * size + offset * size, (WORKGROUPS, 64)), raw, state.active)

    text = f"v_mul_u32_u24_e32 v96, {size}, v0\n{mnemonic} v96, {{b}}, {{c}} offset0:{first} offset1:{second}"
    kind = f"raw{size // 4}"
    return Row(mnemonic, text, model, {"b": kind, "c": kind}, lds=True)


def _read_tr_b16(state: State) -> None:
    """Sixteen lanes turn a tile: lane i's element k is element i % 4 of what lane 4 k + i / 4 points at."""
    data = np.ascontiguousarray(_fetch(state.lds, state.a.astype(np.int64) + 64, 8)).view(np.uint16)
    out = np.empty_like(data)
    for lane in LANES:
        group, i = lane // 16 * 16, lane % 16
        for k in range(4):
            out[:, lane, k] = data[:, group + 4 * k + i // 4, i % 4]
    state.d = np.ascontiguousarray(out).view(U)


def _s_load(mnemonic, dwords, offset, soffset=0, buffer=False, bound=None):
    def model(state: State) -> None:
        at = offset + soffset + 4 * np.arange(dwords)
        data = state.memory.view(U)[:, at // 4]
        if bound is not None:
            data = np.where(at + 4 <= bound, data, 0)
        state.sd = data.copy()

    where = f"{offset:#x}" if not soffset else f"s52 offset:{offset:#x}" if offset else "s52"
    base = "s[48:51]" if buffer else "s[48:49]"
    setup = _BUFFER if buffer else _BASE
    text = f"{setup}s_movk_i32 s52, {soffset:#x}\n{mnemonic} {{sd}}, {base}, {where}"
    return Row(f"{mnemonic} {where}", text, model, {}, sd=dwords, memory=BUFFER_BYTES)


def _time(mnemonic):
    """Never goes back. The emulator counts instructions; how often is its own affair."""

    def model(state: State) -> None:
        state.sd = np.ones_like(state.sd)
        state.scc = np.ones_like(state.scc)

    text = "s_mov_b64 s[48:49], -1\ns_mov_b64 s[50:51], 0\n"
    text += f"{mnemonic} s[48:49]\ns_waitcnt lgkmcnt(0)\n{mnemonic} s[50:51]\ns_waitcnt lgkmcnt(0)\n"
    return Row(mnemonic, f"{text}s_cmp_ge_u32 s50, s48\ns_cselect_b32 {{sd}}, 1, 0", model, {}, sd=1)


def _global_load(mnemonic, size, offset=0, extend=None, saddr=False):
    def model(state: State) -> None:
        data = _fetch(state.memory, state.a.astype(np.int64) + offset + 64, size)
        _to_d(state, data if extend is None else _extend(data, extend), state.active)

    operand, setup = _global_address(offset, saddr, mnemonic.startswith("flat"))
    return Row(f"{mnemonic}{' saddr' if saddr else ''} {offset}", f"{setup}{mnemonic} {{d}}, {operand}", model,
               {"a": "buf16" if size > 4 else "buf4"}, d=max(1, size // 4), memory=BUFFER_BYTES + 512)  # fmt: skip


def _global_address(offset, saddr, flat):
    """The operand text and its setup; the address is the row's memory + 64 + {a} + offset."""
    setup = _BASE.replace("{mem}", "{mem} + 64")
    if saddr:
        return f"{{a}}, s[48:49] offset:{offset}", setup
    setup += "v_mov_b32_e32 v98, {a}\nv_mov_b32_e32 v99, 0\nv_lshl_add_u64 v[96:97], v[98:99], 0, s[48:49]\n"
    tail = "" if flat else ", off"
    return f"v[96:97]{tail} offset:{offset}", setup


def _global_store(mnemonic, size, offset=0, saddr=False):
    step = max(size, 4)

    def model(state: State) -> None:
        data = np.ascontiguousarray(state.b.reshape(WORKGROUPS, 64, -1)).view(np.uint8)[:, :, :size]
        place = np.broadcast_to(LANES * step + 64 + offset, (WORKGROUPS, 64))
        _put(state.memory, place, data, state.active)

    operand, setup = _global_address(offset, saddr, mnemonic.startswith("flat"))
    address = "{a}" if saddr else "v[96:97]"
    tail = operand.removeprefix(address)
    setup += f"v_mul_u32_u24_e32 v16, {step}, v0\n"
    if not saddr:
        setup += "v_mov_b32_e32 v98, v16\nv_mov_b32_e32 v99, 0\nv_lshl_add_u64 v[96:97], v[98:99], 0, s[48:49]\n"
    return Row(f"{mnemonic}{' saddr' if saddr else ''} {offset}", f"{setup}{mnemonic} {address}, {{b}}{tail}", model,
               {"a": "u32", "b": f"raw{max(1, size // 4)}"}, memory=BUFFER_BYTES + 512)  # fmt: skip


def _buffer_load(mnemonic, size, offset=0, soffset=0, extend=None):
    def model(state: State) -> None:
        at = state.a.astype(np.int64) + offset + soffset
        data = _fetch(state.memory, at, size)
        data = np.where((at + size <= BUFFER_BOUND)[:, :, None], data, 0).astype(np.uint8)
        _to_d(state, data if extend is None else _extend(data, extend), state.active)

    scalar = "s52" if soffset else "0"
    tail = f"{scalar} offen" + (f" offset:{offset}" if offset else "")
    return Row(f"{mnemonic} {tail}", f"{_BUFFER}{mnemonic} {{d}}, {{a}}, s[48:51], {tail}", model,
               {"a": f"buf{16 if size > 4 else 4}"}, d=max(1, size // 4), memory=BUFFER_BYTES)  # fmt: skip


def _buffer_store(mnemonic, size, offset=0, soffset=0):
    """Lane l writes at l * step: the last lanes are out of bounds and must write nothing."""
    step = 32 if size <= 16 else size

    def model(state: State) -> None:
        data = np.ascontiguousarray(state.b.reshape(WORKGROUPS, 64, -1)).view(np.uint8)[:, :, :size]
        at = np.broadcast_to(LANES * step + offset + soffset, (WORKGROUPS, 64))
        _put(state.memory, at, data, state.active & (at + size <= BUFFER_BOUND))

    scalar = "s52" if soffset else "0"
    tail = f"{scalar} offen" + (f" offset:{offset}" if offset else "")
    text = f"{_BUFFER}v_mul_u32_u24_e32 v96, {step}, v0\n{mnemonic} {{b}}, v96, s[48:51], {tail}"
    return Row(f"{mnemonic} {tail}", text, model, {"b": f"raw{max(1, size // 4)}"}, memory=BUFFER_BYTES)


def _buffer_to_lds(mnemonic, size, archs, soffset=0, offset=0):
    """Lane l's data goes to LDS at M0 + offset + l * size; out-of-bounds lanes write zeros."""

    def model(state: State) -> None:
        at = state.a.astype(np.int64) + soffset + offset
        data = _fetch(state.memory, at, size)
        data = np.where((at + size <= BUFFER_BOUND)[:, :, None], data, 0).astype(np.uint8)
        place = state.m0.astype(np.int64)[:, None] + offset + LANES * size
        _put(state.lds, place, data, state.active)

    scalar = "s52" if soffset else "0"
    tail = f"{scalar} offen" + (f" offset:{offset}" if offset else "") + " lds"
    return Row(f"{mnemonic} {tail}", f"{_BUFFER}{mnemonic} {{a}}, s[48:51], {tail}", model,
               {"a": f"buf{max(4, size)}"}, memory=BUFFER_BYTES, lds=True, archs=archs)  # fmt: skip


ROWS: list[Row] = [
    _ds_read("ds_read_b32", 4),
    _ds_read("ds_read_b32", 4, (516,), suffix=" offset:516"),
    _ds_read("ds_read_b64", 8),
    _ds_read("ds_read_b64", 8, (1024,), suffix=" offset:1024"),
    _ds_read("ds_read_b128", 16),
    _ds_read("ds_read_b128", 16, (2000,), suffix=" offset:2000"),
    _ds_read("ds_read2_b32", 4, (1, 255), 4, suffix=" offset0:1 offset1:255"),
    _ds_read("ds_read2_b64", 8, (32, 48), 8, suffix=" offset0:32 offset1:48"),
    _ds_read("ds_read2st64_b32", 4, (1, 5), 256, suffix=" offset0:1 offset1:5"),
    _ds_read("ds_read_u16", 2, (2,), extend=False, suffix=" offset:2"),
    _ds_read("ds_read_i16", 2, (2,), extend=True, suffix=" offset:2"),
    _ds_read("ds_read_u8", 1, (3,), extend=False, suffix=" offset:3"),
    Row("ds_read_b64_tr_b16", "ds_read_b64_tr_b16 {d}, {a} offset:64", _read_tr_b16, {"a": "lds8"}, d=2, lds=True,
        archs=("gfx950",), full_exec=True),
    _ds_write("ds_write_b8", 1),
    _ds_write("ds_write_b16", 2),
    _ds_write("ds_write_b32", 4),
    _ds_write("ds_write_b64", 8, 512),
    _ds_write("ds_write_b128", 16, 1024),
    _ds_write2("ds_write2_b32", 4, 3, 90),
    _ds_write2("ds_write2_b64", 8, 0, 128),
    _s_load("s_load_dword", 1, 0x1FC),
    _s_load("s_load_dword", 1, 0, 0x40),
    _s_load("s_load_dword", 1, 0x10, 0x40),
    _s_load("s_load_dwordx2", 2, 0x28),
    _s_load("s_load_dwordx4", 4, 0x30),
    _s_load("s_load_dwordx8", 8, 0x40),
    _s_load("s_load_dwordx16", 16, 0x80),
    _s_load("s_buffer_load_dword", 1, 0x2C, buffer=True),
    _time("s_memtime"),
    _time("s_memrealtime"),
    _global_load("global_load_dword", 4, -64),
    _global_load("global_load_dword", 4, 256, saddr=True),
    _global_load("global_load_dwordx2", 8, 8),
    _global_load("global_load_dwordx3", 12, 16),
    _global_load("global_load_dwordx4", 16, 256),
    _global_load("global_load_dwordx4", 16, 0, saddr=True),
    _global_load("global_load_ushort", 2, 2, extend=False),
    _global_load("global_load_sshort", 2, 2, extend=True),
    _global_load("global_load_ubyte", 1, 5, extend=False),
    _global_load("global_load_sbyte", 1, 5, extend=True),
    _global_load("flat_load_dword", 4, 64),
    _global_load("flat_load_dwordx2", 8, 32),
    _global_load("flat_load_dwordx3", 12),
    _global_load("flat_load_dwordx4", 16),
    _global_load("flat_load_ushort", 2, 2, extend=False),
    _global_store("flat_store_dword", 4, 64),
    _global_store("flat_store_dwordx2", 8, 96),
    _global_store("flat_store_dwordx4", 16, 16),
    _global_store("flat_store_short", 2),
    _global_store("global_store_byte", 1, 1),
    _global_store("global_store_short", 2, 2),
    _global_store("global_store_dword", 4, -64),
    _global_store("global_store_dword", 4, 64, saddr=True),
    _global_store("global_store_dwordx2", 8, 16),
    _global_store("global_store_dwordx3", 12),
    _global_store("global_store_dwordx4", 16, 32),
    _buffer_load("buffer_load_dword", 4),
    _buffer_load("buffer_load_dword", 4, 512, 0x40),
    _buffer_load("buffer_load_dwordx2", 8, 16),
    _buffer_load("buffer_load_dwordx4", 16, 256),
    _buffer_load("buffer_load_dwordx4", 16, 0, 0x40),
    _buffer_load("buffer_load_ushort", 2, 2, extend=False),
    _buffer_load("buffer_load_ubyte", 1, 1, extend=False),
    _buffer_store("buffer_store_dword", 4),
    _buffer_store("buffer_store_dwordx2", 8, 8),
    _buffer_store("buffer_store_dwordx4", 16, 16, 0x40),
    _buffer_store("buffer_store_short", 2, 2),
    _buffer_to_lds("buffer_load_dword", 4, ("gfx942", "gfx950")),
    _buffer_to_lds("buffer_load_dword", 4, ("gfx942", "gfx950"), soffset=0x40),
    _buffer_to_lds("buffer_load_dwordx4", 16, ("gfx950",), soffset=0x40),
    _buffer_to_lds("buffer_load_dwordx4", 16, ("gfx950",)),
]  # fmt: skip
assert LDS_BYTES == 4096
