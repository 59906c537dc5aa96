from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
import torch

from advisor.errors import UsageError
from workloads.factories import build_job
from workloads.job import PRESETS, WORKLOADS, Job, JobContext, JobSpec, check_spec

FACTORY = """
import torch
from workloads.job import Job

def build(context):
    model, batches = torch.nn.Linear(2, 1), [torch.ones(1, 2)]
    return Job(model, lambda model, x: model(x).sum(), batches, lambda parameters: torch.optim.SGD(parameters, 0.1))

def build_nothing(context):
    return None
"""


def context(workload: str, **fields: object) -> JobContext:
    spec = JobSpec(workload=workload, preset="tiny", **fields)  # type: ignore[arg-type]
    return JobContext(spec, rank=0, world_size=2, device=torch.device("cpu"))


def loss_of(job: Job, rank: int, micro_step: int) -> float:
    assert callable(job.batches)
    return job.loss(job.model, job.batches(rank, micro_step)).item()


@pytest.mark.parametrize("name", [workload.name for workload in WORKLOADS])
def test_a_reference_job_is_reproducible_and_its_ranks_read_different_samples(name: str) -> None:
    first, second = build_job(context(name)), build_job(context(name))
    assert loss_of(first, rank=0, micro_step=3) == loss_of(second, rank=0, micro_step=3)
    assert loss_of(first, rank=0, micro_step=3) != loss_of(first, rank=1, micro_step=3)


@pytest.mark.parametrize("factory", [workload.factory for workload in WORKLOADS])
def test_every_preset_of_a_reference_job_exists(factory: str) -> None:
    assert tuple(import_module(factory.partition(":")[0]).PRESETS) == PRESETS


def test_a_tied_head_shares_the_embedding() -> None:
    untied = build_job(context("gpt"))
    tied = build_job(context("gpt", options={"head": "tied"}))
    assert sum(1 for _ in untied.model.parameters()) == sum(1 for _ in tied.model.parameters()) + 1


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (JobSpec(workload="gtp"), "no workload 'gtp': choose one of mlp, gpt, resnet"),
        (JobSpec(workload="gpt", preset="huge"), "no preset 'huge' of gpt: choose one of tiny, small, large"),
    ],
)
def test_an_unknown_name_is_refused_with_the_known_ones(spec: JobSpec, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        check_spec(spec)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [({"tail": "x"}, "gpt has no option 'tail': it knows head"), ({"head": "x"}, "option of gpt cannot be read")],
)
def test_an_option_that_cannot_be_meant_is_refused(options: dict[str, str], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        build_job(context("gpt", options=options))


def test_a_persons_own_factory_comes_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(FACTORY)
    assert isinstance(build_job(context(f"{tmp_path / 'mine.py'}:build")), Job)


def test_a_persons_own_factory_comes_from_a_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_jobs.py").write_text(FACTORY)
    monkeypatch.syspath_prepend(tmp_path)
    assert isinstance(build_job(context("their_jobs:build")), Job)


@pytest.mark.parametrize(
    ("workload", "sentence"),
    [
        ("mine.py:build_nothing", "returned a NoneType: it has to return a workloads.job.Job"),
        ("mine.py:absent", "has no factory 'absent'"),
        ("absent.py:build", "no file absent.py"),
        ("no_such_module:build", "no module 'no_such_module'"),
    ],
)
def test_a_factory_that_cannot_be_used_is_one_sentence(
    workload: str, sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine.py").write_text(FACTORY)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match=sentence):
        build_job(context(workload))


def test_what_a_factorys_module_itself_misses_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "their_broken_jobs.py").write_text("import not_installed_here")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_installed_here"):
        build_job(context("their_broken_jobs:build"))
