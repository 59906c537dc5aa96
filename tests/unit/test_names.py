from __future__ import annotations

import pytest

from advisor.readers.names import COMMUNICATION_KERNEL, find_step_number, is_floating, name_collective_kind, name_dtype


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "all_reduce"),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "all_reduce"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL", "reduce_scatter"),
        ("ncclSymkDevKernel_AllGather_LL", "all_gather"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t", "send_recv"),
        ("ncclDevKernel_Generic(ncclDevKernelArgsStorage<4096ul>)", None),
        ("allreduce", "all_reduce"),
        ("allreduce_coalesced", "all_reduce"),
        ("_allgather_base", "all_gather"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("all_to_allv", "all_to_all"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("nccl:broadcast", "broadcast"),
        ("c10d::reduce_", "reduce"),
        ("gloo:barrier", None),
    ],
)
def test_every_dialect_names_the_same_collectives(name: str, kind: str | None) -> None:
    assert name_collective_kind(name) == kind


@pytest.mark.parametrize(
    ("name", "communicates"),
    [
        ("ncclKernel_AllReduce_RING_LL_Sum_float", True),
        ("ncclDevKernel_Generic_4", True),
        ("ncclSymkDevKernel_AllReduce_sum_f32", True),
        ("nccldevkernel_allreduce_sum_f32_ring_ll", True),
        ("rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)", True),
        ("oneccl_allreduce_local_barrier", True),
        ("ampere_sgemm_128x64_nn", False),
        ("void reduce_kernel<512, 1>", False),
    ],
)
def test_communication_kernels_are_told_by_their_library(name: str, communicates: bool) -> None:
    assert bool(COMMUNICATION_KERNEL.search(name)) is communicates


@pytest.mark.parametrize(
    ("spelling", "dtype", "floating"),
    [
        ("Float", "float32", True),
        ("float", "float32", True),
        ("c10::BFloat16", "bfloat16", True),
        ("c10::Half", "float16", True),
        ("Long", "int64", False),
        ("long int", "int64", False),
        ("unsigned char", "uint8", False),
        (" Double ", "float64", True),
        ("Float8_e4m3fn", "float8_e4m3fn", True),
    ],
)
def test_dtypes_get_torchs_name(spelling: str, dtype: str, floating: bool) -> None:
    assert name_dtype(spelling) == dtype
    assert is_floating(dtype) is floating


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("ProfilerStep#12", 12),
        ("ProfilerStep12", 12),
        ("ProfilerStep#007", 7),
        ("ProfilerStep#", None),
        ("ProfilerStep#1x", None),
        ("ProfilerStep#-1", None),
        ("Optimizer.step#SGD.step", None),
        pytest.param("ProfilerStep#" + 20 * "9", None, id="more than 64 bits hold"),
        pytest.param("ProfilerStep#" + 5000 * "9", None, id="more than Python converts"),
    ],
)
def test_the_number_of_a_step_is_read_in_every_spelling(name: str, number: int | None) -> None:
    assert find_step_number(name) == number
