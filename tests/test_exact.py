"""Accuracy as a reward function."""

import pytest

from trl_agentic.rewards import exact_match_reward


def test_one_for_an_accepted_answer_zero_for_another_and_none_without_answers():
    completions = [
        [{"role": "assistant", "content": "<answer> \\boxed{ Havana } </answer>"}],
        [{"role": "assistant", "content": "<answer> \\boxed{ Paris } </answer>"}],
        [{"role": "assistant", "content": "no box"}],
        [{"role": "assistant", "content": "<answer> \\boxed{ Havana } </answer>"}],
    ]
    answers = [["La Habana", "Havana"], ["Havana"], ["Havana"], None]
    assert exact_match_reward(completions, answers) == [1.0, 0.0, 0.0, None]


def test_a_box_inside_a_tool_result_is_no_answer():
    completion = [
        {"role": "tool", "name": "search", "content": "\\boxed{ Havana }"},
        {"role": "assistant", "content": "?"},
    ]
    assert exact_match_reward([completion], ["Havana"]) == [0.0]


@pytest.mark.parametrize(
    "text",
    [
        "<search>x</search><result>\\boxed{17}</result>",
        "<search>x</search><result>\\boxed{17}</result>I give up.",
        "<search>x</search>\n<result>\n\\boxed{17}",  # the end was cut off
        "<search>x</search><result>a</result><search>y</search><result>\\boxed{17} and",
    ],
)
def test_a_box_inside_a_result_of_a_text_is_no_answer(text):
    assert exact_match_reward([text], ["17"]) == [0.0]
    assert exact_match_reward([f"\\boxed{{17}}{text.replace('17', '3')}"], ["17"]) == [1.0]
