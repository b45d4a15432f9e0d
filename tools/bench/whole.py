"""`python -m tools.bench all`: everything about the control plane in one run, and the table of targets."""

import argparse
from typing import Any

import msgspec

from tools.bench import planes
from tools.bench.instructions import COUNTED, OURS_AND_THEIRS, count_instructions, describe_instructions
from tools.bench.page import write_section
from tools.bench.soak import bytes_per_resident, describe_soak, soak
from tools.bench.streaming import describe_streaming, idle_cpu_ms, measure_streaming
from tools.bench.targets import Measured, describe_targets, rows_of_targets
from tools.bench.workloads import decode_cases

STREAMS, NEW_TOKENS = 64, 400
PRICED = "256 x 1024, pages of 64"


def bench_all(options: argparse.Namespace) -> int:
    """Streaming, memory, rounds, services, instructions. Sections of the page are written as one."""
    streamed, idle_ms = measure_streaming(STREAMS, NEW_TOKENS // (8 if options.quick else 1)), idle_cpu_ms()
    priced = [case for case in decode_cases() if case.batch == 256 and case.context < 32768]
    prices = [(case, bytes_per_resident(case)) for case in priced]
    soaked = soak(options.rounds)
    facts, comparisons, served = planes.run(options)
    measured = Measured(
        rounds=comparisons,
        services=served,
        stream_us=streamed[-1].us_per_token,
        idle_ms=idle_ms,
        resident_bytes=next(price for case, price in prices if case.name == PRICED),
        growth_bytes=soaked.growth_bytes,
    )
    sections = {
        "targets": f"{facts}\n\n{describe_targets(measured)}",
        "rounds": planes.describe(facts, comparisons, served),
        "streaming": f"{facts}\n\n{describe_streaming(streamed, idle_ms)}",
        "memory": f"{facts}\n\n{describe_soak(soaked, prices)}",
    }
    if not options.quick:
        counted = count_instructions(COUNTED, OURS_AND_THEIRS)
        sections["instructions"] = f"{facts}\n\n{describe_instructions(counted)}"
    for name, text in sections.items():
        print(f"\n## {name}\n\n{text}")
        if options.write:
            write_section(name, text)
    if options.json is not None:
        found: dict[str, Any] = planes.as_json(facts, comparisons, served)
        found |= {
            "targets": rows_of_targets(measured),
            "streaming": msgspec.to_builtins(streamed),
            "idle_ms": idle_ms,
            "soak": msgspec.to_builtins(soaked),
            "bytes_per_resident": {case.name: price for case, price in prices},
        }
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(found)))
    return 0
