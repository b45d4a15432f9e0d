"""Small random models of the shapes that are served, written by `save_pretrained`."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

COMMON: dict[str, Any] = {
    "vocab_size": 307,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 256,
    # Random weights of the usual small size make all logits alike; these make the choice of a token a clear one.
    "initializer_range": 0.3,
    "eos_token_id": [3, 5],
    "bos_token_id": 1,
    "pad_token_id": 0,
}
LAYERS = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]

SHAPES: dict[str, Any] = {
    "llama": LlamaConfig(**COMMON),
    "qwen3": Qwen3Config(**COMMON),
    "gemma3": Gemma3TextConfig(**COMMON, sliding_window=8, layer_types=LAYERS, query_pre_attn_scalar=8),
    "qwen2": Qwen2Config(**{**COMMON, "tie_word_embeddings": True}),
    "gemma2": Gemma2Config(**COMMON, sliding_window=8, attn_logit_softcapping=5.0, final_logit_softcapping=9.0),
    "mistral": MistralConfig(**COMMON, sliding_window=11),
    "gpt2": GPT2Config(vocab_size=307, n_embd=48, n_layer=3, n_head=4, n_positions=256, initializer_range=0.3),
}

_folders = Path(tempfile.mkdtemp(prefix="tokenspeed-shapes-"))
atexit.register(shutil.rmtree, _folders, ignore_errors=True)


@cache
def saved(shape: str) -> Path:
    """The folder of a random model of this shape; the same weights in every run."""
    torch.manual_seed(17)
    folder = _folders / shape
    AutoModelForCausalLM.from_config(SHAPES[shape]).save_pretrained(folder)
    words = {f"w{token}": token for token in range(COMMON["vocab_size"])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="w0").save_pretrained(folder)
    return folder


@cache
def reference(folder: Path) -> Any:
    """The same model as transformers runs it."""
    return AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()


def generated(folder: Path, prompt: list[int], new_tokens: int) -> list[int]:
    """What `generate()` writes greedily after `prompt`, run alone; it does not stop early."""
    ids = torch.tensor([prompt])
    written = reference(folder).generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=new_tokens,
        eos_token_id=None,
        pad_token_id=0,
    )
    return [int(token) for token in written[0, len(prompt) :]]
