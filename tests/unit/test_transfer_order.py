"""Every wait of a transfer is needed: without any one of them pages are not what, or when, they should be."""

import pytest
from msgspec.structs import replace

from control_plane.messages import TransferFailed
from data_plane.model.stamp_oracle import stamp_continuation
from data_plane.ops.remote import DeviceParts
from data_plane.streams.base import Stream, StreamEvent, Streams
from data_plane.transfer.rendezvous import Side
from tests.unit.transfer_pair import MIXES, TransferPair

MIX = MIXES["full+sliding"]
SEEDS = range(12)
PROMPTS = [list(range(at, at + 17)) for at in (1, 40, 80, 120, 160)]
WAITS = {
    # the side and stream whose marks are not waited for, and the steps that are without an order then, if they are
    (Side.PREFILL, "forward"): None,
    (Side.DECODE, "forward"): None,
    (Side.PREFILL, "write"): ("reading page", "zero"),
    (Side.DECODE, "load"): ("writing page", "forward"),
}


class _Unwaited:
    """A mark that nobody waits for."""

    def __init__(self, inner: StreamEvent) -> None:
        self.inner = inner

    def wait_host(self) -> None:
        pass


class _Hasty:
    """A stream of which one does not wait for what was enqueued."""

    def __init__(self, inner: Stream) -> None:
        self.enqueue = inner.enqueue
        self._inner = inner

    def record(self) -> _Unwaited:
        return _Unwaited(self._inner.record())


class _HastyStreams:
    def __init__(self, inner: Streams, name: str) -> None:
        self.forward, self.write, self.load = inner.forward, inner.write, inner.load
        setattr(self, name, _Hasty(getattr(inner, name)))


def carried_out(seed: int, damaged: tuple[Side, str] | None) -> tuple[list[str], list[tuple[str, str]]]:
    """What went wrong, and between which steps the order checkers found no order."""

    def alter(side: Side, parts: DeviceParts) -> DeviceParts:
        if damaged is None or side is not damaged[0]:
            return parts
        return replace(parts, streams=_HastyStreams(parts.streams, damaged[1]))

    pools = {"pool": 14, "prefix_cache": False}
    decode = {**pools, "recompute_failed_transfers": False}
    pair = TransferPair(MIX, seed=seed, alter=alter, prefill=pools, decode=decode)
    for prompt in PROMPTS:
        pair.submit(prompt, 3)
    pair.run()
    wrong = [str(event) for event in pair.decode.events if isinstance(event, TransferFailed)]
    wrong += [
        f"{request.tokens} after {request.prompt}"
        for request in pair.requests
        if request.tokens != stamp_continuation(request.prompt, 3, options=MIX)
    ]
    found = [each for engine in pair.engines.values() for each in engine.device.violations]
    return wrong, [(each.earlier, each.later) for each in found]


@pytest.mark.parametrize("seed", SEEDS)
def test_nothing_of_a_transfer_is_left_to_the_streams(seed: int) -> None:
    """As late and as badly ordered as the streams of both devices may be."""
    assert carried_out(seed, None) == ([], [])


@pytest.mark.parametrize("damaged", WAITS, ids=str)
def test_every_wait_that_is_left_out_does_harm(damaged: tuple[Side, str]) -> None:
    """In some order of the streams pages are copied that are unknown, not read yet, or not written yet."""
    assert any(carried_out(seed, damaged)[0] for seed in SEEDS)


@pytest.mark.parametrize("damaged", [each for each, steps in WAITS.items() if steps], ids=str)
def test_every_wait_for_a_page_that_is_left_out_is_reported(damaged: tuple[Side, str]) -> None:
    """Whatever order the streams happen to choose, the report names both steps."""
    earlier, later = WAITS[damaged] or ("", "")
    for seed in SEEDS:
        _, found = carried_out(seed, damaged)
        assert any(first.startswith(earlier) and second.startswith(later) for first, second in found)
