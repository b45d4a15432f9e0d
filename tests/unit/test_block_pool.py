"""The LCM pool against a naive model, and its placement policy by example."""

from hypothesis import given
from hypothesis import strategies as st

from control_plane.cache.core.block_pool import BlockPool


def test_bound_parents_are_filled_before_an_empty_one() -> None:
    """Placement: the most occupied bound parent first, its lowest child; an empty parent only when none has room."""
    pool = BlockPool(parents=3, packings=[3])
    assert pool.take(0, 4) == [3, 4, 5, 6]
    pool.give_back(0, 4)
    assert pool.take(0, 1) == [4]
    assert pool.take(0, 2) == [7, 8]
    pool.give_back(0, 3)
    pool.give_back(0, 4)
    pool.give_back(0, 6)
    # Parent 2 has two children occupied and parent 1 one: parent 2 is filled first.
    assert pool.take(0, 1) == [6]
    assert pool.take(0, 1) == [3]
    assert pool.empty_count == 1


def test_a_parent_belongs_to_one_group_until_its_last_child_is_free() -> None:
    """A parent bound to one group is no room for another, however empty it is."""
    pool = BlockPool(parents=1, packings=[4, 2])
    pool.take(0, 1)
    assert pool.missing_parents([3, 0]) == 0
    assert pool.missing_parents([0, 1]) == 1
    pool.give_back(0, 4)
    assert pool.missing_parents([0, 2]) == 0
    assert pool.take(1, 2) == [2, 3]


@given(
    parents=st.integers(1, 6),
    packings=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    steps=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5), st.booleans()), max_size=60),
)
def test_the_pool_agrees_with_a_naive_one(
    parents: int, packings: list[int], steps: list[tuple[int, int, bool]]
) -> None:
    """Random takes, returns and undone returns: no block twice, none lost, and `missing_parents` tells what fits."""
    pool = BlockPool(parents=parents, packings=packings)
    held: list[set[int]] = [set() for _ in packings]
    for group, amount, is_taking in steps:
        group %= len(packings)
        if is_taking:
            wanted = [0] * len(packings)
            wanted[group] = amount
            bound = [{block // packing for block in blocks} for blocks, packing in zip(held, packings, strict=True)]
            empty = parents - sum(len(b) for b in bound)
            loose = len(bound[group]) * packings[group] - len(held[group])
            fits = amount <= loose + empty * packings[group]
            assert (pool.missing_parents(wanted) == 0) == fits
            if fits:
                taken = pool.take(group, amount)
                assert len(set(taken)) == amount
                assert not held[group] & set(taken)
                assert all(1 <= block // packings[group] <= parents for block in taken)
                held[group] |= set(taken)
        elif held[group]:
            block = sorted(held[group])[amount % len(held[group])]
            pool.give_back(group, block)
            if amount % 2:
                pool.reoccupy(group, block)
            else:
                held[group].remove(block)
        for other, blocks in enumerate(held):
            assert pool.occupied_count(other) == len(blocks)
            assert pool.bound_count(other) == len({block // packings[other] for block in blocks})
        assert pool.empty_count == parents - sum(pool.bound_count(other) for other in range(len(packings)))
