"""What `push_run` uploads for a trainer, to a Hub on this machine."""

import huggingface_hub.constants
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import transformers.utils.hub
from loopback_hub import LoopbackHub
from tiny import appo_trainer, trainer

from trl_agentic.hub import push_run

TOKEN = "hf_of_this_test"


@pytest.fixture
def hub(monkeypatch):
    """The Hub of this process, in a session that is offline otherwise."""
    with LoopbackHub(token=TOKEN) as running:
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", running.url)
        monkeypatch.setattr(transformers.utils.hub, "_hf_api", None)  # one that knows another endpoint, perhaps
        yield running


@pytest.mark.parametrize("make", [trainer, appo_trainer])
def test_model_card_and_rollouts_go_to_two_repositories(hub, tmp_path, make):
    ours = make(tmp_path, max_steps=1, hub_model_id="me/agent", hub_token=TOKEN, hub_private_repo=True)
    ours.train()
    push_run(ours)
    assert set(hub.repos) == hub.private == {("model", "me/agent"), ("dataset", "me/agent-rollouts")}
    model, dataset = hub.repos["model", "me/agent"], hub.repos["dataset", "me/agent-rollouts"]
    assert {"README.md", "model.safetensors", "tokenizer.json"} <= set(model)
    assert set(dataset) == {"README.md", "trajectories.parquet"}
    pushed = pq.read_table(pa.BufferReader(dataset["trajectories.parquet"]))
    assert pushed.equals(pq.read_table(tmp_path / "trajectories.parquet")) and pushed.num_rows >= 8
    assert b"[me/agent](https://huggingface.co/me/agent)" in dataset["README.md"]


def test_rollouts_that_were_not_saved_are_not_pushed(hub, tmp_path):
    push_run(trainer(tmp_path, save_trajectories=False, hub_model_id="me/agent", hub_token=TOKEN))
    assert set(hub.repos) == {("model", "me/agent")} and not hub.private


def test_a_run_that_sampled_nothing_is_told_so_behind_its_model(hub, tmp_path):
    with pytest.raises(FileNotFoundError, match="There is no .*trajectories.parquet"):
        push_run(trainer(tmp_path, hub_model_id="me/agent", hub_token=TOKEN))
    assert "model.safetensors" in hub.repos["model", "me/agent"]
