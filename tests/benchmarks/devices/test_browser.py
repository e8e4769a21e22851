"""The device `browser` against its real server: what is served, what is refused, two browsers at once, lost ones, records."""

import base64
import hashlib
import http.client
import io
import json
import os
import shutil
import signal
import socket
import ssl
import tarfile
import threading
import time
from dataclasses import replace
from urllib.parse import urlsplit

import numpy as np
import pytest

from pocketbert.benchmarks import timing
from pocketbert.benchmarks.browser import libraries, measuring, phones, server
from pocketbert.benchmarks.browser.libraries import WebLibrary, find_libraries
from pocketbert.benchmarks.browser.phones import Phones
from pocketbert.benchmarks.browser.plan import make_plan
from pocketbert.benchmarks.browser.server import serve
from pocketbert.benchmarks.devices.table import device
from pocketbert.benchmarks.latency import benchmark
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult, PageOptions
from pocketbert.benchmarks.report.output import make_latency_table, write_result
from pocketbert.core.errors import GateError, InputError, MissingBackendError
from pocketbert.core.types import Format, Provenance, Runtime
from pocketbert.pipeline.direct import measure_folders

FACTS = {
    "user_agent": "Mozilla/5.0 (Linux; Android 16; K) Chrome/156",
    "platform": "Pixel 8 Android 16",
    "cores": 8,
    "memory_gb": 8,
    "gpu": "",
    "secure": True,
    "isolated": True,
    "timer_us": 5,
    "battery": "80 % discharging",
    "missing": ["webgpu: the browser does not offer it"],
}
OPTIONS = BenchmarkOptions(threads=[1, 2], lengths=["text", 16], runs=5, repeats=2, gaps_ms=[50.0], label="")


class Page:
    """What the page does, in Python: the engine is ONNX Runtime of this machine, and each time is 2 ms times the length."""

    def __init__(self, url, context=None):
        self.url, self.context, self.id = urlsplit(url), context, ""

    def ask(self, address, content=None, method=None, raw=None, headers=None):
        """(status, headers, body) of a request below the token's address."""
        kind = http.client.HTTPSConnection if self.url.scheme == "https" else http.client.HTTPConnection
        more = {"context": self.context} if self.url.scheme == "https" else {}
        connection = kind(self.url.hostname, self.url.port, timeout=20, **more)
        body = raw if content is None else json.dumps(content).encode()
        path = address if address.startswith("/") else self.url.path + address
        connection.putrequest(method or ("GET" if body is None else "POST"), path, skip_host=True)
        connection.putheader("Host", self.url.netloc)
        for name, value in (headers or ({} if body is None else {"Content-Length": str(len(body))})).items():
            connection.putheader(name, value)
        connection.endheaders(body)
        answer = connection.getresponse()
        read = answer.read()
        connection.close()
        return answer.status, answer.headers, read

    def post(self, address, **content):
        status, _, body = self.ask(address, content)
        assert status == 200, body
        return json.loads(body)

    def join(self, name="Pixel 8", **changes):
        self.plan = json.loads(self.ask("plan")[2])
        joined = self.post("join", **{"id": "", "earlier": "", "name": name, "facts": FACTS} | changes)
        self.id = joined["id"]
        return joined

    def outputs(self, phones, number, spoil=0.0):
        planned = phones.plan.files[number]
        for feed in self.plan["sets"][self.plan["files"][number]["checked"]]:
            arrays = {k: np.array(v["data"], np.int64).reshape(v["shape"]) for k, v in feed.items()}
            yield {
                name: {
                    "shape": list(value.shape),
                    "data": base64.b64encode((value + spoil).astype("<f4").tobytes()).decode(),
                }
                for name, value in planned.predictor.run(arrays).items()
            }

    def check(self, phones, number, spoil=0.0):
        outputs = list(self.outputs(phones, number, spoil))
        return self.post("answers", id=self.id, file=number, unit="wasm", outputs=outputs)

    def case(self, repeat, threads, number, **changes):
        cells = [
            {
                "length": length,
                "gap_ms": gap,
                "wall_ms": [2.0 * (16 if length == "text" else length)] * (5 if not gap else 3),
                "calls": 1,
                "warmup_runs": 10,
                "warmup_stable": True,
            }
            for gap in (0, 50)
            for length in self.plan["lengths"]
        ]
        usual = {
            "id": self.id,
            "file": number,
            "unit": "wasm",
            "threads": threads,
            "repeat": repeat,
            "load_ms": 9.0,
            "first_ms": 4.0,
            "hidden": False,
            "battery": "79 % discharging",
            "cells": cells,
        }
        return usual | changes

    def measure(self, phones, cases=None):
        for number in range(len(self.plan["files"])):
            self.check(phones, number)
        for case in self.plan["cases"][:cases]:
            self.post("case", **self.case(*case))


@pytest.fixture
def served(variants, texts):
    """The server of a plan with two files: (what the browsers post, a page)."""
    posts = Phones(make_plan(variants, texts, OPTIONS), 2)
    with serve(posts, {}, "127.0.0.1", False) as address:
        yield posts, Page(address.url)


def test_the_page_is_served_isolated_and_the_files_of_the_plan_are_those_on_disk(served, variants):
    _, page = served
    status, headers, body = page.ask("")
    assert status == 200
    assert b"page.js" in body
    assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert headers["Cross-Origin-Embedder-Policy"] == "require-corp"
    for number, variant in enumerate(variants):
        assert page.ask(f"file/{number}")[2] == variant.path.read_bytes()
    assert {page.ask(name)[0] for name in ("page.js", "runner.html", "runner.js", "style.css", "plan")} == {200}


@pytest.mark.parametrize(
    "address",
    [
        "/", "/plan", "/wrong/", "/wrong/plan", "/wrong/file/0", "//", "/{token}", "/{token}x/plan",
        "file/2", "file/-1", "file/0/..", "../etc/passwd", "file/../../../etc/passwd", "%2e%2e/%2e%2e/etc/passwd",
        "..%2f..%2fetc%2fpasswd", "lib/core/../../../tokenizer.json", "tokenizer.json", "student.onnx", "page/page.js", "\\..\\x",
    ],
)  # fmt: skip
def test_nothing_else_is_found(served, address):
    _, page = served
    token = page.url.path.strip("/")
    for method in ("GET", "POST"):
        raw = b"{}" if method == "POST" else None
        status, _, body = page.ask(address.format(token=token), method=method, raw=raw)
        assert (status, body) == (404, b"not found\n")


def test_posts_are_bounded_and_checked(served):
    posts, page = served
    joined = page.join()
    page.measure(posts, 1)
    case = page.case(*page.plan["cases"][1])
    cell = case["cells"][0]
    refused = {
        "case": [
            {}, [], {**case, "more": 1}, {**case, "unit": "gpu"}, {**case, "file": 2}, {**case, "repeat": 2},
            {**case, "threads": 3}, {**case, "id": "0" * 16}, {**case, "id": "x"}, {**case, "unit": "webgpu"},
            {**case, "cells": []}, {**case, "cells": [cell, cell]}, {**case, "battery": "\x1b[31m"},
            {**case, "cells": [{**cell, "wall_ms": [-1]}]}, {**case, "cells": [{**cell, "wall_ms": []}]},
            {**case, "cells": [{**cell, "length": 17}]}, {**case, "cells": [{**cell, "gap_ms": 49}]},
            {**case, "cells": [{**cell, "wall_ms": [1e99]}]},
        ],
        "answers": [
            {"id": joined["id"], "file": 0, "unit": "wasm", "outputs": [{"logits": {"shape": [1, 3], "data": data}}]}
            for data in ("!", "AAAA", "AAAAAAAA")
        ],
        "join": [
            {"id": "", "name": name, "facts": FACTS | facts}
            for name, facts in [("", {}), ("a" * 61, {}), ("a\n", {}), ("a", {"cores": -1}), ("a", {"user_agent": "a" * 401})]
        ],
        "state": [{"id": joined["id"], "ended": "perhaps"}, {"id": joined["id"], "note": "a" * 401}],
    }  # fmt: skip
    for address, contents in refused.items():
        for content in contents:
            assert page.ask(address, content)[0] == 400, (address, content)
    assert page.ask("case", raw=b"{" * 1000)[0] == 400
    assert page.ask("case", raw=b"\xff\xfe")[0] == 400
    assert page.ask("case", raw=b"", headers={"Content-Length": str((16 << 20) + 1)})[0] == 413
    assert page.ask("case", method="POST", headers={"X": "1"})[0] == 411
    assert page.ask("case", method="DELETE")[0] == 501
    assert page.join("other")["cases"] == []
    assert [len(s.measurements) for s in posts.results()] == [4]  # of the one case that was right


def connected(page):
    """A connection to the page's server, which fails after 20 s."""
    return socket.create_connection((page.url.hostname, page.url.port), timeout=20)


def test_a_request_that_does_not_arrive_ends_and_connections_are_counted(served, monkeypatch):
    _, page = served
    monkeypatch.setattr(server, "_READ_S", 0.3)
    post = f"POST {page.url.path}join HTTP/1.1\r\nContent-Length: 99\r\n\r\n{{"
    for begun in ("", "GET /", post):
        with connected(page) as slow:
            slow.sendall(begun.encode())
            answer = slow.recv(1 << 16)
            assert not answer or answer.startswith(b"HTTP/1.1 400")
    monkeypatch.setattr(server, "_READ_S", 60.0)
    monkeypatch.setattr(server, "_MOST_CONNECTIONS", 2)
    with connected(page), connected(page), connected(page) as third:
        assert not third.recv(1)
    monkeypatch.setattr(server, "_MOST_CONNECTIONS", 256)
    assert page.ask("plan")[0] == 200


def test_an_open_connection_ends_with_the_server(variants, texts):
    with serve(Phones(make_plan(variants, texts, OPTIONS)), {}, "127.0.0.1", False) as address:
        page = Page(address.url)
        kept = http.client.HTTPConnection(page.url.hostname, page.url.port, timeout=20)
        for _ in range(2):
            kept.request("GET", f"{page.url.path}plan")
            assert len(kept.getresponse().read()) > 100
        kept.auto_open = 0
    with pytest.raises((OSError, http.client.HTTPException)):
        kept.request("GET", f"{page.url.path}plan")
        kept.getresponse()


def test_two_browsers_at_once_are_two_devices_with_full_records(served, tmp_path):
    posts, page = served
    other = Page(page.url.geturl())
    assert (page.join()["name"], other.join()["name"]) == ("Pixel 8", "Pixel 8 2")
    for one in (page, other):
        one.measure(posts)
        assert not posts.finished()
        one.post("state", id=one.id, ended=True)
    assert posts.finished()
    first, second = posts.results()
    assert (first.device, second.device) == ("browser: Pixel 8", "browser: Pixel 8 2")
    assert len(first.measurements) == 2 * 2 * 2 * 2  # files, threads, lengths, with and without idle time
    m = first.find("student int8", 2, 16)
    about = (m.engine, m.engine_version, m.unit, m.provenance)
    assert about == ("onnxruntime-web", "1.30.0", "wasm", Provenance.MEASURED)
    assert (m.wall_ms, m.wall.p50, m.cold.load_ms, m.cold.first_ms) == ([[32.0] * 5] * 2, 32.0, 9.0, 4.0)
    # the page runs the last length first, once, and every figure says so
    assert {one.cold.length for one in first.measurements} == {16}
    assert (m.machine.system, m.load.thermal) == (FACTS["user_agent"], "battery 79 % discharging")
    assert first.compare("student int8", 1, "text").wall.median == 1.0
    assert [(a.variant, a.passed) for a in first.answers] == [("teacher fp32", True), ("student int8", True)]
    notes = " ".join(first.protocol.notes)
    assert "secure context, cross-origin isolated" in notes
    assert "webgpu: the browser does not offer it" in notes
    assert "Interrupted" not in notes
    whole = first.model_copy(update={"others": [second]})
    whole.write(tmp_path / "benchmark.json")
    assert BenchmarkResult.read(tmp_path / "benchmark.json") == whole
    assert {row[1] for row in make_latency_table(whole)[1]} == {"browser: Pixel 8", "browser: Pixel 8 2"}


def test_a_reloaded_page_goes_on_and_a_lost_one_leaves_a_partial_result(served, monkeypatch):
    posts, page = served
    page.join()
    page.measure(posts, 3)
    again = page.join("renamed", id=page.id)
    assert (again["name"], len(again["cases"]), len(again["checks"])) == ("Pixel 8", 3, 2)
    assert set(again["cases"][0]) == {*page.case(0, 1, 0)} - {"id"}
    other = Page(page.url.geturl())
    assert other.join(earlier=page.id)["name"] == "Pixel 8 2"  # the first one is still there
    monkeypatch.setattr(phones, "LOST_S", -1.0)
    assert other.join("tab", earlier=page.id)["name"] == "Pixel 8"  # a new tab takes over from one that is gone
    assert posts.finished()
    (session,) = posts.results()
    assert len(session.protocol.notes) >= 3
    assert "Interrupted: 3 cases of 2 repeats are there." in session.protocol.notes
    assert "The page was loaded 3 times; what was measured before was kept." in session.protocol.notes


def test_repeats_that_one_file_lacks_are_not_paired_with_others(variants, texts):
    posts = Phones(make_plan(variants, texts, replace(OPTIONS, repeats=3, threads=[1], gaps_ms=[])), 1)
    with serve(posts, {}, "127.0.0.1", False) as address:
        page = Page(address.url)
        page.join()
        for number in (0, 1):
            page.check(posts, number)
        for repeat, number in [(0, 0), (1, 0), (2, 0), (2, 1), (0, 1)]:  # the second file lacks the second repeat
            case = page.case(repeat, 1, number)
            cells = [{**c, "wall_ms": [10.0**repeat * (1 + number)] * 5} for c in case["cells"] if not c["gap_ms"]]
            page.post("case", **{**case, "cells": cells})
        (session,) = posts.results()
    assert [c.wall.median for c in session.comparisons] == pytest.approx([2.0, 2.0])


def test_a_file_that_a_browser_computes_wrongly_is_refused(served):
    posts, page = served
    page.join()
    assert page.check(posts, 0)["passed"]
    judged = page.check(posts, 1, spoil=9.0)
    assert not judged["passed"]
    assert not page.check(posts, 1, spoil=np.nan)["passed"]
    assert page.ask("case", page.case(0, 1, 1))[0] == 400
    assert posts.refused()[0].variant == "student int8"
    page.post("case", **page.case(0, 1, 0))
    (session,) = posts.results()
    assert [a.passed for a in session.answers] == [True, False]
    assert any("student int8: refused" in note for note in session.protocol.notes)


def opened(err):
    """The address that the command prints, as soon as it is there."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        found = [line.strip() for line in err.getvalue().splitlines() if "http" in line]
        if found:
            return found[0]
        time.sleep(0.05)
    raise AssertionError(err.getvalue())


def run_beside(monkeypatch, work, act):
    """Run the benchmark, and a page beside it: `act(page, posts)`; what the benchmark returns."""
    err, made = io.StringIO(), []
    monkeypatch.setattr("sys.stderr", err)
    monkeypatch.setattr(measuring, "find_libraries", dict)
    monkeypatch.setattr(measuring, "_LAST_ANSWER_S", 0.0)
    monkeypatch.setattr(measuring, "Phones", lambda *given: made.append(Phones(*given)) or made[0])
    failed = []

    def visit():
        try:
            act(Page(opened(err)), made[0])
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=visit)
    thread.start()
    try:
        return work()
    finally:
        thread.join()
        assert not failed, failed


def whole_visit(page, posts):
    page.join()
    page.measure(posts)
    page.post("state", id=page.id, ended=True)


def test_a_browser_joins_the_other_devices_and_is_recorded(phone, tmp_path, monkeypatch):
    folder = shutil.copytree(phone, tmp_path / "phone")
    options = BenchmarkOptions(**{**vars(OPTIONS), "devices": ["local", "browser"], "profile": False, "budget_s": 5.0})
    result = run_beside(monkeypatch, lambda: measure_folders([folder], options, (), (), False), whole_visit)
    assert [s.device for s in result.sessions] == ["local", "browser: Pixel 8"]
    assert {v.name for s in result.sessions for v in s.variants} == {"onnx/model.onnx"}
    write_result(result, tmp_path / "benchmark.html", [folder])
    assert "browser: Pixel 8" in (tmp_path / "benchmark.html").read_text()


def interrupt(page, posts):
    page.join()
    page.measure(posts, 1)
    os.kill(os.getpid(), 2)


def test_ctrl_c_ends_with_what_is_measured(variants, texts, monkeypatch):
    options = BenchmarkOptions(**{**vars(OPTIONS), "devices": ["browser"]})
    # a job in the background, as in CI, starts with this signal ignored
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        result = run_beside(monkeypatch, lambda: benchmark(variants, texts, options), interrupt)
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(result.measurements) == 4
    assert any(note.startswith("Interrupted") for note in result.protocol.notes)


def test_a_benchmark_without_any_figure_says_why(variants, texts, monkeypatch):
    options = BenchmarkOptions(**{**vars(OPTIONS), "devices": ["browser"]})
    monkeypatch.setattr(measuring, "_WAIT_S", 0.0)
    with pytest.raises(InputError, match="no browser opened the page"):
        run_beside(monkeypatch, lambda: benchmark(variants, texts, options), lambda page, posts: None)
    monkeypatch.undo()

    def complain(page, posts):
        page.join()
        page.post("state", id=page.id, note="the file cannot be opened", ended=True)

    with pytest.raises(InputError, match=r"Pixel 8: the file cannot be opened\."):
        run_beside(monkeypatch, lambda: benchmark(variants, texts, options), complain)
    monkeypatch.undo()

    def spoil(page, posts):
        page.join()
        for number in range(2):
            page.check(posts, number, spoil=9.0)
        page.post("state", id=page.id, ended=True)

    with pytest.raises(GateError, match="student int8"):
        run_beside(monkeypatch, lambda: benchmark(variants, texts, options), spoil)


def test_https_has_a_certificate_of_its_own(variants, texts):
    posts = Phones(make_plan(variants, texts, OPTIONS))
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    with serve(posts, {}, "127.0.0.1", True) as address:
        assert address.url.startswith("https://127.0.0.1:")
        assert Page(address.url, trusting).ask("plan")[0] == 200
        with pytest.raises(ssl.SSLError):
            Page(address.url, ssl.create_default_context()).ask("plan")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "no such host"])
def test_one_address_of_this_machine_is_served(variants, texts, host):
    posts = Phones(make_plan(variants, texts, OPTIONS))
    with pytest.raises(InputError, match=r"--host"), serve(posts, {}, host, False):
        pass


def test_a_link_out_of_the_folder_is_not_served(variants, texts, folder, tmp_path):
    inside = shutil.copytree(folder, tmp_path / "folder")
    (inside / "student.onnx").unlink()
    (inside / "student.onnx").symlink_to(folder / "student.onnx")
    linked = variants[1].model_copy(update={"path": inside / "student.onnx", "tokenizer": inside})
    with pytest.raises(InputError, match="leads out of"):
        make_plan([linked], texts, OPTIONS)


def test_the_page_measures_as_the_other_devices_do(variants, texts):
    plan = json.loads(make_plan(variants, texts, OPTIONS).content)
    warm = {"least": timing.WARMUP_LEAST, "most": timing.WARMUP_MOST, "stable": timing.STABLE}
    assert (plan["burst"], plan["warmup"]) == (timing.BURST, warm)
    assert (plan["idle"]["share"], plan["idle"]["least"]) == (timing.IDLE_SHARE, timing.LEAST_SINGLES)
    assert len(plan["cases"]) == len({*map(tuple, plan["cases"])}) == 2 * 2 * 2


def test_files_that_no_browser_runs_are_refused():
    refusal = device("browser").refusal
    assert (refusal(Format.ONNX, None), refusal(Format.TFLITE, None)) == ("", "")
    assert "does not run in a browser" in refusal(Format.COREML, None)
    assert "openvino" in refusal(Format.ONNX, Runtime.OPENVINO)
    assert PageOptions().host == "127.0.0.1"


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A registry in a folder with one small package, whose archive is not what its digest says until `pin` is called."""
    registry = tmp_path / "registry"
    archive = registry / "@scope/name/-/name-1.0.tgz"
    archive.parent.mkdir(parents=True)
    with tarfile.open(archive, "w:gz") as tar:
        member = tarfile.TarInfo("package/dist/index.js")
        member.size = 2
        tar.addfile(member, io.BytesIO(b"ok"))
    right = hashlib.sha256(archive.read_bytes()).hexdigest()

    def pin(digest=right):
        library = WebLibrary("@scope/name", "1.0", digest, ("dist/index.js",))
        monkeypatch.setattr(libraries, "LIBRARIES", (library,))

    monkeypatch.setattr(libraries.urllib.request, "urlopen", lambda address, timeout: open_below(registry, address))
    pin()
    return pin


def open_below(registry, address):
    """Open the file of an address as the registry does."""
    return (registry / address.partition("registry.npmjs.org/")[2]).open("rb")


def test_libraries_are_fetched_once_and_checked(package, own_cache, capsys, monkeypatch, tmp_path):
    found = find_libraries()
    assert found["name"].read("dist/index.js") == b"ok"
    assert "fetching @scope/name 1.0 from https://registry.npmjs.org" in capsys.readouterr().err
    find_libraries()
    assert "fetching" not in capsys.readouterr().err
    package("0" * 64)
    with pytest.raises(MissingBackendError, match="remove it"):
        find_libraries()
    shutil.rmtree(own_cache)
    with pytest.raises(MissingBackendError, match="nothing was written"):
        find_libraries()
    assert not list(own_cache.rglob("*.tgz"))
    monkeypatch.setenv(libraries.FOLDER_VARIABLE, str(tmp_path))
    with pytest.raises(MissingBackendError, match="is not there"):
        find_libraries()
