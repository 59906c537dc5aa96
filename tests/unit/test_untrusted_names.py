"""Whatever a trace calls its things, they are only shown; and nothing of the product opens a pickle."""

from __future__ import annotations

import ast
import io
from pathlib import Path

import pytest
from rich.console import Console

from advisor.pipeline import analyze
from advisor.schema import Report
from reports import render_html, render_terminal
from tests.conftest import ROOT
from tests.trace_builders import RankTrace

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[2J\u202e{{7*7}}"
OPENERS = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "read_pickle", "to_pickle", "allow_pickle"}
"""Modules, functions and arguments that run what a file tells them to."""


def record(rank: int, evil: str) -> bytes:
    """Two steps whose every name that is free holds `evil`."""
    trace = RankTrace(rank, backend=f"nccl{evil}")
    for number in (2, 3):
        at = 1000 * number
        trace.step(number, at, at + 1000)
        trace.forward(at + 100, at + 300)
        trace.node(at + 400, at + 450, f"Node{evil}")
        trace.gradient(at + 450, at + 500, 64, f"float{evil}")
        trace.kernel(at + 410, at + 430, at + 520, f"gemm{evil}")
        trace.kernel(at + 411, at + 530, at + 540, f"my_all_reduce{evil}")
        trace.nccl(at + 498, at + 545, at + 580, 128, dtype=f"Float{evil}", group=f"0{evil}")
        trace.optimizer(at + 900, at + 950)
    return trace.to_json(host_name=evil, deviceProperties=[{"name": evil}], cuda_driver_version=evil)


@pytest.fixture
def hostile(tmp_path: Path) -> Report:
    for rank in (0, 1):
        (tmp_path / f"rank{rank}.json").write_bytes(record(rank, EVIL))
    return analyze([tmp_path], holistic=False)


def test_in_a_terminal_nothing_moves_the_cursor(hostile: Report) -> None:
    printed = io.StringIO()
    render_terminal(hostile, Console(file=printed, width=160))
    assert all(line.isprintable() for line in printed.getvalue().split("\n"))


def test_in_a_page_nothing_becomes_an_element(hostile: Report) -> None:
    page = render_html(hostile)
    assert not any(word in page for word in ("<script>alert", "<img src=x", "\x1b", "\u202e"))


@pytest.mark.parametrize("package", ["advisor", "workloads", "reports"])
def test_nothing_opens_a_pickle(package: str) -> None:
    for path in sorted((ROOT / package).rglob("*.py")):
        words = {name for node in ast.walk(ast.parse(path.read_text())) for name in list_names(node)}
        assert not words & OPENERS, path


def list_names(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names):
            return [name.name.partition(".")[0] for name in names]
        case ast.ImportFrom(module, names):
            return [(module or "").partition(".")[0], *(name.name for name in names)]
        case ast.Attribute(attr=word) | ast.keyword(arg=str(word)) | ast.Name(id=word):
            return [word]
    return []
