"""Turn rows into one test kernel, run it on a device, and compare every output with the rows' models.

A kernel runs its rows one after another in one wavefront per workgroup; each workgroup has its own operands. A row's
operands are loaded into fixed registers, EXEC, VCC, SCC and M0 are set, the instruction runs, and everything that it
could have changed is stored:

    {a} {b} {c} vector operands      {sa} {sb} {sc} scalar operands      {d} {sd} destinations, filled with noise before
    s[8:9] + {mem}  the row's own global memory      LDS bytes 0 to 4095 when the row asks for them
    s48 to s63, v96 to v127  free for the row's own use
"""

from __future__ import annotations

import functools
import hashlib
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from moon_diffusers.evidence.aiter import cache_dir
from moon_diffusers.evidence.device import RawDevice, loaded, uploaded

from . import fp
from .operands import KINDS

BOTH = ("gfx942", "gfx950")
WORKGROUPS = 16
LDS_BYTES = 4096
_VECTOR = {"a": 16, "b": 32, "c": 48, "d": 64}
_SCALAR = {"sa": 16, "sb": 20, "sc": 24, "sd": 32}


@dataclass
class State:
    """What a row's model sees and changes: arrays over (workgroup, lane), scalars over (workgroup,)."""

    inputs: dict[str, np.ndarray]
    exec_mask: np.ndarray
    active: np.ndarray
    vcc: np.ndarray
    scc: np.ndarray
    m0: np.ndarray
    d: np.ndarray
    sd: np.ndarray
    memory: np.ndarray
    lds: np.ndarray

    def __getattr__(self, name: str) -> np.ndarray:
        try:
            return self.__dict__["inputs"][name]
        except KeyError:
            raise AttributeError(name) from None


Model = Callable[[State], None]


@dataclass(frozen=True, eq=False)
class Row:
    """One instruction form. ``model`` changes the State as the instruction would; what it leaves must be unchanged.

    ``kinds``: operand name to kind. ``d``, ``sd``: dwords of the destinations. ``compare``: how ``d`` is compared (see
    `_differs`). ``mode``: the float mode it runs in. ``memory``, ``lds``: it needs global memory (bytes), LDS.
    """

    name: str
    asm: str
    model: Model
    kinds: dict[str, str] = field(default_factory=dict)
    d: int = 0
    sd: int = 0
    archs: Sequence[str] = BOTH
    compare: str = "bits"
    full_exec: bool = False
    mode: str = "clang"
    memory: int = 0
    lds: bool = False
    options: tuple[tuple[str, str], ...] = ()

    @property
    def mnemonic(self) -> str:
        """The row's name up to the first space: the mnemonic that it covers."""
        return self.name.split()[0]


def register(prefix: str, first: int, dwords: int) -> str:
    return f"{prefix}{first}" if dwords == 1 else f"{prefix}[{first}:{first + dwords - 1}]"


class Layout:
    """Where a kernel's rows keep their operands, results and memory, in bytes from a workgroup's base."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows
        self.inputs: list[int] = []
        self.outputs: list[int] = []
        self.memory: list[int] = []
        at_in = at_out = at_memory = 0
        for row in rows:
            self.inputs.append(at_in)
            self.outputs.append(at_out)
            self.memory.append(at_memory)
            at_in += 256 * (self.vector_dwords(row) + row.d) + 128
            at_out += 256 * row.d + 4 * (row.sd + 6)
            at_out += -at_out % 64
            at_memory += row.memory + (LDS_BYTES if row.lds else 0)
        self.in_stride, self.out_stride, self.memory_stride = at_in, at_out, max(at_memory, 64)

    @staticmethod
    def vector_dwords(row: Row) -> int:
        return sum(KINDS[row.kinds[name]].dwords for name in ("a", "b", "c") if name in row.kinds)


def _body(row: Row, index: int, layout: Layout) -> list[str]:
    lines = [f"// {row.name}"]
    planes: list[int] = []
    names = {"mem": str(layout.memory[index]), "id": f"r{index}"}
    for name in ("a", "b", "c"):
        if name in row.kinds:
            dwords = KINDS[row.kinds[name]].dwords
            planes += range(_VECTOR[name], _VECTOR[name] + dwords)
            names[name] = register("v", _VECTOR[name], dwords)
    planes += range(_VECTOR["d"], _VECTOR["d"] + row.d)
    if row.d:
        names["d"] = register("v", _VECTOR["d"], row.d)
    for name in ("sa", "sb", "sc"):
        if name in row.kinds:
            names[name] = register("s", _SCALAR[name], KINDS[row.kinds[name]].dwords)
    if row.sd:
        names["sd"] = register("s", _SCALAR["sd"], row.sd)
    base = layout.inputs[index]
    for position, plane in enumerate(planes):
        if position % 8 == 0:
            lines.append(f"v_add_u32_e32 v2, {base + 256 * position:#x}, v1")
        lines.append(f"global_load_dword v{plane}, v2, s[4:5] offset:{256 * (position % 8)}")
    scalars = base + 256 * len(planes)
    lines.append(f"s_load_dwordx16 s[16:31], s[4:5], {scalars:#x}")
    if row.sd:
        lines.append(f"s_load_dwordx16 s[32:47], s[4:5], {scalars + 64:#x}")
    if row.lds:
        lines += _copy_lds(layout.memory[index] + row.memory, into=True)
    lines += ["s_waitcnt vmcnt(0) lgkmcnt(0)", "s_mov_b64 vcc, s[28:29]", "s_mov_b32 m0, s31", "s_cmp_lg_u32 s30, 0"]
    lines += ["s_mov_b64 exec, s[26:27]", "s_nop 7"]
    lines += row.asm.format(**names).split("\n")
    lines += ["s_nop 15", "s_nop 7", "s_waitcnt vmcnt(0) lgkmcnt(0)"]
    lines += ["s_cselect_b32 s10, 1, 0", "s_mov_b64 s[12:13], exec", "s_mov_b64 exec, -1", "s_mov_b32 s11, m0"]
    out = layout.outputs[index]
    for position in range(row.d):
        if position % 8 == 0:
            lines.append(f"v_add_u32_e32 v2, {out + 256 * position:#x}, v1")
        lines.append(f"global_store_dword v2, v{_VECTOR['d'] + position}, s[6:7] offset:{256 * (position % 8)}")
    lines += [f"v_mov_b32_e32 v2, {out + 256 * row.d:#x}", "s_mov_b64 exec, 1"]
    captured = ["s10", "s12", "s13", "vcc_lo", "vcc_hi", "s11", *(f"s{32 + i}" for i in range(row.sd))]
    for position, scalar in enumerate(captured):
        lines += [f"v_mov_b32_e32 v3, {scalar}", f"global_store_dword v2, v3, s[6:7] offset:{4 * position}"]
    lines.append("s_mov_b64 exec, -1")
    if row.lds:
        lines += _copy_lds(layout.memory[index] + row.memory, into=False)
    lines.append("s_waitcnt vmcnt(0) lgkmcnt(0)")
    return lines


def _copy_lds(offset: int, into: bool) -> list[str]:
    lines = ["v_lshlrev_b32_e32 v3, 4, v0", f"v_add_u32_e32 v2, {offset:#x}, v3"]
    pieces = [(f"v[{96 + 4 * i}:{99 + 4 * i}]", 1024 * i) for i in range(4)]
    if into:
        lines += [f"global_load_dwordx4 {r}, v2, s[8:9] offset:{at}" for r, at in pieces]
        lines += ["s_waitcnt vmcnt(0)", *(f"ds_write_b128 v3, {r} offset:{at}" for r, at in pieces)]
    else:
        lines += [*(f"ds_read_b128 {r}, v3 offset:{at}" for r, at in pieces), "s_waitcnt lgkmcnt(0)"]
        lines += [f"global_store_dwordx4 v2, {r}, s[8:9] offset:{at}" for r, at in pieces]
    return lines


def kernel_text(name: str, body: Sequence[str], mode: fp.Mode, lds: int = 65536, kernarg: int = 24) -> str:
    """A kernel of one wavefront with its descriptor: s[0:1] kernel arguments, s2 workgroup."""
    denormal = 0 if mode.flush else 3
    return f"""
.text
.globl {name}
.p2align 8
.type {name},@function
{name}:
{chr(10).join(body)}
s_endpgm
.size {name}, .-{name}
.rodata
.p2align 6
.amdhsa_kernel {name}
  .amdhsa_group_segment_fixed_size {lds}
  .amdhsa_kernarg_size {kernarg}
  .amdhsa_user_sgpr_kernarg_segment_ptr 1
  .amdhsa_system_sgpr_workgroup_id_x 1
  .amdhsa_next_free_vgpr 256
  .amdhsa_accum_offset 128
  .amdhsa_next_free_sgpr 96
  .amdhsa_float_round_mode_32 {mode.rounding}
  .amdhsa_float_denorm_mode_32 {denormal}
  .amdhsa_ieee_mode {int(mode.ieee)}
  .amdhsa_dx10_clamp {int(mode.dx10_clamp)}
.end_amdhsa_kernel
"""


def metadata(
    names: Sequence[str], arch: str, lds: int = 65536, block: int = 64, kernarg: int = 24, segment: int = 0
) -> str:
    """The code object's metadata for kernels that take ``kernarg`` bytes of pointers in a segment of that size or more."""
    kernels = []
    for name in names:
        arguments = "".join(
            f"\n      - {{.address_space: global, .offset: {at}, .size: 8, .value_kind: global_buffer}}"
            for at in range(0, kernarg, 8)
        )
        kernels.append(
            f"""
  - .name: {name}
    .symbol: {name}.kd
    .args:{arguments}
    .kernarg_segment_size: {segment or kernarg}
    .kernarg_segment_align: 8
    .group_segment_fixed_size: {lds}
    .private_segment_fixed_size: 0
    .wavefront_size: 64
    .sgpr_count: 96
    .vgpr_count: 256
    .agpr_count: 128
    .max_flat_workgroup_size: {block}"""
        )
    return f""".amdgpu_metadata
---
amdhsa.version: [1, 2]
amdhsa.target: amdgcn-amd-amdhsa--{arch}
amdhsa.kernels:{"".join(kernels)}
...
.end_amdgpu_metadata
"""


def assemble(text: str, arch: str) -> bytes:
    """A code object of assembly text, kept in the cache folder by its hash."""
    target = f'.amdgcn_target "amdgcn-amd-amdhsa--{arch}"\n'
    digest = hashlib.sha256((target + text).encode()).hexdigest()[:20]
    path = cache_dir() / "assembled" / f"{digest}-{arch}.co"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        stem = path.with_name(f"{path.stem}-{os.getpid()}")
        source, unlinked, linked = (stem.with_suffix(s) for s in (".s", ".o", ".tmp"))
        source.write_text(target + text)
        zig = [sys.executable, "-m", "ziglang"]
        clang = [*zig, "clang", "-target", "amdgcn-amd-amdhsa", f"-mcpu={arch}", "-c", str(source), "-o", str(unlinked)]
        for command in (clang, [*zig, "ld.lld", "-shared", str(unlinked), "-o", str(linked)]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{' '.join(command[2:4])} failed:\n{done.stderr[:3000]}")
        linked.replace(path)
        source.unlink()
        unlinked.unlink()
    return path.read_bytes()


def build(rows: Sequence[Row], arch: str, mode: str) -> bytes:
    """The code object with the one kernel ``rows`` of these rows."""
    layout = Layout(rows)
    body = ["s_load_dwordx4 s[4:7], s[0:1], 0x0", "s_load_dwordx2 s[8:9], s[0:1], 0x10", "v_and_b32_e32 v0, 0x3ff, v0"]
    body += ["v_lshlrev_b32_e32 v1, 2, v0", "s_waitcnt lgkmcnt(0)"]
    for base, stride in ((4, layout.in_stride), (6, layout.out_stride), (8, layout.memory_stride)):
        body += [f"s_mul_i32 s10, s2, {stride:#x}", f"s_add_u32 s{base}, s{base}, s10"]
        body.append(f"s_addc_u32 s{base + 1}, s{base + 1}, 0")
    for index, row in enumerate(rows):
        body += _body(row, index, layout)
    return assemble(kernel_text("rows", body, fp.MODES[mode]) + metadata(["rows"], arch), arch)


def _exec_masks(rng: np.random.Generator, full: bool) -> np.ndarray:
    masks = rng.integers(0, 1 << 64, WORKGROUPS, np.uint64)
    masks[:4] = [0xFFFFFFFFFFFFFFFF, 0, 0x8000000000000000, 0x00000000FFFFFFFF]
    return np.full(WORKGROUPS, 0xFFFFFFFFFFFFFFFF, np.uint64) if full else masks


def lanes_of(masks: np.ndarray) -> np.ndarray:
    """64-bit masks (n,) as booleans (n, 64)."""
    return (masks[:, None] >> np.arange(64, dtype=np.uint64)) & np.uint64(1) != 0


def mask_of(lanes: np.ndarray) -> np.ndarray:
    """Booleans (n, 64) as 64-bit masks (n,)."""
    return (lanes.astype(np.uint64) << np.arange(64, dtype=np.uint64)).sum(axis=1, dtype=np.uint64)


@dataclass
class Operands:
    """The bytes that one row is given: an input block, its memory, and the State before the instruction."""

    block: np.ndarray
    memory: np.ndarray
    state: State


@functools.cache
def operands(row: Row) -> Operands:
    seed = int.from_bytes(hashlib.sha256(row.name.encode()).digest()[:4], "little")
    rng = np.random.default_rng(seed)
    values: dict[str, np.ndarray] = {}
    planes: list[np.ndarray] = []
    scalars = rng.integers(0, 1 << 32, (WORKGROUPS, 32), np.uint32)
    for name in ("a", "b", "c"):
        if name in row.kinds:
            kind = KINDS[row.kinds[name]]
            dwords = kind.make(rng, (WORKGROUPS, 64, kind.dwords)).astype(np.uint32)
            planes += [dwords[:, :, i] for i in range(kind.dwords)]
            values[name] = kind.view(dwords)
    noise = rng.integers(0, 1 << 32, (WORKGROUPS, 64, row.d), np.uint32)
    if "d" in row.kinds:
        noise = KINDS[row.kinds["d"]].make(rng, (WORKGROUPS, 64, row.d)).astype(np.uint32)
    planes += [noise[:, :, i] for i in range(row.d)]
    for name in ("sa", "sb", "sc"):
        if name in row.kinds:
            kind = KINDS[row.kinds[name]]
            first = _SCALAR[name] - 16
            scalars[:, first : first + kind.dwords] = kind.make(rng, (WORKGROUPS, kind.dwords))
            values[name] = kind.view(scalars[:, first : first + kind.dwords].copy())
    masks = _exec_masks(rng, row.full_exec)
    scalars[:, 10:12] = masks[:, None].view(np.uint32)
    scalars[:, 14] = rng.integers(0, 2, WORKGROUPS)
    scalars[:, 15] = rng.integers(0, 512, WORKGROUPS) * 4
    memory = rng.integers(0, 256, (WORKGROUPS, row.memory + (LDS_BYTES if row.lds else 0)), np.uint8)
    stacked = np.stack(planes, axis=1).reshape(WORKGROUPS, -1) if planes else np.zeros((WORKGROUPS, 0), np.uint32)
    state = State(
        inputs=values,
        exec_mask=masks.copy(),
        active=lanes_of(masks),
        vcc=np.ascontiguousarray(scalars[:, 12:14]).view(np.uint64)[:, 0].copy(),
        scc=scalars[:, 14].copy(),
        m0=scalars[:, 15].copy(),
        d=noise.copy(),
        sd=scalars[:, 16 : 16 + row.sd].copy(),
        memory=memory[:, : row.memory].copy(),
        lds=memory[:, row.memory :].copy(),
    )
    return Operands(np.concatenate([stacked, scalars], axis=1).astype(np.uint32), memory, state)


def _differs(row: Row, actual: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Where two (workgroup, lane, dword) arrays differ in the row's sense.

    ``bits``; ``f32``: any NaN equals any NaN; ``f32~``: the sign of zero is free too; ``ulp1``: one unit in the last
    place; ``bf16x2``: bfloat16 halves, any NaN equals any NaN; ``any``: not compared here (the model has checked).
    """
    if row.compare == "bits":
        return actual != expected
    if row.compare == "bf16x2":
        a, e = np.ascontiguousarray(actual).view(np.uint16), np.ascontiguousarray(expected).view(np.uint16)
        both = ((a & 0x7FFF) > 0x7F80) & ((e & 0x7FFF) > 0x7F80)
        return ((a != e) & ~both).reshape(*actual.shape, 2).any(axis=-1)
    a, e = actual.view(np.float32), expected.view(np.float32)
    differs = (actual != expected) & ~(np.isnan(a) & np.isnan(e))
    if row.compare in ("f32~", "ulp1"):
        differs &= ~((a == 0) & (e == 0))
    if row.compare == "ulp1":
        steps = np.abs((actual & 0x7FFFFFFF).astype(np.int64) - (expected & 0x7FFFFFFF).astype(np.int64))
        differs &= ~((np.sign(a) == np.sign(e)) & (steps <= 1))
    return differs


def run(device: RawDevice, rows: Sequence[Row], arch: str, mode: str) -> tuple[dict[str, str], dict[str, object]]:
    """Run the rows and return the failures by row name (one line each) and the emulator's report."""
    layout = Layout(rows)
    image = build(rows, arch, mode)
    given = [operands(row) for row in rows]
    fed = np.concatenate([g.block for g in given], axis=1)
    memory = np.concatenate([np.zeros((WORKGROUPS, 0), np.uint8), *(g.memory for g in given)], axis=1)
    memory = np.pad(memory, ((0, 0), (0, layout.memory_stride - memory.shape[1])))
    got = np.zeros((WORKGROUPS, layout.out_stride // 4), np.uint32)
    assert fed.shape[1] * 4 == layout.in_stride
    with uploaded(device, {"in": fed, "out": got, "memory": memory}) as addresses:
        with loaded(device, image) as module:
            device.launch(
                device.function(module, "rows"), (WORKGROUPS, 1, 1), (64, 1, 1), struct.pack("<3Q", *addresses.values())
            )
        report = device.report()
        got, after = device.download(addresses["out"], got), device.download(addresses["memory"], memory)
    fp.mode = fp.MODES[mode]
    failures: dict[str, str] = {}
    for index, row in enumerate(rows):
        start = layout.memory[index]
        block = got[:, layout.outputs[index] // 4 :]
        problem = _check(row, given[index].state, block, after[:, start:])
        if problem:
            failures[row.name] = problem
    return failures, report


def _check(row: Row, before: State, block: np.ndarray, memory: np.ndarray) -> str | None:
    state = State(**{k: (v if k == "inputs" else v.copy()) for k, v in before.__dict__.items()})
    with np.errstate(all="ignore"):
        row.model(state)
    d = block[:, : 64 * row.d].reshape(WORKGROUPS, row.d, 64).transpose(0, 2, 1)
    rest = block[:, 64 * row.d :]
    pair = np.ascontiguousarray(rest[:, 1:5]).view(np.uint64)
    scalars = {
        "scc": (rest[:, 0], state.scc),
        "exec": (pair[:, 0], state.exec_mask),
        "vcc": (pair[:, 1], state.vcc),
        "m0": (rest[:, 5], state.m0),
        "sd": (rest[:, 6 : 6 + row.sd], state.sd),
    }
    for name, (actual, expected) in scalars.items():
        bad = np.argwhere(actual != expected)
        if len(bad):
            at = tuple(bad[0])
            return f"{name}{list(at)}: got {actual[at]:#x}, expected {expected[at]:#x}, {_show(before, at)}"
    if row.d and row.compare != "any":
        actual = np.ascontiguousarray(d)
        differs = _differs(row, actual, np.ascontiguousarray(state.d))
        if "ignore" in state.inputs:
            differs &= ~state.inputs["ignore"][:, :, None]
        if differs.any():
            at = tuple(np.argwhere(differs)[0])
            share = f"{int(differs.sum())} of {differs.size}"
            return f"d{list(at)}: got {actual[at]:#x}, expected {state.d[at]:#x} ({share} wrong), {_show(before, at)}"
    elif row.d:
        problem = state.inputs["check"](np.ascontiguousarray(d))
        if problem:
            return str(problem)
    for name, actual, expected in (
        ("memory", memory[:, : row.memory], state.memory),
        ("lds", memory[:, row.memory : row.memory + LDS_BYTES], state.lds),
    ):
        if row.lds or name == "memory":
            bad = np.argwhere(actual != expected)
            if len(bad):
                at = tuple(bad[0])
                return f"{name}{list(at)}: got {actual[at]:#x}, expected {expected[at]:#x} ({len(bad)} bytes wrong)"
    return None


def _show(before: State, at: tuple[int, ...]) -> str:
    shown = []
    for name, value in before.inputs.items():
        item = value[at[: min(value.ndim, 2)]] if value.ndim > 1 and len(at) > 1 else value[at[0]]
        raw = np.atleast_1d(item)
        shown.append(f"{name}=" + ",".join(hex(int(x)) for x in raw.view(f"u{raw.dtype.itemsize}").ravel()[:4]))
    return " ".join([*shown, f"active={bool(before.active[at[:2]]) if len(at) > 1 else '-'}"])
