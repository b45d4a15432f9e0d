"""The simulation's programs as Hypothesis draws them: few steps, in the weather that a test asks for."""

from collections.abc import Callable
from itertools import islice
from random import Random

from hypothesis import settings
from hypothesis import strategies as st
from msgspec import structs

from tools.simulate.draw_setting import draw_setting
from tools.simulate.draw_steps import Climate, draw_climate, draw_steps
from tools.simulate.program import Program, Setting
from tools.simulate.report import failure_report
from tools.simulate.run import Outcome
from tools.simulate.shrink import shrink

MOST_STEPS = 10
MOST_TOKENS = 64
"""Of a request: a hundred short programs meet more than one long one."""


def share(divisor: int) -> settings:
    """A share of what the profile tries, for what is run more than once or looked at all over."""
    return settings(max_examples=max(1, settings().max_examples // divisor))


@st.composite
def programs(
    draw: st.DrawFn,
    *,
    setting: Callable[[Random], Setting] = draw_setting,
    climate: Callable[[Random], Climate] = draw_climate,
) -> Program:
    """What `tools.simulate` would run from some seed, up to its first steps."""
    random = Random(draw(st.integers(0, 2**32)))
    chosen = setting(random)
    chosen = structs.replace(chosen, context_tokens=min(chosen.context_tokens, MOST_TOKENS))
    steps = draw_steps(random, chosen, climate(random))
    return Program(chosen, tuple(islice(steps, draw(st.integers(1, MOST_STEPS)))))


def check(outcome: Outcome) -> None:
    """Nothing was violated; or the failure is told, made short, as a test to paste."""
    assert outcome.failure is None, failure_report(outcome, shrink(outcome))
