"""Recording and replay: the file, a torn end, a first difference."""

from pathlib import Path

import msgspec
import pytest

from control_plane import Scheduler, WireError
from control_plane.messages import Abort, Finish, FinishReason, RequestSpec
from control_plane.messages.columns import pack
from control_plane.messages.wire import SCHEMA_VERSION, decode_plan, encode_plan
from control_plane.rounds.record import RecordingScheduler
from control_plane.rounds.replay import replay
from control_plane.rounds.trace import FrameKind, TraceReader, TraceWriter
from control_plane.testing.rounds import small_config
from control_plane.testing.simulated_device import result_of


def _record(path: Path) -> int:
    """A run with growth, a retraction, an abort and overlap; returns its number of plans with work."""
    config = small_config(pool=12, budget_tokens=16, overlap_depth=1)
    writer = TraceWriter(path, config)
    times = iter(range(10_000))
    recorder = RecordingScheduler(Scheduler(config), writer, clock_us=lambda: next(times))
    recorder.submit([RequestSpec(name, pack(range(k, k + 20))) for name, k in (("a", 0), ("b", 100), ("c", 200))])
    out = []
    rounds = 0
    for step in range(60):
        while recorder.has_room and (plan := recorder.next_plan()).has_work:
            out.append(plan)
            rounds += 1
        if not out:
            break
        recorder.advance([result_of(out.pop(0)), *([Abort(3)] if step == 8 else [])])
    recorder.advance([Finish(1, FinishReason.LENGTH), Finish(2, FinishReason.LENGTH)])
    recorder.next_plan()
    writer.close()
    return rounds


def test_a_recording_replays_to_the_byte(tmp_path: Path) -> None:
    """§8.2: the recorded inputs give the recorded plans."""
    path = tmp_path / "run.rounds"
    rounds = _record(path)
    replayed = replay(path)
    assert replayed.difference is None
    assert replayed.rounds == rounds > 20


def test_a_torn_last_frame_is_dropped(tmp_path: Path) -> None:
    """A crash in the middle of a write costs that frame; cut anywhere behind the header, the rest replays."""
    path = tmp_path / "run.rounds"
    _record(path)
    whole = path.read_bytes()
    frames = len(list(TraceReader(path)))
    for cut in (1, 5, 40, len(whole) // 2):
        path.write_bytes(whole[:-cut])
        assert replay(path).difference is None
        assert len(list(TraceReader(path))) < frames


def test_the_first_difference_is_shown_field_by_field(tmp_path: Path) -> None:
    """A plan that was changed in the file is found, with the field and both values."""
    path = tmp_path / "run.rounds"
    _record(path)
    reader = TraceReader(path)
    frames = list(reader)
    changed = tmp_path / "changed.rounds"
    writer = TraceWriter(changed, reader.header.config)
    plans = 0
    for frame in frames:
        payload = frame.payload
        if frame.kind is FrameKind.PLAN:
            plans += 1
            if plans == 3:
                plan = decode_plan(payload)
                assert plan.forward is not None
                forward = msgspec.structs.replace(plan.forward, slots=pack([7] * plan.forward.row_count))
                payload = encode_plan(msgspec.structs.replace(plan, forward=forward))
        writer.write(frame.kind, payload)
    writer.close()
    difference = replay(changed).difference
    assert difference is not None
    assert difference.plan_index == 2
    assert [field for field, _, _ in difference.fields] == ["forward.slots"]
    assert "recorded: [7" in difference.render()


def test_clock_frames_tell_when_a_round_was_planned(tmp_path: Path) -> None:
    """One before every plan with work, rising."""
    path = tmp_path / "run.rounds"
    rounds = _record(path)
    times = [frame.time_us for frame in TraceReader(path) if frame.kind is FrameKind.CLOCK]
    assert times == list(range(rounds))


def test_what_is_not_a_recording_is_refused(tmp_path: Path) -> None:
    """A foreign file, a torn header and another schema are told apart."""
    path = tmp_path / "x.rounds"
    path.write_bytes(b"PNG")
    with pytest.raises(WireError, match="not a recording"):
        TraceReader(path)
    _record(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:30])
    with pytest.raises(WireError, match="breaks off"):
        TraceReader(path)
    path.write_bytes(whole.replace(b"\xa6schema" + bytes([SCHEMA_VERSION]), b"\xa6schema\x7f", 1))
    with pytest.raises(WireError, match="schema 127"):
        TraceReader(path)
