"""Training under real FSDP2 on two processes: weights reach the engine whole, numbers stay float32, shards shards."""

import functools
import re
import tempfile
from pathlib import Path

import pytest
from launching import FSDP2, TWO_SHARDS, measured_by

# One phase of a sleeping engine: its weights come back before its cache, and it sleeps again after it.
AWAKE = "sync, wake weights, wake kv_cache, sleep 2"
SLOW = ("arpo", "lora", "save")  # ARPO with evaluation and a reference model that follows, adapters, checkpoints
EACH = pytest.mark.parametrize("scenario", ["appo", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])


@pytest.fixture(scope="module")
def ranks():
    """What both processes measured in a scenario, each of which is run once."""
    with tempfile.TemporaryDirectory() as folder:

        @functools.cache
        def run(scenario):
            output_dir = Path(folder) / ("save" if scenario == "resume" else scenario)
            how = {"launcher": TWO_SHARDS, "environment": FSDP2}
            return measured_by("fsdp2_processes.py", output_dir, arguments=[scenario], **how)

        yield run


@EACH
def test_a_run_ends_on_both_processes_with_one_set_of_weights(ranks, scenario):
    first, second = ranks(scenario)
    assert first["steps"] == second["steps"] == (2 if scenario in ("arpo", "save") else 3)
    assert first["weights"] == second["weights"] and first["weights_at_syncs"] == second["weights_at_syncs"]
    assert len(set(first["weights_at_syncs"])) == first["steps"] + ("eval" in str(first["logs"]))


@EACH
def test_after_each_sync_the_engine_has_the_policy_and_parameters_are_sharded(ranks, scenario):
    for of_rank in ranks(scenario):
        assert len(of_rank["gaps"]) >= of_rank["steps"]
        assert max(of_rank["gaps"]) < 1e-3  # the engine against a plain float32 model with the gathered weights
        assert all(of_rank["is_sharded"])


def test_a_forward_pass_without_gradient_leaves_norm_and_embeddings_whole(ranks):
    """What accelerate does, and why a sync begins with sharding again."""
    assert ranks("appo")[0]["whole_before_sync"] == ["model.embed_tokens.weight", "model.norm.weight"]


@EACH
def test_a_sleeping_engine_gets_its_weights_before_each_phase(ranks, scenario):
    for of_rank in ranks(scenario):
        phases = of_rank["events"][1:]  # TRL puts it to sleep before the first
        assert re.fullmatch(rf"({AWAKE}(, )?)+", ", ".join(phases)), phases


@EACH
def test_logprobs_and_entropies_are_float32(ranks, scenario):
    assert all(of_rank["dtypes"] == ["torch.float32"] for of_rank in ranks(scenario))
    for log in ranks(scenario)[0]["logs"]:
        # the policy computes in bfloat16, the engine in float32
        assert log.get("sampling/sampling_logp_difference/mean", 0.0) < 1e-2


def test_ratios_rise_above_the_rounding_that_the_noise_floor_shows(ranks):
    fresh, moved, _ = ranks("appo")[0]["logs"][:3]
    assert 1e-4 < fresh["appo/ratio_noise_floor"] < 2e-2  # bfloat16, no longer hidden by equal rounding
    assert moved["appo/ratio_std"] > 2 * fresh["appo/ratio_noise_floor"]
    assert moved["appo/branch_logprob_gap"] < 1e-2


@EACH
def test_the_base_of_an_adapter_stays_bit_equal(ranks, scenario):
    assert all(of_rank["frozen_is_equal"] == (scenario == "lora") for of_rank in ranks(scenario))


@pytest.mark.slow
def test_a_checkpoint_is_resumed_with_its_weights_and_its_optimizer(ranks):
    for saved, resumed in zip(ranks("save"), ranks("resume"), strict=True):
        assert resumed["weights_at_syncs"] == [saved["weights"]] and resumed["weights"] != saved["weights"]
        assert (resumed["steps"], resumed["optimizer_steps"]) == (3, 3)
        assert max(resumed["gaps"]) < 1e-3
