"""What came of one request, as its client saw it, and what it should have been."""

from collections.abc import Sequence

from msgspec import Struct

from control_plane import Role
from control_plane.fsm.request import Request
from control_plane.messages import RequestSpec, Sampling
from control_plane.messages.columns import pack
from data_plane.model.stamp_options import STOP_TOKEN, StampOptions
from data_plane.model.stamp_oracle import stamp_continuation
from tools.simulate.program import Submit
from tools.simulate.violation import require


class Story(Struct):
    """A request that was accepted, as the engine knows it that its client reads; `keys` are those on every engine.

    `reason` says why it ended, None that it has not.
    """

    name: str
    prompt: list[int]
    limit_tokens: int
    sampling: Sampling
    request: Request
    keys: dict[Role, int]
    tokens: list[int]
    submitted_round: int
    ended_round: int = 0
    reason: str | None = None

    def check(self, options: StampOptions) -> None:
        """Its tokens are those of a run alone, or the beginning of them if it left or failed (rule 8.4)."""
        alone = stamp_continuation(
            self.prompt,
            self.limit_tokens if self.reason in ("stop", "length") else len(self.tokens),
            options=options,
            sampling=self.sampling,
            stop_token_ids=(STOP_TOKEN,),
        )
        is_same = self.tokens == alone
        require(is_same, "tokens", f"{self.name} ({self.reason}) says {self.tokens}, and alone it says {alone}")


def spec_of(step: Submit, number: int) -> RequestSpec:
    """The request that a step submits, as the n-th of its run."""
    shared = [1 + (step.base * 97 + position * 7) % 250 for position in range(step.shared_tokens)]
    own = [1 + (number * 31 + position * 3) % 250 for position in range(step.own_tokens)]
    return RequestSpec(
        f"r{number}",
        pack([*shared, *own]),
        step.max_new_tokens,
        namespace=step.namespace,
        stop_token_ids=(STOP_TOKEN,),
        sampling=Sampling(temperature=1.0, seed=step.seed) if step.seed else Sampling(),
    )


def rounds_to_end(stories: Sequence[Story]) -> int:
    """In how many rounds all of these must be over, whatever the weather was (rule 8.3)."""
    return 100 + 20 * sum(len(story.prompt) + story.limit_tokens for story in stories)
