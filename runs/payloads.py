"""What may be stored as JSON: one law for input, state, output, step results and events.

PostgreSQL's jsonb holds neither NUL nor lone surrogates, JSON has no NaN, and fast encoders turn NaN into null
without a word. So every payload passes `check` before it reaches the ledger, log and token events pass `escaped`,
and text from outside passes `parse`. Never coerces a value, never recurses deeper than its own bound.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from pydantic import TypeAdapter

from runs.errors import Invalid, Refused, TooLarge

MAX_DEPTH = 200
# No payload setting may be above this; it bounds the walk over values that share their parts.
HARD_LIMIT = 64 * 1024 * 1024
# A request body holds a payload one or two levels down; `check` then says which payload is too deep.
_PARSE_DEPTH = MAX_DEPTH + 8
MOST_ERRORS = 20
_MOST_SHOWN = 500
_MOST_ESCAPED = 100_000
_SMALL = 2**63
_SCALARS = frozenset({str, int, float, bool, type(None)})
type _Place = tuple[_Place | None, str | int]
_ANY: TypeAdapter[Any] = TypeAdapter(Any)


class Malformed(Refused):
    """The text is not JSON."""

    code, title = "malformed_json", "Malformed JSON"


def canonical(value: Any) -> str:
    """The one JSON text of a value: sorted keys, no spaces, nothing that is not JSON.

    Raises:
        Invalid: the value has no JSON text.
    """
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise Invalid(f"The value cannot be written as JSON: {error}.") from error


def digest(value: Any) -> str:
    """SHA-256 in hex over the canonical JSON text.

    Raises:
        Invalid: the value has no JSON text, or one that is not Unicode.
    """
    try:
        return hashlib.sha256(canonical(value).encode()).hexdigest()
    except UnicodeEncodeError as error:
        raise Invalid("The value holds half of a surrogate pair, which is not text.") from error


def check(value: Any, what: str, limit: int | None = None) -> str:
    """Prove that a JSON value may be stored, and give its canonical text.

    Args:
        value: dicts with text keys, lists, tuples, text, numbers, booleans, None.
        what: names the payload in the sentence: input, state, output, step result, event.
        limit: most bytes of the text in UTF-8; None means `HARD_LIMIT`.

    Raises:
        Invalid: it holds NUL, half a surrogate pair, NaN, Infinity, something that is not JSON, or is nested deeper
            than `MAX_DEPTH`; `errors` says where.
        TooLarge: the text is longer than the limit.
    """
    most = HARD_LIMIT if limit is None else limit
    text: str | None = None
    size = 0
    if _is_plain(value, most):
        try:
            text = canonical(value)
            size = len(text.encode())
        except (Invalid, UnicodeEncodeError):
            text = None
    if text is None or "\\u0000" in text:
        errors = _problems(value, what, most)
        if errors:
            raise _unstorable(what, errors)
        if text is None:
            text = canonical(value)
            size = len(text.encode())
    if size > most:
        raise _too_large(what, size, most)
    return text


def jsonable(value: Any, what: str, *, round_trip: bool = True) -> Any:
    """Turn models, dataclasses, dates, enums and the like into a JSON value, without losing a number on the way.

    Args:
        value: what a node or a step returned.
        what: names the payload in the sentence.
        round_trip: leave out computed fields, so that the result validates again.

    Raises:
        Invalid: a part has no JSON form, or a NaN or Infinity would have become null.
    """
    try:
        dumped = _ANY.dump_python(value, mode="json", by_alias=True, round_trip=round_trip, warnings="none")
        # pydantic writes NaN as null where a field says Any, so the same dump in Python's terms is laid beside it.
        raw = _ANY.dump_python(value, mode="python", by_alias=True, round_trip=round_trip, warnings="none")
    except UnicodeEncodeError as error:
        raise _unstorable(what, [problem("", "holds half of a surrogate pair", "surrogate")]) from error
    except (ValueError, TypeError, RecursionError) as error:
        raise Invalid(f"The {what} cannot be written as JSON: {error}.") from error
    lost = _lost_number(raw, dumped)
    if lost is not None:
        raise _unstorable(what, [problem(lost, "is not a finite number", "not_finite")])
    return dumped


def parse(text: str | bytes | bytearray, limit: int | None = None, what: str = "text") -> Any:
    """Read JSON from outside.

    Args:
        text: JSON; bytes must be UTF-8 without a byte order mark.
        limit: most bytes; None means `HARD_LIMIT`.
        what: names the text in the sentence.

    Raises:
        Malformed: it is not JSON.
        Invalid: it is nested too deeply, or holds a number that is none (NaN, Infinity, 1e999) or has too many digits.
        TooLarge: it is longer than the limit.
    """
    most = HARD_LIMIT if limit is None else limit
    size = len(text.encode("utf-8", "surrogatepass")) if isinstance(text, str) else len(text)
    if size > most:
        raise _too_large(what, size, most)
    try:
        source = text if isinstance(text, str) else text.decode()
    except UnicodeDecodeError as error:
        raise Malformed(f"The {what} is not UTF-8 (byte {error.start}).") from error
    too_deep = f"The {what} is nested deeper than {MAX_DEPTH} levels."
    try:
        value = json.loads(source, parse_constant=_refuse_number, parse_float=_finite)
    except json.JSONDecodeError as error:
        sentence = f"The {what} is not JSON: {error.msg} (line {error.lineno}, column {error.colno})."
        raise Malformed(sentence) from error
    except RecursionError as error:
        raise Invalid(too_deep, errors=[problem("", "is nested too deeply", "too_deep")]) from error
    except ValueError as error:  # Python reads no integer of more than 4,300 digits
        raise Invalid(f"The {what} holds a number with too many digits.") from error
    if not _is_plain(value, most + 1, _PARSE_DEPTH):
        raise Invalid(too_deep, errors=[problem("", "is nested too deeply", "too_deep")])
    return value


def escaped(value: Any) -> Any:
    """The value with everything that cannot be stored replaced by something readable; never raises.

    NUL becomes the six characters `\\u0000`, half a surrogate pair likewise, NaN the text `NaN`; what is no JSON at
    all becomes its `str`, and parts that are nested too deeply or too many become `…`. For log and token events.
    """
    try:
        return _escaped(value, 0, [_MOST_ESCAPED])
    except RecursionError:
        return "…"


def pointer(path: Sequence[str | int]) -> str:
    """The JSON Pointer (RFC 6901) of a path of keys and indexes."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def problem(where: str, detail: str, code: str) -> dict[str, Any]:
    """One entry of an error's `errors`, itself storable and short: a place may be named by hostile keys."""
    return {"pointer": _shown(where), "detail": _shown(detail), "code": code}


def _shown(text: str) -> str:
    return _escaped_text(text if len(text) <= _MOST_SHOWN else text[:_MOST_SHOWN] + "…")


def _unstorable(what: str, errors: list[dict[str, Any]]) -> Invalid:
    first = errors[0]
    return Invalid(f"The {what} cannot be stored: {first['pointer'] or 'it'} {first['detail']}.", errors=errors)


def _too_large(what: str, size: int | None, limit: int) -> TooLarge:
    fact = "larger" if size is None else f"{size:,} bytes"
    return TooLarge(
        f"The {what} is {fact} as JSON; at most {limit:,} bytes are allowed.",
        errors=[problem("", f"is {fact}, the limit is {limit:,} bytes", "too_large")],
    )


def _refuse_number(name: str) -> float:
    raise Invalid(f"{name} is not a JSON number.", errors=[problem("", f"holds {name}", "not_finite")])


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        detail = f"holds {digits[:40]}, which is too large for a number"
        raise Invalid(f"The JSON {detail}.", errors=[problem("", detail, "not_finite")])
    return number


def _is_plain(value: Any, most: int, depth: int = MAX_DEPTH) -> bool:
    """Whether only exact JSON types occur, with text keys, within the bounds; False only means: look closer.

    Level by level and without a call per part: this runs on the event loop for every payload.
    """
    level: list[Any] = [value]
    for _ in range(depth):
        deeper: list[Any] = []
        for part in level:
            kind = type(part)
            if kind is dict:
                if not all(type(key) is str for key in part):
                    return False
                deeper.extend(part.values())
            elif kind is list or kind is tuple:
                deeper.extend(part)
            elif kind not in _SCALARS:
                return False
            # Each part costs a byte at least, so more parts than bytes cannot fit.
            if len(deeper) > most:
                return False
        if not deeper:
            return True
        most -= len(deeper)
        level = deeper
    return all(type(part) in _SCALARS for part in level)


def _problems(value: Any, what: str, most: int) -> list[dict[str, Any]]:
    """Every place that cannot be stored, at most `MOST_ERRORS`; raises TooLarge when parts outnumber the bytes."""
    errors: list[dict[str, Any]] = []
    walks: list[tuple[_Place | None, Iterator[tuple[Any, Any]]]] = [(None, iter([(None, value)]))]
    seen = 0
    while walks and len(errors) < MOST_ERRORS:
        above, walk = walks[-1]
        for key, part in walk:
            seen += 1
            kind = type(part)
            if (
                part is None
                or (kind is int and -_SMALL < part < _SMALL)
                or (kind is str and part.isascii() and "\0" not in part)
            ):
                continue
            place = None if len(walks) == 1 else (above, key)
            if isinstance(part, dict | list | tuple):
                if len(walks) > MAX_DEPTH:
                    # A cycle ends here as well, so nothing below is worth a look.
                    detail = f"is nested deeper than {MAX_DEPTH} levels"
                    return [problem(pointer(_path(place)[:20]), detail, "too_deep")]
                if isinstance(part, dict):
                    keys = islice(_key_problems(part), MOST_ERRORS)
                    errors.extend(problem(pointer(_path(place)), *found) for found in keys)
                walks.append((place, iter(part.items() if isinstance(part, dict) else enumerate(part))))
                break
            found = _scalar_problem(part)
            if found:
                errors.append(problem(pointer(_path(place)), *found))
                if len(errors) >= MOST_ERRORS:
                    break
        else:
            walks.pop()
        if seen > most:
            raise _too_large(what, None, most)
    return errors[:MOST_ERRORS]


def _key_problems(part: dict[Any, Any]) -> Iterator[tuple[str, str]]:
    for key in part:
        if not isinstance(key, str):
            yield "has a key that is not text", "key"
        elif not key.isascii() or "\0" in key:
            found = _text_problem(key)
            if found:
                yield f"has a key that {found[0]}", found[1]


def _path(place: _Place | None) -> list[str | int]:
    path: list[str | int] = []
    while place is not None:
        place, key = place
        path.append(key)
    return path[::-1]


def _scalar_problem(part: Any) -> tuple[str, str] | None:
    if isinstance(part, str):
        return _text_problem(part)
    if isinstance(part, float):
        return None if math.isfinite(part) else ("is not a finite number", "not_finite")
    if isinstance(part, int):
        try:
            int.__repr__(part)
        except ValueError:
            return "is a number with too many digits", "too_many_digits"
        return None
    return None if part is None else (f"is a {type(part).__name__}, which is not JSON", "not_json")


def _text_problem(text: str) -> tuple[str, str] | None:
    if "\0" in text:
        return "holds a NUL character", "nul"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "holds half of a surrogate pair", "surrogate"
    return None


def _lost_number(raw: Any, dumped: Any) -> str | None:
    """Where a number that is not finite became null; the two dumps have the same shape and order."""
    stack: list[tuple[tuple[str | int, ...], Any, Any]] = [((), raw, dumped)]
    while stack:
        path, before, after = stack.pop()
        if after is None:
            if isinstance(before, float) and not math.isfinite(before):
                return pointer(path)
        elif isinstance(after, dict) and isinstance(before, Mapping) and len(after) == len(before):
            pairs = zip(before.values(), after.items(), strict=True)
            stack.extend(((*path, str(key)), inner, shown) for inner, (key, shown) in pairs)
        elif isinstance(after, list) and isinstance(before, list | tuple | set | frozenset):
            stack.extend(((*path, index), *pair) for index, pair in enumerate(zip(before, after, strict=False)))
    return None


def _escaped(value: Any, depth: int, budget: list[int]) -> Any:
    budget[0] -= 1
    if budget[0] < 0:
        return "…"
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _escaped_text(value)
    if isinstance(value, float):
        return (
            float(value) if math.isfinite(value) else {"inf": "Infinity", "-inf": "-Infinity"}.get(repr(value), "NaN")
        )
    if isinstance(value, int):
        return int(value) if _scalar_problem(value) is None else f"a number of {int(value).bit_length()} bits"
    if isinstance(value, Mapping | list | tuple | set | frozenset) and depth >= MAX_DEPTH:
        return "…"
    try:
        if isinstance(value, Mapping):
            return {
                _escaped_text(key if isinstance(key, str) else str(key)): _escaped(inner, depth + 1, budget)
                for key, inner in value.items()
            }
        if isinstance(value, list | tuple | set | frozenset):
            return [_escaped(inner, depth + 1, budget) for inner in value]
        return _escaped_text(str(value))
    except RecursionError:
        raise
    except Exception as error:  # noqa: BLE001 the author's own __str__ may do anything; its failure is what we show
        return f"<{type(value).__name__}: no text, {type(error).__name__}>"


def _escaped_text(text: str) -> str:
    if "\0" in text:
        text = text.replace("\0", "\\u0000")
    try:
        text.encode()
    except UnicodeEncodeError:
        return "".join(f"\\u{ord(c):04x}" if 0xD800 <= ord(c) <= 0xDFFF else c for c in text)
    return str(text)
