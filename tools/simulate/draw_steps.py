"""What happens, from a seed: bursts of prompts and pauses, clients that leave, and weather."""

from collections.abc import Iterator
from random import Random
from typing import Literal

from msgspec import Struct

from control_plane import Role
from control_plane.scheduler.capacity_model import CapacityModel
from tools.simulate.draw_setting import longest_request
from tools.simulate.program import (
    Drop,
    Fail,
    GiveUp,
    Hold,
    Late,
    Latency,
    Leave,
    News,
    Repeat,
    Run,
    Setting,
    Step,
    Submit,
    Tell,
    Withhold,
    Work,
)

_NEWS: tuple[News, ...] = ("forward", "store", "load", "transfer")
_LATE: tuple[Late, ...] = ("abort", "finish", "retract", "bootstrapped", "landed", "sent", "failed")


class Climate(Struct, frozen=True):
    """How weather and clients are. Chances are by round."""

    load: float
    most_at_once: int
    leave_chance: float
    change_chance: float
    mishap_chance: float
    undeclared_share: float
    output_tokens: int
    bases: int


def draw_climate(random: Random) -> Climate:
    """A third of the climates are without mishaps."""
    return Climate(
        load=random.choice([0.5, 1.0, 1.5]),
        most_at_once=random.choice([1, 4, 12]),
        leave_chance=random.choice([0.0, 0.02, 0.1]),
        change_chance=random.choice([0.0, 0.05, 0.2]),
        mishap_chance=random.choice([0.0, 0.02, 0.08]),
        undeclared_share=random.choice([0.0, 0.3, 1.0]),
        output_tokens=random.choice([4, 20, 60, 200]),
        bases=random.choice([1, 1, 2, 3]),
    )


def draw_steps(random: Random, setting: Setting, climate: Climate) -> Iterator[Step]:
    """Without an end: who runs them knows when it is enough."""
    limit = longest_request(setting)
    model = CapacityModel(setting.config(Role.FUSED))
    submitted = 0
    while True:
        work_rounds = 0.0
        for _ in range(random.randint(1, climate.most_at_once)):
            submit = _draw_submit(random, climate, limit)
            submitted += 1
            work_rounds += _rounds_of(submit, setting, model, limit)
            yield submit
        pause = 1 + int(work_rounds / climate.load * random.uniform(0.2, 1.8))
        yield from _draw_rounds(random, climate, pause, submitted, has_peer=setting.peer is not None)


def _draw_submit(random: Random, climate: Climate, limit: int) -> Submit:
    """Mostly what is accepted, and now and then just what is not."""
    is_declared = random.random() >= climate.undeclared_share
    output = random.randint(1, climate.output_tokens) if is_declared else None
    own = 1 + int(random.random() ** 2 * limit / 2)
    shared = random.choice([0, random.randint(0, limit), random.randint(0, limit)])
    room = max(limit - (output or 1), 2)
    if own + shared > room and random.random() < 0.97:
        own = min(own, room - 1)
        shared = min(shared, room - own)
    elif random.random() < 0.05:  # to the last token that there is room for
        own = max(1, room - shared)
    return Submit(
        base=random.randrange(climate.bases),
        shared_tokens=shared,
        own_tokens=own,
        max_new_tokens=output,
        seed=random.choice([0, 0, 0, 0, 1, 2]),
        namespace=random.choice(["", "", "", "", "", "other"]),
    )


def _rounds_of(submit: Submit, setting: Setting, model: CapacityModel, limit: int) -> float:
    """How long the engine is about to be busy with it: its steps, shared with as many others as fit beside it."""
    prompt = submit.shared_tokens + submit.own_tokens
    output = submit.max_new_tokens or limit - prompt
    if setting.stop_probability:
        output = min(output, int(1 / setting.stop_probability))
    blocks = model.lcm_blocks(model.single_request_group_blocks(min(limit, prompt + max(output, 1))))
    beside = max(1, min(setting.batch, setting.pool // max(blocks, 1)))
    return (prompt / setting.budget_tokens + max(output, 1)) / beside


def _draw_rounds(random: Random, climate: Climate, rounds: int, submitted: int, *, has_peer: bool) -> Iterator[Step]:
    """So many rounds, with what happens in between."""
    quiet = 0
    for _ in range(rounds):
        happening = _draw_happening(random, climate, submitted, has_peer=has_peer)
        if happening is not None:
            if quiet:
                yield Run(quiet)
            yield happening
            quiet = 0
        quiet += 1
    yield Run(quiet)


def _draw_happening(random: Random, climate: Climate, submitted: int, *, has_peer: bool) -> Step | None:
    peer = has_peer and random.random() < 0.5
    chance = random.random()
    if chance < climate.leave_chance:
        return Leave(max(0, submitted - random.randint(1, 12)), is_content=random.random() < 0.3)
    chance -= climate.leave_chance
    if chance < climate.change_chance:
        return Latency(
            forward=random.randint(1, 4),
            store=random.choice([1, 2, 4, 12]),
            transfer=random.choice([0, 0, 1, 4]) if has_peer else 0,
            spread=random.choice([0, 0, 2, 9]),
            peer=peer,
        )
    chance -= climate.change_chance
    if chance < climate.mishap_chance:
        return _draw_mishap(random, submitted, has_peer=has_peer, peer=peer)
    return None


def _draw_mishap(random: Random, submitted: int, *, has_peer: bool, peer: bool) -> Step:
    mishaps: list[Work | Literal["withhold", "give up", "drop", "repeat", "hold", "tell"]]
    mishaps = ["withhold", "give up", "forward", "half a forward", "store", "load", "repeat", "hold", "tell", "tell"]
    match random.choice([*mishaps, "page", "drop"] if has_peer else mishaps):
        case "repeat":
            return Repeat(random.choice(_NEWS), peer=peer)
        case "hold":
            return Hold(random.choice(_NEWS), is_lost=random.random() < 0.3, peer=peer)
        case "tell":
            return Tell(max(0, submitted - random.randint(1, 20)), random.choice(_LATE), peer=peer)
        case "withhold":
            return Withhold(peer=peer)
        case "give up":
            return GiveUp(peer=peer)
        case "drop":
            return Drop(max(0, submitted - random.randint(1, 12)))
        case what:
            is_late = what != "half a forward" and random.random() < 0.5
            return Fail(what, is_late=is_late, peer=peer and what != "page")
