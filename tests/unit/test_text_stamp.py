"""The tokenizer of the model without weights."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenspeed.text.stamp import StampTokenizer
from tokenspeed.text.tokenizer import ChatMessage


@given(ids=st.lists(st.integers(0, 299), max_size=20))
def test_every_list_of_ids_is_read_back(ids: list[int]) -> None:
    """Text and ids stand for each other, so tests may compare either."""
    tokenizer = StampTokenizer(300)
    assert tokenizer.encode(tokenizer.decode(ids)) == ids


@given(text=st.text(max_size=30), vocab_size=st.integers(1, 300))
def test_any_text_is_a_prompt(text: str, vocab_size: int) -> None:
    """Ids are of the vocabulary, and the advertised bound on bytes holds for words."""
    tokenizer = StampTokenizer(vocab_size)
    assert all(0 <= token_id < vocab_size for token_id in tokenizer.encode(text))
    assert len(tokenizer.decode([vocab_size - 1])) == tokenizer.longest_token_bytes


@pytest.mark.parametrize("text", [" w300", " w07", "w7", " w7x9 w", " w1234567890"])
def test_what_only_looks_like_a_word_is_bytes(text: str) -> None:
    """No id outside the vocabulary, and no other spelling of one inside it."""
    expected = [119, 55] if text == "w7" else None
    ids = StampTokenizer(300).encode(text)
    if expected is not None:
        assert ids == expected
    elif text == " w7x9 w":
        assert ids == [7, *b"x9 w"]
    else:
        assert ids == list(text.encode())


def test_special_tokens_have_no_text() -> None:
    """The stop token ends an output without a word."""
    tokenizer = StampTokenizer(300, special_ids=(0,))
    assert tokenizer.decode([1, 0, 2]) == " w1 w2"
    assert [tokenizer.detokenizer().feed(token_id) for token_id in (0, 1)] == ["", " w1"]


def test_a_conversation_is_a_line_a_turn() -> None:
    """The trivial template leaves the assistant's turn open."""
    messages = [ChatMessage("system", "s"), ChatMessage("user", "u")]
    assert StampTokenizer(300).render_chat(messages) == "system: s\nuser: u\nassistant:"
