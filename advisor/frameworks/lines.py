"""Pieces of Python source: imports in order, calls with one argument a line, comments of bearable width."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from advisor.frameworks.change import Argument

WIDTH = 88
STANDARD_LIBRARY = ("contextlib", "itertools")
OWN_NAMES = (
    "model", "optimizer", "loader", "loss_fn", "scaler", "max_norm", "device_ids", "output_dir", "train_dataset",
    "cfg", "clip_grad", "resumes",
)  # fmt: skip
"""What code may use without making it."""


@dataclass(frozen=True)
class Snippet:
    """Code to paste: what it imports, and blocks with blank lines between them."""

    imports: frozenset[str]
    blocks: tuple[str, ...]

    def render(self, header: str) -> str:
        """The whole source, ending in a line break: `header`, the names that are the reader's own, and the code."""
        blocks = [block for block in self.blocks if block]
        code = write_imports(self.imports)
        for before, block in pairwise(["", *blocks]):
            code += ("\n\n\n" if _defines(before) or _defines(block) else "\n\n") + block
        return f"{write_comment(header + say_own_names(code))}\n{code.lstrip()}\n"


def say_own_names(source: str) -> str:
    """The names that the reader has to have; nothing where there are none."""
    used = {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)}
    own = [name for name in OWN_NAMES if name in used]
    return f" Your own: {', '.join(own)}." if own else ""


def _defines(block: str) -> bool:
    return any(line.startswith(("class ", "def ")) for line in block.splitlines())


def write_imports(imports: Iterable[str]) -> str:
    """Import statements as isort writes them: the standard library first, one line a module."""
    names: dict[str, list[str]] = {}
    for statement in imports:
        module, _, name = statement.partition(" import ")
        names.setdefault(module, []).append(name)
    lines = [
        f"{module} import {', '.join(sorted(set(names[module]), key=_class_first))}"
        if names[module] != [""]
        else module
        for module in sorted(names, key=lambda module: (module.startswith("from"), module))
    ]
    groups = [[line for line in lines if line.split()[1] in STANDARD_LIBRARY]]
    groups.append([line for line in lines if line not in groups[0]])
    return "\n\n".join("\n".join(group) for group in groups if group)


def _class_first(name: str) -> tuple[bool, str]:
    return name[0].islower(), name


def write_call(function: str, arguments: Sequence[Argument], *first: str) -> str:
    """`function(…)` with one argument a line and its comment above it; `first` are arguments without a name."""
    lines = [f"    {argument}," for argument in first]
    for argument in arguments:
        if argument.comment:
            lines += write_comment(argument.comment, indent="    ").splitlines()
        if argument.value is not None:
            lines.append(f"    {argument.name}={argument.value},")
    return "\n".join([f"{function}(", *lines, ")"]) if lines else f"{function}()"


def write_comment(text: str, indent: str = "") -> str:
    """Prose as comment lines."""
    prefix = f"{indent}# "
    return "\n".join(
        textwrap.wrap(text, WIDTH, initial_indent=prefix, subsequent_indent=prefix, break_on_hyphens=False)
    )


def indent(block: str, levels: int = 1) -> str:
    """A block inside of others."""
    return textwrap.indent(block, "    " * levels)
