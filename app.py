"""The Streamlit page: which run, and which page of it. `streamlit run app.py -- runs/…`."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import streamlit as st

from advisor.errors import AdvisorError
from advisor.schema import Report, read_report
from reports.pages import overview
from reports.runs import find_runs
from reports.text import escape_markdown

PAGES = (("Overview", overview.render),)
RUNS = Path("runs")


def main() -> None:
    """Picks a run and shows the chosen page of its report."""
    st.set_page_config(page_title="ddp-advisor", layout="wide")
    report = open_chosen_report()
    if report is None:
        st.stop()
    pages = [st.Page(partial(render, report), title=title, url_path=title.lower()) for title, render in PAGES]
    st.navigation(pages).run()


def open_chosen_report() -> Report | None:
    """The report of the run picked in the sidebar, or None with one sentence on the page that says what is wrong."""
    path = choose_run()
    if path is None:
        st.info("There is no run to show. Name a run folder on the left, or record one with `ddp-advisor demo`.")
        return None
    try:
        return read_report(path)
    except AdvisorError as error:
        st.error(escape_markdown(error))
        return None


def choose_run() -> Path | None:
    """The run of the command line first, then those below `runs/`, the newest first; a typed path beats them all."""
    runs = [*(Path(argument) for argument in sys.argv[1:2]), *find_runs(RUNS)]
    chosen = st.sidebar.selectbox("Run", list(dict.fromkeys(runs)), format_func=str)
    typed = st.sidebar.text_input("or a run folder or report.json", placeholder="path")
    return Path(typed).expanduser() if typed else chosen


main()
