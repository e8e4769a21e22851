"""The device `ssh` with a real OpenSSH server on loopback, `make tools`: measured, refused, lost, and nothing left."""

import os
import shutil
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pocketbert.benchmarks.devices import connect
from pocketbert.benchmarks.devices.ssh import command
from pocketbert.benchmarks.latency import benchmark
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult, Variant
from pocketbert.cli.main import app
from pocketbert.core.devices import parse_measuring_device
from pocketbert.core.errors import InputError, MachineError, MissingBackendError
from pocketbert.core.types import Format, Provenance
from pocketbert.runtime.engines import EngineFile
from support import ssh_server
from support.debian_tools import TOOLS
from support.ports import free_port

WHY_NOT = ssh_server.missing()
pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)
TEXTS = ["a good day", "what a bad day it was", "the day was good"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ssh")
    ssh_server.make_keys(folder, "user", "host", "stranger")
    running = ssh_server.start(folder)
    yield running
    running.stop()


@pytest.fixture(scope="module")
def tools(server, tmp_path_factory):
    """The client that the server knows."""
    return ssh_server.client(tmp_path_factory.mktemp("client"), server)


@pytest.fixture
def on_path(monkeypatch):
    """`on_path(folder)`: the client that is found first."""
    return lambda folder: monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture(scope="module")
def files(tiny_model, exported, exported_tflite):
    words = tiny_model("bert")
    return [
        Variant.of("onnx", exported("bert"), words, 32),
        Variant.of("tflite", exported_tflite("bert"), words, 32, format=Format.TFLITE),
    ]


@pytest.fixture(scope="module")
def measured(server, tools, files):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
        options = BenchmarkOptions(
            devices=[server.device, "local"], lengths=[16], runs=10, repeats=3, label="", fresh=True
        )
        return benchmark(files, TEXTS, options)


def pocketbert(*arguments):
    return CliRunner().invoke(app, [str(a) for a in arguments])


def test_two_formats_are_measured_there(measured, server, files):
    there, here = measured.sessions
    assert [(m.variant, m.device, m.provenance) for m in there.measurements] == [
        ("onnx", server.device, Provenance.MEASURED),
        ("tflite", server.device, Provenance.MEASURED),
    ]
    assert [m.engine for m in there.measurements] == ["onnxruntime", "litert"]
    for m, local in zip(there.measurements, here.measurements, strict=True):
        assert [len(repeat) for repeat in m.wall_ms] == [10, 10, 10]
        assert m.wall.min > 0
        assert m.cpu.min > 0
        assert m.cold.load_ms > 0
        assert m.cold.peak_rss_bytes > m.cold.peak_memory_bytes > 0
        assert 0 <= m.load.others <= 1
        assert m.load.energy is not None  # or why it cannot be read
        assert (m.engine_version, m.machine.isa) == (local.engine_version, local.machine.isa)
    assert [c.variant for c in there.comparisons] == ["tflite"]
    assert there.versions == {"onnxruntime": there.versions["onnxruntime"], "litert": there.versions["litert"], "numpy": here.versions["numpy"]}  # fmt: skip
    assert there.protocol.fresh and here.protocol.fresh  # each repeat by a worker of its own
    assert [c.wall.pairs for c in there.comparisons] == [3]
    assert there.tokenizers == there.post_processing == []
    onnx, tflite = there.profiles
    assert {o.op_type: o.nodes for o in onnx.ops} == {o.op_type: o.nodes for o in here.profiles[0].ops}
    assert tflite.placement == here.profiles[1].placement
    assert {o.op_type: o.nodes for o in tflite.ops} == {o.op_type: o.nodes for o in here.profiles[1].ops}
    assert sum(o.ms for o in tflite.ops) > 0
    assert server.left() == []
    assert BenchmarkResult.model_validate_json(measured.model_dump_json()) == measured


@pytest.mark.slow
def test_the_answers_there_are_those_of_here(server, tools, files, on_path):
    import numpy as np

    on_path(tools)
    connection = connect(server.device)
    ids = [2, 7, 8, 9, 3, *[5] * 11]
    rows = {"input_ids": [ids], "attention_mask": [[1] * 16], "token_type_ids": [[0] * 16]}
    feed = {name: np.array(row) for name, row in rows.items()}
    try:
        for variant in files:
            (told,) = connection.answers(variant.file, [feed])
            local = variant.file.open(1).run(feed)
            assert told.keys() == local.keys()
            for name, value in told.items():
                np.testing.assert_allclose(value, local[name], atol=1e-5)
        broken = files[0].path.parent / "broken.onnx"
        broken.write_bytes(b"no model")
        with pytest.raises(InputError, match="the engine refuses the file: InvalidProtobuf"):
            connection.open(Variant.of("broken", broken, files[0].tokenizer, 32).file, 1)
    finally:
        connection.close()
    assert server.left() == []


def test_the_command_line_names_all_that_is_no_machine(tmp_path):
    wrong = pocketbert("benchmark", "-m", tmp_path, "--device", "ssh:-oProxyCommand=id", "--device", "ssh:a b")
    assert wrong.exit_code == 2
    assert "'-oProxyCommand=id' is no [USER@]HOST[:PORT]" in wrong.stderr
    assert "'a b' is no [USER@]HOST[:PORT]" in wrong.stderr


@pytest.mark.parametrize(
    "argument", ["-v", "a;b", "a b", "a:0", "a:123456", "@a", "u@", "-u@a", "a\nb", "[::1", "$(id)", "ä"]
)
def test_what_is_no_machine(argument):
    with pytest.raises(ValueError, match="write ssh:"):
        parse_measuring_device(f"ssh:{argument}")
    with pytest.raises(InputError, match="is no"):
        command("ssh", argument)


def test_an_argument_is_never_read_by_a_shell():
    found = command("ssh", "zoe@[fe80::1%eth0]:2222")
    assert found[found.index("--") + 1] == "fe80::1%eth0"
    assert found[found.index("-l") + 1 : found.index("--")] == ["zoe", "-p", "2222"]
    assert "zoe" not in found[-1]


def test_refused_connections(server, on_path, tmp_path):
    cases = {
        "wrong-key": ({"key": "stranger"}, "does not accept the key or the user"),
        "unknown-host": ({"host_key": ""}, "host key is not in known_hosts"),
        "changed-host-key": ({"host_key": "stranger"}, "host key is not the one in known_hosts"),
    }
    for name, (changes, words) in cases.items():
        (tmp_path / name).mkdir()
        on_path(ssh_server.client(tmp_path / name, server, **changes))
        with pytest.raises(InputError, match=words) as caught:
            connect(server.device)
        assert caught.value.problems[0].fix, name
    with pytest.raises(InputError, match="nothing accepts connections at that port"):
        connect(f"ssh:127.0.0.1:{free_port()}")
    with pytest.raises(InputError, match=r"the name is not known|cannot be reached"):
        connect("ssh:host.invalid")
    assert server.left() == []


def test_all_devices_that_cannot_be_reached_are_told_before_anything_is_measured(on_path, tools, files):
    on_path(tools)
    ports = [free_port(), free_port()]
    devices = ["local", *(f"ssh:127.0.0.1:{port}" for port in ports)]
    with pytest.raises(InputError) as caught:
        benchmark(files, TEXTS, BenchmarkOptions(devices=devices, label=""))
    assert [p.where for p in caught.value.problems] == devices[1:]


def test_no_client_and_no_python(server, tools, on_path, monkeypatch, tmp_path):
    empty = ssh_server.start(server.folder, 'ForceCommand PATH=/nowhere; eval "$SSH_ORIGINAL_COMMAND"')
    (tmp_path / "bin").mkdir()
    try:
        on_path(ssh_server.client(tmp_path / "bin", empty))
        with pytest.raises(MissingBackendError, match="python3 is not installed.*apt-get install python3"):
            connect(empty.device)
    finally:
        empty.stop()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingBackendError, match="openssh-client"):
        connect(server.device)


def test_no_space(server, on_path, tmp_path):
    if os.getuid():
        pytest.skip("a small disk is mounted by root only")
    full = ssh_server.start(server.folder, full=True)
    large = tmp_path / "large.onnx"
    large.write_bytes(bytes(1 << 20))
    try:
        on_path(ssh_server.client(tmp_path, full))
        connection = connect(full.device)
        connection._installed |= {"onnxruntime", "numpy"}
        for _ in range(2):  # the connection goes on after it
            with pytest.raises(MachineError, match=r"no space is left for temporary files .*No space left on device"):
                connection.open(EngineFile(large, Format.ONNX), 1)
        connection.close()
        assert full.left() == []
    finally:
        full.stop()


def test_a_folder_for_temporary_files_that_cannot_be_written(server, on_path, tmp_path):
    refused = ssh_server.start(server.folder, *ssh_server.as_nobody())
    refused.temporary.chmod(0o555)
    try:
        on_path(ssh_server.client(tmp_path, refused))
        with pytest.raises(
            MachineError, match=r"temporary files there cannot be written .*Permission denied.*Set TMPDIR there"
        ):
            connect(refused.device)
        assert refused.left() == []
    finally:
        refused.stop()


def test_a_folder_for_temporary_files_that_is_not_there(server, on_path, tmp_path):
    lacking = ssh_server.start(server.folder)
    lacking.temporary.rmdir()
    try:
        on_path(ssh_server.client(tmp_path, lacking))
        with pytest.raises(MachineError, match=r"cannot be written .*No such file or directory.*Set TMPDIR there"):
            connect(lacking.device)
        assert not lacking.temporary.exists()
    finally:
        lacking.stop()


def test_a_login_that_prints(server, on_path, tmp_path):
    chatty = ssh_server.start(
        server.folder, 'ForceCommand echo "Welcome"; printf "no newline "; eval "$SSH_ORIGINAL_COMMAND"'
    )
    try:
        on_path(ssh_server.client(tmp_path, chatty))
        connection = connect(chatty.device)
        assert connection.machine().arch == os.uname().machine
        connection.close()
        assert chatty.left() == []
    finally:
        chatty.stop()


def test_a_connection_that_is_lost_leaves_nothing(server, tools, on_path):
    on_path(tools)
    connection = connect(server.device)
    assert len(list(server.temporary.iterdir())) == 1
    threading.Timer(0.3, server.cut).start()
    with pytest.raises(MachineError, match="the connection was lost"):
        while True:
            connection.state()
    connection.close()
    assert server.left() == []


def test_an_agent_that_is_killed_leaves_nothing(server, tools, on_path):
    on_path(tools)
    connection = connect(server.device)
    (folder,) = server.temporary.iterdir()
    held = {int(p.name): p for p in Path("/proc").glob("[0-9]*") if _runs_agent(p, server)}
    (agent,) = (number for number, p in held.items() if _parent(p) not in held)
    os.kill(agent, 9)
    with pytest.raises(MachineError, match="the connection was lost"):
        connection.state()
    connection.close()
    assert server.left() == []
    assert not folder.exists()


def _runs_agent(process, server):
    """Whether a process is the agent of a server's session, or its guard."""
    try:
        told = (process / "environ").read_bytes()
        return f"TMPDIR={server.temporary}".encode() in told and b"python" in (process / "comm").read_bytes()
    except OSError:
        return False


def _parent(process):
    return int((process / "stat").read_text().rpartition(")")[2].split()[1])


def python_of(version):
    """An older Python: of pyenv, of the system, or of Debian 11 as `make tools` has unpacked it."""
    places = [
        *Path.home().glob(f".pyenv/versions/{version}.*/bin/python3"),
        TOOLS / f"python{version}/usr/bin/python{version}",
    ]
    return next((p for p in places if p.is_file()), None) or shutil.which(f"python{version}")


OLDER = {
    "3.8": "no Python 3.8: no release of Debian has it (pyenv install 3.8)",
    "3.9": "no Python 3.9: run 'make tools' on Debian",
}


@pytest.mark.parametrize("python", ["3.8", "3.9"])
def test_older_pythons_run_the_agent(python, server, on_path, tmp_path):
    found = python_of(python)
    if found is None:
        pytest.skip(OLDER[python])
    old_path = tmp_path / "path"
    old_path.mkdir()
    (old_path / "python3").symlink_to(found)
    old = ssh_server.start(server.folder, f'ForceCommand PATH={old_path}:$PATH; eval "$SSH_ORIGINAL_COMMAND"')
    try:
        on_path(ssh_server.client(tmp_path, old))
        connection = connect(old.device)
        assert connection.machine().python.startswith(python)
        assert connection.watch().stop().before is not None
        connection.close()
        assert old.left() == []
    finally:
        old.stop()
