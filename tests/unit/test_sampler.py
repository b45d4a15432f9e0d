"""The sampler: what it draws, from which set, and that a draw is a request's own affair."""

import numpy as np
import pytest
import torch

from control_plane.messages import Sampling, SlotBinding
from control_plane.messages.columns import pack
from data_plane.model.noise import uniforms
from data_plane.model.sampler import CPU_CANDIDATES, Sampler

VOCABULARY = 50
CPU = torch.device("cpu")


def sampler_with(
    *settings: Sampling, vocabulary: int = VOCABULARY, histories: dict[int, list[int]] | None = None
) -> Sampler:
    """A sampler whose slots 0, 1, ... have these settings; histories are prompts of two tokens, then output."""
    sampler = Sampler(vocab_size=vocabulary, slots=len(settings), device=CPU)
    for slot, sampling in enumerate(settings):
        history = pack((histories or {}).get(slot, []))
        sampler.bind(SlotBinding(slot, slot + 1, 2, history, sampling))
    return sampler


def draw(sampler: Sampler, logits: torch.Tensor, slots: list[int], positions: list[int]) -> list[int]:
    """Sample rows, leaving the given logits as they are."""
    tokens = sampler.sample(logits.clone(), slots=np.array(slots, np.int32), positions=np.array(positions, np.int32))
    return [int(token) for token in tokens]


def random_logits(rows: int, *, vocabulary: int = VOCABULARY, seed: int = 0) -> torch.Tensor:
    """Logits with a clear order."""
    return torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(seed)) * 2


def draws(sampling: Sampling, logits: torch.Tensor, count: int) -> list[int]:
    """One row drawn at many positions."""
    sampler = sampler_with(sampling, vocabulary=logits.shape[-1])
    rows = logits.expand(count, -1)
    return draw(sampler, rows, [0] * count, list(range(count)))


def test_noise_is_uniform_over_positions_and_over_seeds() -> None:
    """Sixteen equal bins, both ways of counting; and no two streams alike. (chi-square, 15 degrees: 37.7 at 0.001)"""
    numbers = np.arange(20_000, dtype=np.uint64)
    for seeds, positions in ((np.full_like(numbers, 7), numbers), (numbers, np.full_like(numbers, 3))):
        drawn = uniforms(seeds, positions)
        assert drawn.min() >= 0
        assert drawn.max() < 1
        observed = np.bincount((drawn * 16).astype(int), minlength=16)
        assert ((observed - 1250) ** 2 / 1250).sum() < 37.7
    grid_seeds, grid_positions = np.meshgrid(numbers[:300], numbers[:300])
    assert len(np.unique(uniforms(grid_seeds, grid_positions))) == 90_000


def test_greedy_takes_the_largest() -> None:
    """Temperature 0 needs no noise."""
    logits = random_logits(5)
    assert draw(sampler_with(*[Sampling()] * 5), logits, [0, 1, 2, 3, 4], [9] * 5) == logits.argmax(dim=-1).tolist()


@pytest.mark.parametrize(
    "sampling",
    [Sampling(temperature=1.3, top_k=1, seed=5), Sampling(temperature=0.9, top_p=1e-6), Sampling(temperature=1e-9)],
)
def test_the_narrowest_settings_are_greedy(sampling: Sampling) -> None:
    """Only the most likely token is left."""
    logits = random_logits(1)
    assert set(draws(sampling, logits, 50)) == {int(logits.argmax())}


@pytest.mark.parametrize("sampling", [Sampling(temperature=1.7), Sampling(temperature=1.7, top_k=VOCABULARY - 1)])
def test_draws_follow_the_distribution(sampling: Sampling) -> None:
    """Both ways of drawing: over the vocabulary by id, and over ranked tokens. (chi-square, under 86.7 at 0.001)"""
    logits = random_logits(1)
    expected = (logits[0].double() / 1.7).softmax(dim=0)
    if sampling.top_k:
        expected[logits.argmin()] = 0
        expected /= expected.sum()
    count = 40_000
    observed = np.bincount(draws(sampling, logits, count), minlength=VOCABULARY)
    wanted = expected.numpy() * count
    likely = wanted >= 5
    assert observed[wanted == 0].sum() == 0
    assert ((observed - wanted)[likely] ** 2 / wanted[likely]).sum() < 86.7


def test_top_k_keeps_k_and_equal_logits_rank_by_id() -> None:
    """Of four equal candidates for the last two places, the ones with smaller ids stay."""
    logits = torch.full((1, VOCABULARY), -5.0)
    logits[0, [40, 10, 30, 20]] = 1.0
    logits[0, 25] = 1.5
    assert set(draws(Sampling(temperature=1.0, top_k=3), logits, 400)) == {25, 10, 20}


def test_top_p_keeps_the_smallest_set_that_reaches_the_mass() -> None:
    """Masses 0.5, 0.3, 0.15, 0.05: 0.8 is reached by two, 0.81 needs a third, 0.96 all."""
    logits = torch.full((1, VOCABULARY), -torch.inf)
    logits[0, [7, 3, 20, 11]] = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    for top_p, kept in ((0.49, {7}), (0.79, {7, 3}), (0.81, {7, 3, 20}), (0.96, {7, 3, 20, 11})):
        assert set(draws(Sampling(temperature=1.0, top_p=top_p), logits, 400)) == kept


def test_top_p_counts_within_what_top_k_left() -> None:
    """Of the three that top-k leaves, two hold 0.8/0.95 = 0.84 of the mass."""
    logits = torch.full((1, VOCABULARY), -torch.inf)
    logits[0, [7, 3, 20, 11]] = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert set(draws(Sampling(temperature=1.0, top_k=3, top_p=0.83), logits, 400)) == {7, 3}


@pytest.mark.parametrize(
    "extra", [Sampling(temperature=1.0, min_p=0.29), Sampling(temperature=1.0, min_p=0.29, top_k=40)]
)
def test_min_p_is_a_share_of_the_largest(extra: Sampling) -> None:
    """Below 0.29 times 0.5 nothing is drawn, ranked or not."""
    logits = torch.full((1, VOCABULARY), -torch.inf)
    logits[0, [7, 3, 20, 11]] = torch.tensor([0.5, 0.3, 0.15, 0.05]).log()
    assert set(draws(extra, logits, 400)) == {7, 3, 20}


def test_a_wide_nucleus_is_not_cut_at_the_candidates() -> None:
    """A flat distribution keeps more tokens than are ranked at first; the rest are found, and nothing beyond them."""
    vocabulary = CPU_CANDIDATES * 4
    logits = torch.zeros(1, vocabulary)
    drawn = draws(Sampling(temperature=1.0, top_p=0.5), logits, 3000)
    assert max(drawn) < vocabulary // 2 + 1
    assert max(drawn) > CPU_CANDIDATES
    peaked = random_logits(1, vocabulary=vocabulary) * 4
    narrow = Sampling(temperature=1.0, top_p=0.9, seed=3)
    both = sampler_with(narrow, Sampling(temperature=1.0, top_p=0.5, seed=4), vocabulary=vocabulary)
    together = draw(both, torch.cat([peaked, logits]), [0, 1], [0, 0])
    assert together[0] == draws(narrow, peaked, 1)[0]


def naive_penalties(logits: np.ndarray, prompt: list[int], output: list[int], sampling: Sampling) -> np.ndarray:
    """The definition, one token at a time."""
    result = logits.copy()
    for token in range(len(logits)):
        if token in prompt or token in output:
            factor = sampling.repetition_penalty
            result[token] = result[token] / factor if result[token] > 0 else result[token] * factor
        result[token] -= sampling.frequency_penalty * output.count(token)
        result[token] -= sampling.presence_penalty * (token in output)
    return result


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(repetition_penalty=1.8),
        Sampling(presence_penalty=1.5),
        Sampling(frequency_penalty=0.7),
        Sampling(repetition_penalty=0.8, presence_penalty=-0.5, frequency_penalty=0.9),
    ],
)
def test_penalties_match_their_definition(sampling: Sampling) -> None:
    """Twenty greedy tokens from one row of logits: each choice changes the next, as the naive reference says."""
    prompt, output = [4, 9], [9, 4, 4]
    logits = random_logits(1, seed=3)
    sampler = sampler_with(sampling, histories={0: prompt + output})
    for step in range(20):
        expected = int(naive_penalties(logits[0].numpy(), prompt, output, sampling).argmax())
        assert draw(sampler, logits, [0], [step]) == [expected]
        output.append(expected)


MIXED = [
    Sampling(),
    Sampling(temperature=1.0, seed=1),
    Sampling(temperature=0.7, top_k=5, seed=2),
    Sampling(temperature=1.2, top_p=0.8, seed=3),
    Sampling(temperature=1.0, min_p=0.1, seed=4),
    Sampling(temperature=1.0, seed=1, presence_penalty=0.5),
]


def test_a_token_does_not_depend_on_the_batch() -> None:
    """Every setting alone, all together, and in another order: the same tokens."""
    logits = random_logits(len(MIXED), seed=8)
    slots = list(range(len(MIXED)))
    positions = [10, 20, 30, 40, 50, 60]
    histories = {5: [1, 2, 3, 3]}
    together = draw(sampler_with(*MIXED, histories=histories), logits, slots, positions)
    backwards = draw(sampler_with(*MIXED, histories=histories), logits.flip(0), slots[::-1], positions[::-1])
    alone = [
        draw(sampler_with(*MIXED, histories=histories), logits[slot : slot + 1], [slot], [positions[slot]])[0]
        for slot in slots
    ]
    assert together == alone == backwards[::-1]


def test_a_retraction_changes_nothing() -> None:
    """Bound again with its history, a request goes on with the same tokens, and its old slot forgets it."""
    sampling = Sampling(temperature=1.0, top_k=20, seed=99, frequency_penalty=1.0, repetition_penalty=1.3)
    logits = random_logits(1, seed=5)
    whole = sampler_with(sampling, histories={0: [1, 2]})
    expected = [draw(whole, logits, [0], [position])[0] for position in range(2, 14)]

    again = sampler_with(Sampling(), Sampling(temperature=1.0))
    again.bind(SlotBinding(0, 1, 2, pack([1, 2]), sampling))
    first = [draw(again, logits, [0], [position])[0] for position in range(2, 7)]
    again.bind(SlotBinding(0, 2, 2, b"", Sampling()))
    again.bind(SlotBinding(1, 1, 2, pack([1, 2, *first]), sampling))
    rest = [draw(again, logits, [1], [position])[0] for position in range(7, 14)]
    assert first + rest == expected
    assert draw(again, logits, [0], [7]) == [int(logits.argmax())]


def test_seeds_and_positions_matter() -> None:
    """Two seeds write different texts; one seed does not write one token for ever."""
    logits = random_logits(1, seed=6)
    one, two = (draws(Sampling(temperature=1.5, seed=seed), logits, 30) for seed in (1, 2))
    assert one != two
    assert len(set(one)) > 5
