"""What `/metrics` shows: every family with its meaning and, where there is one, vLLM's name for the same number.

`docs/metrics.md` and the Grafana dashboard are checked against this list. Names are vLLM's with another prefix where
the meaning is the same, so that a dashboard made for one works for the other with a search and replace.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from tokenspeed.engine import AsyncEngine
from tokenspeed.observe.histogram import Histogram
from tokenspeed.observe.watch import WatchedScheduler

if TYPE_CHECKING:
    from control_plane.loop.round_loop import LoopStats
    from control_plane.scheduler.stats import SchedulerStats

PREFIX: Final = "tokenspeed:"

Numbers = Iterable[tuple[tuple[str, ...], float]]


class Reading(Struct, frozen=True):
    """The engine at one moment."""

    engine: AsyncEngine
    loop: "LoopStats"
    scheduler: "SchedulerStats"
    watch: WatchedScheduler

    @classmethod
    def of(cls, engine: AsyncEngine) -> "Reading":
        """Now."""
        loop = engine.stats()
        return cls(engine, loop, loop.scheduler, engine.watch)


def _nothing(reading: Reading) -> Numbers:
    return ()


class Family(Struct, frozen=True, kw_only=True):
    """One metric. `vllm` is the same number there, "" where it has none. `model_name` is always a label."""

    name: str
    help: str
    vllm: str = ""
    labels: tuple[str, ...] = ()
    is_counter: bool = False
    numbers: Callable[[Reading], Numbers] = _nothing
    histogram: Callable[[Reading], Histogram] | None = None

    @property
    def kind(self) -> str:
        """What Prometheus calls it."""
        return "histogram" if self.histogram is not None else "counter" if self.is_counter else "gauge"

    @property
    def shown_name(self) -> str:
        """As expressions name it: counters end in `_total`."""
        return f"{self.name}_total" if self.is_counter else self.name


def gauge(name: str, help: str, read: Callable[[Reading], float], *, vllm: str = "") -> Family:
    """A number that rises and falls."""
    return Family(name=PREFIX + name, help=help, vllm=vllm, numbers=lambda reading: [((), read(reading))])


def counter(name: str, help: str, read: Callable[[Reading], float], *, vllm: str = "") -> Family:
    """A number that only rises."""
    return Family(
        name=PREFIX + name, help=help, vllm=vllm, is_counter=True, numbers=lambda reading: [((), read(reading))]
    )


def histogram(name: str, help: str, read: Callable[[Reading], Histogram], *, vllm: str = "") -> Family:
    """Many numbers in buckets."""
    return Family(name=PREFIX + name, help=help, vllm=vllm, histogram=read)


def _cache_blocks(reading: Reading) -> Numbers:
    stats = reading.scheduler
    return [(("used",), stats.used_blocks), (("cached",), stats.cached_blocks), (("free",), stats.free_blocks)]


def _group_blocks(reading: Reading) -> Numbers:
    for group in reading.scheduler.groups:
        yield (group.id, "used"), group.used_blocks
        yield (group.id, "cached"), group.cached_blocks


def _config_info(reading: Reading) -> Numbers:
    config, stats = reading.engine.config, reading.scheduler
    blocks = str(stats.total_blocks), str(stats.host_total_blocks)
    yield (str(config.prefix_granularity), *blocks, str(config.prefix_cache), config.dtype), 1


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


FAMILIES: Final = (
    gauge("healthy", "1 while requests can be served.", lambda r: r.engine.failure is None),
    gauge(
        "num_requests_running",
        "Requests that hold blocks of the pool.",
        lambda r: r.scheduler.running,
        vllm="vllm:num_requests_running",
    ),
    gauge(
        "num_requests_waiting",
        "Requests that hold none: new ones, and retracted ones on their way back.",
        lambda r: r.scheduler.waiting + r.loop.inbox.submissions,
        vllm="vllm:num_requests_waiting",
    ),
    gauge(
        "kv_cache_usage_perc",
        "Share of the pool's blocks that requests hold; 1 is all. Cached blocks that nobody holds do not count.",
        lambda r: _share(r.scheduler.used_blocks, r.scheduler.total_blocks),
        vllm="vllm:kv_cache_usage_perc",
    ),
    Family(
        name=PREFIX + "cache_blocks",
        help="Blocks of the pool; the three states add up to all of them.",
        labels=("state",),
        numbers=_cache_blocks,
    ),
    gauge("cache_capacity_blocks", "Blocks of the pool.", lambda r: r.scheduler.total_blocks),
    Family(
        name=PREFIX + "cache_group_blocks",
        help="Blocks of the pool that are bound to a cache group; over the groups they add up to used and cached.",
        labels=("group", "state"),
        numbers=_group_blocks,
    ),
    gauge(
        "cpu_cache_usage_perc",
        "Share of the host tier's blocks in use; 1 is all, 0 also where there is no host tier.",
        lambda r: _share(r.scheduler.host_used_blocks, r.scheduler.host_total_blocks),
        vllm="vllm:cpu_cache_usage_perc",
    ),
    gauge("host_blocks", "Blocks of the host tier in use.", lambda r: r.scheduler.host_used_blocks),
    gauge("host_capacity_blocks", "Blocks of the host tier.", lambda r: r.scheduler.host_total_blocks),
    gauge("copies_out", "Stores and load-backs that have not been acknowledged.", lambda r: r.scheduler.copies_out),
    gauge("rounds_in_flight", "Rounds whose result is not known.", lambda r: r.scheduler.rounds_in_flight),
    gauge("stalled_rounds", "Rounds in a row in which nothing moved; 0 is well.", lambda r: r.scheduler.stalled_rounds),
    Family(
        name=PREFIX + "cache_config_info",
        help="1; the sizes are in the labels.",
        vllm="vllm:cache_config_info",
        labels=("block_size", "num_gpu_blocks", "num_cpu_blocks", "enable_prefix_caching", "cache_dtype"),
        numbers=_config_info,
    ),
    counter("rounds", "Rounds planned.", lambda r: r.scheduler.rounds),
    counter(
        "prompt_tokens",
        "Prompt tokens of requests that entered; each prompt counts once, however often it is computed.",
        lambda r: r.scheduler.prompt_tokens,
        vllm="vllm:prompt_tokens_total",
    ),
    counter(
        "generation_tokens",
        "Tokens generated.",
        lambda r: r.scheduler.generated_tokens,
        vllm="vllm:generation_tokens_total",
    ),
    Family(
        name=PREFIX + "request_success",
        help="Requests that ended, by reason: stop and length are complete answers, abort and error are not.",
        vllm="vllm:request_success_total",
        labels=("finished_reason",),
        is_counter=True,
        numbers=lambda r: [((str(reason),), number) for reason, number in r.watch.requests.finished.items()],
    ),
    counter(
        "num_preemptions",
        "Retractions: a request gave its blocks back before it was done.",
        lambda r: r.scheduler.retractions,
        vllm="vllm:num_preemptions_total",
    ),
    Family(
        name=PREFIX + "retractions",
        help="The same by reason: capacity (another request needed the room) or what went wrong.",
        labels=("reason",),
        is_counter=True,
        numbers=lambda r: [((str(reason),), number) for reason, number in r.scheduler.retraction_reasons],
    ),
    counter(
        "recovered_tokens",
        "Tokens that retracted requests found in a cache when they came back; no hits of the prefix cache.",
        lambda r: r.watch.requests.recovered_tokens,
    ),
    counter(
        "prefix_cache_queries",
        "Prompt tokens that were looked up in the prefix cache, at first admissions.",
        lambda r: r.scheduler.queried_tokens,
        vllm="vllm:prefix_cache_queries_total",
    ),
    counter(
        "prefix_cache_hits",
        "Prompt tokens that were found there, on the device or the host.",
        lambda r: r.scheduler.cached_tokens,
        vllm="vllm:prefix_cache_hits_total",
    ),
    Family(
        name=PREFIX + "prefix_cache_group_queries",
        help="Blocks of a cache group that the longest possible hits would have taken.",
        labels=("group",),
        is_counter=True,
        numbers=lambda r: [((group.id,), group.queried_blocks) for group in r.scheduler.groups],
    ),
    Family(
        name=PREFIX + "prefix_cache_group_hits",
        help="Blocks of a cache group that hits took; divided by the queries, the group's hit rate.",
        labels=("group",),
        is_counter=True,
        numbers=lambda r: [((group.id,), group.hit_blocks) for group in r.scheduler.groups],
    ),
    Family(
        name=PREFIX + "prefix_cache_group_host_hits",
        help="Of these, blocks that came from the host tier.",
        labels=("group",),
        is_counter=True,
        numbers=lambda r: [((group.id,), group.loaded_blocks) for group in r.scheduler.groups],
    ),
    counter("stored_blocks", "Blocks copied to the host tier.", lambda r: r.scheduler.stored_blocks),
    counter("loaded_blocks", "Blocks copied back from the host tier.", lambda r: r.scheduler.loaded_blocks),
    histogram(
        "request_queue_time_seconds",
        "From when the engine took a request to its first blocks.",
        lambda r: r.watch.requests.queue,
        vllm="vllm:request_queue_time_seconds",
    ),
    histogram(
        "time_to_first_token_seconds",
        "From when the engine took a request to its first token.",
        lambda r: r.watch.requests.first_token,
        vllm="vllm:time_to_first_token_seconds",
    ),
    histogram(
        "inter_token_latency_seconds",
        "Between two tokens of a request; a stall of all requests counts for each of them.",
        lambda r: r.watch.requests.between_tokens,
        vllm="vllm:inter_token_latency_seconds",
    ),
    histogram(
        "request_time_per_output_token_seconds",
        "The mean of that over one request.",
        lambda r: r.watch.requests.mean_between_tokens,
        vllm="vllm:request_time_per_output_token_seconds",
    ),
    histogram(
        "e2e_request_latency_seconds",
        "From when the engine took a request to its end, however it ended.",
        lambda r: r.watch.requests.whole,
        vllm="vllm:e2e_request_latency_seconds",
    ),
    histogram(
        "request_prefill_time_seconds",
        "From a request's first blocks to its first token.",
        lambda r: r.watch.requests.prefill,
        vllm="vllm:request_prefill_time_seconds",
    ),
    histogram(
        "request_decode_time_seconds",
        "From a request's first token to its last.",
        lambda r: r.watch.requests.decode,
        vllm="vllm:request_decode_time_seconds",
    ),
    histogram(
        "request_inference_time_seconds",
        "From a request's first blocks to its last token.",
        lambda r: r.watch.requests.inference,
        vllm="vllm:request_inference_time_seconds",
    ),
    histogram(
        "request_prompt_tokens",
        "Prompt tokens of a request that ended.",
        lambda r: r.watch.requests.prompt_tokens,
        vllm="vllm:request_prompt_tokens",
    ),
    histogram(
        "request_generation_tokens",
        "Tokens that a request that ended had generated.",
        lambda r: r.watch.requests.generated_tokens,
        vllm="vllm:request_generation_tokens",
    ),
    histogram(
        "request_params_max_tokens",
        "The limit on output that a request that ended had declared, if it had one.",
        lambda r: r.watch.requests.declared_tokens,
        vllm="vllm:request_params_max_tokens",
    ),
    histogram(
        "iteration_tokens_total",
        "Tokens that a round feeds to the model, prompt and decode together.",
        lambda r: r.watch.rounds.tokens,
        vllm="vllm:iteration_tokens_total",
    ),
)

# Counted where the responses are made, not read from the engine.
HTTP_REQUESTS: Final = Family(
    name=PREFIX + "http_requests",
    help="Responses by method, route and status; a stream counts when it opens.",
    vllm="http_requests_total",
    labels=("method", "handler", "status"),
    is_counter=True,
)
