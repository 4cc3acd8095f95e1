"""A tree of two rollouts, and its rows."""

from trl_agentic.rollout.trajectory_rows import trajectory_rows
from trl_agentic.types import BranchTree, CallStatus, Kind, Segment, Status, ToolCall, ToolResult, Trajectory

CALL = ToolCall("search", {"query": "Perú", "limits": [1, {"deep": None}]})
RESULT = ToolResult(CALL, "Lima", CallStatus.OK, latency_s=0.25, cached=True)


def small_tree(prompt_id="p0"):
    """Two sampled tokens and a result of one, then two endings: the parent's of two tokens, the child's of one."""
    trunk = (
        Segment((10, 11), True, logprobs=(-0.5, -1.0), entropies=(0.25, 0.5)),
        Segment((12,), False, results=(RESULT,)),
    )
    parent = Trajectory((*trunk, Segment((13, 14), True, (-2.0, -0.25), (1.0, 0.0))), Status.FINISHED)
    child = Trajectory((*trunk, Segment((15,), True, (-4.0,))), Status.TRUNCATED, Kind.BRANCH, parent=0, fork=3)
    return BranchTree(prompt_id, (1, 2), (parent, child))


def small_rows(step=0, trees=None, reward=1.0, functions=("f",)):
    trees = trees or [small_tree()]
    count = sum(len(tree.trajectories) for tree in trees)
    return trajectory_rows(
        trees,
        step=step,
        model_version=step,
        messages=[[{"role": "assistant", "content": "Lima"}]] * count,
        rewards=[reward] * count,
        reward_functions={name: [reward] * count for name in functions},
        advantages=[[0.5] * 5] * count,
    )
