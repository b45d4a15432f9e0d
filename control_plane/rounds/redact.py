"""Redaction: what a recording says of its clients' text is taken out, what the scheduler looks at stays.

Token ids go through a keyed permutation of the 31-bit integers: equal tokens stay equal, so prefixes are shared as they
were and every plan comes out the same. Names and namespaces are replaced by keyed hashes, error messages and seeds are
removed. How often each token occurs, lengths and times remain: a substitution hides words, not their statistics.
"""

from hashlib import blake2b, shake_256

import msgspec
import numpy as np

from control_plane.messages import (
    Event,
    ExecutionPlan,
    ExtendResult,
    ForwardFailed,
    RemotePrefillDone,
    RequestSpec,
    Sampling,
    TransferFailed,
)
from control_plane.messages.columns import Int32s, pack, view

REMOVED = "removed"
ROUNDS = 4
LOW_BITS, HIGH_BITS = 16, 15
NAME_BYTES = 6


class Redactor:
    """Maps what goes into a recording. The same key maps the same way, so that recordings can be compared."""

    def __init__(self, key: bytes) -> None:
        assert len(key) >= 16, f"a key of {len(key)} bytes can be guessed"
        self._key = key
        self._tables = [
            (
                _table(key, f"high {turn}", entries=1 << LOW_BITS, bits=HIGH_BITS),
                _table(key, f"low {turn}", entries=1 << HIGH_BITS, bits=LOW_BITS),
            )
            for turn in range(ROUNDS)
        ]

    def tokens(self, column: bytes) -> bytes:
        """A column of token ids, mapped. Negative entries are no tokens and stay."""
        ids = view(column)
        return pack(np.where(ids < 0, ids, self._permuted(np.maximum(ids, 0)))) if len(ids) else column

    def name(self, text: str) -> str:
        """A name, hashed; none stays none."""
        return blake2b(text.encode(), key=self._key[:64], digest_size=NAME_BYTES).hexdigest() if text else ""

    def spec(self, spec: RequestSpec) -> RequestSpec:
        """A submission without its text and names."""
        return msgspec.structs.replace(
            spec,
            id=self.name(spec.id),
            tokens=self.tokens(spec.tokens),
            namespace=self.name(spec.namespace),
            stop_token_ids=tuple(view(self.tokens(pack(spec.stop_token_ids))).tolist()),
            sampling=self._sampling(spec.sampling),
        )

    def event(self, event: Event) -> Event:
        """An event without its tokens and messages."""
        match event:
            case ExtendResult() | RemotePrefillDone():
                return msgspec.structs.replace(event, tokens=self.tokens(event.tokens))
            case ForwardFailed() | TransferFailed():
                return msgspec.structs.replace(event, message=REMOVED)
            case _:
                return event

    def plan(self, plan: ExecutionPlan) -> ExecutionPlan:
        """A plan without its tokens."""
        forward, remote = plan.forward, plan.remote_decode
        return msgspec.structs.replace(
            plan,
            bindings=tuple(
                msgspec.structs.replace(
                    binding,
                    history=self.tokens(binding.history),
                    sampling=self._sampling(binding.sampling),
                    last_token=int(view(self.tokens(pack([binding.last_token])))[0]),
                )
                for binding in plan.bindings
            ),
            forward=forward and msgspec.structs.replace(forward, input_ids=self.tokens(forward.input_ids)),
            remote_decode=remote and msgspec.structs.replace(remote, tokens=self.tokens(remote.tokens)),
        )

    def _sampling(self, sampling: Sampling) -> Sampling:
        return msgspec.structs.replace(sampling, seed=0)

    def _permuted(self, ids: Int32s) -> Int32s:
        """A Feistel network over two unequal halves, whose round functions are tables drawn from the key."""
        low, high = ids & ((1 << LOW_BITS) - 1), ids >> LOW_BITS
        for of_low, of_high in self._tables:
            high = high ^ of_low[low]
            low = low ^ of_high[high]
        return (high << LOW_BITS) | low


def _table(key: bytes, purpose: str, *, entries: int, bits: int) -> Int32s:
    drawn = shake_256(len(key).to_bytes(4, "big") + key + purpose.encode()).digest(2 * entries)
    return np.frombuffer(drawn, dtype="<u2").astype(np.int32) & ((1 << bits) - 1)
