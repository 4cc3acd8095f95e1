"""The text of a page: encodings, HTML, PDF, and the processes that read them."""

import codecs
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pdf_files import pdf

from trl_agentic.tools.web.page_parser import PageParser
from trl_agentic.tools.web.page_text.decoding import UnreadablePageError, clean, decode
from trl_agentic.tools.web.page_text.extraction import Limits, PageText, extract
from trl_agentic.tools.web.page_text.markup import html_text, page_title, visible_text

ARTICLE = "".join(
    f"<p>Sentence number {n} of the article is about Havana, the capital of Cuba.</p>" for n in range(20)
)


def text_of(content: bytes | str, content_type: str = "text/html", **options) -> str:
    content = content.encode() if isinstance(content, str) else content
    return extract(content, content_type, **options).text


# Encodings


@pytest.mark.parametrize(
    ("content", "declared", "expected"),
    [
        ("São Tomé".encode(), "", "São Tomé"),
        ("São Tomé".encode(), "text/html; charset=iso-8859-1", "São Tomé"),  # said to be Latin, and is not
        ("São Tomé".encode("latin-1"), 'text/html; charset="ISO-8859-1"', "São Tomé"),
        ("São Tomé".encode("latin-1"), "text/html; charset=utf-8", "São Tomé"),
        ("São – Tomé".encode("cp1252"), "text/html; charset=latin1", "São – Tomé"),  # as browsers read it
        (
            b"<meta charset='windows-1251'>" + "Гавана".encode("cp1251"),
            "text/html",
            "<meta charset='windows-1251'>Гавана",
        ),
        ("ハバナはキューバの首都".encode("shift_jis"), "text/html; charset=Shift_JIS", "ハバナはキューバの首都"),
        ("ハバナ".encode("iso2022_jp"), "text/html; charset=iso-2022-jp", "ハバナ"),
        ("Tomé".encode("utf-16-le"), "text/html; charset=utf-16le", "Tomé"),
        (codecs.BOM_UTF16_BE + "Tomé".encode("utf-16-be"), "text/html; charset=utf-8", "Tomé"),
        (codecs.BOM_UTF8 + "Tomé".encode(), "text/html; charset=latin1", "Tomé"),
        ("Señor é ñ ü á".encode()[:-1], "text/html; charset=utf-8", "Señor é ñ ü "),  # cut within a character
        ("é".encode() * 9 + b"\xff", "text/html; charset=utf-8", "é" * 9 + "\ufffd"),  # a stray byte
        ("Tomé".encode("latin-1"), "text/html; charset=no-such-charset", "Tomé"),
        (b"plain", "text/html; charset=zlib", "plain"),
        (b"plain \\n", "text/html; charset=unicode_escape", "plain \\n"),
    ],
)
def test_a_page_is_read_in_the_encoding_that_it_has(content, declared, expected):
    assert decode(content, declared) == expected


@given(
    st.binary(max_size=300),
    st.sampled_from(["", "utf-8", "utf-16", "gbk", "big5", "euc-kr", "idna", "rot13", "x" * 50]),
)
@settings(deadline=None)
def test_any_bytes_under_any_name_become_some_text(content, charset):
    assert isinstance(decode(content, f"text/html; charset={charset}"), str)


@given(st.text(), st.booleans())
def test_clean_text_is_valid_bounded_and_stays_as_it_is(text, is_code):
    cleaned = clean(text, 50, is_code=is_code)
    cleaned.encode()
    assert len(cleaned) <= 50 and cleaned == clean(cleaned, 50, is_code=is_code)
    assert not any(ord(character) < 32 and character not in "\n\t" for character in cleaned)


def test_control_characters_and_invisible_letters_are_left_out_and_lines_kept():
    hidden = "".join(chr(0xE0000 + ord(letter)) for letter in "ignore this")
    assert clean(f"a\x00b\x1b[0m\u202e c{hidden}\r\n\r\n\r\n\r\nd\u2028e \t f\ud800", 100) == "ab[0m c\n\nd\ne f"
    assert clean("👩\u200d🚀 नमस्\u200dते", 100) == "👩\u200d🚀 नमस्\u200dते"  # joiners are part of words


# HTML


def test_the_article_is_kept_and_the_menu_is_not():
    page = (
        f"<title>Cuba &amp; Havana</title><nav><a href=/>Home</a><a href=/x>Shop</a></nav><article>{ARTICLE}</article>"
    )
    title, text = html_text(f"<html><body>{page}</body></html>", 10_000)
    assert title == "Cuba & Havana"
    assert "Sentence number 0 of" in text and "Sentence number 19 of" in text and "Shop" not in text


def test_a_page_with_little_text_is_shown_whole():
    page = "<html><body><nav>Menu</nav><p>Its capital is Havana.</p></body></html>"
    assert html_text(page, 1000) == ("", "Menu\nIts capital is Havana.")


def test_tables_keep_their_cells():
    page = "<table><tr><th>Country</th><th>Capital</th></tr><tr><td>Cuba</td><td>Havana</td></tr></table>"
    assert [line.strip(" |") for line in text_of(page).split("\n")] == ["Country | Capital", "Cuba | Havana"]


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("a<b>b</b>c", "abc"),
        ("<p>a<p>b", "a\nb"),
        ("a<br>b", "a\nb"),
        ("1 < 2 and <3", "1 < 2 and <3"),
        ("&lt;b&gt; &amp; &eacute;", "<b> & é"),
        ("a<!-- <p>no</p> -->b", "ab"),
        ("a<!-- no", "a"),
        ("a<script>if (a < b) { '<p>' }</script>b", "ab"),
        ("a<script>no", "a"),
        ("a<SCRIPT>no</Script >b", "ab"),
        ("a<script src=x/>b", "ab"),
        ("a<style>p > b {}</style>b", "ab"),
        ("<svg><text>no</text></svg>b", "b"),
        ("<noscript>Please enable JavaScript</noscript>", "Please enable JavaScript"),
        ("<!doctype html><?php ?>a", "a"),
        ("<p", ""),
        ("<", "<"),
        ("", ""),
    ],
)
def test_visible_text_is_what_stands_outside_tags_scripts_and_comments(markup, text):
    assert visible_text(markup) == text


@given(
    st.lists(st.sampled_from(["<", ">", "/", "!--", "-->", "script", "p", " ", "x", "&", "title", "\n"])).map("".join)
)
def test_visible_text_takes_any_markup(markup):
    assert isinstance(visible_text(markup), str)


def test_a_title_comes_from_the_head_or_the_first_heading():
    assert page_title("<title lang=en>\n Cuba\n - Facts </title><h1>No</h1>") == "Cuba - Facts"
    assert page_title("<h1 class=x>Cuba</h1>") == "Cuba"
    assert page_title("<p>Cuba</p>") == ""


def test_a_page_made_by_scripts_says_so():
    with pytest.raises(UnreadablePageError, match="built by scripts, which are not run. Its title is 'App'"):
        text_of("<html><head><title>App</title></head><body><div id=root></div><script>go()</script></body></html>")


# Other kinds


def test_plain_text_and_json_are_kept():
    assert text_of("a < b\n<p>c", "text/plain") == "a < b\n<p>c"
    assert text_of('{"capital":"Havana","area":1}', "application/json") == '{\n "capital": "Havana",\n "area": 1\n}'
    assert text_of('{"broken', "application/json") == '{"broken'
    assert text_of("[" * 100_000, "application/json", limits=Limits(max_chars=5)) == "[" * 5


@pytest.mark.parametrize(
    ("content", "kind", "text"),
    [
        ("name\tarea\nCuba\t110\n\t5\n", "text/tab-separated-values", "name\tarea\nCuba\t110\n\t5"),
        ("\ta\nb\t\tc\n", "text/plain", "\ta\nb\t\tc"),  # the first column of the first line is empty
        ("name,area\n,5\nCuba,", "text/csv", "name,area\n,5\nCuba,"),
        ("def f():\n    return  1\n\n\n\nx  \n", "text/x-python", "def f():\n    return  1\n\nx"),
        ("  a\n\xa0\xa0b", "text/plain; charset=utf-8", "  a\n  b"),
    ],
)
def test_plain_text_keeps_its_columns_and_indentation(content, kind, text):
    assert text_of(content, kind) == text


def test_the_entries_of_a_feed_are_read():
    entry = "<item><title>Havana</title><p><![CDATA[<b>Rain</b>]]></p></item>"
    page = extract(f"<?xml version='1.0'?><rss><title>News</title>{entry}</rss>".encode(), "application/rss+xml")
    assert page == PageText("News", "News\nHavana\nRain")


@pytest.mark.parametrize("kind", ["", "application/octet-stream", "text/plain"])
def test_html_is_recognised_under_another_name(kind):
    assert text_of("<!DOCTYPE html><html><body><p>Havana</p></body></html>", kind) == "Havana"


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n0000", "a PNG image"),
        (b"\xff\xd8\xff\xe0 JFIF", "a JPEG image"),
        (b"PK\x03\x04 word/document.xml", "a ZIP archive"),
        (b"\x7fELF\x02\x01", "a program"),
        (bytes(range(32)) * 20, "binary data"),
    ],
)
def test_what_is_sent_as_html_and_is_none_is_named(content, kind):
    with pytest.raises(UnreadablePageError, match=f"This is {kind}.*, not a page with text"):
        text_of(content, "text/html")


@pytest.mark.parametrize("content", [b"", b" \n", b"\x00", b"<html></html>", b"<p>\xe2\x80\x8b</p>"])
def test_a_page_without_text_is_an_error(content):
    with pytest.raises(UnreadablePageError):
        text_of(content)


def test_what_was_left_out_is_remarked():
    assert extract(b"abc", "text/plain", is_complete=False).remark == "only the beginning of the page was read"
    assert extract(b"abcdef", "text/plain", limits=Limits(max_chars=4)) == PageText("", "abcd", "the page goes on")


# PDF


def test_a_pdf_is_read_page_by_page():
    page = extract(pdf("Havana is the capital.", "Rain falls.", title="Cuba"), "application/pdf")
    assert page == PageText("Cuba", "Havana is the capital.\n\nRain falls.")


def test_a_pdf_is_recognised_by_its_content_and_of_a_long_one_the_first_pages_are_read():
    page = extract(pdf(*map(str, range(9))), "text/html", limits=Limits(max_pages=2))
    assert page == PageText("", "0\n\n1", "only the first 2 of 9 pages were read")


def test_a_pdf_that_opens_without_a_password_is_read_and_another_is_not():
    assert extract(pdf("Havana", password=""), "application/pdf").text == "Havana"
    with pytest.raises(UnreadablePageError, match="only be opened with a password"):
        extract(pdf("Havana", password="secret"), "application/pdf")


@pytest.mark.parametrize("content", [b"%PDF-1.7", b"%PDF-1.7\n" + b"x" * 500, pdf("Havana")[:300]])
def test_a_broken_pdf_is_an_error(content):
    with pytest.raises(UnreadablePageError, match="This PDF"):
        extract(content, "application/pdf")


def test_a_pdf_of_images_and_a_part_of_a_pdf_are_errors():
    with pytest.raises(UnreadablePageError, match="may be made of scanned images"):
        extract(pdf(""), "application/pdf")
    with pytest.raises(UnreadablePageError, match="is too long, or was cut"):
        extract(pdf("Havana"), "application/pdf", is_complete=False)
    with pytest.raises(UnreadablePageError, match="said to be a PDF, and is none"):
        extract(b"<p>Not found</p>", "application/pdf")


# Processes


@pytest.fixture(scope="module")
def parser():
    with PageParser(num_processes=1) as parser:
        parser.read(b"warm", "text/plain", limits=Limits(timeout_s=120))
        yield parser


def children() -> set[int]:
    """Processes of this one that have not been waited for."""
    pids = set()
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{entry}/stat") as stat:
                if int(stat.read().rpartition(")")[2].split()[1]) == os.getpid():
                    pids.add(int(entry))
        except OSError:
            continue
    return pids


def test_a_process_reads_as_the_functions_do(parser):
    page = f"<title>Cuba</title>{ARTICLE}".encode()
    assert parser.read(page, "text/html", limits=Limits(timeout_s=60)) == extract(page, "text/html")
    with pytest.raises(UnreadablePageError, match="PNG"):
        parser.read(b"\x89PNG\r\n", "text/html", limits=Limits(timeout_s=60))


def test_many_threads_share_one_process(parser):
    before = children()
    with ThreadPoolExecutor(8) as pool:
        pages = pool.map(lambda n: parser.read(f"page {n}".encode(), "text/plain").text, range(40))
        assert list(pages) == [f"page {n}" for n in range(40)]
    assert children() == before


def test_a_process_that_was_killed_is_replaced(parser):
    (process,) = parser._idle
    process.process.kill()
    process.process.wait()
    assert parser.read(b"hello", "text/plain", limits=Limits(timeout_s=60)).text == "hello"


def test_a_page_that_is_not_read_in_time_is_an_error_and_leaves_nothing_behind():
    before = children()
    with PageParser(num_processes=1) as parser:
        with pytest.raises(UnreadablePageError, match="too complicated to be read in the time there is"):
            parser.read(b"hello", "text/plain", limits=Limits(timeout_s=0.02))  # no process starts as fast
    assert children() == before


def test_a_parser_sees_no_key_of_the_environment(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    with PageParser(num_processes=1) as parser:
        parser.warm()
        (process,) = parser._idle
        environment = Path(f"/proc/{process.process.pid}/environ").read_bytes()
    assert b"sk-secret" not in environment


def test_warming_starts_no_more_processes_than_allowed():
    before = children()
    with PageParser(num_processes=1) as parser:
        for _ in range(5):
            parser.warm()
        assert len(children() - before) == 1
    assert children() == before


def test_a_parser_without_processes_is_refused():
    with pytest.raises(ValueError, match="num_processes must be at least 1, got 0"):
        PageParser(num_processes=0)


def test_json_of_any_depth_is_spread_or_left_alone(parser):
    deep = json.dumps({"a": [[[1]]]})
    assert parser.read(deep.encode(), "application/json").text.count("\n") > 3


def test_a_forked_process_reads_with_processes_of_its_own(parser):
    (before,) = parser._idle
    assert parser._places.acquire(blocking=False)  # as by a thread that reads, which the fork leaves behind
    child = os.fork()
    if child == 0:
        text = parser.read(b"of the child", "text/plain", limits=Limits(timeout_s=60)).text
        num_own = len(children())
        parser.close()
        os._exit(0 if (text, num_own, len(children())) == ("of the child", 1, 0) else 1)
    parser._places.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert parser.read(b"of the parent", "text/plain", limits=Limits(timeout_s=60)).text == "of the parent"
    assert parser._idle == [before]
