"""The script behind the model card's table: it breaks what it says it breaks, and the sample notices."""

import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional

torch.set_num_threads(1)
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import sample_attention_matters as script  # noqa: E402


class Attention(torch.nn.Module):
    processor = None

    def forward(self, q, k, v):
        return functional.scaled_dot_product_attention(q, k, v)


def qkv(keys=130):
    torch.manual_seed(0)
    return torch.randn(1, 3, 5, 16), torch.randn(1, 3, keys, 16), torch.randn(1, 3, keys, 16)


def test_only_the_named_module_is_altered_and_only_within_the_block():
    model = torch.nn.ModuleDict({"attn1": Attention(), "attn2": Attention()})
    given = qkv()
    expected = functional.scaled_dot_product_attention(*given)
    with script.Altered(model, script.zero, ("attn1",)) as altered:
        assert not model["attn1"](*given).any()
        assert torch.equal(model["attn2"](*given), expected)
        assert altered.served == 1
    assert torch.equal(model["attn1"](*given), expected)


def test_the_breakages_are_what_they_are_called():
    q, k, v = qkv()
    whole = functional.scaled_dot_product_attention(q, k, v)
    assert torch.equal(script.swap_heads(q, k, v)[:, 0], whole[:, 1])
    assert torch.equal(script.swap_heads(q, k, v)[:, 2], whole[:, 2])
    expected = functional.scaled_dot_product_attention(q, k[:, :, :128], v[:, :, :128])
    assert torch.equal(script.drop_last_tile(q, k, v), expected)
    torch.testing.assert_close(script.in_fp32(q, k, v), whole)


def test_the_sample_notices_and_rounding_alone_moves_it_little(monkeypatch):
    every = script.variations(6)
    assert len(every) == 1 + 6 + 6 + 4 + 2
    monkeypatch.setattr(script, "variations", lambda layers: [every[0], every[1], every[-1]])
    prompt, rows = script.measure(ROOT / "samples" / "wan-emoji", None, "a cat on a yellow background", 0, 2, (1.0,))
    error = {row.what: row.latent_error for row in rows}
    floor = error["noise floor: all attention in fp32"]
    assert error["the baseline again"] == 0 and rows[0].psnr is None
    assert 0 < floor < 0.02
    assert error["self-attention of layer 0 zeroed"] > 10 * floor
    assert all(value > 3 * floor for what, value in error.items() if "baseline" not in what and "floor" not in what)
    assert f'Prompt "{prompt}"' in script.table(prompt, rows)


def test_the_card_is_updated_between_its_markers(tmp_path):
    card = tmp_path / "README.md"
    card.write_text(f"before\n{script.BEGIN}\nold\n{script.END}\nafter\n")
    script.update_card(card, "new\n")
    assert card.read_text() == f"before\n{script.BEGIN}\nnew\n{script.END}\nafter\n"
    card.write_text("nothing")
    with pytest.raises(SystemExit, match="has no"):
        script.update_card(card, "new\n")


def test_the_card_holds_a_row_for_every_variation():
    text = (ROOT / "samples" / "wan-emoji" / "README.md").read_text()
    for what, _, _ in script.variations(6):
        assert f"| {what} |" in text, what
