"""A spec, its tokens and its current state."""

from collections.abc import Callable

import numpy as np

from control_plane.cache.prefix.hash_chain import HashChain, NoHashChain
from control_plane.errors import InvalidTransition
from control_plane.fsm.arrows import ARROWS
from control_plane.fsm.events import Move
from control_plane.fsm.resources import ForwardResources
from control_plane.fsm.states import Bootstrapping, Finished, State, Submitted, resources_of
from control_plane.messages import RequestSpec
from control_plane.messages.columns import Int32s, view


class Request:
    """One submission under its internal key. Everything but counters that a slot's columns hold.

    `tokens` is what must be prefilled at the next first admission: the prompt, and after a retraction also what was
    generated (the retraction rebases). While the request holds a slot, newer tokens are in the slot's buffer.
    """

    def __init__(
        self,
        key: int,
        spec: RequestSpec,
        *,
        chain: HashChain | NoHashChain,
        limit_tokens: int,
        awaits_peer: bool = False,
        release: Callable[["Request", ForwardResources], None],
    ) -> None:
        self.key = key
        self.spec = spec
        self.state: State = Bootstrapping() if awaits_peer else Submitted()
        self.tokens: Int32s = view(spec.tokens)
        self.chain = chain
        self.limit_tokens = limit_tokens
        self.retraction_count = 0
        self.is_generation_covered = False  # whether its admission secured all that it may still generate (R7.4)
        self.starts_afresh = False  # whether its next admission, if it is alone, drops the device's cache first
        self._release = release

    @property
    def prompt_tokens(self) -> int:
        """Length of the prompt as submitted."""
        return self.spec.prompt_tokens

    @property
    def prefill_tokens(self) -> int:
        """Tokens that the next or current prefill must compute or find in the cache."""
        return len(self.tokens)

    @property
    def resources(self) -> ForwardResources:
        """The bundle; the request is known to hold one."""
        held = resources_of(self.state)
        assert held is not None, f"request {self.key} holds nothing in {type(self.state).__name__}"
        return held

    @property
    def is_over(self) -> bool:
        """Whether the last state is reached."""
        return isinstance(self.state, Finished)

    def rebase(self, tokens: Int32s) -> None:
        """A retraction: what was generated belongs to the prefill from now on."""
        assert len(tokens) >= self.prompt_tokens, "a rebase lost prompt tokens"
        self.tokens = np.array(tokens)
        self.chain.extend(self.tokens, len(self.tokens))
        self.retraction_count += 1

    def apply(self, event: Move) -> None:
        """Move, or raise InvalidTransition and change nothing. A bundle that the successor drops is given back."""
        arrow = ARROWS.get((type(self.state), type(event)))
        if arrow is None:
            raise InvalidTransition(self.state, event)
        held = resources_of(self.state)
        successor = arrow.move(self.state, event)
        assert type(successor) in arrow.successors, f"{event!r} led to {successor!r}"
        self.state = successor
        if held is not None and resources_of(successor) is not held:
            self._release(self, held)
