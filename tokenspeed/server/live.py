"""The live page at `/` and the feed behind it: what the engine is doing now, for a person who looks."""

from pathlib import Path
from typing import Final

import msgspec
from aiohttp import web
from msgspec import Struct

from control_plane.scheduler.stats import GroupStats
from tokenspeed.engine import AsyncEngine
from tokenspeed.observe.requests import RequestTimes
from tokenspeed.observe.rounds import RoundCard
from tokenspeed.server.lifecycle import Lifecycle

# More than a screen shows, and few enough to encode between two rounds.
SHOWN_REQUESTS: Final = 200

PAGE: Final = Path(__file__).with_name("live.html")
# The page is one file: it loads nothing, and talks to nobody but this server.
CONTENT_POLICY: Final = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; "
    "img-src data:; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)


class RequestRow(Struct, frozen=True):
    """One unfinished request. Spans are seconds."""

    id: str
    state: str
    prompt_tokens: int
    generated_tokens: int
    max_tokens: int | None
    waited: float
    age: float
    retractions: int


class LiveFeed(Struct, frozen=True):
    """The engine at one moment. `at` and the rounds' moments are seconds of one clock; counters only rise."""

    model: str
    condition: str
    at: float
    running: int
    waiting: int
    total_blocks: int
    free_blocks: int
    groups: tuple[GroupStats, ...]
    host_used_blocks: int
    host_total_blocks: int
    prompt_tokens: int
    generated_tokens: int
    queried_tokens: int
    cached_tokens: int
    retractions: int
    rounds: list[RoundCard]
    requests: list[RequestRow]
    hidden_requests: int


class Live:
    """The handlers."""

    def __init__(self, engine: AsyncEngine, lifecycle: Lifecycle) -> None:
        self._engine = engine
        self._lifecycle = lifecycle
        self._page = PAGE.read_bytes()

    def routes(self) -> list[web.RouteDef]:
        """Where they are."""
        return [web.get("/", self.page), web.get("/v1/live", self.feed)]

    async def page(self, http: web.Request) -> web.Response:
        """`GET /`: open to everybody, since it holds nothing; the feed asks for the key."""
        headers = {"Content-Security-Policy": CONTENT_POLICY, "Cache-Control": "no-cache"}
        return web.Response(body=self._page, content_type="text/html", charset="utf-8", headers=headers)

    async def feed(self, http: web.Request) -> web.Response:
        """`GET /v1/live?since=ROUND`: numbers of this moment, and the last rounds after that one."""
        since = http.query.get("since", "0")
        after = int(since) if since.isascii() and since.isdigit() and len(since) < 19 else 0
        return web.Response(body=msgspec.json.encode(self._now(after)), content_type="application/json")

    def _now(self, after: int) -> LiveFeed:
        watch = self._engine.watch
        stats = self._engine.stats()
        scheduler = stats.scheduler
        now = watch.clock()
        rows = [_row(times, now) for _, times in watch.requests.live()]
        return LiveFeed(
            model=(self._engine.config.model_names or (self._engine.specs.model,))[0],
            condition=str(self._lifecycle.condition()[0]),
            at=now,
            running=scheduler.running,
            waiting=scheduler.waiting + stats.inbox.submissions,
            total_blocks=scheduler.total_blocks,
            free_blocks=scheduler.free_blocks,
            groups=scheduler.groups,
            host_used_blocks=scheduler.host_used_blocks,
            host_total_blocks=scheduler.host_total_blocks,
            prompt_tokens=scheduler.prompt_tokens,
            generated_tokens=scheduler.generated_tokens,
            queried_tokens=scheduler.queried_tokens,
            cached_tokens=scheduler.cached_tokens,
            retractions=scheduler.retractions,
            rounds=[card for card in watch.rounds.cards if card.round > after],
            requests=rows[:SHOWN_REQUESTS],
            hidden_requests=max(0, len(rows) - SHOWN_REQUESTS),
        )


def _row(times: RequestTimes, now: float) -> RequestRow:
    admitted = now if times.admitted is None else times.admitted
    return RequestRow(
        id=times.spec.id,
        state=times.state,
        prompt_tokens=times.spec.prompt_tokens,
        generated_tokens=times.tokens,
        max_tokens=times.spec.max_new_tokens,
        waited=admitted - times.submitted,
        age=now - times.submitted,
        retractions=times.retractions,
    )
