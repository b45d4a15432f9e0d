"""Turns in pieces: what is reasoning, what is content, what is a call."""

import json

import pytest

from tokenspeed.turns.marks import TurnMarks
from tokenspeed.turns.reader import CallBegins, TurnReader, joined

BOTH = TurnMarks(thinks=True, calls=True)
CALL = '<tool_call>\n{"name": "f", "arguments": {"x": "a}\\"{", "y": [1, {"z": 2}]}}\n</tool_call>'
ARGUMENTS = '{"x": "a}\\"{", "y": [1, {"z": 2}]}'

TURNS = [
    ("just text < not a mark", ("", "just text < not a mark", [])),
    ("<think>\nwhy\n\n</think>\n\nbecause", ("why", "because", [])),
    ("<think>never ends", ("never ends", "", [])),
    ("text with <think>no thought</think>", ("", "text with <think>no thought</think>", [])),
    (CALL, ("", "", [("f", ARGUMENTS)])),
    (f"<think>a</think>I call\n{CALL}\n{CALL}", ("a", "I call", [("f", ARGUMENTS)] * 2)),
    ('<tool_call>{"arguments": {"x": 1}, "name": "g"}</tool_call>', ("", "", [("g", '{"x": 1}')])),
    ('<tool_call>{"name": "g"}</tool_call> done', ("", "done", [("g", "{}")])),
    ('<tool_call>{"name": "g", "arguments": 5}</tool_call>', ("", "", [("g", "5")])),
    ("<tool_call>nonsense</tool_call>", ("", "<tool_call>nonsense</tool_call>", [])),
    ("<tool_call>cut", ("", "<tool_call>cut", [])),
    ('<tool_call>{"name": "f", "arguments": {"x": "cu', ("", "", [("f", '{"x": "cu')])),
    ("<tool_cal", ("", "<tool_cal", [])),
]


@pytest.mark.parametrize(("text", "expected"), TURNS, ids=[text[:30] for text, _ in TURNS])
@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_however_it_is_cut_it_reads_the_same(text: str, expected: object, step: int) -> None:
    """No part of a mark is shown, none of the text is lost."""
    reader = TurnReader(BOTH)
    parts = [part for begin in range(0, len(text), step) for part in reader.feed(text[begin : begin + step])]
    assert joined(parts + reader.finish()) == expected


def test_arguments_come_as_they_are_written() -> None:
    """The name first, then the arguments character by character; joined they are the JSON that was written."""
    reader = TurnReader(BOTH)
    parts = [part for character in CALL for part in reader.feed(character)]
    assert parts[0] == CallBegins(0, "f")
    assert len(parts) == 1 + len(ARGUMENTS)
    assert json.loads(joined(parts)[2][0][1]) == {"x": 'a}"{', "y": [1, {"z": 2}]}


def test_a_thought_that_the_prompt_began() -> None:
    """The output has no mark of its beginning."""
    reader = TurnReader(BOTH, in_reasoning=True)
    assert joined(reader.feed("\nwell</think>\nyes") + reader.finish()) == ("well", "yes", [])


def test_calls_beyond_the_wanted_ones_are_dropped() -> None:
    """`parallel_tool_calls` false."""
    reader = TurnReader(BOTH, most_calls=1)
    assert joined(reader.feed(CALL + CALL) + reader.finish()) == ("", "", [("f", ARGUMENTS)])


def test_marks_that_the_model_does_not_have_are_text() -> None:
    """A template without calls, one without thoughts."""
    reader = TurnReader(TurnMarks(thinks=False, calls=False))
    text = f"<think>a</think>{CALL}"
    assert joined(reader.feed(text) + reader.finish()) == ("", text, [])
