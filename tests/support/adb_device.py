"""A real `adbd`, what `make tools` has unpacked, in network and mount namespaces: a plain Linux behind adb.

Its transport, shell, files and exit codes are real. What only Android has is played by scripts with outputs in the
form that Android prints (getprop, dumpsys), by files (cpufreq), and by two runners that compute nothing. It runs as user 2000,
as the shell of a phone does. The client runs in the same network namespace, with its own server.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "tools"
SERIAL = "127.0.0.1:5555"
USER = 2000
PLATFORM = "usr/lib/android-sdk/platform-tools"
PROPERTIES = {
    "ro.product.manufacturer": "Maker",
    "ro.product.model": "Phone 9",
    "ro.soc.model": "Chip 3",
    "ro.build.version.release": "16",
}
BATTERY = """Current Battery Service state:
  AC powered: false
  USB powered: true
  Charge counter: 812000
  status: 2
  health: 2
  present: true
  level: 81
  scale: 100
  voltage: 3972
  temperature: 312
  technology: Li-ion
"""
THERMAL = """IsStatusOverride: false
ThermalEventListeners:
	callbacks: 1
Thermal Status: 1
Cached temperatures:
	Temperature{mValue=33.9, mType=3, mName=skin, mStatus=0}
HAL Ready: true
"""
LITERT_RUNNER = """#!/bin/sh
for a in "$@"; do case $a in
  --graph=*) file=${a#--graph=};; --signature_to_run_for=*) key=${a#*=};; --num_threads=*) threads=${a#*=};;
  --num_runs=*) runs=${a#*=};; --run_delay=*) delay=${a#*=};; --enable_op_profiling=true) profiling=1;;
esac; done
[ -s "$file" ] || { echo "ERROR: Could not open '$file'."; echo "ERROR: Failed to load model"; exit 1; }
echo "INFO: STARTING!"
[ -z "$delay" ] || [ -e no_delay ] || echo "INFO: Inter-run delay (seconds): [$delay]"
clock=/sys/devices/system/cpu/cpufreq/policy4/scaling_cur_freq
echo $(($(cat $clock) + 1000)) > $clock
us=250; [ -z "$delay" ] || us=310
echo "INFO: Signature to run for: [$key]"
echo "INFO: Initialized session in 17.187ms."
echo "INFO: Running benchmark for at least 3 iterations and at least 0 seconds but terminate if exceeding 150 seconds."
echo "INFO: count=3 first=9000 curr=8000 min=8000 max=9000 avg=8333 std=400 p5=8000 median=8000 p95=9000"
echo ""
echo "INFO: Running benchmark for at least 1 iterations and at least 0 seconds but terminate if exceeding 150 seconds."
echo "INFO: count=${runs:-1} curr=${us}${threads} p5=${us}${threads} median=${us}${threads} p95=${us}${threads}"
echo ""
echo "INFO: Inference timings in us: Init: 17187, First inference: 9000, Warmup (avg): 8333, Inference (avg): ${us}${threads}"
echo "INFO: Memory footprint delta from the start of the tool (MB): init=4.21094 overall=46.0859"
[ -n "$profiling" ] || exit 0
[ ! -e no_profiler ] || exit 0
line="=============================="
head="[count] [avg ms] [avg %] [cdf %] [mem KB] [times called]"
echo "INFO: Profiling Info for Benchmark Initialization:"
echo "$line Summary by node type $line"
echo "    AllocateTensors    1    5.061    100.000%    100.000%    0.000    1"
echo ""
echo "1 nodes observed"
echo "INFO: Operator-wise Profiling Info for Regular Benchmark Runs:"
echo "$line Run Order $line"
echo "    EMBEDDING_LOOKUP    0.100    0.100    10.000%    10.000%    0.000    1    [hidden]:0"
echo "    Fully Connected (NC, F32) GEMM    0.450    0.450    90.000%    100.000%    0.000    2    Delegate/Fully Connected (NC, F32) GEMM:0"
echo ""
echo "Number of nodes executed: 2"
echo "$line Summary by node type $line"
echo "    [Node type]    $head"
echo "    Fully Connected (NC, F32) GEMM    1    0.900    90.000%    90.000%    0.000    2"
echo "    EMBEDDING_LOOKUP    1    0.100    10.000%    100.000%    0.000    1"
echo ""
echo "Timings (microseconds): count=$runs first=1000 curr=1000 min=1000 max=1000 avg=1000 std=0"
echo "Memory (bytes): count=0"
echo "2 nodes observed"
"""
ONNX_RUNNER = """#!/bin/sh
while [ $# -gt 2 ]; do case $1 in -r) runs=$2;; -t) seconds=$2;; -p) trace=$2;; esac; shift; done
folder=$(dirname "$1")
[ -e "$1" ] && [ -s "$folder/test_data_set_0/input_0.pb" ] || { echo "there is no test data for model $1"; exit 255; }
echo ""
echo "Session creation time cost: 0.0149 s"
if [ -n "$seconds" ]; then  # the second half of the inferences are twice as slow
  sleep "$seconds" & trap "kill $!" TERM; wait $! || exit 143
  awk -v s="$seconds" 'BEGIN { for (n = 0; n < 240; n++) printf "0,%.6f,45678592,12,%d\\n", s / (n < 120 ? 360 : 180), n }' > "$2"
  exit 0
fi
echo "First inference time cost: 3 ms"
echo "Total inference requests: $runs"
echo "Average inference time cost: 1.5 ms"
echo "Peak working set size: 45678592 bytes"
n=0
while [ $n -lt "$runs" ]; do
  echo "$(basename "$folder"),0.001${n}5,45678592,12,$n" >> "$2"
  n=$((n + 1))
done
[ -n "$trace" ] || exit 0
{
  n=0
  echo '[{"cat": "Session", "name": "model_loading_uri", "ts": 1, "dur": 9}'
  while [ $n -le "$runs" ]; do
    args='"args": {"op_name": "MatMul", "provider": "CPUExecutionProvider", "node_index": "4"}'
    echo ", {\\"cat\\": \\"Session\\", \\"name\\": \\"model_run\\", \\"ts\\": $((n * 1000 + 100)), \\"dur\\": 90}"
    echo ", {\\"cat\\": \\"Node\\", \\"name\\": \\"MatMul_kernel_time\\", \\"ts\\": $((n * 1000 + 110)), \\"dur\\": 40, $args}"
    n=$((n + 1))
  done
  echo "]"
} > "${trace}_2026-11-24_10-20-30.json"
"""


def missing() -> str:
    """Why there is no device here; empty where there is one."""
    for name, file in (("adbd", "adbd"), ("adb", "adb")):
        if not (CACHE / name / PLATFORM / file).is_file():
            return f"no {name}: run 'make tools' on Debian"
    lacking = [tool for tool in ("unshare", "nsenter", "chroot", "ip", "taskset") if shutil.which(tool) is None]
    if lacking:
        return f"no {', '.join(lacking)}"
    script = "mount -t tmpfs none /mnt && ip link set lo up"
    made = subprocess.run(["unshare", "--net", "--mount", "sh", "-c", script], capture_output=True, check=False)
    return "" if made.returncode == 0 else "network and mount namespaces need root"


def _libraries(name: str) -> str:
    base = CACHE / name / "usr/lib"
    return ":".join(str(p) for pattern in ("*-linux-gnu*/android", "*-linux-gnu*") for p in base.glob(pattern))


@dataclass
class Phone:
    """A running device.

    Attributes:
        root: Where its files lie, in its mount namespace.
        process: What holds the namespaces; `adbd` is its child.
        tools: A folder for PATH with an `adb` that reaches it.
    """

    root: Path
    process: subprocess.Popen[bytes]
    tools: Path

    @property
    def temporary(self) -> Path:
        """Its folder for temporary files, seen from here."""
        return Path(f"/proc/{self.process.pid}/root{self.root}/data/local/tmp")

    def left(self) -> list[str]:
        """What is in that folder, after what runs in the background has had time to end."""
        end = time.monotonic() + 20
        while (names := sorted(p.name for p in self.temporary.iterdir())) and time.monotonic() < end:
            time.sleep(0.05)
        return names

    def unplug(self) -> None:
        """Kill adbd: the device is lost."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for child in children:
            os.kill(int(child), signal.SIGKILL)

    def stop(self) -> None:
        """End everything."""
        subprocess.run([self.tools / "adb", "kill-server"], capture_output=True, check=False)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGSTOP)  # or its next command would start when this one ends
            self.unplug()
            self.process.kill()
        self.process.wait()
        self.unplug_all()

    def unplug_all(self) -> None:
        """Kill what is left in the namespace."""
        for process in Path("/proc").glob("[0-9]*"):
            try:
                if (process / "root").readlink() == self.root:
                    os.kill(int(process.name), signal.SIGKILL)
            except OSError:
                continue


def start(folder: Path, space: str = "64m", owner: int = USER, masks: str = "70") -> Phone:
    """Start a device.

    Args:
        folder: For its files.
        space: Size of its folder for temporary files.
        owner: Whose that folder is.
        masks: Masks of cores that its taskset takes, separated by `|`: by itself that of the big ones.
    """
    root, shims, tools = folder / "root", folder / "shims", folder / "tools"
    for path in (root, shims, tools):
        path.mkdir()
    folder.chmod(0o755)
    values = "\n".join(f"  {name}) echo {shlex.quote(value)};;" for name, value in PROPERTIES.items())
    _script(shims / "getprop", f'case "$1" in\n{values}\nesac')
    dumps = f"  thermalservice) cat <<'X'\n{THERMAL}X\n;;\n  battery) cat <<'X'\n{BATTERY}X\n;;"
    _script(shims / "dumpsys", f'case "$1" in\n{dumps}\nesac')
    _script(
        shims / "taskset",
        f'case "$1" in {masks});; *) echo "no mask of the test: $1"; exit 9;; esac; shift; exec "$@"',
    )
    policies = {"0": ("1800000", "0 1 2 3"), "4": ("2400000", "4 5 6"), "7": ("2900000", "7")}
    cpus = root / "sys/devices/system/cpu"
    lines = [
        f"mount -t tmpfs none {root}",
        f"for d in /*; do if [ -L $d ]; then cp -a $d {root}$d; elif [ -d $d ] && [ $d != /data ]; then mkdir -p {root}$d; "
        f"mount --rbind $d {root}$d; fi; done",
        f"mount --bind {shims} {root}/usr/local/bin",
        f"mount -t tmpfs none {cpus}",
        *(
            f"mkdir -p {cpus}/cpufreq/policy{n}; echo {khz} > {cpus}/cpufreq/policy{n}/cpuinfo_max_freq; "
            f"echo {cores} > {cpus}/cpufreq/policy{n}/related_cpus; echo sched > {cpus}/cpufreq/policy{n}/scaling_governor; "
            f"echo {khz} > {cpus}/cpufreq/policy{n}/scaling_cur_freq; chmod 666 {cpus}/cpufreq/policy{n}/scaling_cur_freq"
            for n, (khz, cores) in policies.items()
        ),
        f"mkdir -p {root}/data/local/tmp",
        f"mount -t tmpfs -o size={space},mode=771,uid={owner},gid={owner} none {root}/data/local/tmp",
        "ip link set lo up",
        f"chroot --userspec={USER}:{USER} {root} {CACHE / 'adbd' / PLATFORM / 'adbd'} & wait; sleep 600",
    ]
    libraries = f"{_libraries('adbd')}:{_libraries('adb')}"
    with (folder / "adbd.log").open("wb") as log:
        process = subprocess.Popen(
            ["unshare", "--net", "--mount", "sh", "-ec", "\n".join(lines)],
            stdout=log,
            stderr=log,
            env={**os.environ, "LD_LIBRARY_PATH": libraries, "PATH": f"/usr/local/bin:{os.environ['PATH']}"},
        )
    client = CACHE / "adb" / PLATFORM / "adb"
    _script(
        tools / "adb",
        # its server would list the port of adbd as an emulator, too
        f"export LD_LIBRARY_PATH={_libraries('adb')} HOME={folder} ADB_LOCAL_TRANSPORT_MAX_PORT=5553\n"
        f'exec {shutil.which("nsenter")} --net=/proc/{process.pid}/ns/net {client} "$@"',
    )
    phone = Phone(root, process, tools)
    end = time.monotonic() + 30
    while b"connected to" not in _adb(phone, "connect", SERIAL):
        if process.poll() is not None or time.monotonic() > end:
            phone.stop()
            pytest.skip(f"adbd does not start here: {(folder / 'adbd.log').read_text()[-500:]}")
        time.sleep(0.1)
    return phone


def write_runners(folder: Path) -> Path:
    """A folder with both runners."""
    folder.mkdir()
    (folder / "benchmark_model").write_text(LITERT_RUNNER)
    (folder / "onnxruntime_perf_test").write_text(ONNX_RUNNER)
    (folder / "libonnxruntime.so").write_bytes(b"library")
    return folder


def _adb(phone: Phone, *arguments: str) -> bytes:
    return subprocess.run([phone.tools / "adb", *arguments], capture_output=True, check=False).stdout


def _script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
