"""Finding stop strings in text that arrives in pieces, without showing any part of one."""

from collections.abc import Sequence


class StopStrings:
    """Watches one output for any of `stops`. Where a match is found does not depend on how the text was cut.

    Text is held back exactly as long as it may still become a stop: the longest tail that begins one.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "an empty stop string would match everywhere"
        self._stops = tuple(stops)
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """The text that can be shown now, and whether a stop was met (then nothing may follow).

        Of several matches the one that is complete first counts; of those that end together, the longest.
        """
        text = self._held + text
        matches = [(at + len(stop), at) for stop in self._stops if (at := text.find(stop)) >= 0]
        if matches:
            self._held = ""
            _, begin = min(matches)
            return text[:begin], True
        keep = max((overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep], False

    def release(self) -> str:
        """The output ended: what was held back is ordinary text."""
        held, self._held = self._held, ""
        return held


def overlap(text: str, stop: str) -> int:
    """Length of the longest tail of `text` that begins `stop` and is not all of it."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-length:]):
            return length
    return 0
