"""Every setting of an engine and its server in one frozen record; every problem with it found at once."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import msgspec
from msgspec import Meta, Struct

from control_plane.errors import ConfigError
from tokenspeed.fields import field_problems, unknown_name_problems

Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Text = Annotated[str, Meta(min_length=1)]
Seconds = Annotated[float, Meta(gt=0, le=86400)]


class EngineConfig(Struct, frozen=True, kw_only=True):
    """What to run and how. `AsyncEngine.start` and `Engine` validate it before anything is loaded.

    The model:
      `model` is `smollm2`, `gemma3-270m`, `stamp`, a `transformers` folder or a GGUF file. `dtype` "auto" is the
      device's choice. The cache takes `memory_bytes`, or `device_blocks` blocks, or by default a share of what is
      free; prompts share it in pages of `prefix_granularity` tokens. `host_memory_bytes` is for a second tier in host
      memory: pages that outlive the device's, for prompts that come again and requests that were thrown out.
      `max_context_tokens` lowers the model's own limit on prompt plus output. `threads` bounds the CPU threads of one
      operation.
    Scheduling (see `control_plane.SchedulerConfig`):
      `max_scheduled_tokens` bounds the tokens of a round, `max_batch_size` its requests. `overlap_depth` 1 plans a
      round while the one before computes.
    `record` names a file that keeps every round, for `tokenspeed trace`. With `record_part_bytes` it becomes several
      files of that size, of which the latest `record_keep_parts` are kept (all by default). `record_redact` maps token
      ids through a secret permutation and hashes names: the schedule can be shared without the prompts.
    With `check_order` every pair of device operations is checked for an order between them, and one without is logged
      as an error: slow, for hunting a fault.
    The server:
      `model_names` are the names clients may ask for (none: the model's own), the first one is shown. `api_key` is
      required of clients if set. Beyond `max_batch_size + max_queued_requests` unfinished generations, new ones are
      refused as busy (HTTP 429). Bodies above `max_body_bytes` and prompts above `max_prompt_tokens` are refused.
      A request ends with an error after `request_timeout_seconds`. A client has `header_timeout_seconds` for its first
      header, and as long for each body. Streams that are silent for `keep_alive_seconds` carry a comment. On the way
      out, running answers have `drain_seconds` to finish. Browser pages of `cors_origins` ("*": all) may call.
      `tls_certificate` and `tls_key` are PEM files; with them the server speaks HTTPS.
    """

    model: Text = "smollm2"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    memory_bytes: Annotated[int, Meta(ge=1, le=2**62)] | None = None
    device_blocks: Count | None = None
    prefix_granularity: Count = 16
    host_memory_bytes: Annotated[int, Meta(ge=1, le=2**62)] | None = None
    max_context_tokens: Annotated[int, Meta(ge=2, le=2**31 - 1)] | None = None
    threads: Count | None = None

    max_scheduled_tokens: Count = 512
    max_batch_size: Count = 32
    overlap_depth: Annotated[int, Meta(ge=0, le=1)] = 1
    mixed: bool = True
    prefix_cache: bool = True
    safe_steps: Count = 4096
    max_overtakes: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = 32

    record: Text | None = None
    record_part_bytes: Annotated[int, Meta(ge=4096, le=2**62)] | None = None
    record_keep_parts: Count | None = None
    record_compress: bool = False
    record_redact: bool = False
    check_order: bool = False

    host: Text = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8000
    model_names: tuple[Text, ...] = ()
    api_key: Text | None = None
    max_queued_requests: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 1024
    max_body_bytes: Annotated[int, Meta(ge=1024, le=2**31 - 1)] = 32 * 2**20
    max_prompt_tokens: Count | None = None
    request_timeout_seconds: Seconds | None = None
    header_timeout_seconds: Seconds = 30.0
    keep_alive_seconds: Seconds | None = None
    drain_seconds: Annotated[float, Meta(ge=0, le=86400)] = 30.0
    cors_origins: tuple[Text, ...] = ()
    tls_certificate: Text | None = None
    tls_key: Text | None = None

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """The configuration with these fields, valid. Raises ConfigError with every unknown name and bad value."""
        unknown = unknown_name_problems(values, cls.__struct_fields__)
        known: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in values.items()
            if name in cls.__struct_fields__
        }
        config = cls(**known)
        problems = [*unknown, *config.problems()]
        if problems:
            raise ConfigError(problems)
        return config

    @classmethod
    def from_file(cls, path: str | Path, **overrides: Any) -> Self:
        """The configuration in a JSON file, with `overrides` instead of what the file says of them.

        Raises ConfigError when the file is not an object of valid fields.
        """
        try:
            values = msgspec.json.decode(Path(path).read_bytes(), type=dict[str, Any])
        except OSError as error:
            raise ConfigError([f"the file {str(path)!r} cannot be read: {error.strerror}"]) from error
        except msgspec.MsgspecError as error:
            raise ConfigError([f"the file {str(path)!r} is not a JSON object: {error}"]) from error
        return cls.from_mapping({**values, **overrides})

    def validate(self) -> None:
        """Raise ConfigError naming every field that cannot work, or return."""
        problems = self.problems()
        if problems:
            raise ConfigError(problems)

    def problems(self) -> list[str]:
        """Every problem, each naming field, value and fix. Fields that contradict each other come once each works."""
        problems = [text for _, text in field_problems(self)]
        if problems:
            return problems
        if self.max_scheduled_tokens <= self.max_batch_size:
            problems.append(
                f"max_scheduled_tokens={self.max_scheduled_tokens} must exceed max_batch_size={self.max_batch_size}, "
                "or prompts could never join a full decode step: raise the one or lower the other"
            )
        if self.memory_bytes is not None and self.device_blocks is not None:
            problems.append(
                f"memory_bytes={self.memory_bytes} and device_blocks={self.device_blocks} both size the cache: give one"
            )
        if self.host_memory_bytes is not None and not self.prefix_cache:
            problems.append(
                f"host_memory_bytes={self.host_memory_bytes} keeps cached pages, but prefix_cache=False caches none: "
                "switch prefix_cache on or leave host_memory_bytes out"
            )
        if (self.tls_certificate is None) != (self.tls_key is None):
            problems.append("tls_certificate and tls_key belong together: give both files or neither")
        if self.record_keep_parts is not None and self.record_part_bytes is None:
            problems.append(
                f"record_keep_parts={self.record_keep_parts} needs parts: give record_part_bytes their size"
            )
        if self.record is not None and not Path(self.record).absolute().parent.is_dir():
            problems.append(f"record={self.record!r} must lie in a folder that exists: create it or choose another")
        return problems
