"""Reward functions in TRL's signature, and what they are made of."""

from .answer_tokens import answer_tokens
from .answers import (
    accepted_answers,
    answer_exact_match,
    answer_f1,
    answer_score,
    extract_answer,
    extract_boxed,
)
from .arpo import arpo_reward, arpo_reward_released, executed_tools, make_arpo_reward
from .choices import same_choice
from .exact import exact_match_reward
from .format import format_conditions, format_share_reward, make_format_share_reward
from .math_equality import looks_mathematical, math_equal
from .quantities import read_number, same_quantity

__all__ = [
    "accepted_answers",
    "answer_exact_match",
    "answer_f1",
    "answer_score",
    "answer_tokens",
    "arpo_reward",
    "arpo_reward_released",
    "exact_match_reward",
    "executed_tools",
    "extract_answer",
    "extract_boxed",
    "format_conditions",
    "format_share_reward",
    "looks_mathematical",
    "make_arpo_reward",
    "make_format_share_reward",
    "math_equal",
    "read_number",
    "same_choice",
    "same_quantity",
]
