"""The boundary's bytes: what is written is read, what is not a message is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from control_plane import WireError
from control_plane.messages import (
    Abort,
    ExecutionPlan,
    ExtendResult,
    Finish,
    FinishReason,
    ForwardFailed,
    RequestSpec,
    Retract,
    Sampling,
)
from control_plane.messages.columns import pack, view
from control_plane.messages.wire import (
    decode_events,
    decode_plan,
    decode_specs,
    encode_events,
    encode_plan,
    encode_specs,
)
from control_plane.testing.rounds import Rounds

int32s = st.lists(st.integers(-(2**31), 2**31 - 1))


@given(int32s)
def test_columns_are_little_endian_int32(values: list[int]) -> None:
    """A column is read back as a view, whatever it was made of."""
    column = pack(values)
    assert column == b"".join(value.to_bytes(4, "little", signed=True) for value in values)
    assert view(column).tolist() == values
    assert pack(np.array(values, dtype=np.int64)) == column
    assert not view(column).flags.writeable


def test_a_number_that_does_not_fit_is_refused() -> None:
    """H8: nothing wraps around on its way into a column."""
    with pytest.raises(OverflowError):
        pack([2**31])


def test_plans_survive_the_wire() -> None:
    """Every plan of a run decodes to what was encoded, and encodes to the same bytes again."""
    story = Rounds(pool=12, budget_tokens=16)
    story.submit(a=20, b=20)
    story.run_to_end()
    for plan in story.plans:
        payload = encode_plan(plan)
        assert decode_plan(payload) == plan
        assert encode_plan(decode_plan(payload)) == payload


def test_events_and_specs_survive_the_wire() -> None:
    """One of each kind."""
    events = [
        ExtendResult(3, pack([1]), pack([1]), pack([7])),
        ForwardFailed(4, "out of memory"),
        Finish(5, FinishReason.LENGTH),
        Abort(6),
        Retract(7),
    ]
    assert decode_events(encode_events(events)) == events
    specs = [
        RequestSpec("a", pack([1, 2]), 5, "n", (2,), Sampling(temperature=0.5, seed=3)),
        RequestSpec("b", pack([1])),
    ]
    assert decode_specs(encode_specs(specs)) == specs


@pytest.mark.parametrize("decode", [decode_plan, decode_events, decode_specs])
def test_what_is_not_a_message_is_refused(decode: object) -> None:
    """Truncated, empty and foreign bytes raise WireError and nothing else."""
    assert callable(decode)
    for payload in (b"", b"\xff", b"hello", encode_events([Abort(1)])[:-1]):
        with pytest.raises(WireError):
            decode(payload)
    with pytest.raises(WireError):
        view(b"abc")


def test_a_plan_that_is_wanted_twice_is_encoded_once() -> None:
    """The recording and the device are given the same bytes; a plan that only looks the same is encoded for itself."""
    plans = [ExecutionPlan(number, (), (), (), (), (), None, None, None, ()) for number in (1, 2, 1)]
    first, second, again = (encode_plan(plan) for plan in plans)
    assert encode_plan(plans[2]) is again
    assert first == again
    assert first != second
