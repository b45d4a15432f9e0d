"""When each request entered, was admitted, got its first token and left; and what that adds up to."""

from collections.abc import Iterator

from control_plane.messages import ExtendResult, FinishReason, RequestSpec
from control_plane.messages.columns import view
from tokenspeed.observe.histogram import (
    BETWEEN_TOKENS_SECONDS,
    FIRST_TOKEN_SECONDS,
    REQUEST_SECONDS,
    REQUEST_TOKENS,
    Histogram,
)


class RequestTimes:
    """One live request. Moments are seconds of one clock; None: not yet."""

    __slots__ = ("admitted", "first_token", "is_out", "last_token", "retractions", "spec", "submitted", "tokens")

    def __init__(self, spec: RequestSpec, now: float) -> None:
        self.spec = spec
        self.submitted = now
        self.admitted: float | None = None
        self.first_token: float | None = None
        self.last_token: float | None = None
        self.tokens = 0
        self.retractions = 0
        self.is_out = False

    @property
    def state(self) -> str:
        """Where it is, in one word; `Scheduler.explain` says why."""
        if self.admitted is None:
            return "waiting"
        if self.is_out:
            return "retracted"
        return "prefilling" if self.last_token is None else "decoding"


class RequestWatch:
    """Times of live requests by key, and histograms over all that there ever were.

    While rounds bring one token each to the same requests, a result costs the same however many they are: such a run is
    written into its requests' times when it ends (`_settle`).
    """

    def __init__(self) -> None:
        self._live: dict[int, RequestTimes] = {}
        self._run_keys = b""
        self._run_counts = b""
        self._run_at = 0.0
        self._run_results = 0
        self.queue = Histogram(REQUEST_SECONDS)
        self.prefill = Histogram(REQUEST_SECONDS)
        self.decode = Histogram(REQUEST_SECONDS)
        self.inference = Histogram(REQUEST_SECONDS)
        self.whole = Histogram(REQUEST_SECONDS)
        self.first_token = Histogram(FIRST_TOKEN_SECONDS)
        self.between_tokens = Histogram(BETWEEN_TOKENS_SECONDS)
        self.mean_between_tokens = Histogram(BETWEEN_TOKENS_SECONDS)
        self.prompt_tokens = Histogram(REQUEST_TOKENS)
        self.generated_tokens = Histogram(REQUEST_TOKENS)
        self.declared_tokens = Histogram(REQUEST_TOKENS)
        self.finished = dict.fromkeys(FinishReason, 0)
        self.recovered_tokens = 0

    def live(self) -> Iterator[tuple[int, RequestTimes]]:
        """Every request that has entered and not left, oldest first."""
        self._settle()
        return iter(self._live.items())

    def submitted(self, key: int, spec: RequestSpec, now: float) -> None:
        """A request entered."""
        self._live[key] = RequestTimes(spec, now)

    def admitted(self, key: int, hit_tokens: int, now: float) -> None:
        """A request got a slot; after a retraction it does so again, and what it then finds is recovered (J1)."""
        times = self._live.get(key)
        if times is None:
            return
        if times.admitted is None:
            times.admitted = now
            self.queue.observe(now - times.submitted)
        else:
            self.recovered_tokens += hit_tokens
        times.is_out = False

    def thrown_out(self, key: int) -> None:
        """A request gave its pages back and will be admitted again."""
        times = self._live.get(key)
        if times is not None:
            times.is_out = True
            times.retractions += 1

    def landed(self, result: ExtendResult, void: frozenset[int], now: float) -> None:
        """A forward's tokens arrived; those for `void` keys do not count."""
        if result.keys == self._run_keys and result.counts == self._run_counts and not void:
            self.between_tokens.observe(now - self._run_at, len(result.counts) // 4)
            self._run_at = now
            self._run_results += 1
            return
        self._settle()
        counts = view(result.counts).tolist()
        is_run = not void
        for key, count in zip(view(result.keys).tolist(), counts, strict=True):
            times = self._live.get(key)
            if times is None or count != 1 or key in void:
                is_run = False
            if times is None or not count or key in void:
                continue
            if times.last_token is None:
                times.first_token = now
                self.first_token.observe(now - times.submitted)
            else:
                # Several tokens of one step are as far apart as the steps are, shared among them.
                self.between_tokens.observe((now - times.last_token) / count, count)
            times.last_token = now
            times.tokens += count
        if is_run:
            self._run_keys, self._run_counts, self._run_at, self._run_results = result.keys, result.counts, now, 0

    def ended(self, key: int, reason: FinishReason, now: float) -> None:
        """A request left. Only the first end counts."""
        if key not in self._live:
            return
        self._settle()
        times = self._live.pop(key)
        self.finished[reason] += 1
        self.whole.observe(now - times.submitted)
        self.prompt_tokens.observe(times.spec.prompt_tokens)
        self.generated_tokens.observe(times.tokens)
        if times.spec.max_new_tokens is not None:
            self.declared_tokens.observe(times.spec.max_new_tokens)
        if times.admitted is None or times.first_token is None or times.last_token is None:
            return
        self.prefill.observe(times.first_token - times.admitted)
        self.decode.observe(times.last_token - times.first_token)
        self.inference.observe(times.last_token - times.admitted)
        if times.tokens > 1:
            self.mean_between_tokens.observe((times.last_token - times.first_token) / (times.tokens - 1))

    def _settle(self) -> None:
        """Write the run into its requests' times: there is none after this."""
        if self._run_results:
            for key in view(self._run_keys).tolist():
                times = self._live[key]
                times.last_token = self._run_at
                times.tokens += self._run_results
        self._run_keys, self._run_counts, self._run_results = b"", b"", 0
