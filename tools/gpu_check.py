"""Everything that only a GPU can prove, in one run of a few minutes: `python -m tools.gpu_check`.

Prints what the device is, runs `tests/gpu`, then decodes with a random model of SmolLM2's shape at batch 1, 16 and 64.
Exits with 0 when all went well, 1 when something did not, 2 when there is no GPU. `--measure cpu` tries the measurement
itself on any machine.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from time import monotonic

from control_plane.errors import ConfigError
from data_plane.cuda import has_cuda, load_cupy

DEADLINE_S = 460.0
BATCHES = (1, 16, 64)
PROMPT_TOKENS = 128


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check; the exit code is the verdict."""
    parser = argparse.ArgumentParser(description="Run every CUDA test and a short measurement, under 8 minutes.")
    parser.add_argument("--measure", choices=("cpu", "cuda"), help="only measure, on this device")
    parser.add_argument("--steps", type=int, default=128, help="decode steps that are timed")
    options = parser.parse_args(arguments)
    if options.measure:
        measure(options.measure, options.steps)
        return 0
    began = monotonic()
    if not has_cuda():
        print(f"There is no GPU to check here: {_reason()}")
        return 2
    _print_facts()
    steps = (
        ("tests/gpu", [sys.executable, "-m", "pytest", "-q", "tests/gpu"]),
        ("measurement", [sys.executable, "-m", "tools.gpu_check", "--measure", "cuda", "--steps", str(options.steps)]),
    )
    verdicts = [_run(name, command, DEADLINE_S - (monotonic() - began)) for name, command in steps]
    print(f"{monotonic() - began:.0f} s, {'all went well' if all(verdicts) else 'something failed: see above'}")
    return 0 if all(verdicts) else 1


def measure(device: str, steps: int) -> None:
    """Print decode tokens per second for each batch size."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from data_plane.builder import build_device
    from data_plane.options import DeviceOptions
    from data_plane.testing.drive import Driver

    shape = LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        LlamaForCausalLM(shape).save_pretrained(folder)
        context_tokens = PROMPT_TOKENS + steps + 16
        specs, handle = build_device(
            DeviceOptions(model=folder, device=device, max_batch_size=max(BATCHES), max_context_tokens=context_tokens),
            progress=print,
        )
        try:
            driver = Driver(specs, handle)
            first_key = 1
            for batch in BATCHES:
                rate = driver.decode_tokens_per_s(
                    batch=batch, prompt_tokens=PROMPT_TOKENS, steps=steps, first_key=first_key
                )
                first_key += batch
                print(f"batch {batch:3d}: {rate:10.1f} tokens/s on {specs.device} in {specs.dtype}", flush=True)
        finally:
            handle.close()


def _reason() -> str:
    try:
        load_cupy()
    except ConfigError as error:
        return error.problems[0]
    return "torch was built without CUDA: install a CUDA build of torch"


def _print_facts() -> None:
    import torch

    cupy = load_cupy()
    properties = torch.cuda.get_device_properties(0)
    print(
        f"device: {properties.name}, {properties.total_memory / 2**30:.0f} GiB, sm_{properties.major}{properties.minor}"
    )
    print(
        f"torch {torch.__version__} (CUDA {torch.version.cuda}), cupy {cupy.__version__} "
        f"(runtime {cupy.cuda.runtime.runtimeGetVersion()}, driver {cupy.cuda.runtime.driverGetVersion()})",
        flush=True,
    )


def _run(name: str, command: list[str], limit_s: float) -> bool:
    """Whether a step went well in time."""
    if limit_s <= 0:
        print(f"{name}: left out, the time is up")
        return False
    print(f"--- {name}", flush=True)
    try:
        return subprocess.run(command, timeout=limit_s, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        print(f"{name}: stopped after {limit_s:.0f} s")
        return False


if __name__ == "__main__":
    sys.exit(main())
