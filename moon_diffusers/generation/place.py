"""Where a paired run happens: on a GPU that the kernels are made for, or in the emulator."""

from __future__ import annotations

from dataclasses import replace

from moon_diffusers.generation.settings import GenerateError, Settings

__all__ = ["place"]


def place(settings: Settings, emulate: str | None, device: str | None, is_sample: bool) -> Settings:
    """Choose the device and the emulated architecture.

    Args:
        settings: the others.
        emulate: an architecture, `off`, or None to choose: the sample is emulated where there is no such GPU.
        device: a torch device, or None to choose.
        is_sample: whether the model is the small sample, which the emulator can run.

    Raises:
        GenerateError: the device does not exist, or the kernel could serve nothing there.
        LibraryError, CodeObjectError: the emulator or the kernels are not built.
    """
    import torch

    from moon_diffusers.emulation import current_placement
    from moon_diffusers.emulation import emulate as emulate_block

    has_gpu = torch.cuda.is_available() and (
        torch.version.hip is not None or torch.cuda.get_device_capability() == (9, 0)
    )
    if emulate == "off":
        arch = None
    elif emulate is not None:
        arch = emulate
    else:
        placement = current_placement()
        arch = placement.arch if placement is not None and placement.kind == "emulate" else None
        if placement is None and not has_gpu and device is None:
            if not is_sample:
                raise GenerateError(
                    "emulate is not given, and torch sees no AMD or Hopper GPU: the kernel would serve nothing; "
                    "give --emulate gfx942 (slow: every instruction is interpreted)"
                )
            arch = "gfx942"
    chosen = device or ("cuda" if has_gpu and arch is None else "cpu")
    try:
        kind = torch.device(chosen).type
        torch.empty(1, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise GenerateError(f"device is {chosen!r}: {str(error).splitlines()[0]}") from error
    if kind == "meta":
        raise GenerateError(f"device is {chosen!r}: nothing is computed there; expected a real device")
    if arch is not None and kind != "cpu":
        raise GenerateError(
            f"device is {chosen!r}: the emulator serves tensors on the CPU; leave --device or --emulate out"
        )
    if arch is not None:
        # What is not built is said now, not after the run without the kernel.
        with emulate_block(arch):
            pass
    return replace(settings, emulate=arch, device=chosen)
