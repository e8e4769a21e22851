"""The device `ssh` with a real OpenSSH server on loopback, `make tools`: measured, refused, lost, and nothing left."""

import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest

from pocketbert.benchmarks.devices import connect
from pocketbert.benchmarks.devices.ssh import command
from pocketbert.benchmarks.latency import benchmark
from pocketbert.benchmarks.measurement import BenchmarkOptions, BenchmarkResult
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


@pytest.fixture
def reach(monkeypatch, tmp_path):
    """`reach(server, **changes)`: the client that is found first knows this server, but for the changes."""

    def use(*servers, **changes):
        folder = tmp_path / f"client{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        tools = ssh_server.client(folder, *servers, **changes)
        monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")

    return use


@pytest.fixture
def start(server, reach):
    """`start(*lines, **settings)`: a further server that only this test uses, and that is reached."""
    made = []

    def start_and_reach(*lines, **settings):
        made.append(ssh_server.start(server.folder, *lines, **settings))
        reach(*made)
        return made[-1]

    yield start_and_reach
    for one in made:
        one.stop()


def test_two_formats_are_measured_there_as_here(server, reach, files):
    reach(server)
    options = BenchmarkOptions(devices=[server.device, "local"], lengths=[16], runs=10, repeats=3, label="", fresh=True)
    measured = benchmark(files, TEXTS, options)
    there, here = measured.sessions
    assert [m.variant for m in there.measurements] == ["onnx", "tflite"]
    assert [m.engine for m in there.measurements] == ["onnxruntime", "litert"]
    for m, local in zip(there.measurements, here.measurements, strict=True):
        assert (m.device, m.provenance) == (server.device, Provenance.MEASURED)
        assert [len(repeat) for repeat in m.wall_ms] == [10, 10, 10]
        assert min(m.wall.min, m.cpu.min, m.cold.load_ms) > 0
        assert m.cold.peak_rss_bytes > m.cold.peak_memory_bytes > 0
        assert 0 <= m.load.others <= 1
        assert m.load.energy is not None  # or why it cannot be read
        assert (m.engine_version, m.machine.isa) == (local.engine_version, local.machine.isa)
    assert set(there.versions) == {"onnxruntime", "litert", "numpy"}
    assert there.versions["numpy"] == here.versions["numpy"]
    assert there.protocol.fresh and here.protocol.fresh  # each repeat by a worker of its own
    assert [(c.variant, c.wall.pairs) for c in there.comparisons] == [("tflite", 3)]
    assert there.tokenizers == there.post_processing == []
    for profile, local in zip(there.profiles, here.profiles, strict=True):
        assert {o.op_type: o.nodes for o in profile.ops} == {o.op_type: o.nodes for o in local.ops}
    assert there.profiles[1].placement == here.profiles[1].placement
    assert sum(o.ms for o in there.profiles[1].ops) > 0
    assert server.left() == []
    assert BenchmarkResult.model_validate_json(measured.model_dump_json()) == measured


@pytest.mark.slow
def test_the_answers_there_are_those_of_here(server, reach, files):
    reach(server)
    connection = connect(server.device)
    ids = [2, 7, 8, 9, 3, *[5] * 11]
    feed = {"input_ids": [ids], "attention_mask": [[1] * 16], "token_type_ids": [[0] * 16]}
    feed = {name: np.array(row) for name, row in feed.items()}
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
            connection.open(EngineFile(broken, Format.ONNX), 1)
    finally:
        connection.close()
    assert server.left() == []


# --- names -----------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "argument",
    ["-v", "-oProxyCommand=id", "a;b", "a b", "a:0", "a:123456", "@a", "u@", "-u@a", "a\nb", "[::1", "$(id)", "ä"],
)
def test_what_is_no_machine(argument):
    with pytest.raises(ValueError, match="write ssh:"):
        parse_measuring_device(f"ssh:{argument}")
    with pytest.raises(InputError, match="is no"):
        command("ssh", argument)


def test_the_command_line_names_all_that_is_no_machine(tmp_path, pocketbert):
    wrong = pocketbert("benchmark", "-m", tmp_path, "--device", "ssh:-oProxyCommand=id", "--device", "ssh:a b")
    assert wrong.exit_code == 2
    for argument in ("-oProxyCommand=id", "a b"):
        assert f"'{argument}' is no [USER@]HOST[:PORT]" in wrong.stderr


def test_an_argument_is_never_read_by_a_shell():
    found = command("ssh", "zoe@[fe80::1%eth0]:2222")
    assert found[found.index("--") + 1] == "fe80::1%eth0"
    assert found[found.index("-l") + 1 : found.index("--")] == ["zoe", "-p", "2222"]
    assert "zoe" not in found[-1]


# --- refused and lost ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"key": "stranger"}, "does not accept the key or the user"),
        ({"host_key": ""}, "host key is not in known_hosts"),
        ({"host_key": "stranger"}, "host key is not the one in known_hosts"),
    ],
    ids=["wrong key", "unknown host", "changed host key"],
)
def test_refused_connections(server, reach, changes, words):
    reach(server, **changes)
    with pytest.raises(InputError, match=words) as caught:
        connect(server.device)
    assert caught.value.problems[0].fix
    assert server.left() == []


def test_all_devices_that_cannot_be_reached_are_told_before_anything_is_measured(server, reach, files):
    reach(server)
    devices = ["local", f"ssh:127.0.0.1:{free_port()}", "ssh:host.invalid"]
    with pytest.raises(InputError) as caught:
        benchmark(files, TEXTS, BenchmarkOptions(devices=devices, label=""))
    assert [p.where for p in caught.value.problems] == devices[1:]
    assert "nothing accepts connections at that port" in str(caught.value)
    assert "the name is not known" in str(caught.value) or "cannot be reached" in str(caught.value)


def test_no_client_and_no_python(server, start, monkeypatch, tmp_path):
    empty = start('ForceCommand PATH=/nowhere; eval "$SSH_ORIGINAL_COMMAND"')
    with pytest.raises(MissingBackendError, match="python3 is not installed.*apt-get install python3"):
        connect(empty.device)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingBackendError, match="openssh-client"):
        connect(server.device)


@pytest.mark.skipif(os.getuid() != 0, reason="a small disk is mounted by root only")
def test_no_space(start, tmp_path):
    full = start(full=True)
    large = tmp_path / "large.onnx"
    large.write_bytes(bytes(1 << 20))
    connection = connect(full.device)
    connection._installed |= {"onnxruntime", "numpy"}
    for _ in range(2):  # the connection goes on after it
        with pytest.raises(MachineError, match=r"no space is left for temporary files .*No space left on device"):
            connection.open(EngineFile(large, Format.ONNX), 1)
    connection.close()
    assert full.left() == []


def test_a_folder_for_temporary_files_that_is_not_there_or_cannot_be_written(start):
    lacking, refused = start(), start(*ssh_server.as_nobody())
    lacking.temporary.rmdir()
    refused.temporary.chmod(0o555)
    for server, why in ((lacking, "No such file or directory"), (refused, "Permission denied")):
        with pytest.raises(MachineError, match=f"temporary files there cannot be written .*{why}.*Set TMPDIR there"):
            connect(server.device)
    assert not lacking.temporary.exists()
    assert refused.left() == []


def test_a_login_that_prints(start):
    chatty = start('ForceCommand echo "Welcome"; printf "no newline "; eval "$SSH_ORIGINAL_COMMAND"')
    connection = connect(chatty.device)
    assert connection.machine().arch == os.uname().machine
    connection.close()
    assert chatty.left() == []


@pytest.mark.parametrize("what", ["network", "agent"])
def test_a_connection_that_is_lost_leaves_nothing(server, reach, what):
    reach(server)
    connection = connect(server.device)
    (folder,) = server.temporary.iterdir()
    if what == "network":
        threading.Timer(0.1, server.cut).start()
    else:
        held = {int(p.name): p for p in Path("/proc").glob("[0-9]*") if runs_agent(p, server)}
        (agent,) = (number for number, process in held.items() if parent_of(process) not in held)
        os.kill(agent, 9)
    with pytest.raises(MachineError, match="the connection was lost"):
        while True:
            connection.state()
    connection.close()
    assert server.left() == []
    assert not folder.exists()


def runs_agent(process, server):
    """Return whether a process is the agent of a server's session, or its guard."""
    try:
        told = (process / "environ").read_bytes()
        return f"TMPDIR={server.temporary}".encode() in told and b"python" in (process / "comm").read_bytes()
    except OSError:
        return False


def parent_of(process):
    return int((process / "stat").read_text().rpartition(")")[2].split()[1])


# --- older Pythons ---------------------------------------------------------------------------------------------------------------

OLDER = {
    "3.8": "no Python 3.8: no release of Debian has it (pyenv install 3.8)",
    "3.9": "no Python 3.9: run 'make tools' on Debian",
}


def find_python(version):
    """Find an older Python: of pyenv, of the system, or of Debian 11 as `make tools` has unpacked it."""
    unpacked = TOOLS / f"python{version}/usr/bin/python{version}"
    places = [*Path.home().glob(f".pyenv/versions/{version}.*/bin/python3"), unpacked]
    return next((p for p in places if p.is_file()), None) or shutil.which(f"python{version}")


@pytest.mark.parametrize("python", ["3.8", "3.9"])
def test_older_pythons_run_the_agent(python, start, tmp_path):
    if (found := find_python(python)) is None:
        pytest.skip(OLDER[python])
    (tmp_path / "python3").symlink_to(found)
    old = start(f'ForceCommand PATH={tmp_path}:$PATH; eval "$SSH_ORIGINAL_COMMAND"')
    connection = connect(old.device)
    assert connection.machine().python.startswith(python)
    assert connection.watch().stop().before is not None
    connection.close()
    assert old.left() == []
