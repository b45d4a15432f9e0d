"""vLLM's V1 scheduler under a case: a peer, run in an environment of its own. See `remote.py`.

Its compiled parts are not needed: there is no model, but a configuration of one. Only full and sliding groups.
"""

import json
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from vllm.config import CacheConfig, ModelConfig, VllmConfig
from vllm.config import SchedulerConfig as VllmSchedulerConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

from control_plane import CacheGroupConfig, GroupKind, SchedulerConfig
from control_plane.messages.columns import Int32s
from tools.bench.contender import SAMPLED_TOKEN, Clock, RoundTimes, ServedRound

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "max_position_embeddings": 1 << 20,
    "vocab_size": 128_000,
    "torch_dtype": "float16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "rms_norm_eps": 1e-5,
}


class VllmScheduler:
    """Schedule, walk the batch and write new block ids to a table, build the runner's output, update."""

    name = "vLLM"

    def __init__(self, config: SchedulerConfig) -> None:
        page = config.groups[0].block_granularity
        vllm_config = _vllm_config(config, page)
        blocks = config.device_blocks + 1  # here the null block counts
        vllm_config.cache_config.num_gpu_blocks = blocks
        groups = [KVCacheGroupSpec([group.id], _spec(group)) for group in config.groups]
        self._scheduler = Scheduler(
            vllm_config=vllm_config,
            kv_cache_config=KVCacheConfig(num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=groups),
            block_size=page,
            log_stats=False,
            structured_output_manager=StructuredOutputManager(vllm_config),
        )
        digest = get_hash_fn_by_name("sha256")
        init_none_hash(digest)
        self._hasher = get_request_block_hasher(page, digest)
        self._rows: dict[str, int] = {}
        self._free_rows = list(reversed(range(config.max_batch_size)))
        widths = [-(-config.max_context_tokens // group.block_granularity) + 2 for group in config.groups]
        self._tables = [np.zeros((config.max_batch_size, width), dtype=np.int32) for width in widths]
        self._used = [np.zeros(config.max_batch_size, dtype=np.int32) for _ in config.groups]

    def submit(self, name: str, tokens: Int32s, *, declared: int | None, output_tokens: int) -> float:
        """Put a prompt in line."""
        listed = tokens.tolist()
        begin = time.thread_time()
        sampling = SamplingParams(max_tokens=output_tokens, ignore_eos=True)
        request = Request(
            request_id=name,
            prompt_token_ids=listed,
            sampling_params=sampling,
            pooling_params=None,
            block_hasher=self._hasher,
        )
        self._scheduler.add_request(request)
        return time.thread_time() - begin

    def serve_round(self, clock: Clock) -> ServedRound:
        """One round of any kind."""
        begin = clock()
        output = self._scheduler.schedule()
        if not output.num_scheduled_tokens:
            raise RuntimeError("vLLM planned nothing")
        self._read(output)
        sampled = self._advance(output)
        seconds = clock() - begin
        fed = output.num_scheduled_tokens
        decodes = sum(1 for name, count in fed.items() if count == 1 and name in sampled)
        computed = sum(count for name, count in fed.items() if count > 1 or name not in sampled)
        finished = sum(1 for name in sampled if name not in self._scheduler.requests)
        return ServedRound(decodes, len(fed) - decodes, computed, finished, seconds)

    def timed_round(self, clock: Clock) -> RoundTimes:
        """One decode round with the clock running."""
        begin = clock()
        output = self._scheduler.schedule()
        planned = clock()
        self._read(output)
        read = clock()
        self._advance(output)
        end = clock()
        return RoundTimes(plan=planned - begin, read=read - planned, advance=end - read)

    def _read(self, output: SchedulerOutput) -> None:
        for name in output.finished_req_ids:
            if (row := self._rows.pop(name, None)) is not None:
                self._free_rows.append(row)
        for new in output.scheduled_new_reqs:
            self._rows[new.req_id] = row = self._free_rows.pop()
            self._append(row, new.block_ids, is_fresh=True)
        cached = output.scheduled_cached_reqs
        for name, blocks in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if blocks is not None:
                self._append(self._rows[name], blocks, is_fresh=name in cached.resumed_req_ids)

    def _append(self, row: int, blocks: tuple[list[int], ...], *, is_fresh: bool) -> None:
        for table, used, ids in zip(self._tables, self._used, blocks, strict=True):
            first = 0 if is_fresh else used[row]
            table[row, first : first + len(ids)] = ids
            used[row] = first + len(ids)

    def _advance(self, output: SchedulerOutput) -> set[str]:
        """Returns the names of the rows that sampled."""
        names = list(output.num_scheduled_tokens)
        requests = self._scheduler.requests
        # What is computed counts this round's tokens already.
        samples = [requests[name].num_computed_tokens >= requests[name].num_tokens for name in names]
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=[[SAMPLED_TOKEN] if does else [] for does in samples],
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        self._scheduler.update_from_output(output, result)
        return {name for name, does in zip(names, samples, strict=True) if does}


def _vllm_config(config: SchedulerConfig, page: int) -> VllmConfig:
    directory = Path(tempfile.mkdtemp(prefix="bench-model-"))
    (directory / "config.json").write_text(json.dumps(MODEL))
    longest = config.max_context_tokens
    model = ModelConfig(model=str(directory), skip_tokenizer_init=True, dtype="float16", seed=0, max_model_len=longest)
    scheduler = VllmSchedulerConfig(
        max_num_seqs=config.max_batch_size,
        max_num_batched_tokens=config.max_scheduled_tokens,
        max_model_len=longest,
        enable_chunked_prefill=True,
        is_encoder_decoder=False,
        async_scheduling=False,
    )
    cache = CacheConfig(block_size=page, gpu_memory_utilization=0.9, enable_prefix_caching=True)
    return VllmConfig(scheduler_config=scheduler, model_config=model, cache_config=cache)


def _spec(group: CacheGroupConfig) -> FullAttentionSpec | SlidingWindowSpec:
    shape = {"block_size": group.block_granularity, "num_kv_heads": 1, "head_size": 64, "dtype": torch.float16}
    match group.kind:
        case GroupKind.FULL:
            return FullAttentionSpec(**shape)
        case GroupKind.SLIDING:
            return SlidingWindowSpec(sliding_window=group.window, **shape)
        case GroupKind.STATE:
            raise ValueError("vLLM's state groups belong to particular models: this case is not run on it")
