"""`ddp-advisor estimate` as a person sees it: cases with known answers, the drawing, and one sentence for bad input."""

from __future__ import annotations

import msgspec
import pytest
from typer.testing import CliRunner

from advisor.cli import app
from advisor.schema import JobEstimate

LINK = ["--bandwidth", "1GB/s"]


def estimate(*arguments: str, columns: int = 80) -> str:
    result = CliRunner().invoke(app, ["estimate", *arguments], env={"COLUMNS": str(columns)})
    assert result.exit_code == 0, result.output
    return result.stdout


def rows(printed: str) -> dict[str, list[str]]:
    """The cells of the table by the setting in front of them."""
    words = [line.split() for line in printed.splitlines()]
    return {line[0]: line[1:] for line in words if len(line) >= 6 and line[-1].replace(".", "").isdecimal()}


def drawing(printed: str, title: str) -> tuple[str, str]:
    """The lines of backward and of the first channel below a title, without their labels."""
    lines = printed[printed.index(title) :].splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("  backward"))
    return lines[first][13:], lines[first + 1][13:]


def test_the_u_of_bucket_sizes() -> None:
    """C8: too large waits, too small pays latency."""
    uniform = ["--backward", "15ms", "--bandwidth", "10GB/s", "--latency", "60us"]
    table = rows(estimate("200x0.25MB", *uniform, "--cap", "25MB,5MB,1MB,0.25MB"))
    assert [table[cap][3] for cap in ("25MB", "5MB", "1MB", "0.25MB")] == ["2.56", "0.56", "0.16", "2.08"]


@pytest.mark.parametrize(
    ("changes", "bound"),
    [
        ([], "470.00 ms a step"),
        (["--comm-hook", "bf16"], "270.00 ms a step"),
        (["--accumulation-steps", "4"], "252.50 ms a micro-step"),
        (["--comm-hook", "bf16", "--accumulation-steps", "4"], "202.50 ms a micro-step"),
    ],
)
def test_what_no_buckets_beat(changes: list[str], bound: str) -> None:
    """C9: 400 MB over 1 GB/s beside 60, 120 and 10 ms of computation."""
    times = ["--forward", "60ms", "--backward", "120ms", "--optimizer", "10ms"]
    assert f"no buckets beat  {bound}: communication from" in estimate("400MB/100", *times, *LINK, *changes)


def test_a_queue_is_drawn_to_scale() -> None:
    """C11: 8 ms of backward and all-reduces from 2 to 14 ms on 67 columns."""
    printed = estimate("4x3MB", "--backward", "8ms", *LINK, "--cap", "3MB")
    assert rows(printed)["3MB"] == ["2.86102", "4", "12.00", "6.00", "14.00"]
    assert "3MB: 2 of 4 buckets end up to 6.00 ms after backward, queued up to 3.00 ms" in printed
    backward, all_reduce = drawing(printed, "3MB:")
    scale = 67 / 14
    assert backward.count("█") == round(8 * scale)
    assert len(all_reduce) == 67
    assert [all_reduce[round(ms * scale) - 1] for ms in (2, 5, 8, 11, 14)] == [" ", "█", "▒", "█", "▒"]
    assert "█ and ▒ tell neighbouring buckets apart" in printed


def test_unset_is_the_best_cap_where_no_cap_is_as_good() -> None:
    """Its first bucket of 1 MiB starts at 2 ms; a cap either pays latency twice more or starts at 4 ms."""
    link = ["--bandwidth", "1GB/s", "--latency", "1ms", "--concurrency", "2", "--ranks", "64"]
    printed = estimate("4x3MB", "--backward", "8ms", *link, "--cap", "unset,1")
    (best_cap,) = [line.split() for line in printed.splitlines() if line.startswith(" best cap")]
    assert best_cap == ["best", "cap", "unset", *rows(printed)["unset"][1:]]
    assert [rows(printed)[name][-1] for name in ("unset", "1")] == ["27.62", "29.62"]


def test_traffic_of_64_ranks() -> None:
    """C12: 27.6 GB in 0.55 s."""
    job = ["80x175MB", "--dtype", "bfloat16", "--ranks", "64", "--bandwidth", "50GB/s", "--backward", "0.8s"]
    printed = estimate(*job, "--cap", "0")
    assert "each rank sends  27.6 GB a step" in printed
    assert rows(printed)["0"][2:4] == ["551.25", "6.89"]


def test_traffic_and_memory_a_rank() -> None:
    """C13 and C22: 4 GB of float32 gradients on 8 ranks send 7 GB, and 1e9 parameters keep 16 GB on every rank."""
    printed = estimate("1e9/100", "--ranks", "8", "--backward", "1s", *LINK)
    assert "each rank sends  7 GB a step" in printed
    assert "memory per rank  16 GB for weights, gradients and Adam, 4 GB for DDP's buckets" in printed


def test_deep_models_hide_more() -> None:
    """C23: 64 ms of communication beside 100 ms of backward, in 2, 8 and 32 layers."""
    printed = [rows(estimate(f"64MB/{num}", "--backward", "100ms", *LINK, "--cap", "0")) for num in (2, 8, 32)]
    assert [table["0"][3:] for table in printed] == [["32.00", "132.00"], ["8.00", "108.00"], ["2.00", "102.00"]]


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(columns: int) -> None:
    job = ["24x14M", "--backward", "120ms", "--bandwidth", "12GB/s", "--latency", "60us", "--ranks", "8"]
    more = ["--concurrency", "2", "--accumulation-steps", "4", "--comm-hook", "bf16", "--cap", "unset,25,100MB"]
    printed = estimate(*job, *more, columns=columns)
    assert max(len(line) for line in printed.splitlines()) <= columns
    assert "\x1b" not in printed
    assert "channel 1" in printed


def test_one_rank_sends_nothing() -> None:
    printed = estimate("4x1M", "--backward", "8ms", *LINK, "--ranks", "1")
    assert "unset: all of it is hidden" in printed
    assert "best" not in printed
    assert "each rank sends  0 B a step" in printed


def test_json_holds_every_setting() -> None:
    answer = msgspec.json.decode(estimate("4x3MB", "--backward", "8ms", *LINK, "--json"), type=JobEstimate)
    assert [setting.name for setting in answer.settings] == ["unset", "best cap", "best list"]
    assert answer.sketch.layer_parameters == (750_000,) * 4
    assert {setting.prediction.step_ns.basis for setting in answer.settings} == {"extrapolated"}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["4x-3MB", "--backward", "8ms", *LINK], "LAYERS '-3MB' is below zero: give 0 or more."),
        (["0", "--backward", "8ms", *LINK], "A layer without parameters has no gradient"),
        (["4x3MB", "--backward", "8 ages", *LINK], "--backward '8 ages' is not understood"),
        (["4x3MB", "--backward", "8ms", "--bandwidth", "1GB"], "--bandwidth '1GB' is not understood"),
        (["4x3MB", "--backward", "8ms", "--bandwidth", "0"], "give a bandwidth above zero, such as 10GB/s."),
        (["4x3MB", "--backward", "8ms", *LINK, "--cap", "25,"], "--cap '' is not understood"),
        (["5000x3MB", "--backward", "8ms", *LINK], "A sketch of 5000 layers cannot be drawn"),
    ],
)
def test_bad_input_is_one_sentence(arguments: list[str], sentence: str) -> None:
    result = CliRunner().invoke(app, ["estimate", *arguments])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("error: ")
    assert sentence in result.stderr
    assert result.stderr.count("\n") == 1


def test_zero_ranks_are_refused() -> None:
    result = CliRunner().invoke(app, ["estimate", "4x3MB", "--backward", "8ms", *LINK, "--ranks", "0"])
    assert result.exit_code == 2
    assert "greater than or equal to 1" in result.stderr
