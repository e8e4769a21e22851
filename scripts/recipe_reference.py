"""Write docs/recipe-reference.md from the JSON Schema: one table per section, never out of date.

Run: python scripts/recipe_reference.py > docs/recipe-reference.md
"""

from __future__ import annotations

from typing import Any

from pocketbert.core.recipe.file import recipe_schema

_BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def kind(entry: dict[str, Any]) -> str:
    """Return the type of a field in words, with its bounds."""
    if "$ref" in entry:
        return f"[{_name(entry)}](#{_name(entry).lower()})"
    if "oneOf" in entry:
        return " or ".join(kind(e) for e in entry["oneOf"])
    if "anyOf" in entry:
        return " or ".join(kind(e) for e in entry["anyOf"] if e.get("type") != "null")
    if "const" in entry:
        return f"`{entry['const']}`"
    if "enum" in entry:
        return ", ".join(f"`{v}`" for v in entry["enum"])
    if entry.get("type") == "array":
        return f"list of {kind(entry['items'])}"
    bounds = [f"{sign} {entry[key]}" for key, sign in _BOUNDS.items() if key in entry]
    return " ".join([str(entry.get("type", "value")), *bounds])


def _name(entry: dict[str, Any]) -> str:
    return str(entry["$ref"]).rsplit("/", 1)[-1]


def default(name: str, entry: dict[str, Any], required: list[str]) -> str:
    """Return the value of a key that is left out, or that the key is required."""
    if name in required:
        return "**required**"
    value = entry.get("default")
    return "" if value is None or value == "" else f"`{value}`"


def section(title: str, schema: dict[str, Any]) -> list[str]:
    """Return the heading and the table of one section of a recipe."""
    if "enum" in schema:
        return [f"## {title}", "", "One of " + ", ".join(f"`{v}`" for v in schema["enum"]) + ".", ""]
    lines = [
        f"## {title}",
        "",
        schema.get("description", "").split("\n\n")[0].replace("\n", " "),
        "",
        "| key | type | default | meaning |",
        "|---|---|---|---|",
    ]
    for name, entry in schema["properties"].items():
        text = entry.get("description", "").replace("|", "\\|")
        lines.append(f"| `{name}` | {kind(entry)} | {default(name, entry, schema.get('required', []))} | {text} |")
    return [*lines, ""]


def main() -> None:
    """Print the page."""
    schema = recipe_schema()
    print(
        "# Recipe reference\n\nGenerated from the JSON Schema by `scripts/recipe_reference.py`; `pocketbert recipes schema` prints the schema.\n"
    )
    print("\n".join(section("Recipe", schema)))
    for title, part in schema["$defs"].items():
        print("\n".join(section(title, part)))


if __name__ == "__main__":
    main()
