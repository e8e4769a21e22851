"""Requests per second of `pocketbert serve` against a plain loop of onnxruntime and tokenizers behind the same server framework.

All sides run the same file of the folder in one process and answer the same texts, one per request, as a public load tool (autocannon,
from npm) sends them over 1, 8 and 32 connections. The sides take turns in short rounds. CPU time per request is that of the server's process:
on a busy machine only it means something. The plain loop is what one writes first: a session with all cores, called from Starlette's
threads, without checks, limits, figures or a queue. "alone" is PocketBERT without joining requests, which int8 files never do.

Run: python lab/peers/serving.py --model runs/demo/phone [--file onnx/model.onnx]; needs Node and npm
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
from common import add_file_options, print_header, real_texts

_TOOL = "autocannon@9.0.0"
_LOAD = """
const autocannon = require("autocannon");
const [url, connections, seconds, texts] = process.argv.slice(2);
const requests = JSON.parse(require("fs").readFileSync(texts)).map(text => ({
  method: "POST", path: "/predict", headers: {"content-type": "application/json"}, body: JSON.stringify({texts: [text]})}));
autocannon({url, connections: +connections, duration: +seconds, requests}, (error, found) => {
  if (error) throw error;
  console.log(JSON.stringify([found.requests.total, found.latency.p50, found.latency.p99, found.non2xx + found.errors]));
});
"""
_OURS = """
import sys
from pocketbert.runtime.model import load_callers
from pocketbert.runtime.server import serve
from pocketbert.runtime.server_queue import try_joining
from pocketbert.runtime.server_requests import ServerOptions
models = load_callers(sys.argv[1], file=sys.argv[2])
serve(models, ServerOptions(port=0), joins=sys.argv[3] == "join" and try_joining(models[0]))
"""
_PLAIN = """
import json, socket, sys
import numpy as np, onnxruntime, tokenizers, uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse
from starlette.routing import Route
folder, file = sys.argv[1:3]
session = onnxruntime.InferenceSession(f"{folder}/{file}", providers=["CPUExecutionProvider"])
tokenizer = tokenizers.Tokenizer.from_file(f"{folder}/tokenizer.json")
names = json.load(open(f"{folder}/config.json"))["id2label"]
def answer(text):
    row = tokenizer.encode(text)
    feed = {"input_ids": row.ids, "attention_mask": row.attention_mask, "token_type_ids": row.type_ids}
    logits = session.run(["logits"], {i.name: np.array([feed[i.name]], np.int64) for i in session.get_inputs()})[0][0]
    scores = np.exp(logits - logits.max())
    return {"label": names[str(int(logits.argmax()))], "score": float(scores.max() / scores.sum())}
async def predict(request):
    texts = (await request.json())["texts"]
    return JSONResponse({"answers": [await run_in_threadpool(answer, text) for text in texts]})
listening = socket.create_server(("127.0.0.1", 0), backlog=1024)
listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # which asyncio sets where the socket names its protocol
print(f"http://127.0.0.1:{listening.getsockname()[1]}/", flush=True)
app = Starlette(routes=[Route("/predict", predict, methods=["POST"])])
uvicorn.Server(uvicorn.Config(app, access_log=False, log_config=None)).run([listening])
"""
_SIDES = {"pocketbert": (_OURS, "join"), "alone": (_OURS, "alone"), "plain loop": (_PLAIN, "")}


@contextmanager
def serving(code: str, *arguments: str) -> Iterator[tuple[str, psutil.Process]]:
    """Run a server in a process of its own; yield its address and the process."""
    process = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        if found is None:
            sys.exit(f"the server ended with {process.wait()}")
        yield found[0], psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    """Serve the file with `pocketbert serve` and with a plain loop, load both in turns, and print a table of the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_file_options(parser)
    parser.add_argument("--seconds", type=int, default=5, help="of load in each round")
    parser.add_argument(
        "--tool", type=Path, default=Path(".venv-clients/autocannon"), help="where autocannon is installed"
    )
    options = parser.parse_args()
    texts, source = real_texts(options.texts, "test")
    options.tool.mkdir(parents=True, exist_ok=True)
    install = ["npm", "i", "--prefix", str(options.tool), "--no-audit", "--no-fund", "--ignore-scripts", _TOOL]
    subprocess.run(install, check=True, stdout=sys.stderr)
    asked, script = options.tool / "texts.json", options.tool / "load.cjs"
    asked.write_text(json.dumps(texts[:500]))
    script.write_text(_LOAD)
    print_header(f"one text per request, {options.file}, {_TOOL}", source)
    figures: dict[tuple[int, str], list[list[float]]] = {}
    with ExitStack() as stack:
        servers = {
            side: stack.enter_context(serving(code, str(options.model), options.file, mode))
            for side, (code, mode) in _SIDES.items()
        }
        for number in range(options.rounds):
            for connections in (1, 8, 32):
                for side in list(_SIDES)[:: 1 if number % 2 else -1]:
                    address, process = servers[side]
                    command = ["node", str(script), address, str(connections), str(options.seconds), str(asked)]
                    before = process.cpu_times()
                    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                    after = process.cpu_times()
                    spent = after.user + after.system - before.user - before.system
                    count, *others = json.loads(printed)
                    row = [count / options.seconds, 1000 * spent / max(count, 1), *others]
                    figures.setdefault((connections, side), []).append(row)
    print(
        "| connections | server | CPU ms per request | ratio to the plain loop | requests/s | p50 ms | p99 ms | failed |"
    )
    print("|---:|---|---:|---:|---:|---:|---:|---:|")
    for (connections, side), rounds in sorted(figures.items()):
        plain = figures[connections, "plain loop"]
        rate, cpu, p50, p99, failed = (statistics.median(row[i] for row in rounds) for i in range(5))
        ratio = statistics.median(own[1] / max(other[1], 0.001) for own, other in zip(rounds, plain, strict=True))
        print(
            f"| {connections} | {side} | {cpu:.2f} | {ratio:.2f} | {rate:.0f} | {p50:.0f} | {p99:.0f} | {failed:.0f} |"
        )


if __name__ == "__main__":
    main()
