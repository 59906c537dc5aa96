"""`ddp-advisor probe` on two real processes, for a few seconds, and a run analysed with what it measured."""

from __future__ import annotations

from pathlib import Path

from advisor.schema import Ladder, read_json, read_report
from tests.e2e.conftest import ddp_advisor

KIB = 2**10


def test_a_probe_measures_what_its_budget_allows_and_a_run_is_analysed_with_it(
    tmp_path: Path, demo: tuple[Path, str]
) -> None:
    done = ddp_advisor("probe", "--budget", "3s", "--backend", "gloo", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "all-reduce on 2 ranks, gloo" in done.stdout
    assert "Left out for lack of time, of 17 sizes of float32" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["probe.json"]
    ladder = read_json(Ladder, tmp_path / "probe.json")
    assert (ladder.source, ladder.world_size, ladder.backend) == ("probe", 2, "gloo")
    assert 256 * KIB in {point.num_bytes for point in ladder.points if point.dtype == "float32"}
    assert all(min(visit) > 0 for point in ladder.points for visit in point.rounds_ns)
    assert len(ladder.devices) == 2
    assert any("float32" in sentence for sentence in ladder.left_out)

    analysed = ddp_advisor("analyze", demo[0], "--probe", "probe.json", "--out", "out", cwd=tmp_path)
    assert analysed.returncode == 0, analysed.stderr
    report = read_report(tmp_path / "out")
    used = any("probe" in model.sources for model in report.comm_models)
    assert used or any(note.message.startswith("The probe measured") for note in report.notes)
