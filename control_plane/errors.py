"""Errors name the side at fault: the caller, the configuration, the device, or us."""

from collections.abc import Sequence


class RequestRejected(ValueError):
    """The caller asked for something no round could ever serve. Becomes HTTP 400.

    `numbers` are the sizes that the decision compared, so that a client can show or act on them.
    """

    def __init__(self, message: str, *, field: str = "", **numbers: int) -> None:
        figures = ", ".join(f"{name}={value}" for name, value in numbers.items())
        super().__init__(f"{message} ({figures})" if figures else message)
        self.field = field
        self.numbers = numbers


class ConfigError(ValueError):
    """A configuration cannot work. Lists every problem found, each with its field, its value and the fix."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("\n".join(["the configuration cannot work:", *(f"  - {problem}" for problem in problems)]))
        self.problems = tuple(problems)


class InvalidTransition(RuntimeError):
    """An event arrived that its request's state has no arrow for. Nothing was changed. The fault is ours."""

    def __init__(self, state: object, event: object) -> None:
        super().__init__(f"{type(state).__name__} has no arrow for {event!r}")
        self.state = state
        self.event = event


class WireError(ValueError):
    """Bytes from the other plane, or from a file, are not a message of this schema version."""


class DeviceFailed(RuntimeError):
    """The data plane cannot go on. The cause is chained; the engine reports itself unhealthy."""
