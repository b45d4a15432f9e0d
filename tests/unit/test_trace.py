"""Recording and replay: the file, a torn end, a first difference."""

from errno import ENOSPC
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import pytest

from control_plane import Scheduler, WireError
from control_plane.messages import Abort, Finish, FinishReason, RequestSpec
from control_plane.messages.columns import pack, view
from control_plane.messages.wire import SCHEMA_VERSION, decode_plan, encode_plan
from control_plane.rounds.frames import HEAD_BYTES, FrameKind
from control_plane.rounds.record import RecordingScheduler
from control_plane.rounds.redact import Redactor
from control_plane.rounds.replay import replay
from control_plane.rounds.told import told_rounds
from control_plane.rounds.trace import TraceReader
from control_plane.rounds.writer import TraceWriter
from control_plane.testing.rounds import small_config
from control_plane.testing.simulated_device import result_of


def _record(path: Path, redactor: Redactor | None = None, **options: Any) -> int:
    """A run with growth, a retraction, an abort and overlap; returns its number of plans with work."""
    config = small_config(pool=12, budget_tokens=16, overlap_depth=1)
    writer = TraceWriter(path, config, redacted=redactor is not None, **options)
    times = iter(range(10_000))
    recorder = RecordingScheduler(Scheduler(config), writer, clock_us=lambda: next(times), redactor=redactor)
    recorder.submit([RequestSpec(name, pack(range(k, k + 20))) for name, k in (("a", 5000), ("b", 6000), ("c", 7000))])
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


def test_a_torn_recording_says_what_is_lost(tmp_path: Path) -> None:
    """Cut in the middle of a frame: the rest replays, and it is said how many bytes after which round are lost."""
    path = tmp_path / "run.rounds"
    _record(path)
    whole = path.read_bytes()
    frames = len(list(TraceReader(path)))
    assert replay(path).damage is None
    for cut in (1, 5, 40, len(whole) // 2):
        path.write_bytes(whole[:-cut])
        replayed = replay(path)
        assert replayed.difference is None
        damage = replayed.damage
        assert damage is not None
        assert damage.offset + damage.lost_bytes == len(whole) - cut
        assert damage.after_round >= replayed.rounds > 0
        assert f"{damage.lost_bytes} bytes after round {damage.after_round} are lost" in damage.render()
        assert len(list(TraceReader(path))) == damage.frame_index < frames
        assert list(told_rounds(path))[-1] == damage.render()
        with pytest.raises(WireError, match="breaks off in the middle of a frame"):
            replay(path, strict=True)


def test_a_flipped_byte_is_found_wherever_it_is(tmp_path: Path) -> None:
    """Heads and payloads have checksums: what is before the flip is read, and the frame and offset are named."""
    path = tmp_path / "run.rounds"
    _record(path)
    whole = path.read_bytes()
    sizes = [HEAD_BYTES + len(frame.payload) for frame in TraceReader(path)]
    begin = len(whole) - sum(sizes)
    offset = begin + sum(sizes[:9])
    for within, what in ((0, "head"), (3, "head"), (8, "head"), (HEAD_BYTES + 1, "checksum")):
        damaged = bytearray(whole)
        damaged[offset + within] ^= 0x10
        path.write_bytes(damaged)
        reader = TraceReader(path)
        assert len(list(reader)) == 9
        assert reader.damage is not None
        assert (reader.damage.offset, reader.damage.frame_index) == (offset, 9)
        assert what in reader.damage.what
        with pytest.raises(WireError, match=f"byte {offset}"):
            list(TraceReader(path, strict=True))


def test_a_compressed_recording_holds_the_same_frames(tmp_path: Path) -> None:
    """And fewer bytes."""
    plain, packed = tmp_path / "plain.rounds", tmp_path / "packed.rounds"
    _record(plain)
    _record(packed, compress=True)
    assert list(TraceReader(plain)) == list(TraceReader(packed))
    assert packed.stat().st_size < plain.stat().st_size / 2
    assert replay(packed).difference is None


def test_a_recording_in_parts_is_one(tmp_path: Path) -> None:
    """A part that is full is followed by the next; all are read in turn, and stale ones of an earlier run are gone."""
    path = tmp_path / "run.rounds"
    rounds = _record(path, part_bytes=2000)
    assert (tmp_path / "run.0002.rounds").exists()
    assert replay(path).rounds == rounds
    told = list(told_rounds(path))
    middle = list(told_rounds(tmp_path / "run.0001.rounds"))
    assert middle[-1] == told[-1]
    assert 0 < len(middle) < len(told)
    with pytest.raises(WireError, match="part 1 of a recording"):
        replay(tmp_path / "run.0001.rounds")
    _record(path)
    assert [file.name for file in tmp_path.iterdir()] == ["run.rounds"]


def test_only_the_latest_parts_are_kept_if_so_asked(tmp_path: Path) -> None:
    """A recording that goes on for ever has a bounded size."""
    _record(tmp_path / "run.rounds", part_bytes=2000, keep_parts=2)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_redacted_recording_replays_and_holds_no_prompt(tmp_path: Path) -> None:
    """The schedule is that of the original; no run of its tokens and no name is left."""
    plain, redacted = tmp_path / "plain.rounds", tmp_path / "redacted.rounds"
    _record(plain)
    _record(redacted, Redactor(b"0123456789abcdef"))
    assert replay(redacted).difference is None
    before = [decode_plan(frame.payload) for frame in TraceReader(plain) if frame.kind is FrameKind.PLAN]
    after = [decode_plan(frame.payload) for frame in TraceReader(redacted) if frame.kind is FrameKind.PLAN]
    for one, other in zip(before, after, strict=True):
        assert one.forward is None or other.forward is not None
        cleared = [
            msgspec.structs.replace(
                plan,
                forward=plan.forward and msgspec.structs.replace(plan.forward, input_ids=b""),
            )
            for plan in (one, other)
        ]
        assert cleared[0] == cleared[1]
    held = redacted.read_bytes()
    for first in (5000, 6000, 7000):
        assert pack(range(first, first + 20)) in plain.read_bytes()
        for begin in range(first, first + 16):
            assert pack(range(begin, begin + 5)) not in held
    assert TraceReader(redacted).header.redacted


def test_the_permutation_is_one() -> None:
    """Different tokens stay different, over the whole range; another key maps otherwise; what is no token stays."""
    ids = [*range(5000), 2**31 - 1, 2**31 - 2, 2**30]
    mapped = Redactor(b"0123456789abcdef").tokens(pack(ids))
    assert len(set(view(mapped).tolist())) == len(ids)
    assert view(mapped).min() >= 0
    assert mapped != Redactor(b"0123456789abcdeg").tokens(pack(ids))
    assert Redactor(b"0123456789abcdef").tokens(pack([-1])) == pack([-1])


class _FullDisk(BytesIO):
    def write(self, data: object) -> int:
        raise OSError(ENOSPC, "no space left on device")


def test_a_full_disk_ends_the_recording_and_not_the_rounds(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J8: it is said once; submitting and planning go on, and what was written before is whole."""
    config = small_config()
    writer = TraceWriter(tmp_path / "run.rounds", config)
    recorder = RecordingScheduler(Scheduler(config), writer)
    recorder.submit([RequestSpec("a", pack(range(8)), 4)])
    writer.flush()
    writer._file.close()
    monkeypatch.setattr(writer, "_file", _FullDisk())
    for _ in range(4):
        recorder.advance([result_of(recorder.next_plan())])
    writer.close()
    assert writer.failure is not None
    assert [record.message for record in caplog.records] == [f"{writer.failure}; the rounds go on"]
    assert [frame.kind for frame in TraceReader(tmp_path / "run.rounds")] == [FrameKind.SUBMISSIONS]


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
        writer.write(frame.kind, payload, round_number=frame.round, time_us=frame.time_us)
    writer.close()
    difference = replay(changed).difference
    assert difference is not None
    assert difference.plan_index == 2
    assert [field for field, _, _ in difference.fields] == ["forward.slots"]
    assert "recorded: [7" in difference.render()


def test_frames_tell_round_and_time(tmp_path: Path) -> None:
    """Every frame says when it was written and which round was the last; both never fall."""
    path = tmp_path / "run.rounds"
    rounds = _record(path)
    frames = list(TraceReader(path))
    assert [frame.time_us for frame in frames] == list(range(len(frames)))
    assert sorted(frame.round for frame in frames) == [frame.round for frame in frames]
    assert frames[-1].round == rounds


def test_what_is_not_a_recording_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    path.write_bytes(b"tokenspeed rounds\n" + whole)
    with pytest.raises(WireError, match="of format 1; this program reads format 2"):
        TraceReader(path)
    path.write_bytes(whole.replace(b"\xa6schema" + bytes([SCHEMA_VERSION]), b"\xa6schema\x7f", 1))
    with pytest.raises(WireError, match="damaged header"):
        TraceReader(path)
    monkeypatch.setattr("control_plane.rounds.writer.SCHEMA_VERSION", 127)
    _record(path)
    with pytest.raises(WireError, match="schema 127"):
        TraceReader(path)
