"""Both planes put together: the one place where optional parts are chosen."""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from control_plane import CacheGroupConfig, CapacityModel, ConfigError, GroupKind, Scheduler, SchedulerConfig
from control_plane.loop.round_loop import RoundLoop
from control_plane.rounds.record import RecordingScheduler
from control_plane.rounds.redact import Redactor
from control_plane.rounds.writer import TraceWriter
from tokenspeed.config import EngineConfig
from tokenspeed.observe.watch import WatchedScheduler
from tokenspeed.text.stamp import StampTokenizer
from tokenspeed.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from data_plane.handle import DeviceHandle
    from data_plane.model.base import GroupLayout, ModelRunner
    from data_plane.options import DeviceOptions
    from data_plane.specs import DeviceSpecs


class LoadedDevice:
    """What takes long to make: the device with its model, and the tokenizer that goes with it."""

    def __init__(self, specs: "DeviceSpecs", handle: "DeviceHandle", tokenizer: Tokenizer) -> None:
        self.specs = specs
        self.handle = handle
        self.tokenizer = tokenizer


class Assembly:
    """An engine's parts, ready to run. `close` waits for the device's threads: call it when the rounds have ended."""

    def __init__(self, loaded: LoadedDevice, scheduler: WatchedScheduler, *, close_record: Callable[[], None]) -> None:
        self.specs = loaded.specs
        self.tokenizer = loaded.tokenizer
        self.scheduler = scheduler
        self.loop = RoundLoop(scheduler, loaded.handle)
        self._handle = loaded.handle
        self._close_record = close_record

    def close(self) -> None:
        """End the device's threads and finish the record."""
        try:
            self._handle.close()
        finally:
            self._close_record()


def load_device(config: EngineConfig, *, runner: "ModelRunner | None", progress: Callable[[str], None]) -> LoadedDevice:
    """Build the device and the tokenizer. Slow: run it in a thread. Raises ConfigError when the model cannot be had."""
    # Imported here: only an engine that is started pays for it.
    from data_plane.builder import build_device

    specs, handle = build_device(
        device_options(config),
        runner=runner,
        progress=progress,
        full_house=lambda groups, context: full_house_blocks(config, groups, context),
    )
    try:
        return LoadedDevice(specs, handle, load_tokenizer(specs, progress))
    except BaseException:
        handle.close()
        raise


def device_options(config: EngineConfig) -> "DeviceOptions":
    """What the device side is asked to be."""
    from data_plane.options import DeviceOptions

    return DeviceOptions(
        model=config.model,
        device=config.device,
        dtype=config.dtype,
        quantization=config.quantization,
        prefix_granularity=config.prefix_granularity,
        max_batch_size=config.max_batch_size,
        max_context_tokens=config.max_context_tokens,
        device_blocks=config.device_blocks,
        memory_bytes=config.memory_bytes,
        host_memory_bytes=config.host_memory_bytes,
        threads=config.threads,
        check_order=config.check_order,
    )


def load_tokenizer(specs: "DeviceSpecs", progress: Callable[[str], None]) -> Tokenizer:
    """The tokenizer of a device's model."""
    if specs.tokenizer_path is None:
        return StampTokenizer(specs.vocab_size, specs.stop_token_ids)
    from tokenspeed.text.folder import FolderTokenizer

    progress(f"reading the tokenizer in {specs.tokenizer_path}")
    return FolderTokenizer(specs.tokenizer_path)


def assemble(config: EngineConfig, loaded: LoadedDevice) -> Assembly:
    """The control plane for a loaded device. Raises ConfigError when the device's sizes and the settings disagree."""
    if not __debug__:
        loaded.handle.close()
        # Rounds rely on facts that assertions check; without them a fault would go on as wrong output.
        raise ConfigError(["python runs with -O, which removes assertions: start it without"])
    try:
        scheduler = Scheduler(scheduler_config(config, loaded.specs))
        if config.record is None:
            return Assembly(loaded, WatchedScheduler(scheduler, time.monotonic), close_record=_nothing)
        writer = TraceWriter(
            config.record,
            scheduler.config,
            part_bytes=config.record_part_bytes,
            keep_parts=config.record_keep_parts,
            compress=config.record_compress,
            redacted=config.record_redact,
        )
        recording = RecordingScheduler(
            scheduler,
            writer,
            clock_us=lambda: time.monotonic_ns() // 1000,
            # Nobody keeps the key: what was mapped cannot be mapped back.
            redactor=Redactor(secrets.token_bytes(32)) if config.record_redact else None,
        )
        return Assembly(loaded, WatchedScheduler(recording, time.monotonic), close_record=writer.close)
    except OSError as error:
        loaded.handle.close()
        raise ConfigError([f"record={config.record!r} cannot be written: {error.strerror}"]) from error
    except BaseException:
        loaded.handle.close()
        raise


def scheduler_config(config: EngineConfig, specs: "DeviceSpecs") -> SchedulerConfig:
    """The scheduler's settings: what was configured, on the blocks that the device has."""
    return _scheduler_config(
        config, specs.groups, specs.max_context_tokens, specs.device_blocks, host_blocks=specs.host_blocks
    )


def cache_groups(layouts: "Iterable[GroupLayout]") -> tuple[CacheGroupConfig, ...]:
    """Groups as the device laid them out, in the scheduler's words."""
    return tuple(
        CacheGroupConfig(
            id=group.id,
            kind=GroupKind(group.kind),
            block_granularity=group.block_granularity,
            packing=group.packing,
            window=group.window,
            replayable=group.replayable,
        )
        for group in layouts
    )


def full_house_blocks(config: EngineConfig, groups: "tuple[GroupLayout, ...]", context_tokens: int) -> int:
    """LCM blocks that `max_batch_size` requests of the longest context use at once: a larger pool only caches."""
    model = CapacityModel(_scheduler_config(config, groups, context_tokens, device_blocks=1))
    total_tokens = config.max_batch_size * context_tokens
    return model.lcm_blocks(model.concurrent_group_blocks(total_tokens, context_tokens))


def _scheduler_config(
    config: EngineConfig,
    groups: "tuple[GroupLayout, ...]",
    context_tokens: int,
    device_blocks: int,
    *,
    host_blocks: int = 0,
) -> SchedulerConfig:
    return SchedulerConfig(
        prefix_granularity=config.prefix_granularity,
        max_scheduled_tokens=config.max_scheduled_tokens,
        max_batch_size=config.max_batch_size,
        device_blocks=device_blocks,
        host_blocks=host_blocks,
        groups=cache_groups(groups),
        max_context_tokens=context_tokens,
        overlap_depth=config.overlap_depth,
        mixed=config.mixed,
        prefix_cache=config.prefix_cache,
        safe_steps=config.safe_steps,
        max_overtakes=config.max_overtakes,
    )


def discard(loading: "asyncio.Task[LoadedDevice]") -> None:
    """Give back a device that nobody waits for any more."""
    if not loading.cancelled() and loading.exception() is None:
        loading.result().handle.close()


def say_nothing(line: str) -> None:
    """Progress that nobody asked for."""


def _nothing() -> None:
    """No record to finish."""
