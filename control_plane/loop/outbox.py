"""What goes back to callers: one stream a request."""

import asyncio
from collections.abc import Sequence

from msgspec import Struct

from control_plane.loop.commit import Committed
from control_plane.messages import ExecutionPlan, FinishReason, NoteKind, RequestSpec, TokenLogprob
from control_plane.scheduler.feedback import Ended


class Output(Struct, frozen=True):
    """What arrived for one request since it was last asked.

    `reason` is set exactly once, on the last output; `message` says what went wrong when that is an error. When a stop
    token ended the request it is the last of `tokens`. `logprobs` has an entry for each of them if that was asked for.
    """

    tokens: tuple[int, ...]
    reason: FinishReason | None
    message: str = ""
    logprobs: tuple[TokenLogprob, ...] = ()


class OutputStream:
    """The tokens of one request, merged while nobody reads: a slow reader costs a few bytes a token and no round.

    Belongs to the loop's thread. `key` is 0 until the request was submitted; `cached_tokens` is how much of the prompt
    the prefix cache gave at its first admission.
    """

    def __init__(self, spec: RequestSpec) -> None:
        self.spec = spec
        self.key = 0
        self.cached_tokens = 0
        self.is_admitted = False
        self._tokens: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._reason: FinishReason | None = None
        self._message = ""
        self._ready = asyncio.Event()

    @property
    def is_ended(self) -> bool:
        """Whether the last output is known, read or not."""
        return self._reason is not None

    def take(self) -> Output | None:
        """What arrived, or None. Never waits."""
        if not self._ready.is_set():
            return None
        self._ready.clear()
        output = Output(tuple(self._tokens), self._reason, self._message, tuple(self._logprobs))
        self._tokens.clear()
        self._logprobs.clear()
        return output

    async def next(self) -> Output:
        """The next output; waits for it. Nothing comes after one with a reason."""
        while (output := self.take()) is None:
            await self._ready.wait()
        return output

    def put(self, tokens: Sequence[int], logprobs: Sequence[TokenLogprob] = ()) -> None:
        """More tokens; after the end they are dropped."""
        if not self.is_ended and tokens:
            self._tokens += tokens
            self._logprobs += logprobs
            self._ready.set()

    def end(self, reason: FinishReason, message: str = "") -> None:
        """The first end counts."""
        if not self.is_ended:
            self._reason = reason
            self._message = message
            self._ready.set()


class Outbox:
    """Open streams by key."""

    def __init__(self) -> None:
        self._streams: dict[int, OutputStream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def open(self, keys: Sequence[int], streams: Sequence[OutputStream]) -> None:
        """Requests were submitted under these keys."""
        for key, stream in zip(keys, streams, strict=True):
            stream.key = key
            self._streams[key] = stream

    def publish(self, outputs: Sequence[Committed], ended: Sequence[Ended]) -> None:
        """Hand tokens and ends to their streams. A stream that is gone was aborted."""
        for output in outputs:
            stream = self._streams.get(output.key)
            if stream is None:
                continue
            stream.put(output.tokens, output.logprobs)
            if output.reason is not None:
                self._end(stream, output.reason, "")
        for end in ended:
            stream = self._streams.get(end.key)
            if stream is not None:
                self._end(stream, end.reason, end.message)

    def note(self, plan: ExecutionPlan) -> None:
        """What a plan says that callers want to know: prompt tokens from the cache, at the first admission only.

        A request that was thrown out may find its own pages later; its client's prompt is counted once (J1).
        """
        if not plan.bindings:
            return
        hits = {note.key: note.numbers[0] for note in plan.notes if note.kind is NoteKind.HIT}
        for binding in plan.bindings:
            stream = self._streams.get(binding.key)
            if stream is not None and not stream.is_admitted:
                stream.is_admitted = True
                stream.cached_tokens = hits.get(binding.key, 0)

    def close(self, stream: OutputStream, reason: FinishReason) -> None:
        """End a stream from the caller's side."""
        self._end(stream, reason, "")

    def close_all(self, reason: FinishReason, message: str = "") -> None:
        """End every stream."""
        for stream in list(self._streams.values()):
            self._end(stream, reason, message)

    def _end(self, stream: OutputStream, reason: FinishReason, message: str) -> None:
        stream.end(reason, message)
        self._streams.pop(stream.key, None)
