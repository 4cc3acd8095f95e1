"""Where a key must not go: into a text that is cut inside it, and in clear text to another machine."""

from __future__ import annotations

import json

import pytest
from loopback_pages import LoopbackPages
from loopback_search_apis import KEY, LoopbackSearchApis, Reply, page

from trl_agentic.tools import PageReader, SearchError
from trl_agentic.tools.search_backends.snippets import snippet_text
from trl_agentic.tools.search_backends.web_search import MAX_TITLE_CHARS
from trl_agentic.tools.web.page_text.extraction import PageText


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERPER_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("READER_KEY", KEY)


def redact(text: str) -> str:
    return text.replace(KEY, "[key]")


@pytest.mark.parametrize("shown", range(1, len(KEY)))
def test_a_key_at_the_place_of_a_cut_is_taken_out_whole(shown):
    value = "x" * (MAX_TITLE_CHARS - 1 - shown) + KEY + " and more"
    with LoopbackSearchApis(pages=[page(value)]) as server:
        (passage,) = server.engine().search("Cuba", 1)
    assert set(passage.title) <= set("x[key]…  and more")


def test_a_text_that_is_shortened_before_it_is_read_does_not_end_in_a_part_of_a_key():
    value = ("<b></b>" * 1_000)[: 20 * 300 - 10] + KEY  # all but ten characters of the key are beyond what is read
    assert KEY[:5] not in snippet_text(value, 300, redact)


@pytest.mark.parametrize("shown", [5, 10, 15])
def test_an_error_does_not_end_in_a_part_of_a_key_either(shown):
    body = b"<br>" * 500 + b"  "
    reply = Reply(400, body[: 2_000 - shown] + KEY.encode())
    with LoopbackSearchApis(reply=lambda request: reply) as server, pytest.raises(SearchError) as error:
        server.engine().search("Cuba", 1)
    assert KEY[:5] not in str(error.value)


@pytest.fixture
def proxy(monkeypatch):
    """A server that answers as a reader model for any host, over plain http."""
    with LoopbackPages() as server:
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{server.port}")
        for name in ("no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)
        choice = {"message": {"content": "Havana."}, "finish_reason": "stop"}
        answer = json.dumps({"choices": [choice]})
        server.page("http://reader.test:8000/v1/chat/completions", answer, "application/json")
        yield server


def test_a_key_that_nobody_named_is_not_sent_to_another_machine_in_clear_text(proxy):
    reader = PageReader("http://reader.test:8000/v1", "tiny")
    assert reader.answer(PageText("", "x"), "y") == "Havana."
    assert "Authorization" not in proxy.requests[-1].headers


def test_a_key_that_was_named_is_sent_where_it_was_told_to_go(proxy):
    PageReader("http://reader.test:8000/v1", "tiny", api_key_env="READER_KEY").answer(PageText("", "x"), "y")
    assert proxy.requests[-1].headers["Authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize(
    ("url", "sent"),
    [
        ("https://api.example.org/v1", True),
        ("http://localhost:8000/v1", True),
        ("http://127.0.0.1:8000/v1", True),
        ("http://[::1]:8000/v1", True),
        ("http://10.0.0.5:8000/v1", False),
        ("http://localhost.example.org/v1", False),
    ],
)
def test_the_customary_key_goes_over_https_or_to_this_machine(url, sent):
    assert (PageReader(url, "tiny")._key_variable is not None) is sent
