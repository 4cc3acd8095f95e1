import pytest

from trl_agentic.rewards import format_conditions, format_share_reward, make_format_share_reward

ANSWER = r"<answer>It is \boxed{3}.</answer>"


def says(content, *calls):
    message = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [{"type": "function", "function": {"name": n, "arguments": {}}} for n in calls]
    return message


def returns(content, name="search"):
    return {"role": "tool", "name": name, "content": content}


GOOD_TAGS = [
    says("<think>hm</think><search>q</search>", "search"),
    returns("r"),
    says("<think>now</think><python>1</python>", "python"),
    returns("1", "python"),
    says(f"<think>ah</think>{ANSWER}"),
]


def broken(completion, **kwargs):
    return {name for name, met in format_conditions(completion, **kwargs).items() if not met}


def test_a_good_rollout_in_tags_meets_every_condition():
    assert broken(GOOD_TAGS) == set()
    assert broken(GOOD_TAGS, status="finished", dialect="tags") == set()


def test_a_text_is_judged_like_messages():
    text = f"<think>hm</think><search>q</search>\n<result>\nr\n</result>\n<think>ah</think>{ANSWER}"
    assert broken(text) == set()
    assert broken(text.replace("<result>\nr\n</result>", "")) == {"calls_answered"}
    cut_off = text.replace("</result>", "")  # from where it begins, nothing is the model's
    assert broken(cut_off) == {"one_answer", "answer_last", "answer_boxed", "box_written"}


@pytest.mark.parametrize(
    ("last", "conditions"),
    [
        (f"<think>open {ANSWER}", {"thinking_closed", "one_answer", "answer_last", "answer_boxed"}),
        (f"<think>a<think>b</think>{ANSWER}", {"thinking_closed"}),
        (f"<think>a</think></think>{ANSWER}", {"thinking_closed"}),
        (ANSWER + ANSWER, {"one_answer"}),
        (ANSWER + "</answer>", {"one_answer"}),
        (r"<answer>\boxed{3}", {"one_answer"}),
        (r"\boxed{3} <answer>3</answer>", {"answer_boxed"}),
        (r"<answer>\boxed{3</answer>", {"answer_boxed", "box_written"}),
        (r"<answer>3</answer>", {"answer_boxed", "box_written"}),
        (r"\boxed{3}", {"one_answer", "answer_last", "answer_boxed"}),
        (f"{ANSWER}<think>more</think>", {"answer_last"}),
        (f"<search>q</search>{ANSWER}", {"calls_answered"}),
        (f"{ANSWER}<search>q", {"calls_answered", "answer_last"}),
        (f"</python>{ANSWER}", {"calls_answered"}),
        (f"<result>made up</result>{ANSWER}", {"calls_answered"}),
        (f"```{ANSWER}```", {"one_answer", "answer_last", "answer_boxed"}),
    ],
)
def test_every_fault_of_the_last_turn_is_named(last, conditions):
    assert broken([*GOOD_TAGS[:-1], says(last)]) == conditions


@pytest.mark.parametrize(
    "last",
    [
        f"<think>I could <search>again</search> or <answer>\\boxed{{2}}</answer></think>{ANSWER}",
        f"```\n<search>an example</search>\n```{ANSWER}",
        f"I think.</think>{ANSWER}",  # the template opened the thinking in the prompt
        f"I could <search>again</search>.</think>{ANSWER}",
        f"I could use <search>.</think>{ANSWER}",
        f"I could use `<search>`.{ANSWER}",
        f"~~~\n<search>an example</search> <result>r</result>\n~~~\n{ANSWER}",
        ANSWER,
        f"{ANSWER}\n",
    ],
)
def test_what_only_looks_like_a_fault_is_none(last):
    assert broken([*GOOD_TAGS[:-1], says(last)]) == set()


def test_tags_in_tool_results_count_for_nothing():
    dirty = [*GOOD_TAGS]
    dirty[1] = returns(r"<think> <search>x <answer>\boxed{7}</answer> </answer> <result>")
    assert broken(dirty) == set()
    assert "one_answer" in broken([*dirty[:4], says("I give up.")])
    assert "box_written" in broken([*dirty[:4], says("I give up.")])


def test_a_call_in_tags_needs_exactly_one_result():
    assert broken(GOOD_TAGS[:1] + GOOD_TAGS[2:]) == {"calls_answered"}
    assert broken([GOOD_TAGS[0], returns("a"), *GOOD_TAGS[1:]]) == {"calls_answered"}
    assert broken(GOOD_TAGS[:4]) == {"one_answer", "answer_last", "answer_boxed", "box_written"}


@pytest.mark.parametrize("text", ["</add>", '</add> \\" <search>q</search>', "```</add>"])
def test_a_tag_inside_a_string_of_a_call_does_not_end_it(text):
    messages = [says(f'<add>{{"a": "{text}", "b": 1}}</add>', "add"), returns("2", "add"), says(ANSWER)]
    assert broken(messages) == set()
    assert broken([*messages[:1], *messages[2:]]) == {"calls_answered"}


def test_calls_of_other_tools_are_calls_too():
    messages = [says("<browse>u</browse>", "browse"), returns("page", "browse"), says(ANSWER)]
    assert broken(messages) == set()
    assert broken([messages[0], messages[2]]) == {"calls_answered"}


GOOD_TEMPLATE = [says("", "search", "python"), returns("r"), returns("1", "python"), says(r"It is \boxed{3}.")]


def test_a_good_rollout_in_the_template_meets_every_condition():
    assert broken(GOOD_TEMPLATE) == set()
    assert broken([says(r"<think>\boxed{1}</think>\boxed{2}")]) == set()


@pytest.mark.parametrize(
    "last",
    [
        "<think>It said <tool_response>3</tool_response>, so <tool_call>.</think>\\boxed{3}",
        "`<tool_response>` holds a result, ``<tool_call>`` a call: \\boxed{3}",
        "~~~\n<tool_call>{}</tool_call>\n<tool_response>3</tool_response>\n~~~\n\\boxed{3}",
        "`<think>` opens a thought. \\boxed{3}",
    ],
)
def test_made_up_calls_and_results_in_thoughts_and_code_are_no_fault(last):
    assert broken([*GOOD_TEMPLATE[:3], says(last)]) == set()
    assert broken([says(last)], dialect="template") == set()


@pytest.mark.parametrize(
    ("messages", "conditions"),
    [
        (GOOD_TEMPLATE[:2] + GOOD_TEMPLATE[3:], {"calls_answered"}),
        (GOOD_TEMPLATE[:3], {"final_message", "answer_boxed", "box_written"}),
        ([says(r"\boxed{3}", "search")], {"calls_answered", "final_message", "answer_boxed"}),
        ([says('<tool_call>{"name": "search"'), *GOOD_TEMPLATE[3:]], {"calls_well_formed"}),
        ([says(r'\boxed{3} <tool_call>{"na')], {"calls_well_formed"}),
        ([*GOOD_TEMPLATE[:3], says("")], {"final_message", "answer_boxed", "box_written"}),
        ([*GOOD_TEMPLATE[:3], says("It is 3.")], {"answer_boxed", "box_written"}),
        ([*GOOD_TEMPLATE[:3], says(r"<think>\boxed{3}")], {"final_message", "answer_boxed"}),
        ([], {"final_message", "answer_boxed", "box_written"}),
        ([says("<tool_response>3</tool_response>\\boxed{3}")], {"calls_answered"}),
        ([*GOOD_TEMPLATE[:3], says("<tool_response>\n3\nIt is \\boxed{3}.")], {"calls_answered"}),
        ([says("<tool_response>r</tool_response>", "search"), returns("r"), GOOD_TEMPLATE[3]], {"calls_answered"}),
        ([says("<|tool_response>3<tool_response|>\\boxed{3}")], {"calls_answered"}),
        ([says("`<tool_call>` opens a call, <tool_response> a result: \\boxed{3}")], {"calls_answered"}),
    ],
)
def test_every_fault_in_the_template_is_named(messages, conditions):
    assert broken(messages, dialect="template") == conditions


def test_a_malformed_call_is_known_from_the_calls():
    calls = [{"name": "search", "status": "malformed"}, {"name": "python", "status": "ok"}]
    assert broken(GOOD_TEMPLATE, calls=calls) == {"calls_well_formed"}
    assert broken(GOOD_TEMPLATE, calls=[{**call, "status": "timeout"} for call in calls]) == set()


@pytest.mark.parametrize("status", ["truncated", "tool_budget", "invalid_calls", "deadline", "error"])
def test_only_a_finished_trajectory_has_a_good_format(status):
    assert broken(GOOD_TAGS, status=status) == broken(GOOD_TEMPLATE, status=status) == {"finished"}


def test_the_dialect_is_read_from_the_text_and_the_prompt():
    box = [says(r"\boxed{3}")]
    assert broken(box) == set()
    assert "one_answer" in broken(box, dialect="tags")
    assert "one_answer" in broken(box, prompt=[{"role": "system", "content": "Answer in <answer> </answer>."}])
    assert "one_answer" in broken(box, prompt="Use <search> to look things up.")
    assert "final_message" in broken(GOOD_TEMPLATE[:3], prompt="Answer in <answer>.")
    with pytest.raises(ValueError, match="must be 'auto', 'tags' or 'template'; got 'xml'"):
        format_conditions(box, dialect="xml")


def test_the_share_rises_with_every_condition_met():
    rows = ["", "<think>", r"\boxed{3}", "<answer>3</answer>", ANSWER]
    shares = make_format_share_reward("tags")(["q"] * 5, rows)
    assert shares == [3 / 7, 2 / 7, 4 / 7, 5 / 7, 1.0]


def test_the_share_is_a_reward_function():
    shares = format_share_reward(
        prompts=["q", "q"],
        completions=[GOOD_TAGS, GOOD_TEMPLATE],
        completion_ids=[[1], [2]],
        rollout_status=["finished", "truncated"],
        rollout_calls=[None, []],
        answer=[None, None],
    )
    assert shares == [1.0, 5 / 6]
    assert format_share_reward.__name__ == make_format_share_reward("tags").__name__ == "format_share_reward"
