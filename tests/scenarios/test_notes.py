"""The marks that decisions leave, beyond those that the round lines show: what a reader of a recording is told."""

from control_plane.messages import Note, NoteKind, Retract
from control_plane.testing.rounds import Rounds


def notes(rounds: Rounds, kind: NoteKind) -> list[tuple[str, tuple[int, ...]]]:
    """Every mark of a kind so far, with the name of whom it concerns."""
    names = {key: name for name, key in rounds.keys.items()}
    found: list[Note] = [note for plan in rounds.plans for note in plan.notes if note.kind is kind]
    return [(names[note.key], note.numbers) for note in found]


def test_who_finds_the_budget_spent_is_told(rounds: Rounds) -> None:
    """R3.3: two prompts take all 16 tokens of the round; the third is told that none were left."""
    rounds.configure(budget_tokens=16)
    rounds.submit(a=(8, 2), b=(8, 2), c=(8, 2))
    rounds.run()
    assert notes(rounds, NoteKind.NO_BUDGET) == [("c", (0,))]


def test_a_victim_is_told_why_it_was_chosen(rounds: Rounds) -> None:
    """R5.5: of two that could give way the older one does; when it comes back, that is noted."""
    rounds.configure(pool=12, budget_tokens=16, batch=2)
    rounds.submit(a=20, b=20)
    rounds.run(12)
    ((victim, numbers), *_) = notes(rounds, NoteKind.RETRACTED)
    assert victim == "a"
    tokens, _, retractions, served, candidates, spared, was_prefilling, last_resort, comes_first = numbers
    assert tokens > 20
    assert (retractions, served) == (1, rounds.keys["a"])
    assert (candidates, spared, was_prefilling, last_resort, comes_first) == (2, 0, 0, 0, 0)
    rounds.abort("b")
    rounds.run(2)
    ((name, (available, count)),) = notes(rounds, NoteKind.READMITTED)
    assert (name, count) == ("a", 1)
    assert available == 12


def test_a_hit_is_told_by_tier(rounds: Rounds) -> None:
    """R4.4: of 32 cached tokens the device still has 16; the other 16 come from the host, by copies that are named."""
    rounds.configure(pool=24, host_blocks=40, budget_tokens=100)
    prompt = list(range(32))
    rounds.submit(tokens={"a": [*prompt, 77]}, a=(33, 1))
    rounds.run_to_end()
    rounds.submit(x=(76, 1))
    rounds.run_to_end()
    rounds.submit(tokens={"b": [*prompt, 88]}, b=(33, 2))
    rounds.run()
    assert notes(rounds, NoteKind.HIT) == [("b", (32, 16))]
    ops = [load.op for load in rounds.plans[-1].load_backs]
    assert notes(rounds, NoteKind.LOADED) == [("b", (4, *ops))]


def test_a_roll_back_leaves_a_mark(rounds: Rounds) -> None:
    """R7.5: what the device could not fill prefills again; the next plan says so."""
    rounds.configure(budget_tokens=16)
    rounds.submit(a=(8, 4))
    rounds.run(3)
    rounds.land_all()
    rounds.deliver(Retract(rounds.keys["a"]))
    rounds.run()
    ((name, (tokens,)),) = notes(rounds, NoteKind.ROLLED_BACK)
    assert name == "a"
    assert tokens == 8 + len(rounds.outputs["a"])
