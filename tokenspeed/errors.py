"""What can go wrong between a caller and the engine. A request at fault is `control_plane.errors.RequestRejected`."""


class EngineBusy(RuntimeError):
    """Too many generations are unfinished. Nothing was submitted; try again later. Becomes HTTP 429."""

    def __init__(self, *, unfinished: int, limit: int) -> None:
        super().__init__(f"the engine is busy: {unfinished} generations are unfinished and the limit is {limit}")
        self.unfinished = unfinished
        self.limit = limit


class EngineUnavailable(RuntimeError):
    """The engine is closed, or its device or control plane cannot go on. Becomes HTTP 503."""


class GenerationFailed(RuntimeError):
    """A generation that had begun could not be finished. Its message says why; other generations go on."""
