"""What the loss of `APPOTrainer` gets: advantages as computed by hand, for initial rollouts alone."""

import pytest
import torch
from appo_records import advantages_by_hand, record, share_of_even_ids
from tiny import appo_trainer, dataset, length_reward

SAFEGUARDED = {"released_safeguards": True, "learning_rate": 0.1, "lr_scheduler_type": "constant"}
VARIANTS = [
    {},
    {"future_weight": 0.0},
    {"branch_credit": "prefix"},
    {"branch_credit": "single_group"},
    {"branches_per_rollout": 0},
    {"branch_schedule": "rollout"},
    {"branch_schedule": "rollout", "branch_credit": "prefix", "num_branch_rounds": 2, "branches_per_rollout": 1},
    {"num_branch_rounds": 2, "branches_per_rollout": 2},
    {"gradient_accumulation_steps": 4, "per_device_train_batch_size": 2},
    {"gradient_accumulation_steps": 1, "future_half_life": 4.0, "future_clip": [0.5, 2.0]},
    {"num_iterations": 2, "steps_per_generation": 4},
    {"num_iterations": 2, "steps_per_generation": 4, "branch_credit": "prefix"},
    SAFEGUARDED,
    SAFEGUARDED | {"branch_credit": "prefix"},
]


def trained(tmp_path, reward_funcs=length_reward, **options):
    """A trainer that has done its steps, and what they were."""
    ours = appo_trainer(tmp_path, reward_funcs=reward_funcs, **{"max_steps": 5, **options})
    steps = record(ours)
    ours.train()
    assert len(steps) == ours.state.global_step
    return ours, steps


def is_fresh(args, number) -> bool:
    """Whether a generation begins with this optimizer step."""
    lasts_for = args.steps_per_generation // args.gradient_accumulation_steps * args.num_iterations
    return number % lasts_for == 0


def assert_as_by_hand(args, step, reward=share_of_even_ids):
    """The advantage of each sampled token, and which rows stay in the loss."""
    expected, kept = advantages_by_hand(step, args, is_fresh(args, step.number), reward)
    advantages, tool_mask = step.joined("advantages"), step.joined("tool_mask")
    assert len(expected) == len(advantages) == args.per_device_train_batch_size * args.gradient_accumulation_steps
    advantages = advantages if advantages.dim() == 2 else advantages.unsqueeze(1).expand_as(tool_mask)
    for row, (of_row, is_kept) in enumerate(zip(expected, kept, strict=True)):
        places = list(of_row)
        assert tool_mask[row, places].tolist() == [float(is_kept)] * len(places)
        assert advantages[row, places].tolist() == pytest.approx(list(of_row.values()), rel=1e-3, abs=1e-3)


# --- advantages


@pytest.mark.parametrize("options", VARIANTS, ids=lambda options: "-".join(map(str, options)) or "defaults")
def test_the_loss_gets_the_advantages_that_follow_from_rewards_trees_and_log_ratios(tmp_path, options):
    ours, steps = trained(tmp_path, **options)
    for step in steps:
        assert_as_by_hand(ours.args, step)
    assert max(step.joined("advantages").abs().max() for step in steps) > 0


@pytest.mark.parametrize("credit", ["dual_group", "single_group", "prefix"])
def test_rows_without_a_score_get_no_advantage_and_are_in_no_group(tmp_path, credit):
    def is_unscored(ids):
        return len(ids) == 18  # one search

    def picky(completions, completion_ids, **kwargs):
        scores = length_reward(completions, completion_ids)
        return [None if is_unscored(ids) else score for ids, score in zip(completion_ids, scores, strict=True)]

    def reward(trajectory):
        return None if is_unscored(trajectory.token_ids) else share_of_even_ids(trajectory)

    ours, steps = trained(tmp_path, picky, branch_credit=credit)
    unscored = [is_unscored(each.token_ids) for step in steps for tree in step.trees for each in tree.trajectories]
    assert 10 < sum(unscored) < len(unscored) - 10
    for step in steps:
        assert_as_by_hand(ours.args, step, reward)


def test_the_released_safeguards_leave_rows_out_of_the_loss(tmp_path):
    _, steps = trained(tmp_path, **SAFEGUARDED)
    rows = [row for step in steps[1:4] for row in step.joined("tool_mask")]
    assert 0 < sum(bool(row.sum() == 0) for row in rows) < len(rows)


def scored_branches(rewards):
    """A reward function that gives the branches of a phase these rewards, in their order."""

    def reward(completions, completion_ids, rollout_parent, **kwargs):
        if rollout_parent[0] is None:
            return length_reward(completions, completion_ids)
        return rewards[: len(completions)]

    return reward


def first_advantages(tmp_path, rewards, credit):
    _, steps = trained(tmp_path, scored_branches(rewards), branch_credit=credit, max_steps=1)
    return steps[0].joined("advantages")


RISING = [number * number / 100 for number in range(24)]  # twelve branches of each of two prompts


@pytest.mark.parametrize(("credit", "sees_places"), [("dual_group", 0), ("single_group", 0), ("prefix", 1)])
def test_permuting_the_rewards_of_branches_changes_the_trained_advantages(tmp_path, credit, sees_places):
    before = first_advantages(tmp_path / "before", RISING, credit)
    across_prompts = first_advantages(tmp_path / "across", RISING[::-1], credit)
    assert (before - across_prompts).abs().max() > 0.1
    # which branch of its prompt has a reward matters for prefixes alone
    within_prompts = first_advantages(tmp_path / "within", RISING[11::-1] + RISING[:11:-1], credit)
    assert (before - within_prompts).abs().max() > 0.1 if sees_places else torch.allclose(before, within_prompts)


# --- ratios


@pytest.mark.parametrize("options", [{}, {"num_iterations": 2, "steps_per_generation": 4}], ids=["1", "2"])
def test_ratios_are_one_where_a_generation_begins_and_move_after_that(tmp_path, options):
    ours, _ = trained(tmp_path, max_steps=6, **options)
    for number, log in enumerate(ours.state.log_history[:6]):
        if number in (0, 4):
            assert 0 < log["appo/ratio_noise_floor"] < 1e-6 and "appo/ratio" not in log
        else:
            assert log["appo/ratio_std"] > 1e-3 and log["appo/future_value_std"] > 1e-3
            assert log["appo/ratio"] != 1.0 and "appo/ratio_noise_floor" not in log


def test_noise_of_the_forward_is_logged_and_moves_no_ratio_before_the_weights_do(tmp_path):
    ours = appo_trainer(tmp_path, max_steps=6)
    for layer in ours.model.model.layers:
        layer.self_attn.attention_dropout = 0.5
    views, view = [], ours.view

    def noting(rows):
        views.append(view(rows))
        return views[-1]

    ours.view = noting
    ours.train()
    moved = [seen.log_ratios.abs().max().item() for seen in views]
    assert [move > 0 for move in moved] == [False, True, True, True, False, True]
    assert all((views[number].future_values == 1).all() for number in (0, 4))
    floors = [log.get("appo/ratio_noise_floor") for log in ours.state.log_history[:6]]
    assert floors[0] > 1e-3 and floors[4] > 1e-3 and floors[1] is None


# --- rows


@pytest.mark.parametrize("options", [{}, {"num_branch_rounds": 2, "branches_per_rollout": 1, "num_iterations": 2}])
def test_the_loss_gets_the_initial_rollouts_and_no_token_of_a_branch(tmp_path, options):
    _, steps = trained(tmp_path, **options)
    for step in steps:
        ids, mask = step.joined("completion_ids"), step.joined("completion_mask").bool()
        rollouts = [tree.trajectories[place] for tree in step.trees for place in range(4)]
        assert all(len(tree.trajectories) > 4 for tree in step.trees)
        assert [row[of_row].tolist() for row, of_row in zip(ids, mask, strict=True)] == [
            rollout.token_ids for rollout in rollouts
        ]
        assert step.joined("tool_mask")[mask].tolist() == [
            value for rollout in rollouts for value in rollout.sampled_mask
        ]


def test_branches_start_at_sampled_words_and_each_at_a_place_of_its_own(tmp_path):
    ours, steps = trained(tmp_path)
    for step in steps:
        for tree, first in zip(step.trees, step.firsts, strict=True):
            starts = [(branch.parent, branch.fork) for branch in tree.trajectories[first:]]
            assert len(set(starts)) == len(starts) == 12
            for parent, position in starts:
                rollout = tree.trajectories[parent]
                assert rollout.parent is None and rollout.sampled_mask[position]
                assert not ours.blank_tokens[rollout.token_ids[position]]


def test_branches_grow_anew_in_each_iteration_and_once_with_the_schedule_rollout(tmp_path):
    options = {"num_iterations": 2, "steps_per_generation": 4, "max_steps": 4}
    _, anew = trained(tmp_path / "anew", **options)
    sizes = {tree.prompt_id: [] for tree in anew[0].trees + anew[1].trees}
    for step in anew:
        for tree in step.trees:
            sizes[tree.prompt_id].append(len(tree.trajectories))
    assert list(sizes.values()) == [[16, 28]] * 4
    _, once = trained(tmp_path / "once", branch_schedule="rollout", **options)
    assert {len(tree.trajectories) for step in once for tree in step.trees} == {16}


def test_a_dataset_that_does_not_fill_one_generation_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"takes 8 prompts .* = 32 / 4\), but the training dataset has 7"):
        appo_trainer(tmp_path, train_dataset=dataset(7))
