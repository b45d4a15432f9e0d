"""Why a request is where it is, in words."""

from control_plane.fsm.request import Request
from control_plane.fsm.states import (
    Bootstrapping,
    Decoding,
    Finished,
    PrefillDone,
    Prefilling,
    RemotePrefilling,
    Retracted,
    Submitted,
)
from control_plane.scheduler.line import Candidates
from control_plane.scheduler.overlap import overlap_ends
from control_plane.scheduler.resident import ResidentTable


def explain(request: Request, line: Candidates, resident: ResidentTable, group_ids: tuple[str, ...]) -> str:
    """One sentence about the present; the record tells the past."""
    match request.state:
        case Prefilling(window=window):
            return f"prefilling: {window.end} of {request.prefill_tokens} tokens scheduled"
        case PrefillDone():
            return "prefilled: its first decode step is next"
        case Decoding(resources=resources):
            landed = resident.known_tokens(resources.slot)
            alone = overlap_ends(request.spec.sampling)
            pace = f"; its steps do not overlap: {alone}" if alone else ""
            out = landed - request.prompt_tokens
            return f"decoding: {out} tokens out, complete at {request.limit_tokens} in all{pace}"
        case Bootstrapping():
            return "waiting until its peer knows of it"
        case RemotePrefilling(window=window):
            return f"its peer prefills {window.end - window.begin} tokens of {request.prefill_tokens}"
        case Retracted(is_recoverable=True):
            return _why_recovering(request, line, resident, group_ids)
        case Submitted() | Retracted():
            return _why_waiting(request, line, resident, group_ids)
        case Finished(reason=reason):
            return f"finished: {reason}"


def _why_recovering(request: Request, line: Candidates, resident: ResidentTable, group_ids: tuple[str, ...]) -> str:
    ahead = list(line.recovering).index(request)
    if ahead:
        return f"retracted, comes back behind {ahead} others"
    if (lacked := line.recovering.lacked) is not None:
        shortage = f"{lacked.wanted} wanted, {lacked.available} to be had"
        return f"retracted, comes back first: group {group_ids[lacked.group]} lacks blocks ({shortage})"
    returning = next((other for other in line.prefilling if other.retraction_count), None)
    if returning is not None:
        return f"retracted, comes back first, after {returning.spec.id} has prefilled"
    if not resident.has_free_slot:
        return f"retracted, comes back first: all {resident.slots} slots are taken"
    return "retracted, comes back first: not tried yet, or its pages are still on their way to the host"


def _why_waiting(request: Request, line: Candidates, resident: ResidentTable, group_ids: tuple[str, ...]) -> str:
    ahead = sum(other.key < request.key for other in line.waiting)
    standing = "retracted, prefills again" if isinstance(request.state, Retracted) else "waiting"
    place = f"{standing} behind {ahead} others" if ahead else f"{standing}, first in line"
    if (returning := line.recovering.first) is not None:
        return f"{place}: {returning.spec.id} was retracted and comes back first"
    refusal = line.waiting.refusal(request)
    if refusal is not None:
        lacked = refusal.lacked
        shortage = f"{lacked.wanted} wanted, {lacked.available} to be had"
        return f"{place}: group {group_ids[lacked.group]} lacks blocks ({shortage})"
    if line.prefilling:
        return f"{place}: the prompt of {line.prefilling[0].spec.id} holds the line"
    if not resident.has_free_slot:
        return f"{place}: all {resident.slots} slots are taken"
    return f"{place}: not tried yet"
