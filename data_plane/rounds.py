"""A plan's way from bytes to an answer, whichever threads it takes."""

import logging

from control_plane.messages import Event, ExtendResult, ForwardFailed, LoadBackDone, TokenLogprobs, WriteBackDone
from control_plane.messages.columns import pack
from control_plane.messages.wire import decode_plan
from data_plane.executor import Executor, RoundInFlight
from data_plane.faults import ModelFailed
from data_plane.ops.host_tier import CopyInFlight

log = logging.getLogger("tokenspeed.device")

Letter = list[Event]
"""Events that are delivered together. What makes later results void is the last of its letter."""


class Rounds:
    """Begins and ends rounds, in order, and decides how far a fault reaches.

    A round whose model failed is answered with `ForwardFailed`, and the next one is carried out as usual. Any other
    error means that this side and the planner no longer agree on what is where: `failure` then says what happened,
    and that plan and every later one is answered with `ForwardFailed`. There is always an answer to a batch, a store
    and a load-back. A failed copy fails neither its round nor the device.
    """

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self.failure: str | None = None
        self.failed_count = 0

    def begin(self, round: int, plan: bytes) -> RoundInFlight | None:
        """Hand an encoded plan to the streams. When the device has stopped it is refused (None: it is no plan)."""
        try:
            decoded = decode_plan(plan)
        except BaseException as error:
            self.fail(round, error)
            return None
        if self.failure is None:
            try:
                return self._executor.execute(decoded)
            except BaseException as error:
                self.fail(round, error)
        return RoundInFlight.refused(decoded)

    def end(self, round: int, flight: RoundInFlight | None) -> list[Letter]:
        """Wait for what `begin` gave; say what came of it, the load-backs first unless the device has stopped.

        Nothing is said of a plan without a batch or load-backs that went well.
        """
        answer: Letter = []
        try:
            if flight is not None and flight.completion is not None:
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
        letters = [*self._loaded(flight), answer]
        if self.failure is not None:
            # First the requests end: those of a failed load-back alone would come back to a device that has stopped.
            letters.insert(0, letters.pop())
        return [letter for letter in letters if letter]

    def end_store(self, store: CopyInFlight) -> Letter:
        """Wait until a store is over; say what came of it."""
        store.wait()
        _log_failure(store)
        return [WriteBackDone(store.op, success=store.error is None)]

    def _loaded(self, flight: RoundInFlight | None) -> list[Letter]:
        """What became of a round's load-backs. After a fault of the device nothing is said to have gone well."""
        if flight is None:
            return []
        done: Letter = []
        failed: Letter = []
        for load in flight.loads:
            _log_failure(load)
            success = load.error is None and self.failure is None
            (done if success else failed).append(LoadBackDone(load.op, success=success))
        return [done, failed]

    def fail(self, round: int, error: BaseException) -> None:
        """Stop the device. The first reason is the one that is told."""
        log.error("round %d: the device stops", round, exc_info=error)
        if self.failure is None:
            self.failure = f"the device stopped in round {round}: {type(error).__name__}: {error}"


def _results(flight: RoundInFlight) -> list[Event]:
    tokens = flight.tokens()
    if not flight.keys:
        return []
    result = ExtendResult(flight.round, flight.keys, pack(flight.counts), pack(tokens))
    if flight.rows is None or flight.rows.read_logprobs is None:
        return [result]
    told = flight.rows.read_logprobs()
    return [TokenLogprobs(flight.round, told.rows, told.counts, told.tokens, told.values), result]


def _log_failure(copy: CopyInFlight) -> None:
    if copy.error is not None:
        log.warning("%s failed", copy.label, exc_info=copy.error)
