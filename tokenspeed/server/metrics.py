"""`GET /metrics` for Prometheus. Every number is read from the engine when it is asked for, so none can be stale."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from tokenspeed.engine import AsyncEngine
from tokenspeed.server.metric_families import FAMILIES, HTTP_REQUESTS, Family, Reading


class Metrics:
    """A registry of its own: two engines in one process do not meet."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(EngineCollector(engine))
        ProcessCollector(registry=self._registry)
        self._responses = Counter(HTTP_REQUESTS.name, HTTP_REQUESTS.help, HTTP_REQUESTS.labels, registry=self._registry)

    def count_response(self, *, method: str, route: str, status: int) -> None:
        """A response was decided on; a stream counts when it opens."""
        self._responses.labels(method, route, str(status)).inc()

    def render(self) -> bytes:
        """All numbers of this moment in Prometheus' text format."""
        return generate_latest(self._registry)


class EngineCollector:
    """The engine's own numbers, each with the name of the model as a label."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._model = (engine.config.model_names or (engine.specs.model,))[0]

    def describe(self) -> Iterator[Metric]:
        """Nothing: the registry need not ask the engine when it is built."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """The numbers of this moment."""
        reading = Reading.of(self._engine)
        for family in FAMILIES:
            yield self._read(family, reading)

    def _read(self, family: Family, reading: Reading) -> Metric:
        labels = ("model_name", *family.labels)
        if family.histogram is not None:
            histogram = family.histogram(reading)
            metric = HistogramMetricFamily(family.name, family.help, labels=labels)
            metric.add_metric((self._model,), buckets=histogram.cumulative(), sum_value=histogram.sum)
            return metric
        kind = CounterMetricFamily if family.is_counter else GaugeMetricFamily
        numbers = kind(family.name, family.help, labels=labels)
        for values, number in family.numbers(reading):
            numbers.add_metric((self._model, *values), number)
        return numbers
