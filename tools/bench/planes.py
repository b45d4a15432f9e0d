"""`python -m tools.bench rounds`: which cases are measured, on which schedulers, and what is done with the figures."""

import argparse
import cProfile
import pstats
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from control_plane import GroupKind, SchedulerConfig
from tools.bench.figures import installed, machine_facts
from tools.bench.lanes import Lane, LocalLane, settle
from tools.bench.ours import EmbeddedScheduler, OurScheduler, RecordedScheduler
from tools.bench.page import write_section
from tools.bench.reference import ReferenceScheduler
from tools.bench.remote import PeerProcess
from tools.bench.report import describe_rounds, describe_services, triple
from tools.bench.rounds import EMBEDDED, OURS, RECORDED, REFERENCE, Comparison, compare, quickened
from tools.bench.services import ServiceComparison, compare_services, shortened
from tools.bench.workloads import (
    Case,
    Service,
    decode_cases,
    flat_case,
    hybrid_cases,
    pressure_services,
    prompt_services,
    trace_services,
    waiting_cases,
)

REFERENCE_TOKENS = 9_000_000  # of a case: more would take the reference many minutes
VLLM_TOKENS = 2_500_000  # of a case: vLLM's own memory for larger ones is many gigabytes
PROFILED_ROUNDS = 2_000
QUICK_REQUESTS = 200


def chosen_cases(options: argparse.Namespace) -> list[Case]:
    """The cases of steady rounds that the options ask for."""
    cases = [
        case
        for case in decode_cases()
        if options.requests in (None, case.batch) and options.context in (None, case.context)
    ]
    if options.requests is None and options.context is None:
        cases += hybrid_cases() + waiting_cases()
    cases = [case for case in cases if not options.workload or case.workload in options.workload]
    chosen = quickened(
        cases,
        rounds=48 if options.quick else 192,
        max_tokens=2_500_000 if options.quick else REFERENCE_TOKENS,
    )
    flat = flat_case()
    if not options.quick and any(case.workload == "W1" and case.batch == flat.batch for case in chosen):
        chosen.append(flat)
    return chosen


def chosen_services(options: argparse.Namespace) -> list[Service]:
    """The services that the options ask for. Without a trace there is no W5; W4 takes minutes and is asked for."""
    if options.requests is not None or options.context is not None:
        return []
    services = prompt_services()
    if options.trace is not None:
        services += trace_services(options.trace, requests=QUICK_REQUESTS if options.quick else None)
    if options.workload:
        services += pressure_services()
        services = [service for service in services if service.workload in options.workload]
    return shortened(services, repeats=1, seconds_limit=10.0) if options.quick else services


def bench_rounds(options: argparse.Namespace) -> int:
    """W1 to W6 on our scheduler, the C++ one and, if its Python is given, vLLM's."""
    if options.profile is not None:
        return profile_rounds(chosen_cases(options), options.profile)
    facts, comparisons, served = run(options)
    text = describe(facts, comparisons, served)
    print(f"\n{text}")
    if options.json is not None:
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(as_json(facts, comparisons, served))))
    if options.write:
        write_section("rounds", text)
    return 0


def run(options: argparse.Namespace) -> tuple[str, list[Comparison], list[ServiceComparison]]:
    """What the options ask for, with what must stand beside the figures."""
    facts = f"{machine_facts()}; {installed('numpy', 'msgspec', 'tokenspeed-scheduler')}"
    print(facts, flush=True)
    vllm = PeerProcess(options.vllm_python) if options.vllm_python else None
    try:
        comparisons, served = measure(chosen_cases(options), chosen_services(options), vllm)
    finally:
        if vllm is not None:
            vllm.close()
    return facts, comparisons, served


def describe(facts: str, comparisons: Sequence[Comparison], served: Sequence[ServiceComparison]) -> str:
    """Every table of a run."""
    return "\n\n".join(filter(None, [facts, describe_rounds(comparisons), describe_services(served)]))


def measure(
    cases: Sequence[Case], services: Sequence[Service], vllm: PeerProcess | None
) -> tuple[list[Comparison], list[ServiceComparison]]:
    """Every case and every service, told as they come."""

    def lanes_of_case(case: Case) -> list[Lane]:
        if case.total_tokens > REFERENCE_TOKENS:
            return [LocalLane(OurScheduler, OURS)]
        lanes: list[Lane] = [
            LocalLane(OurScheduler, OURS),
            LocalLane(EmbeddedScheduler, EMBEDDED),
            LocalLane(RecordedScheduler, RECORDED),
            LocalLane(ReferenceScheduler, REFERENCE),
        ]
        if vllm is not None and case.total_tokens <= VLLM_TOKENS and vllm_takes(case.config):
            lanes.append(vllm.lane())
        return lanes

    def lanes_of_service(service: Service) -> list[Lane]:
        lanes: list[Lane] = [LocalLane(OurScheduler, OURS), LocalLane(ReferenceScheduler, REFERENCE)]
        if vllm is not None and vllm_takes(service.config):
            lanes.append(vllm.lane())
        return lanes

    comparisons = []
    for comparison in compare(cases, lanes_of_case):
        comparisons.append(comparison)
        ratios = ", ".join(f"{comparison.ratio(name).median_us:.4f} of {name}" for name in comparison.others)
        print(f"{comparison.workload} {comparison.name}: {triple(comparison.ours)} us: {ratios}", flush=True)
    served = []
    for service in compare_services(services, lanes_of_service):
        served.append(service)
        seconds = ", ".join(f"{name} {each.seconds:.3f} s" for name, each in service.served.items())
        print(f"{service.workload} {service.name}: {seconds}", flush=True)
    return comparisons, served


def vllm_takes(config: SchedulerConfig) -> bool:
    """Its other groups belong to particular models, and beside sliding groups it wants one of full history."""
    kinds = [group.kind for group in config.groups]
    return kinds in ([GroupKind.FULL], [GroupKind.FULL, GroupKind.SLIDING])


def as_json(facts: str, comparisons: Sequence[Comparison], served: Sequence[ServiceComparison]) -> dict[str, Any]:
    """Every figure, with the ratios beside what they are of."""
    rounds = []
    for comparison in comparisons:
        ratios = {name: msgspec.to_builtins(comparison.ratio(name)) for name in comparison.others}
        rounds.append({**msgspec.to_builtins(comparison), "ratios": ratios})
    services = []
    for service in served:
        complete = [name for name in service.served if name != OURS and service.are_complete(OURS, name)]
        ratios = {name: service.ratio(OURS, name) for name in complete}
        services.append({**msgspec.to_builtins(service), "ratios": ratios})
    return {"facts": facts, "rounds": rounds, "services": services}


def profile_rounds(cases: Sequence[Case], path: Path) -> int:
    """Our decode rounds under the profiler: what is slow beside what, not how slow."""
    lane = LocalLane(OurScheduler, OURS)
    profile = cProfile.Profile()
    for case in cases:
        print(f"{case.workload} {case.name}", flush=True)
        done = 0
        while done < PROFILED_ROUNDS:
            lane.reach_decoding(case)
            settle()
            profile.enable()
            done += len(lane.rounds(case, case.rounds))
            profile.disable()
    profile.dump_stats(path)
    pstats.Stats(profile).sort_stats("tottime").print_stats(30)
    return 0
