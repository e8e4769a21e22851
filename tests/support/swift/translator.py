"""Translates simple Swift to Python: classes, structs, enums, functions with labels, optionals, arrays and dictionaries.

It is made for the project's own Swift sources, which use no more than this; what it does not know stops it. Types are not checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from support.swift import runtime
from support.swift.expressions import Expressions

_MODIFIERS = {"final", "private", "public", "static", "override"}


def load(sources: Sequence[Path]) -> dict[str, Any]:
    """Translate and run Swift sources.

    Args:
        sources: The files of one module.

    Returns:
        The classes by name. A method's name is followed by the labels of its arguments: ``encode__maxLength``.
    """
    files = [Translator(path.read_text("utf-8")) for path in sources]
    members: dict[str, set[str]] = {}
    for file in files:
        members |= file.declared()
    content: dict[str, Any] = {"rt": runtime}
    parts = [part for path, file in zip(sources, files, strict=True) for part in file.translate(members, path.name)]
    for _, code, name in sorted(parts, key=lambda p: p[0]):  # classes before those that inherit from them
        exec(compile(code, name, "exec"), content)
    for name, value in vars(runtime.Conversions).items():
        if isinstance(value, staticmethod):
            setattr(content["Texts"], name, value)
    for _, code, name in parts:
        lazily = [line.strip()[2:] for line in code.splitlines() if line.strip().startswith("#=")]
        exec(compile("\n".join(lazily), name, "exec"), content)
    return content


class Translator(Expressions):
    """Translates the declarations and statements of one source file."""

    # writing Python

    def write(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    # declarations

    def declared(self) -> dict[str, set[str]]:
        """Names of the members of each type."""
        out: dict[str, set[str]] = {}
        names, level, owner, owner_level = self.all, 0, "", -1
        for i, token in enumerate(names):
            if token.text in "{}" and token.kind == "sign":
                level += 1 if token.text == "{" else -1
                owner = "" if level == owner_level else owner
            if token.text in ("class", "struct", "enum", "protocol") and names[i + 1].kind == "name" and level == 0:
                owner, owner_level = names[i + 1].text, level
                out[owner] = {f"<{names[i + 3].text}>"} if names[i + 2].text == ":" else set()
            if owner and level == owner_level + 1 and token.text in ("let", "var", "func", "case"):
                out[owner].add(names[i + 1].text)
        return out

    def translate(self, members: dict[str, set[str]], file: str) -> list[tuple[int, str, str]]:
        """Python of each type, with the number of types that it inherits from."""
        self.members, out = members, []
        while True:
            self.skip()
            if self.peek().kind == "end":
                return out
            if self.accept("import"):
                self.take()
                continue
            self.lines = []
            self.declaration()
            parents = len(self.parents(self.owner)) - 1
            out.append((parents, "\n".join(self.lines), file))

    def declaration(self) -> None:
        while self.is_next(*_MODIFIERS):
            self.take()
        kind, self.owner = self.take("class", "struct", "enum", "protocol"), self.take()
        base = ""
        if self.accept(":"):
            base = "Exception" if self.is_next("Error") else self.peek().text
            while not self.is_next("{"):
                self.take()
        self.write(f"class {self.owner}{f'({base})' if base else ''}:")
        self.depth += 1
        self.write("pass")
        self.take("{")
        self.skip()
        self.fields: list[tuple[str, str]] = []
        first = len(self.lines)
        while not self.accept("}"):
            self.member(kind)
            self.skip()
        inits = [f"    {line}" for line in self.defaults()]
        body = self.lines[first:]
        if not any("def __init__" in line for line in body) and (inits or kind == "struct"):
            body = ["    def __init__(self):", "        pass", *body]
        at = next((i for i, line in enumerate(body) if "def __init__" in line), None)
        self.lines[first:] = body if at is None else [*body[: at + 1], *inits, *body[at + 1 :]]
        self.depth -= 1

    def defaults(self) -> list[str]:
        return [f"    self.{name} = {value}" for name, value in self.fields]

    def member(self, kind: str) -> None:
        modifiers = []
        while self.is_next(*_MODIFIERS):
            modifiers.append(self.take())
            if self.accept("("):
                self.take("set")
                self.take(")")
        self.static = "static" in modifiers
        if self.accept("case"):
            name = self.take()
            self.write(f"{name} = {name!r}")
        elif self.is_next("let", "var"):
            self.property(kind)
        elif self.is_next("func", "init"):
            self.function(kind)
        else:
            raise AssertionError(f"line {self.peek().line}: {self.peek().text!r}")

    def property(self, kind: str) -> None:
        self.take()
        name = self.take()
        if self.accept(":"):
            self.skip_type()
        self.scopes = [set()]
        if self.accept("="):
            value = self.expression()
            if self.static:
                self.write(f"#={self.owner}.{name} = {value}")
            else:
                self.fields.append((name, value))
        elif self.is_next("{"):
            if kind == "protocol":
                self.take()
                while not self.accept("}"):
                    self.take()
                return
            self.write("@property")
            self.write(f"def {name}(self):")
            self.block()

    def function(self, kind: str) -> None:
        name = self.take()
        name = "__init__" if name == "init" else self.take()
        parameters, labels, values = self.parameters()
        self.accept("throws")
        if self.accept("->"):
            self.skip_type()
        if kind == "protocol":
            return
        if self.static:
            self.write("@staticmethod")
        mangled = name if name == "__init__" else "__".join([name, *labels])
        given = [f"{name}={values[name]}" if name in values else name for name in parameters]
        self.write(f"def {mangled}({', '.join(given if self.static else ['self', *given])}):")
        self.scopes = [set(parameters)]
        self.block()
        if values and name != "__init__":  # who leaves the last arguments out calls it by a shorter name
            [only] = values
            assert (parameters[-1], labels[-1]) == (only, only)
            self.write(f"{mangled.removesuffix(f'__{only}')} = {mangled}")

    def parameters(self) -> tuple[list[str], list[str], dict[str, str]]:
        names: list[str] = []
        labels: list[str] = []
        values: dict[str, str] = {}
        self.take("(")
        self.skip()
        while not self.accept(")"):
            label = self.take()
            name = label if self.is_next(":") else self.take()
            self.take(":")
            self.skip_type()
            names.append(name)
            labels += [label] if label != "_" else []
            if self.accept("="):
                values[name] = self.expression()
            self.accept(",")
            self.skip()
        return names, labels, values

    # statements

    def block(self, scope: Sequence[str] = ()) -> None:
        self.take("{")
        self.body(("}",), scope)
        self.take("}")

    def body(self, ends: Sequence[str], scope: Sequence[str] = ()) -> None:
        self.depth += 1
        self.scopes.append(set(scope))
        self.write("pass")
        self.skip()
        while not self.is_next(*ends):
            self.statement()
            self.skip()
        self.scopes.pop()
        self.depth -= 1

    def statement(self) -> None:
        word = self.peek().text
        if word in ("let", "var"):
            self.local()
        elif word == "if":
            self.condition()
        elif word in ("guard", "for", "while", "switch"):
            getattr(self, f"{word}_statement")()
        elif word == "return":
            self.take()
            ended = self.peek().kind == "newline" or self.is_next("}")
            self.write("return" if ended else f"return {self.expression()}")
        elif word == "throw":
            self.take()
            self.write(f"raise {self.expression()}")
        elif word in ("break", "continue"):
            self.write(self.take())
        elif word == "_":
            self.take()
            self.take("=")
            self.write(self.expression())
        else:
            self.assignment()

    def local(self) -> None:
        changes = self.take() == "var"
        name = self.take()
        if self.accept(":"):
            self.skip_type()
        if self.accept("="):
            value = self.expression()
            self.write(f"{name} = rt.copied({value})" if changes else f"{name} = {value}")
        self.scopes[-1].add(name)

    def assignment(self) -> None:
        target = self.operand()
        if self.is_next("=", "+=", "-="):
            sign = self.take()
            value = self.expression()
            value = value if sign == "=" else f"{target} {sign[0]} ({value})"
            if target.startswith("rt.at("):
                self.write(f"rt.put({target[6:-1]}, {value})")
            else:
                self.write(f"{target} = rt.copied({value})")
        else:
            self.write(target)

    def condition(self) -> None:
        self.take("if")
        scope: list[str] = []
        if self.accept("let"):
            name = self.take()
            self.take("=")
            self.write(f"{name} = {self.expression()}")
            self.write(f"if {name} is not None:")
            scope = [name]
        else:
            self.write(f"if {self.expression()}:")
        self.block(scope)
        if self.accept("else"):
            self.write("else:")
            if self.is_next("if"):
                self.depth += 1
                self.condition()
                self.depth -= 1
            else:
                self.block()

    def guard_statement(self) -> None:
        self.take("guard")
        self.take("let")
        name = self.take()
        self.take("=")
        self.write(f"{name} = {self.expression()}")
        self.write(f"if {name} is None:")
        self.take("else")
        self.block()
        self.scopes[-1].add(name)

    def for_statement(self) -> None:
        self.take("for")
        name = self.take()
        self.take("in")
        self.write(f"for {name} in {self.expression()}:")
        self.block([name])

    def while_statement(self) -> None:
        self.take("while")
        self.write(f"while {self.expression()}:")
        self.block()

    def switch_statement(self) -> None:
        self.take("switch")
        self.temporaries += 1
        value = f"value_{self.temporaries}"
        self.write(f"{value} = {self.expression()}")
        self.take("{")
        self.skip()
        first = True
        while not self.accept("}"):
            if self.accept("default"):
                self.write("else:")
            else:
                self.take("case")
                cases = [self.expression()]
                while self.accept(","):
                    cases.append(self.expression())
                self.write(f"{'if' if first else 'elif'} {value} in ({', '.join(cases)},):")
            first = False
            self.take(":")
            self.body(("case", "default", "}"))
