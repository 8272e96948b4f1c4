"""The kernels as the attention of diffusers' models and pipelines."""

from __future__ import annotations

from .backend import BACKEND_NAME, install_backend
from .pipeline import restore, routed_modules, set_attn_processor
from .processor import MoonAttnProcessor, accept_templates

__all__ = ["BACKEND_NAME", "MoonAttnProcessor", "restore", "routed_modules", "set_attn_processor"]

install_backend()
accept_templates()
