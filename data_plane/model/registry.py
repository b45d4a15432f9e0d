"""Loads a model with weights by name. The stamp model, which has none, is built by the builder."""

from collections.abc import Callable
from pathlib import Path

import torch
from msgspec import Struct

from control_plane.errors import ConfigError
from data_plane.model.base import ModelRunner
from data_plane.model.cpu_linear import MakeProduct
from data_plane.model.grouped_runner import GroupedRunner
from data_plane.model.hf import load_decoder
from data_plane.model.hf_hybrid import is_hybrid, load_hybrid
from data_plane.model.int8_linear import Int8Product, has_int8
from data_plane.model.recurrent import SHAPES, load_recurrent
from data_plane.model.sources import resolve
from data_plane.options import DTYPES


class LoadedModel(Struct, frozen=True):
    """A model ready to attach, and the folder that holds its tokenizer, if it has one."""

    runner: ModelRunner
    tokenizer_path: Path | None


def load_model(
    name: str,
    *,
    device: str = "cpu",
    dtype: str = "auto",
    quantization: str = "none",
    block_granularity: int,
    progress: Callable[[str], None],
) -> LoadedModel:
    """Find, convert if needed, and load a model.

    `name` is a known model, a transformers folder or a GGUF file, or a small one with random weights ("hybrid",
    "hybrid-replay": see `recurrent`); `device` "cpu", "cuda" or "cuda:N"; `dtype` "auto" is float32 on a CPU and the
    model's own on CUDA; `quantization` "int8" is for float32 on a CPU. Raises ConfigError when it cannot be had or
    driven.
    """
    if dtype not in DTYPES:
        raise ConfigError([f"dtype={dtype!r} must be one of {', '.join(DTYPES)}"])
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise ConfigError([f"device={device!r}: torch finds no CUDA device here; use device='cpu'"])
    if name in SHAPES:
        if quantization != "none":
            raise ConfigError([f"quantization={quantization!r} is not for model={name!r}: use quantization='none'"])
        small = load_recurrent(name, device=device, dtype=dtype)
        return LoadedModel(GroupedRunner(small, name=name, block_granularity=block_granularity), None)
    source = resolve(name, progress)
    progress(f"loading {source.name}")
    load = load_hybrid if is_hybrid(source.folder) else load_decoder
    decoder = load(source.folder, device=device, dtype=dtype, make_product=_make_product(quantization, device, dtype))
    runner = GroupedRunner(decoder, name=source.name, block_granularity=block_granularity, tokenizer_path=source.folder)
    return LoadedModel(runner, source.folder)


def _make_product(quantization: str, device: str, dtype: str) -> MakeProduct | None:
    """How the products of linear layers are computed, if not as usual."""
    if quantization == "none":
        return None
    problems = []
    if device != "cpu" or dtype not in ("auto", "float32"):
        problems.append(
            f"quantization={quantization!r} is for float32 on a CPU, not for dtype={dtype!r} on device={device!r}: "
            f"use quantization='none'"
        )
    elif not has_int8():
        problems.append(f"quantization={quantization!r} needs a torch with FBGEMM: use quantization='none'")
    if problems:
        raise ConfigError(problems)
    return Int8Product
