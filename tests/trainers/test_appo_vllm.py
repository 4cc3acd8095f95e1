"""APPO's branches under a real colocated vLLM: sampled by the weights of the moment, from prefixes in the cache."""

import pytest
from launching import measured_by

BLOCK_SIZE = 32
FRESH = (0, 3)  # the optimizer steps with which a generation begins


@pytest.fixture(scope="module", params=["sync", pytest.param("async", marks=pytest.mark.slow)])
def figures(request, tmp_path_factory):
    """What `appo_vllm_checks.py` measured in generations of three optimizer steps."""
    return measured_by("appo_vllm_checks.py", tmp_path_factory.mktemp("appo_vllm"), arguments=[request.param])


def test_every_optimizer_step_grows_its_branches(figures):
    assert [phase["step"] for phase in figures["phases"]] == [0, 1, 2, 3, 4]
    assert all(phase["branches"] == 24 and phase["in_the_middle"] > 0 for phase in figures["phases"])
    assert all(phase["tokens"] > 100 for phase in figures["phases"])


def test_the_engines_logprobs_of_branches_are_those_of_the_weights_of_the_moment(figures):
    assert all(phase["current"] < 1e-3 for phase in figures["phases"])


def test_once_the_weights_have_moved_those_of_the_generation_would_give_other_logprobs(figures):
    for phase in figures["phases"]:
        assert phase["old"] < 1e-3 if phase["step"] in FRESH else phase["old"] > 0.1


def test_ratios_move_with_the_weights_and_are_one_where_a_generation_begins(figures):
    for step, logged in enumerate(figures["logged"]):
        if step in FRESH:
            assert logged["appo/ratio_noise_floor"] < 1e-3 and "appo/ratio" not in logged
        else:
            assert logged["appo/ratio_std"] > 0.01


def test_a_branch_recomputes_at_most_one_cache_block_of_its_rollout(figures):
    first = figures["phases"][0]["served"]
    assert len(first) == 24
    assert all(length - cached <= BLOCK_SIZE for length, cached in first)
    assert sum(cached for _, cached in first) > 0


def test_no_block_that_old_weights_computed_is_served_after_an_optimizer_step(figures):
    for phase in figures["phases"]:
        if phase["step"] not in FRESH:
            assert any(length > BLOCK_SIZE and not cached for length, cached in phase["served"])
