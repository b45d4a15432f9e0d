"""The command line of the benchmarks."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and with --write put the figures into docs/performance.md."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description=__doc__)
    parser.add_argument(
        "what", nargs="?", choices=["all", "rounds", "instructions", "soak", "stream", "serve"], default="rounds"
    )
    parser.add_argument("--write", action="store_true", help="write the figures into docs/performance.md")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller cases")
    rounds = parser.add_argument_group("rounds: ours beside the C++ scheduler and vLLM's")
    rounds.add_argument("--workload", nargs="*", choices=["W1", "W2", "W3", "W4", "W5", "W6"], help="only these")
    rounds.add_argument("--requests", type=int, help="W1: only this batch size")
    rounds.add_argument("--context", type=int, help="W1: only this context length")
    rounds.add_argument("--trace", type=Path, help="W5: a Mooncake conversation trace (JSON lines)")
    rounds.add_argument("--vllm-python", help="a Python with vLLM, numpy and msgspec, to measure its scheduler as well")
    rounds.add_argument("--json", type=Path, help="write every figure to this file")
    rounds.add_argument("--profile", type=Path, help="no figures: profile our rounds, and write pstats here")
    memory = parser.add_argument_group("soak: memory over many rounds")
    memory.add_argument("--rounds", type=int, default=1_000_000)
    serve = parser.add_argument_group("serve: the HTTP server beside the bare model")
    serve.add_argument("--model", default="smollm2", help="what `tokenspeed serve --model` takes")
    serve.add_argument("--streams", type=int, default=16, help="concurrent requests, and the bare model's batch")
    serve.add_argument("--prompt-tokens", type=int, default=512)
    options = parser.parse_args(arguments)
    benches = {
        "all": bench_all,
        "stream": bench_streaming,
        "rounds": bench_rounds,
        "instructions": bench_instructions,
        "soak": bench_memory,
        "serve": bench_serving,
    }
    return benches[options.what](options)


def bench_rounds(options: argparse.Namespace) -> int:
    """W1 to W6."""
    # What a benchmark needs is imported when it runs: serving without the reference's wheel, rounds without torch.
    from tools.bench import planes

    return planes.bench_rounds(options)


def bench_instructions(options: argparse.Namespace) -> int:
    """Instructions of a decode round, ours and the reference's: the figure that a busy machine does not move."""
    from tools.bench.figures import installed
    from tools.bench.instructions import COUNTED, OURS_AND_THEIRS, count_instructions, describe_instructions
    from tools.bench.page import write_section

    cases = [case for case in COUNTED if options.requests in (None, case[0]) and options.context in (None, case[1])]
    counted = count_instructions(cases, OURS_AND_THEIRS)
    text = f"{installed('numpy', 'msgspec', 'tokenspeed-scheduler')}\n\n{describe_instructions(counted)}"
    print(f"\n{text}")
    if options.write:
        write_section("instructions", text)
    return 0


def bench_memory(options: argparse.Namespace) -> int:
    """Whether memory stays flat over many rounds, and the bytes of a resident request."""
    from tools.bench.figures import machine_facts
    from tools.bench.page import write_section
    from tools.bench.soak import bytes_per_resident, describe_soak, soak
    from tools.bench.workloads import decode_cases

    cases = [case for case in decode_cases() if case.batch == 256 and case.context < 32768]
    resident = [(case, bytes_per_resident(case)) for case in cases]
    text = f"{machine_facts()}\n\n{describe_soak(soak(options.rounds), resident)}"
    print(f"\n{text}")
    if options.write:
        write_section("memory", text)
    return 0


def bench_streaming(options: argparse.Namespace) -> int:
    """Processor time of a streamed token, and of an idle server."""
    from tools.bench.figures import machine_facts
    from tools.bench.page import write_section
    from tools.bench.streaming import describe_streaming, idle_cpu_ms, measure_streaming

    measured = measure_streaming(64, 50 if options.quick else 400)
    text = f"{machine_facts()}\n\n{describe_streaming(measured, idle_cpu_ms())}"
    print(f"\n{text}")
    if options.write:
        write_section("streaming", text)
    return 0


def bench_all(options: argparse.Namespace) -> int:
    """Everything about the control plane, and the table of targets."""
    from tools.bench import whole

    return whole.bench_all(options)


def bench_serving(options: argparse.Namespace) -> int:
    """Tokens a second through the server beside the bare model."""
    # For both sides, and before torch is loaded: a spinning thread that loses its core stretches a step tenfold.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    from tools.bench.figures import installed, machine_facts
    from tools.bench.page import write_section
    from tools.bench.serving import Load, describe_serving, measure_serving

    load = Load(
        model=options.model,
        streams=options.streams,
        prompt_tokens=options.prompt_tokens,
        new_tokens=32 if options.quick else 64,
        repeats=1 if options.quick else 3,
    )
    versions = installed("torch", "transformers", "aiohttp", "uvloop")
    facts = f"{machine_facts()}; {versions}; OMP_WAIT_POLICY={os.environ['OMP_WAIT_POLICY']}"
    print(facts, flush=True)
    text = f"{facts}\n\n{describe_serving(load, measure_serving(load))}"
    print(f"\n{text}")
    if options.write:
        write_section("serving", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
