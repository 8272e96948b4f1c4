"""What this machine is: libraries, devices, kernels built, which of them would run and why the others would not."""

from __future__ import annotations

import os
import platform
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
from .hip import Hip

#: Environment variables that change what this package does.
ENVIRONMENT = (
    "MOON_EMULATE",
    "MOON_EMULATION_LIMIT",
    "MOON_OFFLOAD",
    "MOON_HIP_LIBRARY",
    "MOON_EMULATOR_LIBRARY",
    "MOON_COMPILED",
    "MOON_CACHE",
    "MOON_SELFTEST",
    "MOON_STRICT",
    "MOON_SUMMARY",
    "ROCM_PATH",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
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
    """A HIP library. `problem` says why it is of no use, empty if it is.

    Attributes:
        kind: `hip` for a real one, `emulator` for ours.
        driver, runtime: versions as HIP encodes them, 0 where unread.
    """

    kind: str
    path: str
    driver: int = 0
    runtime: int = 0
    devices: tuple[DeviceFacts, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """One kernel of the manifest with the resources its machine code declares."""

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
            lines.append(
                f"  {kernel.arch} {kernel.name} ({kernel.role}): {kernel.vgpr_count} VGPRs, {kernel.sgpr_count} SGPRs, "
                f"{kernel.lds_bytes} B LDS, {kernel.scratch_bytes} B scratch"
            )
        for item in self.libraries:
            lines.append(f"{item.kind:12} {item.path or 'none'}: {item.problem or 'HIP ' + hip_version(item.runtime)}")
            for device in item.devices:
                lines.append(f"  device {device.ordinal}: {_device_text(device)}")
                lines += [f"    {'runs' if v.runs else 'no  '}  {v.kernel}: {v.why}" for v in device.kernels]
        lines += [f"advice       {text}" for text in self.advice]
        return lines


def describe_machine() -> Machine:
    """Look at this machine. Loads HIP libraries and asks devices for their properties; launches nothing, never raises."""
    manifest: Manifest | None = None
    problem = ""
    try:
        manifest = load_manifest()
    except MoonError as error:
        problem = str(error)
    libraries = (_real(manifest), _emulator(manifest))
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
        advice=tuple(_advice(problem, *libraries)),
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
            lds_bytes=kernel.lds_bytes,
            scratch_bytes=item.facts[kernel.name].get("scratch_bytes", 0),
        )
        for item in manifest.code_objects
        for kernel in item.kernels
    )


def _real(manifest: Manifest | None) -> LibraryFacts:
    try:
        hip = library.find_hip()
    except MoonError as error:
        return LibraryFacts("hip", "", problem=str(error))
    return _library("hip", hip, manifest)


def _emulator(manifest: Manifest | None) -> LibraryFacts:
    if manifest is None:
        return LibraryFacts("emulator", "", problem="no manifest, so no emulator is known")
    try:
        hip = library.find_emulator(manifest.folder, list(manifest.emulators))
    except MoonError as error:
        return LibraryFacts("emulator", "", problem=str(error))
    return _library("emulator", hip, manifest)


def _library(kind: str, hip: Hip, manifest: Manifest | None) -> LibraryFacts:
    try:
        count = hip.device_count()
        if count == 0:
            return LibraryFacts(kind, hip.path, problem="it sees no device")
        driver, runtime = hip.versions()
    except MoonError as error:
        return LibraryFacts(kind, hip.path, problem=str(error))
    devices = []
    for ordinal in range(count):
        try:
            device = open_device(hip, ordinal) if manifest else None
            devices.append(_device(ordinal, device))
        except MoonError as error:
            devices.append(DeviceFacts(ordinal, None, problem=str(error)))
    return LibraryFacts(kind, hip.path, driver, runtime, tuple(devices))


def _device(ordinal: int, device: Device | None) -> DeviceFacts:
    if device is None:
        return DeviceFacts(ordinal, None, problem="no manifest, so nothing could run there")
    forward = [kernel for kernel in device.kernels if kernel.role == "forward"]
    verdicts = tuple(_verdict(device, kernel) for kernel in forward)
    problem = "" if forward else f"no kernel is built for {device.info.arch}"
    return DeviceFacts(ordinal, device.info, verdicts, problem)


def _verdict(device: Device, kernel: KernelSpec) -> KernelVerdict:
    target = Target(device.info.arch, (kernel, *_helpers(device, kernel)), device.disabled)
    chosen = route(typical(kernel), target)
    if isinstance(chosen, Fallback):
        return KernelVerdict(kernel.name, False, chosen.reason)
    if kernel.lds_bytes > device.info.lds_bytes:
        why = f"needs {kernel.lds_bytes} B of LDS, the device has {device.info.lds_bytes} B"
        return KernelVerdict(kernel.name, False, why)
    try:
        device.manifest.read(device.manifest.code_object_of(kernel))
    except MoonError as error:
        return KernelVerdict(kernel.name, False, str(error))
    return KernelVerdict(kernel.name, True, _tested(device, chosen))


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
        has_seqlens_k=paged,
        page_size=64 if paged else 0,
        block_table_stride=512 if paged else 0,
    )


def _advice(manifest_problem: str, real: LibraryFacts, emulator: LibraryFacts) -> list[str]:
    advice = []
    if manifest_problem:
        advice.append("build the kernels: python csrc/build/build.py")
    served = any(verdict.runs for device in real.devices for verdict in device.kernels)
    if not served and not manifest_problem:
        if real.problem:
            advice.append(f"no AMD GPU is used here: {real.problem}")
        else:
            advice.append("no device here runs these kernels; MI300X (gfx942) and MI355X (gfx950) do")
        if not emulator.problem:
            advice.append('run them in the emulator: moon_diffusers.emulate("gfx942"), or MOON_EMULATE=gfx942')
    return advice


def _device_text(device: DeviceFacts) -> str:
    info = device.info
    if info is None:
        return device.problem
    text = (
        f"{info.name} ({info.arch}), {info.cu_count} CUs on {info.xcd_count} dies, "
        f"{info.lds_bytes // 1024} KiB LDS a workgroup"
    )
    return f"{text}: {device.problem}" if device.problem else text


def hip_version(number: int) -> str:
    """A version as HIP encodes it, e.g. 60443484, as text: `6.4.43484`."""
    return f"{number // 10_000_000}.{number // 100_000 % 100}.{number % 100_000}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
