"""Times of requests: a run of equal results counts as each of its tokens would, and nothing counts twice."""

from control_plane.messages import ExtendResult, FinishReason, RequestSpec
from control_plane.messages.columns import pack
from tokenspeed.observe.histogram import Histogram
from tokenspeed.observe.requests import RequestWatch

NOBODY: frozenset[int] = frozenset()


def result(round_number: int, counts: dict[int, int]) -> ExtendResult:
    """A forward that brought so many tokens for each key."""
    return ExtendResult(round_number, pack(list(counts)), pack(list(counts.values())), pack([7] * sum(counts.values())))


def watched(*keys: int) -> RequestWatch:
    """Requests that entered at 0 s and were admitted at 1 s."""
    watch = RequestWatch()
    for key in keys:
        watch.submitted(key, RequestSpec(id=str(key), tokens=pack([1, 2, 3]), max_new_tokens=9), 0.0)
        watch.admitted(key, 0, 1.0)
    return watch


def test_bounds_are_inclusive_and_buckets_add_up() -> None:
    """As Prometheus defines them."""
    histogram = Histogram((1, 2.5))
    for value in (0.5, 1, 1.5, 99):
        histogram.observe(value)
    histogram.observe(2, times=3)
    assert histogram.cumulative() == [("1.0", 2), ("2.5", 6), ("+Inf", 7)]
    assert (histogram.count, histogram.sum) == (7, 108)


def test_a_run_of_decodes_is_counted_as_its_tokens() -> None:
    """Two requests side by side: gaps, counts and last moments are those of each token, however it was counted."""
    watch = watched(1, 2)
    for step in range(5):
        watch.landed(result(step, {1: 1, 2: 1}), NOBODY, 2.0 + step)
    assert watch.between_tokens.count == 8
    assert watch.between_tokens.sum == 8.0
    assert [(times.tokens, times.first_token, times.last_token) for _, times in watch.live()] == [(5, 2.0, 6.0)] * 2
    watch.landed(result(5, {1: 1}), NOBODY, 8.0)
    watch.ended(2, FinishReason.STOP, 9.0)
    watch.landed(result(6, {1: 1, 2: 1}), NOBODY, 9.5)
    watch.ended(1, FinishReason.LENGTH, 10.0)
    assert (watch.generated_tokens.count, watch.generated_tokens.sum) == (2, 12)
    assert (watch.whole.sum, watch.prefill.sum, watch.decode.sum) == (19.0, 2.0, 11.5)
    assert (watch.first_token.count, watch.first_token.sum) == (2, 4.0)
    assert list(watch.live()) == []


def test_what_does_not_count_is_not_counted() -> None:
    """Tokens of who was thrown out, an arrival without tokens, a second end; what comes back is no second wait."""
    watch = watched(1, 2)
    watch.landed(result(1, {1: 0, 2: 1}), frozenset({2}), 2.0)
    assert watch.first_token.count == 0
    watch.admitted(2, 32, 3.0)
    assert (watch.queue.count, watch.recovered_tokens) == (2, 32)
    for step in range(3):
        watch.landed(result(2 + step, {1: 1, 2: 1}), NOBODY, 4.0 + step)
    watch.landed(result(5, {1: 1, 2: 1}), frozenset({2}), 7.0)
    assert [times.tokens for _, times in watch.live()] == [4, 3]
    watch.ended(1, FinishReason.LENGTH, 8.0)
    watch.ended(1, FinishReason.ABORT, 9.0)
    assert (watch.finished[FinishReason.LENGTH], watch.finished[FinishReason.ABORT], watch.whole.count) == (1, 0, 1)


def test_several_tokens_of_one_step_share_its_time() -> None:
    """They arrive together: what a reader sees as their pace is the step's time over their number."""
    watch = watched(1)
    watch.landed(result(1, {1: 1}), NOBODY, 2.0)
    watch.landed(result(2, {1: 4}), NOBODY, 4.0)
    assert (watch.between_tokens.count, watch.between_tokens.sum) == (4, 2.0)
