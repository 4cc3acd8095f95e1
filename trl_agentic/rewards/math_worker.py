"""
The process that compares formulas for [`~trl_agentic.rewards.math_equal`]: one JSON request a line in, one answer out.

A script of its own, because a formula such as `9^{9^{9^9}}` keeps sympy busy for ever in code that no signal
interrupts, and can fill the memory. A process can be killed, whatever thread waits for it.
"""

from __future__ import annotations

import faulthandler
import json
import os
import resource
import sys

_MEMORY_BYTES = 4 << 30
_ORPHAN_S = 60  # the caller kills long before; this is for when the caller itself is gone


def main() -> None:
    """Answer requests until the input ends."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # libraries may print

    from math_verify import LatexExtractionConfig, parse, verify

    targets = [LatexExtractionConfig(boxed_match_priority=0)]
    print("ready", file=answers)
    for line in sys.stdin:
        faulthandler.dump_traceback_later(_ORPHAN_S, exit=True)
        sides = [parse(f"\\boxed{{{text}}}", targets, parsing_timeout=None) for text in json.loads(line)]
        print(json.dumps(verify(*sides, timeout_seconds=None)), file=answers)
        faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
