"""Context parallelism (Ulysses and ring): diffusers exchanges the tensors, this computes each rank's part.

diffusers' templates call a forward operation that returns, for the ring, also the log-sum-exp with which they merge the
parts: natural log, (B, S, H).
"""

from __future__ import annotations

from typing import Any

from diffusers.models import attention_dispatch
from torch import Tensor

from moon_diffusers import ops
from moon_diffusers.errors import MoonError

from .call import attend, count_fallback, refusal
from .options import Options


def context_parallel_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    *,
    options: Options,
    config: Any,
) -> Tensor:
    """Attention over a sequence that is split over ranks.

    Args:
        query, key, value: this rank's (B, S/ranks, H, D).
        config: diffusers' `ParallelConfig`.

    Returns:
        This rank's (B, S/ranks, H, D).

    Raises:
        MoonError: this diffusers has no context parallelism.
        ValueError: what diffusers' templates refuse, e.g. causal masks.
    """
    template = getattr(attention_dispatch, "_templated_context_parallel_attention", None)
    if template is None:
        raise MoonError("context parallelism needs diffusers >= 0.36")

    def forward_op(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        return_lse: bool = False,
        _save_ctx: bool = True,
        _parallel_config: Any = None,
    ) -> Any:
        if not return_lse:
            return attend(
                query,
                key,
                value,
                attn_mask,
                dropout_p,
                is_causal,
                scale,
                enable_gqa,
                layout="bshd",
                options=options,
            )
        reason = refusal(query, key, value, attn_mask, dropout_p, is_causal, enable_gqa, "bshd")
        if reason:
            count_fallback(reason, options)
            raise MoonError(f"ring attention cannot compute this call: {reason}")
        out, lse = ops.attention(
            query,
            key,
            value,
            layout="bshd",
            rounding=options.rounding,
            rescale=options.rescale,
            softmax_scale=scale,
            causal=is_causal,
            attn_mask=attn_mask,
            strict=options.strict,
            scope=options.scope,
            min_head_dim=options.min_head_dim,
            batch_invariant=options.batch_invariant,
            return_lse=True,
        )
        return out, lse.transpose(1, 2)

    out: Tensor = template(
        query,
        key,
        value,
        attn_mask,
        dropout_p,
        is_causal,
        scale,
        enable_gqa,
        False,
        forward_op=forward_op,
        backward_op=_no_backward,
        _parallel_config=config,
    )
    return out


def _no_backward(*arguments: Any, **keywords: Any) -> Any:
    # The backend sends calls that need gradients to diffusers' own; this is the net under it.
    raise MoonError("the context-parallel attention of moon_diffusers has no backward pass")
