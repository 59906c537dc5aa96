"""The terminal says the verdict first, everything in one order, and obeys no name."""

from __future__ import annotations

import io

import msgspec
import pytest
from rich.console import Console

from advisor.schema import Alarm, CommModel, CommSegment, Framework, Report
from reports import render_terminal
from reports.communication import MAX_MODELS, explain_models
from tests.builders import (
    MIB,
    a100_report,
    comm_model,
    estimate,
    estimate_ms,
    gloo_report,
    hostile_report,
    recommendation,
    step_summary,
    swept_report,
)


def printed(report: Report, width: int = 120, framework: Framework = "torch") -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    render_terminal(report, console, framework)
    return console.file.getvalue()


def alarm(**overrides) -> Alarm:
    values = {
        "code": "no_communication", "severity": "error", "message": "Two ranks, and nobody speaks.", "fix": "Wrap it.",
        "ranks": (0, 1), "steps": (3,), "evidence": (),
    }  # fmt: skip
    return Alarm(**(values | overrides))


def model_with_a_kink(**changes) -> CommModel:
    """200 µs, 1 ns a byte up to 4 MiB and 2 ns from there; measured by a probe too."""
    one = comm_model()
    segments = (
        CommSegment(alpha_ns=estimate_ms(0.2, 0.01), beta_ns_per_byte=estimate(1, 0.1), from_bytes=0, to_bytes=4 * MIB),
        CommSegment(alpha_ns=estimate_ms(-4), beta_ns_per_byte=estimate(2, 0.1), from_bytes=4 * MIB, to_bytes=None),
    )
    samples = (*one.samples, msgspec.structs.replace(one.samples[0], source="probe"))
    values = {"segments": segments, "samples": samples, "busbw_bytes_per_s": estimate(5e8, 2.5e7)}
    return msgspec.structs.replace(one, **(values | changes))


def test_the_order_is_alarms_verdict_baseline_step_buckets_advice_notes_sweep() -> None:
    report = msgspec.structs.replace(swept_report(), alarms=(alarm(code_fix="ddp = wrap(model)\nddp(x)"),))
    headings = [
        "\nAlarms", "Two ranks, and nobody speaks.", "Wrap it.", "ddp = wrap(model)\nddp(x)", "Bandwidth-bound",
        "With free communication", "Replay reproduces", "Where the step goes", "\nBuckets", "\nCommunication",
        "\nRecommendation", "Use smaller buckets", "Notes on the data", "Prediction beside measurement",
    ]  # fmt: skip
    places = [printed(report).find(heading) for heading in headings]
    assert places == sorted(places)
    assert places[0] >= 0


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("report", [swept_report(), a100_report()])
def test_no_line_is_wider_than_the_terminal(report: Report, width: int) -> None:
    assert max(len(line) for line in printed(report, width).splitlines()) <= width


@pytest.mark.parametrize("width", [80, 120])
def test_the_numbers_are_the_report_s(width: int) -> None:
    rows = [line.split() for line in printed(gloo_report(), width).splitlines()]
    assert ["0", "181.50", "2.00", "50.00", "88.00", "29.50", "10.00", "2.00"] in rows
    last_bucket = next(row for row in rows if row[:3] == ["4", "25", "MiB"])
    assert last_bucket[-3:] == ["23.50", "23.50", "23.50"]


def test_each_model_of_communication_has_a_line() -> None:
    reduce_scatter = model_with_a_kink(kind="reduce_scatter", dtype="bfloat16", process_group="default_pg")
    unknown = msgspec.structs.replace(comm_model(), kind="send_recv", process_group="", latency_known=False)
    report = gloo_report(comm_models=(reduce_scatter, unknown))
    lines = printed(report, 120).splitlines()
    cells = ("default_pg", "reduce_scatter", "bfloat16", "200 µs [190, 210]", "0.500 GB/s [0.475, 0.525]", "4 MiB")
    (line,) = (line for line in lines if "reduce_scatter  " in line)
    assert line.split() == " ".join((*cells, "trace, probe")).split()
    (line,) = (line for line in lines if "send_recv  " in line)
    assert line.split() == ["–", "send_recv", "float32", "–", "–", "none", "trace"]
    assert "reduce_scatter of bfloat16, send_recv of float32: One line fits all samples within 2 %." in lines


def test_what_is_said_of_models_names_them() -> None:
    """Of six kinds that say the same four are named; what nobody says is no sentence."""
    alike = [model_with_a_kink(kind=f"kind{number}", message="Alike.") for number in range(6)]
    models = (
        *alike,
        alike[0],
        model_with_a_kink(kind="other", dtype="", message="Else."),
        model_with_a_kink(message=""),
    )
    assert explain_models(gloo_report(comm_models=models)) == (
        "kind0 of float32, kind1 of float32, kind2 of float32, kind3 of float32 and 2 more: Alike.",
        "other: Else.",
    )


@pytest.mark.parametrize("width", [80, 100, 120])
def test_lines_of_communication_fit_and_obey_nothing(width: int) -> None:
    models = tuple(
        model_with_a_kink(kind="reduce_scatter", process_group=f"{number}\x1b[2J", message="\x1b[2J")
        for number in range(MAX_MODELS + 1)
    )
    text = printed(gloo_report(comm_models=models), width)
    table = text[text.index("\nCommunication") : text.index("\nRecommendation")]
    assert max(map(len, table.splitlines())) <= width
    assert "\x1b" not in text
    assert table.count("reduce_scatter  ") == MAX_MODELS
    assert "the 12 of 13 with the most samples" in " ".join(table.split())
    assert "4 MiB" in table


def test_code_is_shown_for_one_framework_and_can_be_copied() -> None:
    line = f"model = DistributedDataParallel(model, {'bucket_cap_mb=8, ' * 10})"
    code = {"torch": line, "lightning": "strategy = DDPStrategy(\n    bucket_cap_mb=8,\n)"}
    report = gloo_report(recommendations=(recommendation(code=code),))
    assert line in printed(report, 80).splitlines()
    assert "The same for lightning: --framework NAME." in printed(report)
    assert "DDPStrategy" not in printed(report)
    assert code["lightning"] in printed(report, framework="lightning")
    assert "DistributedDataParallel(" not in printed(report, framework="lightning")


def test_prediction_stands_beside_measurement() -> None:
    lines = printed(swept_report()).splitlines()
    line = next(line for line in lines if line.strip().startswith("bucket_cap_mb=8"))
    assert line.split("  ")[-1].strip() == "faster"
    assert "167 ms [163, 171]" in line
    assert "168.0 ms [166.5, 169.5]" in line
    assert "−6.7 % [−7.7, −5.7]" in line


def test_without_advice_the_reason_is_given() -> None:
    assert "No change of the DDP settings is recommended" in printed(a100_report())


def test_control_characters_and_markup_in_names_are_shown_not_obeyed() -> None:
    text = printed(hostile_report("\x1b[2J[red]\r\n\x9b"), 300)
    assert not {character for character in text if ord(character) < 32 or 127 <= ord(character) < 160} - {"\n"}
    assert r"runs/gpt-20260102-030405\x1b[2J[red]\r\n\x9b" in text


def test_of_many_ranks_the_slowest_are_shown_and_it_is_said() -> None:
    steps = tuple(step_summary(rank=rank, forward=rank + 1) for rank in range(40))
    text = printed(gloo_report(steps=steps))
    assert "the slowest 16 of 40 ranks" in text


def test_a_nearly_empty_report_still_prints() -> None:
    empty = gloo_report(steps=(), buckets=(), comm_models=(), recommendations=(), notes=(), baseline=None, config=None)
    text = printed(empty)
    assert "The step was not replayed" in text
    assert "Buckets" not in text


def test_only_the_mark_of_the_baseline_is_coloured() -> None:
    console = Console(file=io.StringIO(), width=200, force_terminal=True, color_system="standard")
    render_terminal(gloo_report(), console)
    assert "\x1b[1;32m✓ \x1b[0mReplay reproduces" in console.file.getvalue()
