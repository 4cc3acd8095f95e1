"""A trainer with its real colocated vLLM: parity, weight sync, prefix cache."""

import pytest
from launching import measured_by

BLOCK_SIZE = 32


@pytest.fixture(scope="module", params=["sync", pytest.param("async", marks=pytest.mark.slow)])
def figures(request, tmp_path_factory):
    """What `vllm_checks.py` measured, with vLLM's scheduling as on a CPU and as on a GPU."""
    return measured_by("vllm_checks.py", tmp_path_factory.mktemp("vllm"), arguments=[request.param])


def test_engine_and_trainer_agree_on_logprobs_and_entropies(figures):
    assert figures["at_start"]["tokens"] > 200
    assert figures["at_start"]["logprobs"] < 1e-3
    assert figures["at_start"]["entropies"] < 1e-3


def test_weights_that_changed_visibly_reach_the_engine_with_the_sync_and_not_before(figures):
    assert figures["changed_not_synced"]["logprobs"] > 0.1
    assert figures["changed_and_synced"]["logprobs"] < 1e-3
    assert figures["changed_and_synced"]["entropies"] < 1e-3


def test_a_branch_recomputes_at_most_one_cache_block_of_its_prefix(figures):
    assert figures["branches"] >= 6
    assert len(figures["children"]) == figures["branches"]
    for child in figures["children"]:
        assert child["prefix"] - child["cached"] <= BLOCK_SIZE


def test_every_prompt_gets_its_eight_trajectories(figures):
    assert figures["trees"] == [8] * 6


def test_training_changes_every_parameter_and_logs_what_it_did(figures):
    changed, total = figures["changed_parameters"]
    assert changed == total
    for name in ("reward", "branch/rate", "rollout/tool_calls", "rollout/tokens_per_s", "completions/clipped_ratio"):
        assert name in figures["logged"]
    assert figures["logged"]["sampling/sampling_logp_difference/mean"] < 1e-3
