"""How much of a prompt to compute now: token arithmetic, nothing else."""

from msgspec import Struct


class ChunkRules(Struct, frozen=True):
    """What of the configuration decides where chunks may end.

    `ends_on_pages`: a chunk that does not complete the prompt ends on a prefix page, because a snapshot that others
    could use exists only there. `final_window_tokens`: no prompt's last chunk is shorter (0: no such rule).
    """

    prefix_granularity: int
    ends_on_pages: bool
    final_window_tokens: int


def prefill_chunk_tokens(
    rules: ChunkRules, *, begin: int, prefill_tokens: int, budget_tokens: int, promotion_boundary: int
) -> int:
    """The tokens from `begin` that this round computes; 0: none, the request waits for a fresher budget.

    All that is left, or as many as the budget allows; cut at the promotion boundary (R4.5) if that comes first, and
    to a page's end where that matters (R3.3, R3.6), and so that the final window stays whole (R3.7). With full and
    sliding groups only, the budget is used to its last token.
    """
    assert begin < prefill_tokens, f"nothing left to compute at {begin} of {prefill_tokens}"
    end = min(prefill_tokens, begin + budget_tokens)
    if end <= begin:
        return 0
    if promotes_inside(rules, begin=begin, prefill_tokens=prefill_tokens, promotion_boundary=promotion_boundary):
        if promotion_boundary <= end:
            return promotion_boundary - begin
        return max(0, end - end % rules.prefix_granularity - begin)
    if end == prefill_tokens:
        return end - begin
    if rules.ends_on_pages:
        return max(0, end - end % rules.prefix_granularity - begin)
    return max(0, min(end, prefill_tokens - rules.final_window_tokens) - begin)


def promotes_inside(rules: ChunkRules, *, begin: int, prefill_tokens: int, promotion_boundary: int) -> bool:
    """Whether a promotion boundary is still ahead. One inside the final window yields to it: both rules cannot hold."""
    if not begin < promotion_boundary < prefill_tokens:
        return False
    return prefill_tokens - promotion_boundary >= rules.final_window_tokens


def state_checkpoint(*, begin: int, end: int, prefix_granularity: int) -> int:
    """The aligned position strictly inside a window whose snapshot is made beside the final one (R3.6); 0: none."""
    checkpoint = end - end % prefix_granularity
    return checkpoint if begin < checkpoint < end else 0


def replay_tokens(*, hit_tokens: int, window_tokens: int) -> int:
    """What a hit feeds again ahead of its first chunk (R3.7)."""
    return min(window_tokens, hit_tokens)


def probe_limit_tokens(*, prefill_tokens: int, prefix_granularity: int, replay_window_tokens: int) -> int:
    """How much of a prompt may come from the cache: never its last token, whose logits are needed (R4.2)."""
    limit = max(0, prefill_tokens - max(replay_window_tokens, 1))
    return limit - limit % prefix_granularity
