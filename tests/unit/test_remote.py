"""URLs: any file system that fsspec knows, nothing secret shown, and one sentence for what servers do."""

from __future__ import annotations

import functools
import gzip
import http.server
import importlib
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from advisor.errors import InputError
from advisor.readers import remote
from advisor.readers.display import show_url
from advisor.readers.run import read_run
from advisor.readers.sources import find_sources
from tests.trace_files import make_trace, pack_zip, write_file, write_ranks


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    """An object store in memory, empty."""
    files = fsspec.filesystem("memory")
    yield files
    files.rm("/", recursive=True)


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """The URL and the folder of a plain web server, which lists folders and knows no ranges."""
    folder = tmp_path_factory.mktemp("web")

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            if self.path.startswith("/shut.json"):
                self.send_error(403)
            else:
                super().do_GET()

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", folder
    server.shutdown()
    server.server_close()


def test_an_object_store_is_a_folder(memory: fsspec.AbstractFileSystem) -> None:
    memory.pipe("/bucket/run/rank0.json", make_trace(0))
    memory.pipe("/bucket/run/deep/rank1.json.gz", gzip.compress(make_trace(1)))
    memory.pipe("/bucket/run/report.json", b"{}")
    memory.pipe("/bucket/run/manifest.json", b"{")
    urls = ["memory:///bucket/run/rank0.json", "memory:///bucket/run/deep/rank1.json.gz"]
    found = find_sources(["memory:///bucket/run"])
    assert sorted(source.name.replace(":///", "://") for source in found.sources) == sorted(
        url.replace(":///", "://") for url in urls
    )
    assert (len(found.manifests), found.strays) == (1, [])
    assert [trace.rank for trace in read_run(urls).traces] == [0, 1]
    assert len(find_sources(["memory:///bucket/**/rank*"]).sources) == 2


def test_an_archive_far_away_is_opened_too(memory: fsspec.AbstractFileSystem) -> None:
    memory.pipe("/b.zip", pack_zip({"x/rank0.json": make_trace(0), "y/rank0.json": make_trace(0, process=9)}))
    assert len(find_sources(["memory:///b.zip"]).sources) == 2
    (trace,) = read_run(["memory:///b.zip/x"]).traces
    assert trace.file.endswith("b.zip/x/rank0.json")


def test_a_store_that_holds_nothing_says_so(memory: fsspec.AbstractFileSystem) -> None:
    memory.pipe("/bucket/notes.txt", b"")
    with pytest.raises(InputError, match="memory:///bucket holds no trace"):
        find_sources(["memory:///bucket"])
    with pytest.raises(InputError, match="memory:///gone does not exist: give a run folder"):
        find_sources(["memory:///gone"])


def test_too_much_is_refused(memory: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "MOST_FILES", 1)
    for rank in (0, 1):
        memory.pipe(f"/bucket/rank{rank}.json", make_trace(rank))
    with pytest.raises(InputError, match="memory:///bucket holds more than 1 files: give the folder of one run"):
        find_sources(["memory:///bucket"])


def test_a_file_url_is_a_path(tmp_path: Path) -> None:
    path = write_file(tmp_path / "rank0.json", make_trace())
    (source,) = find_sources([f"file://{path}"]).sources
    assert source.name == str(path)


def test_a_web_server_sends_files_and_lists_folders(web: tuple[str, Path]) -> None:
    pytest.importorskip("aiohttp")
    url, folder = web
    write_ranks(folder / "run", name="rank{}.json.gz")
    assert [trace.rank for trace in read_run([f"{url}/run/rank0.json.gz", f"{url}/run/rank1.json.gz"]).traces] == [0, 1]
    assert sorted(source.name for source in find_sources([f"{url}/run/"]).sources) == [
        f"{url}/run/rank0.json.gz",
        f"{url}/run/rank1.json.gz",
    ]
    (folder / "packed.zip").write_bytes(pack_zip({"rank0.json": make_trace()}))
    assert [trace.rank for trace in read_run([f"{url}/packed.zip"]).traces] == [0]


def test_a_signed_url_keeps_its_secret(web: tuple[str, Path]) -> None:
    pytest.importorskip("aiohttp")
    url, folder = web
    write_file(folder / "signed" / "rank3.json", make_trace(3))
    run = read_run([f"{url}/signed/rank3.json?X-Signature=secret*"])
    assert [trace.file for trace in run.traces] == [f"{url}/signed/rank3.json"]
    assert "secret" not in run.source
    assert show_url("ftp://me:secret@host/rank0.json") == "ftp://host/rank0.json"


def test_what_servers_answer_is_one_sentence(web: tuple[str, Path]) -> None:
    pytest.importorskip("aiohttp")
    url, _ = web
    with pytest.raises(InputError, match=rf"{url}/gone\.json does not exist: give a run folder"):
        find_sources([f"{url}/gone.json"])
    with pytest.raises(InputError, match=rf"{url}/shut\.json cannot be read \(403, message='Forbidden', url="):
        find_sources([f"{url}/shut.json?signature=secret"])
    with pytest.raises(InputError, match=r"127\.0\.0\.1:9/rank0\.json cannot be read \(Connect call failed"):
        find_sources(["http://127.0.0.1:9/rank0.json"])


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("nowhere://a/rank0.json", "cannot be opened .*: give a URL that fsspec knows"),
        ("memory://a/[", "does not exist|holds no trace|cannot be opened"),
        ("zip://rank0.json::memory://a.zip", "chains protocols with `::`: give the inner URL"),
    ],
)
def test_an_unknown_protocol_is_one_sentence(url: str, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        find_sources([url])


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = importlib.import_module("fsspec.registry")._registry
    for protocol, module in (("s3", "s3fs"), ("abfs", "adlfs")):
        monkeypatch.setitem(sys.modules, module, None)
        monkeypatch.delitem(loaded, protocol, raising=False)
    with pytest.raises(InputError, match=r"for s3:// that is not installed: pip install 'ddp-advisor\[remote\]'\."):
        find_sources(["s3://bucket/run"])
    with pytest.raises(InputError, match=r"for abfs:// that is not installed: Install adlfs .*, or download it\."):
        find_sources(["abfs://bucket/run"])
