"""What a prompt's pages say on the device that decodes is what they said on the device that prefilled it."""

import pytest

from data_plane.model.stamp import StampOptions
from tests.unit.transfer_pair import MIXES, TransferPair

PROMPTS = [list(range(3, 3 + length)) for length in (1, 4, 5, 8, 13, 24)]


@pytest.mark.parametrize("options", MIXES.values(), ids=MIXES)
@pytest.mark.parametrize("seed", range(6))
def test_what_is_decoded_continues_what_was_prefilled_elsewhere(options: StampOptions, seed: int) -> None:
    """Prompts of many lengths, some with a cached prefix on either side, in any order of rounds and pages."""
    pair = TransferPair(options, seed=seed)
    for prompt in PROMPTS:
        pair.submit(prompt, 6)
    pair.run()
    for prompt in PROMPTS:
        pair.submit([*prompt, 99], 5)
    pair.run()
    assert pair.decode.scheduler.stats().cached_tokens > 0
    assert pair.prefill.scheduler.stats().cached_tokens > 0
    assert all(plan.forward is None or not plan.forward.num_extends for plan in pair.decode.plans)
    assert all(len(request.tokens) == request.limit_tokens for request in pair.requests)
    pair.check()
