"""What a rank does for each kind of request; torch is imported here and below, never by the launcher."""

from __future__ import annotations

from workloads.check import check_job
from workloads.exchange import Reporter
from workloads.factories import build_job
from workloads.interleave import measure_in_turns
from workloads.job import JobContext
from workloads.manifest import RunLabel
from workloads.place import Place, process_group, settle_config
from workloads.probe import probe_machine
from workloads.record import num_skipped_steps, record
from workloads.requests import CheckRequest, ProbeRequest, RecordRequest, Request, SweepRequest, silence_limit_s
from workloads.train import Training


def run_task(request: Request, reporter: Reporter) -> None:
    """Joins the process group and does what was asked for."""
    with process_group(request.config.backend, request.device, silence_limit_s(request)) as place:
        match request:
            case RecordRequest():
                record_job(request, place, reporter)
            case SweepRequest():
                measure_in_turns(request, place, reporter)
            case CheckRequest():
                check_job(request, place, reporter)
            case ProbeRequest():
                probe_machine(request, place, reporter)


def record_job(request: RecordRequest, place: Place, reporter: Reporter) -> None:
    """Trains a job under the profiler and leaves a run folder."""
    config = settle_config(request.config, place)
    job = build_job(JobContext(request.job, place.rank, place.world_size, place.device))
    training = Training(job, config, place)
    label = RunLabel(request.job.workload, request.job.preset, request.command)
    num_skipped = num_skipped_steps(config)
    with record(training.model, request.out, num_steps=request.num_steps, config=config, label=label) as recorder:
        for step in range(recorder.num_steps):
            training.step()
            recorder.step()
            text = "warming up" if step < num_skipped else "profiling"
            reporter.report(step + 1, recorder.num_steps, f"{text} {request.job.workload}")
