"""Hatchling's hook: `pip install .` compiles the code objects and the emulator into the wheel."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

sys.path.insert(0, str(Path(__file__).resolve().parent))


class CustomBuildHook(BuildHookInterface):
    """Builds into `moon_diffusers/_compiled` and tags the wheel for this platform, any Python 3."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Run before the wheel is packed.

        An editable install stays on this machine, so it builds the emulator for this CPU only; a wheel may travel.
        """
        import build
        import targets

        build.build(build.DEFAULT_OUTPUT, None, "native" if version == "editable" else "all")
        sample = Path(self.root) / "samples" / "wan-emoji"
        if version != "editable" and (sample / "model_index.json").is_file():
            # `moon-diffusers generate` without --model finds it there; a checkout uses the folder itself.
            for file in sample.rglob("*"):
                if file.suffix in (".json", ".safetensors"):
                    build_data["force_include"][str(file)] = (
                        f"moon_diffusers/_samples/{file.relative_to(sample.parent)}"
                    )
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-manylinux_{targets.GLIBC.replace('.', '_')}_{platform.machine()}"
