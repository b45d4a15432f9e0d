"""Splits a turn's text, as it comes, into reasoning, content and calls."""

import json
import re
from collections.abc import Iterable
from enum import Enum, auto
from typing import Final

from msgspec import Struct

from tokenspeed.text.stop_strings import overlap
from tokenspeed.turns.json_value import JsonValue
from tokenspeed.turns.marks import END_THINK, END_TOOL_CALL, THINK, TOOL_CALL, TurnMarks

_CALL_HEAD: Final = re.compile(r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"arguments"\s*:\s*(?=\S)')


class Reasoning(Struct, frozen=True):
    """More of what the model thinks before it answers."""

    text: str


class Content(Struct, frozen=True):
    """More of the answer."""

    text: str


class CallBegins(Struct, frozen=True):
    """Call `index` of the turn, of the function `name`."""

    index: int
    name: str


class CallArguments(Struct, frozen=True):
    """More of the arguments of call `index`, as JSON text."""

    index: int
    text: str


Part = Reasoning | Content | CallBegins | CallArguments


class _At(Enum):
    START = auto()  # a thought may begin
    REASONING = auto()
    CONTENT = auto()
    CALL = auto()  # behind the mark, before the arguments
    ARGUMENTS = auto()
    CALL_END = auto()  # behind the arguments


class TurnReader:
    """One turn. Parts are the same however the text was cut, joined where they follow each other.

    Whitespace next to a mark belongs to nobody. A call that is not JSON as it should be is content, with its marks.
    """

    def __init__(self, marks: TurnMarks, *, in_reasoning: bool = False, most_calls: int | None = None) -> None:
        """`in_reasoning`: the prompt has begun a thought. Of more than `most_calls` calls, the rest is dropped."""
        self._calls = marks.calls
        self._most_calls = most_calls
        self._at = _At.REASONING if in_reasoning else _At.START if marks.thinks else _At.CONTENT
        self._trims = in_reasoning  # the next text is the first behind a mark
        self._held = ""
        self._value = JsonValue()
        self.call_count = 0

    def feed(self, text: str) -> list[Part]:
        """What this text completes."""
        self._held += text
        return self._read(is_last=False)

    def finish(self) -> list[Part]:
        """What is left."""
        return self._read(is_last=True)

    def _read(self, *, is_last: bool) -> list[Part]:
        parts: list[Part] = []
        steps = {
            _At.START: self._start,
            _At.REASONING: self._reasoning,
            _At.CONTENT: self._content,
            _At.CALL: self._call,
            _At.ARGUMENTS: self._arguments,
            _At.CALL_END: self._call_end,
        }
        while steps[self._at](parts, is_last):
            pass
        return [part for part in parts if not isinstance(part, Reasoning | Content | CallArguments) or part.text]

    def _start(self, parts: list[Part], is_last: bool) -> bool:
        text = self._held.lstrip()
        if text.startswith(THINK):
            self._go(_At.REASONING, text.removeprefix(THINK))
            return True
        if THINK.startswith(text) and not is_last:
            return False
        self._at = _At.CONTENT
        return True

    def _reasoning(self, parts: list[Part], is_last: bool) -> bool:
        before, mark, after = self._until(END_THINK, is_last)
        parts.append(Reasoning(before))
        if mark:
            self._go(_At.CONTENT, after)
        return bool(mark)

    def _content(self, parts: list[Part], is_last: bool) -> bool:
        if not self._calls:
            text, self._held = self._trimmed(self._held), ""
            parts.append(Content(text))
            return False
        before, mark, after = self._until(TOOL_CALL, is_last)
        parts.append(Content(before))
        if mark:
            self._go(_At.CALL, after)
        return bool(mark)

    def _call(self, parts: list[Part], is_last: bool) -> bool:
        head = _CALL_HEAD.match(self._held)
        if head is not None:
            self._held = self._held[head.end() :]
            self._begin_call(parts, json.loads(head[1], strict=False))
            self._value = JsonValue()
            self._at = _At.ARGUMENTS
            return True
        body, mark, after = self._held.partition(END_TOOL_CALL)
        if not mark and not is_last:
            return False
        if (call := _call_in(body)) is not None:
            self._begin_call(parts, call[0])
            self._give_arguments(parts, call[1])
        elif body or mark:
            parts.append(Content(TOOL_CALL + body + mark))
        self._go(_At.CONTENT, after)
        return bool(mark)

    def _arguments(self, parts: list[Part], is_last: bool) -> bool:
        taken = self._value.take(self._held)
        self._give_arguments(parts, self._held[:taken])
        self._held = self._held[taken:]
        if self._value.is_complete:
            self._at = _At.CALL_END
        return self._value.is_complete

    def _call_end(self, parts: list[Part], is_last: bool) -> bool:
        _, mark, after = self._held.partition(END_TOOL_CALL)
        if mark:
            self._go(_At.CONTENT, after)
        return bool(mark)

    def _begin_call(self, parts: list[Part], name: str) -> None:
        self.call_count += 1
        if self._is_wanted:
            parts.append(CallBegins(self.call_count - 1, name))

    def _give_arguments(self, parts: list[Part], text: str) -> None:
        if self._is_wanted:
            parts.append(CallArguments(self.call_count - 1, text))

    @property
    def _is_wanted(self) -> bool:
        return self._most_calls is None or self.call_count <= self._most_calls

    def _go(self, at: _At, rest: str) -> None:
        self._at, self._held, self._trims = at, rest, True

    def _until(self, mark: str, is_last: bool) -> tuple[str, str, str]:
        """Text before a mark, the mark if it is there, and what follows. Holds what may yet belong to the mark."""
        before, found, after = self._held.partition(mark)
        if found:
            return self._trimmed(before.rstrip()), found, after
        keep = 0 if is_last else overlap(self._held, mark)
        text = self._held[: len(self._held) - keep]
        shown = text if is_last else text.rstrip()
        self._held = self._held[len(shown) :]
        return self._trimmed(shown), "", ""

    def _trimmed(self, text: str) -> str:
        """Without the whitespace behind a mark."""
        if self._trims:
            text = text.lstrip()
            self._trims = not text
        return text


def joined(parts: Iterable[Part]) -> tuple[str, str, list[tuple[str, str]]]:
    """Reasoning, content, and (name, arguments) of each call of a whole turn."""
    reasoning, content = [], []
    calls: list[tuple[str, str]] = []
    for part in parts:
        match part:
            case Reasoning(text=text):
                reasoning.append(text)
            case Content(text=text):
                content.append(text)
            case CallBegins(name=name):
                calls.append((name, ""))
            case CallArguments(text=text):
                calls[-1] = (calls[-1][0], calls[-1][1] + text)
    return "".join(reasoning), "".join(content), calls


def _call_in(body: str) -> tuple[str, str] | None:
    """Name and arguments of a call whose object is not in the usual order, or has no arguments."""
    try:
        call = json.loads(body)
    except ValueError:
        return None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return None
    return call["name"], json.dumps(call.get("arguments", {}))
