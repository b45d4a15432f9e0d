"""Where a JSON value ends whose text comes in pieces."""

from typing import Final

_OPENING: Final = "{["
_CLOSING: Final = "}]"


class JsonValue:
    """Follows one value. Text that is no JSON ends somewhere, too."""

    def __init__(self) -> None:
        self.is_complete = False
        self._depth = 0
        self._in_text = False
        self._is_escaped = False
        self._is_scalar = False

    def take(self, text: str) -> int:
        """How many characters of `text` belong to the value."""
        for index, character in enumerate(text):
            if self.is_complete:
                return index
            if self._is_scalar and character in ",}] \n\t\r":
                self.is_complete = True
                return index
            self._follow(character)
        return len(text)

    def _follow(self, character: str) -> None:
        if self._in_text:
            if self._is_escaped:
                self._is_escaped = False
            elif character == "\\":
                self._is_escaped = True
            elif character == '"':
                self._in_text = False
                self.is_complete = not self._depth
        elif character == '"':
            self._in_text = True
        elif character in _OPENING:
            self._depth += 1
        elif character in _CLOSING:
            self._depth -= 1
            self.is_complete = self._depth <= 0
        elif not self._depth:
            self._is_scalar = True
