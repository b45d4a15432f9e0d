"""Drives a device without a scheduler, and times it."""

from collections.abc import Iterable
from queue import Queue
from time import perf_counter

from control_plane.errors import DeviceFailed
from control_plane.messages import ExecutionPlan, ExtendResult, LoadBackDone, WriteBackDone
from control_plane.messages.columns import view
from control_plane.messages.wire import decode_events
from data_plane.handle import DeviceHandle
from data_plane.specs import DeviceSpecs
from data_plane.testing.plans import PlanWriter

ANSWER_TIMEOUT_S = 300.0


class Driver:
    """A started device with its plan writer, the tokens of each request so far, and which copies went well, by op."""

    def __init__(self, specs: DeviceSpecs, handle: DeviceHandle) -> None:
        self.writer = PlanWriter(
            specs.groups,
            device_blocks=specs.device_blocks,
            slots=specs.max_batch_size,
            host_blocks=specs.host_blocks,
        )
        self.tokens: dict[int, list[int]] = {}
        self.copied: dict[int, bool] = {}
        self._handle = handle
        self._answers: Queue[bytes] = Queue()
        self._waiting = 0
        handle.start(self._answers.put)

    def send(self, plan: ExecutionPlan) -> None:
        """Hand over a plan."""
        self._waiting += plan.forward is not None
        self._handle.execute(plan)

    def land(self, *, leave: int = 0) -> None:
        """Take answers until only `leave` rounds are out. Raises DeviceFailed for a round that failed."""
        while self._waiting > leave:
            self._take_letter()

    def land_copies(self, ops: Iterable[int]) -> None:
        """Take answers until each of these stores and load-backs is over."""
        out = set(ops) - self.copied.keys()
        while out:
            self._take_letter()
            out -= self.copied.keys()

    def _take_letter(self) -> None:
        for event in decode_events(self._answers.get(timeout=ANSWER_TIMEOUT_S)):
            match event:
                case WriteBackDone(op=op, success=success) | LoadBackDone(op=op, success=success):
                    self.copied[op] = success
                case ExtendResult():
                    self._waiting -= 1
                    tokens = iter(view(event.tokens).tolist())
                    for key, count in zip(view(event.keys).tolist(), view(event.counts).tolist(), strict=True):
                        self.tokens.setdefault(key, []).extend(next(tokens) for _ in range(count))
                case _:
                    self._waiting -= 1
                    raise DeviceFailed(str(event))

    def generate(self, prompts: dict[int, list[int]], count: int) -> dict[int, list[int]]:
        """`count` tokens after each prompt, all in one batch, with one round always on its way."""
        for key, prompt in prompts.items():
            self.writer.add(key, prompt)
        self.send(self.writer.plan({key: len(prompt) for key, prompt in prompts.items()}))
        for _ in range(count - 1):
            self.send(self.writer.plan(decodes=prompts))
            self.land(leave=1)
        self.land()
        for key in prompts:
            self.writer.release(key)
        return {key: self.tokens[key] for key in prompts}

    def decode_tokens_per_s(self, *, batch: int, prompt_tokens: int, steps: int, first_key: int) -> float:
        """How fast a batch of equal requests decodes after a short warm-up, with one round always on its way."""
        keys = range(first_key, first_key + batch)
        for key in keys:
            self.writer.add(key, [(key * 31 + position) % 1000 + 1 for position in range(prompt_tokens)])
        self.send(self.writer.plan(dict.fromkeys(keys, prompt_tokens)))
        for _ in range(3):
            self.send(self.writer.plan(decodes=keys))
        self.land()
        plans = [self.writer.plan(decodes=keys) for _ in range(steps)]
        began = perf_counter()
        for plan in plans:
            self.send(plan)
            self.land(leave=1)
        self.land()
        seconds = perf_counter() - began
        for key in keys:
            self.writer.release(key)
        return batch * steps / seconds
