"""Tokens a second of our server beside vLLM's and llama.cpp's, in turns on the same prompts and the same cores.

The peers live in environments of their own, made for this and thrown away: a Python with `xllamacpp`, and a `vllm`
command with the CPU build. Each is left out when it is not given. All servers stay up; one is asked at a time.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import aiohttp
import msgspec

from tools.bench.figures import installed, machine_facts, markdown_table
from tools.bench.page import write_section
from tools.bench.serving import FIRST_ORDINARY_ID, ORDINARY_IDS, free_port, served, until_healthy
from tools.bench.workloads import token_ids

LLAMA_SERVER = Path(__file__).with_name("llama_server.py")
FIRST_SEQUENCE = 80_000_000  # of the shared token sequences: no other benchmark takes from here on
SHARES = (0.0, 0.25, 0.5, 0.75, 0.9375)
SHARED_PROMPT_TOKENS = 512


@dataclass(frozen=True)
class Contender:
    """A server that answers `/v1/completions`, and what its weights are."""

    name: str
    weights: str
    url: str
    model: str


@dataclass(frozen=True)
class Turn:
    """One contender's answer to `streams` prompts at once."""

    contender: str
    streams: int
    tokens_per_second: float
    first_token_s: float


def prompts(sequence: int, count: int, length: int) -> list[list[int]]:
    """Prompts of ordinary tokens that share nothing with those of another `sequence`."""
    first = FIRST_SEQUENCE + sequence * 64
    return [(FIRST_ORDINARY_ID + token_ids(first + index, length) % ORDINARY_IDS).tolist() for index in range(count)]


async def ask(session: aiohttp.ClientSession, to: Contender, prompt: Sequence[int], new_tokens: int) -> float:
    """When the first token came. Raises RuntimeError unless all `new_tokens` did."""
    body = {
        "model": to.model,
        "prompt": list(prompt),
        "max_tokens": new_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    first, written = 0.0, 0
    async with session.post(f"{to.url}/v1/completions", json=body) as response:
        if response.status != 200:
            raise RuntimeError(f"{to.name} answered {response.status}: {await response.text()}")
        async for line in response.content:
            if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                first = first or time.perf_counter()
                usage = msgspec.json.decode(line[len(b"data: ") :]).get("usage") or {}
                written = usage.get("completion_tokens", written)
    if written != new_tokens:
        raise RuntimeError(f"{to.name} wrote {written} tokens instead of {new_tokens}")
    return first


async def ask_all(to: Contender, asked: Sequence[Sequence[int]], new_tokens: int) -> Turn:
    """All prompts at once, every stream to its end."""
    connector = aiohttp.TCPConnector(limit=len(asked))
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
        begin = time.perf_counter()
        firsts = await asyncio.gather(*(ask(session, to, prompt, new_tokens) for prompt in asked))
        seconds = time.perf_counter() - begin
    return Turn(to.name, len(asked), len(asked) * new_tokens / seconds, median(firsts) - begin)


def compare(contenders: Sequence[Contender], options: argparse.Namespace) -> list[Turn]:
    """Every contender in every repeat, a different one first each time."""
    turns = []
    for number, streams in enumerate(options.streams):
        for repeat in range(-1, options.repeats):
            asked = prompts(number * 100 + repeat + 1, streams, options.prompt_tokens)
            for place in range(len(contenders)):
                contender = contenders[(place + repeat) % len(contenders)]
                # The one before the first does not count: caches fill, kernels are chosen.
                new_tokens = options.new_tokens if repeat >= 0 else 8
                turn = asyncio.run(ask_all(contender, asked, new_tokens))
                if repeat >= 0:
                    print(turn, flush=True)
                    turns.append(turn)
    return turns


def prefix_hits(ours: Contender, repeats: int) -> list[tuple[float, float, float]]:
    """For each share of a prompt that is in the cache: the share, seconds to the first token, and over none shared."""
    seconds: dict[float, list[float]] = {share: [] for share in SHARES}
    for repeat in range(repeats):
        for number, share in enumerate(SHARES):
            known, fresh = prompts(50_000 + repeat * len(SHARES) + number, 2, SHARED_PROMPT_TOKENS)
            cut = int(share * SHARED_PROMPT_TOKENS)
            asyncio.run(ask_all(ours, [known], 1))
            seconds[share].append(asyncio.run(ask_all(ours, [known[:cut] + fresh[cut:]], 1)).first_token_s)
    whole = median(seconds[0.0])
    return [(share, median(times), median(times) / whole) for share, times in seconds.items()]


def describe(
    contenders: Sequence[Contender], turns: Sequence[Turn], hits: Sequence[tuple[float, float, float]], asked: str
) -> str:
    """Tables of medians; ratios are ours over the peer, of each repeat on its own."""
    ours = contenders[0]
    rows = []
    for streams in sorted({turn.streams for turn in turns}):
        own = [turn for turn in turns if (turn.contender, turn.streams) == (ours.name, streams)]
        for contender in contenders:
            its = [turn for turn in turns if (turn.contender, turn.streams) == (contender.name, streams)]
            ratios = [a.tokens_per_second / b.tokens_per_second for a, b in zip(own, its, strict=True)]
            rows.append(
                [
                    f"{streams} x {contender.name}, {contender.weights}",
                    f"{median(turn.tokens_per_second for turn in its):.1f}",
                    f"{median(turn.first_token_s for turn in its) * 1e3:.0f}",
                    "" if contender is ours else f"{median(ratios):.2f}",
                    "" if contender is ours else ", ".join(f"{ratio:.2f}" for ratio in ratios),
                ]
            )
    head = ["streams and server", "tokens/s", "first token, ms", "ours over it", "of each turn"]
    text = f"{asked}\n\n{markdown_table(head, rows)}"
    if hits:
        cells = [[f"{share:.0%}", f"{seconds * 1e3:.0f}", f"{ratio:.2f}"] for share, seconds, ratio in hits]
        title = f"A prompt of {SHARED_PROMPT_TOKENS} tokens of which a part is in the prefix cache, alone:"
        text += f"\n\n{title}\n\n{markdown_table(['in the cache', 'first token, ms', 'over none'], cells)}"
    return text


@contextmanager
def vllm_server(command: str, folder: Path, dtype: str, cores: int) -> Iterator[Contender]:
    """vLLM's CPU build on all cores: left to itself it may bind its threads to one."""
    port = free_port()
    environment = os.environ | {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{cores - 1}",
        "OMP_NUM_THREADS": str(cores),
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    arguments = ["--host", "127.0.0.1", "--port", str(port), "--dtype", dtype, "--max-model-len", "2048"]
    with running([command, "serve", str(folder), *arguments, "--enforce-eager"], port, environment) as url:
        yield Contender("vLLM", dtype, url, str(folder))


@contextmanager
def llama_server(python: str, gguf: str, slots: int, cores: int) -> Iterator[Contender]:
    """llama.cpp on the file as it is quantized."""
    port = free_port()
    command = [python, str(LLAMA_SERVER), gguf, str(port), str(slots), str(cores)]
    with running(command, port, dict(os.environ)) as url:
        yield Contender("llama.cpp", Path(gguf).stem, url, gguf)


@contextmanager
def running(command: Sequence[str], port: int, environment: dict[str, str]) -> Iterator[str]:
    """The URL of a peer that answers. Raises RuntimeError when it does not come up."""
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        asyncio.run(until_healthy(url, process))
        yield url
    finally:
        process.terminate()
        process.wait(timeout=60)


def main(arguments: Sequence[str] | None = None) -> int:
    """Start the servers, measure, print, and with --write put the tables into docs/performance.md."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench.peers", description=__doc__)
    parser.add_argument("--model", default="smollm2", help="what `tokenspeed serve --model` takes")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--prompt-tokens", type=int, default=128)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--vllm", help="the `vllm` command of an environment with vllm-cpu")
    parser.add_argument("--vllm-dtype", default="float32")
    parser.add_argument("--llama-python", help="the Python of an environment with xllamacpp")
    parser.add_argument("--gguf", help="the file for llama.cpp")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/performance.md")
    options = parser.parse_args(arguments)
    if (options.llama_python is None) != (options.gguf is None):
        parser.error("--llama-python and --gguf go together: give both, or neither to leave llama.cpp out")
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from data_plane.model.sources import resolve

    cores = len(os.sched_getaffinity(0))
    facts = f"{machine_facts()}; {installed('torch', 'transformers')}; OMP_WAIT_POLICY={os.environ['OMP_WAIT_POLICY']}"
    print(facts, flush=True)
    with ExitStack() as stack:
        url = stack.enter_context(served(options.model))
        contenders = [Contender("tokenspeed", "float32", url, options.model)]
        if options.vllm:
            folder = resolve(options.model, print).folder
            contenders.append(stack.enter_context(vllm_server(options.vllm, folder, options.vllm_dtype, cores)))
        if options.llama_python:
            slots = max(options.streams)
            contenders.append(
                stack.enter_context(llama_server(options.llama_python, options.gguf, slots=slots, cores=cores))
            )
        turns = compare(contenders, options)
        hits = prefix_hits(contenders[0], options.repeats)
    asked = (
        f"`{options.model}`, {options.prompt_tokens} prompt tokens and {options.new_tokens} new ones a stream, greedy, "
        "no prompt seen before. Tokens a second are the new ones, from the first byte sent to the last stream's end."
    )
    text = f"{facts}\n\n{describe(contenders, turns, hits, asked)}"
    print(f"\n{text}")
    if options.write:
        write_section(f"peers-{options.model}", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
