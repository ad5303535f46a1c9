"""Filters that strangers may write: a small language of its own, never SQL handed on.

    amount > 10 and country in ('DE', 'FR')      not (status = 'void' or total is null)
    lower(name) like 'a%'                        day between date '2026-11-01' and date '2026-11-16'

Columns, `a.b` for fields, `` `odd name` `` for odd ones; numbers, 'texts', true, false, null, date '…', timestamp '…';
+ - * / %, = == != <> < <= > >=, and, or, not, in, between, like, is null; the functions below. Everything else is
refused where it stands, so nothing that Spark could execute comes through.

What is accepted is bounded too: so many parts, so deep, numbers of 64 bits, and a `like` whose time is at most the
length of the text times that of the pattern. Anything beyond is refused here: Spark would fail on it at every attempt.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import TYPE_CHECKING, Any

from .like_patterns import BadExpression as BadExpression
from .like_patterns import like_as_regex as like_as_regex

if TYPE_CHECKING:
    from pyspark.sql import Column

#: Name → how many arguments it takes.
FUNCTIONS: dict[str, tuple[int, int]] = {
    "abs": (1, 1),
    "coalesce": (1, 10),
    "contains": (2, 2),
    "day": (1, 1),
    "endswith": (2, 2),
    "hour": (1, 1),
    "length": (1, 1),
    "lower": (1, 1),
    "month": (1, 1),
    "round": (1, 1),
    "startswith": (2, 2),
    "to_date": (1, 1),
    "trim": (1, 1),
    "upper": (1, 1),
    "year": (1, 1),
}
#: Deeper ones are no filters that a person wrote, and would exhaust the parser's stack, or Spark's.
DEEPEST = 50
#: Names, values and signs in all: what Spark plans and compiles within a second or two.
MOST_WORDS = 1000
#: A larger whole number would become a decimal, which ends at 38 digits. Nobody writes more characters for a number.
LARGEST_NUMBER = 2**63 - 1
LONGEST_NUMBER = 40
_TOKEN = re.compile(
    r"""\s*(?:(?P<number>\d+(?:\.\d+)?(?:[eE][+-]?\d+)?)|(?P<name>[A-Za-z_]\w*)|`(?P<quoted>[^`]+)`
    |'(?P<text>(?:[^']|'')*)'|(?P<sign><=|>=|!=|<>|==|--|[=<>+\-*/%().,]))""",
    re.VERBOSE,
)
_WORDS = frozenset({"and", "or", "not", "in", "between", "like", "is", "null", "true", "false"})


@dataclass(frozen=True, slots=True)
class Node:
    """One part of an expression: `kind` is column, literal, call, or an operator."""

    kind: str
    value: Any = None
    parts: tuple[Node, ...] = ()
    #: How many parts lie in one another. A chain of `+` does; `and` and `or` of many become a balanced tree.
    depth: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        own = len(self.parts).bit_length() if self.kind in ("and", "or") else 1
        object.__setattr__(self, "depth", own + max((part.depth for part in self.parts), default=0))
        if self.depth > DEEPEST:
            raise BadExpression(f"it is nested more than {DEEPEST} deep, or has as many operators in a row")

    def columns(self) -> Iterator[str]:
        """The names of the columns that it refers to."""
        if self.kind == "column":
            yield self.value[0]
        for part in self.parts:
            yield from part.columns()


def parse(text: str) -> Node:
    """Raises BadExpression."""
    return _Parser(text).parse()


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = list(self._scan(text))
        self._at = 0
        self._depth = 0
        if len(self._tokens) > MOST_WORDS:
            raise BadExpression(f"it has {len(self._tokens)} names, values and signs; at most {MOST_WORDS} are read")

    @staticmethod
    def _scan(text: str) -> Iterator[tuple[str, str, int]]:
        position = 0
        while position < len(text.rstrip()):
            found = _TOKEN.match(text, position)
            if found is None:
                where = len(text[:position]) + len(text[position:]) - len(text[position:].lstrip())
                raise BadExpression(f"unexpected {text[where]!r} at character {where + 1}")
            kind = found.lastgroup or ""
            word = found[kind]
            is_word = kind == "name" and word.lower() in _WORDS
            yield ("word" if is_word else kind, word.lower() if is_word else word, found.start(kind) + 1)
            position = found.end()

    def parse(self) -> Node:
        if not self._tokens:
            raise BadExpression("it is empty")
        node = self._or()
        if self._at < len(self._tokens):
            self._fail("the end")
        return node

    def _peek(self) -> tuple[str, str]:
        return self._tokens[self._at][:2] if self._at < len(self._tokens) else ("end", "")

    def _take(self, *wanted: str) -> str | None:
        kind, value = self._peek()
        if kind in ("word", "sign") and value in wanted:
            self._at += 1
            return value
        return None

    def _need(self, wanted: str) -> None:
        if self._take(wanted) is None:
            self._fail(repr(wanted))

    def _fail(self, wanted: str) -> None:
        if self._at < len(self._tokens):
            _, value, where = self._tokens[self._at]
            raise BadExpression(f"unexpected {value!r} at character {where}: {wanted} should be there")
        raise BadExpression(f"it ends where {wanted} should be")

    def _or(self) -> Node:
        self._depth += 1
        if self._depth > DEEPEST:
            raise BadExpression(f"it is nested more than {DEEPEST} deep")
        node = self._chain("or", lambda: self._chain("and", self._not))
        self._depth -= 1
        return node

    def _chain(self, word: str, part: Callable[[], Node]) -> Node:
        parts = [part()]
        while self._take(word):
            parts.append(part())
        return parts[0] if len(parts) == 1 else Node(word, None, tuple(parts))

    def _not(self) -> Node:
        negated = False
        while self._take("not"):
            negated = not negated
        node = self._comparison()
        return Node("not", None, (node,)) if negated else node

    def _comparison(self) -> Node:
        left = self._sum()
        if sign := self._take("=", "==", "!=", "<>", "<", "<=", ">", ">="):
            return Node({"==": "=", "<>": "!="}.get(sign, sign), None, (left, self._sum()))
        if self._take("is"):
            negated = self._take("not")
            self._need("null")
            return _negated(Node("is null", None, (left,)), negated)
        negated = self._take("not")
        if self._take("in"):
            self._need("(")
            node = Node("in", None, (left, *self._arguments()))
            if len(node.parts) == 1:
                raise BadExpression("in () must name at least one value")
        elif self._take("between"):
            low = self._sum()
            self._need("and")
            node = Node("between", None, (left, low, self._sum()))
        elif self._take("like"):
            node = Node("like", None, (left, self._sum()))
            if not (node.parts[1].kind == "literal" and isinstance(node.parts[1].value, str)):
                raise BadExpression("like needs a 'text' on its right")
            like_as_regex(node.parts[1].value)
        elif negated:
            self._fail("in, between or like")
            raise AssertionError
        else:
            return left
        return _negated(node, negated)

    def _sum(self) -> Node:
        return self._arithmetic(("+", "-"), lambda: self._arithmetic(("*", "/", "%"), self._signed))

    def _arithmetic(self, signs: tuple[str, ...], part: Callable[[], Node]) -> Node:
        node = part()
        while sign := self._take(*signs):
            node = Node(sign, None, (node, part()))
        return node

    def _signed(self) -> Node:
        negative = False
        while self._take("-"):
            negative = not negative
        node = self._primary()
        return Node("negative", None, (node,)) if negative else node

    def _primary(self) -> Node:
        if self._take("("):
            node = self._or()
            self._need(")")
            return node
        kind, value = self._peek()
        if kind == "word" and value in ("true", "false", "null"):
            self._at += 1
            return Node("literal", {"true": True, "false": False, "null": None}[value])
        if kind not in ("number", "text", "name", "quoted"):
            self._fail("a column or a value")
        self._at += 1
        if kind == "number":
            return self._number(value)
        if kind == "text":
            return Node("literal", value.replace("''", "'"))
        if kind == "name" and value.lower() in ("date", "timestamp") and self._peek()[0] == "text":
            return self._instant(value.lower())
        if kind == "name" and self._take("("):
            return self._call(value.lower())
        return self._column(value)

    @staticmethod
    def _number(text: str) -> Node:
        # By its length first: the time to read digits grows with their square.
        number = None
        if len(text) <= LONGEST_NUMBER:
            number = int(text) if text.isdigit() else float(text)
        if number is None or number > LARGEST_NUMBER:
            shown = text if len(text) <= LONGEST_NUMBER else f"{text[:20]}… of {len(text)} characters"
            raise BadExpression(f"the number {shown} is too large: at most {LARGEST_NUMBER}")
        return Node("literal", number)

    def _instant(self, kind: str) -> Node:
        text = self._tokens[self._at][1]
        self._at += 1
        try:
            return Node("literal", date.fromisoformat(text) if kind == "date" else datetime.fromisoformat(text))
        except ValueError:
            raise BadExpression(f"{text!r} is no {kind}") from None

    def _call(self, name: str) -> Node:
        if name not in FUNCTIONS:
            raise BadExpression(f"there is no function {name!r} here; the functions are {', '.join(sorted(FUNCTIONS))}")
        parts = self._arguments()
        least, most = FUNCTIONS[name]
        if not least <= len(parts) <= most:
            raise BadExpression(f"{name} takes {least if least == most else f'{least} to {most}'} arguments")
        return Node("call", name, parts)

    def _arguments(self) -> tuple[Node, ...]:
        """After the opening parenthesis, to the closing one."""
        if self._take(")"):
            return ()
        parts = [self._or()]
        while self._take(","):
            parts.append(self._or())
        self._need(")")
        return tuple(parts)

    def _column(self, name: str) -> Node:
        names = [name]
        while self._take("."):
            kind, value = self._peek()
            if kind not in ("name", "quoted"):
                self._fail("a field's name")
            names.append(value)
            self._at += 1
        return Node("column", tuple(names))


def _negated(node: Node, negated: object) -> Node:
    return Node("not", None, (node,)) if negated else node


def to_column(node: Node) -> Column:
    """The expression for Spark. Names are looked up when it is used."""
    from pyspark.sql import functions as sf

    parts = [to_column(part) for part in node.parts]
    match node.kind:
        case "column":
            return sf.col(".".join(f"`{name}`" for name in node.value))
        case "literal":
            return sf.lit(node.value)
        case "call":
            call: Callable[..., Column] = getattr(sf, node.value)
            return call(*parts)
        case "negative":
            return -parts[0]
        case "not":
            return ~parts[0]
        case "is null":
            return parts[0].isNull()
        case "in":
            return parts[0].isin(*parts[1:])
        case "between":
            return parts[0].between(parts[1], parts[2])
        case "like":
            return parts[0].rlike(like_as_regex(node.parts[1].value))
    return _fold(node.kind, parts)


_OPERATORS: dict[str, Callable[[Column, Column], Column]] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "%": lambda a, b: a % b,
}


def _fold(kind: str, parts: list[Column]) -> Column:
    """In halves, so that a thousand of them are ten deep; only `and` and `or`, which allow it, have more than two."""
    if len(parts) == 1:
        return parts[0]
    middle = len(parts) // 2
    return _OPERATORS[kind](_fold(kind, parts[:middle]), _fold(kind, parts[middle:]))
