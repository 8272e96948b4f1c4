"""What this machine is: libraries, devices, kernels built, which of them would run and why the others would not."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ..errors import MoonError
from ..planning import DeviceInfo
from ..problem import HEAD_DIM, Problem
from ..routing import Fallback, KernelSpec, Route, Target, route
from . import library, selftest
from .code_objects import Manifest, compiled_folder, load_manifest
from .device import Device, open_device
from .driver import Driver

#: Environment variables that change what this package does.
ENVIRONMENT = (
    "MOON_EMULATE",
    "MOON_EMULATION_LIMIT",
    "MOON_OFFLOAD",
    "MOON_HIP_LIBRARY",
    "MOON_CUDA_LIBRARY",
    "MOON_EMULATOR_LIBRARY",
    "MOON_COMPILED",
    "MOON_CACHE",
    "MOON_SELFTEST",
    "MOON_FORCE",
    "MOON_STRICT",
    "MOON_SUMMARY",
    "ROCM_PATH",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "CUDA_VISIBLE_DEVICES",
)


@dataclass(frozen=True, slots=True)
class KernelVerdict:
    """Whether a kernel would serve a call of its kind on a device.

    Attributes:
        runs: it would.
        why: what it still needs, or why not.
    """

    kernel: str
    runs: bool
    why: str


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """One device of one library. `problem` says why it could not be read, then `info` is None."""

    ordinal: int
    info: DeviceInfo | None
    kernels: tuple[KernelVerdict, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class LibraryFacts:
    """A library that drives devices. `problem` says why it is of no use, empty if it is.

    Attributes:
        kind: `hip` or `cuda` for a real one, `emulator` for ours.
        driver, runtime: versions as the library encodes them, 0 where unread.
        version: the same for people.
    """

    kind: str
    path: str
    driver: int = 0
    runtime: int = 0
    version: str = ""
    devices: tuple[DeviceFacts, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """One kernel of the manifest with the resources its machine code declares; `lds_bytes` with what a launch adds."""

    name: str
    arch: str
    role: str
    file: str
    variant: dict[str, Any]
    vgpr_count: int
    agpr_count: int
    sgpr_count: int
    lds_bytes: int
    scratch_bytes: int


@dataclass(frozen=True, slots=True)
class Machine:
    """Everything `moon-diffusers doctor` knows.

    Attributes:
        versions: of this package, Python, the platform, torch and diffusers; empty where not installed.
        manifest_problem: why there are no kernels, empty if there are.
        advice: what to do to get the kernels running here, a line each; empty when nothing is missing.
    """

    versions: dict[str, str]
    environment: dict[str, str]
    compiled_folder: str
    compiler: str
    manifest_problem: str
    kernels: tuple[KernelFacts, ...]
    libraries: tuple[LibraryFacts, ...]
    advice: tuple[str, ...] = field(default=())

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    def lines(self) -> list[str]:
        """For people."""
        lines = [f"{name:12} {text or 'not installed'}" for name, text in self.versions.items()]
        lines += [f"{name}={value}" for name, value in self.environment.items()]
        lines.append(f"kernels      {self.compiled_folder}: {self.manifest_problem or self.compiler}")
        for kernel in self.kernels:
            if kernel.role == "measurement":
                continue  # dozens, and nobody's attention
            lines.append(f"  {kernel.arch} {kernel.name} ({kernel.role}): {_resources(kernel)}")
        for item in self.libraries:
            lines.append(f"{item.kind:12} {item.path or 'none'}: {item.problem or item.version}")
            for device in item.devices:
                lines.append(f"  device {device.ordinal}: {_device_text(device)}")
                lines += [f"    {'runs' if v.runs else 'no  '}  {v.kernel}: {v.why}" for v in device.kernels]
        lines += [f"advice       {text}" for text in self.advice]
        return lines


def describe_machine(run_selftests: bool = False) -> Machine:
    """Look at this machine: load libraries, ask devices for their properties. Never raises.

    Args:
        run_selftests: also run every kernel's self-test on every real device; else nothing is launched.
    """
    manifest: Manifest | None = None
    problem = ""
    try:
        manifest = load_manifest()
    except MoonError as error:
        problem = str(error)
    libraries = (
        _real("hip", library.find_hip, manifest, run_selftests),
        _real("cuda", library.find_cuda, manifest, run_selftests),
        _emulator(manifest),
    )
    return Machine(
        versions={
            "moon": _version("moon-diffusers") or "source checkout",
            "python": platform.python_version(),
            "platform": f"{platform.platform()}, {os.cpu_count()} cores",
            "torch": _version("torch"),
            "diffusers": _version("diffusers"),
        },
        environment={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        compiled_folder=str(compiled_folder()),
        compiler=manifest.compiler if manifest else "",
        manifest_problem=problem,
        kernels=_kernels(manifest) if manifest else (),
        libraries=libraries,
        advice=tuple(_advice(problem, libraries[:2], libraries[2])),
    )


def _kernels(manifest: Manifest) -> tuple[KernelFacts, ...]:
    return tuple(
        KernelFacts(
            name=kernel.name,
            arch=kernel.arch,
            role=kernel.role,
            file=item.file,
            variant=item.facts[kernel.name]["variant"],
            vgpr_count=item.facts[kernel.name].get("vgpr_count", 0),
            agpr_count=item.facts[kernel.name].get("agpr_count", 0),
            sgpr_count=item.facts[kernel.name].get("sgpr_count", 0),
            lds_bytes=kernel.lds_bytes + kernel.dynamic_lds,
            scratch_bytes=item.facts[kernel.name].get("scratch_bytes", 0),
        )
        for item in manifest.code_objects
        for kernel in item.kernels
    )


def _real(kind: str, find: Callable[[], Driver], manifest: Manifest | None, test: bool) -> LibraryFacts:
    try:
        driver = find()
    except MoonError as error:
        return LibraryFacts(kind, "", problem=str(error))
    return _library(kind, driver, manifest, test)


def _emulator(manifest: Manifest | None) -> LibraryFacts:
    if manifest is None:
        return LibraryFacts("emulator", "", problem="no manifest, so no emulator is known")
    try:
        driver = library.find_emulator(manifest)
    except MoonError as error:
        return LibraryFacts("emulator", "", problem=str(error))
    return _library("emulator", driver, manifest, False)


def _library(kind: str, driver: Driver, manifest: Manifest | None, test: bool) -> LibraryFacts:
    try:
        count = driver.device_count()
        if count == 0:
            return LibraryFacts(kind, driver.path, problem="it sees no device")
        versions, text = driver.versions(), driver.version_text()
    except MoonError as error:
        return LibraryFacts(kind, driver.path, problem=str(error))
    devices = []
    for ordinal in range(count):
        try:
            device = open_device(driver, ordinal) if manifest else None
            devices.append(_device(ordinal, device, test))
        except MoonError as error:
            devices.append(DeviceFacts(ordinal, None, problem=str(error)))
    return LibraryFacts(kind, driver.path, *versions, text, tuple(devices))


def _device(ordinal: int, device: Device | None, test: bool) -> DeviceFacts:
    if device is None:
        return DeviceFacts(ordinal, None, problem="no manifest, so nothing could run there")
    forward = [kernel for kernel in device.kernels if kernel.role == "forward"]
    verdicts = tuple(_verdict(device, kernel, test) for kernel in forward)
    problem = "" if forward else f"no kernel is built for {device.info.arch}"
    return DeviceFacts(ordinal, device.info, verdicts, problem)


def _verdict(device: Device, kernel: KernelSpec, test: bool) -> KernelVerdict:
    target = Target(device.info.arch, (kernel, *_helpers(device, kernel)), device.disabled)
    chosen = route(typical(kernel), target)
    if isinstance(chosen, Fallback):
        return KernelVerdict(kernel.name, False, chosen.reason)
    lds = kernel.lds_bytes + kernel.dynamic_lds
    if lds > device.info.lds_bytes:
        why = f"needs {lds} B of LDS, the device has {device.info.lds_bytes} B"
        return KernelVerdict(kernel.name, False, why)
    try:
        device.manifest.read(device.manifest.code_object_of(kernel))
    except MoonError as error:
        return KernelVerdict(kernel.name, False, str(error))
    if test:
        return _test(device, chosen)
    return KernelVerdict(kernel.name, True, _tested(device, chosen))


def _test(device: Device, chosen: Route) -> KernelVerdict:
    name = chosen.forward.name
    try:
        outcome = selftest.run(device, chosen)
    except MoonError as error:
        return KernelVerdict(name, False, f"self-test could not run: {error}")
    if outcome.passed:
        selftest.remember(device, chosen, outcome)
    file = device.manifest.code_object_of(chosen.forward).file
    how = ", compiled from PTX by the driver" if file in device.compiled_here else ""
    return KernelVerdict(name, outcome.passed, f"{outcome.line()}, {outcome.seconds:.1f} s{how}")


def _helpers(device: Device, kernel: KernelSpec) -> list[KernelSpec]:
    return [other for other in device.kernels if other.name in (kernel.value_prepass, kernel.merge)]


def _tested(device: Device, chosen: Route) -> str:
    if device.emulated:
        return "emulated"
    return "self-test passed" if selftest.passed_before(device, chosen) else "self-test at first use"


def typical(kernel: KernelSpec) -> Problem:
    """A call that `kernel` is made for: one head of 480p video self-attention."""
    strides = (32760 * HEAD_DIM, HEAD_DIM, HEAD_DIM)
    paged = "paged" in kernel.requires
    return Problem(
        batch=1,
        num_heads=1,
        num_heads_kv=1,
        seqlen_q=32760,
        seqlen_k=32760,
        head_dim=HEAD_DIM,
        dtype="bfloat16",
        q_strides=strides,
        k_strides=strides,
        v_strides=strides,
        o_strides=strides,
        softmax_scale=HEAD_DIM**-0.5,
        rounding=kernel.rounding,
        rescale=kernel.rescale,
        causal="causal" in kernel.requires,
        has_seqlens_k=paged,
        page_size=64 if paged else 0,
        block_table_stride=512 if paged else 0,
        forced=True,
    )


def _advice(manifest_problem: str, real: Sequence[LibraryFacts], emulator: LibraryFacts) -> list[str]:
    advice = []
    if manifest_problem:
        advice.append("build the kernels: python csrc/build/build.py")
    devices = [device for item in real for device in item.devices]
    served = any(verdict.runs for device in devices for verdict in device.kernels)
    if not served and not manifest_problem:
        if not devices:
            advice.append(f"no GPU is used here: {'; '.join(item.problem for item in real)}")
        elif any(device.info is not None and device.info.arch == "sm_90a" and not device.kernels for device in devices):
            advice.append(
                "the kernels for this GPU are not built: pip install nvidia-cuda-nvcc-cu12, "
                "then python csrc/build/build.py"
            )
        else:
            advice.append(
                "no device here runs these kernels; MI300X (gfx942), MI355X (gfx950), H100 and H200 (sm_90a) do"
            )
        if not emulator.problem:
            advice.append('run them in the emulator: moon_diffusers.emulate("gfx942"), or MOON_EMULATE=gfx942')
    return advice


def _resources(kernel: KernelFacts) -> str:
    if kernel.arch.startswith("sm_"):
        text = f"{kernel.vgpr_count} registers, {kernel.lds_bytes} B shared memory"
    else:
        text = f"{kernel.vgpr_count} VGPRs, {kernel.sgpr_count} SGPRs, {kernel.lds_bytes} B LDS"
    return f"{text}, {kernel.scratch_bytes} B scratch"


def _device_text(device: DeviceFacts) -> str:
    info = device.info
    if info is None:
        return device.problem
    if info.arch.startswith("sm_"):
        units = f"{info.cu_count} SMs, {info.lds_bytes // 1024} KiB shared memory a block"
    else:
        units = f"{info.cu_count} CUs on {info.xcd_count} dies, {info.lds_bytes // 1024} KiB LDS a workgroup"
    text = f"{info.name} ({info.arch}), {units}"
    return f"{text}: {device.problem}" if device.problem else text


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
