"""What the device side is asked to be, checked all at once."""

from msgspec import Struct

from control_plane.errors import ConfigError

DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "float32", "bfloat16", "float16")
QUANTIZATIONS = ("none", "int8")


class DeviceOptions(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the device side is asked to be. Spans are tokens.

    `model` is a name that the registry knows, a folder, a file, or "stamp". At most one of `device_blocks` (parents
    without the null one) and `memory_bytes` is given; with neither, the pool takes what a full house can use, within
    a part of the memory that is free. At most one of `host_blocks` (parents) and `host_memory_bytes` is given for a
    host tier, where blocks outlive the device's; with neither there is none. `threads` bounds the CPU threads of one
    operation (None: as many as there are cores). A dtype of "auto" is float32 on a CPU and the model's own on CUDA.
    A `quantization` of "int8" keeps the weights of linear layers in 8 bits, for float32 on a CPU.
    With `check_order` every pair of operations on the streams is checked for an order between them (`ordering.py`),
    which takes time.
    """

    model: str
    device: str = "auto"
    dtype: str = "auto"
    quantization: str = "none"
    prefix_granularity: int = 16
    max_batch_size: int = 64
    max_context_tokens: int | None = None
    device_blocks: int | None = None
    memory_bytes: int | None = None
    host_blocks: int = 0
    host_memory_bytes: int | None = None
    threads: int | None = None
    check_order: bool = False

    def validate(self) -> None:
        """Raise ConfigError naming every field that cannot work, or return."""
        problems = []
        if not self.model:
            problems.append("model='' must name a model, a folder or a file")
        if self.device not in DEVICES:
            problems.append(f"device={self.device!r} must be one of {', '.join(DEVICES)}")
        if self.dtype not in DTYPES:
            problems.append(f"dtype={self.dtype!r} must be one of {', '.join(DTYPES)}")
        if self.quantization not in QUANTIZATIONS:
            problems.append(f"quantization={self.quantization!r} must be one of {', '.join(QUANTIZATIONS)}")
        least = {
            "prefix_granularity": 1,
            "max_batch_size": 1,
            "max_context_tokens": 2,
            "device_blocks": 1,
            "memory_bytes": 1,
            "host_blocks": 0,
            "host_memory_bytes": 1,
            "threads": 1,
        }
        for field, low in least.items():
            value = getattr(self, field)
            if value is not None and not low <= value:
                problems.append(f"{field}={value} must be at least {low}")
        if self.device_blocks is not None and self.memory_bytes is not None:
            problems.append(
                f"device_blocks={self.device_blocks} and memory_bytes={self.memory_bytes} both size the pool: give one"
            )
        if self.host_blocks and self.host_memory_bytes is not None:
            problems.append(
                f"host_blocks={self.host_blocks} and host_memory_bytes={self.host_memory_bytes} both size the host "
                f"tier: give one"
            )
        if self.model == "stamp" and self.device == "cuda":
            problems.append("device='cuda' is not for model='stamp', which computes nothing: use device='cpu'")
        if self.model == "stamp" and self.quantization != "none":
            problems.append(f"quantization={self.quantization!r} is not for model='stamp', which has no weights")
        if problems:
            raise ConfigError(problems)
