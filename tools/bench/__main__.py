"""The command line of the benchmarks."""

import argparse
import os
import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and with --write put the figures into docs/performance.md."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench", description=__doc__)
    parser.add_argument("what", nargs="?", choices=["rounds", "serve"], default="rounds")
    parser.add_argument("--write", action="store_true", help="write the figures into docs/performance.md")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller cases")
    rounds = parser.add_argument_group("rounds: ours beside the C++ scheduler")
    rounds.add_argument("--workload", choices=["W1", "W6"], help="only this one")
    rounds.add_argument("--requests", type=int, help="W1: only this batch size")
    serve = parser.add_argument_group("serve: the HTTP server beside the bare model")
    serve.add_argument("--model", default="smollm2", help="what `tokenspeed serve --model` takes")
    serve.add_argument("--streams", type=int, default=16, help="concurrent requests, and the bare model's batch")
    serve.add_argument("--prompt-tokens", type=int, default=512)
    options = parser.parse_args(arguments)
    return bench_serving(options) if options.what == "serve" else bench_rounds(options)


def bench_rounds(options: argparse.Namespace) -> int:
    """W1 and W6."""
    # Imported here, so that serving is measured without the reference's wheel and rounds without torch.
    from tools.bench.figures import installed, machine_facts
    from tools.bench.ours import OurScheduler
    from tools.bench.page import write_section
    from tools.bench.reference import ReferenceScheduler
    from tools.bench.report import case_name, describe_rounds, triple
    from tools.bench.rounds import compare, quickened
    from tools.bench.workloads import decode_cases, waiting_cases

    cases = [case for case in decode_cases() if options.requests in (None, case.batch)] + waiting_cases()
    cases = [case for case in cases if options.workload in (None, case.workload)]
    cases = quickened(
        cases,
        rounds=48 if options.quick else 192,
        max_tokens=2_500_000 if options.quick else 9_000_000,  # of a case: the largest would take many minutes
    )
    facts = f"{machine_facts()}; {installed('numpy', 'msgspec', 'tokenspeed-scheduler')}"
    print(facts, flush=True)
    comparisons = []
    for comparison in compare(cases, OurScheduler, ReferenceScheduler):
        comparisons.append(comparison)
        ours, reference, ratio = comparison.ours, comparison.reference, comparison.ratio.median_us
        print(f"{case_name(comparison)}: {triple(ours)} us beside {triple(reference)} us: {ratio:.4f}", flush=True)
    text = f"{facts}\n\n{describe_rounds(comparisons)}"
    print(f"\n{text}")
    if options.write:
        write_section("rounds", text)
    return 0


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
