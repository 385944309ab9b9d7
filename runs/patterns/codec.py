"""Models to JSON values and back, strictly, with every fault named by its place. Does not know what a Run is."""

from __future__ import annotations

from itertools import islice
from typing import Any, Literal

from pydantic import BaseModel, ValidationError
from pydantic.errors import PydanticUserError

from runs import payloads
from runs.errors import Invalid, PatternError

type Word = Literal["input", "state", "output"]


def parse[M: BaseModel](model: type[M], value: Any, what: Word) -> M:
    """The model from a JSON value, validated strictly, as if read from JSON text: a date may be text, a number not.

    Raises:
        Invalid: it does not fit or cannot be stored; `errors` holds `{pointer, detail, code}` for each place.
    """
    return _read(model, payloads.check(value, what), what)


def dump_exact[M: BaseModel](model: type[M], instance: M, what: Word) -> Any:
    """The JSON value of an instance of exactly this model, proved to read back.

    Raises:
        Invalid: it is something else, cannot be stored, or would not validate when it is read.
    """
    if type(instance) is not model:
        raise Invalid(f"The {what} is {kind_of(instance)}, but the Pattern's {what} is {model.__name__}.")
    dumped = payloads.jsonable(instance, what)
    _read(model, payloads.check(dumped, what), what)
    return dumped


def dump_public(model: type[BaseModel], instance: BaseModel, what: Word) -> Any:
    """The JSON value of an instance of this model or of a subclass, computed fields included, proved valid.

    Raises:
        Invalid: it is something else, cannot be stored, or is not valid.
    """
    if not isinstance(instance, model):
        raise Invalid(f"The {what} is {kind_of(instance)}, but the Pattern's {what} is {model.__name__}.")
    _read(type(instance), payloads.check(payloads.jsonable(instance, what), what), what)
    dumped = payloads.jsonable(instance, what, round_trip=False)
    payloads.check(dumped, what)
    return dumped


def schema(where: str, model: type[BaseModel], what: Word) -> dict[str, Any]:
    """The JSON schema of a model: what is accepted, for the output what is published.

    Raises:
        PatternError: pydantic can make none, or one that cannot be stored.
    """
    try:
        made = model.model_json_schema(mode="serialization" if what == "output" else "validation")
        payloads.check(made, f"schema of the {what}")
    except PydanticUserError as error:
        raise PatternError(f"{where}: the {what} model {model.__name__} has no JSON schema: {error.message}") from error
    except Invalid as error:
        raise PatternError(f"{where}: {error.detail}") from error
    return made


def kind_of(value: object) -> str:
    """What a value is, in words."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _read[M: BaseModel](model: type[M], text: str, what: Word) -> M:
    try:
        return model.model_validate_json(text, strict=True)
    except ValidationError as error:
        # An author's own validator may put anything into its message.
        errors = [
            payloads.problem(payloads.pointer(fault["loc"]), fault["msg"], fault["type"])
            for fault in islice(
                error.errors(include_url=False, include_context=False, include_input=False), payloads.MOST_ERRORS
            )
        ]
    first = errors[0]
    raise Invalid(f"The {what} does not fit: {first['pointer'] or 'it'}: {first['detail']}.", errors=errors)
