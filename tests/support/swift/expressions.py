"""Translates the expressions of simple Swift to Python."""

from __future__ import annotations

from collections.abc import Sequence

from support.swift.lexer import Token, tokens

_LEVELS = (
    ("||",),
    ("&&",),
    ("==", "!=", "<", ">", "<=", ">="),
    ("..<", "..."),
    ("+", "-", "|", "^"),
    ("*", "/", "%", "&"),
    ("<<", ">>"),
)
"""Swift's operators, those that bind least first."""
_PYTHON = {"||": "or", "&&": "and", "/": "//"}
_CONSTANTS = {"nil": "None", "true": "True", "false": "False"}
_FUNCTIONS = {
    "Int": "rt.whole",
    "Int32": "rt.whole",
    "UInt64": "rt.whole",
    "Double": "rt.real",
    "UInt8": "rt.byte",
    "Array": "list",
    "String": "str",
}
_PROPERTIES = {"count": "rt.count", "isEmpty": "rt.is_empty"}
_METHODS = {"append": "append", "append__contentsOf": "extend", "removeLast": "pop", "sort": "sort"}


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

    def take(self, *texts: str) -> str:
        token = self.peek()
        assert not texts or self.is_next(*texts), f"line {token.line}: {token.text!r} instead of {texts}"
        self.at += 1
        return token.text

    def skip(self) -> None:
        while self.peek().kind == "newline":
            self.at += 1

    def accept(self, text: str) -> bool:
        if self.is_next(text):
            self.at += 1
            return True
        return False

    def skip_type(self) -> None:
        """Skip a type: up to a sign or a new line that cannot belong to it."""
        level = 0
        while True:
            if level == 0 and (self.is_next(",", "=", ")", "{") or self.peek().kind in ("newline", "end")):
                return
            text = self.take()
            level += (text in "([") - (text in ")]")

    # names

    def parents(self, name: str) -> list[str]:
        named = next((m[1:-1] for m in self.members.get(name, ()) if m.startswith("<")), None)
        return [name, *(self.parents(named) if named in self.members else [])]

    def is_member(self, name: str) -> bool:
        return any(name in self.members[c] for c in self.parents(self.owner))

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
            sign = self.take()
            right = self.binary(level + 1)
            if sign in ("..<", "..."):
                left = f"rt.{'half_open' if sign == '..<' else 'closed'}({left}, {right})"
            else:
                left = f"({left} {_PYTHON.get(sign, sign)} {right})"
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
        token = self.peek()
        if token.kind == "number":
            return self.take(), False
        if token.kind == "text":
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
        if name in _CONSTANTS:
            return _CONSTANTS[name], False
        return name, True

    def literal(self) -> str:
        self.take("[")
        if self.accept(":"):
            self.take("]")
            return "rt.Dictionary()"
        items = self.items("]")
        return f"[{', '.join(v for _, v in items)}]"

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

    def named(self, name: str) -> str:
        """A name as Python finds it: a local one, a member, or a type."""
        if any(name in scope for scope in self.scopes) or name == "self" or not self.is_member(name):
            return name
        return f"{self.owner}.{name}" if self.static else f"self.{name}"

    def suffixes(self, value: str, bare: bool) -> str:
        owner, name = "", value if bare else ""
        while True:
            if self.is_next("(") and not self.peek().spaced:
                self.take()
                value = self.call(owner, name, value, self.items(")"))
            elif self.is_next("[") and not self.peek().spaced:
                value = self.named(name) if bare and not owner else value
                self.take()
                index = self.expression()
                self.take("]")
                prefix = "rt.half_open("
                value = (
                    f"rt.part({value}, {index[len(prefix) :]}"
                    if index.startswith(prefix)
                    else f"rt.at({value}, {index})"
                )
            elif self.is_next(".") and not self.peek().spaced:
                owner = self.named(name) if bare and not owner else value
                self.take()
                name = self.take()
                value = (
                    f"{_PROPERTIES[name]}({owner})"
                    if name in _PROPERTIES and not self.is_next("(")
                    else f"{owner}.{name}"
                )
                if name == "map":
                    value = self.mapped(owner)
            elif self.is_next("?") and self.all[self.at + 1].text == "." and not self.peek().spaced:
                self.take()
                self.take(".")
                method, items = self.take(), (self.take("("), self.items(")"))[1]
                call = self.call("it", method, f"it.{method}", items)
                return f"rt.maybe({self.named(name) if bare else value}, lambda it: {call})"
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
        labels = [label for label, _ in items if label]
        mangled = "__".join([name, *labels])
        if owner:
            if name == "contains":
                return f"rt.contains({owner}, {values})"
            if name == "reversed":
                return f"{owner}[::-1]"
            if name == "starts":
                return f"rt.starts({owner}, {values})"
            if name == "joined":
                return f"rt.joined({owner}, {values})"
            return f"{owner}.{_METHODS.get(mangled, mangled)}({values})"
        if value.startswith("["):  # [Bool](repeating: false, count: 3), [UInt8](data)
            return f"[{items[0][1]}] * ({items[1][1]})" if len(items) == 2 else f"list({values})"
        if name in _FUNCTIONS:
            return f"{_FUNCTIONS[name]}({values})"
        if any(name in scope for scope in self.scopes) or name in self.members or not self.is_member(name):
            return f"{name}({values})"
        return f"{self.owner if self.static else 'self'}.{mangled}({values})"


def _literal(text: str) -> str:
    """Python of what stands between quotes; a back slash is the only character that the sources escape."""
    return repr(text.replace("\\\\", "\\"))
