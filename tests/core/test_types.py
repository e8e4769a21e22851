"""Names that packages may add to behave as enum members do where the code relies on it."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Iterator
from typing import ClassVar

import pytest
from pydantic import BaseModel, ValidationError

from pocketbert.core.types import Format, RegisteredName


class Colour(RegisteredName):
    """A colour."""

    RED: ClassVar[Colour]


Colour.RED = Colour.register("red")


class Painted(BaseModel):
    colour: Colour
    more: list[Colour] = []


@pytest.fixture
def green() -> Iterator[Colour]:
    yield Colour.register("green")
    del Colour._known["green"]


def test_a_name_exists_once_is_a_string_and_in_the_schema(green: Colour) -> None:
    assert Colour("green") is green is Colour.register("green")
    assert [*Colour] == ["red", "green"]
    assert len(Colour) == 2
    assert "green" in Colour
    assert "onnx" not in Colour
    assert pickle.loads(pickle.dumps(green)) is green
    assert copy.deepcopy({"a": [green]})["a"][0] is green
    assert Painted(colour=green).model_copy(deep=True).colour is green
    assert f"{green}/{green.value}" == "green/green"
    assert type(str(green)) is type(green.value) is str
    assert {green: 1}["green"] == 1
    assert json.dumps({"a": green}) == '{"a": "green"}'
    listed = Painted.model_json_schema()["$defs"]["Colour"]
    assert listed == {"description": "A colour.", "enum": ["red", "green"], "title": "Colour", "type": "string"}


@pytest.mark.parametrize("value", ["blue", "", "RED", 1, None])
def test_what_is_not_registered_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="not a valid Colour; registered: red"):
        Colour(value)


@pytest.mark.parametrize("value", ["", "Red", "a b", "1a", "a/b", "ü", "a.b"])
def test_what_is_no_name_is_not_registered(value: str) -> None:
    with pytest.raises(ValueError, match="is no Colour"):
        Colour.register(value)
    assert [*Colour] == ["red"]
    assert "red" not in Format, "lists of names do not mix"


def test_pydantic_takes_registered_names_only(green: Colour) -> None:
    made = Painted.model_validate({"colour": "red", "more": ["green"]})
    assert made.colour is Colour.RED
    assert made.more[0] is green
    assert made.model_dump()["colour"] is Colour.RED
    assert type(made.model_dump(mode="json")["colour"]) is str
    assert Painted.model_validate_json(made.model_dump_json()) == made
    for wrong in ("blue", 1, None):
        with pytest.raises(ValidationError) as caught:
            Painted.model_validate({"colour": wrong})
        [error] = caught.value.errors()
        assert (error["type"], error["ctx"]) == ("enum", {"expected": "'red' or 'green'"})
