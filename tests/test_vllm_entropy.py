"""Entropies measured inside vLLM: exact, and on their own token whatever the scheduler does meanwhile."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from async_scheduling import SCHEDULINGS
from engine_checks import Outcome, ask, assert_exact, drain, exact, prompt

from trl_agentic.rollout.engine import Request, SamplingSettings

pytest.importorskip("vllm", reason="vLLM is not installed")

import numpy as np
from vllm import SamplingParams
from vllm.v1.sample.logits_processor import BatchUpdate, MoveDirectionality

from trl_agentic.rollout import vllm_entropy
from trl_agentic.rollout.vllm_engine import VLLMEngine
from trl_agentic.rollout.vllm_entropy import EXTRA_ARG, STORE, EntropyProcessor, EntropyStore, Measurement

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def nothing_is_left_in_the_store():
    yield
    assert len(STORE) == 0


@pytest.fixture(scope="module", params=SCHEDULINGS)
def cramped_llm(request, make_llm, random_model_path):
    """17 usable cache blocks of 32 tokens, and at most 64 tokens a step: long prefills are cut, requests preempted."""
    options = {"num_gpu_blocks_override": 18, "max_num_batched_tokens": 64, "disable_log_stats": False}
    return make_llm(random_model_path, request.param, **options)


def num_preemptions(llm) -> int:
    return next(metric.value for metric in llm.get_metrics() if metric.name == "vllm:num_preemptions")


@pytest.mark.parametrize("temperature", [0.3, 1.0, 1.8])
def test_entropies_and_logprobs_are_those_of_a_plain_forward(vllm_llm, random_model, temperature):
    engine = VLLMEngine(vllm_llm)
    for seed in range(6):
        engine.submit(Request(str(seed), prompt(seed, 5 + 11 * seed), 10 + 3 * seed, SamplingSettings(temperature)))
    for name, outcome in drain(engine).items():
        assert_exact(random_model, prompt(int(name), 5 + 11 * int(name)), outcome, temperature)


@pytest.mark.parametrize("cut", [{"top_k": 2}, {"top_p": 0.5}, {"min_p": 0.4}])
def test_entropies_are_of_the_whole_vocabulary_while_logprobs_are_of_what_was_left(vllm_llm, random_model, cut):
    outcome = ask(VLLMEngine(vllm_llm), prompt(3, 12), 40, temperature=1.3, **cut)
    whole, entropies = exact(random_model, prompt(3, 12), outcome.token_ids, 1.3)
    torch.testing.assert_close(torch.tensor(outcome.entropies).double(), entropies, atol=1e-3, rtol=0)
    assert sum(outcome.logprobs) > whole.sum() + 1


def test_requests_of_one_batch_have_their_own_temperature(vllm_llm, random_model):
    engine = VLLMEngine(vllm_llm)
    for seed, temperature in enumerate((0.4, 0.0, 1.5, 1.0)):
        engine.submit(Request(str(seed), prompt(seed, 9), 20, SamplingSettings(temperature)))
    outcomes = drain(engine)
    for seed, temperature in ((0, 0.4), (2, 1.5), (3, 1.0)):
        assert_exact(random_model, prompt(seed, 9), outcomes[str(seed)], temperature)
    assert all(event.entropies is None for event in outcomes["1"].events)


def test_a_prefill_cut_into_pieces_leaves_no_surplus(cramped_llm, random_model):
    outcome = ask(VLLMEngine(cramped_llm), prompt(4, 300), 25, temperature=0.8)
    assert len(outcome.entropies) == 25
    assert_exact(random_model, prompt(4, 300), outcome, 0.8)


def test_prefills_cut_while_others_decode_leave_no_surplus(cramped_llm, random_model):
    engine = VLLMEngine(cramped_llm)
    for seed, length in enumerate((20, 130, 190)):
        engine.submit(Request(str(seed), prompt(seed, length), 20, SamplingSettings(0.8)))
    outcomes = drain(engine)
    for seed, length in enumerate((20, 130, 190)):
        assert_exact(random_model, prompt(seed, length), outcomes[str(seed)], 0.8)


def test_preempted_requests_have_each_value_once(cramped_llm, random_model):
    before = num_preemptions(cramped_llm)
    engine = VLLMEngine(cramped_llm)
    for seed in range(8):  # 8 requests of up to 147 tokens, in a cache of 544
        engine.submit(Request(str(seed), prompt(seed, 40), 100 + seed, SamplingSettings(0.7)))
    outcomes = drain(engine)
    assert num_preemptions(cramped_llm) > before
    for seed in range(8):
        assert len(outcomes[str(seed)].entropies) == 100 + seed
        assert_exact(random_model, prompt(seed, 40), outcomes[str(seed)], 0.7)


def test_aborting_in_flight_leaves_the_others_alone_and_nothing_behind(vllm_llm, random_model):
    engine = VLLMEngine(vllm_llm)
    for seed in range(6):
        engine.submit(Request(str(seed), prompt(seed, 10), 30, SamplingSettings(1.0)))
    early = [event for _ in range(7) for event in engine.poll()]
    for name in ("0", "3", "4"):  # the batch moves its rows together after this
        engine.abort(name)
    assert len(STORE) == 3
    outcomes = drain(engine)
    assert set(outcomes) == {"1", "2", "5"}
    for name, outcome in outcomes.items():
        whole = Outcome([event for event in early if event.request_id == name] + outcome.events)
        assert len(whole.token_ids) == 30
        assert_exact(random_model, prompt(int(name), 10), whole, 1.0)


def test_a_child_of_a_running_parent_comes_from_its_cache_and_has_exact_values(vllm_llm, random_model):
    engine = VLLMEngine(vllm_llm)
    engine.reset_prefix_cache()
    parent_prefix = prompt(9, 40)
    engine.submit(Request("parent", parent_prefix, 120, SamplingSettings(1.0)))
    early = []
    while sum(len(event.token_ids) for event in early) < 70:
        early += engine.poll()
    child_prefix = parent_prefix + tuple(token for event in early for token in event.token_ids)[:60]
    engine.submit(Request("child", child_prefix, 20, SamplingSettings(1.0)))
    outcomes = drain(engine)
    assert outcomes["child"].events[0].num_cached_tokens >= len(child_prefix) - 32  # one block
    assert_exact(random_model, child_prefix, outcomes["child"], 1.0)
    assert_exact(random_model, parent_prefix, Outcome(early + outcomes["parent"].events), 1.0)


def test_requests_that_are_not_ours_are_not_measured(vllm_llm, monkeypatch):
    measured = []
    monkeypatch.setattr(STORE, "file", lambda *args: measured.append(args))
    vllm_llm.generate([{"prompt_token_ids": list(prompt(1, 5))}], SamplingParams(max_tokens=5), use_tqdm=False)
    assert measured == []


def test_engines_of_one_process_may_use_the_same_ids_at_once(vllm_llm, cramped_llm, random_model):
    engines = VLLMEngine(vllm_llm), VLLMEngine(cramped_llm)
    for seed, engine in enumerate(engines):
        engine.submit(Request("same", prompt(seed, 8), 15, SamplingSettings(0.9)))
    for seed, engine in enumerate(engines):
        assert_exact(random_model, prompt(seed, 8), drain(engine)["same"], 0.9)


LOADING = """
import sys, types
for name in ("utils.torch_utils", "v1.sample.logits_processor", "v1.worker.gpu.sample.logits_processor.interface"):
    module = types.ModuleType("vllm." + name)
    module.LogitsProcessor = type(name, (), {})
    module.async_tensor_h2d = module.process_dict_updates = None
    sys.modules["vllm." + name] = module
import torch
before = set(sys.modules)
import trl_agentic.rollout.vllm_entropy
print(*{name.split(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names)
"""


def test_loading_the_processor_imports_nothing_but_torch_and_what_vllm_has_loaded():
    run = subprocess.run([sys.executable, "-c", LOADING], capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout.split() == ["trl_agentic"]


# The processor and the store by themselves: what vLLM on CPU does not do


def processor() -> EntropyProcessor:
    return EntropyProcessor(None, torch.device("cpu"), False)


def params(key: str, temperature: float = 1.0) -> SamplingParams:
    return SamplingParams(temperature=temperature, extra_args={EXTRA_ARG: key})


def update(size: int, added=(), removed=(), moved=()) -> BatchUpdate:
    return BatchUpdate(batch_size=size, removed=list(removed), added=list(added), moved=list(moved))


LOGITS = torch.tensor([[0.0, 0.0, float("-inf")], [0.0, 0.0, 0.0], [9.0, -90.0, -90.0]])
LN2, LN3 = 0.6931, 1.0986


def test_a_step_launched_before_the_last_token_arrived_is_filed_behind_it():
    """Async scheduling: vLLM appends -1 for a token that is still on the device, and replaces it later."""
    STORE.open("a")
    subject, output = processor(), []
    subject.update_state(update(1, added=[(0, params("a"), [1], output)]))
    subject.apply(LOGITS[:1])
    output.append(-1)
    subject.apply(LOGITS[1:2])
    output[:] = [7, -1]
    assert STORE.take("a", 0, 1) == pytest.approx((LN2,), abs=1e-4)
    subject.apply(LOGITS[2:])
    assert STORE.take("a", 1, 2) == pytest.approx((LN3, 0.0), abs=1e-4)
    STORE.close("a")


def test_a_request_that_comes_back_with_another_list_goes_on_at_its_length():
    """Async scheduling: a preempted request is added again with a fresh list, and the lost sample is taken anew."""
    STORE.open("a")
    subject = processor()
    subject.update_state(update(1, added=[(0, params("a"), [1], [5, -1])]))
    subject.apply(LOGITS[2:])  # position 2, lost with the preemption
    subject.update_state(update(0, removed=[0]))
    subject.apply(LOGITS[:0])
    subject.update_state(update(1, added=[(0, params("a"), [1], [5])]))
    subject.apply(LOGITS[:1])
    subject.update_state(update(1, added=[(0, params("a"), [1], [5, 6])]))
    subject.apply(LOGITS[1:2])
    assert STORE.take("a", 1, 2) == pytest.approx((LN2, LN3), abs=1e-4)
    STORE.close("a")


def test_rows_follow_requests_that_move_and_swap():
    for key in "ab":
        STORE.open(key)
    subject = processor()
    rows = [(0, SamplingParams(), [1], []), (1, params("a"), [1], []), (2, params("b"), [1], [])]
    subject.update_state(update(3, added=rows))
    subject.update_state(update(2, moved=[(2, 0, MoveDirectionality.UNIDIRECTIONAL), (0, 1, MoveDirectionality.SWAP)]))
    subject.apply(LOGITS[:2])  # now a is in row 0 and b in row 1
    assert STORE.take("a", 0, 1) == pytest.approx((LN2,), abs=1e-4)
    assert STORE.take("b", 0, 1) == pytest.approx((LN3,), abs=1e-4)
    for key in "ab":
        STORE.close(key)


def test_logits_are_handed_back_untouched():
    STORE.open("a")
    subject, logits = processor(), LOGITS.clone()
    subject.update_state(update(2, added=[(1, params("a", temperature=0.5), [1], [])]))
    assert subject.apply(logits) is logits
    assert torch.equal(logits, LOGITS)
    STORE.close("a")


def context(slots: list[int], lengths: list[int]) -> SimpleNamespace:
    """What the second runner passes: the slot of each row, and the tokens visible to the one that is sampled."""
    return SimpleNamespace(idx_mapping_np=np.array(slots), seq_lens_upper_bound_np=np.array(lengths))


def test_the_second_runner_files_by_slot_and_skips_unfinished_prefills():
    STORE.open("a")
    prompt_lengths = SimpleNamespace(np=np.array([3, 4]))
    subject = EntropyProcessor(None, SimpleNamespace(prompt_len=prompt_lengths))
    assert subject.add_request(1, params("a", temperature=2.0)) is True
    assert subject.add_request(0, SamplingParams()) is False
    subject.apply(LOGITS[1:2], context([1], [2]))  # 2 of 4 prompt tokens
    subject.apply(LOGITS[:2], context([0, 1], [3, 4]))
    subject.apply(LOGITS[:2], context([1, 0], [5, 4]))
    assert STORE.take("a", 0, 2) == pytest.approx((LN3, LN2), abs=1e-4)
    STORE.close("a")


def test_the_second_runner_forgets_a_slot_that_another_request_takes(monkeypatch):
    subject = EntropyProcessor(None, SimpleNamespace(prompt_len=SimpleNamespace(np=np.array([1]))))
    subject.add_request(0, params("a"))
    subject.add_request(0, SamplingParams())
    monkeypatch.setattr(vllm_entropy, "token_entropies", lambda _: pytest.fail("measured a request that is not ours"))
    subject.apply(LOGITS[:1], context([0], [1]))


def test_the_store_says_what_to_change_when_nothing_was_measured():
    store = EntropyStore()
    store.open("a")
    with pytest.raises(RuntimeError, match=r"no entropy for output tokens \[0, 1\].*VLLM_ENABLE_V1_MULTIPROCESSING=0"):
        store.take("a", 0, 2)


def test_the_store_holds_open_requests_only_and_what_was_not_handed_out():
    store, measurement = EntropyStore(), Measurement(torch.tensor([0.5, 0.25]))
    store.file("a", 0, measurement, 0)
    store.open("a")
    store.file("a", 0, measurement, 0)
    store.file("a", 1, measurement, 1)
    assert store.take("a", 0, 1) == (0.5,)
    with pytest.raises(RuntimeError):
        store.take("a", 0, 1)
    store.close("a")
    store.close("a")
    store.file("a", 2, measurement, 0)
    assert len(store) == 0
