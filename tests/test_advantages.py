import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_agentic.algorithms import attribute_advantages, group_advantages, shared_prefix_mean
from trl_agentic.types import BranchTree, Kind, Segment, Status, Trajectory

NAN = math.nan
rewards_of_rows = st.sampled_from([-1.0, 0.0, 0.25, 1.0, 1.1, NAN])


def grow(*rows):
    """Shared lengths of a tree whose rows are (own length, parent, fork)."""
    trajectories = []
    for index, (length, parent, fork) in enumerate(rows):
        prefix = [] if parent is None else trajectories[parent].token_ids[:fork]
        tokens = tuple(prefix + [1000 * index + position for position in range(fork, length)])
        segment = Segment(tokens, sampled=True, logprobs=(0.0,) * len(tokens))
        kind = Kind.INITIAL if parent is None else Kind.BRANCH
        trajectories.append(Trajectory((segment,), Status.FINISHED, kind, parent, fork))
    return torch.tensor(BranchTree("p", (0,), tuple(trajectories)).shared_lengths())


@st.composite
def trees(draw):
    rows = []
    for index in range(draw(st.integers(1, 6))):
        length = draw(st.integers(0, 8))
        parent = draw(st.one_of(st.none(), st.integers(0, index - 1))) if index else None
        fork = 0 if parent is None else draw(st.integers(0, min(length, rows[parent][0])))
        rows.append((length, parent, fork))
    rewards = draw(st.lists(rewards_of_rows, min_size=len(rows), max_size=len(rows)))
    return rows, rewards


def owners(rows, index, token):
    """The rows that contain token `token` of row `index`, found by walking up and down the tree."""

    def node(row, position):  # the row in which the token at this position was born
        while rows[row][1] is not None and position < rows[row][2]:
            row = rows[row][1]
        return row

    born = node(index, token)
    return [row for row in range(len(rows)) if token < rows[row][0] and node(row, token) == born]


def advantages_by_hand(rewards):
    scored = [reward for reward in rewards if not math.isnan(reward)]
    if not scored:
        return [0.0] * len(rewards)
    mean = sum(scored) / len(scored)
    if len(scored) == 1:
        return [0.0] * len(rewards)
    std = math.sqrt(sum((reward - mean) ** 2 for reward in scored) / (len(scored) - 1))
    return [0.0 if math.isnan(reward) else (reward - mean) / (std + 1e-4) for reward in rewards]


def softmax_mean_by_hand(values):
    weights = [math.exp(value) for value in values]
    return sum(w * value for w, value in zip(weights, values, strict=True)) / sum(weights)


def attribution_by_hand(rows, rewards, num_tokens, mode):
    own = advantages_by_hand(rewards)
    result = [[0.0] * num_tokens for _ in rows]
    for i, (length, _, _) in enumerate(rows):
        innermost = list(range(len(rows)))
        for t in range(length):
            sharing = owners(rows, i, t)
            if len(sharing) > 1:
                innermost = sharing
            value = own[i]
            if mode != "soft" and math.isnan(rewards[i]):
                value = 0.0
            elif mode == "hard":
                among = [own[j] for j in sharing if not math.isnan(rewards[j])]
                value = sum(among) / len(among)
            elif mode in ("softmax", "winner"):
                among = [rewards[j] for j in innermost if not math.isnan(rewards[j])]
                shared = softmax_mean_by_hand(among) if mode == "softmax" else max(among)
                base = softmax_mean_by_hand(among) if mode == "softmax" else sum(among) / len(among)
                value = shared if len(sharing) > 1 else rewards[i] - base
            result[i][t] = value
    return torch.tensor(result)


@settings(max_examples=150, deadline=None)
@given(tree=trees(), mode=st.sampled_from(["soft", "hard", "softmax", "winner"]))
def test_every_mode_matches_nested_loops_over_the_tree(tree, mode):
    rows, rewards = tree
    got = attribute_advantages(torch.tensor(rewards), grow(*rows), 9, mode)
    torch.testing.assert_close(got, attribution_by_hand(rows, rewards, 9, mode), atol=1e-4, rtol=1e-4)


@settings(max_examples=60, deadline=None)
@given(groups=st.integers(1, 5).flatmap(lambda g: st.lists(st.lists(rewards_of_rows, min_size=g, max_size=g),
                                                         min_size=1, max_size=4)))  # fmt: skip
def test_group_advantages_match_the_definition(groups):
    got = group_advantages(torch.tensor(groups).flatten(), len(groups[0]))
    expected = torch.tensor([advantages_by_hand(group) for group in groups]).flatten()
    torch.testing.assert_close(got, expected, atol=2e-3, rtol=1e-4)  # 1e-7 of rounding over a denominator of 1e-4


def test_group_advantages_by_hand():
    rewards = torch.tensor([1.0, 0.0, 3.0, 3.0])
    assert group_advantages(rewards, 2, "none").tolist() == [0.5, -0.5, 0.0, 0.0]
    assert group_advantages(rewards, 2).tolist() == pytest.approx([0.5 / 0.70721, -0.5 / 0.70721, 0, 0], abs=1e-4)
    assert group_advantages(rewards, 2, "batch").tolist() == pytest.approx([1 / 3, -1 / 3, 0, 0], abs=1e-4)


def test_rows_without_a_reward_count_in_no_statistic():
    alone = group_advantages(torch.tensor([1.0, 0.0]), 2)
    assert group_advantages(torch.tensor([1.0, NAN, 0.0, NAN]), 4).tolist() == [alone[0], 0.0, alone[1], 0.0]
    assert group_advantages(torch.tensor([NAN, NAN, 1.0, NAN]), 2).tolist() == [0.0] * 4
    assert group_advantages(torch.tensor([NAN, 2.0]), 2, "none").tolist() == [0.0, 0.0]


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_a_group_of_one_has_no_advantage(scale):
    assert group_advantages(torch.tensor([5.0]), 1, scale).tolist() == [0.0]
    assert group_advantages(torch.tensor([5.0, 1.0]), 1, scale).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("unscored", [0, 1, 2])
def test_a_row_without_a_reward_is_in_no_mean_and_gets_no_advantage(unscored):
    shared = grow((3, None, 0), (3, 0, 2), (3, 0, 2))
    rewards = torch.tensor([1.0, 2.0, 4.0]).index_fill(0, torch.tensor([unscored]), NAN)
    got = attribute_advantages(rewards, shared, 3, "hard", advantages=torch.tensor([1.0, 2.0, 4.0]))
    scored = [row for row in range(3) if row != unscored]
    mean = sum([1.0, 2.0, 4.0][row] for row in scored) / 2
    assert got[unscored].tolist() == [0.0, 0.0, 0.0]
    assert all(got[row].tolist() == [mean, mean, [1.0, 2.0, 4.0][row]] for row in scored)


def test_tokens_before_the_fork_average_both_branches():
    shared = grow((4, None, 0), (3, 0, 2))
    got = shared_prefix_mean(torch.tensor([1.0, -0.5]), shared, 5)
    assert got.tolist() == [[0.25, 0.25, 1.0, 1.0, 0.0], [0.25, 0.25, -0.5, 0.0, 0.0]]


@pytest.mark.parametrize("mode", ["soft", "hard"])
def test_without_branches_every_token_has_the_advantage_of_its_row(mode):
    rewards = torch.tensor([1.0, 0.0, 0.5])
    got = attribute_advantages(rewards, grow((2, None, 0), (3, None, 0), (1, None, 0)), 3, mode)
    a, b, c = group_advantages(rewards, 3).tolist()
    assert got.tolist() == [[a, a, 0], [b, b, b], [c, 0, 0]]


def test_given_advantages_replace_the_groups_own():
    shared = grow((2, None, 0), (2, 0, 1))
    given_ones = torch.tensor([4.0, 2.0])
    got = {m: attribute_advantages(torch.zeros(2), shared, 2, m, given_ones).tolist() for m in ("soft", "hard")}
    assert got == {"soft": [[4.0, 4.0], [2.0, 2.0]], "hard": [[3.0, 4.0], [3.0, 2.0]]}


def test_rows_that_share_everything_have_the_mean_everywhere():
    shared = grow((3, None, 0), (3, 0, 3))
    got = attribute_advantages(torch.tensor([1.0, 0.0]), shared, 3, "hard", torch.tensor([0.7, -0.7]))
    assert got.tolist() == [[0.0] * 3] * 2
    winner = attribute_advantages(torch.tensor([1.0, 0.0]), shared, 3, "winner")
    assert winner.tolist() == [[1.0] * 3] * 2


def test_winner_measures_individual_tokens_against_the_segment_they_leave():
    # Row 1 leaves row 0 after 2 tokens, row 2 leaves row 1 after 4; row 3 shares nothing.
    shared = grow((3, None, 0), (5, 0, 2), (5, 1, 4), (2, None, 0))
    got = attribute_advantages(torch.tensor([0.0, 1.0, 0.5, 0.5]), shared, 5, "winner")
    assert got.tolist() == [
        [1.0, 1.0, -0.5, 0.0, 0.0],  # best of rows 0, 1, 2; then 0 minus their mean 0.5
        [1.0, 1.0, 1.0, 1.0, 0.25],  # best of rows 1, 2 from token 2 on; then 1 minus their mean 0.75
        [1.0, 1.0, 1.0, 1.0, -0.25],
        [0.0, 0.0, 0.0, 0.0, 0.0],  # 0.5 minus the mean of the whole group
    ]


def test_softmax_measures_individual_tokens_against_the_segment_they_leave():
    shared = grow((3, None, 0), (5, 0, 2), (5, 1, 4), (2, None, 0))
    got = attribute_advantages(torch.tensor([0.0, 1.0, 0.5, 0.5]), shared, 5, "softmax")
    outer, inner = softmax_mean_by_hand([0.0, 1.0, 0.5]), softmax_mean_by_hand([1.0, 0.5])
    group = softmax_mean_by_hand([0.0, 1.0, 0.5, 0.5])
    expected = [
        [outer, outer, 0 - outer, 0, 0],
        [outer, outer, inner, inner, 1 - inner],
        [outer, outer, inner, inner, 0.5 - inner],
        [0.5 - group, 0.5 - group, 0, 0, 0],
    ]
    torch.testing.assert_close(got, torch.tensor(expected))


def test_an_unscored_sibling_leaves_softmax_and_winner_to_the_others():
    shared = grow((2, None, 0), (2, 0, 1), (2, 0, 1))
    for mode in ("softmax", "winner"):
        got = attribute_advantages(torch.tensor([1.0, 1.0, NAN]), shared, 2, mode)
        assert got.tolist() == [[1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]
        assert attribute_advantages(torch.tensor([NAN, NAN, NAN]), shared, 2, mode).tolist() == [[0.0, 0.0]] * 3


def gradient(advantages, tokens, sampled):
    """Gradient of the clipped token-mean loss at ratio 1, in a table of logits with one row per distinct context."""
    contexts = {}
    for row in tokens:
        for end in range(len(row)):
            contexts.setdefault(tuple(row[:end]), len(contexts))
    torch.manual_seed(0)
    table = torch.randn(len(contexts), 7, dtype=torch.float64, requires_grad=True)
    losses, weights = [], []
    for i, row in enumerate(tokens):
        for t, token in enumerate(row):
            logprob = table[contexts[tuple(row[:t])]].log_softmax(-1)[token]
            ratio = (logprob - logprob.detach()).exp()
            advantage = advantages[i, t]
            losses.append(-torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage))
            weights.append(float(sampled[i][t]))
    mask = torch.tensor(weights, dtype=torch.float64)
    ((torch.stack(losses) * mask).sum() / mask.sum()).backward()
    return table.grad


def test_hard_and_soft_give_the_same_gradient_at_ratio_one():
    tokens = [[1, 2, 3, 4], [1, 2, 5, 6, 0], [1, 2, 5, 1], [3, 3]]
    sampled = [[1, 0, 1, 1], [1, 0, 1, 1, 1], [1, 0, 1, 1], [1, 1]]  # the second token is a tool's
    shared = grow((4, None, 0), (5, 0, 2), (4, 1, 3), (2, None, 0))
    rewards = torch.tensor([1.0, 0.0, 0.3, -1.0], dtype=torch.float64)
    modes = ("soft", "hard", "winner")
    soft, hard, winner = (gradient(attribute_advantages(rewards, shared, 5, m), tokens, sampled) for m in modes)
    torch.testing.assert_close(soft, hard, atol=1e-12, rtol=0)
    assert soft.abs().max() > 0.01 and (soft - winner).abs().max() > 0.01


def test_hard_and_soft_differ_under_a_sequence_mean():
    # Row 1 is longer, so a mean over sequences weighs the shared token differently in the two rows.
    shared = grow((2, None, 0), (4, 0, 1))
    lengths = shared.diagonal().unsqueeze(1)
    per_token = {m: attribute_advantages(torch.tensor([1.0, 0.0]), shared, 4, m) / lengths for m in ("soft", "hard")}
    assert not torch.allclose(per_token["soft"][:, 0].sum(), per_token["hard"][:, 0].sum())


def test_what_does_not_belong_together_is_refused():
    shared = grow((2, None, 0), (2, 0, 1))
    with pytest.raises(ValueError, match="`mode` must be one of soft, hard, softmax, winner; got 'loud'"):
        attribute_advantages(torch.zeros(2), shared, 2, "loud")
    with pytest.raises(ValueError, match=r"got shapes \[\(3,\), \(2, 2\), \(3,\)\]"):
        attribute_advantages(torch.zeros(3), shared, 2)
    with pytest.raises(ValueError, match=r"shape \(5,\) do not form groups of 2"):
        group_advantages(torch.zeros(5), 2)
    with pytest.raises(ValueError, match="`scale` must be one of group, batch, none; got 'std'"):
        group_advantages(torch.zeros(4), 2, "std")


@pytest.fixture(scope="module")
def grpo_step(tmp_path_factory):
    """One generation of TRL's trainer on a random model: rewards and scale in, TRL's own advantages out."""
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
    from trl import GRPOConfig, GRPOTrainer

    vocabulary = Tokenizer(
        models.WordLevel({word: i for i, word in enumerate("<pad> <eos> a b c d e f".split())}, "a")
    )
    vocabulary.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=vocabulary, pad_token="<pad>", eos_token="<eos>")
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "head_dim": 8}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "vocab_size": 8, "max_position_embeddings": 32}
    model = Qwen3ForCausalLM(Qwen3Config(**sizes, **heads, pad_token_id=0, eos_token_id=1, bos_token_id=None))
    scripted = []
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **kwargs: list(scripted),
        args=GRPOConfig(
            output_dir=str(tmp_path_factory.mktemp("grpo")),
            per_device_train_batch_size=8,
            num_generations=4,
            max_completion_length=2,
            report_to="none",
            use_cpu=True,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["a", "b"]}),
        processing_class=tokenizer,
    )

    def step(rewards, scale):
        scripted[:] = [None if math.isnan(reward) else reward for reward in rewards]
        trainer.scale_rewards = scale
        rows = [{"prompt": "a"}] * 4 + [{"prompt": "b"}] * 4
        return trainer._generate_and_score_completions(rows)["advantages"]

    return step


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_group_advantages_are_those_of_trl_bit_for_bit(grpo_step, scale):
    generator = torch.Generator().manual_seed(0)
    cases = torch.randn(4, 8, generator=generator)
    cases[1, [0, 5]] = NAN
    cases[2, :4], cases[2, 4:7] = 0.1, NAN  # no spread; a single reward
    cases[3, :4] = NAN  # an unscored group
    for rewards in cases:
        expected = grpo_step(rewards.tolist(), scale)
        assert group_advantages(rewards, 4, scale).tolist() == expected.tolist()
        assert len(set(expected.tolist())) > 4 or rewards.isnan().sum() >= 3
