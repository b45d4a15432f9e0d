"""What a run came to, in words."""

from tools.simulate.run import Outcome


def summary_line(outcome: Outcome) -> str:
    """A seed in one line."""
    figures = outcome.figures
    ends = ", ".join(f"{count} {reason}" for reason, count in figures.ends.items())
    if figures.refused:
        ends += f", {figures.refused} refused"
    verdict = "ok" if outcome.failure is None else f"FAILED ({outcome.failure.kind})"
    return (
        f"seed {outcome.program.seed}: {verdict}: {figures.rounds} rounds; {ends}; "
        f"{figures.retractions} retractions, at most {figures.most_retractions} of one; "
        f"{figures.stored_blocks} blocks stored, {figures.loaded_blocks} loaded, {figures.cached_tokens} tokens hit; "
        f"{figures.generated_tokens} generated, at most {figures.most_rounds} rounds for one"
    )


def failure_report(outcome: Outcome, shrunk: Outcome) -> str:
    """Everything about a failure: what, where, the rounds before; then the short program, its rounds and its test."""
    failure, short = outcome.failure, shrunk.failure
    assert failure is not None, "nothing failed"
    assert short is not None, "a program does not fail any more once it is short"
    return "\n".join(
        (
            f"seed {outcome.program.seed}, round {failure.round}: {failure.kind}: {failure.message}",
            f"{outcome.program.setting}",
            *(f"    {line}" for line in failure.told),
            "",
            f"shrunk from {len(outcome.program.steps)} steps to {len(shrunk.program.steps)}:",
            f"round {short.round}: {short.kind}: {short.message}",
            *(f"    {line}" for line in short.told),
            "",
            shrunk.program.as_test(f"Found by the simulation: {short.kind}."),
        )
    )
