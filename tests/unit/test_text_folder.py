"""A tokenizer read from a folder as `transformers` writes it."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from control_plane.errors import ConfigError, RequestRejected
from tokenspeed.text.folder import FolderTokenizer
from tokenspeed.text.tokenizer import ChatMessage

TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools here') }}{% endif %}"
    "<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<s>assistant:{% endif %}"
)


def write_folder(path: Path, *, template: str | None) -> Path:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "</s>"],
        show_progress=False,
    )
    backend.train_from_iterator(["hello world, hello there"] * 8, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    if template is not None:
        tokenizer.chat_template = template
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> FolderTokenizer:
    return FolderTokenizer(write_folder(tmp_path_factory.mktemp("tok"), template=TEMPLATE))


def test_text_comes_back(tokenizer: FolderTokenizer) -> None:
    """Through ids and through the detokenizer, special tokens left out."""
    text = "hello 😀 world, naïve"
    ids = tokenizer.encode(text)
    watched = tokenizer.detokenizer()
    assert tokenizer.decode([0, *ids, 1]) == text
    assert "".join([*map(watched.feed, [0, *ids, 1]), watched.flush()]) == text


def test_a_long_text_is_not_cut(tokenizer: FolderTokenizer) -> None:
    """What a folder says about truncation is for training; here the length is the scheduler's to judge."""
    assert tokenizer.decode(tokenizer.encode("hello " * 5000)) == "hello " * 5000


def test_no_token_is_longer_than_it_says(tokenizer: FolderTokenizer) -> None:
    """The bound that refuses huge prompts early must never refuse one that fits."""
    assert max(len(tokenizer.decode([token_id])) for token_id in range(2, 300)) <= tokenizer.longest_token_bytes


def test_a_conversation_keeps_its_special_tokens(tokenizer: FolderTokenizer) -> None:
    """The template writes them as text, and they are encoded as what they are."""
    text = tokenizer.render_chat([ChatMessage("user", "hello")])
    assert text == "<s>user: hello</s><s>assistant:"
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert (ids[0], ids.count(0), ids.count(1)) == (0, 2, 1)


def test_a_template_that_refuses_is_the_callers_error(tokenizer: FolderTokenizer) -> None:
    """Its own words reach the client."""
    with pytest.raises(RequestRejected, match="no tools here"):
        tokenizer.render_chat([ChatMessage("tool", "x")])


def test_a_base_model_has_no_chat(tmp_path: Path) -> None:
    """Guessing a template would give nonsense without saying why."""
    with pytest.raises(RequestRejected, match=r"no chat template.*use /v1/completions"):
        FolderTokenizer(write_folder(tmp_path, template=None)).render_chat([ChatMessage("user", "x")])


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    """The error is a configuration's, not a traceback."""
    with pytest.raises(ConfigError, match=str(tmp_path)):
        FolderTokenizer(tmp_path)
