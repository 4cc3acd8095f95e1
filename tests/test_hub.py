import huggingface_hub.constants
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from huggingface_hub import HfApi, ModelCard
from huggingface_hub.errors import HfHubHTTPError
from loopback_hub import LoopbackHub
from small_trees import small_rows

from trl_agentic.hub import TrajectoryWriter, push_trajectories, run_model_card, trajectory_schema


@pytest.fixture
def start_hub(monkeypatch):
    """Starts loopback hubs in a session that is offline otherwise."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    return LoopbackHub


@pytest.mark.parametrize("has_ended", [True, False], ids=["a run that has ended", "a run that goes on"])
def test_trajectories_arrive_on_the_hub_as_a_dataset_with_a_card(start_hub, tmp_path, has_ended):
    writer = TrajectoryWriter(tmp_path)
    writer.write(0, small_rows())
    if has_ended:
        writer.compact()
    before = sorted(tmp_path.rglob("*"))
    with start_hub(token="secret") as hub:
        api = HfApi(endpoint=hub.url, token="secret")
        address = push_trajectories(tmp_path, "me/rollouts", model_id="me/agent", private=True, api=api)
        push_trajectories(tmp_path, "me/rollouts", api=api)  # the repository exists now
        files = hub.repos["dataset", "me/rollouts"]

    assert address.startswith(hub.url) and sorted(tmp_path.rglob("*")) == before
    assert hub.private == {("dataset", "me/rollouts")}
    assert hub.commits == [("me/rollouts", "Upload trajectories")] * 2
    assert sorted(files) == ["README.md", "trajectories.parquet"]
    assert pq.read_table(pa.BufferReader(files["trajectories.parquet"])).num_rows == 2
    card = files["README.md"].decode()
    assert "data_files: trajectories.parquet" in card and "2 rollouts" in card
    for column in trajectory_schema([]).names:
        assert f"| `{column}` |" in card


def test_the_card_of_the_dataset_links_the_model_only_when_there_is_one(start_hub, tmp_path):
    writer = TrajectoryWriter(tmp_path)
    writer.write(0, small_rows())
    writer.compact()
    with start_hub() as hub:
        api = HfApi(endpoint=hub.url, token=False)
        push_trajectories(tmp_path, "me/a", api=api)
        push_trajectories(tmp_path, "me/b", model_id="me/agent", api=api)

    assert b"[me/agent](https://huggingface.co/me/agent)" not in hub.repos["dataset", "me/a"]["README.md"]
    assert b"[me/agent](https://huggingface.co/me/agent)" in hub.repos["dataset", "me/b"]["README.md"]


def test_pushing_what_was_never_written_says_what_to_pass(tmp_path):
    with pytest.raises(FileNotFoundError, match="Pass the output directory of a run with save_trajectories=True"):
        push_trajectories(tmp_path, "me/rollouts")


def test_a_wrong_token_is_an_error(start_hub, tmp_path):
    writer = TrajectoryWriter(tmp_path)
    writer.write(0, small_rows())
    writer.compact()
    with start_hub(token="secret") as hub, pytest.raises(HfHubHTTPError, match="401"):
        push_trajectories(tmp_path, "me/rollouts", api=HfApi(endpoint=hub.url, token="wrong"))


def test_the_run_folder_goes_to_the_hub_without_the_parts(start_hub, tmp_path):
    writer = TrajectoryWriter(tmp_path)
    writer.write(0, small_rows())
    writer.compact()
    small_card().save(tmp_path / "README.md")
    with start_hub() as hub:
        api = HfApi(endpoint=hub.url, token=False)
        api.create_repo("me/agent")
        # The patterns are those of `Trainer.push_to_hub`.
        api.upload_folder(repo_id="me/agent", folder_path=tmp_path, ignore_patterns=["_*", "checkpoint-*"])

    assert sorted(hub.repos["model", "me/agent"]) == ["README.md", "trajectories.parquet"]


def small_card(**settings):
    defaults = {
        "trainer_name": "ARPO",
        "paper": {"title": "Agentic Reinforced Policy Optimization", "id": "2507.19849", "citation": "@article{arpo}"},
        "tags": ["trl", "arpo", "trl"],
        "model_name": "agent",
    }
    return run_model_card(**(defaults | settings))


def test_the_model_card_names_method_and_paper_and_tags():
    card = small_card(base_model="org/base", dataset_name="org/questions")

    assert card.data.base_model == "org/base"
    assert card.data.tags == ["generated_from_trainer", "arpo", "trl"]
    assert "trained with ARPO, a method introduced in [Agentic Reinforced Policy Optimization]" in card.text
    assert "https://huggingface.co/papers/2507.19849" in card.text
    assert "@article{arpo}" in card.text
    assert 'model="agent"' in card.text  # the quick start


def test_results_settings_and_rollouts_stand_before_the_versions():
    card = small_card(results="| before | after |\n", settings={"initial_rollouts": 8, "branch_gate": "a|b"})
    positions = [
        card.text.index(text)
        for text in (
            "### Results\n\n| before | after |\n",
            "### Settings\n\n",
            "| `branch_gate` | `a\\|b` |\n| `initial_rollouts` | `8` |\n",
            "### Rollouts",
            "### Framework versions",
        )
    ]

    assert positions == sorted(positions)


def test_a_model_from_a_local_checkpoint_links_nowhere():
    card = small_card()

    assert "fine-tuned version of a local checkpoint" in card.text
    assert "None" not in card.text
    assert "### Results" not in card.text


def test_a_saved_card_can_be_read_again(tmp_path):
    small_card(base_model="org/base").save(tmp_path / "README.md")

    assert ModelCard.load(tmp_path / "README.md").data.base_model == "org/base"
