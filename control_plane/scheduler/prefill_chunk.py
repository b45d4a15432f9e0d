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
    budget_end = min(prefill_tokens, begin + budget_tokens)
    if budget_end <= begin:
        return 0
    end = budget_end
    is_promoting = begin < promotion_boundary < prefill_tokens
    if is_promoting and promotion_boundary <= end:
        end = promotion_boundary
    elif end < prefill_tokens and (rules.ends_on_pages or is_promoting):
        end -= end % rules.prefix_granularity
    if 0 < prefill_tokens - end < rules.final_window_tokens:
        end = prefill_tokens - rules.final_window_tokens
        # A promotion boundary inside the final window yields: no end satisfies both rules.
        if end <= begin and is_promoting and budget_end == prefill_tokens:
            end = budget_end
    return max(0, end - begin)


def state_checkpoint(*, begin: int, end: int, prefix_granularity: int) -> int:
    """The aligned position strictly inside a window whose snapshot is made beside the final one (R3.6); 0: none."""
    checkpoint = end - end % prefix_granularity
    return checkpoint if begin < checkpoint < end else 0


def replay_tokens(*, hit_tokens: int, window_tokens: int) -> int:
    """What a hit feeds again ahead of its first chunk (R3.7)."""
    return min(window_tokens, hit_tokens)


def probe_limit_tokens(*, prefill_tokens: int, prefix_granularity: int) -> int:
    """How much of a prompt may come from the cache: never its last token, whose logits are needed (R4.2)."""
    limit = prefill_tokens - 1
    return limit - limit % prefix_granularity
