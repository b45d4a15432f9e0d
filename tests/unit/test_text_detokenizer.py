"""Token ids to text: characters leave whole (H2)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from tokenspeed.text.detokenizer import MAX_HELD_TOKENS, REPLACEMENT, WindowDetokenizer

SPECIAL = 0


def byte_level() -> Tokenizer:
    """One token a byte, as GPT-2 style tokenizers have for what they never saw; id 0 is special."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: index + 1 for index, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def byte_fallback() -> Tokenizer:
    """Words with a visible space, and a token for each byte beside them, as SentencePiece style tokenizers have."""
    vocab = {"<pad>": SPECIAL, **{f"<0x{byte:02X}>": 1 + byte for byte in range(256)}, "▁hi": 257, "a": 258}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def byte_ids(tokenizer: Tokenizer, data: bytes) -> list[int]:
    """The byte tokens of any bytes, valid text or not."""
    if tokenizer.token_to_id("<0x00>") is not None:
        return [1 + byte for byte in data]
    # Printable bytes are written as themselves, the others as the letters from U+0100 on.
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    table = {byte: chr(byte) if byte in printable else chr(0x100 + others.index(byte)) for byte in range(256)}
    return [tokenizer.token_to_id(table[byte]) for byte in data]


@pytest.fixture(params=[byte_level, byte_fallback])
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    made: Tokenizer = request.param()
    return made


def detokenizer(tokenizer: Tokenizer, prompt_tail: tuple[int, ...] = ()) -> WindowDetokenizer:
    return WindowDetokenizer(tokenizer.decode, frozenset((SPECIAL,)), prompt_tail)


def deltas(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    """What each token shows, and what the end does."""
    watched = detokenizer(tokenizer)
    return [*(watched.feed(token_id) for token_id in ids), watched.flush()]


@pytest.mark.parametrize("text", ["😀", "a😀b", "日本語", "é", "😀😀", "a日😀", "ü😀é"])
def test_every_character_comes_with_its_last_byte(tokenizer: Tokenizer, text: str) -> None:
    """H2: one token a byte; no delta holds half a character, and none comes later than it could."""
    expected = [part for letter in text for part in [""] * (len(letter.encode()) - 1) + [letter]]
    assert deltas(tokenizer, byte_ids(tokenizer, text.encode())) == [*expected, ""]


@settings(max_examples=60, deadline=None)
@given(text=st.text(st.characters(exclude_characters=REPLACEMENT, exclude_categories=["Cs"]), max_size=12))
def test_joined_deltas_are_the_text(text: str) -> None:
    """H2: for any valid text there is never a U+FFFD, and nothing is lost."""
    for make in (byte_level, byte_fallback):
        tokenizer = make()
        shown = deltas(tokenizer, byte_ids(tokenizer, text.encode()))
        assert "".join(shown) == text
        assert not any(REPLACEMENT in piece for piece in shown)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_dangling_character_is_flushed_once(tokenizer: Tokenizer, size: int) -> None:
    """H2: a stream that ends inside a character shows one U+FFFD, with its end."""
    shown = deltas(tokenizer, byte_ids(tokenizer, b"ok" + "😀".encode()[:size]))
    assert shown == ["o", "k", *[""] * size, REPLACEMENT]


def test_a_second_flush_shows_nothing(tokenizer: Tokenizer) -> None:
    """The tail is given out once."""
    watched = detokenizer(tokenizer)
    watched.feed(byte_ids(tokenizer, b"\xf0")[0])
    assert (watched.flush(), watched.flush()) == (REPLACEMENT, "")


def test_invalid_bytes_do_not_spoil_what_follows(tokenizer: Tokenizer) -> None:
    """H2: half a character between whole ones costs itself only."""
    data = "😀".encode() + b"\xf0\x9fa" + "😀".encode()
    shown = "".join(deltas(tokenizer, byte_ids(tokenizer, data)))
    assert shown.replace(REPLACEMENT, "") == "😀a😀"
    assert 1 <= shown.count(REPLACEMENT) <= 2


def test_text_is_not_held_for_ever(tokenizer: Tokenizer) -> None:
    """A model that makes nothing but invalid bytes still streams, and little is kept."""
    shown = deltas(tokenizer, byte_ids(tokenizer, b"\xff" * 40))
    assert [bool(piece) for piece in shown[:-1]] == [(index + 1) % MAX_HELD_TOKENS == 0 for index in range(40)]


def test_special_tokens_have_no_text(tokenizer: Tokenizer) -> None:
    """Nor do they part the bytes of a character."""
    first, *rest = byte_ids(tokenizer, "é".encode())
    assert deltas(tokenizer, [SPECIAL, first, SPECIAL, *rest, SPECIAL]) == ["", "", "", "é", "", ""]


def test_the_prompt_tells_how_the_first_word_is_joined() -> None:
    """A decoder that strips the space of the very first token must not glue the output to its prompt."""
    tokenizer = byte_fallback()
    tokenizer.decoder = decoders.Sequence([decoders.Metaspace("▁", prepend_scheme="always")])
    hi = tokenizer.token_to_id("▁hi")
    assert detokenizer(tokenizer, prompt_tail=(hi,)).feed(hi) == " hi"
    assert detokenizer(tokenizer).feed(hi) == "hi"


def test_a_prompt_that_ends_inside_a_character(tokenizer: Tokenizer) -> None:
    """A prompt may end with half a character: the output then shows what it can and loses nothing after it."""
    ids = byte_ids(tokenizer, "😀".encode())
    for cut in range(1, 4):
        watched = detokenizer(tokenizer, prompt_tail=tuple(ids[:cut]))
        shown = [watched.feed(token_id) for token_id in [*ids[cut:], *byte_ids(tokenizer, b"ok")]]
        assert "".join(shown).endswith("ok")
