"""Checks `-p name=value` against the notebook's cell tagged `parameters`, before a kernel starts.

papermill itself only warns of an unknown name and then runs with the defaults, and its own reader of the cell takes
annotations by a regular expression that misses a parameter annotated with a `Literal`. So the cell is read here as what
it is: Python. A parameter whose comment says `one of smoke (a minute), quick, paper` takes these values alone, so that
papermill knows it too.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import io
import json
import re
import tokenize
from pathlib import Path
from typing import Any

from nestlab.errors import UserError

TAG = "parameters"
_ONE_OF, _ASIDE, _WORD = re.compile(r"\bone of (.+)$"), re.compile(r"\([^)]*\)"), re.compile(r"[\w-]+")


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One assignment of the parameters cell.

    Attributes:
        name: the variable.
        kinds: names of the types it takes (int, float, str, bool, None, or another that only a literal can give);
            empty if nothing is known.
        choices: the values that a `Literal` or the comment allows; empty if neither does.
        default: the value in the notebook; None where it is not a literal.
    """

    name: str
    kinds: tuple[str, ...]
    choices: tuple[Any, ...]
    default: Any


def read_notebook(path: Path) -> dict[str, Any]:
    """The notebook as JSON.

    Raises:
        UserError: there is none, or it is not a notebook.
    """
    if not path.is_file():
        there = ", ".join(sorted(found.name for found in path.parent.glob("*.ipynb")))
        raise UserError(f"no notebook at {path}" + (f": {path.parent} has {there}" if there else ""))
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        content["cells"]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path} is not a Jupyter notebook") from None
    return content


def declared(notebook: dict[str, Any]) -> dict[str, Parameter]:
    """The parameters a notebook declares; none if it has no cell tagged so."""
    for cell in notebook["cells"]:
        if TAG in cell.get("metadata", {}).get("tags", []):
            return {parameter.name: parameter for parameter in _parameters(source(cell))}
    return {}


def source(cell: dict[str, Any]) -> str:
    """A cell's text, which a notebook file holds as one string or as a list of lines."""
    text = cell.get("source", "")
    return text if isinstance(text, str) else "".join(text)


def check(notebook: dict[str, Any], given: dict[str, str], name: str) -> dict[str, Any]:
    """Given values, converted to the declared types.

    Raises:
        UserError: a name is not declared, or a value is not of the declared type. The message names the nearest name.
    """
    known = declared(notebook)
    if given and not known:
        raise UserError(f"{name} takes no parameters: it has no cell tagged '{TAG}'")
    for wrong in (key for key in given if key not in known):
        near = difflib.get_close_matches(wrong, known, n=1, cutoff=0.5)
        hint = f"did you mean '{near[0]}'?" if near else f"it has {', '.join(known)}"
        raise UserError(f"{name} has no parameter '{wrong}': {hint}")
    return {key: convert(known[key], text) for key, text in given.items()}


def resolved(notebook: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """The defaults with `values` over them: what the notebook will really use."""
    return {name: parameter.default for name, parameter in declared(notebook).items()} | values


def convert(parameter: Parameter, text: str) -> Any:
    """A command line's text as a value that the parameter takes."""
    if parameter.choices:
        for choice in parameter.choices:
            if text == str(choice):
                return choice
        raise UserError(
            f"parameter '{parameter.name}' is one of {', '.join(map(str, parameter.choices))}, not '{text}'"
        )
    for kind in parameter.kinds:
        try:
            return _READERS.get(kind, _literal)(text)
        except (ValueError, SyntaxError):
            continue
    if parameter.kinds:
        raise UserError(f"parameter '{parameter.name}' is of type {' or '.join(parameter.kinds)}; '{text}' is not")
    try:
        return _literal(text)
    except (ValueError, SyntaxError):
        return text


def _bool(text: str) -> bool:
    values = {"true": True, "false": False, "1": True, "0": False}
    if text.lower() not in values:
        raise ValueError(text)
    return values[text.lower()]


def _none(text: str) -> None:
    if text.lower() not in ("none", "null"):
        raise ValueError(text)


def _literal(text: str) -> Any:
    return ast.literal_eval(text)


_READERS = {"int": int, "float": float, "bool": _bool, "None": _none, "str": str, "Path": str}


def _parameters(code: str) -> list[Parameter]:
    try:
        tree = ast.parse(code)
    except SyntaxError as error:
        raise UserError(f"the cell tagged '{TAG}' is not Python: {error.msg} in its line {error.lineno}") from None
    comments, found = _comments(code), []
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value is not None:
            parameter = _parameter(node.target.id, node.annotation, node.value)
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            parameter = _parameter(node.targets[0].id, None, node.value)
        else:
            continue
        lines = range(node.lineno, node.end_lineno + 1)
        found.append(_chosen_from(parameter, " ".join(comments.get(line, "") for line in lines)))
    return found


def _comments(code: str) -> dict[int, str]:
    """The comments of a cell, by line."""
    tokens = tokenize.generate_tokens(io.StringIO(code).readline)
    return {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}


def _chosen_from(parameter: Parameter, comment: str) -> Parameter:
    """With the words that the comment lists behind `one of`, where each is a word and the default is among them."""
    listed = _ONE_OF.search(_ASIDE.sub("", comment))
    words = tuple(word.strip() for word in listed[1].split(",")) if listed else ()
    if parameter.choices or parameter.default not in words or not all(map(_WORD.fullmatch, words)):
        return parameter
    return dataclasses.replace(parameter, choices=words)


def _parameter(name: str, annotation: ast.expr | None, value: ast.expr) -> Parameter:
    try:
        default = ast.literal_eval(value)
    except ValueError:
        default = None
    if annotation is None:
        kinds = () if default is None else (type(default).__name__,)
        return Parameter(name, kinds, (), default)
    kinds, choices = _annotated(annotation)
    # None is tried first and text last: `str` would take anything.
    kinds.sort(key=lambda kind: {"None": 0, "str": 2}.get(kind, 1))
    return Parameter(name, tuple(dict.fromkeys(kinds)), tuple(choices), default)


def _annotated(node: ast.expr) -> tuple[list[str], list[Any]]:
    """Type names and literal choices of an annotation such as `int | None` or `Literal["smoke", "quick"]`."""
    if isinstance(node, ast.Constant):
        return (["None"], []) if node.value is None else _annotated(ast.parse(str(node.value), mode="eval").body)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _merged([node.left, node.right])
    if isinstance(node, ast.Subscript):
        base = ast.unparse(node.value).split(".")[-1]
        items = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        if base == "Literal":
            return [], [ast.literal_eval(item) for item in items]
        if base == "Optional":
            kinds, choices = _annotated(node.slice)
            return ["None", *kinds], [*choices, None] if choices else []
        if base == "Union":
            return _merged(items)
        return [base], []
    return [ast.unparse(node).split(".")[-1]], []


def _merged(nodes: list[ast.expr]) -> tuple[list[str], list[Any]]:
    parts = [_annotated(node) for node in nodes]
    kinds, choices = [k for part in parts for k in part[0]], [c for part in parts for c in part[1]]
    return kinds, [*choices, None] if choices and "None" in kinds else choices
