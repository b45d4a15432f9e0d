"""The engine as a library: a guest that cleans up after itself."""

import asyncio
import gc
import logging
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from control_plane.rounds.replay import replay
from data_plane.model.faulty import FaultyRunner
from data_plane.model.stamp import StampOptions, StampRunner
from tokenspeed import (
    AsyncEngine,
    ConfigError,
    Engine,
    EngineConfig,
    EngineUnavailable,
    GenerationFailed,
    RequestRejected,
    SamplingParams,
)

STAMP = {"model": "stamp", "max_context_tokens": 1024}
SIZE = StampOptions(max_context_tokens=1024)


@pytest.fixture
async def engine() -> AsyncIterator[AsyncEngine]:
    async with await AsyncEngine.start(EngineConfig(**STAMP)) as running:
        yield running


async def drained(engine: AsyncEngine) -> None:
    """Until the scheduler knows what was taken back, and no result is out."""
    while (stats := engine.stats().scheduler).running or stats.waiting or stats.rounds_in_flight:
        await asyncio.sleep(0)
    assert engine.audit() == []
    assert engine.unfinished_count == 0


async def text_of(engine: AsyncEngine, prompt: str | list[int], **params: Any) -> str:
    return "".join([output.text async for output in engine.generate(prompt, SamplingParams(**params))])


async def test_deltas_and_their_end(engine: AsyncEngine) -> None:
    """Ids and text say the same, usage rises, the reason comes last and once."""
    outputs = [output async for output in engine.generate([1, 2, 3], SamplingParams(max_tokens=6), request_id="mine")]
    ids = [token for output in outputs for token in output.token_ids]
    assert "".join(output.text for output in outputs) == engine.tokenizer.decode(ids)
    assert [output.finish_reason for output in outputs] == [None] * (len(outputs) - 1) + ["length"]
    assert {output.request_id for output in outputs} == {"mine"}
    assert (outputs[-1].usage.prompt_tokens, outputs[-1].usage.completion_tokens) == (3, 6)


async def test_leaving_the_iterator_aborts_the_request(engine: AsyncEngine) -> None:
    """By closing it, by leaving the loop, and by cancelling the task that reads."""
    endless = SamplingParams(max_tokens=1000)
    async with aclosing(engine.generate("a", endless)) as outputs:
        await anext(outputs)
        assert engine.unfinished_count == 1
    assert engine.unfinished_count == 0

    async for _ in engine.generate("a", endless):
        break
    await asyncio.sleep(0)  # the event loop closes a dropped generator in a task of its own
    await drained(engine)

    reader = asyncio.create_task(text_of(engine, "a", max_tokens=1000))
    while not engine.stats().scheduler.running:
        await asyncio.sleep(0)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    await drained(engine)
    assert engine.failure is None


async def test_an_iterator_that_was_never_read_submits_nothing(engine: AsyncEngine) -> None:
    """Making it is no request yet."""
    outputs = engine.generate("a")
    await outputs.aclose()
    assert engine.stats().scheduler.rounds == 0


async def test_abort_by_id_ends_the_readers_stream(engine: AsyncEngine) -> None:
    """B6: all of several choices at once, each with a last output; an id that is not there is no error."""
    params = SamplingParams(max_tokens=1000, n=3)
    reasons = {}
    async for output in engine.generate("a", params, request_id="three"):
        if output.finish_reason is not None:
            reasons[output.index] = output.finish_reason
        elif not reasons and output.usage.completion_tokens >= 2:
            assert engine.abort("three") or reasons
    assert set(reasons) == {0, 1, 2}
    assert set(reasons.values()) == {"abort"}
    assert not engine.abort("three")
    await drained(engine)


async def test_closing_ends_all_choices_of_a_request(engine: AsyncEngine) -> None:
    """B6: one reader of three choices goes; two rounds later the scheduler knows none of them."""
    async with aclosing(engine.generate("a", SamplingParams(max_tokens=1000, n=3))) as outputs:
        for _ in range(5):
            await anext(outputs)
    rounds = engine.stats().scheduler.rounds
    await drained(engine)
    assert engine.stats().scheduler.rounds <= rounds + 2


async def test_two_requests_with_one_id_do_not_meet(engine: AsyncEngine) -> None:
    """B7: both run to their own end; after an abort the same id may be used at once."""

    async def ask(prompt: str) -> str:
        params = SamplingParams(max_tokens=30, temperature=0)
        return "".join([output.text async for output in engine.generate(prompt, params, request_id="same")])

    both = await asyncio.gather(ask("a"), ask("b"))
    assert both == [await text_of(engine, prompt, max_tokens=30, temperature=0) for prompt in "ab"]
    async with aclosing(engine.generate("c", SamplingParams(max_tokens=1000), request_id="same")) as outputs:
        await anext(outputs)
    assert await ask("a") == both[0]
    await drained(engine)


async def test_abort_storms_leave_nothing_behind(engine: AsyncEngine) -> None:
    """B8: requests dropped before, in and after every stage; then the books are clean and a plain one works."""
    before = len(asyncio.all_tasks())
    turns = asyncio.Semaphore(20)

    async def drop(number: int) -> None:
        params = SamplingParams(max_tokens=1 + number % 7, n=1 + number % 2)
        async with turns, aclosing(engine.generate([1 + number % 200] * (1 + number % 90), params)) as outputs:
            for _ in range(number % 9):
                if await anext(outputs, None) is None:
                    return

    await asyncio.gather(*(drop(number) for number in range(1000)))
    await drained(engine)
    assert len(asyncio.all_tasks()) == before
    rounds = engine.stats().scheduler.rounds
    assert len((await text_of(engine, "plain", max_tokens=5)).split()) == 5
    assert engine.stats().scheduler.rounds <= rounds + 7


async def test_a_failed_generation_raises_and_others_go_on() -> None:
    """The error cannot be overlooked; the engine serves the next one."""
    runner = FaultyRunner(StampRunner(SIZE), fail_rounds=(3,))
    async with await AsyncEngine.start(EngineConfig(**STAMP), runner=runner) as engine:
        with pytest.raises(GenerationFailed, match="batch 3 was told to fail"):
            await text_of(engine, "a", max_tokens=9)
        assert await text_of(engine, "a", max_tokens=2)
        await drained(engine)


async def test_bad_prompts_are_refused_with_their_numbers(engine: AsyncEngine) -> None:
    """Before anything is submitted, naming what is wrong."""
    for prompt, message in (
        ("", "prompt is empty"),
        ([], "prompt is empty"),
        ([300], "token_id=300, vocab_size=256"),
        ([1.5], "1.5, which is not a token id"),
        ([1] * 1024, "prompt_tokens=1024, max_context_tokens=1024"),
        ("x" * 10**6, "prompt_bytes=1000000, limit_bytes=5120"),
    ):
        with pytest.raises(RequestRejected, match=message):
            await text_of(engine, prompt, max_tokens=1)  # type: ignore[arg-type]
    assert engine.unfinished_count == 0


async def test_a_closed_engine_says_so() -> None:
    """Closing twice is fine, from two tasks too; a request afterwards is refused."""
    engine = await AsyncEngine.start(EngineConfig(**STAMP))
    await asyncio.gather(engine.aclose(), engine.aclose())
    await engine.aclose()
    with pytest.raises(EngineUnavailable, match="closed"):
        await text_of(engine, "a")


async def test_it_is_a_guest() -> None:
    """I6: handlers, loop policy, root logger, tasks, threads and descriptors are as before, twenty times over."""

    def surroundings() -> dict[str, object]:
        gc.collect()
        return {
            "handlers": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
            "root": (logging.getLogger().level, tuple(logging.getLogger().handlers)),
            "tasks": len(asyncio.all_tasks()),
            "threads": threading.active_count(),
            "files": len(list(Path("/proc/self/fd").iterdir())),
        }

    async def once() -> None:
        async with await AsyncEngine.start(EngineConfig(**STAMP)) as engine:
            assert await text_of(engine, "x", max_tokens=2)

    signal.signal(signal.SIGTERM, mine := lambda number, frame: None)
    try:
        await once()  # what a process loads once
        before = surroundings()
        for _ in range(20):
            await once()
        assert surroundings() == before
        assert signal.getsignal(signal.SIGTERM) is mine
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


async def test_a_start_that_is_cancelled_leaves_nothing() -> None:
    """Loading goes on in its thread, and what it built is given back."""
    begun = threading.Event()
    go_on = threading.Event()

    def progress(line: str) -> None:
        begun.set()
        go_on.wait()

    def others() -> set[str]:
        return {thread.name for thread in threading.enumerate() if not thread.name.startswith("asyncio")}

    before = others()
    start = asyncio.create_task(AsyncEngine.start(EngineConfig(**STAMP), progress=progress))
    await asyncio.to_thread(begun.wait)
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    pending = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    go_on.set()
    await asyncio.gather(*pending)
    await asyncio.sleep(0)
    assert others() == before


async def test_settings_that_cannot_work_start_nothing() -> None:
    """Before loading, and after it when only the device knows."""
    with pytest.raises(ConfigError, match="max_batch_size=0"):
        await AsyncEngine.start(EngineConfig(**STAMP, max_batch_size=0))
    with pytest.raises(ConfigError, match=r"record='/proc/self/nothing'"):
        await AsyncEngine.start(EngineConfig(**STAMP, record="/proc/self/nothing"))


async def test_a_recorded_run_replays(tmp_path: Path) -> None:
    """Plans of a run with aborts and stop strings come out the same, byte for byte."""
    file = tmp_path / "run.rounds"
    async with await AsyncEngine.start(EngineConfig(**STAMP, record=str(file), device_blocks=12)) as engine:
        await asyncio.gather(*(text_of(engine, [number + 1] * 40, max_tokens=20, stop=" w7") for number in range(6)))
        async with aclosing(engine.generate("a", SamplingParams(max_tokens=100))) as outputs:
            await anext(outputs)
        await drained(engine)
    replayed = replay(file)
    assert replayed.difference is None
    assert replayed.rounds > 20


async def test_tokenising_a_huge_prompt_does_not_stop_the_streams(engine: AsyncEngine) -> None:
    """H12: a long text is encoded in a thread while others go on; one that cannot fit is not encoded at all."""
    encoding, go_on = threading.Event(), threading.Event()
    encode = engine.tokenizer.encode

    def slow(text: str, *, add_special_tokens: bool = True) -> list[int]:
        if len(text) > 2000:
            encoding.set()
            go_on.wait()
        return encode(text, add_special_tokens=add_special_tokens)

    engine.tokenizer.encode = slow  # type: ignore[method-assign]
    long = asyncio.create_task(text_of(engine, "x" * 5000, max_tokens=1))
    await asyncio.to_thread(encoding.wait)
    assert len((await text_of(engine, "x", max_tokens=50)).split()) == 50
    with pytest.raises(RequestRejected, match="prompt_bytes=5000000"):
        await text_of(engine, "x" * 5_000_000)
    go_on.set()
    with pytest.raises(RequestRejected, match="prompt_tokens=5000"):
        await long


def test_the_offline_engine_answers_lists() -> None:
    """More prompts than fit at once, in order, with all their choices; the same as one by one."""
    with Engine(EngineConfig(**STAMP, max_batch_size=4)) as engine:
        prompts = [[1 + number] * 5 for number in range(30)]
        params = SamplingParams(max_tokens=4, seed=3, n=2)
        outputs = engine.generate(prompts, params)
        assert [output.index for output in outputs] == [0, 1] * 30
        assert outputs[8].text == engine.generate([prompts[4]], params)[0].text
        assert all(output.usage.completion_tokens == len(output.token_ids) == 4 for output in outputs)
        with pytest.raises(RequestRejected, match="prompt is empty"):
            engine.generate(["a", ""])
        assert engine.generate([]) == []
    with pytest.raises(EngineUnavailable):
        engine.generate(["a"])


def test_a_batch_keeps_what_did_not_fail() -> None:
    """One request's fault is its own: the others' texts are there."""
    runner = FaultyRunner(StampRunner(SIZE), fail_keys=(2,))
    config = EngineConfig(**STAMP, max_batch_size=1, max_scheduled_tokens=64, overlap_depth=0)
    with Engine(config, runner=runner) as engine:
        outputs = engine.generate(["a", "b", "c"], SamplingParams(max_tokens=3))
    assert [output.finish_reason for output in outputs] == ["length", "error", "length"]
    assert "told to fail" in outputs[1].error


def test_an_offline_engine_that_cannot_start_leaves_no_thread() -> None:
    """The event loop's thread ends with the error."""
    before = threading.active_count()
    with pytest.raises(ConfigError):
        Engine(EngineConfig(**STAMP, record="/proc/self/nothing"))
    assert threading.active_count() == before
