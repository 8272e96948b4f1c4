"""Attention as a function, without diffusers: the kernel against torch.

python samples/functional_api.py
"""

import contextlib

import torch
from torch.nn.functional import scaled_dot_product_attention

import moon_diffusers

has_gpu = torch.version.hip is not None and torch.cuda.is_available()
device = "cuda" if has_gpu else "cpu"
torch.manual_seed(0)

# (batch, rows, heads, head dim), 200 queries and 77 keys: lengths need not be multiples of anything.
q = torch.randn(1, 200, 2, 128, dtype=torch.bfloat16, device=device)
k, v = torch.randn(2, 1, 77, 2, 128, dtype=torch.bfloat16, device=device)

with contextlib.nullcontext() if has_gpu else moon_diffusers.emulate("gfx942"):
    out, lse = moon_diffusers.attention(q, k, v, return_lse=True)

exact = scaled_dot_product_attention(*(t.transpose(1, 2).double() for t in (q, k, v))).transpose(1, 2)
torch_bf16 = scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v))).transpose(1, 2)


def relative_l2(value: torch.Tensor) -> float:
    """Return the error against float64."""
    return float((value.double() - exact).norm() / exact.norm())


print(f"kernel {relative_l2(out):.2e}, torch {relative_l2(torch_bf16):.2e} from float64; lse {tuple(lse.shape)}")
print(moon_diffusers.summary())
