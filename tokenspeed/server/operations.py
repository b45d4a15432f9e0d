"""What operators and probes ask: health, readiness, version, metrics, and where a request is."""

import platform
from importlib.metadata import version

from aiohttp import web

from tokenspeed.engine import AsyncEngine
from tokenspeed.server.errors import RequestNotKnown
from tokenspeed.server.lifecycle import Condition, Lifecycle
from tokenspeed.server.metrics import Metrics


class Operations:
    """The handlers that generate nothing."""

    def __init__(self, engine: AsyncEngine, metrics: Metrics, lifecycle: Lifecycle) -> None:
        self._engine = engine
        self._metrics = metrics
        self._lifecycle = lifecycle

    def routes(self) -> list[web.RouteDef]:
        """Where they are."""
        return [
            web.get("/health", self.health),
            web.get("/ready", self.ready),
            web.get("/version", self.version),
            web.get("/metrics", self.metrics),
            web.get("/v1/requests", self.requests),
            web.get("/v1/requests/{id:.+}", self.request),
            web.delete("/v1/requests/{id:.+}", self.cancel),
        ]

    async def health(self, http: web.Request) -> web.Response:
        """`GET /health`: 200 while the process is of use, 503 when only a restart helps (failed, stuck)."""
        return self._told(unwell={Condition.FAILED, Condition.STUCK})

    async def ready(self, http: web.Request) -> web.Response:
        """`GET /ready`: 200 while new requests are taken, else 503."""
        return self._told(unwell={Condition.FAILED, Condition.STUCK, Condition.DRAINING})

    async def version(self, http: web.Request) -> web.Response:
        """`GET /version`."""
        return web.json_response({"version": version("tokenspeed"), "python": platform.python_version()})

    async def metrics(self, http: web.Request) -> web.Response:
        """`GET /metrics`."""
        return web.Response(body=self._metrics.render(), headers={"Content-Type": "text/plain; version=0.0.4"})

    async def requests(self, http: web.Request) -> web.Response:
        """`GET /v1/requests`: the ids of all that are unfinished, each with where it is and why."""
        return web.json_response(
            {"object": "list", "data": [self._card(request_id) for request_id in self._engine.unfinished_ids()]}
        )

    async def request(self, http: web.Request) -> web.Response:
        """`GET /v1/requests/ID`: where the request with this `X-Request-ID` is, and why. 404 when it is over."""
        return web.json_response(self._card(self._known(http)))

    async def cancel(self, http: web.Request) -> web.Response:
        """`DELETE /v1/requests/ID`: end it; its client reads an error."""
        request_id = self._known(http)
        self._engine.abort(request_id, "the request was cancelled by DELETE /v1/requests")
        return web.json_response({"id": request_id, "object": "request", "cancelled": True})

    def _known(self, http: web.Request) -> str:
        request_id = http.match_info["id"]
        if not self._engine.is_unfinished(request_id):
            raise RequestNotKnown(f"no unfinished request has the id {request_id!r}: it is over, or never came")
        return request_id

    def _card(self, request_id: str) -> dict[str, object]:
        return {"id": request_id, "object": "request", "where": self._engine.explain(request_id)}

    def _told(self, *, unwell: set[Condition]) -> web.Response:
        condition, reason = self._lifecycle.condition()
        body = {"status": "ok" if condition is Condition.READY else str(condition)}
        if reason:
            body["reason"] = reason
        return web.json_response(body, status=503 if condition in unwell else 200)
