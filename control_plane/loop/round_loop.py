"""The loop of rounds. One advance, one plan, one execute site; the wait is the only await."""

import logging

from msgspec import Struct

from control_plane.errors import DeviceFailed
from control_plane.loop.commit import StopRule, StopRules, commit
from control_plane.loop.device_port import DevicePort, SchedulerPort
from control_plane.loop.inbox import Inbox, InboxStats
from control_plane.loop.mailbox import Mailbox, MailboxStats
from control_plane.loop.outbox import Outbox, OutputStream
from control_plane.loop.wake import Wake
from control_plane.messages import FinishReason, RequestSpec
from control_plane.scheduler.stats import SchedulerStats

log = logging.getLogger(__name__)


class LoopStats(Struct, frozen=True):
    """The loop in numbers."""

    scheduler: SchedulerStats
    inbox: InboxStats
    mailbox: MailboxStats
    open_streams: int


class RoundLoop:
    """Everything here belongs to the thread of the event loop that runs it, but for the mailbox's delivery."""

    def __init__(self, scheduler: SchedulerPort, device: DevicePort) -> None:
        self._scheduler = scheduler
        self._device = device
        self._wake = Wake()
        self._inbox = Inbox()
        self._mailbox = Mailbox(self._wake.set_from_thread)
        self._outbox = Outbox()
        self._stop_rules = StopRules()
        self._failure: str | None = None

    @property
    def failure(self) -> str | None:
        """Why no more requests can be served; None while all is well."""
        return self._failure or self._device.failure

    def submit(self, spec: RequestSpec) -> OutputStream:
        """Hand in a request. Raises RequestRejected at once if it could never run, DeviceFailed if nothing can."""
        if self._wake.is_closed or self.failure is not None:
            raise DeviceFailed(self.failure or "the engine is closed")
        self._scheduler.check(spec)
        stream = OutputStream(spec)
        self._inbox.submit(stream)
        self._wake.set()
        return stream

    def abort(self, stream: OutputStream) -> None:
        """The caller gave up: the stream ends now, the request with the next round. Any state, any number of times."""
        self._end(stream, FinishReason.ABORT)

    def finish(self, stream: OutputStream) -> None:
        """The caller has what it wanted (a stop string was met): as `abort`, but what was computed stays cached."""
        self._end(stream, FinishReason.STOP)

    async def run(self) -> None:
        """Take what arrived, then plan while the device has room; until `close`.

        A fault of the control plane ends every request with an error and is raised; it is never a silent stop.
        """
        self._device.start(self._mailbox.deliver)
        try:
            while await self._wake.wait():
                self._round()
        except Exception as fault:
            self._failure = f"the control plane failed: {type(fault).__name__}: {fault}"
            self._wake.close()
            self._close_streams(FinishReason.ERROR, self._failure)
            raise
        self._close_streams(FinishReason.ABORT, "the engine is closed")

    def close(self) -> None:
        """End every open stream; `run` returns."""
        self._wake.close()
        self._close_streams(FinishReason.ABORT, "the engine is closed")

    def stats(self) -> LoopStats:
        """The loop's numbers, as of now."""
        return LoopStats(self._scheduler.stats(), self._inbox.stats(), self._mailbox.stats(), len(self._outbox))

    def _round(self) -> None:
        """One pass. Nothing in it waits, so nothing interleaves with it."""
        events, outputs = commit(self._mailbox.take(), self._stop_rules, self._scheduler)
        self._admit_streams(self._inbox.take_submissions())
        ended = self._scheduler.advance([*events, *self._inbox.take_ends()])
        for end in ended:
            self._stop_rules.drop(end.key)
        self._outbox.publish(outputs, ended)
        while self._scheduler.has_room and (plan := self._scheduler.next_plan()).has_work:
            self._outbox.note(plan)
            self._device.execute(plan)
        if (report := self._scheduler.take_stall_report()) is not None:
            log.warning("nothing moves: %s", report)

    def _admit_streams(self, streams: list[OutputStream]) -> None:
        streams = [stream for stream in streams if not stream.is_ended]  # aborted before its first round
        keys = self._scheduler.submit([stream.spec for stream in streams])
        self._outbox.open(keys, streams)
        for key, stream in zip(keys, streams, strict=True):
            limit = self._scheduler.max_new_tokens(stream.spec)
            self._stop_rules.add(key, StopRule(stop_token_ids=stream.spec.stop_token_ids, max_new_tokens=limit))

    def _end(self, stream: OutputStream, reason: FinishReason) -> None:
        if stream.is_ended:
            return
        self._outbox.close(stream, reason)
        self._stop_rules.drop(stream.key)
        self._inbox.end(stream, reason)
        self._wake.set()

    def _close_streams(self, reason: FinishReason, message: str) -> None:
        for stream in self._inbox.take_submissions():
            stream.end(reason, message)
        self._outbox.close_all(reason, message)
