"""`GET /metrics` for Prometheus. Every number is read from the engine when it is asked for, so none can be stale."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tokenspeed.engine import AsyncEngine

COUNTERS = {
    "rounds": "Rounds planned.",
    "retractions": "Requests that gave their blocks back before they were done.",
    "prompt_tokens": "Prompt tokens of admitted requests; each prompt counts once.",
    "cached_tokens": "Prompt tokens taken from the prefix cache.",
    "generated_tokens": "Tokens generated.",
    "stored_blocks": "Blocks copied to the host tier.",
    "loaded_blocks": "Blocks copied back from the host tier.",
}


class Metrics:
    """A registry of its own: two engines in one process do not meet."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(EngineCollector(engine))
        self._responses = Counter(
            "tokenspeed_http_responses", "Responses by route and status.", ("route", "status"), registry=self._registry
        )

    def count_response(self, *, route: str, status: int) -> None:
        """A response was decided on; a stream counts when it opens."""
        self._responses.labels(route, str(status)).inc()

    def render(self) -> bytes:
        """All numbers of this moment in Prometheus' text format."""
        return generate_latest(self._registry)


class EngineCollector:
    """The engine's own numbers."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine

    def describe(self) -> Iterator[Metric]:
        """Nothing: the registry need not ask the engine when it is built."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """The numbers of this moment."""
        loop = self._engine.stats()
        stats = loop.scheduler
        yield GaugeMetricFamily("tokenspeed_healthy", "1 while requests can be served.", self._engine.failure is None)
        requests = GaugeMetricFamily("tokenspeed_requests", "Unfinished requests.", labels=["state"])
        requests.add_metric(["running"], stats.running)
        requests.add_metric(["waiting"], stats.waiting + loop.inbox.submissions)
        yield requests
        blocks = GaugeMetricFamily(
            "tokenspeed_cache_blocks", "Blocks of the pool; the states add up.", labels=["state"]
        )
        blocks.add_metric(["used"], stats.used_blocks)
        blocks.add_metric(["cached"], stats.cached_blocks)
        blocks.add_metric(["free"], stats.free_blocks)
        yield blocks
        yield GaugeMetricFamily("tokenspeed_cache_blocks_total", "Blocks of the pool.", stats.total_blocks)
        yield GaugeMetricFamily("tokenspeed_host_blocks", "Blocks of the host tier in use.", stats.host_used_blocks)
        yield GaugeMetricFamily("tokenspeed_host_blocks_total", "Blocks of the host tier.", stats.host_total_blocks)
        for name, meaning in COUNTERS.items():
            yield CounterMetricFamily(f"tokenspeed_{name}", meaning, getattr(stats, name))
