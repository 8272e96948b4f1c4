#!/usr/bin/env bash
# Check this package against the real ROCm toolchain and HIP runtime, on a machine without a GPU.
#
# Debian testing is unpacked into a folder (about 1.5 GB) with its hipcc and libamdhip64. In there:
#   1. every kernel source builds with hipcc and its headers; registers and scratch are printed beside the pinned clang's
#   2. every HIP function that the package binds exists in the real library, and "no device" is an answer, not a crash
#   3. the kernels that hipcc built run through the kernels' tests in the emulator, all checks on; only tests that count the
#      pinned clang's instructions are left out
#
# Usage: scripts/check_rocm.sh [FOLDER]     as root, on Debian; FOLDER defaults to .cache/rocm and is kept for next time
set -euo pipefail
cd "$(dirname "$0")/.."
root=$(realpath -m "${1:-.cache/rocm}")

say() { printf '\n== %s\n' "$*"; }

if [ "$(id -u)" != 0 ]; then
    echo "check_rocm.sh: needs root for debootstrap and chroot" >&2
    exit 2
fi

if ! [ -x "$root/usr/bin/hipcc" ]; then
    say "unpack Debian testing with hipcc into $root"
    command -v debootstrap >/dev/null || apt-get install -y -qq debootstrap
    [ -e /usr/share/debootstrap/scripts/forky ] || ln -s sid /usr/share/debootstrap/scripts/forky
    debootstrap --variant=minbase forky "$root" >"$root.log" 2>&1 || { tail "$root.log" >&2; exit 1; }
    cp /etc/apt/apt.conf.d/* "$root/etc/apt/apt.conf.d/" 2>/dev/null || true
    cp /etc/resolv.conf "$root/etc/" 2>/dev/null || true
    chroot "$root" apt-get update -qq
    DEBIAN_FRONTEND=noninteractive chroot "$root" apt-get install -y -qq --no-install-recommends \
        hipcc libamdhip64-dev rocm-device-libs-21 lld-21 python3 python3-pyelftools python3-msgpack >/dev/null
fi

# hipcc reads /proc; the sources are seen through a bind mount.
mkdir -p "$root/src"
mountpoint -q "$root/proc" || mount -t proc proc "$root/proc"
mountpoint -q "$root/src" || mount --bind . "$root/src"
trap 'umount "$root/src" "$root/proc"' EXIT

say "the kernels under $(chroot "$root" hipcc --version | head -n 1)"
chroot "$root" env MOON_HIPCC=/usr/bin/hipcc python3 /src/csrc/build/build.py --output /tmp/compiled --emulator none
chroot "$root" python3 /src/scripts/check_rocm_runtime.py /tmp/compiled/manifest.json

python=$(realpath -s "${PYTHON:-.venv/bin/python}")
if [ -x "$python" ]; then
    say "the kernels that hipcc built, in the emulator"
    emulator=$("$python" -m moon_diffusers.cli doctor | sed -n 's/^emulator *\(.*\.so\):.*/\1/p')
    MOON_COMPILED="$root/tmp/compiled" MOON_EMULATOR_LIBRARY="$emulator" \
        "$python" -m pytest -q -n 2 tests/kernels --ignore tests/kernels/test_cdna3_counts.py \
        --ignore tests/kernels/test_cdna4_code.py
fi
