"""Simulated streams keep what every stream promises and nothing else; a round lands when it is told to."""

import pytest

from control_plane.errors import DeviceFailed
from control_plane.messages.columns import view
from control_plane.messages.wire import decode_events
from data_plane.builder import build_device
from data_plane.forward_thread import Deliver, ForwardStepped
from data_plane.options import DeviceOptions
from data_plane.rounds import Rounds
from data_plane.streams.sim_streams import SimEvent, SimStreams
from data_plane.testing.plans import PlanWriter


def order_of(seed: int) -> str:
    """Five pieces on each of three streams, in the order in which closing does them."""
    streams, done = SimStreams(seed), []
    for index in range(5):
        for stream in (streams.forward, streams.write, streams.load):
            stream.enqueue(lambda name=f"{stream.name[0]}{index}": done.append(name), "note")
    streams.close()
    return " ".join(done)


def test_the_order_is_the_seeds_and_each_streams_own_order_is_kept() -> None:
    """Twice the same for a seed; different seeds differ; within a stream nothing overtakes."""
    orders = {seed: order_of(seed) for seed in range(20)}
    assert all(order_of(seed) == order for seed, order in orders.items())
    assert len(set(orders.values())) > 5
    for order in orders.values():
        for name in "fwl":
            assert [piece for piece in order.split() if piece[0] == name] == [f"{name}{index}" for index in range(5)]


def test_a_stream_that_nobody_waits_for_comes_first_with_one_seed_and_last_with_another() -> None:
    """That is what finds a forgotten wait."""
    firsts = {order_of(seed)[0] for seed in range(20)}
    lasts = {order_of(seed).split()[-1] for seed in range(20)}
    assert firsts == {"f", "w", "l"}
    assert lasts == {"f4", "w4", "l4"}


@pytest.mark.parametrize("seed", range(5))
def test_nothing_runs_before_it_must_nor_after(seed: int) -> None:
    """Enqueued is not done; waiting for a mark does not do what comes behind the mark."""
    streams, done = SimStreams(seed), []
    streams.forward.enqueue(lambda: done.append("before"), "before")
    event = streams.forward.record()
    streams.forward.enqueue(lambda: done.append("after"), "after")
    assert done == []
    event.wait_host()
    assert done == ["before"]
    streams.close()
    assert done == ["before", "after"]


@pytest.mark.parametrize("seed", range(5))
def test_asking_again_and_again_gets_an_answer(seed: int) -> None:
    """A poll waits for nothing, and the device goes on between polls."""
    streams = SimStreams(seed)
    streams.write.enqueue(lambda: None, "copy")
    event = streams.write.record()
    assert [event.query() for _ in range(2)] == [False, True]


@pytest.mark.parametrize("seed", range(6))
def test_a_piece_that_waits_inside_does_not_let_its_own_stream_go_on(seed: int) -> None:
    """Work of another stream may run meanwhile; work behind it may not."""
    streams, done = SimStreams(seed), []
    streams.write.enqueue(lambda: done.append("written"), "write")
    written = streams.write.record()

    def outer() -> None:
        written.wait_host()
        done.append("outer")

    streams.forward.enqueue(outer, "outer")
    streams.forward.enqueue(lambda: done.append("inner"), "inner")
    streams.forward.record().wait_host()
    assert done == ["written", "outer", "inner"]


def test_a_mark_that_can_never_pass_is_an_error_and_not_a_hang() -> None:
    """A stream waits for a mark that no stream will reach."""
    streams = SimStreams()
    streams.forward.wait(SimEvent(streams._schedule, "other"))
    with pytest.raises(DeviceFailed, match="a mark on the forward stream cannot pass"):
        streams.forward.record().wait_host()


@pytest.mark.parametrize("inline", [True, False])
def test_a_round_lands_when_it_is_told_to(inline: bool) -> None:
    """Two rounds are out, then one, then none; closing lands what is left. Whoever asks for inline gets it at once."""
    stepped: list[ForwardStepped] = []

    def forward(rounds: Rounds, deliver: Deliver) -> ForwardStepped:
        stepped.append(ForwardStepped(rounds, deliver))
        return stepped[0]

    options = DeviceOptions(model="stamp", max_batch_size=2, device_blocks=8, max_context_tokens=64)
    specs, device = build_device(options, inline=inline, streams=SimStreams, forward=None if inline else forward)
    counts: list[int] = []
    device.start(lambda answer: counts.append(len(view(decode_events(answer)[0].tokens))))  # type: ignore[union-attr]
    writer = PlanWriter(specs.groups, device_blocks=8, slots=2)
    writer.add(1, [5, 6, 7])
    plans = [writer.plan({1: 3}), writer.plan(decodes=[1]), writer.plan(decodes=[1])]
    for plan in plans:
        device.execute(plan)
    assert device.stats().rounds_in_flight == (0 if inline else 3)
    if not inline:
        assert stepped[0].land()
        assert (counts, device.stats().rounds_in_flight) == ([1], 2)
    device.close()
    assert (counts, device.stats().rounds_in_flight) == ([1, 1, 1], 0)
    assert not any(forward.land() for forward in stepped)
    with pytest.raises(DeviceFailed, match="after the device was closed"):
        device.execute(plans[0])
