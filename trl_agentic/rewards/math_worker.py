"""
The process that compares formulas for [`~trl_agentic.rewards.math_equal`]: one JSON request a line in, one answer out.

A script of its own, because a formula can keep sympy busy for ever in code that no signal interrupts, and can fill the
memory. A process can be killed, whatever thread waits for it.
"""

from __future__ import annotations

import faulthandler
import json
import math
import os
import resource
import sys
from collections.abc import Callable, Iterator
from typing import Any

_MEMORY_BYTES = 4 << 30
_ORPHAN_S = 60  # the caller kills long before; this is for when the caller itself is gone
_PLACES = 6
_LARGEST_EXPONENT = 10**5


def main() -> None:
    """Answer requests until the input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # libraries may print

    compare = _comparison()
    print("ready", file=answers)
    for line in sys.stdin:
        faulthandler.dump_traceback_later(_ORPHAN_S, exit=True)
        print(json.dumps(compare(*json.loads(line))), file=answers)
        faulthandler.cancel_dump_traceback_later()


def _comparison() -> Callable[[str, str], bool]:
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify

    # Units are compared by the caller; math-verify would drop them.
    markup = NormalizationConfig(True, units=False, malformed_operators=True, nits=True, boxed="all", equations=False)
    targets = [LatexExtractionConfig(boxed_match_priority=0, normalization_config=markup)]

    def compare(answer: str, prediction: str) -> bool:
        sides = [parse(f"\\boxed{{{text}}}", targets, parsing_timeout=None) for text in (answer, prediction)]
        if not all(sides) or any(_is_endless(tree) for tree, *_ in sides):
            return False
        sides = [[_computed(tree), *texts] for tree, *texts in sides]
        trees = [tree for tree, *_ in sides]
        # Rounded to six places, 1/20! is 0: as many more are looked at as the smallest number has zeros there.
        smallest = min((size for tree in trees for size in _magnitudes(tree)), default=0.0)
        places = _PLACES + max(0, -math.floor(smallest) - 1)
        precision = {"float_rounding": places, "numeric_precision": places + 9}
        equal = verify(*sides, **precision, allow_set_relation_comp=True, timeout_seconds=None)
        return equal or _cancel_out(*trees)

    return compare


def _is_endless(tree: Any) -> bool:
    """Whether a formula holds a power such as 9^(9^9), which nobody can compute."""
    from sympy import Pow, factorial, postorder_traversal

    for node in postorder_traversal(tree):  # the innermost first
        if isinstance(node, Pow | factorial) and node.args[-1].is_number:
            if abs(node.args[-1].evalf(5)) > _LARGEST_EXPONENT:
                return True
    return False


def _computed(tree: Any) -> Any:
    """`1.5 \\cdot 10^{-9}` as one decimal number, which alone math-verify rounds."""
    from sympy import Expr, Float

    return tree.evalf(30) if isinstance(tree, Expr) and tree.is_number and tree.has(Float) else tree


def _cancel_out(left: Any, right: Any) -> bool:
    """Whether two formulas are equal once they are multiplied out, which math-verify does not do everywhere."""
    from sympy import Expr, I, Symbol

    if not (isinstance(left, Expr) and isinstance(right, Expr)):
        return False
    difference = left.doit() - right.doit()
    # math-verify leaves i a symbol, which can be real on one side and not on the other.
    names = {symbol: I if symbol.name == "i" else Symbol(symbol.name) for symbol in difference.free_symbols}
    return bool(difference.xreplace(names).expand() == 0)


def _magnitudes(tree: Any) -> Iterator[float]:
    """Decimal logarithms of the numbers in a formula."""
    from sympy import Expr, log

    if isinstance(tree, Expr) and tree.is_number:
        size = abs(tree.doit().evalf(5))
        if size.is_Float and size.is_finite and size > 0:
            yield float(log(size, 10).evalf(5))
    else:
        for part in getattr(tree, "args", ()):
            yield from _magnitudes(part)


if __name__ == "__main__":
    main()
