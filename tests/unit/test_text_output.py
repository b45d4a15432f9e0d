"""Where an output is cut: text, ids and usage end at the same token (G2)."""

from control_plane.messages import FinishReason
from tokenspeed.text.output import OutputText, Piece
from tokenspeed.text.stamp import StampTokenizer


class Letters:
    """A detokenizer for tests: token n is the n-th letter; "é" takes the two tokens 100 and 101."""

    def __init__(self) -> None:
        self._is_half = False

    def feed(self, token_id: int) -> str:
        if token_id == 100:
            self._is_half = True
            return ""
        if token_id == 101:
            self._is_half = False
            return "é"
        return chr(ord("a") + token_id)

    def flush(self) -> str:
        return "\ufffd" if self._is_half else ""


def output(*stops: str, stop_token_ids: tuple[int, ...] = ()) -> OutputText:
    return OutputText(Letters(), stops, stop_token_ids)


def test_tokens_behind_a_stop_string_do_not_count() -> None:
    """G2: the stop is complete in the second of four tokens that arrive at once."""
    text = output("bc")
    assert text.feed([0], None) == Piece("a", (0,), None)
    assert text.feed([1, 2, 3, 4], None) == Piece("", (1, 2), FinishReason.STOP)
    assert text.token_count == 3


def test_a_stop_string_goes_before_a_later_reason() -> None:
    """The tokens that ended by length come with the stop that was met before: it stopped."""
    text = output("b")
    assert text.feed([0, 1, 2], FinishReason.LENGTH) == Piece("a", (0, 1), FinishReason.STOP)


def test_a_stop_token_counts_and_has_no_text() -> None:
    """The model's own end is part of what it generated, not of what is read."""
    text = output(stop_token_ids=(9,))
    assert text.feed([0, 9], FinishReason.STOP) == Piece("a", (0, 9), FinishReason.STOP)
    assert text.token_count == 2


def test_a_stop_token_that_did_not_stop_has_its_text() -> None:
    """An output that ends by length at such a token shows it."""
    assert output(stop_token_ids=(9,)).feed([9], FinishReason.LENGTH).text == "j"


def test_the_end_releases_what_a_stop_string_held() -> None:
    """H1: held text comes with the end, and so does a half character (H2)."""
    text = output("bcd")
    assert text.feed([0, 1, 2], None).text == "a"
    assert text.feed([100], FinishReason.LENGTH) == Piece("bc\ufffd", (100,), FinishReason.LENGTH)


def test_a_character_in_two_tokens_beside_a_stop_string() -> None:
    """H2: the stop right behind it is found, the character is whole."""
    text = output("éb")
    assert [text.feed([token], None).text for token in (0, 100)] == ["a", ""]
    assert text.feed([101], None) == Piece("", (101,), None)
    assert text.feed([1], None) == Piece("", (1,), FinishReason.STOP)


def test_an_output_that_ends_without_tokens() -> None:
    """An abort brings no token and releases what was held."""
    text = output("bc")
    text.feed([1], None)
    assert text.feed([], FinishReason.ABORT) == Piece("b", (), FinishReason.ABORT)


def test_the_same_cut_whatever_arrives_together() -> None:
    """Merged outputs end where single ones do."""
    tokenizer = StampTokenizer(64)
    tokens = [5, 17, 3, 42, 8]
    stop = " w3 w4"
    single, together = (OutputText(tokenizer.detokenizer(), (stop,), ()) for _ in range(2))
    pieces = []
    for token in tokens:
        pieces.append(single.feed([token], None))
        if pieces[-1].reason is not None:
            break
    whole = together.feed(tokens, None)
    assert "".join(piece.text for piece in pieces) == whole.text == " w5 w17"
    assert [token for piece in pieces for token in piece.token_ids] == list(whole.token_ids) == [5, 17, 3, 42]
