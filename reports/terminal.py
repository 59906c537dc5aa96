"""A Report on a terminal: alarms and the verdict first, then what it rests on. Nothing in it is read as markup."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from advisor.schema import Alarm, Evidence, Framework, Recommendation, Report
from reports import holistic
from reports.communication import SUMMARY_HEADER, explain_models, summarize_models
from reports.forecast import render_forecast
from reports.palette import PART_LABELS, PARTS
from reports.sentences import (
    VERDICT_TITLES,
    say_baseline,
    say_ceiling,
    say_evidence,
    say_predicted_change,
    say_saving,
    say_silence,
    say_sweep,
)
from reports.summary import (
    RankStep,
    describe_changes,
    describe_equally_good,
    describe_run,
    slowest_ranks,
    summarize_buckets,
    summarize_ranks,
)
from reports.text import (
    format_bytes,
    format_change,
    format_estimate_ns,
    format_ms,
    format_quantity,
    visible,
    visible_code,
)
from reports.waiting import say_interference, tabulate_waiting
from reports.waterfall import render_waterfall

MAX_RANKS = 16
"""Lines of ranks a terminal should show; the slowest are kept."""
_WIDE = 110
"""From this many columns on the bucket table shows everything."""
_MARKS = {"error": ("✗", "bold red"), "warning": ("!", "bold yellow")}
_OUTCOME_STYLES = {"faster": "green", "slower": "red", "failed": "red", "reference": "dim"}


def render_terminal(report: Report, console: Console, framework: Framework = "torch") -> None:
    """Prints alarms, verdict, baseline, step, buckets, communication, advice, notes, sweep, forecast and HTA, in order.

    Advice comes with code for `framework` only.
    """
    _print_alarms(report.alarms, console)
    _print_verdict(report, console)
    _print_baseline(report, console)
    render_waterfall(report.today, console)
    _print_step(report, console)
    _print_waiting(report, console)
    _print_buckets(report, console)
    _print_communication(report, console)
    _print_recommendations(report, console, framework)
    _print_notes(report, console)
    render_sweep(report, console)
    if report.forecast is not None:
        render_forecast(report.forecast, console)
    _print_holistic(report, console)
    console.print()


def render_sweep(report: Report, console: Console) -> None:
    """Prints each measured setting with what was predicted for it; nothing where no sweep was run."""
    if report.sweep is None:
        return
    _print_heading("Prediction beside measurement", console)
    table = _table("arm", "predicted", "change", "measured", "change", "outcome")
    for arm in report.sweep.arms:
        estimates = (
            format_estimate_ns(arm.predicted_ns),
            say_predicted_change(report.sweep, arm),
            format_estimate_ns(arm.step_ns),
            "" if arm.outcome == "reference" else format_change(arm.ratio),
        )
        table.add_row(
            visible(arm.name),
            *_fit_estimates(estimates, console),
            Text(arm.outcome, _OUTCOME_STYLES.get(arm.outcome, "")),
        )
    console.print(table)
    for arm in report.sweep.arms:
        if arm.message:
            console.print(Text(f"{visible(arm.name)}: {visible(arm.message)}", "dim"))
    _print_caption(say_sweep(report.sweep), console)


def _print_verdict(report: Report, console: Console) -> None:
    run = " · ".join(f"{name} {visible(value)}" for name, value in describe_run(report))
    body = Text(visible(report.verdict.message))
    ceiling = say_ceiling(report)
    if ceiling:
        body.append(f"\n{ceiling}")
    console.print()
    console.print(
        Panel(
            Group(body, *_tabulate_evidence(report.verdict.evidence)),
            title=Text(VERDICT_TITLES[report.verdict.code], "bold"),
            title_align="left",
            subtitle=Text(visible(report.source), "dim"),
            subtitle_align="right",
            padding=(1, 2),
        )
    )
    console.print(Text(run, "dim"))


def _print_baseline(report: Report, console: Console) -> None:
    trusted = report.baseline is not None and report.baseline.trusted
    mark = ("✓ ", "bold green") if trusted else ("✗ ", "bold red")
    _print_heading("Baseline: replay against measurement", console)
    console.print(Text.assemble(mark, say_baseline(report)))


def _print_step(report: Report, console: Console) -> None:
    ranks = summarize_ranks(report)
    if not ranks:
        return
    shown = slowest_ranks(ranks, MAX_RANKS)
    _print_heading("Where the step goes", console)
    table = _table("rank", "step", *PARTS)
    for rank in shown:
        parts = [format_ms(rank.known_ns(part)) for part in PARTS]
        table.add_row(f"{rank.rank}", format_ms(rank.step_ns), *parts)
    for column, colour in zip(table.columns[2:], PARTS.values(), strict=True):
        column.header_style = f"bold {colour}"
    console.print(table)
    longest = max(rank.step_ns for rank in shown)
    for rank in shown:
        console.print(_draw_bar(rank, longest, min(console.width, 100) - 12), no_wrap=True)
    kept = f"; the slowest {len(shown)} of {len(ranks)} ranks" if len(shown) < len(ranks) else ""
    _print_caption(f"ms in the median step of each rank; backward is {PART_LABELS['backward']} only{kept}", console)


def _print_waiting(report: Report, console: Console) -> None:
    waiting = tabulate_waiting(report)
    if waiting.rows:
        _print_heading("Waiting for each other", console)
        table = _table(*waiting.header)
        for row in waiting.rows:
            table.add_row(*row)
        console.print(table)
        _print_caption(waiting.caption, console)
    tax = say_interference(report)
    if tax:
        _print_caption(tax, console)


def _draw_bar(rank: RankStep, longest_ns: float, width: int) -> Text:
    """The step as a line of blocks, one colour a part, `width` characters for `longest_ns`."""
    bar = Text.assemble((f"  {f'rank {rank.rank}':>8}  ", "dim"))
    reached, drawn = 0.0, 0
    for part, colour in PARTS.items():
        reached += rank.parts_ns[part]
        upto = round(min(1.0, reached / longest_ns) * width) if longest_ns else 0
        bar.append("█" * (upto - drawn), colour)
        drawn = upto
    return bar


def _print_buckets(report: Report, console: Console) -> None:
    rows = summarize_buckets(report)
    if not rows:
        return
    _print_heading("Buckets", console)
    wide = console.width >= _WIDE
    more = ("launch", "queue", "peers") if wide else ()
    table = _table("bucket", "bytes", "ready", "start", "end", *more, "transfer", "exposed", "blocking")
    for row in rows:
        extra = (format_ms(row.launch_ns), format_ms(row.queue_wait_ns), format_ms(row.peer_wait_ns)) if wide else ()
        blocking = Text(format_ms(row.blocking_ns), PARTS["blocking"] if row.blocking_ns else "")
        table.add_row(
            f"{row.bucket}",
            format_bytes(row.num_bytes),
            format_ms(row.ready_ns),
            format_ms(row.start_ns),
            format_ms(row.end_ns),
            *extra,
            format_ms(row.transfer_ns),
            format_ms(row.exposed_ns),
            blocking,
        )
    console.print(table)
    _print_caption("ms since the step's start; median over the steps, then the largest of the ranks", console)


def _print_communication(report: Report, console: Console) -> None:
    rows = summarize_models(report)
    if not rows:
        return
    _print_heading("Communication", console)
    table = _table(*SUMMARY_HEADER)
    for words in table.columns[:3]:
        words.justify = "left"
    for words in table.columns[1:3]:
        words.no_wrap = True
    table.columns[0].overflow = "fold"
    for row in rows:
        table.add_row(*_fit_estimates(row, console))
    console.print(table)
    num_models = len(report.comm_models)
    kept = f"; the {len(rows)} of {num_models} with the most samples" if len(rows) < num_models else ""
    _print_caption(
        f"fitted, with 95 % intervals; bus bandwidth as nccl-tests defines it, of large messages{kept}", console
    )
    for message in explain_models(report):
        _print_caption(visible(message), console)


def _print_recommendations(report: Report, console: Console, framework: Framework) -> None:
    _print_heading("Recommendation" if len(report.recommendations) < 2 else "Recommendations", console)
    for recommendation in report.recommendations:
        console.print(_recommendation_card(report, recommendation))
        _print_code(recommendation, console, framework)
    for sentence in filter(None, (say_silence(report), report.next_measurement)):
        console.print(Text(visible(sentence)))


def _recommendation_card(report: Report, recommendation: Recommendation) -> Panel:
    body = Text()
    for name, today, proposed in describe_changes(recommendation, report.config):
        body.append(f"{visible(name)}: ").append(f"{today} → " if today else "", "dim").append(proposed, "bold green")
        body.append("\n")
    for line in describe_equally_good(recommendation):
        body.append(f"{line}\n", "dim")
    says, saving, unit = say_saving(recommendation)
    if says:
        body.append(f"{says} ").append(saving, "bold").append(f" {unit}, {recommendation.status}\n\n")
    body.append(visible(recommendation.message))
    more = Text()
    for caveat in recommendation.caveats:
        more.append(f"\n! {visible(caveat)}", "yellow")
    content = Group(body, *_tabulate_evidence(recommendation.evidence), more)
    return Panel(content, title=Text(visible(recommendation.title), "bold"), title_align="left", padding=(1, 2))


def _print_code(recommendation: Recommendation, console: Console, framework: Framework) -> None:
    """Code outside of any frame and without line breaks of ours, so that it can be copied."""
    code = recommendation.code.get(framework)
    if code is None:
        return
    console.print(Text(visible_code(code), "cyan"), soft_wrap=True)
    others = [visible(name) for name in recommendation.code if name != framework]
    if others:
        _print_caption(f"The same for {', '.join(others)}: --framework NAME.", console)


def _print_alarms(alarms: Sequence[Alarm], console: Console) -> None:
    if not alarms:
        return
    _print_heading("Alarms", console)
    for number, alarm in enumerate(alarms):
        if number:
            console.print()
        mark, style = _MARKS[alarm.severity]
        text = Text.assemble((f"{mark} ", style), visible(alarm.message), (f"\n{visible(alarm.fix)}", "bold"))
        where = [
            f"{word} {', '.join(map(str, numbers[:12]))}"
            for word, numbers in (("ranks", alarm.ranks), ("steps", alarm.steps))
            if numbers
        ]
        values = [f"{visible(e.name)} {format_quantity(e.value, e.unit)}" for e in alarm.evidence]
        if where or values:
            text.append(f"\n{' · '.join(where + values)}", "dim")
        console.print(text)
        if alarm.code_fix:
            console.print(Text(visible_code(alarm.code_fix), "cyan"), soft_wrap=True)


def _print_notes(report: Report, console: Console) -> None:
    if not report.notes:
        return
    _print_heading("Notes on the data", console)
    for note in report.notes:
        file = f" ({visible(note.file)})" if note.file else ""
        console.print(Text.assemble(("· ", "dim"), visible(note.message), (file, "dim")))


def _print_holistic(report: Report, console: Console) -> None:
    answers = report.holistic
    if answers is None:
        return
    if answers.ranks:
        _print_heading(holistic.TITLE, console)
        summary = holistic.summarize(answers)
        table = _table(*summary.header)
        for row in summary.rows:
            table.add_row(*row)
        console.print(table)
        for sentence in holistic.say_disagreements(answers):
            console.print(Text.assemble(("! ", "bold yellow"), sentence))
        for sentence in filter(None, (holistic.say_agreement(answers), holistic.say_scope(answers))):
            _print_caption(sentence, console)
    else:
        console.print()
    for message in answers.messages:
        _print_caption(visible(message), console)


def _tabulate_evidence(items: Sequence[Evidence]) -> tuple[RenderableType, ...]:
    """The numbers that decide, beside the thresholds they are judged by; nothing where there are none."""
    if not items:
        return ()
    table = Table.grid(padding=(0, 2))
    for name, value, threshold in map(say_evidence, items):
        judged = Text(f"threshold {threshold}" if threshold else "", "dim")
        table.add_row(Text(visible(name), "dim"), Text(value), judged)
    return Text(), table


def _fit_estimates(cells: Sequence[str], console: Console) -> list[str]:
    """Cells with their intervals on a line of their own where the terminal is narrow."""
    return [cell if console.width >= _WIDE else cell.replace(" [", "\n[") for cell in cells]


def _table(first: str, *columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _print_heading(title: str, console: Console) -> None:
    console.print()
    console.print(Text(title, "bold underline"))


def _print_caption(caption: str, console: Console) -> None:
    console.print(Text(caption, "dim"))
