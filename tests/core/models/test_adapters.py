"""Adapters of peft merged into their base: the formula, what adapters save whole, and everything that is refused."""

import json
import shutil
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from pocketbert.core.errors import InputError
from pocketbert.core.models import folder as folder_module
from pocketbert.core.models.checkpoints import load_model
from pocketbert.core.models.folder import open_model_folder
from pocketbert.core.tasks import TASKS, TaskName

TASK = TASKS[TaskName.TEXT_CLASSIFICATION]
QUERY = "bert.encoder.layer.0.attention.self.query"
VALUE = "bert.encoder.layer.1.attention.self.value"
TABLE = "bert.embeddings.word_embeddings"
State = dict[str, torch.Tensor]


@pytest.fixture(scope="session")
def base(tiny_model: Callable[..., Path]) -> Path:
    return tiny_model("bert", 2)


def weights_of(base: Path) -> State:
    return load_file(base / "model.safetensors")


def lora(base: Path, *modules: str, rank: int = 3, seed: int = 1) -> State:
    """Random matrices of rank `rank` for modules of a base, with the names that peft gives them."""
    state, draw = weights_of(base), torch.Generator().manual_seed(seed)
    made = {}
    for module in modules:
        rows, columns = state[f"{module}.weight"].shape
        made[f"base_model.model.{module}.lora_A.weight"] = torch.randn(rank, columns, generator=draw)
        made[f"base_model.model.{module}.lora_B.weight"] = torch.randn(rows, rank, generator=draw)
    return made


def write_adapter(folder: Path, base: Path | None, tensors: State, **settings: Any) -> Path:
    """An adapter folder as peft saves it."""
    folder.mkdir(parents=True)
    save_file({k: v.contiguous() for k, v in tensors.items()}, folder / "adapter_model.safetensors")
    named = {} if base is None else {"base_model_name_or_path": str(base)}
    content = {"peft_type": "LORA", "task_type": "SEQ_CLS", "r": 3, "lora_alpha": 6, **named, **settings}
    (folder / "adapter_config.json").write_text(json.dumps(content))
    return folder


def merged(folder: Path, *adapters: Path) -> State:
    opened = open_model_folder(str(folder), adapters=[str(a) for a in adapters])
    return {k: v.detach() for k, v in load_model(opened, TASK).state_dict().items()}


def delta(tensors: State, module: str) -> torch.Tensor:
    """B A of a module, in numbers of 64 bits."""
    first, second = (tensors[f"base_model.model.{module}.lora_{side}.weight"].double() for side in "AB")
    return second @ first


def assert_changed(got: State, base: Path, wanted: State) -> None:
    """Assert that weights are those of the base but for the wanted ones, to a millionth."""
    for name, value in (weights_of(base) | wanted).items():
        assert torch.allclose(got[name].double(), value.double(), rtol=0, atol=1e-6), name


# Source: the formulas of LoRA, rsLoRA and DoRA; peft 0.21.2's own merge was compared with the same settings on 2026-11-28:
# the largest difference of a weight over 24 adapters of 4 families was 4.8e-7.
@pytest.mark.parametrize(
    ("settings", "scalings"),
    [
        ({}, (2, 2)),
        ({"use_rslora": True}, (6 / 3**0.5, 6 / 3**0.5)),
        ({"alpha_pattern": {"value": 3}}, (2, 1)),
        ({"alpha_pattern": {r".*layer\.0\..*query": 9, "value": 3}}, (3, 1)),
        ({"alpha_pattern": {r"none|^bert.encoder.layer.\d+.*query$": 9, r"^layer\.[0-9]+\..*value": 3}}, (3, 2)),
        ({"alpha_pattern": {r"layer\.\d\.attention.self.[0-9]": 9, "elf.query": 9, "alu": 9}}, (2, 2)),
        ({"fan_in_fan_out": True}, (2, 2)),  # peft ignores it for linear layers
        ({"task_type": None, "auto_mapping": {"base_model_class": "BertForSequenceClassification"}}, (2, 2)),
        ({"lora_dropout": 0.1, "init_lora_weights": "gaussian", "target_modules": ["query"]}, (2, 2)),
    ],
    ids=lambda value: str(value)[:80],
)
def test_matrices_are_merged_by_the_formula(
    settings: dict[str, Any], scalings: tuple[float, float], base: Path, tmp_path: Path
) -> None:
    tensors, state = lora(base, QUERY, VALUE), weights_of(base)
    got = merged(write_adapter(tmp_path / "a", base, tensors, **settings))
    wanted = {
        f"{m}.weight": state[f"{m}.weight"] + s * delta(tensors, m)
        for m, s in zip((QUERY, VALUE), scalings, strict=True)
    }
    assert_changed(got, base, wanted)


def test_ranks_dora_tables_rows_and_biases_are_merged(base: Path, tmp_path: Path) -> None:
    state, name = weights_of(base), f"{QUERY}.weight"
    two = lora(base, QUERY, rank=2)
    got = merged(write_adapter(tmp_path / "ranks", base, two, rank_pattern={"query": 2}))
    assert_changed(got, base, {name: state[name] + 3 * delta(two, QUERY)})

    tensors, lengths = lora(base, QUERY), torch.rand(len(state[name])) + 0.5
    dora = {**tensors, f"base_model.model.{QUERY}.lora_magnitude_vector": lengths}
    changed = state[name] + 2 * delta(tensors, QUERY)
    rows = lengths[:, None] * changed / changed.norm(dim=1, keepdim=True)
    assert_changed(merged(write_adapter(tmp_path / "dora", base, dora, use_dora=True)), base, {name: rows})

    table = state[f"{TABLE}.weight"]
    first, second = torch.randn(3, len(table)), torch.randn(table.shape[1], 3)
    embedded = {f"base_model.model.{TABLE}.lora_embedding_{side}": v for side, v in (("A", first), ("B", second))}
    bias = {f"base_model.model.{QUERY}.base_layer.bias": torch.ones(len(state[name]))}
    got = merged(write_adapter(tmp_path / "table", base, {**embedded, **bias}, bias="lora_only"))
    assert_changed(
        got,
        base,
        {f"{TABLE}.weight": table + 2 * (second.double() @ first.double()).T, f"{QUERY}.bias": bias[next(iter(bias))]},
    )

    some = {f"base_model.model.{TABLE}.token_adapter.trainable_tokens_delta": torch.ones(2, table.shape[1])}
    wanted = table.clone()
    wanted[[7, 9]] = 1.0
    got = merged(write_adapter(tmp_path / "tokens", base, some, trainable_token_indices={"word_embeddings": [7, 9]}))
    assert_changed(got, base, {f"{TABLE}.weight": wanted})


def test_several_adapters_are_merged_one_after_another(base: Path, tmp_path: Path) -> None:
    one, two = lora(base, QUERY), lora(base, QUERY, VALUE, seed=2)
    first = write_adapter(tmp_path / "one", base, one)
    second = write_adapter(tmp_path / "two", None, two)
    state = weights_of(base)
    wanted = {f"{QUERY}.weight": state[f"{QUERY}.weight"] + 2 * delta(one, QUERY) + 2 * delta(two, QUERY)}
    wanted |= {f"{VALUE}.weight": state[f"{VALUE}.weight"] + 2 * delta(two, VALUE)}
    assert_changed(merged(base, first, second), base, wanted)
    assert_changed(merged(first, second), base, wanted)
    assert sorted(p.name for p in first.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]


def test_a_head_that_was_saved_whole_decides_task_and_labels(tiny_model: Callable[..., Path], tmp_path: Path) -> None:
    pretrained = tiny_model("bert", 2, auto_class="AutoModel")
    query = "encoder.layer.0.attention.self.query"
    width = weights_of(pretrained)[f"{query}.weight"].shape[1]
    head = {
        "base_model.model.classifier.weight": torch.randn(5, width),
        "base_model.model.classifier.bias": torch.zeros(5),
    }
    tensors = {k.replace(query, f"bert.{query}"): v for k, v in lora(pretrained, query).items()}
    adapter = write_adapter(tmp_path / "a", pretrained, tensors | head, modules_to_save=["classifier"])
    opened = open_model_folder(str(adapter))
    assert (opened.task, opened.labels) == (TaskName.TEXT_CLASSIFICATION, [f"LABEL_{i}" for i in range(5)])
    loaded = load_model(opened, TASK).state_dict()
    assert torch.equal(loaded["classifier.weight"], head["base_model.model.classifier.weight"])
    assert loaded[f"bert.{query}.weight"].ne(weights_of(pretrained)[f"{query}.weight"]).any()
    # a tokenizer and the names of labels next to the adapter are those of the merged model
    config = json.loads((pretrained / "config.json").read_text())
    names = {str(i): f"name {i}" for i in range(5)}
    config["label2id"] = {name: int(i) for i, name in names.items()}
    (adapter / "config.json").write_text(json.dumps({**config, "id2label": names}))
    (adapter / "tokenizer.json").write_text((pretrained / "tokenizer.json").read_text())
    opened = open_model_folder(str(adapter))
    assert opened.labels == list(names.values())
    assert (opened.path / "tokenizer.json").resolve() == (adapter / "tokenizer.json").resolve()


def test_bases_and_adapters_on_the_hub(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = lora(base, QUERY)
    published = {
        name: write_adapter(tmp_path / name, None, tensors, base_model_name_or_path=named)
        for name, named in (
            ("org/lora", "bert-base-uncased"),
            ("org/a", "org/b"),
            ("org/b", "org/a"),
            ("org/c", "gone"),
        )
    } | {"bert-base-uncased": base}
    (published["org/lora"] / "adapter_model.safetensors").unlink()
    torch.save(tensors, published["org/lora"] / "adapter_model.bin")

    def download(name: str, revision: str | None, allow_patterns: list[str]) -> str:
        made = tmp_path / "cache" / name
        for path in (p for p in published[name].iterdir() if any(fnmatch(p.name, a) for a in allow_patterns)):
            made.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, made)
        return str(made)

    monkeypatch.setattr(folder_module, "check_hub", lambda *_: "")
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    weight = f"{QUERY}.weight"
    assert_changed(merged(Path("org/lora")), base, {weight: weights_of(base)[weight] + 2 * delta(tensors, QUERY)})
    with pytest.raises(InputError, match=r"org/a/adapter_config.json: its base 'org/b' is an adapter itself"):
        open_model_folder("org/a")
    with pytest.raises(
        InputError, match=r"org/c/adapter_config.json: its base model 'gone' was not.*Fix: Name the base"
    ):
        open_model_folder("org/c")


@pytest.mark.parametrize(
    ("of_base", "of_adapter", "licence"),
    [
        ("apache-2.0", "cc-by-nc-4.0", "apache-2.0 (base base), cc-by-nc-4.0 (adapter a)"),
        ("apache-2.0", "", "apache-2.0 (base base)"),
        ("", "mit", "mit (adapter a)"),
        ("", "", "unknown; ask the publisher of the weights"),
    ],
)
def test_the_licences_of_all_parts_are_recorded(
    of_base: str, of_adapter: str, licence: str, base: Path, tmp_path: Path
) -> None:
    copied = shutil.copytree(base, tmp_path / "base")
    adapter = write_adapter(tmp_path / "a", copied, lora(base, QUERY))
    for folder, name in ((copied, of_base), (adapter, of_adapter)):
        (folder / "README.md").write_text(f"---\nlicense: {name}\ndatasets: [of/{folder.name}]\n---\n")
    for opened in (open_model_folder(str(adapter)), open_model_folder(str(copied), adapters=[str(adapter)])):
        assert opened.licence == licence
        assert opened.card.licence == ", ".join(name for name in (of_base, of_adapter) if name)
        assert opened.card.datasets == ("of/base", "of/a")


def test_a_merged_model_is_kept_by_its_parts_and_family(base: Path, tmp_path: Path) -> None:
    adapter = str(write_adapter(tmp_path / "one", base, lora(base, QUERY)))
    paths = [open_model_folder(adapter, family=family).path for family in (None, None, "macbert")]
    assert paths[0] == paths[1] != paths[2]
    first, same, other = (
        write_adapter(tmp_path / n, base, lora(base, QUERY, seed=s)) for n, s in (("a", 1), ("b", 1), ("c", 2))
    )
    digests = [open_model_folder(str(folder)).digest for folder in (first, same, other)]
    assert digests[0] == digests[1] != digests[2]


# Refusals


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"peft_type": "PREFIX_TUNING"}, "the kind 'PREFIX_TUNING'; LORA is merged .*merge_and_unload"),
        ({"init_lora_weights": "pissa_niter_4"}, "changes the base's weights before training"),
        ({"layer_replication": [[0, 2]], "use_qalora": True}, "are not merged: layer_replication, use_qalora"),
        ({"r": 1 << 40}, "r is 1099511627776; allowed: whole numbers from 1 to 4,096"),
        ({"r": 0, "lora_alpha": "6"}, "r is 0; .*lora_alpha is '6'; allowed: numbers"),
        ({"lora_alpha": 1e300}, r"lora_alpha is 1e\+300; allowed"),
        ({"rank_pattern": {"(a+)+b": 3, "query(": 3}}, r"not matched: '\(a\+\)\+b', 'query\('.*merge_and_unload"),
        (
            {"rank_pattern": {".?" * 39 + "Z": 8, "(.|.)" * 39 + "Z": 8, "q|": 8}},
            r"not matched: '(\.\?){39}Z', '(\(\.\|\.\))+.*, 'q\|'; .*'\\\.'.*merge_and",
        ),
        ({"alpha_pattern": {"a" * 40_000: 3}}, "alpha_pattern has patterns of more than 32,768 characters together"),
        ({"rank_pattern": [3]}, "rank_pattern is no table"),
        ({"modules_to_save": "classifier"}, "modules_to_save is no list of names"),
        ({"r": 4}, r"matrices \(3, \d+\) and \(\d+, 3\), which are no rank 4"),
        ({"base_model_name_or_path": None}, "names no base model.* Fix: Name the base .* in teacher.model"),
        (
            {"base_model_name_or_path": None, "peft_type": None, "model_name": "bert-base-uncased"},
            "is of the library adapters .AdapterHub.; served are LoRA adapters of peft. Fix: Train a LoRA adapter",
        ),
        ({"base_model_name_or_path": "../../nowhere"}, "'../../nowhere' was not found: no model folder.*Fix: Name"),
        ({"base_model_name_or_path": "."}, "is an adapter itself"),
        ({"base_model_name_or_path": "~/a"}, "its base '~/a' is an adapter itself"),
    ],
    ids=lambda value: str(value)[:80],
)
def test_settings_that_cannot_be_merged_are_refused(
    settings: dict[str, Any], message: str, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = write_adapter(tmp_path / "a", base, lora(base, QUERY), **settings)
    monkeypatch.chdir(adapter)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(InputError, match=f"(?s){message}"):
        open_model_folder(str(adapter))


def changed(key: str, value: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[State], State]:
    return lambda state: {k: value(v) if key in k else v for k, v in state.items()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: {}, "holds no weights"),
        (changed("lora_A", lambda v: v * torch.nan), "NaN, infinite or immense numbers.*lora_A"),
        (changed("lora_A", lambda v: v * 1e17), "becomes infinite or immense|NaN, infinite"),
        (changed("lora_A", lambda v: v[:, 1:]), "which are no rank 3 for the base's"),
        (changed("lora_B", lambda v: v.T.contiguous()), "which are no rank 3 for the base's"),
        (lambda s: {k: v for k, v in s.items() if "lora_B" not in k}, "only one of its two matrices"),
        (lambda s: {k.replace("layer.0", "layer.7"): v for k, v in s.items()}, "layer.7.attention.self.query is no module of the base"),
        (lambda s: {**s, **{f"base_model.model.x{i}.weight": torch.ones(2) for i in range(99)}}, r"99 of its weights are none of the base: (x\d+.weight, ){8}\.\.\."),
        (lambda s: {**s, f"base_model.model.{QUERY}.lora_magnitude_vector": torch.ones(3)}, "3 lengths of rows"),
        (lambda s: {**s, f"base_model.model.{TABLE}.token_adapter.trainable_tokens_delta": torch.ones(1, 3)}, "trainable_token_indices do not fit"),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit_the_base_are_refused(
    change: Callable[[State], State], message: str, base: Path, tmp_path: Path
) -> None:
    adapter = write_adapter(tmp_path / "a", base, change(lora(base, QUERY)))
    with pytest.raises(InputError, match=message):
        open_model_folder(str(adapter))


class Runs:
    """What a hostile pickle runs when it is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


def test_a_pickled_adapter_runs_nothing(base: Path, tmp_path: Path) -> None:
    adapter, mark = write_adapter(tmp_path / "a", base, lora(base, QUERY)), tmp_path / "mark"
    (adapter / "adapter_model.safetensors").unlink()
    with pytest.raises(InputError, match="neither adapter_model.safetensors nor adapter_model.bin"):
        open_model_folder(str(base), adapters=[str(adapter)])
    torch.save(lora(base, QUERY), adapter / "adapter_model.bin")
    assert open_model_folder(str(adapter)).task is TaskName.TEXT_CLASSIFICATION
    torch.save({"a": Runs(mark)}, adapter / "adapter_model.bin")
    with pytest.raises(InputError, match="cannot be read as plain weights"):
        open_model_folder(str(adapter))
    assert not mark.exists()
    with pytest.raises(InputError, match="is no adapter folder: it has no adapter_config.json"):
        open_model_folder(str(base), adapters=[str(base)])
