"""How a request comes back after a retraction, and what keeps it from being retracted for ever."""


def admission_headroom_tokens(
    *, remaining_new_tokens: int, is_declared: bool, safe_steps: int, retraction_count: int
) -> int:
    """The output that an admission prepays (R7.3).

    Every retraction says that the admission before was too optimistic, so it raises what the next one must secure.
    A request that declared no output length prepays nothing at first: chat traffic keeps its concurrency.
    """
    windows = retraction_count + 1 if is_declared else retraction_count
    return min(remaining_new_tokens, safe_steps * windows)
