"""`moon-diffusers disassemble`: what is in a code object, by the emulator's decoder."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from moon_diffusers.errors import ArgumentError

if TYPE_CHECKING:
    from moon_diffusers.emulator import Listing


@click.command()
@click.argument("kernel")
@click.option("--summary", is_flag=True, help="Only registers, memory and instructions by kind.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def disassemble(kernel: str, summary: bool, as_json: bool) -> None:
    """Disassemble KERNEL: a file (.co, .hsaco or an offload bundle), a code object of this package, or one kernel's name."""
    from moon_diffusers.emulator import disassemble as decode

    image, wanted = _find(kernel)
    listings = [item for item in decode(image) if wanted in (None, item.kernel)]
    if as_json:
        items = [{**asdict(item), "kinds": item.kinds()} for item in listings]
        if summary:
            for item in items:
                del item["instructions"]
        click.echo(json.dumps(items, indent=1))
        return
    for listing in listings:
        _print(listing, summary)


def _find(kernel: str) -> tuple[bytes, str | None]:
    """The image, and the kernel in it that was asked for (None: all)."""
    from moon_diffusers.runtime.code_objects import load_manifest

    if Path(kernel).is_file():
        return Path(kernel).read_bytes(), None
    manifest = load_manifest()
    ours = [item for item in manifest.code_objects if item.file.endswith(".co")]
    for item in ours:
        if kernel in (item.file, item.file.removesuffix(".co")):
            return manifest.read(item), None
        if any(k.name == kernel for k in item.kernels):
            return manifest.read(item), kernel
    files = ", ".join(item.file for item in ours)
    raise ArgumentError("kernel", repr(kernel), f"a file, one of {files}, or a kernel in them")


def _print(listing: Listing, summary: bool) -> None:
    """A kernel for people: a head, then one line an instruction, branch targets marked."""
    click.echo(
        f"{listing.kernel} ({listing.arch}): {listing.vgprs} VGPRs, {listing.sgprs} SGPRs, {listing.agprs} AGPRs, "
        f"LDS {listing.lds_bytes} B, scratch {listing.scratch_bytes} B, arguments {listing.kernarg_size} B, "
        f"{len(listing.instructions)} instructions"
    )
    click.echo("  " + ", ".join(f"{k} {n}" for k, n in sorted(listing.kinds().items(), key=lambda x: -x[1])))
    if summary:
        return
    targets = {item.target for item in listing.instructions if item.target is not None}
    for item in listing.instructions:
        if item.address in targets:
            click.echo(f"{item.address:x}:")
        goes = f" -> {item.target:x}" if item.target is not None else ""
        click.echo(f"  {item.address:6x}  {item.mnemonic:<28} {item.text}{goes}".rstrip())
