"""A run folder in an S3-compatible object store, analyzed by its URL as if it lay here."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import ddp_advisor
from tests.trace_files import pack_zip


@pytest.fixture(scope="session")
def store() -> Iterator[str]:
    """The address of an empty object store with the bucket `traces`."""
    for module in ("moto", "flask", "flask_cors", "s3fs"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"no object store to test with: {module} is not installed (the extras dev and remote bring it)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            _wait_for(port, server)
            address = f"http://127.0.0.1:{port}"
            _put(f"{address}/traces")
            yield address
        finally:
            server.terminate()


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        assert server.poll() is None, "the object store ended at once"
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    pytest.fail("the object store does not answer")


def _put(url: str, data: bytes = b"") -> None:
    headers = {"Content-Type": "application/octet-stream"}
    request = urllib.request.Request(url, data=data, headers=headers, method="PUT")
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 200


@pytest.fixture(autouse=True)
def _credentials(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (
        ("AWS_ENDPOINT_URL", store),
        ("AWS_ACCESS_KEY_ID", "someone"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
        ("AWS_DEFAULT_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)


def test_a_run_far_away_gets_the_report_of_the_run_at_hand(demo: tuple[Path, str], store: str, tmp_path: Path) -> None:
    names = ("manifest.json", "rank0.pt.trace.json.gz", "rank1.pt.trace.json.gz", "report.json")
    files = {name: (demo[0] / name).read_bytes() for name in names}
    for name, data in files.items():
        _put(f"{store}/traces/gpt/{name}", data)
    _put(f"{store}/traces/gpt.zip", pack_zip({f"gpt/{name}": data for name, data in files.items()}))
    here = json.loads(files["report.json"])
    for url in ("s3://traces/gpt", "s3://traces/gpt.zip"):
        done = ddp_advisor("analyze", url, "--json", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        there = json.loads(done.stdout)
        assert there["source"] == url
        assert there["manifest"] == here["manifest"]
        assert there["steps"] == here["steps"]
        assert there["verdict"] == here["verdict"]
    assert sorted(folder.name.rpartition("-")[0] for folder in (tmp_path / "runs").iterdir()) == ["gpt", "gpt"]


def test_what_is_not_in_the_store_is_one_sentence(tmp_path: Path) -> None:
    done = ddp_advisor("analyze", "s3://traces/gone", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("error: s3://traces/gone does not exist: give a run folder")
    assert list(tmp_path.iterdir()) == []
