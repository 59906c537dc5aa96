"""The Streamlit page, run without a browser."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from advisor.schema import Alarm, Report, write_json
from tests.builders import a100_report, gloo_report, hostile_report, swept_report, two_to_sixteen_ranks

testing = pytest.importorskip("streamlit.testing.v1", reason="the page needs the extra `app` (streamlit)")
APP = Path(__file__).parents[2] / "app.py"


@pytest.fixture
def open_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Opens the page in an empty working directory, with these arguments on its command line."""
    monkeypatch.chdir(tmp_path)

    def open_with(*arguments: str):
        monkeypatch.setattr("sys.argv", [str(APP), *arguments])
        return testing.AppTest.from_file(str(APP), default_timeout=60).run()

    return open_with


def write_run(name: str, report: Report) -> str:
    folder = Path("runs") / name
    folder.mkdir(parents=True)
    write_json(report, folder / "report.json")
    return str(folder)


def words(page) -> str:
    shown = [*page.markdown, *page.caption, *page.success, *page.error, *page.title, *page.subheader]
    return "\n".join(str(element.value) for element in shown)


def test_the_run_of_the_command_line_is_shown(open_page) -> None:
    write_run("other", a100_report())
    page = open_page(write_run("mine", swept_report()))
    assert not page.exception
    assert page.title[0].value == "Bandwidth-bound"
    assert [metric.value for metric in page.metric] == ["182 ms", "16 %", "152 ms", "14.0 ms"]
    assert [head.value for head in page.subheader] == [
        "Baseline: replay against measurement", "Where the step goes", "Buckets", "Communication", "Recommendation",
        "Notes on the data", "Prediction beside measurement",
    ]  # fmt: skip
    assert len(page.get("plotly_chart")) == 4
    buckets = next(table.value for table in page.dataframe if "blocking" in table.value)
    assert buckets["blocking"].tolist() == [0, 0, 0, 6, 23.5]


def test_alarms_come_first_with_what_to_do(open_page) -> None:
    alarm = Alarm(
        code="no_communication", severity="error", message="Nobody speaks.", fix="Wrap it.", ranks=(0,), steps=(2,),
        evidence=(), code_fix="ddp = wrap(model)",
    )  # fmt: skip
    page = open_page(write_run("mine", msgspec.structs.replace(swept_report(), alarms=(alarm,))))
    assert not page.exception
    assert page.subheader[0].value == "Alarms"
    assert page.error[0].value == "Nobody speaks\\.\n\n**Wrap it\\.**"
    assert page.code[0].value == "ddp = wrap(model)"


def test_another_run_rank_and_step_can_be_picked(open_page) -> None:
    other, mine = write_run("other", a100_report()), write_run("mine", swept_report())
    page = open_page(mine)
    page.sidebar.selectbox[0].set_value(Path(other)).run()
    assert page.title[0].value == "Host-bound"
    page.sidebar.selectbox[0].set_value(Path(mine)).run()
    page.main.selectbox[0].set_value(1).run()
    page.main.selectbox[1].set_value(3).run()
    assert not page.exception
    assert "step 3: 184 ms" in page.get("plotly_chart")[1].proto.spec


def test_other_numbers_of_ranks_are_a_table_with_their_assumptions(open_page) -> None:
    page = open_page(write_run("mine", gloo_report(forecast=two_to_sixteen_ranks())))
    assert not page.exception
    ranks = next(table.value for table in page.dataframe if "efficiency" in table.value)
    assert ranks["ranks"].tolist() == ["2 (today)", "16"]
    assert ranks["efficiency"].tolist() == ["100 %", "75 % [69, 81]"]
    assert "every rank keeps its batch" in words(page)


def test_silence_is_explained(open_page) -> None:
    page = open_page(write_run("mine", a100_report()))
    assert "No change of the DDP settings is recommended" in words(page)


def test_names_are_shown_not_obeyed(open_page) -> None:
    page = open_page(write_run("mine", hostile_report("![x](http://a)<b>\x1b")))
    assert not page.exception
    assert "![x](" not in words(page)
    assert "<b>" not in words(page)
    assert "\x1b" not in words(page)


def test_without_any_run_the_page_says_how_to_get_one(open_page) -> None:
    page = open_page()
    assert not page.exception
    assert "ddp-advisor demo" in page.info[0].value


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(None, "holds no report.json"), ("{", "is not a Report"), ('{"schema_version": 999}', "upgrade ddp")],
)
def test_a_report_that_cannot_be_read_is_one_sentence(open_page, content: str | None, sentence: str) -> None:
    folder = Path("runs/broken")
    folder.mkdir(parents=True)
    if content is not None:
        (folder / "report.json").write_text(content)
    page = open_page(str(folder))
    assert not page.exception
    assert len(page.error) == 1
    assert sentence in page.error[0].value.replace("\\", "")


def test_a_typed_path_beats_the_list(open_page) -> None:
    write_run("listed", a100_report())
    typed = write_run("typed", swept_report())
    page = open_page()
    page.text_input[0].set_value(typed).run()
    assert page.title[0].value == "Bandwidth-bound"
