"""The emulator's decoder against an independent one: LLVM 22's llvm-objdump, or tinygrad's tables where there is none."""

from __future__ import annotations

import pytest

from moon_diffusers.evidence import aiter, decode_check, encoding
from moon_diffusers.evidence.device import emulator_library

from .conftest import own_code_objects, peer_code_object
from .isa import harness
from .test_instructions import CASES, ROWS


def disassemble(image: bytes) -> list[decode_check.Decoded]:
    text = emulator_library().disassemble(image)
    assert text, "the emulator cannot disassemble it"
    return decode_check.parse_emulator(text)


def assert_same(name: str, image: bytes) -> None:
    try:
        _, expected = decode_check.independent(image)
    except decode_check.DecoderUnavailableError as error:
        pytest.skip(str(error))
    code = decode_check.CodeObject(image)
    ours = disassemble(image)
    # Between kernels there is padding that a linear sweep decodes and nobody runs.
    expected = [d for d in expected if any(0 <= d.address - k.address < k.size for k in code.kernels)]
    problems = decode_check.differences(ours, expected)
    assert not problems, f"{name}: {len(problems)} differences\n" + "\n".join(problems[:20])
    assert len(ours) > 10


def test_own_code_objects():
    objects = own_code_objects()
    assert objects, "no code object in _compiled: run `python csrc/build/build.py` first"
    for name, image in objects.items():
        assert_same(name, image)


@pytest.mark.parametrize("kernel", aiter.KERNELS, ids=str)
def test_aiter(kernel):
    assert_same(str(kernel), peer_code_object(kernel))


@pytest.mark.parametrize(("arch", "mode", "options"), CASES)
def test_instruction_rows(arch, mode, options):
    rows = [row for row in ROWS if arch in row.archs and (row.mode, row.options) == (mode, options)]
    assert_same(f"rows of {arch} {mode}", harness.build(rows, arch, mode))


@pytest.mark.parametrize("kernel", aiter.KERNELS, ids=str)
def test_two_independent_decoders_agree(kernel):
    """LLVM and tinygrad say the same where both are here, and so does the length decoder of fault injection."""
    image = peer_code_object(kernel)
    code = decode_check.CodeObject(image)
    try:
        tinygrad = decode_check.by_tinygrad(image)
    except decode_check.DecoderUnavailableError as error:
        pytest.skip(str(error))
    lengths = {(code.text_address + i.offset, i.size) for i in encoding.walk(code.text)}
    assert lengths == {(d.address, d.size) for d in tinygrad}
    if decode_check.llvm_objdump():
        assert not decode_check.differences(tinygrad, decode_check.by_llvm(image))


def test_a_wrong_mnemonic_or_boundary_is_noticed():
    image = peer_code_object(aiter.KERNELS[0])
    try:
        _, good = decode_check.independent(image)
    except decode_check.DecoderUnavailableError as error:
        pytest.skip(str(error))
    bad = [decode_check.Decoded(d.address, d.size, d.mnemonic) for d in good]
    bad[7] = decode_check.Decoded(bad[7].address, bad[7].size, "s_nonsense")
    bad[9] = decode_check.Decoded(bad[9].address, bad[9].size + 4, bad[9].mnemonic)
    del bad[11]
    assert len(decode_check.differences(bad, good)) == 3
