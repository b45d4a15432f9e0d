"""Puts the device side together: options in, plain facts and a handle out. All else stays local to it."""

import logging
from collections.abc import Callable

from data_plane.assembly import WrapCopies, assemble
from data_plane.cuda import has_cuda, load_cupy
from data_plane.forward_thread import ForwardInline, ForwardThread
from data_plane.handle import DeviceHandle, MakeForward
from data_plane.memory.layout import ArenaLayout, plan_layout
from data_plane.model.base import ModelRunner
from data_plane.model.stamp import StampOptions, StampRunner
from data_plane.ops.remote import MakeRemote
from data_plane.options import DeviceOptions
from data_plane.specs import DeviceSpecs, FullHouse, device_specs
from data_plane.streams.base import Streams
from data_plane.streams.host_streams import HostStreams
from data_plane.streams.inline_streams import InlineStreams

Progress = Callable[[str], None]

log = logging.getLogger("tokenspeed.device")


def describe_device(
    options: DeviceOptions,
    *,
    runner: ModelRunner | None = None,
    progress: Progress = log.info,
    full_house: FullHouse | None = None,
) -> DeviceSpecs:
    """The facts of the device that `build_device` would build: the model is loaded, no pool is taken."""
    specs, _, _ = _plan(options, runner, progress, full_house)
    return specs


def build_device(
    options: DeviceOptions,
    *,
    runner: ModelRunner | None = None,
    progress: Progress = log.info,
    full_house: FullHouse | None = None,
    inline: bool = False,
    streams: Callable[[], Streams] | None = None,
    forward: MakeForward | None = None,
    copies: WrapCopies = lambda inner: inner,
    remote: MakeRemote | None = None,
) -> tuple[DeviceSpecs, DeviceHandle]:
    """Load the model, lay out its memory, and return the facts and a handle that is not started yet.

    `runner` is used instead of what `options.model` names: a stamp model of another shape, a model that is made to
    fail (on the CPU unless `device` says otherwise). `progress` gets a line for people now and then. `full_house`
    says how many parents the pool could use at all when no size is given: whoever plans knows. An `inline` device has
    no threads and executes and answers within `execute`, for tests and simulation on a CPU; `streams` and `forward`
    replace its own, or those of any device. `copies` may stand around what copies between the tiers, to make it fail
    (`ops/faulty_copies.py`). `remote` makes what does the work for a peer (`transfer/`). Raises ConfigError naming
    every problem found.
    """
    specs, layout, runner = _plan(options, runner, progress, full_house)
    for line in layout.lines(specs.device_blocks, host_blocks=specs.host_blocks):
        progress(line)
    if streams is None and specs.device == "cpu":
        streams = InlineStreams if inline else HostStreams
    if forward is None:
        forward = ForwardInline if inline else ForwardThread
    return specs, assemble(specs, layout, runner, streams, forward, copies, remote, check_order=options.check_order)


def _plan(
    options: DeviceOptions, runner: ModelRunner | None, progress: Progress, full_house: FullHouse | None
) -> tuple[DeviceSpecs, ArenaLayout, ModelRunner]:
    options.validate()
    device = _device(options, runner)
    tokenizer_path = None
    if runner is None:
        runner, tokenizer_path = _load(options, device, progress)
    layout = plan_layout(runner.facts.groups)
    return device_specs(options, device, runner.facts, layout, tokenizer_path, full_house), layout, runner


def _device(options: DeviceOptions, runner: ModelRunner | None) -> str:
    """Where it runs. A stamp model needs no look for CUDA, which would load what it does without.

    Raises ConfigError when CUDA was asked for and is not there: better now than after loading a model.
    """
    if options.device == "cuda":
        load_cupy()
    if options.device != "auto":
        return options.device
    if runner is not None or options.model == "stamp":
        return "cpu"
    return "cuda" if has_cuda() else "cpu"


def _load(options: DeviceOptions, device: str, progress: Progress) -> tuple[ModelRunner, str | None]:
    if options.model == "stamp":
        stamp = StampOptions()
        if options.max_context_tokens is not None:
            stamp = StampOptions(max_context_tokens=options.max_context_tokens)
        return StampRunner(stamp, block_granularity=options.prefix_granularity), None
    # Loaded here and not above: a stamp device must not bring torch into the process.
    import torch

    from data_plane.model.registry import load_model

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    loaded = load_model(
        options.model,
        device=device,
        dtype=options.dtype,
        quantization=options.quantization,
        block_granularity=options.prefix_granularity,
        progress=progress,
    )
    return loaded.runner, None if loaded.tokenizer_path is None else str(loaded.tokenizer_path)
