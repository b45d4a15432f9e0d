"""`tokenspeed serve` as a process of its own."""

import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
COMMAND = [
    sys.executable,
    "-m",
    "tokenspeed",
    "serve",
    "--model",
    "stamp",
    "--port",
    "0",
    "--max-context-tokens",
    "4096",
]


@pytest.mark.parametrize(
    ("number", "drains"), [(signal.SIGINT, False), (signal.SIGTERM, True), (signal.SIGTERM, False)]
)
def test_it_serves_until_told_to_stop(number: signal.Signals, drains: bool) -> None:
    """The printed request works as it is; a signal lets an open stream finish, and the process ends with 0.

    Without time to drain the stream ends with an error frame and `[DONE]`, and the process with 3.
    """
    command = COMMAND if drains else [*COMMAND, "--drain-seconds", "0"]
    process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        said = ""
        while not said.rstrip().endswith("}'"):
            line = process.stderr.readline()
            assert line, said
            said += line
        found = re.search(r"curl -N (http://\S+) .*?-d '(.*)'", said, re.DOTALL)
        assert found is not None, said
        url, body = found.groups()
        with ask(url, json.loads(body)) as response:
            text = response.read().decode()
        assert text.endswith("data: [DONE]\n\n")

        with ask(url, {**json.loads(body), "max_tokens": 4000}) as response:
            response.readline()
            process.send_signal(number)
            lines = []
            while line := response.readline():
                lines.append(line.decode())
        assert ('"error"' in "".join(lines)) is not drains
        assert ('"finish_reason":"length"' in "".join(lines)) is drains
        assert lines[-2:] == ["data: [DONE]\n", "\n"]
        process.communicate(timeout=60)
        assert process.returncode == (0 if drains else 3)
    finally:
        process.kill()
        process.communicate()


def ask(url: str, body: object) -> Any:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return urllib.request.urlopen(request, timeout=60)
