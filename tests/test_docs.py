"""The code in the guides runs as it stands, they name all there is, and their links lead somewhere."""

import re
from pathlib import Path

import pytest
import yaml
from trl import GRPOConfig

from trl_agentic import APPOConfig, ARPOConfig
from trl_agentic.trainers import APPOTrainer

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
APPO = (REPOSITORY / "docs" / "appo.md").read_text(encoding="utf-8")


def blocks(name: str) -> list[str]:
    """Blocks of Python in a guide."""
    text = (REPOSITORY / "docs" / name).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


BLOCKS = [
    pytest.param(block, name, id=f"{name} block {number}")
    for name in ("tools.md", "appo.md", "answers.md")
    for number, block in enumerate(blocks(name), start=1)
]


def anchors(page: Path) -> set[str]:
    """Where links into a page can lead: its headings, as GitHub spells them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize(("block", "name"), BLOCKS)
def test_each_block_of_a_guide_runs(block, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, f"docs/{name}", "exec"), {"__name__": "example"})


def test_what_the_released_code_does_is_described_as_the_option_sets_it(tmp_path):
    section = APPO.split("### What the released code does")[1].split("\n## ")[0]
    described = {}
    for text in re.findall(r"^- `(\w+: \w+)`:", section, re.MULTILINE):
        described |= yaml.safe_load(text)
    defaults = vars(APPOConfig(str(tmp_path), use_cpu=True, bf16=False))
    released = vars(APPOConfig(str(tmp_path), use_cpu=True, bf16=False, released=True))
    changed = {name: released[name] for name in APPOConfig.__annotations__ if released[name] != defaults[name]}
    assert changed == described | {"released": True} and len(described) == 3


def test_every_option_of_trl_whose_default_differs_for_appo_is_named(tmp_path):
    said = (REPOSITORY / "docs" / "options.md").read_text(encoding="utf-8").split("## APPO")[1]
    shared = {"output_dir": str(tmp_path), "use_cpu": True, "bf16": False, "per_device_train_batch_size": 16}
    ours, arpo = vars(APPOConfig(**shared)), vars(ARPOConfig(**shared))
    differing = {name for name in GRPOConfig.__dataclass_fields__ if ours[name] != arpo[name]}
    assert {"disable_dropout", "num_generations"} <= differing
    assert [name for name in differing if f"`{name}`" not in said] == []


def test_the_ablations_of_appo_are_options_with_values_that_it_takes(tmp_path):
    table = APPO.split("### Ablations")[1].split("\n### ")[0]
    changes = [yaml.safe_load(text) for text in re.findall(r"`(\w+: [^`]+)`", table)]
    assert len(changes) >= 8
    for change in changes:
        APPOConfig(str(tmp_path), use_cpu=True, bf16=False, **change)


def test_the_readme_shows_what_the_tiny_recipe_of_appo_says_of_its_trees(tmp_path):
    recipe = yaml.safe_load((REPOSITORY / "configs" / "appo_tiny_geo_cpu.yaml").read_text(encoding="utf-8"))
    options = {name: value for name, value in recipe.items() if name in APPOConfig.__dataclass_fields__}
    said = APPOConfig(**options | {"output_dir": str(tmp_path)}).describe_trajectories()
    assert f"\n{said}\n" in (REPOSITORY / "README.md").read_text(encoding="utf-8")


def test_every_option_of_appo_is_described_with_its_default(tmp_path):
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", APPO, re.MULTILINE))
    assert set(rows) == set(APPOConfig.__annotations__)
    args = vars(APPOConfig(str(tmp_path), use_cpu=True, bf16=False, gradient_accumulation_steps=2))
    assert rows.pop("steps_per_generation") == "8 optimizer steps" and args["steps_per_generation"] == 16
    for name, said in rows.items():
        assert yaml.safe_load(said.strip("`").strip('"')) == args[name], name


def test_every_metric_of_appo_is_described_and_no_other():
    logged = {
        name
        for path in (REPOSITORY / "trl_agentic" / "trainers").glob("*.py")
        for name in re.findall(r'"(appo/\w+)(?=")', path.read_text(encoding="utf-8"))
    }
    described = set(re.findall(r"`(appo/\w+)`", APPO))
    assert logged == described


def test_every_phase_of_an_optimizer_step_of_appo_is_described():
    assert set(re.findall(r"`time/(\w+)_s`", APPO)) == {*APPOTrainer.phases, "train"}


@pytest.mark.parametrize("page", PAGES, ids=[page.relative_to(REPOSITORY).as_posix() for page in PAGES])
def test_links_between_files_lead_to_files(page):
    links = re.findall(r"\]\((?!https?://|#)([^)#\s]+)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=[page.relative_to(REPOSITORY).as_posix() for page in PAGES])
def test_links_to_a_heading_lead_to_one(page):
    links = re.findall(r"\]\((?!https?://)([^)#\s]*)#([^)\s]+)", page.read_text(encoding="utf-8"))
    assert [link for link in links if link[1] not in anchors(page.parent / link[0] if link[0] else page)] == []
