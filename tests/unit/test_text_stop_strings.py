"""Stop strings: found however the text is cut, never shown (H1)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenspeed.text.stop_strings import StopStrings


def watch(stops: list[str], pieces: list[str]) -> tuple[list[str], bool]:
    """What is shown after each piece, with what the end releases; ends at the first stop."""
    watched = StopStrings(stops)
    shown = []
    for piece in pieces:
        text, is_met = watched.feed(piece)
        shown.append(text)
        if is_met:
            return shown, True
    return [*shown, watched.release()], False


def test_a_stop_that_comes_letter_by_letter_is_never_shown() -> None:
    """H1: all of it is held back from its first letter on."""
    shown, is_met = watch(["<|end|>", "\n\n"], list("ab<|end|>cd"))
    assert (shown, is_met) == (["a", "b", *[""] * 7], True)


def test_held_text_is_released_once_it_cannot_become_a_stop() -> None:
    """H1: "<|en" could have been one, "<|enx" is not."""
    shown, is_met = watch(["<|end|>", "\n\n"], list("a<|enx"))
    assert (shown, is_met) == (["a", "", "", "", "", "<|enx", ""], False)


def test_held_text_is_released_at_the_end() -> None:
    """H1: what only began a stop is ordinary text."""
    assert watch(["\n\n"], ["a", "\n"]) == (["a", "", "\n"], False)


def test_a_new_beginning_inside_a_failed_one_is_kept() -> None:
    """ "aab" in "aaab": the first letter cannot belong to the stop, the others do."""
    assert watch(["aab"], list("aaab")) == (["", "", "a", ""], True)


@pytest.mark.parametrize(
    ("stops", "text", "expected"),
    [
        (["bc", "abcd"], "xabcd", "xa"),  # complete first
        (["c", "abc"], "xabc", "x"),  # complete together: the longest
        (["abc", "c"], "xabc", "x"),
    ],
)
def test_of_several_matches_the_first_complete_one_counts(stops: list[str], text: str, expected: str) -> None:
    """The answer cannot depend on the order of the stops, nor on how the text was cut."""
    for pieces in ([text], list(text)):
        shown, is_met = watch(stops, pieces)
        assert ("".join(shown), is_met) == (expected, True)


def expected_text(stops: list[str], text: str) -> tuple[str, bool]:
    """The same answer by looking at every beginning of the text in turn."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


@given(
    stops=st.lists(st.text("ab\n", min_size=1, max_size=4), max_size=3),
    pieces=st.lists(st.text("ab\n", max_size=5), max_size=8),
)
def test_any_cut_of_any_text_gives_the_same_answer(stops: list[str], pieces: list[str]) -> None:
    """H1: streamed text equals the text before the stop, whatever the pieces."""
    shown, is_met = watch(stops, pieces)
    assert ("".join(shown), is_met) == expected_text(stops, "".join(pieces))


@given(stops=st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3), text=st.text("abc", max_size=12))
def test_no_more_is_held_than_could_become_a_stop(stops: list[str], text: str) -> None:
    """H1: whatever is held begins one of the stops."""
    watched = StopStrings(stops)
    shown = ""
    for end, letter in enumerate(text, start=1):
        piece, is_met = watched.feed(letter)
        if is_met:
            return
        shown += piece
        held = text[len(shown) : end]
        assert held == "" or any(stop.startswith(held) for stop in stops)
