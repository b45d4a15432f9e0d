"""When a transfer does not go well: who may use the pages, who is told, and what is told to the client."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from control_plane.messages import RemotePrefillDone, TransferFailed, TransferSucceeded
from control_plane.messages.columns import view
from data_plane.model.stamp import StampOptions
from data_plane.transfer.page_copies import FaultyPageCopies, PageCopies
from data_plane.transfer.rendezvous import Side
from tests.unit.transfer_pair import MIXES, Engine, Request, TransferPair

FULL = MIXES["full"]
PROMPT = list(range(2, 26))  # 6 pages of 4 tokens
OTHER = list(range(40, 64))
ONE_REQUEST = 7  # blocks of 4 tokens: the prompt and 3 more tokens


def extends_of(engine: Engine) -> int:
    """Prefill chunks that an engine planned."""
    return sum(plan.forward.num_extends for plan in engine.plans if plan.forward is not None)


def remote_prompts(engine: Engine) -> list[int]:
    """Keys of the prompts that an engine asked its peer for."""
    works = [plan.remote_prefill for plan in engine.plans if plan.remote_prefill is not None]
    return [key for work in works for key in view(work.keys).tolist()]


def wrap_faulty(made: list[FaultyPageCopies], number: int, inner: PageCopies) -> PageCopies:
    """Copies of which one write fails; `made` gets them."""
    made.append(FaultyPageCopies(inner, fail_writes={number}))
    return made[-1]


@pytest.mark.parametrize("says_so", [True, False])
def test_no_page_of_an_aborted_request_is_reused_while_the_peer_may_write_it(says_so: bool) -> None:
    """F1: abort on D when 3 of 6 pages have arrived, with a pool for one request. The next one waits for the end of
    the transfer, which comes at once if the rendezvous is told, and when all is written if it is not."""
    pair = TransferPair(FULL, decode={"pool": ONE_REQUEST, "prefix_cache": False})
    first = pair.submit(PROMPT, 3)
    pair.until_both_came(first)
    assert pair.copy_pages(3) == 3
    second = pair.submit(OTHER, 3)
    pair.abort(Side.DECODE, first, says_so=False)
    for _ in range(5):
        pair.turn(Side.PREFILL)
        assert not pair.turn(Side.DECODE)
    assert second.keys[Side.DECODE] not in remote_prompts(pair.decode)
    assert pair.decode.scheduler.stats().free_blocks == 0
    if says_so:
        pair.rendezvous.give_up(Side.DECODE, first.keys[Side.DECODE], "the client left")
        pair.receive()
        assert pair.prefill.scheduler.requests.keys() == {second.keys[Side.PREFILL]}
        assert first.messages == {Side.PREFILL: "the client left"}
    else:
        assert pair.copy_pages(10) == 3
    assert pair.turn(Side.DECODE)
    assert second.keys[Side.DECODE] in remote_prompts(pair.decode)
    pair.run()
    assert (first.tokens, len(second.tokens)) == ([], 3)
    pair.check()


class LeavingCopies(FaultyPageCopies):
    """The client leaves while a page is being written."""

    def __init__(self, inner: PageCopies) -> None:
        super().__init__(inner, fail_writes=())
        self.leaves: Callable[[], None] = lambda: None

    def write(self, group: int, block: int, page: Any) -> None:
        """The client leaves when half of the page is there."""
        self.leaves()
        super().write(group, block, page)


@pytest.mark.parametrize("side", Side)
def test_nobody_is_told_while_a_page_is_being_written(side: Side) -> None:
    """F1: the client leaves in the middle of the second page. The page is written, no other is, then both are told."""
    made: list[LeavingCopies] = []
    pair = TransferPair(FULL, wrap=lambda inner: made.append(LeavingCopies(inner)) or made[0])
    request = pair.submit(PROMPT, 3)
    pair.until_both_came(request)
    pair.copy_pages(1)
    told: list[bool] = []

    def leave() -> None:
        pair.abort(side, request)
        told.append(not pair.letters.empty())

    made[0].leaves = leave
    assert pair.copy_pages(6) == 1
    assert told == [False]
    assert made[0].write_count == 2
    for engine in pair.engines.values():
        assert [event.message for event in engine.events if isinstance(event, TransferFailed)] == ["the client left"]
        assert not engine.scheduler.transfers
    pair.run()
    pair.check()


@pytest.mark.parametrize("pages", [0, 2, 5])
def test_pages_that_the_peer_reads_stay_until_it_has_ended(pages: int) -> None:
    """F2: abort on P after the hand-over, without a word to the rendezvous: the pages are kept, the peer gets them all,
    and decodes right."""
    pair = TransferPair(FULL, prefill={"pool": ONE_REQUEST, "prefix_cache": False})
    first = pair.submit(PROMPT, 3)
    pair.until_both_came(first)
    assert pair.copy_pages(pages) == pages
    pair.abort(Side.PREFILL, first, says_so=False)
    pair.submit(OTHER, 3)
    assert not pair.turn(Side.PREFILL)
    assert pair.prefill.scheduler.stats().used_blocks == ONE_REQUEST
    pair.copy_pages(6 - pages)
    assert pair.prefill.scheduler.stats().used_blocks == 0
    pair.run()
    assert first.reasons == {Side.PREFILL: "abort", Side.DECODE: "length"}
    pair.check()


@pytest.mark.parametrize(
    "moment", ["before the hand-over", "before the other side", "waiting", "in the middle", "after"]
)
def test_an_abort_ends_the_request_once_and_gives_its_pages_back_once(moment: str) -> None:
    """F2, F3: the client leaves P at each stage, and leaves again. D hears of it at once, with the reason."""
    pair = TransferPair(FULL, decode={"recompute_failed_transfers": False})
    first = pair.submit(PROMPT, 3)
    match moment:
        case "before the hand-over":
            pair.prefill.plan()
        case "before the other side":
            for _ in range(3):
                pair.turn(Side.PREFILL)
        case "waiting":
            pair.turn(Side.DECODE)
        case "in the middle":
            pair.until_both_came(first)
            pair.copy_pages(3)
        case _:
            pair.until_both_came(first)
            pair.copy_pages(6)
    for _ in range(2):
        pair.abort(Side.PREFILL, first)
    pair.receive()
    is_late = moment == "after"
    assert bool(pair.decode.scheduler.requests) is is_late
    assert first.messages == ({} if is_late else {Side.DECODE: "the client left"})
    assert pair.decode.scheduler.stats().used_blocks == (ONE_REQUEST if is_late else 0)
    pair.run()
    assert first.reasons[Side.DECODE] == ("length" if is_late else "error")
    assert pair.prefill.scheduler.stats().used_blocks == 0
    told = [type(event) for engine in pair.engines.values() for event in engine.events]
    assert told.count(TransferFailed) == (0 if is_late else 2)
    pair.check()


@pytest.mark.parametrize("recomputes", [True, False])
def test_a_page_that_cannot_be_written_fails_the_transfer_on_both_sides(recomputes: bool) -> None:
    """F4: the third write raises. D prefills by itself or gives up, as configured, and never reads the half it has."""
    pair = TransferPair(
        FULL,
        wrap=lambda inner: FaultyPageCopies(inner, fail_writes={3}),
        decode={"recompute_failed_transfers": recomputes},
    )
    first, second = pair.submit(PROMPT, 4), pair.submit(OTHER, 4)
    pair.until_both_came(first)
    assert pair.copy_pages(6, first) == 3
    message = "InjectedFault: page write 3 was told to fail"
    assert first.messages[Side.PREFILL] == message
    assert first.messages.get(Side.DECODE) == (None if recomputes else message)
    pair.run()
    assert first.reasons[Side.DECODE] == ("length" if recomputes else "error")
    assert len(first.tokens) == (4 if recomputes else 0)
    assert extends_of(pair.decode) == (1 if recomputes else 0)
    assert second.reasons[Side.DECODE] == "length"
    pair.check()


@pytest.mark.parametrize("options", MIXES.values(), ids=MIXES)
def test_a_prompt_whose_transfer_failed_anywhere_is_recomputed_right(options: StampOptions) -> None:
    """F4, for every group mix and every page: what had arrived is not taken for what should have."""
    for number in range(1, 10):
        faulty: list[FaultyPageCopies] = []
        pair = TransferPair(options, seed=number, wrap=partial(wrap_faulty, faulty, number))
        request = pair.submit(PROMPT[:21], 5)
        pair.run()
        if faulty[0].write_count < number:
            break
        assert (len(request.tokens), extends_of(pair.decode)) == (5, 1)
        pair.check()
    assert number > 1


def test_a_peer_that_comes_late_is_told_that_it_is_too_late() -> None:
    """F3a: P gives up while D's plan is on its way to the device. D hears of it twice, and only the first counts."""
    pair = TransferPair(FULL)
    request = pair.submit(PROMPT, 3)
    late = pair.decode.scheduler.next_plan()
    pair.abort(Side.PREFILL, request)
    pair.receive()
    pair.decode.device.execute(late)
    pair.decode.forward.land()
    pair.receive()
    assert [event.message for event in pair.decode.events if isinstance(event, TransferFailed)] == [
        "the client left",
        "its peer has given it up",
    ]
    pair.run()
    assert request.reasons == {Side.PREFILL: "abort", Side.DECODE: "length"}
    pair.check()


def test_events_of_an_earlier_attempt_change_nothing() -> None:
    """F5: after a failed transfer the request goes on as another attempt; what is said of the first is late."""
    pair = TransferPair(FULL, wrap=lambda inner: FaultyPageCopies(inner, fail_writes={1}))
    request = pair.submit(PROMPT, 3)
    pair.until_both_came(request)
    pair.copy_pages(1)
    key = request.keys[Side.DECODE]
    pair.turn(Side.DECODE)
    said = list(request.tokens)
    pair.advance(Side.DECODE, [RemotePrefillDone(key, 0, b"\x05\0\0\0"), TransferFailed(key, 0, "late")])
    pair.advance(Side.PREFILL, [TransferSucceeded(request.keys[Side.PREFILL], 0)])
    assert request.tokens == said
    pair.run()
    assert len(request.tokens) == 3
    pair.check()


def test_a_stopped_device_ends_every_transfer() -> None:
    """F3: whoever sees an engine die closes the rendezvous; nobody waits for a peer that is gone."""
    pair = TransferPair(FULL, decode={"recompute_failed_transfers": False})
    requests: list[Request] = [pair.submit(prompt, 3) for prompt in (PROMPT, OTHER, [1, 2])]
    pair.until_both_came(requests[0])
    pair.copy_pages(2)
    pair.rendezvous.close("the other engine died")
    pair.receive()
    for engine in pair.engines.values():
        assert not engine.scheduler.requests
        assert engine.scheduler.stats().transfers_out == 0
    assert all(request.messages == dict.fromkeys(Side, "the other engine died") for request in requests)
    pair.run()
    pair.check()
