import io

import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from trl_agentic.evaluation import Accuracy, BeforeAfter, Panel, plot_training_curves
from trl_agentic.evaluation.curves import COLORS, smooth

# Four questions with two samples each; the first two need one hop, the others two.
HOPS = [1, 1, 2, 2]
BEFORE = [[1, 0], [1, 0], [0, 0], [0, 0]]  # 1/4; one hop 1/2, two hops 0
AFTER = [[1, 1], [1, 1], [1, 0], [1, 0]]  # 3/4; one hop 1, two hops 1/2


def accuracy(scores):
    return Accuracy(np.array(scores, dtype=float), tool_calls=1.0, sampled_tokens=10.0)


@pytest.fixture
def table():
    before = {"sampled": accuracy(BEFORE), "greedy": accuracy([[1], [0], [0], [0]])}
    after = {"sampled": accuracy(AFTER), "greedy": accuracy([[1], [1], [0], [0]])}
    return BeforeAfter(before, after, HOPS)


def test_rows_hold_the_measurements_then_the_first_of_them_per_hop(table):
    figures = [(row.name, row.num_questions, row.before, row.after, row.gain.difference) for row in table.rows]

    assert figures == [
        ("pass@1, sampled", 4, 0.25, 0.75, 0.5),
        ("pass@1, greedy", 4, 0.25, 0.5, 0.25),
        ("pass@1, sampled, 1 hop", 2, 0.5, 1.0, 0.5),
        ("pass@1, sampled, 2 hops", 2, 0.0, 0.5, 0.5),
    ]


def test_an_equal_gain_on_every_question_has_an_interval_of_no_width(table):
    # Every question gains half a point at temperature 1; greedy, one of four gains: its mean is 0 with (3/4)^4 = 0.32.
    assert table.rows[0].gain == (0.5, 0.5, 0.5)
    assert table.rows[1].gain.low == 0.0
    assert table.rows[1].gain.high == 0.75


def test_markdown_gives_percentages_and_points_with_their_sign(table):
    assert table.markdown().splitlines() == [
        "|  | questions | before | after | gain (points) | 95 % interval |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        "| pass@1, sampled | 4 | 25.0 % | 75.0 % | +50.0 | +50.0 to +50.0 |",
        "| pass@1, greedy | 4 | 25.0 % | 50.0 % | +25.0 | +0.0 to +75.0 |",
        "| pass@1, sampled, 1 hop | 2 | 50.0 % | 100.0 % | +50.0 | +50.0 to +50.0 |",
        "| pass@1, sampled, 2 hops | 2 | 0.0 % | 50.0 % | +50.0 | +50.0 to +50.0 |",
    ]


def test_a_loss_carries_a_minus():
    table = BeforeAfter({"greedy": accuracy([[1], [1]])}, {"greedy": accuracy([[0], [0]])}, level=0.9)

    assert table.rows[0].cells == ("pass@1, greedy", "2", "100.0 %", "0.0 %", "-100.0", "-100.0 to -100.0")
    assert "90 % interval" in table.markdown()


def test_the_terminal_shows_what_markdown_shows(table):
    screen = io.StringIO()
    Console(file=screen, width=120).print(table.rich())

    for row in table.rows:
        for cell in row.cells:
            assert cell.removeprefix("pass@1, ") in screen.getvalue()  # the title says it once


def test_sides_with_other_measurements_are_refused():
    one, other = {"sampled": accuracy([[1]])}, {"greedy": accuracy([[1]])}
    with pytest.raises(ValueError, match=r"got \['sampled'\] before and \['greedy'\] after"):
        BeforeAfter(one, other)
    with pytest.raises(ValueError, match="at least one"):
        BeforeAfter({}, {})


def test_a_window_of_three_averages_neighbours_and_at_the_ends_the_two_that_exist():
    # (0+3)/2, (0+3+6)/3, (3+6+0)/3, (6+0+3)/3, (0+3)/2
    assert smooth(np.array([0.0, 3.0, 6.0, 0.0, 3.0]), share=0.6) == pytest.approx([1.5, 3, 3, 3, 1.5])


def test_a_short_series_is_not_smoothed():
    assert smooth(np.array([2.0])) == pytest.approx([2.0])
    assert smooth(np.array([1.0, 5.0, 2.0])) == pytest.approx([1.0, 5.0, 2.0])


def run_log(num_steps):
    return [
        {"step": step, "reward": step / num_steps, "rollout/tool_calls": 2.0, "branch/rate": 0.25}
        for step in range(1, num_steps + 1)
    ] + [{"step": num_steps, "train_runtime": 1.0}]


def size_of(path):
    with Image.open(path) as picture:
        picture.verify()
        return picture.size


def ink(path):
    with Image.open(path) as picture:
        return (np.asarray(picture.convert("L")) < 250).sum()


def test_a_run_becomes_a_picture_with_one_row_of_three_panels(tmp_path):
    path = plot_training_curves(run_log(30), tmp_path / "new_folder" / "curves.png")

    assert size_of(path) == (2070, 480)  # 3 x 4.6 by 3.2 inches at 150 dots


def test_panels_without_a_metric_are_left_out(tmp_path):
    entries = [{"step": 1, "reward": 0.5}, {"step": 2, "reward": 0.6, "eval_reward": 0.1}]

    assert size_of(plot_training_curves(entries, tmp_path / "curves.png")) == (690, 480)


def test_a_single_step_leaves_a_visible_point(tmp_path):
    panels = [Panel("Reward", "points", {"reward": "reward"})]
    one = plot_training_curves([{"step": 1, "reward": 0.5}], tmp_path / "one.png", panels)
    nothing = plot_training_curves([], tmp_path / "nothing.png", panels)

    with Image.open(one) as picture:
        blue = np.asarray(picture.convert("RGB")).astype(int)
    assert (blue[..., 2] - blue[..., 0] > 30).sum() > 20
    assert ink(nothing) > 100  # it says that nothing was logged


def test_values_that_are_not_finite_leave_a_gap(tmp_path):
    entries = [{"step": step, "reward": float("nan") if step == 2 else 1.0} for step in (1, 2, 3)]
    entries += [{"step": step, "rollout/tool_calls": float("nan")} for step in (1, 2)]

    assert size_of(plot_training_curves(entries, tmp_path / "curves.png")) == (690, 480)


def test_every_series_of_a_panel_is_drawn_however_many_there_are(tmp_path):
    entries = [{"step": step, **{f"m{number}": float(number) for number in range(5)}} for step in range(1, 5)]
    panel = Panel("x", "y", {f"m{number}": str(number) for number in range(5)})
    with Image.open(plot_training_curves(entries, tmp_path / "curves.png", [panel])) as picture:
        pixels = {"#{:02x}{:02x}{:02x}".format(*color) for _, color in picture.convert("RGB").getcolors(1 << 24)}

    assert set(COLORS[:5]) <= pixels
