"""Axes of a contract: sizes bound by name, and expressions of them such as "ceil(N/32)"."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping
from fractions import Fraction

from kdtr.contract import Tensor
from kdtr.errors import ContractError


class Axes:
    """Sizes of named axes, and the check that every shape agrees with them."""

    def __init__(self, where: str, sizes: Mapping[str, int]) -> None:
        self._where, self._sizes = where, dict(sizes)
        self._later: list[tuple[str, int, str, int]] = []

    def bind(self, tensor: Tensor, shape: tuple[int, ...]) -> None:
        """Take sizes from plain axes; keep expressions for `check`."""
        if len(shape) != len(tensor.axes):
            raise ContractError(
                f"{self._where}/{tensor.name}", "rank", list(tensor.axes), list(shape)
            )
        for i, (axis, size) in enumerate(zip(tensor.axes, shape, strict=True)):
            if axis.isidentifier():
                want = self._sizes.setdefault(axis, size)
                if want != size:
                    raise ContractError(
                        f"{self._where}/{tensor.name}", f"axis {i} ({axis})", want, size
                    )
            else:
                self._later.append((tensor.name, i, axis, size))

    def shape(self, tensor: Tensor) -> tuple[int, ...]:
        """The shape of a tensor whose axes are all known by now."""
        where = f"{self._where}/{tensor.name}"
        return tuple(int(evaluate(axis, self._sizes, where)) for axis in tensor.axes)

    def check(self) -> None:
        """Evaluate the axes given as expressions."""
        for name, i, axis, size in self._later:
            want = evaluate(axis, self._sizes, f"{self._where}/{name}")
            if want != size:
                raise ContractError(f"{self._where}/{name}", f"axis {i} ({axis})", want, size)


_FUNCTIONS: Mapping[str, Callable[..., Fraction | int]] = {
    "ceil": math.ceil,
    "floor": math.floor,
    "max": max,
    "min": min,
}
_OPERATORS: Mapping[type, Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: Fraction(a // b),
}


def evaluate(expression: str, sizes: Mapping[str, int], where: str) -> Fraction:
    """The value of an axis such as "B+1", "2" or "ceil(N/32)"."""

    def value(node: ast.expr) -> Fraction:
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            return Fraction(node.value)
        if isinstance(node, ast.Name) and node.id in sizes:
            return Fraction(sizes[node.id])
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](value(node.left), value(node.right))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            function = _FUNCTIONS.get(node.func.id)
            if function is not None:
                return Fraction(function(*(value(a) for a in node.args)))
        raise ContractError(
            where,
            f"axis '{expression}'",
            "axis or attribute names, integers, + - * / // ceil floor max min",
            ast.unparse(node),
        )

    return value(ast.parse(expression, mode="eval").body)
