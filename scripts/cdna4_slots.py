"""Print what fills the issue slots of the gfx950 kernels' common tile, counted in the machine code that was built.

    python scripts/cdna4_slots.py

Exit status 1 if a tile is over its budget.
"""

from __future__ import annotations

import sys

from moon_diffusers.errors import MoonError
from moon_diffusers.evidence import slots
from moon_diffusers.runtime import code_objects, device


def main() -> int:
    """Command line."""
    try:
        manifest = code_objects.load_manifest()
        emulator = device.open_emulated("gfx950").hip
    except MoonError as error:
        print(f"cdna4_slots: {error}", file=sys.stderr)
        return 2
    over = False
    for item in manifest.code_objects:
        if item.arch != "gfx950" or not any(kernel.family == "cdna4" for kernel in item.kernels):
            continue
        for name, code in slots.disassembly(emulator.disassemble(manifest.read(item))).items():
            facts = item.facts[name]
            print(f"{name}: {facts['vgpr_count']} VGPRs, {facts['lds_bytes']:,} B of LDS, no spills")
            for group, tile in zip("AB", slots.common_tiles(code), strict=True):
                print(f"\n  group {group}\n    " + slots.table(tile).replace("\n", "\n    "))
                over |= tile.slots_used > tile.slots_available
            print()
    return int(over)


if __name__ == "__main__":
    sys.exit(main())
