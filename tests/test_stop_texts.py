"""Stop texts are found at the token that completes them, and without decoding every token."""

from __future__ import annotations

import pytest
from byte_tokenizer import byte_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st

from trl_agentic.rollout.stop_texts import StopTexts

BYTES = byte_tokenizer()
STOP = ("</search>", "a>", "é")


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from(BYTES("</search>.</search>\na>é x</")["input_ids"]), min_size=1, max_size=40),
    st.integers(1, 5),
)
def test_looking_at_the_tail_finds_the_same_stop_as_looking_at_everything(token_ids, step):
    stops = StopTexts(BYTES, STOP)
    expected = next(
        (end for end in range(1, len(token_ids) + 1) if any(t in BYTES.decode(token_ids[:end]) for t in STOP)), None
    )
    found = None
    for start in range(0, len(token_ids), step):
        known = token_ids[: start + step]
        num_new = stops.find(known, len(known) - start)
        if num_new is not None:
            found = start + num_new
            break
    assert found == expected


def test_a_stop_may_begin_in_what_a_branch_keeps_of_its_turn():
    kept, new = BYTES("<search>capital of Peru</sea")["input_ids"], BYTES("rch> and more")["input_ids"]
    assert StopTexts(BYTES, STOP[:1]).find([*kept, *new], len(new)) == len(BYTES("rch>")["input_ids"])


def test_a_stop_that_the_kept_tokens_complete_themselves_does_not_end_the_branch_again():
    kept, new = BYTES("no call: </search>")["input_ids"], BYTES(" >> b")["input_ids"]
    assert StopTexts(BYTES, STOP[:1]).find([*kept, *new], len(new)) is None


class CountingTokenizer:
    """The byte tokenizer, which counts how often it decodes."""

    def __init__(self):
        self.num_decoded = 0

    def get_vocab(self):
        return BYTES.get_vocab()

    def decode(self, *args, **options):
        self.num_decoded += 1
        return BYTES.decode(*args, **options)


@pytest.mark.parametrize(("text", "decoded"), [("no stop here", 0), ("a > b > c", 2), ("<search>x</search>", 3)])
def test_only_tokens_with_the_last_character_are_decoded(text, decoded):
    tokenizer = CountingTokenizer()
    stops = StopTexts(tokenizer, ("</search>", "</python>"))
    stops.find(BYTES(text)["input_ids"], len(BYTES(text)["input_ids"]))
    assert tokenizer.num_decoded == decoded


def test_a_stop_inside_several_new_tokens_is_the_end():
    token_ids = BYTES("ab</search>cd</search>")["input_ids"]
    assert StopTexts(BYTES, ("</search>",)).find(token_ids, len(token_ids)) == len(BYTES("ab</search>")["input_ids"])


def test_without_stop_texts_there_is_no_stop():
    assert StopTexts(BYTES, ()).find([1, 2, 3], 3) is None
