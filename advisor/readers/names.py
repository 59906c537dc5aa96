"""Every word a trace dialect uses for the same thing, as data: add a dialect here and nowhere else.

docs/dialects.md lists what is understood.
"""

from __future__ import annotations

import re
from typing import Literal

from advisor.schema import Parallelism

CollectiveKind = Literal["all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "reduce", "send_recv"]

COMMUNICATION_LIBRARY = re.compile(r"nccl|rccl|oneccl|deep_ep|nvshmem|mscclpp", re.IGNORECASE)
"""Device kernels of the libraries that move data between ranks: NCCL and its renames, RCCL, oneCCL, DeepEP and more."""

COMMUNICATION_WORD = re.compile(
    r"^(?!.*(?:triton_|at::native)).*(?:all_?reduce|reduce_?scatter|all_?gather|all_?to_?all|cross_device_reduce)",
    re.IGNORECASE,
)
"""Kernels of an unknown library that speak of a collective, which names of compiled or native computation can, too."""

COMMUNICATION_KERNEL = re.compile(f"{COMMUNICATION_LIBRARY.pattern}|{COMMUNICATION_WORD.pattern}", re.IGNORECASE)
"""Either of them: what counts as communication."""

GLOO_SPAN = re.compile(r"^gloo:")
"""Execution of a collective on a gloo worker thread, as a user annotation."""

NCCL_SPAN = re.compile(r"^nccl:")
"""Around the launch of a collective kernel on the host; until torch 2.1 the only place that tells its shape."""

COLLECTIVE_KINDS: tuple[tuple[re.Pattern[str], CollectiveKind], ...] = (
    (re.compile(r"all_?reduce", re.IGNORECASE), "all_reduce"),
    (re.compile(r"reduce_?scatter", re.IGNORECASE), "reduce_scatter"),
    (re.compile(r"all_?gather", re.IGNORECASE), "all_gather"),
    (re.compile(r"all_?to_?all", re.IGNORECASE), "all_to_all"),
    (re.compile(r"broadcast", re.IGNORECASE), "broadcast"),
    (re.compile(r"reduce", re.IGNORECASE), "reduce"),
    (re.compile(r"send|recv", re.IGNORECASE), "send_recv"),
)
"""First match wins."""

PROTOCOL = re.compile(r"(RING|TREE|COLLNET_DIRECT|COLLNET_CHAIN|NVLS_TREE|NVLS|PAT)_(LL128|LL|SIMPLE)(?![A-Za-z0-9])")
"""NCCL's algorithm and protocol in a kernel's name; a message's size decides which it takes."""

CATEGORIES: dict[str, str] = {
    "operator": "cpu_op", "runtime": "cuda_runtime", "driver": "cuda_driver", "memcpy": "gpu_memcpy",
    "memset": "gpu_memset", "concurrent_kernel": "kernel",
}  # fmt: skip
"""Today's category for those that older writers have, in lower case."""
KERNEL = frozenset({"kernel"})
MEMORY = frozenset({"gpu_memcpy", "gpu_memset"})
RUNTIME = frozenset(
    {"cuda_runtime", "cuda_driver", "hip_runtime", "xpu_runtime", "mtia_runtime", "privateuse1_runtime",
     "privateuse1_driver"}
)  # fmt: skip
OPERATOR = frozenset({"cpu_op"})
ANNOTATION = frozenset({"user_annotation"})
SYNCHRONIZATION = frozenset({"cuda_sync"})
UNUSED_CATEGORIES = frozenset({"python_function", "gpu_user_annotation", "overhead", "Trace", "cpu_instant_event"})
"""As they are spelled: events of these are dropped as soon as they are decoded."""

SYNCHRONIZATION_ROW = re.compile(r"^(?:Event Sync|Stream Sync|Context Sync|Stream Wait Event)", re.IGNORECASE)
"""Waits that are drawn on a stream of the device: neither computation nor communication, whatever their category."""

UNNAMED_CATEGORIES: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"^Memcpy\b"), "gpu_memcpy"),
    (re.compile(r"^Memset\b"), "gpu_memset"),
    (re.compile(r"^(?:cuda|hip)[A-Z]\w*$"), "cuda_runtime"),
    (re.compile(r"^cu[A-Z]\w*$"), "cuda_driver"),
    (
        re.compile(r"^(?:ProfilerStep#|Optimizer\.|gloo:|nccl:|DistributedDataParallel\.|enumerate\()"),
        "user_annotation",
    ),
)
"""First match wins, for events without a category; others are kernels if they have a stream, else operators."""

PROFILER_STEP = re.compile(r"^ProfilerStep#?(\d{1,18})$")
DDP_FORWARD = frozenset({"DistributedDataParallel.forward", "BucketedDDP.forward"})
OPTIMIZER_STEP = re.compile(r"^Optimizer\.step#")
OPTIMIZER_ZERO_GRAD = re.compile(r"^Optimizer\.zero_grad#")
UNUSED_PARAMETER_SEARCH = "search_unused_parameters"
DATA_LOADING = re.compile(r"^enumerate\(DataLoader\)")
AUTOGRAD_NODE = "autograd::engine::evaluate_function: "
ACCUMULATE_GRAD = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
ACCUMULATE_GRAD_OP = "torch::autograd::AccumulateGrad"
COPY_IN = "torch::distributed::reducer::copy_"
MATRIX_PRODUCT = re.compile(r"^aten::b?mm$")
COPY_BACK = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
GPU_OPERATOR = re.compile(r"^aten::_?(?:cudnn|miopen)_(?!is_acceptable)")
"""Operators that only a GPU runs."""
SYNC_BATCH_NORM_NODE = "autograd::engine::evaluate_function: SyncBatchNorm"
COMPILED_NODE = re.compile(r"^autograd::engine::evaluate_function: (?:torch::dynamo|Compiled)")
"""Of compiled backwards, which may hold `AccumulateGrad`."""
LOSS_OPERATOR = re.compile(
    r"^aten::(?:nll_loss(?:2d)?_forward|mse_loss|l1_loss|smooth_l1_loss|huber_loss|binary_cross_entropy(?:_with_logits)?"
    r"|kl_div|mean)$"
)
"""What most losses end with: an operator that takes the mean of its first argument's elements or rows."""
COLLECTIVE_OP = re.compile(r"^c10d::")
COLLECTIVE_RECORD = "record_param_comms"

OTHER_PARALLELISMS: tuple[tuple[re.Pattern[str], Parallelism], ...] = (
    (re.compile(r"deepspeed", re.IGNORECASE), "deepspeed"),
    (re.compile(r"^(?:FSDP::|FullyShardedDataParallel\b)"), "fsdp"),
    (
        re.compile(
            r"ModelParallelRegion|(?:Column|Row)ParallelLinear|LinearWithGradAccumulationAndAsyncCommunication"
            r"|: (?:_ToTorchTensor|_FromTorchTensor|Redistribute)Backward"
        ),
        "tensor_parallel",
    ),
)
"""What other ways to train on several ranks write: DeepSpeed, FSDP 1 and 2, Megatron's layers, DTensor's nodes."""

DTYPE_BYTES: dict[str, int] = {
    "float": 4, "float32": 4, "f32": 4, "double": 8, "float64": 8, "half": 2, "c10::half": 2, "float16": 2,
    "bfloat16": 2, "c10::bfloat16": 2, "bf16": 2, "int": 4, "int32": 4, "long": 8, "long int": 8, "int64": 8,
    "short": 2, "short int": 2, "char": 1, "signed char": 1, "int8": 1, "byte": 1, "unsigned char": 1, "uint8": 1,
    "bool": 1,
}  # fmt: skip
"""Bytes of one element, by every spelling of a dtype seen in traces, in lower case."""

DTYPE_NAMES: dict[str, str] = {
    "float": "float32", "f32": "float32", "double": "float64", "half": "float16", "c10::half": "float16",
    "c10::bfloat16": "bfloat16", "bf16": "bfloat16", "int": "int32", "long": "int64", "long int": "int64",
    "short": "int16", "short int": "int16", "char": "int8", "signed char": "int8", "byte": "uint8",
    "unsigned char": "uint8",
}  # fmt: skip
"""torch's name of a dtype for the other spellings."""


def name_category(category: str | None, name: str, *, has_stream: bool = False) -> str:
    """Today's category of an event, whatever its writer calls it.

    Args:
        category: As it is spelled; None where there is none.
        name: The event's name: steps were operators once, and synchronisations are told by it.
        has_stream: Whether the event says on which stream it ran; asked where there is no category.
    """
    if not category:
        found = next((found for pattern, found in UNNAMED_CATEGORIES if pattern.match(name)), None)
        category = found or ("kernel" if has_stream else "cpu_op")
    word = category.lower()
    word = CATEGORIES.get(word, word)
    if word in OPERATOR and PROFILER_STEP.match(name):
        return "user_annotation"
    return "cuda_sync" if word in KERNEL and SYNCHRONIZATION_ROW.match(name) else word


def find_step_number(name: str) -> int | None:
    """The number of the profiler's step that an annotation marks; None for other names."""
    found = PROFILER_STEP.match(name)
    return int(found[1]) if found else None


def name_collective_kind(name: str) -> CollectiveKind | None:
    """The kind of collective that a kernel, annotation or `Collective name` speaks of."""
    return next((kind for pattern, kind in COLLECTIVE_KINDS if pattern.search(name)), None)


def name_protocol(kernel: str) -> str:
    """NCCL's algorithm and protocol as a kernel's name tells them, else empty."""
    found = PROTOCOL.search(kernel)
    return found[0] if found else ""


def name_dtype(spelling: str) -> str:
    """The name that torch gives to a dtype as a trace spells it."""
    word = spelling.strip().lower()
    return DTYPE_NAMES.get(word, word)


def is_floating(dtype: str) -> bool:
    """Whether gradients can have this dtype (torch's name)."""
    return dtype.startswith(("float", "bfloat"))
