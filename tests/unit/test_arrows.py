"""The machine: what is drawn is what runs, and what is absent is refused."""

import typing
from pathlib import Path

import numpy as np
import pytest

from control_plane import InvalidTransition
from control_plane.cache.coordinator.demand import CacheProgress
from control_plane.cache.prefix.hash_chain import NoHashChain
from control_plane.fsm.arrows import ARROWS
from control_plane.fsm.events import (
    FillFailed,
    Move,
    RetractForCapacity,
    ScheduleChunk,
    ScheduleDecode,
    ScheduleFirstChunk,
    ScheduleRemotePrefill,
)
from control_plane.fsm.request import Request
from control_plane.fsm.resources import ForwardResources
from control_plane.fsm.states import (
    Bootstrapping,
    Decoding,
    Finished,
    PrefillDone,
    Prefilling,
    RemotePrefilling,
    Retracted,
    State,
    Submitted,
)
from control_plane.fsm.tokens import Window
from control_plane.messages import (
    Abort,
    Bootstrapped,
    Finish,
    FinishReason,
    RemotePrefillDone,
    RequestSpec,
    TransferFailed,
    TransferSucceeded,
)
from control_plane.messages.columns import pack
from tools.fsm import draw


class _NoForwards:
    def results_in_flight(self, slot: int) -> int:
        return 0


RESOURCES = ForwardResources(slot=0, progress=CacheProgress(), forwards_out=_NoForwards())
STATES: list[State] = [
    Bootstrapping(),
    Submitted(),
    RemotePrefilling(RESOURCES, Window(0, 8), 1),
    Prefilling(RESOURCES, Window(0, 4), 0),
    PrefillDone(RESOURCES, Window(4, 8), 1),
    Decoding(RESOURCES),
    Retracted(1, resumes_generation=False, is_recoverable=True),
    Finished(FinishReason.STOP),
]
EVENTS: list[Move] = [
    Bootstrapped(1),
    ScheduleRemotePrefill(RESOURCES, Window(0, 8), 1),
    RemotePrefillDone(1, 0, pack([7])),
    TransferSucceeded(1, 0),
    TransferFailed(1, 0, "gone"),
    ScheduleFirstChunk(RESOURCES, Window(0, 4), 8, 0),
    ScheduleChunk(4, 8, 0),
    ScheduleDecode(),
    RetractForCapacity(1, resumes_generation=False, is_recoverable=True),
    FillFailed(2, resumes_generation=False, is_recoverable=False),
    Finish(1),
    Abort(1),
]


def _request(state: State, released: list[ForwardResources]) -> Request:
    request = Request(
        1,
        RequestSpec("a", pack(range(8))),
        chain=NoHashChain(),
        limit_tokens=16,
        release=lambda _request, resources: released.append(resources),
    )
    request.state = state
    return request


def test_the_examples_cover_every_state_and_event() -> None:
    """A new state or event must appear here, or the next test would not try it."""
    assert {type(state) for state in STATES} == set(typing.get_args(State))
    assert {event for _, event in ARROWS} == {type(event) for event in EVENTS}


@pytest.mark.parametrize("state", STATES, ids=lambda state: type(state).__name__)
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_a_pair_moves_or_is_refused_and_changes_nothing(state: State, event: Move) -> None:
    """R2.3: every absent pair raises, names both and changes nothing; every arrow leads where it says."""
    released: list[ForwardResources] = []
    request = _request(state, released)
    arrow = ARROWS.get((type(state), type(event)))
    if arrow is None:
        with pytest.raises(InvalidTransition, match=f"{type(state).__name__} has no arrow for {type(event).__name__}"):
            request.apply(event)
        assert request.state is state
        assert not released
        return
    request.apply(event)
    assert type(request.state) in arrow.successors
    # R2.1: the bundle moved on as it is, or was given back, once.
    held_before, held_after = getattr(state, "resources", None), getattr(request.state, "resources", None)
    assert released == ([RESOURCES] if held_before is not None and held_after is None else [])


def test_abort_is_legal_wherever_a_request_can_be() -> None:
    """R2.4: every state but the last has an arrow for it."""
    for state in typing.get_args(State):
        assert ((state, Abort) in ARROWS) == (state is not Finished)


def test_a_rebase_keeps_the_prompt() -> None:
    """A retraction makes what was generated part of the prefill, and counts."""
    request = _request(Submitted(), [])
    request.rebase(np.arange(11, dtype=np.int32))
    assert (request.prefill_tokens, request.prompt_tokens, request.retraction_count) == (11, 8, 1)


def test_the_committed_drawing_is_the_machine() -> None:
    """`python -m tools.fsm docs/states.md` was run after the last change."""
    drawing = Path(__file__).parents[2] / "docs" / "states.md"
    assert draw() in drawing.read_text()
