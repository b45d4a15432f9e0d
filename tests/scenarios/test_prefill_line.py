"""Stories of the prefill line: budget, head of line, overtaking (R3.5, R3.9, R6.F)."""

from control_plane.messages import NoteKind
from control_plane.testing.rounds import Rounds


def test_an_incomplete_prefill_holds_the_line(rounds: Rounds) -> None:
    """R3.5: 6K of budget and prompts of 2K, 1K and 10K: two complete, the third gets 3K, and all stop there."""
    rounds.submit(a=2048, b=1024, c=10240, d=64)
    rounds.run(budget_tokens=6144, P=64, pool=400)
    rounds.expect("""
        1 | prefill a[0:2048) b[0:1024) c[0:3072) | line held by c | waits d
    """)


def test_a_completing_chunk_releases_the_line_in_its_round(rounds: Rounds) -> None:
    """A12: the last chunk of one prompt shares its round with the next, which is truncated and holds the line."""
    rounds.submit(x=20, y=40, z=4)
    rounds.run(budget_tokens=16, mixed=False)
    rounds.run(2)
    rounds.expect("""
        1 | prefill x[0:16) | line held by x | waits y z
        2 | prefill x[16:20) y[0:12) | line held by y | waits z
        3 | prefill y[12:28) | line held by y | waits z
    """)


def test_full_groups_spend_the_budget_to_the_last_token(rounds: Rounds) -> None:
    """R3.3: P=64, budget 100, prompt 300: 100, 100, 100; nobody waits for a page boundary."""
    rounds.submit(a=300)
    rounds.run(3, P=64, budget_tokens=100, mixed=False)
    rounds.expect("""
        1 | prefill a[0:100) | line held by a
        2 | prefill a[100:200) | line held by a
        3 | prefill a[200:300)
    """)


def test_mixed_rounds_keep_every_decode_moving(rounds: Rounds) -> None:
    """A11: a prompt of 1600 beside two decodes: every one of its rounds carries both, and is filled to the budget."""
    rounds.configure(budget_tokens=16, pool=700)
    rounds.submit(a=(4, 400), b=(4, 400))
    rounds.run()
    rounds.submit(c=(1600, 1))
    first = len(rounds.plans)
    rounds.run(150)
    with_prefill = [plan for plan in rounds.plans[first:] if plan.forward and plan.forward.num_extends]
    assert len(with_prefill) == 115
    assert all(plan.forward is not None and plan.forward.row_count == 3 for plan in with_prefill)


def test_unmixed_decodes_resume_in_the_first_round_without_prefill(rounds: Rounds) -> None:
    """R6.F: outside mixed mode a prefill has the round alone, and the decodes the first one after it."""
    rounds.configure(budget_tokens=16, mixed=False)
    rounds.submit(a=(4, 40))
    rounds.run(2)
    rounds.submit(b=(40, 2))
    rounds.run(4)
    rounds.expect("""
        1 | prefill a[0:4)
        2 | decode a
        3 | prefill b[0:16) | line held by b
        4 | prefill b[16:32) | line held by b
        5 | prefill b[32:40)
        6 | decode a b
    """)


def test_all_prompts_decode_together_after_the_last_prefill(rounds: Rounds) -> None:
    """A6: no stale mark keeps a request waiting while slots, budget and blocks are free."""
    rounds.configure(batch=4, budget_tokens=16, pool=256, mixed=False)
    rounds.submit(a=(40, 32), b=(40, 32), c=(40, 32), d=(40, 32))
    rounds.run(10)
    rounds.skip()
    rounds.run()
    rounds.expect("""
        11 | decode a b c d
    """)


def test_an_abort_in_its_last_chunk_does_not_hold_the_others(rounds: Rounds) -> None:
    """A6, second half: one of four is aborted with its last chunk out; the other three decode in the next round."""
    rounds.configure(batch=4, budget_tokens=16, pool=256, mixed=False)
    rounds.submit(a=(40, 32), b=(40, 32), c=(40, 32), d=(40, 32))
    rounds.run(10)
    rounds.abort("d")
    rounds.skip()
    rounds.run()
    rounds.expect("""
        11 | decode a b c
    """)


def test_two_long_prompts_do_not_interleave(rounds: Rounds) -> None:
    """A8: with room for one and a bit, the second computes nothing before the first is over; nothing twice."""
    rounds.configure(pool=20, budget_tokens=16, prefix_cache=False)
    rounds.submit(a=(64, 1), b=(64, 1))
    rounds.run_to_end()
    computed = sum(len(plan.forward.input_ids) // 4 for plan in rounds.plans if plan.forward is not None)
    assert computed == 128
    assert rounds.scheduler.stats().retractions == 0
    assert "a" not in rounds.history().split("prefill b[0:")[1]


def test_a_large_prompt_is_overtaken_only_so_often(rounds: Rounds) -> None:
    """R3.9: after `max_overtakes` admissions behind it, nobody enters before the prompt that waits for blocks."""
    rounds.configure(pool=12, max_overtakes=2, batch=8)
    rounds.submit(resident=(12, 20))
    rounds.run()
    rounds.submit(large=(40, 4))
    for name in "uvwxyz":
        rounds.submit(**{name: (3, 1)})
        rounds.run()
    entered = [name for name in "uvwxyz" if f"prefill {name}[" in rounds.history()]
    assert entered == ["u", "v"]
    rounds.run_to_end()
    assert rounds.history().index("prefill large") < rounds.history().index("w[0:3)")


def test_a_full_house_is_noted_and_nobody_is_refused(rounds: Rounds) -> None:
    """I3: more requests than slots: the rest wait, and enter as slots come free."""
    rounds.configure(batch=2)
    rounds.submit(a=(8, 3), b=(8, 2), c=(8, 2))
    rounds.run(3)
    rounds.expect("""
        1 | prefill a[0:8) b[0:8) | no slot | waits c
        2 | decode a b | no slot | waits c
        3 | prefill c[0:8) | decode a
    """)


def test_a_batch_of_one_serves_in_submission_order(rounds: Rounds) -> None:
    """I4: five requests through a single slot, with and without overlap and mixing."""
    for overlap_depth in (0, 1):
        for mixed in (False, True):
            story = Rounds(batch=1, overlap_depth=overlap_depth, mixed=mixed)
            story.submit(a=(10, 6), b=(10, 6), c=(10, 6), d=(10, 6), e=(10, 6))
            story.run_to_end()
            order = [note for note in story.history().split() if note.endswith("[0:10)")]
            assert order == [f"{name}[0:10)" for name in "abcde"]
            assert all(len(tokens) == 6 for tokens in story.outputs.values())


def test_refusals_cost_nothing_while_nothing_changed(rounds: Rounds) -> None:
    """R3.9: a prompt that found no room is not tried again until something was freed."""
    rounds.configure(pool=8)
    rounds.submit(a=(16, 12))
    rounds.run()
    rounds.submit(b=(20, 4))
    rounds.run(6)
    tries = [n for plan in rounds.plans for n in plan.notes if n.kind is NoteKind.BLOCKED]
    assert len(tries) == 1
    rounds.run_to_end()
    assert len(rounds.outputs["b"]) == 4


def test_a_waiting_prompt_enters_when_its_prefix_is_published(rounds: Rounds) -> None:
    """R3.9: a refused prompt is tried again when pages that it shares appear in the cache, though nothing is freed."""
    rounds.configure(pool=8)
    rounds.submit(tokens={"a": [1, 2, 3, 4]}, a=(4, 13))
    rounds.run(2)
    # What `a` is going to say, by the script of the device, and one token more.
    said = [1000 + position for position in range(4, 13)]
    rounds.submit(tokens={"b": [1, 2, 3, 4, *said, 5]}, b=(14, 3))
    rounds.skip()
    rounds.run(5)
    rounds.expect("""
        3 | decode a | b blocked 4 of 3 | waits b
        4 | decode a | waits b
        5 | decode a | waits b
        6 | prefill b[8:14) | decode a | hit b 8
        7 | decode a b
    """)
