"""Checking a struct's fields against their annotations: every problem at once, in words, with the fix.

A field's type and limits stand in its annotation (`Annotated[int, Meta(ge=1)]`) and nowhere else. Checks are strict:
a text is no number, a number is no boolean.
"""

import difflib
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, get_type_hints

import msgspec
from msgspec import Struct, inspect


def field_problems(struct: Struct) -> list[tuple[str, str]]:
    """Each field whose value its annotation does not allow: (field, what is wrong and what would be right)."""
    problems = []
    for name in struct.__struct_fields__:
        if (problem := problem_of(type(struct), name, getattr(struct, name))) is not None:
            problems.append((name, problem))
    return problems


def problem_of(struct: type[Struct], name: str, value: object) -> str | None:
    """What is wrong with this value for a field and what would be right, or None."""
    try:
        msgspec.convert(value, annotations(struct)[name], strict=True)
    except msgspec.ValidationError:
        return f"{name}={_shown(value)} must be {allowed(struct, name)}"
    return None


def allowed(struct: type[Struct], name: str) -> str:
    """What a field allows: "a whole number between 1 and 64, or null"."""
    return _words(inspect.type_info(annotations(struct)[name]))


def described(struct: type[Struct], name: str) -> str:
    """What a field means: the description in its annotation."""
    info = inspect.type_info(annotations(struct)[name])
    assert isinstance(info, inspect.Metadata), f"{name} has no description"
    assert info.extra_json_schema is not None, f"{name} has no description"
    return str(info.extra_json_schema["description"])


def kinds_of(struct: type[Struct], name: str) -> tuple[inspect.Type, ...]:
    """The kinds of values that a field takes."""
    info = _plain(inspect.type_info(annotations(struct)[name]))
    return info.types if isinstance(info, inspect.UnionType) else (info,)


def unknown_name_problems(names: Iterable[str], known: Iterable[str]) -> list[str]:
    """One problem for each name that is not known, with the nearest one that is."""
    known = sorted(known)
    problems = []
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
            problems.append(f"{name!r} is not an option: {hint}")
    return problems


@lru_cache
def annotations(struct: type[Struct]) -> dict[str, Any]:
    """The annotation of each field, with its limits and its description."""
    hints = get_type_hints(struct, include_extras=True)
    return {name: hints[name] for name in struct.__struct_fields__}


def _plain(kind: inspect.Type) -> inspect.Type:
    return kind.type if isinstance(kind, inspect.Metadata) else kind


def _words(kind: inspect.Type) -> str:
    match kind:
        case inspect.Metadata(type=described):
            return _words(described)
        case inspect.UnionType(types=types):
            return ", or ".join(_words(part) for part in types)
        case inspect.NoneType():
            return "null"
        case inspect.BoolType():
            return "true or false"
        case inspect.IntType():
            return "a whole number" + _limits(kind)
        case inspect.FloatType():
            return "a number" + _limits(kind)
        case inspect.StrType(min_length=least, max_length=most):
            span = f" of {least or 0} to {most} characters" if most else " that is not empty" if least else ""
            return f"a text{span}"
        case inspect.LiteralType(values=values):
            return "one of " + ", ".join(map(repr, values))
        case inspect.VarTupleType(item_type=item, max_length=most):
            return (f"a list of at most {most}" if most else "a list") + f", each {_words(item)}"
        case inspect.TupleType(item_types=items):
            return "a pair of " + " and ".join(map(_words, items))
        case _:
            raise TypeError(f"no words for {kind}")


def _limits(kind: inspect.IntType | inspect.FloatType) -> str:
    if kind.ge is not None and kind.le is not None:
        return f" between {kind.ge} and {kind.le}"
    limits = {"at least": kind.ge, "above": kind.gt, "at most": kind.le, "below": kind.lt}
    words = " and ".join(f"{word} {limit}" for word, limit in limits.items() if limit is not None)
    return f" of {words}" if words.startswith("at") else f" {words}" if words else ""


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
