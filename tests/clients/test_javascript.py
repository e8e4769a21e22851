"""@pocketbert/runtime, packed by npm and installed from the tarball into an empty folder: Python's answers, the card's code, the types."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow
for _package in ("torch", "litert_torch", "ai_edge_quantizer"):
    pytest.importorskip(_package)

from support.client_environments import ROOT, build_node, run
from support.clients import CLIENT_TASKS, answers, same_fields, snippet, texts_of, with_texts

FP32, INT8 = "onnx/model.onnx", "onnx/model_int8.onnx"
PACKAGES = ("onnxruntime-web@1.30.0", "typescript@5.9.3")
ANSWER = "answer.vector ? { ...answer, vector: Array.from(answer.vector) } : answer"
"""The answer for JSON, in which an array of floats would be an object."""
PREDICT = f"""
import {{ readFile }} from "node:fs/promises";
import {{ createRequire }} from "node:module";
import {{ load }} from "@pocketbert/runtime";
const [folder, file, texts, packages] = process.argv.slice(2);
const ort = packages && createRequire(packages + "/")("onnxruntime-node");
const model = await load(folder, {{ file, ...(ort ? {{ ort }} : {{}}) }});
const answers = [];
for (const text of JSON.parse(await readFile(texts, "utf8"))) {{
  const [answer] = await model.predict([text]);
  answers.push({ANSWER});
}}
console.log(JSON.stringify({{ engine: model.engine, answers }}));
await model.close();
"""
TYPED = """
import { load, type Prediction } from "@pocketbert/runtime";
const model = await load<"text-classification">("phone", { scheme: "int8", threads: 1 });
const [answer] = await model.predict(["a text"], { prompt: "" });
const score: number = answer!.score;
const found: Prediction | undefined = answer;
const two = await load<{ intent: "text-classification"; slots: "token-classification" }>("phone");
const [both] = await two.predict(["a text"]);
const sure: number = both!.intent.score, starts: number[] = both!.slots.spans.map((span) => span.start), cut: boolean = both!.truncated;
const [any] = await (await load<"several">("phone")).predict(["a text"]);
const task: "several" = two.task;
console.log(score, found?.unknown, model.tokenizer.encode("a", "b").ids.length, sure, starts, cut, any!.intent, any!.truncated, two.heads, task);
"""
WRONG = 'import { load } from "@pocketbert/runtime";\nconst [a] = await (await load<"regression">("x")).predict(["b"]);\na!.label;\n'
WRONG_HEAD = (
    'import { load } from "@pocketbert/runtime";\nconst model = await load<{ intent: "text-classification" }>("x");\n'
    'const [a] = await model.predict(["b"]);\na!.intent.spans;\n'
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty folder in which the tarball, onnxruntime-web and TypeScript were installed."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("Node and npm are not installed")
    folder = tmp_path_factory.mktemp("javascript")
    run([npm, "pack", "--silent", "--pack-destination", str(folder), str(ROOT / "runtime/javascript")], "npm pack")
    [tarball] = folder.glob("pocketbert-runtime-*.tgz")
    (folder / "package.json").write_text('{"private": true, "type": "module"}')
    install = [npm, "i", "--no-audit", "--no-fund", "--ignore-scripts", str(tarball), *PACKAGES]
    run(install, f"npm could not install {', '.join(PACKAGES)}; these tests need the package registry", cwd=folder)
    return folder


@pytest.fixture
def node(installed: Path) -> Callable[..., str]:
    """`node(code, *arguments)`: what a module prints that lies beside the installed package."""

    def call(code: str, *arguments: str) -> str:
        (installed / "script.mjs").write_text(code, encoding="utf-8")
        return run(["node", "script.mjs", *arguments], "node", cwd=installed)

    return call


def ask(
    node: Callable[..., str], folder: Path, phone: Path, file: str, texts: Sequence[Any], *packages: str
) -> dict[str, Any]:
    (folder / "texts.json").write_text(json.dumps(texts), encoding="utf-8")
    said: dict[str, Any] = json.loads(node(PREDICT, str(phone), file, str(folder / "texts.json"), *packages))
    return said


@pytest.mark.parametrize(("file", "close"), [(FP32, 2e-5), (INT8, 2e-3)])
@pytest.mark.parametrize("task", [t.value for t in CLIENT_TASKS])
def test_the_tarball_answers_as_python_does(
    task: str, file: str, close: float, phones: Callable[[str], Path], node: Callable[..., str], tmp_path: Path
) -> None:
    phone, texts = phones(task), texts_of(task)
    said = ask(node, tmp_path, phone, file, texts)
    assert said["engine"] == "onnxruntime-web 1.30.0"
    for made, expected in zip(said["answers"], answers(phone, file, texts), strict=True):
        same_fields(made, expected, close)


@pytest.mark.parametrize(("file", "close"), [(FP32, 2e-5), (INT8, 2e-3)])
def test_the_native_engine_answers_as_python_does(
    file: str, close: float, phones: Callable[[str], Path], node: Callable[..., str], tmp_path: Path
) -> None:
    phone, texts = phones("text-classification"), texts_of("text-classification")
    said = ask(node, tmp_path, phone, file, texts, str(build_node()[1]))
    assert said["engine"].startswith("onnxruntime-node 1.")
    for made, expected in zip(said["answers"], answers(phone, file, texts), strict=True):
        same_fields(made, expected, close)


@pytest.mark.parametrize("task", [t.value for t in CLIENT_TASKS])
def test_the_code_of_the_card_runs(
    task: str, phones: Callable[[str], Path], node: Callable[..., str], tmp_path: Path
) -> None:
    phone, text = phones(task), texts_of(task)[0]
    card = (phone / "README.md").read_text(encoding="utf-8")
    code = with_texts(snippet(card, "The same answers as PocketBERT's in Python", "js"), text)
    code = code.replace("models/FOLDER", str(phone)).replace("console.log(answer);", "")
    said = node(f"{code}\nconsole.log(JSON.stringify({ANSWER}));")
    same_fields(json.loads(said), answers(phone, INT8, [text])[0], 2e-3)


def test_types_are_checked(installed: Path) -> None:
    options = ["--strict", "--noEmit", "--module", "nodenext", "--target", "es2022", "--noUncheckedIndexedAccess"]
    for name, code in (("typed.mts", TYPED), ("wrong.mts", WRONG), ("wrong_head.mts", WRONG_HEAD)):
        (installed / name).write_text(code)
    compiler = ["node", "node_modules/typescript/bin/tsc", *options]
    run([*compiler, "typed.mts"], "tsc", cwd=installed)
    for name in ("wrong.mts", "wrong_head.mts"):
        with pytest.raises(pytest.fail.Exception):
            run([*compiler, name], "tsc", cwd=installed)
