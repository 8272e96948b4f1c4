"""`moon-diffusers plan`: what would be launched for a shape, without launching it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from moon_diffusers.errors import ArgumentError
from moon_diffusers.generation.settings import DTYPES
from moon_diffusers.problem import HEAD_DIM, LAYOUTS, ROUNDINGS, Problem

if TYPE_CHECKING:
    from moon_diffusers.planning import DeviceInfo, LaunchPlan
    from moon_diffusers.routing import Route

# Compute units, dies, LDS and wavefront of the devices that the kernels are made for: MI300X, MI355X and H200.
_DEVICES = {
    "gfx942": (304, 8, 64 * 1024, 64),
    "gfx950": (256, 8, 160 * 1024, 64),
    "sm_90a": (132, 1, 227 * 1024, 32),
}


@click.command(epilog="Exit codes: 0 the kernel serves the call, 1 it falls back, 2 bad input.")
@click.option("--arch", type=click.Choice(list(_DEVICES)), default="gfx942", show_default=True)
@click.option(
    "--cu-count",
    type=click.IntRange(min=1),
    help="Compute units of the device. Default: those of MI300X, MI355X or H200.",
)
@click.option("--batch", type=click.IntRange(min=1), default=1, show_default=True)
@click.option("--num-heads", type=click.IntRange(min=1), default=40, show_default=True)
@click.option("--num-heads-kv", type=click.IntRange(min=1), help="Default: as many as --num-heads.")
@click.option("--seqlen-q", type=click.IntRange(min=1), required=True)
@click.option("--seqlen-k", type=click.IntRange(min=1), help="Default: --seqlen-q (self-attention).")
@click.option("--head-dim", type=click.IntRange(min=1), default=HEAD_DIM, show_default=True)
@click.option("--dtype", type=click.Choice(list(DTYPES)), default="bfloat16", show_default=True)
@click.option("--layout", type=click.Choice(LAYOUTS), default="bshd", show_default=True)
@click.option("--rounding", type=click.Choice(ROUNDINGS), default="rtne", show_default=True)
@click.option("--causal", is_flag=True)
@click.option("--return-lse", is_flag=True)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan(arch: str, cu_count: int | None, as_json: bool, **shape: Any) -> None:
    """Say which kernel would serve an attention call on contiguous tensors, and with which grids and workspace.

    Needs no device: routes and plans by the kernels that were built.
    """
    from moon_diffusers import planning, routing
    from moon_diffusers.runtime.code_objects import load_manifest

    problem = _problem(**shape)
    cus, dies, lds, wavefront = _DEVICES[arch]
    device = planning.DeviceInfo(arch, arch, cu_count or cus, dies, lds, wavefront, 0)
    route = routing.route(problem, routing.Target(arch, tuple(load_manifest().kernels(arch))))
    if isinstance(route, routing.Fallback):
        facts: dict[str, Any] = {"problem": problem.shape_text(), "fallback": route.reason, "detail": route.detail}
    else:
        facts = _facts(problem, route, planning.plan(problem, route, device), device)
    if as_json:
        click.echo(json.dumps(facts, indent=2))
    else:
        for line in _lines(facts):
            click.echo(line)
    if "fallback" in facts:
        raise SystemExit(1)


def _problem(
    batch: int,
    num_heads: int,
    num_heads_kv: int | None,
    seqlen_q: int,
    seqlen_k: int | None,
    head_dim: int,
    dtype: str,
    layout: str,
    rounding: str,
    causal: bool,
    return_lse: bool,
) -> Problem:
    """Describe a call on contiguous tensors."""
    kv_heads, keys = num_heads_kv or num_heads, seqlen_k or seqlen_q
    if num_heads % kv_heads:
        raise ArgumentError("num_heads_kv", kv_heads, f"a divisor of num_heads, {num_heads}")

    def strides(rows: int, heads: int) -> tuple[int, int, int]:
        head, row = (head_dim, heads * head_dim) if layout == "bshd" else (rows * head_dim, head_dim)
        return rows * heads * head_dim, head, row

    return Problem(
        batch=batch,
        num_heads=num_heads,
        num_heads_kv=kv_heads,
        seqlen_q=seqlen_q,
        seqlen_k=keys,
        head_dim=head_dim,
        dtype=DTYPES[dtype],
        q_strides=strides(seqlen_q, num_heads),
        k_strides=strides(keys, kv_heads),
        v_strides=strides(keys, kv_heads),
        o_strides=strides(seqlen_q, num_heads),
        softmax_scale=head_dim**-0.5,
        causal=causal,
        rounding=rounding,
        return_lse=return_lse,
    )


def _facts(problem: Problem, route: Route, launches: LaunchPlan, device: DeviceInfo) -> dict[str, Any]:
    return {
        "problem": problem.shape_text(),
        "route": route.label,
        "device": {"arch": device.arch, "cu_count": device.cu_count, "xcd_count": device.xcd_count},
        "flops": problem.flops,
        "launches": [
            {
                "kernel": launch.kernel.name,
                "role": launch.kernel.role,
                "grid": list(launch.grid),
                "block": list(launch.kernel.block),
                "lds_bytes": launch.kernel.lds_bytes + launch.dynamic_lds,
                "workgroups_per_cu": round(launch.grid[0] * launch.grid[1] * launch.grid[2] / device.cu_count, 3),
            }
            for launch in launches.launches
        ],
        "workspace_bytes": launches.workspace_bytes,
    }


def _lines(facts: dict[str, Any]) -> list[str]:
    lines = [f"problem    {facts['problem']}"]
    if "fallback" in facts:
        detail = f" ({facts['detail']})" if facts["detail"] else ""
        return [*lines, f"falls back to torch SDPA: {facts['fallback']}{detail}"]
    device = facts["device"]
    nvidia = device["arch"].startswith("sm_")
    units = "SMs" if nvidia else f"CUs on {device['xcd_count']} dies"
    memory, unit = ("shared memory", "SM") if nvidia else ("LDS", "CU")
    lines.append(f"device     {device['arch']}, {device['cu_count']} {units}")
    lines.append(f"route      {facts['route']}")
    lines.append(f"work       {facts['flops'] / 1e12:.4g} TFLOP")
    for number, launch in enumerate(facts["launches"], 1):
        grid, block = ("x".join(map(str, launch[name])) for name in ("grid", "block"))
        lines.append(
            f"launch {number}   {launch['kernel']} ({launch['role']}): grid {grid}, block {block}, "
            f"{launch['lds_bytes']} B {memory}, {launch['workgroups_per_cu']:g} workgroups a {unit}"
        )
    lines.append(f"workspace  {facts['workspace_bytes']} B")
    return lines
