"""A form from a JSON schema: which fields it has, what was sent in them as a JSON value, and what is wrong where.

What a field cannot express (a union, a free object, something nested deeply) is a field for JSON. Proves only what a
form must to make a value of the text; whether the value fits is for the Pattern to say.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, cast

DEEPEST = 3
MOST_FIELDS = 100
LONG = 120
NAME = "input"
MISSING: Any = object()


class Kind(StrEnum):
    """How a field is asked for."""

    GROUP = "group"
    TEXT = "text"
    LONG_TEXT = "long_text"
    LINES = "lines"
    INTEGER = "integer"
    NUMBER = "number"
    FLAG = "flag"
    CHOICE = "choice"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Choice:
    """One value to choose: as JSON text, and as people read it."""

    value: str
    shown: str


@dataclass(slots=True)
class Field:
    """One field with what stands in it.

    Attributes:
        pointer: of the value in the input (JSON Pointer).
        nullable: whether empty may mean null.
        raw: what stands in the field, as text; of a flag `on` or nothing.
        errors: what is wrong with it, in sentences.
    """

    pointer: str
    label: str
    kind: Kind
    help: str = ""
    required: bool = False
    nullable: bool = False
    default: Any = MISSING
    choices: list[Choice] = field(default_factory=list[Choice])
    limits: dict[str, str] = field(default_factory=dict[str, str])
    item: Kind = Kind.TEXT
    children: list[Field] = field(default_factory=list["Field"])
    raw: str = ""
    errors: list[str] = field(default_factory=list[str])

    @property
    def name(self) -> str:
        """In the form."""
        return NAME + self.pointer

    @property
    def id(self) -> str:
        """In the page."""
        return "in" + "".join(char if char.isalnum() else f"-{ord(char):x}-" for char in self.pointer)

    @property
    def must(self) -> bool:
        """Whether a browser should insist on a value: not where empty text is one."""
        if not self.required or self.nullable:
            return False
        return self.kind not in {Kind.TEXT, Kind.LONG_TEXT, Kind.LINES, Kind.FLAG, Kind.GROUP} or (
            self.kind in {Kind.TEXT, Kind.LONG_TEXT} and self.limits.get("minlength", "0") != "0"
        )

    @property
    def described(self) -> str:
        """The ids of what explains the field."""
        parts = [f"{self.id}-help"] if self.help else []
        return " ".join([*parts, *([f"{self.id}-error"] if self.errors else [])])

    def walk(self) -> Iterator[Field]:
        """It and everything in it."""
        yield self
        for child in self.children:
            yield from child.walk()


def form_of(schema: Mapping[str, Any]) -> Field:
    """The form of a whole input, filled with the defaults."""
    root = _Reader(schema).field("", "Input", schema, required=True, depth=0)
    for one in root.walk():
        one.raw = _raw(one, one.default)
    return root


def read(form: Field, sent: Mapping[str, str]) -> Any:
    """Fill the form with what was sent, and make the value of it; what is wrong stands with the fields afterwards.

    Returns:
        The value, without the parts that are wrong or left out.
    """
    for one in form.walk():
        if one.kind is not Kind.GROUP:
            one.raw = sent.get(one.name, "").replace("\r\n", "\n")
    value = _value(form)
    return {} if value is MISSING and form.kind is Kind.GROUP else value


def tell(form: Field, errors: list[dict[str, Any]]) -> list[str]:
    """Put the faults of a value beside the fields where they are; what belongs to none is returned, in sentences."""
    fields = {one.pointer: one for one in form.walk()}
    rest: list[str] = []
    for error in errors:
        pointer, detail = str(error.get("pointer", "")), _sentence(str(error.get("detail", "is not valid")))
        place = pointer
        while place and place not in fields:
            place = place.rpartition("/")[0]
        near = fields.get(place)
        if near is None or (near.kind is Kind.GROUP and not place):
            rest.append(f"{pointer.lstrip('/')}: {detail}" if pointer else detail)
        else:
            inside = pointer.removeprefix(place).lstrip("/")
            near.errors.append(f"{inside}: {detail}" if inside else detail)
    return rest


def parse_json(text: str) -> Any:
    """A JSON text as strictly as inputs are read: no NaN, no infinities.

    Raises:
        ValueError: with a sentence about what is wrong.
    """
    try:
        return json.loads(text, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise ValueError(f"This is not JSON: {error.msg} in line {error.lineno}, column {error.colno}.") from error
    except RecursionError as error:
        raise ValueError("This is nested too deeply.") from error


class _Reader:
    """Reads one schema with its definitions."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self._definitions: Mapping[str, Any] = schema.get("$defs") or {}
        self._made = 0

    def field(self, pointer: str, label: str, schema: Mapping[str, Any], *, required: bool, depth: int) -> Field:
        """The field of one schema."""
        self._made += 1
        plain, nullable = self._plain(schema)
        made = Field(
            pointer,
            str(schema.get("title") or plain.get("title") or label),
            Kind.JSON,
            help=str(schema.get("description") or plain.get("description") or "") if pointer else "",
            required=required,
            nullable=nullable,
            default=schema.get("default", plain.get("default", MISSING)),
        )
        values = [plain["const"]] if "const" in plain else plain.get("enum")
        if isinstance(values, list) and values:
            made.kind = Kind.CHOICE
            made.choices = [_choice(value) for value in cast("list[Any]", values)]
            return made
        match plain.get("type"):
            case "object":
                self._group(made, plain, depth)
            case "string":
                self._text(made, plain)
            case "integer" | "number" as number:
                made.kind = Kind.INTEGER if number == "integer" else Kind.NUMBER
                made.limits = _limits(plain, {"minimum": "min", "maximum": "max"})
            case "boolean":
                made.kind = Kind.FLAG
                if nullable or made.default is MISSING:
                    made.kind, made.choices = Kind.CHOICE, [Choice("true", "yes"), Choice("false", "no")]
            case "array":
                self._lines(made, plain)
            case _:
                pass
        return made

    def _group(self, made: Field, plain: Mapping[str, Any], depth: int) -> None:
        properties = plain.get("properties")
        whole = not made.nullable and depth < DEEPEST and isinstance(properties, dict)
        # An object that may be absent has no field that says so; one with a default of its own neither.
        if not whole or not properties or (made.pointer and made.default is not MISSING):
            return
        known = cast("dict[str, Mapping[str, Any]]", properties)
        if self._made + len(known) > MOST_FIELDS or (made.pointer and not made.required):
            return
        needed = cast("list[str]", plain.get("required") or [])
        made.kind = Kind.GROUP
        made.children = [
            self.field(f"{made.pointer}/{_escape(name)}", name, one, required=name in needed, depth=depth + 1)
            for name, one in known.items()
        ]

    def _text(self, made: Field, plain: Mapping[str, Any]) -> None:
        longest = plain.get("maxLength")
        default = made.default if isinstance(made.default, str) else ""
        short = isinstance(longest, int) and longest <= LONG
        formed = bool(plain.get("format") or plain.get("pattern"))
        made.kind = Kind.TEXT if (short or formed or _looks_short(made.pointer)) else Kind.LONG_TEXT
        if "\n" in default:
            made.kind = Kind.LONG_TEXT
        made.limits = _limits(plain, {"minLength": "minlength", "maxLength": "maxlength"})
        hint = {"date": "2026-12-31", "date-time": "2026-12-31T12:00:00Z", "uuid": "an id", "uri": "https://…"}
        if plain.get("format") in hint:
            made.limits["placeholder"] = hint[str(plain["format"])]

    def _lines(self, made: Field, plain: Mapping[str, Any]) -> None:
        item, nullable = self._plain(cast("Mapping[str, Any]", plain.get("items") or {}))
        kinds = {"string": Kind.TEXT, "integer": Kind.INTEGER, "number": Kind.NUMBER}
        kind = kinds.get(str(item.get("type")))
        default = made.default
        fits = default is MISSING or default is None or all("\n" not in str(one) and str(one) for one in default)
        if kind is not None and not nullable and fits and "prefixItems" not in plain:
            made.kind, made.item = Kind.LINES, kind

    def _plain(self, schema: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
        """The schema without references and without "or null"; whether null is allowed."""
        nullable = False
        for _ in range(20):
            if isinstance(name := schema.get("$ref"), str):
                found = self._definitions.get(name.removeprefix("#/$defs/"))
                if not isinstance(found, dict):
                    return {}, nullable
                schema = cast("Mapping[str, Any]", found)
                continue
            ways = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf")
            if not isinstance(ways, list):
                return schema, nullable
            rest = [one for one in cast("list[Mapping[str, Any]]", ways) if one.get("type") != "null"]
            nullable = nullable or len(rest) < len(cast("list[Any]", ways))
            if len(rest) != 1:
                return {}, nullable
            schema = rest[0]
        return {}, nullable


def _value(one: Field) -> Any:
    """The value of a field; MISSING where it is left out or wrong."""
    if one.kind is Kind.GROUP:
        parts = ((child, _value(child)) for child in one.children)
        return {_unescape(child.pointer.rpartition("/")[2]): part for child, part in parts if part is not MISSING}
    text = one.raw
    if one.kind is Kind.FLAG:
        return text == "on"
    if not text.strip() and not (one.kind in {Kind.TEXT, Kind.LONG_TEXT} and text):
        return _empty(one)
    try:
        match one.kind:
            case Kind.TEXT | Kind.LONG_TEXT:
                return text
            case Kind.LINES:
                return [_scalar(one.item, line.strip()) for line in text.splitlines() if line.strip()]
            case Kind.CHOICE:
                return parse_json(text)
            case Kind.JSON:
                return parse_json(text)
            case _:
                return _scalar(one.kind, text.strip())
    except ValueError as error:
        one.errors.append(str(error))
        return MISSING


def _empty(one: Field) -> Any:
    """What an empty field stands for."""
    if one.nullable:
        return MISSING if one.default is None else None
    if one.kind in {Kind.TEXT, Kind.LONG_TEXT}:
        return "" if one.required or one.default not in {MISSING, ""} else MISSING
    if one.kind is Kind.LINES:
        return [] if one.required or one.default not in (MISSING, []) else MISSING
    if one.required:
        one.errors.append("This is needed.")
    return MISSING


def _scalar(kind: Kind, text: str) -> Any:
    if kind is Kind.TEXT:
        return text
    try:
        value = parse_json(text)
    except ValueError:
        value = None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"“{text[:60]}” is not a number.")  # noqa: TRY004 it is about the text
    if kind is Kind.INTEGER and not isinstance(value, int):
        raise ValueError(f"“{text[:60]}” is not a whole number.")
    return value


def _raw(one: Field, default: Any) -> str:
    """A value as it stands in its field."""
    if default is MISSING or default is None:
        return ""
    match one.kind:
        case Kind.GROUP:
            return ""
        case Kind.FLAG:
            return "on" if default is True else ""
        case Kind.TEXT | Kind.LONG_TEXT:
            return str(default)
        case Kind.LINES:
            return "\n".join(str(item) for item in default)
        case Kind.JSON:
            return json.dumps(default, ensure_ascii=False, indent=2)
        case _:
            return json.dumps(default, ensure_ascii=False)


def _choice(value: Any) -> Choice:
    return Choice(json.dumps(value, ensure_ascii=False), value if isinstance(value, str) else json.dumps(value))


def _limits(plain: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, str]:
    return {ours: str(plain[theirs]) for theirs, ours in names.items() if isinstance(plain.get(theirs), int | float)}


def _looks_short(pointer: str) -> bool:
    """By its name: a text without a bound is a long one, but for what is a name, a path or an address."""
    last = pointer.rpartition("/")[2].lower()
    return any(word in last for word in ("name", "path", "root", "url", "key", "id", "title", "folder", "file", "mail"))


def _escape(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _unescape(token: str) -> str:
    return token.replace("~1", "/").replace("~0", "~")


def _sentence(text: str) -> str:
    text = text.strip()
    text = text[:1].upper() + text[1:]
    return text if text.endswith((".", "!", "?")) else f"{text}."


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is no JSON value.")


def pretty(schema: Mapping[str, Any]) -> str:
    """A schema as people read it."""
    return json.dumps(schema, ensure_ascii=False, indent=2)
