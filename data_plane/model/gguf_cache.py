"""GGUF files as `transformers` folders, converted once and kept on disk under a key of their content."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.integrations.gguf.reader import read_gguf_metadata

Progress = Callable[[str], None]

# Changes whenever a conversion would come out differently for the same file and transformers version.
CONVERTER = "1"
# transformers knows most of the ways in which a GGUF file says that text is split before merging; these it lacks.
# SmolLM and SmolLM2 learned their merges with every digit on its own, so a run of spaces before one stays whole.
DIGITS_APART = frozenset({"smollm"})


def cache_root() -> Path:
    """Where converted models are kept: `TOKENSPEED_CACHE`, else the user's cache folder."""
    chosen = os.environ.get("TOKENSPEED_CACHE")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tokenspeed"


def digest_of(gguf: Path) -> str:
    """SHA-256 of the file's bytes, in hexadecimal."""
    with gguf.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def converted_folder(digest: str) -> Path:
    """The folder of a GGUF file with this SHA-256, whether or not it was converted yet."""
    return cache_root() / "models" / f"{digest[:32]}-c{CONVERTER}-t{transformers.__version__}"


def convert(gguf: Path, digest: str, progress: Progress) -> Path:
    """The `transformers` folder (safetensors in float32, tokenizer, chat template) of a GGUF file.

    Converts it unless that was done before. The folder appears whole or not at all, also when two processes convert
    the same file at once. Raises ValueError or OSError when the file is no GGUF file that transformers can read.
    """
    folder = converted_folder(digest)
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix="unfinished-", dir=folder.parent))
    try:
        _write(gguf, unfinished, progress)
        _rename_unless_there(unfinished, folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    progress(f"kept the result in {folder}")
    return folder


def _write(gguf: Path, folder: Path, progress: Progress) -> None:
    size_mb = gguf.stat().st_size // 1_000_000
    progress(f"reading the tokenizer of {gguf.name} ({size_mb} MB; converted once, then kept)")
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    _repair_splitting(tokenizer, gguf)
    tokenizer.save_pretrained(folder)
    progress(f"dequantizing {gguf.name} to float32")
    quantized = AutoModelForCausalLM.from_pretrained(gguf.parent, gguf_file=gguf.name, dtype="float32")
    weights = quantized.state_dict()
    unique_bytes = {tensor.data_ptr(): tensor.nbytes for tensor in weights.values()}  # a tied head is there twice
    progress(f"writing {sum(unique_bytes.values()) // 1_000_000} MB of weights")
    _plain(quantized, weights).save_pretrained(folder)


def _plain(quantized: Any, weights: dict[str, Any]) -> Any:
    """The same model without the mark of a GGUF file, which transformers refuses to save."""
    config = quantized.config
    del config.quantization_config
    with torch.device("meta"):
        model = type(quantized)(config)
    model.load_state_dict(weights, assign=True)
    model.tie_weights()
    model.generation_config = quantized.generation_config
    return model


def _repair_splitting(tokenizer: Any, gguf: Path) -> None:
    metadata, _ = read_gguf_metadata(str(gguf))
    if metadata.get("tokenizer.ggml.pre") in DIGITS_APART:
        backend = tokenizer.backend_tokenizer
        digits = pre_tokenizers.Digits(individual_digits=True)
        backend.pre_tokenizer = pre_tokenizers.Sequence([digits, backend.pre_tokenizer])


def _rename_unless_there(unfinished: Path, folder: Path) -> None:
    try:
        unfinished.rename(folder)
    except OSError:
        # Another process was faster; its folder holds the same bytes.
        if not folder.is_dir():
            raise
