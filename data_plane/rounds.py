"""A plan's way from bytes to an answer, whichever threads it takes."""

import logging

from control_plane.messages import Event, ExtendResult, ForwardFailed
from control_plane.messages.columns import pack
from control_plane.messages.wire import decode_plan
from data_plane.executor import Executor, RoundInFlight
from data_plane.faults import ModelFailed

log = logging.getLogger("tokenspeed.device")


class Rounds:
    """Begins and ends rounds, in order, and decides how far a fault reaches.

    A round whose model failed is answered with `ForwardFailed`, and the next one is carried out as usual. Any other
    error means that this side and the planner no longer agree on what is where: `failure` then says what happened,
    and that plan and every later one is answered with `ForwardFailed`. There is always an answer to a batch.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.failure: str | None = None
        self.failed_count = 0

    def begin(self, round: int, plan: bytes) -> RoundInFlight | None:
        """Hand an encoded plan to the streams. None when the device has stopped."""
        if self.failure is not None:
            return None
        try:
            return self._executor.execute(decode_plan(plan))
        except BaseException as error:
            self.fail(round, error)
            return None

    def end(self, round: int, flight: RoundInFlight | None) -> list[Event]:
        """Wait for what `begin` gave; say what came of it. Nothing is said of a plan without a batch that went well."""
        answer: list[Event] = []
        try:
            if flight is not None:
                answer = _results(flight)
        except ModelFailed as error:
            log.warning("round %d: the model failed", round, exc_info=error)
            answer = [ForwardFailed(round, str(error))]
        except BaseException as error:
            self.fail(round, error)
        # Looked at after the wait: nobody may give a block away while the device can still use it.
        if self.failure is not None:
            answer = [ForwardFailed(round, self.failure)]
        self.failed_count += any(isinstance(event, ForwardFailed) for event in answer)
        return answer

    def fail(self, round: int, error: BaseException) -> None:
        """Stop the device. The first reason is the one that is told."""
        log.error("round %d: the device stops", round, exc_info=error)
        if self.failure is None:
            self.failure = f"the device stopped in round {round}: {type(error).__name__}: {error}"


def _results(flight: RoundInFlight) -> list[Event]:
    tokens = flight.tokens()
    if not flight.keys:
        return []
    return [ExtendResult(flight.round, flight.keys, pack(flight.counts), pack(tokens))]
