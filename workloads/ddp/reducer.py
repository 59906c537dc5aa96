"""The reducer: from single gradients, as backward produces them, to averages over all ranks.

One synchronising backward, on every rank alike:

    gradient ready -> copied into its bucket -> bucket complete -> all-reduce launched, in bucket order, asynchronously
    last bucket launched -> at the end of this very backward: wait for each bucket, give its averages back

All ranks must issue the same collectives in the same order, so a complete bucket waits until the earlier ones are
launched.
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Variable
from torch.autograd.graph import get_gradient_edge
from torch.nn import Parameter

from advisor.bucketing import assign_first, assign_rebuilt, bucket_limits, first_limits
from advisor.errors import RunError, UsageError
from advisor.schema import DDPConfig, marks
from workloads.ddp.buckets import Bucket, Reduction
from workloads.ddp.hooks import CommHook, GradBucket, wait_for
from workloads.ddp.marks import mark, mark_moment
from workloads.ddp.unused import UsedParameters, call_at_backward_start, find_unused
from workloads.ddp_failures import gradients_missing, late_gradient, ready_twice, reduction_failed


class Reducer:
    """Averages the gradients of some parameters over the ranks of a process group."""

    def __init__(self, parameters: dict[str, Parameter], config: DDPConfig, group: dist.ProcessGroup) -> None:
        self.names = tuple(parameters)
        self.parameters = tuple(parameters.values())
        self.config = config
        self.group = group
        self._rank = dist.get_rank(group)
        self.divisor = dist.get_world_size(group)
        self.hook: tuple[CommHook, object] | None = None
        self.record_gradient_marks = False
        self.ready_order: list[int] = []

        # static_graph learns in its first step what find_unused_parameters searches for in every step.
        self._is_learning = config.static_graph
        self._is_searching = config.find_unused_parameters and not config.static_graph
        self._used = UsedParameters(len(parameters), self.parameters[0].device)

        self._num_bytes = [parameter.nbytes for parameter in self.parameters]
        self._keys = [(parameter.dtype, parameter.device) for parameter in self.parameters]
        self._limits = bucket_limits(config.bucket_cap_mb, config.bucket_cap_mb_list)
        self._may_rebuild = not self._is_searching
        has_list = bool(config.bucket_cap_mb_list)
        limits = first_limits(self._limits, cap_list_given=has_list, will_rebuild=self._may_rebuild)
        self.initial_layout = assign_first(self._num_bytes, self._keys, limits)
        self.buckets: list[Bucket] = []
        self._places: list[tuple[Bucket, int]] = []
        self._build_buckets(self.initial_layout)

        self._lock = threading.Lock()  # autograd has one thread a device
        self._is_expecting = False  # the last forward asked for a synchronisation, which has not ended yet
        self._is_synchronized = False  # it has ended
        self._is_ready = [False] * len(parameters)
        self._arrivals: list[int] = []
        self._unused: list[int] = []
        self._next_bucket = 0
        self._calls_per_step = [0 if self._is_learning else 1] * len(parameters)
        self._calls_left = list(self._calls_per_step)

        # A parameter's AccumulateGrad node, and its hooks with it, live as long as someone holds the node: as long as
        # this reducer. Unlike a tensor's hooks they are called for a gradient that stays undefined too.
        self._nodes = [get_gradient_edge(parameter).node for parameter in self.parameters]
        for index, node in enumerate(self._nodes):
            node.register_hook(partial(_on_gradient, weakref.ref(self), index))

    # Forward: rebuild the buckets once, then expect a backward.

    def prepare_forward(self) -> None:
        """Before every forward that records gradients: the last backward must be over; buckets are rebuilt once."""
        self._check_finished()
        self._is_synchronized = False
        if self._may_rebuild and self.ready_order:
            self._rebuild_buckets()

    def _rebuild_buckets(self) -> None:
        # In the order of rank 0, since ranks may see gradients in different orders.
        self._may_rebuild = False
        order = torch.tensor(self.ready_order, dtype=torch.int32, device=self.parameters[0].device)
        dist.broadcast(order, dist.get_global_rank(self.group, 0), self.group)
        self._build_buckets(assign_rebuilt(self._num_bytes, self._keys, self._limits, order.tolist()))

    def _build_buckets(self, layout: Sequence[Sequence[int]]) -> None:
        self._places = []
        self.buckets = []  # lets go of the old buffers before new ones are allocated
        for index, members in enumerate(layout):
            parameters = [self.parameters[member] for member in members]
            self.buckets.append(Bucket(index, members, parameters, as_view=self.config.gradient_as_bucket_view))
        place_of = {m: (bucket, i) for bucket in self.buckets for i, m in enumerate(bucket.members)}
        self._places = [place_of[index] for index in range(len(self.parameters))]

    def expect_backward(self, output: object) -> object:
        """After a forward that shall be synchronised; returns the output to hand on in place of `output`."""
        self._is_expecting = True
        self._is_ready = [False] * len(self.parameters)
        self._arrivals = []
        self._next_bucket = 0
        self._calls_left = list(self._calls_per_step)
        for bucket in self.buckets:
            # A comm hook gets the plain gradients and averages them itself.
            bucket.expect_gradients(self.divisor if self.hook is None else None)
        if self._is_learning:
            handed_on = call_at_backward_start(output, partial(_at_end_of_backward, self._reduce_all))
            if handed_on is output:
                raise RunError(
                    "BucketedDDP(static_graph=True) found no tensor with a gradient in the module's output: "
                    "return tensors in tuples, lists, dictionaries or registered pytree nodes."
                )
            return handed_on
        if self._is_searching:
            self._unused = find_unused(output, self._nodes)
            return call_at_backward_start(output, _do_nothing)
        return output

    def is_one_bucket(self) -> bool:
        """Whether all gradients are sure to fit into one bucket, whatever their order."""
        return len(set(self._keys)) == 1 and sum(self._num_bytes) <= self._limits[0]

    # Backward: gradients come in one by one.

    def on_gradient(self, index: int) -> None:
        """Backward has passed a parameter, and mostly left a gradient."""
        with self._lock:
            if self._is_searching or self._is_learning:
                has_gradient = self.parameters[index].grad is not None
                self._used.here[index] |= has_gradient
            if not self._is_expecting:
                self._warn_if_late(index)
                return
            if self._is_learning:
                self._calls_per_step[index] += has_gradient
                return
            self._calls_left[index] -= 1
            if self._calls_left[index] > 0:
                return
            if not self._arrivals:
                for unused in self._unused:
                    self._mark_ready(unused)
            self._arrivals.append(index)
            self._mark_ready(index)

    def _mark_ready(self, index: int) -> None:
        if self._is_ready[index]:
            raise ready_twice(self._rank, self.names[index], is_static=self.config.static_graph)
        self._is_ready[index] = True
        if self.record_gradient_marks:
            mark_moment(marks.GRADIENT_READY, index)
        bucket, position = self._places[index]
        if not self.config.batched_grad_copy:
            bucket.take_in(position)
        bucket.num_pending -= 1
        if bucket.num_pending == 0:
            mark_moment(marks.BUCKET_READY, bucket.index, bucket.buffer.nbytes)
            if self.config.batched_grad_copy:
                bucket.take_in_all()
            self._launch_complete_buckets()

    def _launch_complete_buckets(self) -> None:
        while self._next_bucket < len(self.buckets) and self.buckets[self._next_bucket].num_pending == 0:
            bucket = self.buckets[self._next_bucket]
            self._next_bucket += 1
            if not self._may_skip(bucket):
                with mark(marks.BUCKET_LAUNCH, bucket.index):
                    bucket.reduction = self.launch(bucket.index, bucket.buffer)
        if self._next_bucket == len(self.buckets):
            if self._is_searching:
                self._used.launch(self.group)
            # Not before the last launch: inside a checkpoint's re-entrant backward the "end of backward" is that of
            # the inner one.
            _at_end_of_backward(self._finish)

    def launch(self, index: int, buffer: Tensor) -> Reduction:
        """Starts the reduction of one bucket's buffer."""
        if self.hook is None:
            # The group's own method, since dist.all_reduce costs more host time.
            return self.group.allreduce([torch.view_as_real(buffer) if buffer.is_complex() else buffer])
        hook, state = self.hook
        future = hook(state, GradBucket(self.buckets[index], buffer, is_last=index == len(self.buckets) - 1))
        if not isinstance(future, torch.Future):
            raise UsageError(f"The comm hook returned {future!r}: it must return a torch.futures.Future of its tensor.")
        return future

    def _may_skip(self, bucket: Bucket) -> bool:
        skips = self._is_searching and self.config.skip_all_reduce_unused_params
        return skips and all(index in self._unused for index in bucket.members)

    # End of backward: wait for the buckets, in order.

    def _finish(self) -> None:
        with self._lock, torch.no_grad():
            for bucket in (bucket for bucket in self.buckets if bucket.reduction is not None):
                with mark(marks.BUCKET_WAIT, bucket.index):
                    averages = self._wait_for(bucket)
                used = self._used.among(bucket.members) if self.config.static_graph or self._is_searching else None
                with mark(marks.COPY_BACK, bucket.index):
                    bucket.give_back(averages, used)
            if self._is_searching:
                self._used.wait()
                self._used.forget()
            if self._arrivals:
                self.ready_order = self._arrivals + self._unused
            self._is_expecting = False
            self._is_synchronized = True

    def _wait_for(self, bucket: Bucket) -> Tensor:
        assert bucket.reduction is not None
        try:
            averages = wait_for(bucket.reduction, bucket.buffer)
        except RuntimeError as error:
            raise reduction_failed(self._rank, bucket.index, bucket.buffer.nbytes, error) from error
        bucket.reduction = None
        return averages

    def _reduce_all(self) -> None:
        """Ends a static graph's first step: which gradients come, and how often, is known only now."""
        with self._lock, torch.no_grad():
            if not self._is_learning:
                return
            self._is_learning = False
            self._unused = [index for index, num_calls in enumerate(self._calls_per_step) if num_calls == 0]
            self._used.launch(self.group)
            for index in range(len(self.parameters)):
                self._mark_ready(index)

    def shadow_backward(self) -> None:
        """Issues the collectives of a synchronising backward with zeros, for a rank that has no data left."""
        if self._is_learning:
            self._used.launch(self.group)
        buffers = [torch.zeros_like(bucket.buffer) for bucket in self.buckets]
        reductions = [self.launch(index, buffer) for index, buffer in enumerate(buffers)]
        for reduction, buffer in zip(reductions, buffers, strict=True):
            wait_for(reduction, buffer)
        if self._is_searching:
            self._used.launch(self.group)
        if self._is_learning or self._is_searching:
            self._used.wait()
        if not self._is_learning:
            self.ready_order = self.ready_order or list(range(len(self.parameters)))
        self._is_learning = False

    # What can go wrong.

    def _check_finished(self) -> None:
        if self._is_expecting and any(self._is_ready):
            missing = [index for index, is_ready in enumerate(self._is_ready) if not is_ready]
            frozen = [self.names[index] for index in missing if not self.parameters[index].requires_grad]
            names = [self.names[index] for index in missing]
            raise gradients_missing(self._rank, names, frozen, is_static=self.config.static_graph)

    def _warn_if_late(self, index: int) -> None:
        if self._is_synchronized:
            self._is_synchronized = False
            warnings.warn(late_gradient(self.names[index]), stacklevel=2)


def _on_gradient(reducer: weakref.ref[Reducer], index: int, *_: object) -> None:
    target = reducer()
    if target is not None:
        target.on_gradient(index)


def _at_end_of_backward(function: Callable[[], None]) -> None:
    Variable._execution_engine.queue_callback(function)


def _do_nothing() -> None:
    pass
