"""A runner behind the real scheduler and an inline device: submissions in, outputs and plans out."""

from control_plane.config import SchedulerConfig
from control_plane.loop.commit import StopRule, StopRules, commit
from control_plane.messages import ExecutionPlan, RequestSpec
from control_plane.messages.columns import pack
from control_plane.messages.wire import decode_events
from control_plane.scheduler.scheduler import Scheduler
from data_plane.builder import build_device
from data_plane.model.base import ModelRunner
from data_plane.options import DeviceOptions
from tokenspeed.assembly import cache_groups


class Served:
    """Requests end after as many tokens as they were asked for. `plans` are all rounds so far."""

    def __init__(
        self,
        runner: ModelRunner,
        *,
        prefix_granularity: int,
        max_scheduled_tokens: int = 256,
        device_blocks: int = 400,
        overlap_depth: int = 0,
        host_blocks: int = 0,
    ) -> None:
        context = min(2048, runner.facts.max_context_tokens)
        options = DeviceOptions(
            model=runner.facts.name,
            device="cpu",
            prefix_granularity=prefix_granularity,
            max_batch_size=8,
            max_context_tokens=context,
            device_blocks=device_blocks,
            host_blocks=host_blocks,
        )
        specs, self._device = build_device(options, runner=runner, progress=lambda line: None, inline=True)
        config = SchedulerConfig(
            prefix_granularity=prefix_granularity,
            max_scheduled_tokens=max_scheduled_tokens,
            max_batch_size=8,
            device_blocks=device_blocks,
            groups=cache_groups(specs.groups),
            max_context_tokens=context,
            overlap_depth=overlap_depth,
            host_blocks=host_blocks,
        )
        self.scheduler = Scheduler(config)
        self.plans: list[ExecutionPlan] = []
        self._answers: list[bytes] = []
        self._device.start(self._answers.append)

    def serve(self, *prompts: list[int], new_tokens: int, declared: bool = True) -> list[list[int]]:
        """Submit all at once and run until every one is done; their outputs in order."""
        limit = new_tokens if declared else None
        specs = [RequestSpec(str(index), pack(prompt), max_new_tokens=limit) for index, prompt in enumerate(prompts)]
        assert all(new_tokens <= self.scheduler.max_new_tokens(spec) for spec in specs), "more than one may generate"
        keys = self.scheduler.submit(specs)
        rules = StopRules()
        for key in keys:
            rules.add(key, StopRule(stop_token_ids=(), max_new_tokens=new_tokens))
        outputs: dict[int, list[int]] = {key: [] for key in keys}
        answers: list[bytes] = []
        while self.scheduler.requests or answers or self.scheduler.stats().copies_out:
            while self.scheduler.has_room and (plan := self.scheduler.next_plan()).has_work:
                self.plans.append(plan)
                self._device.execute(plan)
                answers += self._answers
                self._answers.clear()
            assert answers, "requests are left and nothing is on its way"
            # The oldest round lands only now, when no more may be planned ahead of it.
            events, committed = commit(decode_events(answers.pop(0)), rules, self.scheduler)
            self.scheduler.advance(events)
            for each in committed:
                outputs[each.key] += each.tokens
        return [outputs[key] for key in keys]

    def close(self) -> None:
        """End the device."""
        self._device.close()
