"""What happens to every request before and after its handler: limits, keys, origins, errors, counting."""

import asyncio
import secrets
import uuid
from typing import Final

from aiohttp import web
from aiohttp.hdrs import METH_ALL
from aiohttp.typedefs import Handler, Middleware

from tokenspeed.config import EngineConfig
from tokenspeed.errors import EngineUnavailable
from tokenspeed.server.errors import Unauthorized, error_response
from tokenspeed.server.lifecycle import Lifecycle
from tokenspeed.server.metrics import Metrics

REQUEST_ID_HEADER: Final = "X-Request-ID"
MAX_REQUEST_ID_CHARACTERS: Final = 128
_REQUEST_ID: Final = web.RequestKey("request_id", str)


class Middlewares:
    """In the order of `all`, the first one outermost."""

    def __init__(self, config: EngineConfig, metrics: Metrics, lifecycle: Lifecycle) -> None:
        self._config = config
        self._metrics = metrics
        self._lifecycle = lifecycle
        self._key = config.api_key.encode() if config.api_key is not None else None

    @property
    def all(self) -> list[Middleware]:
        """What `web.Application` takes."""
        return [self._count, self._answer_errors, self._check_origin, self._check_key, self._take_body]

    async def add_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        """For `on_response_prepare`: the id, and leave for a browser's page of an allowed origin to read."""
        response.headers[REQUEST_ID_HEADER] = request_id_of(request)
        if (origin := self._allowed_origin(request)) is not None:
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = REQUEST_ID_HEADER
            response.headers["Vary"] = "Origin"

    @web.middleware
    async def _count(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Count the response under its route's pattern, not its path."""
        response = await handler(request)
        resource = request.match_info.route.resource
        route = resource.canonical if resource else "unknown"
        # What a client makes up must not become a label of its own.
        method = request.method if request.method in METH_ALL else "other"
        self._metrics.count_response(method=method, route=route, status=response.status)
        return response

    @web.middleware
    async def _answer_errors(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Every exception becomes an error object, but those that mean the client has gone."""
        try:
            return await handler(request)
        except ConnectionError:
            raise
        except Exception as error:
            response = error_response(error)
            if isinstance(error, web.HTTPRequestEntityTooLarge | web.HTTPRequestTimeout):
                response.force_close()  # The rest of the body is not waited for.
            return response

    @web.middleware
    async def _check_origin(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer the question that a browser asks before the request itself."""
        is_preflight = request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers
        if not is_preflight or self._allowed_origin(request) is None:
            return await handler(request)
        return web.Response(
            status=204,
            headers={
                "Access-Control-Allow-Methods": "GET, POST, DELETE",
                "Access-Control-Allow-Headers": request.headers.get("Access-Control-Request-Headers", "*"),
                "Access-Control-Max-Age": "600",
            },
        )

    @web.middleware
    async def _check_key(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """With a key set, whatever works on requests needs it. Without one, what a client sends is ignored.

        Probes, version and metrics remain open.
        """
        if self._key is not None and request.path.startswith(("/v1/", "/tokenize", "/detokenize")):
            sent = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if not secrets.compare_digest(sent.encode(errors="surrogateescape"), self._key):
                raise Unauthorized("send the server's API key as 'Authorization: Bearer KEY'")
        return await handler(request)

    @web.middleware
    async def _take_body(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Read the body within its limits of size and time; while draining, take none that would use the engine."""
        if request.method != "POST":
            return await handler(request)
        if self._lifecycle.is_draining:
            raise EngineUnavailable("the server is shutting down: send the request to another one, or later")
        limit = self._config.max_body_bytes
        if (request.content_length or 0) > limit:
            raise web.HTTPRequestEntityTooLarge(max_size=limit, actual_size=request.content_length or 0)
        try:
            async with asyncio.timeout(self._config.header_timeout_seconds):
                await request.read()  # Kept by the request: the handler's own read finds it.
        except TimeoutError:
            raise web.HTTPRequestTimeout from None
        self._lifecycle.enter()
        try:
            return await handler(request)
        finally:
            self._lifecycle.leave()

    def _allowed_origin(self, request: web.Request) -> str | None:
        origin = request.headers.get("Origin")
        if origin is not None and {origin, "*"} & set(self._config.cors_origins):
            return origin
        return None


def request_id_of(http: web.Request) -> str:
    """The id that the client gave, or a fresh one; always the same for one request.

    It is only shown: two requests with one id do not meet.
    """
    if _REQUEST_ID not in http:
        given = http.headers.get(REQUEST_ID_HEADER, "")
        is_usable = given.isascii() and given.isprintable() and 0 < len(given) <= MAX_REQUEST_ID_CHARACTERS
        http[_REQUEST_ID] = given if is_usable else uuid.uuid4().hex
    return http[_REQUEST_ID]
