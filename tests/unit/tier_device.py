"""A stamp device with a host tier, driven round by round without threads, for the tests of both tiers."""

from collections.abc import Callable, Container
from functools import partial
from typing import Any

from control_plane.messages import Event, ExecutionPlan, ExtendResult, LoadBackDone, WriteBackDone
from control_plane.messages.columns import view
from control_plane.messages.wire import decode_events
from data_plane.builder import build_device
from data_plane.forward_thread import Deliver, ForwardStepped
from data_plane.model.base import ModelRunner
from data_plane.model.stamp import StampOptions, StampRunner
from data_plane.ops.block_copies import BlockCopies
from data_plane.ops.faulty_copies import CopyStep, FaultyCopies
from data_plane.options import DeviceOptions
from data_plane.rounds import Rounds
from data_plane.streams.sim_streams import SimStreams
from data_plane.testing.plans import PlanWriter

CONTEXT_TOKENS = 64


class TierDevice:
    """Simulated streams under the order checker. What lands is kept: letters, tokens by key, copies by op."""

    def __init__(
        self,
        options: StampOptions,
        *,
        seed: int = 0,
        blocks: int = 60,
        host_blocks: int = 40,
        fail_ops: Container[int] = (),
        steps: Container[CopyStep] = tuple(CopyStep),
        wrap_copies: Callable[[BlockCopies], BlockCopies] = lambda inner: inner,
        wrap: Callable[[ModelRunner], ModelRunner] = lambda runner: runner,
        keeps_expired: bool = True,
    ) -> None:
        self.specs, self.handle = build_device(
            DeviceOptions(
                model="stamp",
                prefix_granularity=8,
                max_batch_size=8,
                max_context_tokens=CONTEXT_TOKENS,
                device_blocks=blocks,
                host_blocks=host_blocks,
                check_order=True,
            ),
            runner=wrap(StampRunner(options)),
            streams=partial(SimStreams, seed),
            forward=self._make_forward,
            copies=lambda inner: FaultyCopies(wrap_copies(inner), fail_ops=fail_ops, steps=steps),
        )
        self.writer = PlanWriter(
            self.specs.groups,
            device_blocks=blocks,
            slots=8,
            host_blocks=host_blocks,
            shuffle_seed=seed,
            keeps_expired=keeps_expired,
        )
        self.letters: list[list[Event]] = []
        self.tokens: dict[int, list[int]] = {}
        self.copied: dict[int, bool] = {}
        self.handle.start(self._take)

    def _make_forward(self, rounds: Rounds, deliver: Deliver) -> ForwardStepped:
        self.forward = ForwardStepped(rounds, deliver)
        return self.forward

    def _take(self, letter: bytes) -> None:
        events = decode_events(letter)
        self.letters.append(events)
        for event in events:
            match event:
                case ExtendResult():
                    tokens = iter(view(event.tokens).tolist())
                    for key, count in zip(view(event.keys).tolist(), view(event.counts).tolist(), strict=True):
                        self.tokens.setdefault(key, []).extend(next(tokens) for _ in range(count))
                case WriteBackDone(op=op, success=success) | LoadBackDone(op=op, success=success):
                    self.copied[op] = success
                case _:
                    pass

    def plan(self, extends: dict[int, int] | None = None, *decodes: int, **more: Any) -> ExecutionPlan:
        """The writer's next plan."""
        return self.writer.plan(extends, decodes, **more)

    def run(self, extends: dict[int, int] | None = None, *decodes: int, **more: Any) -> None:
        """One round, to its end, but not to that of its stores."""
        self.send(self.plan(extends, *decodes, **more))
        self.land()

    def send(self, plan: ExecutionPlan) -> None:
        """Hand over a plan."""
        self.handle.execute(plan)

    def land(self) -> None:
        """Every round that is out ends."""
        while self.forward.land():
            pass

    def land_stores(self) -> None:
        """Every store that is out ends."""
        while self.forward.land_store():
            pass

    def close(self) -> None:
        """Nothing was found to be wrong with the device or its order."""
        self.handle.close()
        assert self.handle.failure is None
        assert [str(each) for each in self.handle.violations] == []
