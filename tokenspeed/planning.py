"""How many tokens and requests fit into so much memory, and why: `tokenspeed plan`."""

from collections.abc import Callable, Iterator

from msgspec import Struct, structs

from control_plane import CapacityModel, SchedulerConfig
from data_plane.builder import describe_device
from data_plane.specs import DeviceSpecs
from tokenspeed.assembly import device_options, full_house_blocks, scheduler_config
from tokenspeed.config import EngineConfig

CONTEXTS = (1024, 4096, 16384, 65536)


class CapacityPlan(Struct, frozen=True):
    """What a configuration can hold. `concurrent` are (tokens of each request, requests that fit at once)."""

    specs: DeviceSpecs
    single_request_tokens: int
    single_request_blocks: tuple[int, ...]
    concurrent: tuple[tuple[int, int], ...]

    def lines(self) -> Iterator[str]:
        """The plan for a person: each group's blocks, the pool, and what it holds."""
        specs = self.specs
        yield f"{specs.model} in {specs.dtype} on {specs.device}, weights {_size(specs.weights_bytes)}"
        yield f"pool: {specs.device_blocks} LCM blocks of {_size(specs.parent_bytes)} = {_size(self.pool_bytes)}"
        for group, blocks in zip(specs.groups, self.single_request_blocks, strict=True):
            window = f", window {group.window}" if group.window else ""
            yield (
                f"group {group.id} ({group.kind}{window}): {len(group.layers) or 1} layers, {group.block_granularity} "
                f"tokens and {_size(group.block_bytes)} a block, {group.packing} in an LCM block; "
                f"the longest request holds {blocks}"
            )
        limit = f"the model's limit is {specs.max_context_tokens}"
        yield f"longest request: {self.single_request_tokens} tokens, prompt and output ({limit})"
        for tokens, requests in self.concurrent:
            yield f"requests of {tokens} tokens at once: {requests}"

    @property
    def pool_bytes(self) -> int:
        """Memory of the pool, its null block included."""
        return (self.specs.device_blocks + 1) * self.specs.parent_bytes


def plan_capacity(config: EngineConfig, *, progress: Callable[[str], None]) -> CapacityPlan:
    """Load the model, take no pool, and count what would fit. Raises ConfigError when nothing would."""
    specs = describe_device(
        device_options(config),
        progress=progress,
        full_house=lambda groups, context: full_house_blocks(config, groups, context),
    )
    settings = scheduler_config(config, specs)
    settings.validate()
    model = CapacityModel(settings)
    longest = model.max_single_request_tokens()
    contexts = [tokens for tokens in CONTEXTS if tokens < longest] + ([longest] if longest else [])
    concurrent = tuple((tokens, _requests_at_once(settings, tokens)) for tokens in contexts)
    return CapacityPlan(specs, longest, model.single_request_group_blocks(longest), concurrent)


def _requests_at_once(settings: SchedulerConfig, tokens: int) -> int:
    """The most requests of so many tokens whose blocks fit together; at least the one that fits alone."""
    low, high = 1, settings.device_blocks * max(group.packing for group in settings.groups) + 1
    while low < high:
        middle = (low + high + 1) // 2
        model = CapacityModel(structs.replace(settings, max_batch_size=middle))
        if model.lcm_blocks(model.concurrent_group_blocks(middle * tokens, tokens)) <= settings.device_blocks:
            low = middle
        else:
            high = middle - 1
    return low


def _size(count: int) -> str:
    """Bytes as people read them."""
    for unit, size in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}"
    return f"{count} B"
