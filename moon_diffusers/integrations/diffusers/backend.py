"""The route for processors that call diffusers' `dispatch_attention_fn`: an attention backend of its own.

diffusers checks backend names against an enum and has no way to add one, so the member is made by hand. Options travel
in the backend's name, e.g. `moon:rounding=rtz`: two models in one process never share them.
"""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Callable
from typing import Any

from diffusers.models import attention_dispatch
from torch import Tensor

from ...eager import wants_gradients
from .call import attend, count_fallback, function_modes_active
from .context_parallel import context_parallel_attention
from .options import Options

#: The backend's name in diffusers, as `model.set_attention_backend` takes it.
BACKEND_NAME = "moon"

_Names: Any = attention_dispatch.AttentionBackendName
_Registry: Any = attention_dispatch._AttentionBackendRegistry
_lock = threading.Lock()


def install_backend(options: Options | None = None) -> Any:
    """The member of diffusers' `AttentionBackendName` for `options`, made and registered at the first request."""
    options = options or Options()
    key = options.key()
    value = f"{BACKEND_NAME}:{key}" if key else BACKEND_NAME
    with _lock:
        member = _Names._value2member_map_.get(value)
        if member is None:
            member = _make_member(value, options)
            _register(member, _backend(options))
    return member


def is_ours(backend: object) -> bool:
    """Whether an `_attention_backend` is one of this package's."""
    return isinstance(backend, str) and (backend == BACKEND_NAME or backend.startswith(f"{BACKEND_NAME}:"))


def _make_member(value: str, options: Options) -> Any:
    name = re.sub(r"\W+", "_", value).upper()
    while name in _Names._member_map_:
        name += "_"
    member = str.__new__(_Names, value)
    member._name_ = name
    member._value_ = value
    member._sort_order_ = len(_Names._member_names_)
    # A pickle of a routed model makes the member again where it is loaded.
    member.__reduce_ex__ = lambda protocol: (install_backend, (options,))
    setattr(_Names, name, member)
    _Names._member_map_[name] = member
    _Names._value2member_map_[value] = member
    _Names._member_names_.append(name)
    return member


def _register(member: Any, function: Callable[..., Any]) -> None:
    register = _Registry.register
    # diffusers 0.35 knows no context parallelism.
    known = inspect.signature(register).parameters
    extra = {"supports_context_parallel": True} if "supports_context_parallel" in known else {}
    register(member, constraints=[], **extra)(function)


def _backend(options: Options) -> Callable[..., Any]:
    """The function that diffusers calls; its parameter names decide which arguments it is given."""

    def moon_attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
        _parallel_config: Any = None,
    ) -> Tensor:
        arguments = (query, key, value, attn_mask, dropout_p, is_causal, scale, enable_gqa)
        if attn_mask is not None and not isinstance(attn_mask, Tensor):
            # A flex attention BlockMask: only that backend understands it.
            count_fallback(f"mask of type {type(attn_mask).__name__}", options)
            return _theirs(_Names.FLEX, *arguments, _parallel_config)
        if wants_gradients(query, key, value):
            count_fallback("requires grad", options)
            return _theirs(_Names.NATIVE, *arguments, _parallel_config)
        if function_modes_active():
            count_fallback("another TorchFunctionMode wants to see the call", options)
            return _theirs(_Names.NATIVE, *arguments, _parallel_config)
        if attn_mask is not None and attn_mask.dim() == 2 and attn_mask.shape == (query.shape[0], key.shape[1]):
            # diffusers means (B, Sk), torch would read (Sq, Sk).
            attn_mask = attn_mask[:, None, None, :]
        rest = (attn_mask, dropout_p, is_causal, scale, enable_gqa)
        if _parallel_config is not None:
            return context_parallel_attention(query, key, value, *rest, options=options, config=_parallel_config)
        return attend(query, key, value, *rest, layout="bshd", options=options)

    return moon_attention


def _theirs(
    name: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Any,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    parallel_config: Any,
) -> Tensor:
    """One of diffusers' own backends, with the arguments that this version of it knows."""
    arguments = {
        "attn_mask": attn_mask,
        "dropout_p": dropout_p,
        "is_causal": is_causal,
        "scale": scale,
        "enable_gqa": enable_gqa,
        "_parallel_config": parallel_config,
    }
    known = _Registry._supported_arg_names[name]
    arguments = {key_: value_ for key_, value_ in arguments.items() if key_ in known}
    out: Tensor = _Registry._backends[name](query, key, value, **arguments)
    return out
