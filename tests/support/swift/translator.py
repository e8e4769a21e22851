"""Translates simple Swift to Python: classes, structs, enums, functions with labels, optionals, arrays and dictionaries.

It is made for the project's own Swift sources, which use no more than this; what it does not know stops it. Types are not checked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from support.swift import runtime

_TOKEN = re.compile(
    r"""(?P<blank>[ \t]+|//[^\n]*)
    |(?P<newline>\n)
    |(?P<text>"(?:[^"\\\n]|\\\((?:[^()]|\([^()]*\))*\)|\\.)*")
    |(?P<number>0x[0-9A-Fa-f]+|[0-9]+)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<sign>\.\.<|\.\.\.|->|<<|>>|[-+]=|==|!=|<=|>=|&&|\|\||\?\?|[-+*/%&|^<>=!?:;,.(){}\[\]])""",
    re.VERBOSE,
)
_PYTHON_WORDS = ("and", "as", "def", "del", "from", "is", "lambda", "not", "or", "pass", "raise", "with", "yield")
"""Names in Swift that are no names in Python; they get an underscore."""
_LEVELS = [row.split() for row in ("||", "&&", "== != < > <= >=", "..< ...", "+ - | ^", "* / % &", "<< >>")]
"""Swift's operators, those that bind least first."""
_PYTHON = {"||": "or", "&&": "and", "/": "//"}
_CONSTANTS = {"nil": "None", "true": "True", "false": "False"}
_FUNCTIONS = {**dict.fromkeys(("Int", "Int32", "UInt64"), "rt.whole"), "Double": "rt.real", "UInt8": "rt.byte"}
_FUNCTIONS |= {"Array": "list", "String": "str"}
_PROPERTIES = {"count": "rt.count", "isEmpty": "rt.is_empty"}
_METHODS = {"append": "append", "append__contentsOf": "extend", "removeLast": "pop", "sort": "sort"}
_MODIFIERS = ("final", "private", "public", "static", "override")
_TYPES = ("class", "struct", "enum", "protocol")


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


class Token(NamedTuple):
    """Its kind (``newline``, ``text``, ``number``, ``name``, ``sign``, ``end``), text, line, and whether a blank is before it."""

    kind: str
    text: str
    line: int
    spaced: bool


def tokens(source: str) -> Iterator[Token]:
    """Cut a source; comments are left out."""
    at, line, spaced = 0, 1, True
    while at < len(source):
        found = _TOKEN.match(source, at)
        assert found is not None, f"line {line}: {source[at : at + 20]!r} is no Swift that is known here"
        kind = str(found.lastgroup)
        if kind != "blank":
            yield Token(kind, found[0] + "_" if found[0] in _PYTHON_WORDS else found[0], line, spaced)
        spaced = kind in ("blank", "newline")
        line += kind == "newline"
        at = found.end()
    yield Token("end", "", line, True)


class Expressions:
    """Reads tokens and translates expressions; knows the members of types and the local names."""

    def __init__(self, source: str) -> None:
        self.all = list(tokens(source))
        self.at = 0
        self.lines: list[str] = []
        self.depth = 0
        self.members: dict[str, set[str]] = {}
        self.owner = ""
        self.static = False
        self.scopes: list[set[str]] = []
        self.temporaries = 0

    # reading tokens

    def peek(self) -> Token:
        return self.all[self.at]

    def is_next(self, *texts: str) -> bool:
        return self.peek().text in texts and self.peek().kind != "text"

    def is_joined(self, sign: str) -> bool:
        return self.is_next(sign) and not self.peek().spaced

    def take(self, *texts: str) -> str:
        token = self.peek()
        assert not texts or self.is_next(*texts), f"line {token.line}: {token.text!r} instead of {texts}"
        self.at += 1
        return token.text

    def skip(self) -> None:
        while self.peek().kind == "newline":
            self.at += 1

    def accept(self, text: str) -> bool:
        if there := self.is_next(text):
            self.at += 1
        return there

    def skip_type(self) -> None:
        """Skip a type: up to a sign or a new line that cannot belong to it."""
        level = 0
        while level or not (self.is_next(",", "=", ")", "{") or self.peek().kind in ("newline", "end")):
            text = self.take()
            level += (text in "([") - (text in ")]")

    # names

    def parents(self, name: str) -> list[str]:
        named = next((m[1:-1] for m in self.members.get(name, ()) if m.startswith("<")), None)
        return [name, *(self.parents(named) if named in self.members else [])]

    def is_member(self, name: str) -> bool:
        return any(name in self.members[c] for c in self.parents(self.owner))

    def is_local(self, name: str) -> bool:
        return any(name in scope for scope in self.scopes)

    def named(self, name: str) -> str:
        """A name as Python finds it: a local one, a member, or a type."""
        if self.is_local(name) or name == "self" or not self.is_member(name):
            return name
        return f"{self.owner if self.static else 'self'}.{name}"

    # expressions

    def expression(self) -> str:
        chosen = self.binary(0)
        if not self.accept("?"):
            return chosen
        yes = self.expression()
        self.take(":")
        return f"({yes} if {chosen} else {self.expression()})"

    def binary(self, level: int) -> str:
        if level == len(_LEVELS):
            return self.operand()
        left = self.binary(level + 1)
        while self.is_next(*_LEVELS[level]):
            sign, right = self.take(), self.binary(level + 1)
            ranges = {"..<": "rt.half_open", "...": "rt.closed"}
            left = (
                f"{ranges[sign]}({left}, {right})" if sign in ranges else f"({left} {_PYTHON.get(sign, sign)} {right})"
            )
        return left

    def operand(self) -> str:
        if self.accept("try"):
            return self.operand()
        if self.accept("!"):
            return f"(not {self.operand()})"
        if self.accept("-"):
            return f"(-{self.operand()})"
        return self.suffixes(*self.primary())

    def primary(self) -> tuple[str, bool]:
        """An operand without what follows it, and whether it is a bare name of a method or a type, that may be called."""
        if self.peek().kind == "number":
            return self.take(), False
        if self.peek().kind == "text":
            return self.interpolated(self.take()), False
        if self.accept("("):
            self.skip()
            inside = self.expression()
            self.skip()
            self.take(")")
            return f"({inside})", False
        if self.is_next("["):
            return self.literal(), False
        name = self.take()
        return _CONSTANTS.get(name, name), name not in _CONSTANTS

    def literal(self) -> str:
        self.take("[")
        if self.accept(":"):
            self.take("]")
            return "rt.Dictionary()"
        return f"[{', '.join(v for _, v in self.items(']'))}]"

    def items(self, end: str) -> list[tuple[str, str]]:
        """Values with their labels, up to a bracket."""
        out = []
        self.skip()
        while not self.accept(end):
            label = ""
            if self.peek().kind == "name" and self.all[self.at + 1].text == ":":
                label = self.take()
                self.take(":")
            out.append((label, self.expression()))
            self.skip()
            self.accept(",")
            self.skip()
        return out

    def interpolated(self, text: str) -> str:
        parts, rest = [], text[1:-1]
        while r"\(" in rest:
            before, rest = rest.split(r"\(", 1)
            level, end = 1, 0
            while level:
                level += (rest[end] == "(") - (rest[end] == ")")
                end += 1
            inner = Expressions(rest[: end - 1])
            inner.members, inner.owner, inner.static, inner.scopes = self.members, self.owner, self.static, self.scopes
            parts += [_literal(before), inner.expression()]
            rest = rest[end:]
        return f"rt.written({', '.join([*parts, _literal(rest)])})" if parts else _literal(rest)

    def suffixes(self, value: str, bare: bool) -> str:
        owner, name = "", value if bare else ""
        while True:
            known = self.named(name) if bare and not owner else value
            if self.is_joined("("):
                self.take()
                value = self.call(owner, name, value, self.items(")"))
            elif self.is_joined("["):
                self.take()
                index = self.expression()
                self.take("]")
                prefix = "rt.half_open("
                part = index.startswith(prefix)
                value = f"rt.part({known}, {index[len(prefix) :]}" if part else f"rt.at({known}, {index})"
            elif self.is_joined("."):
                self.take()
                owner, name = known, self.take()
                is_property = name in _PROPERTIES and not self.is_next("(")
                value = f"{_PROPERTIES[name]}({owner})" if is_property else f"{owner}.{name}"
                if name == "map":
                    value = self.mapped(owner)
            elif self.is_joined("?") and self.all[self.at + 1].text == ".":
                value = self.named(name) if bare else value
                self.take()
                self.take(".")
                method, items = self.take(), (self.take("("), self.items(")"))[1]
                value = f"rt.maybe({value}, lambda it: {self.call('it', method, f'it.{method}', items)})"
            else:
                return self.named(name) if bare and not owner and value == name else value
            bare = False

    def mapped(self, owner: str) -> str:
        self.take("{")
        name = self.take()
        self.take("in")
        self.scopes.append({name})
        value = self.expression()
        self.scopes.pop()
        self.take("}")
        return f"[{value} for {name} in {owner}]"

    def call(self, owner: str, name: str, value: str, items: Sequence[tuple[str, str]]) -> str:
        values = ", ".join(v for _, v in items)
        mangled = "__".join([name, *(label for label, _ in items if label)])
        if owner:
            if name == "reversed":
                return f"{owner}[::-1]"
            if name in ("contains", "starts", "joined"):
                return f"rt.{name}({owner}, {values})"
            return f"{owner}.{_METHODS.get(mangled, mangled)}({values})"
        if value.startswith("["):  # [Bool](repeating: false, count: 3), [UInt8](data)
            return f"[{items[0][1]}] * ({items[1][1]})" if len(items) == 2 else f"list({values})"
        if name in _FUNCTIONS:
            return f"{_FUNCTIONS[name]}({values})"
        if self.is_local(name) or name in self.members or not self.is_member(name):
            return f"{name}({values})"
        return f"{self.owner if self.static else 'self'}.{mangled}({values})"


def _literal(text: str) -> str:
    """Python of what stands between quotes; a back slash is the only character that the sources escape."""
    return repr(text.replace("\\\\", "\\"))


class Translator(Expressions):
    """Translates the declarations and statements of one source file."""

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
            if token.text in _TYPES and names[i + 1].kind == "name" and level == 0:
                owner, owner_level = names[i + 1].text, level
                out[owner] = {f"<{names[i + 3].text}>"} if names[i + 2].text == ":" else set()
            if owner and level == owner_level + 1 and token.text in ("let", "var", "func", "case"):
                out[owner].add(names[i + 1].text)
        return out

    def translate(self, members: dict[str, set[str]], file: str) -> list[tuple[int, str, str]]:
        """Python of each type, with the number of types that it inherits from."""
        self.members, out = members, []
        self.skip()
        while self.peek().kind != "end":
            if self.accept("import"):
                self.take()
            else:
                self.lines = []
                self.declaration()
                out.append((len(self.parents(self.owner)) - 1, "\n".join(self.lines), file))
            self.skip()
        return out

    def declaration(self) -> None:
        while self.is_next(*_MODIFIERS):
            self.take()
        kind, self.owner = self.take(*_TYPES), self.take()
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
        inits = [f"        self.{name} = {value}" for name, value in self.fields]
        body = self.lines[first:]
        if not any("def __init__" in line for line in body) and (inits or kind == "struct"):
            body = ["    def __init__(self):", "        pass", *body]
        at = next((i for i, line in enumerate(body) if "def __init__" in line), None)
        self.lines[first:] = body if at is None else [*body[: at + 1], *inits, *body[at + 1 :]]
        self.depth -= 1

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
        else:
            self.function(kind)

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
        elif kind == "protocol" and self.accept("{"):
            while not self.accept("}"):
                self.take()
        elif self.is_next("{"):
            self.write("@property")
            self.write(f"def {name}(self):")
            self.block()

    def function(self, kind: str) -> None:
        name = "__init__" if self.take("func", "init") == "init" else self.take()
        names, labels, values = self.parameters()
        self.accept("throws")
        if self.accept("->"):
            self.skip_type()
        if kind == "protocol":
            return
        if self.static:
            self.write("@staticmethod")
        mangled = name if name == "__init__" else "__".join([name, *labels])
        given = [f"{name}={values[name]}" if name in values else name for name in names]
        self.write(f"def {mangled}({', '.join(given if self.static else ['self', *given])}):")
        self.scopes = [set(names)]
        self.block()
        if values and name != "__init__":  # who leaves the last arguments out calls it by a shorter name
            [only] = values
            assert (names[-1], labels[-1]) == (only, only)
            self.write(f"{mangled.removesuffix(f'__{only}')} = {mangled}")

    def parameters(self) -> tuple[list[str], list[str], dict[str, str]]:
        """Names, labels and default values."""
        names, labels, values = list[str](), list[str](), dict[str, str]()
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
        elif word in ("if", "guard", "for", "while", "switch"):
            self.take()
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
        changes, name = self.take() == "var", self.take()
        if self.accept(":"):
            self.skip_type()
        if self.accept("="):
            value = self.expression()
            self.write(f"{name} = rt.copied({value})" if changes else f"{name} = {value}")
        self.scopes[-1].add(name)

    def assignment(self) -> None:
        target = self.operand()
        if not self.is_next("=", "+=", "-="):
            self.write(target)
            return
        sign, value = self.take(), self.expression()
        value = value if sign == "=" else f"{target} {sign[0]} ({value})"
        is_place = target.startswith("rt.at(")
        self.write(f"rt.put({target[6:-1]}, {value})" if is_place else f"{target} = rt.copied({value})")

    def bound(self) -> str:
        """Write ``let name = expression``; the name."""
        self.take("let")
        name = self.take()
        self.take("=")
        self.write(f"{name} = {self.expression()}")
        return name

    def if_statement(self) -> None:
        if self.is_next("let"):
            name = self.bound()
            self.write(f"if {name} is not None:")
            self.block([name])
        else:
            self.write(f"if {self.expression()}:")
            self.block()
        if self.accept("else"):
            self.write("else:")
            if self.accept("if"):
                self.depth += 1
                self.if_statement()
                self.depth -= 1
            else:
                self.block()

    def guard_statement(self) -> None:
        name = self.bound()
        self.write(f"if {name} is None:")
        self.take("else")
        self.block()
        self.scopes[-1].add(name)

    def for_statement(self) -> None:
        name = self.take()
        self.take("in")
        self.write(f"for {name} in {self.expression()}:")
        self.block([name])

    def while_statement(self) -> None:
        self.write(f"while {self.expression()}:")
        self.block()

    def switch_statement(self) -> None:
        self.temporaries += 1
        value, word = f"value_{self.temporaries}", "if"
        self.write(f"{value} = {self.expression()}")
        self.take("{")
        self.skip()
        while not self.accept("}"):
            if self.accept("default"):
                self.write("else:")
            else:
                self.take("case")
                cases = [self.expression()]
                while self.accept(","):
                    cases.append(self.expression())
                self.write(f"{word} {value} in ({', '.join(cases)},):")
            word = "elif"
            self.take(":")
            self.body(("case", "default", "}"))
