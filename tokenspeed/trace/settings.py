"""A scheduler's configuration from the command line: a base, and fields set by name."""

from collections.abc import Sequence
from typing import Any

import msgspec

from control_plane import CacheGroupConfig, ConfigError, SchedulerConfig
from tokenspeed.trace.arrivals import Arrivals

SPARE_BLOCKS = 2  # a request: the block that its last page is in, and the one of a decode step


def config_for(arrivals: Arrivals) -> SchedulerConfig:
    """An engine of one full group on which all of `arrivals` fits, and stays cached, for ever."""
    page = min(16, arrivals.block_tokens)
    lengths = [arrival.prompt_tokens + (arrival.max_new_tokens or 1) for arrival in arrivals.requests]
    return SchedulerConfig(
        prefix_granularity=page,
        max_scheduled_tokens=8192,
        max_batch_size=256,
        device_blocks=sum(-(-tokens // page) + SPARE_BLOCKS for tokens in lengths),
        groups=(CacheGroupConfig("full", block_granularity=page),),
        max_context_tokens=max(lengths) + SPARE_BLOCKS,
        overlap_depth=1,
    )


def changed(config: SchedulerConfig, settings: Sequence[str]) -> SchedulerConfig:
    """A configuration with fields set as `name=value`. Raises ConfigError naming every problem."""
    values = msgspec.to_builtins(config)
    problems = []
    for setting in settings:
        name, has_value, text = setting.partition("=")
        if not has_value or name not in SchedulerConfig.__struct_fields__:
            known = ", ".join(SchedulerConfig.__struct_fields__)
            problems.append(f"{setting!r} must be name=value with one of {known}")
            continue
        values[name] = _value(text)
        if name == "prefix_granularity" and all("groups" not in other for other in settings):
            for group in values["groups"]:
                group["block_granularity"] = values[name]
    if problems:
        raise ConfigError(problems)
    try:
        made = msgspec.convert(values, SchedulerConfig)
    except msgspec.ValidationError as error:
        raise ConfigError([str(error)]) from error
    made.validate()
    return made


def _value(text: str) -> Any:
    """JSON where it is, a word else: `64`, `false`, `null`, `fused`."""
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
