"""A tiny Wan pipeline, and a stand-in for the kernel that computes attention in another order of operations."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

from moon_diffusers import dispatch
from moon_diffusers.emulation import emulate

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def one_thread():
    former = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(former)


@pytest.fixture(scope="session")
def tiny_wan(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("model") / "tiny-wan"
    runpy.run_path(str(ROOT / "samples" / "build_tiny_wan.py"))["build"](folder)
    return folder


def standin_attention(q, k, v, softmax_scale, layout):
    """Attention in tiles of 16 keys with a running maximum, P rounded to bf16: what a kernel does, not what torch does."""
    if layout == "bshd":
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    scale = softmax_scale or q.shape[-1] ** -0.5
    high = torch.full(q.shape[:-1], -torch.inf)
    total, out = torch.zeros(q.shape[:-1]), torch.zeros(q.shape)
    for start in range(0, k.shape[2], 16):
        scores = q.float() @ k[:, :, start : start + 16].float().transpose(-1, -2) * scale
        new = torch.maximum(high, scores.amax(-1))
        p = torch.exp(scores - new[..., None])
        shrink = torch.exp(high - new)
        total = total * shrink + p.sum(-1)
        out = out * shrink[..., None] + p.to(q.dtype).float() @ v[:, :, start : start + 16].float()
        high = new
    out = (out / total[..., None]).to(q.dtype)
    return (out.transpose(1, 2) if layout == "bshd" else out).contiguous()


@pytest.fixture
def standin_kernel(monkeypatch):
    """Serve the package's operator by `standin_attention`."""

    def serve(q, k, v, seqlens_k, attn_mask, request, *_):
        out = standin_attention(q, k, v, request.softmax_scale, request.layout)
        promised = dispatch.empty_output(q, v, request.layout)
        return dispatch.Served("stand-in", promised.copy_(out), None)

    monkeypatch.setattr(dispatch, "serve", serve)
    monkeypatch.setattr(emulate, "_check", lambda self: None)
