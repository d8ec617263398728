"""Models on the Hugging Face hub; its client talks to a small hub of our own."""

import base64
import hashlib
import json
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from covnmt.base.errors import UserError
from covnmt.model import hub
from covnmt.model.directory import BUNDLED_MODELS, find_model, load_config
from tests.conftest import RunCli

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class FakeHub(ThreadingHTTPServer):
    """Keeps the files of each model in memory."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), FakeHubHandler)
        self.models: dict[str, dict[str, bytes]] = {}
        self.address = f"http://127.0.0.1:{self.server_port}"


class FakeHubHandler(BaseHTTPRequestHandler):
    """The few requests with which the client makes a model, uploads to it and downloads it."""

    server: FakeHub

    def log_message(self, *_: object) -> None:
        pass

    def answer(self, status: int, body: Any = None, **headers: str) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = self.path.partition("?")[0].strip("/").split("/")
        name = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        files = self.server.models.get(name)
        if files is None:
            self.answer(404, {"error": "not found"}, X_Error_Code="RepoNotFound")
        elif parts[0] == "api" and "tree" in parts:
            rows = [
                {"type": "file", "path": n, "size": len(c), "oid": "0"} for n, c in files.items()
            ]
            self.answer(200, rows)
        elif parts[0] == "api":
            siblings = [{"rfilename": file} for file in files]
            self.answer(200, {"id": name, "sha": COMMIT, "siblings": siblings})
        else:
            content = files[parts[-1]]
            etag = hashlib.sha1(content).hexdigest()
            self.answer(200, content, ETag=f'"{etag}"', X_Repo_Commit=COMMIT)

    def read_body(self) -> bytes:
        if "Content-Length" in self.headers:
            return self.rfile.read(int(self.headers["Content-Length"]))
        chunks = []
        while size := int(self.rfile.readline(), 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def do_POST(self) -> None:
        body = self.read_body()
        parts = self.path.partition("?")[0].strip("/").split("/")
        if parts[-1] == "create":
            request = json.loads(body)
            name = "/".join(filter(None, (request.get("organization"), request["name"])))
            self.server.models.setdefault(name, {})
            self.answer(200, {"url": f"{self.server.address}/{name}"})
            return
        name = "/".join(parts[2:4])
        if parts[-1] == "validate-yaml":
            self.answer(200, {"errors": [], "warnings": []})
        elif "preupload" in parts:
            files = json.loads(body)["files"]
            answer = [
                {"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files
            ]
            self.answer(200, {"files": answer})
        else:
            for line in body.splitlines():
                row = json.loads(line)
                if row["key"] == "file":
                    value = row["value"]
                    self.server.models[name][value["path"]] = base64.b64decode(value["content"])
            self.answer(
                200,
                {"commitUrl": f"{self.server.address}/{name}/commit/{COMMIT}", "commitOid": COMMIT},
            )


@pytest.fixture
def fake_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    """Commands in processes of their own use this hub."""
    pytest.importorskip("huggingface_hub")
    server = FakeHub()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", server.address)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.slow
def test_pushed_model_translates_after_download(fake_hub: FakeHub, run_cli: RunCli) -> None:
    directory = BUNDLED_MODELS / "ja-en"
    pushed = run_cli("push", "ja-en", "someone/ja-en", "--license", "cc-by-sa-3.0")
    assert pushed.returncode == 0, pushed.stderr
    assert pushed.stdout.endswith("/someone/ja-en\n")
    uploaded = fake_hub.models["someone/ja-en"]
    assert uploaded["config.json"] == (directory / "config.json").read_bytes()
    card = uploaded["README.md"].decode()
    assert card.startswith("---\nlibrary_name: covnmt\n")
    assert "language: [ja, en]\nlicense: cc-by-sa-3.0\n" in card
    assert card.endswith((directory / "README.md").read_text("utf-8"))
    uploaded["setup.py"] = b"raise SystemExit"  # nothing that is no part of a model is downloaded
    text = "この寺は京都市の北にある。\n"
    done = run_cli("translate", "-m", "someone/ja-en", stdin=text)
    assert done.stdout == "This temple is located in the north of Kyoto City.\n", done.stderr
    cached = list((Path(os.environ["HF_HOME"]) / "hub").rglob("snapshots/*/*"))
    assert {path.name for path in cached} == uploaded.keys() - {"setup.py"}


@pytest.mark.slow
def test_name_that_is_neither_a_directory_nor_on_the_hub(
    fake_hub: FakeHub, run_cli: RunCli
) -> None:
    failed = run_cli("translate", "-m", "someone/mine", stdin="a\n")
    assert failed.returncode == 2
    assert "someone/mine: no such directory, and no such model" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_push_refuses_what_is_no_model(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    with pytest.raises(UserError, match="there is no config"):
        hub.push_model(tmp_path, "someone/mine", None, private=False)
    with pytest.raises(UserError, match="OWNER/NAME"):
        hub.push_model(tmp_path, "mine", None, private=False)


def test_name_on_the_hub_without_its_client_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hub, "find_spec", lambda _: None)
    assert find_model("someone/mine") == Path("someone/mine")
    with pytest.raises(UserError, match=r"someone/mine: not a model .* hub, first: .*\bhub\b"):
        load_config(Path("someone/mine"))
    with pytest.raises(UserError) as raised:
        load_config(Path("mine"))
    assert "hub" not in str(raised.value)


@pytest.mark.parametrize("name", ["runs", "a/b/c", "/a/b", "./a", "../a", "a/..", "a b/c"])
def test_paths_are_no_names_of_the_hub(name: str) -> None:
    assert not hub.is_hub_name(name)
