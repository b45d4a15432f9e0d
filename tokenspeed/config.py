"""Every setting of an engine and its server in one frozen record; every problem with it found at once."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from msgspec import Meta, Struct

from control_plane.errors import ConfigError
from tokenspeed.fields import field_problems, unknown_name_problems
from tokenspeed.written import from_file, read_file

Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Text = Annotated[str, Meta(min_length=1)]
Seconds = Annotated[float, Meta(gt=0, le=86400)]
Size = Annotated[int, Meta(ge=1, le=2**62)]


class EngineConfig(Struct, frozen=True, kw_only=True):
    """What to run and how. `AsyncEngine.start` and `Engine` validate it before anything is loaded.

    Each field's description is the help of its option and its line in docs/configuration.md.
    """

    model: Annotated[
        Text,
        Meta(description="smollm2, gemma3-270m, hybrid, stamp, a `transformers` folder or a GGUF file."),
    ] = "smollm2"
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        Meta(description="What weights and cache are computed in; auto is the device's choice."),
    ] = "auto"
    quantization: Annotated[
        Literal["none", "int8"],
        Meta(description="int8 keeps linear layers' weights in 8 bits: faster on a CPU, less exact than float32."),
    ] = "none"
    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        Meta(description="Where the model runs; auto takes a GPU if there is one."),
    ] = "auto"
    memory_bytes: Annotated[
        Size | None,
        Meta(description="What the cache may take, as in 4G; none: a share of what is free."),
    ] = None
    device_blocks: Annotated[
        Count | None,
        Meta(description="The cache's size in blocks, instead of in bytes."),
    ] = None
    prefix_granularity: Annotated[
        Count,
        Meta(description="Tokens of a page, the unit in which prompts share the cache."),
    ] = 16
    host_memory_bytes: Annotated[
        Size | None,
        Meta(
            description="What a second tier of the cache may take in host memory, as in 8G: pages that outlive the "
            "device's, for prompts that come again and requests that were thrown out; none: there is no such tier."
        ),
    ] = None
    max_context_tokens: Annotated[
        Annotated[int, Meta(ge=2, le=2**31 - 1)] | None,
        Meta(description="Limit on prompt plus output of a request; none: the model's own."),
    ] = None
    threads: Annotated[
        Count | None,
        Meta(description="CPU threads of one operation; none: as many as there are cores."),
    ] = None

    max_scheduled_tokens: Annotated[
        Count,
        Meta(description="Tokens of one round: what a long prompt may delay the others by."),
    ] = 512
    max_batch_size: Annotated[
        Count,
        Meta(description="Requests that run at once."),
    ] = 32
    overlap_depth: Annotated[
        int,
        Meta(ge=0, le=1, description="1 plans a round while the one before computes, 0 waits for its result."),
    ] = 1
    mixed: Annotated[
        bool,
        Meta(description="Let prompts join the decode steps of others; false: rounds are of one kind."),
    ] = True
    prefix_cache: Annotated[
        bool,
        Meta(description="Keep what prompts computed for prompts that begin alike."),
    ] = True
    safe_steps: Annotated[
        Count,
        Meta(description="Output tokens that an admission secures blocks for in advance."),
    ] = 4096
    max_overtakes: Annotated[
        Annotated[int, Meta(ge=0, le=2**31 - 1)] | None,
        Meta(description="Later prompts that may pass one that waits for blocks; none: any number."),
    ] = 32

    record: Annotated[
        Text | None,
        Meta(description="Keep every round in this file, for `tokenspeed trace`."),
    ] = None
    record_part_bytes: Annotated[
        Annotated[int, Meta(ge=4096, le=2**62)] | None,
        Meta(description="Record into parts of this size, as in 64M; none: one file."),
    ] = None
    record_keep_parts: Annotated[
        Count | None,
        Meta(description="Keep only so many parts of the record, the latest; none: all."),
    ] = None
    record_compress: Annotated[
        bool,
        Meta(description="Compress the record."),
    ] = False
    record_redact: Annotated[
        bool,
        Meta(
            description="Record the schedule without what clients wrote: token ids go through a secret permutation, "
            "names are hashed."
        ),
    ] = False
    check_order: Annotated[
        bool,
        Meta(
            description="Check every pair of device operations for an order between them and log one without as an "
            "error; slow, for hunting a fault."
        ),
    ] = False

    host: Annotated[
        Text,
        Meta(description="Address to listen on."),
    ] = "127.0.0.1"
    port: Annotated[
        int,
        Meta(ge=0, le=65535, description="Port to listen on; 0 takes a free one."),
    ] = 8000
    model_names: Annotated[
        tuple[Text, ...],
        Meta(description="Names that clients may ask for, the first one is shown; none given: the model's own."),
    ] = ()
    api_key: Annotated[
        Text | None,
        Meta(description="Key that clients must send; better in the environment than on a command line."),
    ] = None
    max_queued_requests: Annotated[
        int,
        Meta(ge=0, le=2**31 - 1, description="Generations that may wait; more are refused as busy (429)."),
    ] = 1024
    max_body_bytes: Annotated[
        int,
        Meta(ge=1024, le=2**31 - 1, description="Largest request body; a larger one is refused (413)."),
    ] = 32 * 2**20
    max_prompt_tokens: Annotated[
        Count | None,
        Meta(description="Longest prompt that is taken; none: what the context allows."),
    ] = None
    request_timeout_seconds: Annotated[
        Seconds | None,
        Meta(description="End a request with an error that takes longer; none: no limit."),
    ] = None
    header_timeout_seconds: Annotated[
        Seconds,
        Meta(description="Time for a client to send its first header, and as long for each body."),
    ] = 30.0
    keep_alive_seconds: Annotated[
        Seconds | None,
        Meta(description="Send a comment into streams that are silent for so long; none: never."),
    ] = None
    drain_seconds: Annotated[
        float,
        Meta(ge=0, le=86400, description="Time for running answers to finish after SIGTERM or SIGINT."),
    ] = 30.0
    cors_origins: Annotated[
        tuple[Text, ...],
        Meta(description="Origins of browser pages that may call this; * for all."),
    ] = ()
    tls_certificate: Annotated[
        Text | None,
        Meta(description="PEM file with the certificate chain; with it the server speaks HTTPS."),
    ] = None
    tls_key: Annotated[
        Text | None,
        Meta(description="PEM file with the certificate's private key."),
    ] = None

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
        """The configuration in a TOML (or .json) file, with `overrides` instead of what the file says of them.

        Raises ConfigError when the file is not one of valid fields.
        """
        values = {name: from_file(name, value) for name, value in read_file(path).items()}
        return cls.from_mapping({**values, **overrides})

    def validate(self) -> None:
        """Raise ConfigError naming every field that cannot work, or return."""
        problems = self.problems()
        if problems:
            raise ConfigError(problems)

    def problems(self, *, apart_from: Collection[str] = ()) -> list[str]:
        """Every problem, each naming field, value and fix. What fields say together is looked at if each works.

        `apart_from` are fields whose value is not the one that was meant.
        """
        bad = dict(field_problems(self))
        doubtful = {*bad, *apart_from}
        found = [check(self) for fields, check in CONTRADICTIONS if not doubtful & set(fields)]
        return [*bad.values(), *(problem for problem in found if problem is not None)]

    @classmethod
    def section_of(cls, name: str) -> str:
        """The heading under which a field stands."""
        position = cls.__struct_fields__.index(name)
        starts = [first for first in SECTIONS if cls.__struct_fields__.index(first) <= position]
        return SECTIONS[starts[-1]]


# Where each section begins, in the order of the fields.
SECTIONS: Final = {"model": "Model", "max_scheduled_tokens": "Scheduling", "record": "Recording", "host": "Server"}


def _decodes_leave_room(config: EngineConfig) -> str | None:
    if config.max_scheduled_tokens > config.max_batch_size:
        return None
    return (
        f"max_scheduled_tokens={config.max_scheduled_tokens} must exceed max_batch_size={config.max_batch_size}, "
        "or prompts could never join a full decode step: raise the one or lower the other"
    )


def _one_size(config: EngineConfig) -> str | None:
    if config.memory_bytes is None or config.device_blocks is None:
        return None
    return f"memory_bytes={config.memory_bytes} and device_blocks={config.device_blocks} both size the cache: give one"


def _host_tier_has_pages(config: EngineConfig) -> str | None:
    if config.host_memory_bytes is None or config.prefix_cache:
        return None
    return (
        f"host_memory_bytes={config.host_memory_bytes} keeps cached pages, but prefix_cache=False caches none: "
        "switch prefix_cache on or leave host_memory_bytes out"
    )


def _certificate_has_key(config: EngineConfig) -> str | None:
    if (config.tls_certificate is None) == (config.tls_key is None):
        return None
    return "tls_certificate and tls_key belong together: give both files or neither"


def _kept_parts_are_parts(config: EngineConfig) -> str | None:
    if config.record_keep_parts is None or config.record_part_bytes is not None:
        return None
    return f"record_keep_parts={config.record_keep_parts} needs parts: give record_part_bytes their size"


def _record_has_folder(config: EngineConfig) -> str | None:
    if config.record is None or Path(config.record).absolute().parent.is_dir():
        return None
    return f"record={config.record!r} must lie in a folder that exists: create it or choose another"


CONTRADICTIONS: Final[tuple[tuple[tuple[str, ...], Callable[[EngineConfig], str | None]], ...]] = (
    (("max_scheduled_tokens", "max_batch_size"), _decodes_leave_room),
    (("memory_bytes", "device_blocks"), _one_size),
    (("host_memory_bytes", "prefix_cache"), _host_tier_has_pages),
    (("tls_certificate", "tls_key"), _certificate_has_key),
    (("record_keep_parts", "record_part_bytes"), _kept_parts_are_parts),
    (("record",), _record_has_folder),
)
