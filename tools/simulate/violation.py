"""The first thing in a run that must not be, found by looking from outside."""


class Violation(AssertionError):
    """`kind` is one word for what does not hold; the message says who and where."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


def require(holds: bool, kind: str, message: object) -> None:
    """Raise a Violation unless it `holds`."""
    if not holds:
        raise Violation(kind, str(message))
