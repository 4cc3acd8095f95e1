"""Accuracy as a reward function."""

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
