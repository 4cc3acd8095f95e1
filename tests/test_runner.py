"""Accuracy on held-out questions."""

import numpy as np
from datasets import Dataset
from word_tokenizer import ids, word_tokenizer

from trl_agentic.evaluation import Accuracy, measure_accuracy
from trl_agentic.rewards import exact_match_reward
from trl_agentic.rollout.tag_dialect import TagDialect
from trl_agentic.types import BranchTree, Segment, Status, Trajectory


def search(query: str) -> str:
    """
    Look something up.

    Args:
        query: What to look for.
    """
    return query


def tree(*answers: str) -> BranchTree:
    trajectories = []
    for answer in answers:
        tokens = ids(f"<answer> \\boxed{{ {answer} }} </answer> <eos>")
        trajectories.append(Trajectory((Segment(tokens, True, (-1.0,) * len(tokens)),), Status.FINISHED))
    return BranchTree("p", (3,), tuple(trajectories))


def test_scores_are_questions_by_samples():
    asked = {}

    def sample(prompts, num_generations, temperature, rows):
        asked.update(prompts=prompts, num_generations=num_generations, temperature=temperature, hops=rows[1]["hops"])
        return [tree("a", "b"), tree("c", "c")]

    questions = Dataset.from_dict({"prompt": ["what is a", "what is c"], "answer": [["a"], ["c"]], "hops": [1, 2]})
    dialect = TagDialect(word_tokenizer(), [search])
    accuracy = measure_accuracy(sample, dialect, questions, exact_match_reward, num_samples=2, temperature=0.5)
    assert accuracy.scores.tolist() == [[1.0, 0.0], [1.0, 1.0]] and accuracy.mean == 0.75
    assert accuracy.sampled_tokens == 6.0 and accuracy.tool_calls == 0.0
    assert asked == {"prompts": ["what is a", "what is c"], "num_generations": 2, "temperature": 0.5, "hops": 2}


def test_the_shares_of_several_processes_are_joined_in_order_and_weighted():
    parts = [Accuracy(np.ones((1, 2)), 1.0, 10.0), Accuracy(np.zeros((3, 2)), 2.0, 30.0)]
    joined = Accuracy.merged(parts)
    assert joined.scores.tolist() == [[1, 1], [0, 0], [0, 0], [0, 0]]
    assert joined.tool_calls == 1.75 and joined.sampled_tokens == 25.0
