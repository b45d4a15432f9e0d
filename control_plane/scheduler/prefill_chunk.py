"""How much of a prompt to compute now: token arithmetic, nothing else."""


def prefill_chunk_tokens(*, begin: int, prefill_tokens: int, budget_tokens: int) -> int:
    """The tokens from `begin` that this round computes: all that is left, or as many as the budget allows.

    With full-history groups only, the budget is used to its last token: the next chunk completes the prefix page,
    and its publication waits for it (R3.3).
    """
    assert begin < prefill_tokens, f"nothing left to compute at {begin} of {prefill_tokens}"
    return max(0, min(prefill_tokens - begin, budget_tokens))


def probe_limit_tokens(*, prefill_tokens: int, prefix_granularity: int) -> int:
    """How much of a prompt may come from the cache: never its last token, whose logits are needed (R4.2)."""
    limit = prefill_tokens - 1
    return limit - limit % prefix_granularity
