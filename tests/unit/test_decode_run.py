"""When a decode run looks at a row again (design §4)."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from control_plane.scheduler.decode_run import Due


@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=5), later=st.lists(st.integers(0, 9), max_size=12))
def test_rows_come_up_when_they_are_due(counts: list[int], later: list[int]) -> None:
    """Beside a naive list: at every count those rows that are beyond theirs, each once, whoever was told otherwise."""
    due, naive = Due(np.array(counts, dtype=np.int32)), list(counts)
    for now, step in enumerate(later):
        row = step % len(naive)
        due.set(row, naive[row] + step)
        naive[row] += step
        assert due.soonest <= min(naive)
        taken = due.take(now)
        assert sorted(taken) == [row for row, count in enumerate(naive) if count < now]
        for row in taken:
            naive[row] = now + row
            due.set(row, naive[row])
