"""A peer that needs an environment of its own: its lanes live in a child process and are asked over its pipes.

`python -m tools.bench.remote` is that process. One line of JSON asks, one answers.
"""

import os
import subprocess
import sys
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from tools.bench.contender import RoundTimes
from tools.bench.lanes import LocalLane, Served
from tools.bench.workloads import Case, Service

ROOT = Path(__file__).resolve().parents[2]
QUIET = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_TARGET_DEVICE": "cpu", "HF_HUB_OFFLINE": "1", "PYTHONHASHSEED": "0"}


class Ask(msgspec.Struct):
    """What a lane of the child is to do."""

    lane: int
    reach: Case | None = None
    more: Case | None = None
    rounds: int = 0
    serve: Service | None = None
    drop: bool = False


class Answer(msgspec.Struct):
    """What it did, or why it could not."""

    times: list[RoundTimes] = []
    served: Served | None = None
    error: str = ""


class PeerProcess:
    """vLLM's scheduler in the environment of another Python."""

    def __init__(self, python: str) -> None:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        self._child = subprocess.Popen(
            [python, "-m", "tools.bench.remote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **QUIET, "PYTHONPATH": path},
            cwd=ROOT,
        )
        self._lanes = count()

    def lane(self) -> "RemoteLane":
        """A new one."""
        return RemoteLane(self, next(self._lanes))

    def ask(self, ask: Ask) -> Answer:
        """Raises RuntimeError when the child is gone or could not do it."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(msgspec.json.encode(ask) + b"\n")
        self._child.stdin.flush()
        line = self._child.stdout.readline()
        if not line:
            raise RuntimeError(f"the peer's process ended with {self._child.wait()}; its words are above")
        answer = msgspec.json.decode(line, type=Answer)
        if answer.error:
            raise RuntimeError(answer.error)
        return answer

    def close(self) -> None:
        """The child ends with its input."""
        self._child.communicate()


class RemoteLane:
    """One of the child's lanes; see `lanes.Lane`."""

    name = "vLLM"

    def __init__(self, process: PeerProcess, number: int) -> None:
        self._process = process
        self._number = number

    def reach_decoding(self, case: Case) -> None:
        """Take up a case and run until everybody decodes."""
        self._process.ask(Ask(self._number, reach=case))

    def rounds(self, case: Case, count: int) -> list[RoundTimes]:
        """So many more rounds of the case."""
        return self._process.ask(Ask(self._number, more=case, rounds=count)).times

    def serve(self, service: Service) -> Served:
        """A service, from the first request to the last."""
        served = self._process.ask(Ask(self._number, serve=service)).served
        assert served is not None
        return served

    def drop(self) -> None:
        """Its memory is needed for another."""
        self._process.ask(Ask(self._number, drop=True))


def main() -> None:
    """Answer until the input ends. What the peer prints goes where errors go."""
    from tools.bench.vllm_scheduler import VllmScheduler

    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    lanes: dict[int, Any] = {}
    for line in sys.stdin.buffer:
        ask = msgspec.json.decode(line, type=Ask)
        lane = lanes.setdefault(ask.lane, LocalLane(VllmScheduler, "vLLM"))
        answer = Answer()
        try:
            if ask.reach is not None:
                lane.reach_decoding(ask.reach)
            elif ask.more is not None:
                answer = Answer(times=lane.rounds(ask.more, ask.rounds))
            elif ask.serve is not None:
                answer = Answer(served=lane.serve(ask.serve))
            elif ask.drop:
                del lanes[ask.lane]
        except Exception as fault:
            answer = Answer(error=f"{type(fault).__name__}: {fault}")
        answers.write(msgspec.json.encode(answer) + b"\n")
        answers.flush()


if __name__ == "__main__":
    main()
