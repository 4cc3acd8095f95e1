"""TRL's environments and stateful tools in `ARPOTrainer`: same contract as in `GRPOTrainer`, in trees."""

import copy
import logging
import threading
import time
from pathlib import Path

import pytest
import torch
from counting_environments import Copied, Forked, Moody, Replayed
from datasets import Dataset
from dialect_tokenizers import encode, smollm2
from tiny import config, dataset, length_reward, scripted_engine, search, tiny_model_path, trainer
from transformers import Qwen3Config, Qwen3ForCausalLM
from trl import GRPOConfig, GRPOTrainer
from word_tokenizer import ids, word_tokenizer, words

from trl_agentic.rollout.engine import Script, ScriptedEngine
from trl_agentic.tools import ReplayMiss
from trl_agentic.tools.state import Origin, ToolState
from trl_agentic.trainers import ARPOTrainer
from trl_agentic.trainers.environments import Environments
from trl_agentic.trainers.rollout_states import observed


class Shelf(Copied):
    """Looks things up, counts how often, and is worth as much."""

    def reset(self, answer=None, **row) -> str:
        self.row = row
        self.closed = False
        super().reset()
        return f" need {self.goal}"

    goal = "b"

    def search(self, query: str) -> str:
        """
        Look something up.

        Args:
            query: What to look for.
        """
        self.add()
        return f"{query} is {self.counts[-1]}"

    def close(self) -> None:
        self.closed = True


class Locked(Shelf):
    """Can only be replayed."""

    def __init__(self):
        self.lock = threading.Lock()


def environment_trainer(output_dir, factory=Shelf, reward_funcs=None, tools=None, engine=None, **options):
    train_dataset = options.pop("train_dataset", None)
    return ARPOTrainer(
        tiny_model_path(),
        reward_funcs,
        config(output_dir, **options),
        dataset() if train_dataset is None else train_dataset,
        processing_class=word_tokenizer(),
        tools=tools,
        environment_factory=factory,
        engine=engine or scripted_engine(),
    )


def score(ours, questions=None, groups=2):
    """One scored generation, as training makes it."""
    ours.model.train()
    questions = dataset(groups) if questions is None else questions
    return ours._generate_and_score_completions([dict(row) for row in questions for _ in range(4)])


# --- the contract of TRL


@pytest.mark.parametrize("factory", [Shelf, Locked])
def test_training_with_an_environment_needs_no_other_reward(tmp_path, factory):
    ours = environment_trainer(tmp_path, factory, initial_rollouts=2)
    ours.train()
    assert ours.state.global_step == 2
    logged = [entry for entry in ours.state.log_history if f"rewards/{factory.__name__}/mean" in entry]
    assert len(logged) == 2 and all(entry[f"rewards/{factory.__name__}/mean"] > 0 for entry in logged)
    made = "rollout/state/copy" if factory is Shelf else "rollout/state/replay"
    assert logged[0][made] == 8.0 and logged[0]["rollout/state/broken"] == 0.0
    assert any(entry["branch/rate"] > 0 for entry in logged)


def test_the_reward_of_each_row_is_that_of_its_own_environment(tmp_path):
    seen = {}

    def curious(completions, environments, rollout_calls, rollout_parent, **kwargs):
        seen.update(locals())
        return [0.0] * len(completions)

    ours = environment_trainer(tmp_path, Shelf, curious, initial_rollouts=2)
    score(ours)
    assert ours.reward_func_names == ["curious", "Shelf"]
    executed = [sum(call["status"] == "ok" for call in calls) for calls in seen["rollout_calls"]]
    assert ours._rewards_per_func[:, 1].tolist() == executed and len(set(executed)) > 1
    assert [each.counts[-1] for each in seen["environments"]] == executed
    assert len(set(map(id, seen["environments"]))) == 8
    assert any(parent is not None for parent in seen["rollout_parent"])
    # the first call of every rollout answers 1, the second 2: a branch counts on from its branch point
    for calls in seen["rollout_calls"]:
        assert [call["result"] for call in calls] == [f"a is {number + 1}" for number in range(len(calls))]


def test_reset_gets_the_row_and_its_answer_ends_the_prompt_of_the_whole_group(tmp_path):
    seen = {}

    def curious(prompts, environments, **kwargs):
        seen.update(locals())
        return [0.0] * len(prompts)

    engine = scripted_engine()
    questions = dataset(2)
    score(environment_trainer(tmp_path, Shelf, curious, engine=engine), questions)
    assert [prompt[-1]["content"] for prompt in seen["prompts"]] == ["what is a need b"] * 4 + ["what is b need b"] * 4
    assert {words(request.token_ids[:5]) for request in engine.requests} == {"what is a need b", "what is b need b"}
    assert [each.row["prompt"] for each in seen["environments"]] == [
        row["prompt"] for row in questions for _ in "1234"
    ]


def test_prompts_completions_masks_and_rewards_equal_those_of_trls_own_tool_loop(tmp_path, monkeypatch):
    """Without branches and with an engine that repeats itself, tokens, masks, resets and rewards are TRL's."""
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    tokenizer = smollm2("qwen3")
    call = encode(tokenizer, '<tool_call>\n{"name": "search", "arguments": {"query": "a"}}\n</tool_call><|im_end|>')
    answer = encode(tokenizer, "It is \\boxed{b}.<|im_end|>")

    def continued(token_ids):
        """A question that ends with b asks twice, any other once."""
        text = tokenizer.decode(token_ids)
        asks = 2 if "what is b" in text else 1
        return answer if text.count("<tool_response>") == asks else call

    resets = []

    class Spied(Copied):  # without `close`, which TRL takes for a tool
        search = Shelf.search

        def reset(self, **row):
            resets.append(row)
            super().reset()
            return " need b"

    def model():
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "head_dim": 8}
        heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "tie_word_embeddings": True}
        return Qwen3ForCausalLM(Qwen3Config(vocab_size=len(tokenizer), **sizes, **heads))

    options = {"max_completion_length": 256, "max_tool_calling_iterations": 5}
    ours = ARPOTrainer(
        model(),
        character_reward,
        config(tmp_path / "ours", tool_dialect="template", **options),
        dataset(),
        processing_class=tokenizer,
        environment_factory=Spied,
        engine=ScriptedEngine(lambda request: Script(tuple(continued(request.token_ids)))),
    )
    arguments = {
        name: value
        for name, value in vars(config(tmp_path / "theirs", **options)).items()
        if name in GRPOConfig.__dataclass_fields__ and GRPOConfig.__dataclass_fields__[name].init
    } | {"generation_batch_size": None, "vllm_importance_sampling_cap": None}
    theirs = GRPOTrainer(
        model(),
        character_reward,
        GRPOConfig(**arguments),
        dataset(),
        processing_class=smollm2("qwen3"),
        environment_factory=Spied,
    )
    theirs._generate_single_turn = lambda prompt_ids, *_, **__: (
        [list(continued(ids)) for ids in prompt_ids],
        [[-1.0] * len(continued(ids)) for ids in prompt_ids],
    )
    seen = []
    for each in (ours, theirs):
        resets.clear()
        outputs = spied(each)
        score(each)
        prompt_ids, completion_ids, mask, completions = outputs["generated"][:4]
        texts = [[(turn["role"], turn.get("name")) for turn in completion] for completion in completions]
        rewards = outputs["rewards"].tolist()
        seen.append(([list(ids) for ids in prompt_ids], completion_ids, mask, texts, rewards, each.reward_func_names))
        each.resets = list(resets)
    assert seen[0] == seen[1]
    assert [row[1] for row in seen[0][4]] == [1.0] * 4 + [2.0] * 4
    assert ours.resets == theirs.resets[::4]  # one for a group, where TRL resets one for each row
    assert ours.reward_weights.equal(theirs.reward_weights)


def character_reward(completions, **kwargs):
    return [float(sum(len(turn["content"]) for turn in completion)) for completion in completions]


def spied(trainer):
    """Notes what a trainer generates and the rewards it gives."""
    outputs = {}
    generate, calculate = trainer._generate, trainer._calculate_rewards

    def noting_generate(prompts):
        outputs["generated"] = generate(prompts)
        return outputs["generated"]

    def noting_calculate(*given):
        outputs["rewards"] = calculate(*given)
        return outputs["rewards"]

    trainer._generate, trainer._calculate_rewards = noting_generate, noting_calculate
    return outputs


def test_an_environment_without_reset_is_refused_as_in_trl(tmp_path):
    class Bare:
        def search(self, query: str) -> str:
            return query

    with pytest.raises(
        ValueError, match="Each environment instance returned by `environment_factory` must define a c"
    ):
        environment_trainer(tmp_path, Bare, length_reward)
    with pytest.raises(TypeError, match="must be callable, got `int`"):
        environment_trainer(tmp_path, {"a": 3}, length_reward)


def test_an_environment_without_a_reward_needs_another_source(tmp_path):
    class Silent(Forked):
        get_reward = None

    with pytest.raises(ValueError, match="No reward source provided"):
        environment_trainer(tmp_path, Silent)


def test_an_async_reward_is_awaited(tmp_path):
    class Judged(Shelf):
        async def get_reward(self):
            return 10.0 + self.counts[-1]

    ours = environment_trainer(tmp_path, Judged)
    score(ours)
    assert ours._rewards_per_func.min() >= 10


def test_the_reward_of_the_environment_has_weight_one_beside_weights_of_the_users_own(tmp_path):
    ours = environment_trainer(tmp_path, Shelf, [length_reward], reward_weights=[0.25])
    assert ours.reward_weights.tolist() == [0.25, 1.0]


def test_environments_are_closed_after_the_rewards_and_not_before(tmp_path):
    seen = []

    def curious(completions, environments, **kwargs):
        assert not any(each.closed for each in environments)
        seen.extend(environments)
        return [0.0] * len(completions)

    ours = environment_trainer(tmp_path, Shelf, curious)
    score(ours)
    assert len(seen) == 8 and all(each.closed for each in seen)
    assert ours.environments is None and ours.rollout_states.owned == []
    assert score(ours)["advantages"].shape == (8,)  # and the next generation begins anew


@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), ReplayMiss("search", "{}", Path("cache")), RuntimeError("engine")],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("factory", [Shelf, Locked])
def test_environments_are_closed_though_the_rollout_raises(tmp_path, error, factory):
    opened, closed = [], []

    class Watched(factory):
        def reset(self, **row):
            opened.append(self)
            return super().reset(**row)

        def __deepcopy__(self, memo):
            if factory is Locked:
                raise TypeError("cannot be copied")
            other = Watched()
            other.reset()
            return other

        def close(self):
            closed.append(self)

    class Failing(ScriptedEngine):
        def poll(self):
            if len(self.requests) > 8:  # every rollout has had a result
                raise error
            return super().poll()

    call = ids("<search> a </search>")
    ours = environment_trainer(tmp_path, Watched, engine=Failing(lambda request: Script(call)))
    with pytest.raises(type(error)):
        score(ours)
    assert len(opened) == 2 + 8 and set(map(id, closed)) == set(map(id, opened)) and len(closed) == len(opened)
    assert ours.rollout_states.owned == []


def test_roots_are_closed_though_setting_them_up_is_interrupted(tmp_path):
    closed = []

    class Watched(Shelf):
        def close(self):
            closed.append(self)

    ours = environment_trainer(tmp_path, Watched)
    settle = ours.runtime.settle

    def interrupted(*args):
        ours.runtime.settle = settle
        raise KeyboardInterrupt

    ours.runtime.settle = interrupted
    with pytest.raises(KeyboardInterrupt):
        score(ours)
    assert len(closed) == 2 and ours.rollout_states.roots == []


def test_evaluation_has_an_environment_per_row(tmp_path):
    ours = environment_trainer(tmp_path, initial_rollouts=2, per_device_eval_batch_size=8)
    ours.eval_dataset = dataset(4)
    figures = ours.evaluate()
    assert figures["eval_rewards/Shelf/mean"] > 0 and figures["eval_branch/rate"] == 0.0


def test_rollouts_by_hand_reset_and_close_too(tmp_path):
    ours = environment_trainer(tmp_path)
    trees = ours.rollout([row["prompt"] for row in dataset(2)], 2)
    assert words(trees[0].prompt_ids) == "what is a need b"
    assert ours.rollout_states.owned == []


def test_without_a_dataset_the_environment_brings_the_prompt(tmp_path):
    ours = ARPOTrainer(
        tiny_model_path(),
        args=config(tmp_path, max_steps=1),
        processing_class=word_tokenizer(),
        environment_factory=Shelf,
        engine=scripted_engine(),
    )
    ours.train()
    assert words(ours._trees[0].prompt_ids) == "need b"
    with pytest.raises(ValueError, match="Set `max_steps`"):
        ARPOTrainer(
            tiny_model_path(),
            args=config(tmp_path, max_steps=-1),
            processing_class=word_tokenizer(),
            environment_factory=Shelf,
        )
    with pytest.raises(ValueError, match="requires a `train_dataset` with an `environment` column"):
        ARPOTrainer(
            tiny_model_path(),
            args=config(tmp_path),
            processing_class=word_tokenizer(),
            environment_factory={"a": Shelf},
        )


# --- several environments in one run


class Garden(Shelf):
    goal = "d"

    def python(self, code: str) -> str:
        """
        Run something.

        Args:
            code: What to run.
        """
        return code

    def get_reward(self):
        return -1.0


def test_each_row_meets_its_own_environment_and_reads_of_its_own_tools_alone(tmp_path):
    questions = Dataset.from_list(
        [
            {"prompt": [{"role": "user", "content": "what is a"}], "environment": name, "answer": "b"}
            for name in ("shelf", "garden")
        ]
    )
    ours = environment_trainer(tmp_path, {"shelf": Shelf, "garden": Garden}, train_dataset=questions)
    score(ours, questions)
    assert ours.reward_func_names == ["Shelf", "Garden"]
    rewards = ours._rewards_per_func
    assert rewards[:4, 1].isnan().all() and rewards[4:, 0].isnan().all() and (rewards[4:, 1] == -1).all()
    assert [words(tree.prompt_ids)[-1] for tree in ours._trees] == ["b", "d"]
    assert "<python>" not in ours._prompt_dialects["shelf"].system_prompt
    assert "<python>" in ours._prompt_dialects["garden"].system_prompt


def test_a_tool_of_another_environment_is_no_tool_here(tmp_path):
    questions = Dataset.from_list([{"prompt": [{"role": "user", "content": "what is a"}], "environment": "shelf"}] * 2)
    call, answer = ids("<python> 1 </python>"), ids("<answer> \\boxed{ b } </answer> <eos>")
    engine = ScriptedEngine(lambda request: Script(answer if "<result>" in words(request.token_ids) else call))
    ours = environment_trainer(tmp_path, {"shelf": Shelf, "garden": Garden}, train_dataset=questions, engine=engine)
    score(ours, questions)
    (record, *_), *_ = ours._batch.extra_fields["rollout_calls"]
    assert record["status"] == "error" and "There is no tool named 'python' here" in record["result"]


def test_an_unknown_environment_is_refused_as_in_trl(tmp_path):
    questions = Dataset.from_list([{"prompt": [{"role": "user", "content": "a"}], "environment": "attic"}] * 2)
    ours = environment_trainer(tmp_path, {"shelf": Shelf}, train_dataset=questions)
    with pytest.raises(ValueError, match="Example has `environment='attic'`, which is not among.*\\['shelf'\\]"):
        score(ours, questions)


def test_tools_of_one_name_must_take_the_same_parameters(tmp_path):
    class Other(Shelf):
        def search(self, query: str, depth: int) -> str:
            return query

    with pytest.raises(ValueError, match="Two environments define `search` with different parameters"):
        Environments({"a": Shelf, "b": Other})


# --- what fails


def test_a_reset_that_fails_costs_its_prompt_and_no_more(tmp_path, caplog):
    class Fragile(Shelf):
        def reset(self, prompt, **row):
            if prompt[-1]["content"].endswith("b"):
                raise ConnectionError("no server")
            return super().reset(**row)

    ours = environment_trainer(tmp_path, Fragile)
    with caplog.at_level(logging.WARNING):
        batch = score(ours)
    assert ours._batch.extra_fields["rollout_status"] == ["finished"] * 4 + ["error"] * 4
    assert ours._rewards_per_func[4:].isnan().all() and not ours._rewards_per_func[:4].isnan().any()
    assert batch["advantages"].isfinite().all() and ours._metrics["train"]["rollout/state/broken"] == [0.5]
    assert "1 of 2 environments could not be set up" in caplog.text and "no server" in caplog.text


class Unforkable(Shelf):
    """Its forks fail from the `first_bad` on."""

    first_bad = 0
    num_forks = 0

    def fork(self):
        Unforkable.num_forks += 1
        if Unforkable.num_forks > self.first_bad:
            raise RuntimeError("the server takes no more sessions")
        twin = type(self)()
        vars(twin).update(copy.deepcopy(vars(self)))
        return twin


def test_an_environment_that_can_never_be_forked_stops_the_run_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(Unforkable, "num_forks", 0)
    ours = environment_trainer(tmp_path, Unforkable, initial_rollouts=2)
    with pytest.raises(
        RuntimeError, match=r"8 of 8 states of `Unforkable` could not be forked.*`fork.*no more sessions"
    ):
        ours.train()


def test_a_fork_that_fails_is_said_once_per_generation(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(Unforkable, "num_forks", 0)
    monkeypatch.setattr(Unforkable, "first_bad", 3)
    ours = environment_trainer(tmp_path, Unforkable, initial_rollouts=2)
    with caplog.at_level("WARNING"):
        score(ours)
    assert caplog.text.count("5 of 8 states of `Unforkable` could not be forked") == 1
    assert "no more sessions" in caplog.text and "Let `Unforkable` have a `fork()`" in caplog.text


def test_an_environment_that_will_not_close_is_given_up(tmp_path):
    class Stubborn(Shelf):
        closings = 0

        def close(self):
            Stubborn.closings += 1
            raise OSError("busy")

    ours = environment_trainer(tmp_path, Stubborn)
    score(ours)
    assert Stubborn.closings == 8 + 2  # those of the rows, and the two that were reset
    assert not ours._rewards_per_func.isnan().any()


def test_a_reset_that_always_fails_stops_the_run_at_once(tmp_path):
    class Hopeless(Shelf):
        def reset(self, **row):
            raise ConnectionError("no server")

    with pytest.raises(
        RuntimeError, match="No environment could be set up, for none of the first 2 prompts.*no server"
    ):
        score(environment_trainer(tmp_path, Hopeless))


def test_a_row_whose_state_was_lost_is_unscored_and_says_so(tmp_path, caplog):
    class Odd(Moody, Shelf):
        def add(self, amount: int = 1) -> str:
            return super().add(amount)

        def search(self, query: str) -> str:
            """
            Look something up.

            Args:
                query: What to look for.
            """
            return self.add()

    with caplog.at_level(logging.WARNING):
        ours = environment_trainer(tmp_path, Odd, initial_rollouts=2)
        score(ours, groups=4)
    lost = [parent is not None for parent in ours._batch.extra_fields["rollout_parent"]]
    assert ours._rewards_per_func[:, 0].isnan().tolist() == lost and any(lost) and not all(lost)
    assert ours._metrics["train"]["rollout/replay_mismatches"] == [float(sum(lost))]
    assert "could not be replayed" in caplog.text


def test_an_environment_that_gives_every_rollout_another_prompt_is_refused(tmp_path):
    class Restless(Locked):
        episodes = iter("abcdefgh" * 9)

        def reset(self, **row):
            super().reset(**row)
            return f" {next(self.episodes)}"

    with pytest.raises(ValueError, match="all trajectories of a group share one prompt.*fork"):
        score(environment_trainer(tmp_path, Restless))


def test_what_reset_returns_must_be_a_text():
    state = ToolState(Origin())
    for observation, expected in ((None, "a"), (" b", "a b")):
        state.observation = observation
        assert observed("a", state) == expected
        assert observed([{"role": "user", "content": "a"}], state)[-1]["content"] == expected
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
    assert observed(parts, state)[-1]["content"] == [*parts[-1]["content"], {"type": "text", "text": " b"}]
    assert len(parts[-1]["content"]) == 1
    state.observation = ["b"]
    with pytest.raises(TypeError, match="must return a text that continues the prompt, or None, got `list`"):
        observed("a", state)


# --- stateful tools


def test_a_stateful_tool_needs_no_environment(tmp_path):
    class Notebook:
        def __init__(self, pages=()):
            self.pages = list(pages)

        def search(self, query: str) -> str:
            """
            Look something up.

            Args:
                query: What to look for.
            """
            self.pages.append(query)
            return f"{len(self.pages)} a"

        def fork(self):
            return Notebook(self.pages)

    notebook = Notebook()
    ours = trainer(tmp_path, tools=(notebook.search,), initial_rollouts=2)
    score(ours)
    assert notebook.pages == [] and ours.environments is None
    calls = ours._batch.extra_fields["rollout_calls"]
    for records in calls:
        assert [record["result"] for record in records] == [f"{number + 1} a" for number in range(len(records))]
    assert max(map(len, calls)) == 2 and ours._metrics["train"]["rollout/state/fork"] == [8.0]


def test_tools_without_a_state_leave_no_trace_of_states_in_the_metrics(tmp_path):
    ours = trainer(tmp_path)
    score(ours)
    assert not any(name.startswith("rollout/state") for name in ours._metrics["train"])


def test_plain_tools_stand_beside_an_environment(tmp_path):
    ours = environment_trainer(tmp_path, Forked, length_reward, tools=[search])
    assert ours.runtime.names == ["search", "add"]
    score(ours)
    assert ours._metrics["train"]["rollout/state/fork"] == [8.0]
    with pytest.raises(ValueError, match="Two tools are .*'search'"):
        environment_trainer(tmp_path, Shelf, tools=[search])


def test_an_environment_that_no_call_has_touched_is_replayed_by_a_reset_alone(tmp_path):
    ours = environment_trainer(tmp_path, Replayed, length_reward, tools=[search])
    score(ours)
    assert ours._metrics["train"]["rollout/state/replay"] == [8.0]
    assert ours._metrics["train"]["rollout/replay_mismatches"] == [0.0]


def test_a_state_that_is_not_ready_at_the_deadline_scores_nothing_and_the_run_goes_on(tmp_path):
    class Slow(Shelf):
        def fork(self):
            time.sleep(0.4)
            other = type(self)()
            other.reset()
            return other

    ours = environment_trainer(tmp_path, Slow, rollout_timeout_s=1.0, num_tool_workers=1, tool_timeout_s=2.0)
    batch = score(ours, groups=2)
    statuses = ours._batch.extra_fields["rollout_status"]
    assert "deadline" in statuses and batch["advantages"].isfinite().all()
    unscored = ours._rewards_per_func[:, 0].isnan().tolist()
    assert all(missing for missing, status in zip(unscored, statuses, strict=True) if status == "deadline")


@pytest.mark.parametrize("seconds", [float("inf"), float("nan"), 1e12, 0.0])
def test_a_deadline_of_calls_that_no_thread_can_wait_for_is_refused(tmp_path, seconds):
    with pytest.raises(ValueError, match="`tool_timeout_s` must be above 0 and finite"):
        config(tmp_path, tool_timeout_s=seconds)
