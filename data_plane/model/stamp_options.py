"""What a stamp model is like, and the cache groups that this makes."""

from typing import Any

from msgspec import Struct

from control_plane.errors import ConfigError
from data_plane.model.base import GroupLayout
from data_plane.model.stamp_rows import ROW_BYTES

STOP_TOKEN = 0
KINDS = ("full", "sliding", "state")


class StampOptions(Struct, frozen=True, kw_only=True):
    """What a stamp model is like. Token 0 stops; it comes with `stop_probability`, else one of the others.

    `group_kinds` and `block_granularities` have one entry a group (a granularity of None: the engine's prefix
    granularity), `packings` how many blocks of the group one parent holds at least. `windows` (tokens, 0 for other
    kinds) and `replayables` have as many entries, or none when no group slides or replays. With `strict` a row that
    should not be where it is raises StampFault; without, it only changes the tokens.
    """

    vocab_size: int = 256
    max_context_tokens: int = 32768
    stop_probability: float = 0.0
    strict: bool = True
    group_kinds: tuple[str, ...] = ("full",)
    block_granularities: tuple[int | None, ...] = (None,)
    packings: tuple[int, ...] = (1,)
    windows: tuple[int, ...] = ()
    replayables: tuple[bool, ...] = ()


def group_layouts(options: StampOptions, block_granularity: int) -> tuple[GroupLayout, ...]:
    """The groups as storage; `block_granularity` is that of the groups which name none.

    A block of history holds a row for each of its tokens, a block of state one. Raises ConfigError naming every
    problem of the options.
    """
    count = len(options.group_kinds)
    windows = options.windows or (0,) * count
    replayables = options.replayables or (False,) * count
    problems = _number_problems(options) + _count_problems(options, windows, replayables)
    if problems:
        raise ConfigError(problems)
    layouts = []
    for index, kind in enumerate(options.group_kinds):
        window, replayable = windows[index], replayables[index]
        problems += _shape_problems(index, kind, window, replayable)
        granularity = options.block_granularities[index] or block_granularity
        name = "replayable" if replayable else kind
        layouts.append(
            GroupLayout(
                id=name if count == 1 else f"{name}-{index}",
                kind=kind,
                block_granularity=granularity,
                block_bytes=ROW_BYTES if kind == "state" else granularity * ROW_BYTES,
                packing=options.packings[index],
                layers=(index,),
                window=window,
                replayable=replayable,
            )
        )
    if problems:
        raise ConfigError(problems)
    return tuple(layouts)


def _number_problems(options: StampOptions) -> list[str]:
    problems = []
    if options.vocab_size < 2:
        problems.append(f"vocab_size={options.vocab_size} must be at least 2: the stop token and another")
    if not 0.0 <= options.stop_probability <= 1.0:
        problems.append(f"stop_probability={options.stop_probability} must be between 0 and 1")
    for kind in options.group_kinds:
        if kind not in KINDS:
            problems.append(f"group kind {kind!r} is not one of {', '.join(KINDS)}")
    return problems


def _count_problems(options: StampOptions, windows: tuple[int, ...], replayables: tuple[bool, ...]) -> list[str]:
    columns: dict[str, tuple[Any, ...]] = {
        "group_kinds": options.group_kinds,
        "block_granularities": options.block_granularities,
        "packings": options.packings,
        "windows": windows,
        "replayables": replayables,
    }
    if options.group_kinds and len({len(values) for values in columns.values()}) == 1:
        return []
    sizes = ", ".join(f"{name} has {len(values)}" for name, values in columns.items())
    return [f"every group needs an entry in each of these: {sizes}"]


def _shape_problems(index: int, kind: str, window: int, replayable: bool) -> list[str]:
    problems = []
    if kind == "sliding" and window < 1:
        problems.append(f"windows[{index}]={window} must be at least 1: the group slides")
    if kind != "sliding" and window:
        problems.append(f"windows[{index}]={window} must be 0: the group is {kind!r}, which has no window")
    if kind != "sliding" and replayable:
        problems.append(f"replayables[{index}] is set, but only a sliding group can be; the group is {kind!r}")
    return problems
