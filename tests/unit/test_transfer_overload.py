"""A decoding engine whose pool is too small for what its peer sends, and whose copies fail."""

from functools import partial
from random import Random

import pytest

from data_plane.model.stamp import StampOptions
from data_plane.ops.faulty_copies import FaultyCopies
from data_plane.transfer.page_copies import FaultyPageCopies
from data_plane.transfer.rendezvous import Side
from tests.unit.transfer_pair import MIXES, TransferPair

PROMPTS = [list(range(at + 2, at + 2 + length)) for at, length in enumerate((9, 12, 14, 7, 16, 20))]


@pytest.mark.parametrize("options", MIXES.values(), ids=MIXES)
@pytest.mark.parametrize("host", [0, 30])
def test_landed_requests_that_are_retracted_go_on_where_they_were(options: StampOptions, host: int) -> None:
    """Undeclared outputs outgrow the pool: what a peer prefilled is thrown out, comes back, and says the same."""
    retractions = 0
    for seed in range(5):
        pair = TransferPair(options, seed=seed, decode={"pool": 22, "host": host, "safe_steps": 1})
        for prompt in PROMPTS:
            pair.submit(prompt, 24)
        pair.run()
        stats = pair.decode.scheduler.stats()
        retractions += stats.retractions
        assert all(request.reasons[Side.DECODE] in ("length", "stop") for request in pair.requests)
        pair.check()
    assert retractions


@pytest.mark.parametrize("options", MIXES.values(), ids=MIXES)
def test_failing_pages_and_copies_cost_time_and_no_token(options: StampOptions) -> None:
    """Page writes, stores and load-backs fail now and then: whoever misses something prefills it again."""
    for seed in range(4):
        decode = {
            "pool": 22,
            "host": 30,
            "safe_steps": 1,
            "copies": partial(FaultyCopies, fail_ops=set(range(1, 200, 3 + seed % 2))),
        }
        fail_writes = set(range(3 + seed, 400, 11))
        pair = TransferPair(
            options,
            seed=seed,
            wrap=lambda inner, fail_writes=fail_writes: FaultyPageCopies(inner, fail_writes=fail_writes),
            decode=decode,
        )
        for again in range(2):
            for prompt in PROMPTS:
                pair.submit([*prompt, *range(again)], 20)
            pair.run()
        assert all(request.reasons[Side.DECODE] in ("length", "stop") for request in pair.requests)
        pair.check()


def test_neither_engine_lets_prompts_overtake() -> None:
    """The second prompt lacks room on one side, and the third lacks it on the other.

    If the third passed the second where it can, each side would keep for ever what the other waits for.
    """
    pair = TransferPair(
        MIXES["full"],
        prefill={"pool": 10, "prefix_cache": False, "max_scheduled_tokens": 60},
        decode={"pool": 15, "prefix_cache": False},
    )
    for prompt, new_tokens in ((range(1, 13), 1), (range(30, 54), 20), (range(60, 72), 8)):
        pair.submit(prompt, new_tokens)
    pair.run()
    assert [len(request.tokens) for request in pair.requests] == [1, 20, 8]
    pair.check()


@pytest.mark.parametrize("options", MIXES.values(), ids=MIXES)
def test_clients_that_leave_at_any_moment_leave_nothing_behind(options: StampOptions) -> None:
    """On either side, of any request, in pools for three or so; who stays is served right."""
    for seed in range(6):
        chance = Random(seed)
        pools = {"pool": 20, "overlap_depth": seed % 2}
        pair = TransferPair(options, seed=seed, prefill=pools, decode={**pools, "safe_steps": 4})
        for prompt in [*PROMPTS, *PROMPTS]:
            pair.submit([*prompt, len(pair.requests) + 100], chance.randint(1, 20))
            pair.move(chance.randint(0, 25))
            if chance.random() < 0.4:
                pair.abort(chance.choice(list(Side)), chance.choice(pair.requests))
        pair.run()
        assert all(Side.DECODE in request.reasons for request in pair.requests)
        pair.check()
