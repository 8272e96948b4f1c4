"""What `scripts/check_rocm.sh` asks of a machine with the real HIP runtime: symbols, the answer to "no device", resources.

    python scripts/check_rocm_runtime.py MANIFEST.json

Needs neither torch nor a GPU. Exit status 1 if something that the package relies on is not so.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from moon_diffusers.runtime import library


def main() -> int:
    """Print what was found; 0 if all is well."""
    hip = library.find_hip()  # raises, naming the function, if one is missing
    print(f"{hip.path}: all bound functions exist; driver and runtime version {hip.versions()}")
    print(f"devices: {hip.device_count()}")
    spilling = 0
    manifest = json.loads(Path(sys.argv[1]).read_text())
    print(f"{'kernel':44s} {'arch':8s} vgpr agpr scratch  lds")
    for entry in manifest["code_objects"]:
        for kernel in entry["kernels"]:
            spilling += kernel["scratch_bytes"] > 0
            print(
                f"{kernel['name']:44s} {entry['arch']:8s} {kernel['vgpr_count']:4d} {kernel['agpr_count']:4d} "
                f"{kernel['scratch_bytes']:7d} {kernel['lds_bytes']:6d}"
            )
    print(f"{spilling} kernels use scratch under this compiler")
    return 0


if __name__ == "__main__":
    sys.exit(main())
