"""What becomes of the signs and blocks of an HTML page: exponents, notes, formulas, code, tables, captions."""

import time

import pytest

from trl_agentic.tools.web.page_text.markup import html_text

SENTENCES = [f"Sentence number {n} of the article is about Havana, the capital of Cuba." for n in range(20)]
ARTICLE = "".join(f"<p>{sentence}</p>" for sentence in SENTENCES)


def text_of(markup: str, plain: bool = False) -> str:
    return html_text(f"<html><body>{markup}</body></html>", 100_000, plain)[1]


def beside_an_article(markup: str) -> list[str]:
    """The lines of some markup that stands within a page of many paragraphs."""
    text = text_of(f"<nav><a href=/>Home</a></nav><article><h1>Cuba</h1>{ARTICLE}{markup}{ARTICLE}</article>")
    lines = text.split("\n")
    assert lines[:21] == ["Cuba", *SENTENCES] and lines[-20:] == SENTENCES
    return lines[21:-20]


# Signs


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("3.0 × 10<sup>8</sup> m", "3.0 × 10^8 m"),
        ("10<sup>−8</sup> and 10 <sup>8</sup>", "10^−8 and 10 ^8"),
        ("5 m<sup>2</sup>, 5 km&nbsp;s<sup>-1</sup>", "5 m^2, 5 km s^-1"),
        ("2<sup>3<sup>2</sup></sup>", "2^(3^2)"),
        ("e<sup>x + 1</sup>, x<sup>n</sup>", "e^(x + 1), x^n"),
        ("<i>x</i><sup>2</sup> and <b>x<sup>2</sup></b>", "x^2 and x^2"),
        ("(a + b)<sup>2</sup>", "(a + b)^2"),
        ("30 inches<sup>2</sup>, 2 meters<sup>3</sup>, per mile<sup>2</sup>", "30 inches^2, 2 meters^3, per mile^2"),
        ("sinh<sup>2</sup> x, diameter<sup>2</sup>", "sinh^2 x, diameter[2]"),
        ("the 21<sup>st</sup> and M<sup>me</sup> X<sup>TM</sup>", "the 21st and Mme X^TM"),
        ("30 <sup>°</sup>C, cat<sup>*</sup>", "30 °C, cat*"),
        ("5<sup>1</sup>/<sub>2</sub> or <sup>3</sup>⁄<sub>4</sub> cups", "5 1/2 or 3⁄4 cups"),
        ("<sup>14</sup>C, Na<sup>+</sup>, SO<sub>4</sub><sup>2−</sup>", "^14C, Na^+, SO4^2−"),
        ("H<sub>2</sub>O, Ca(OH)<sub>2</sub>, C<sub>6</sub>H<sub>12</sub>", "H2O, Ca(OH)2, C6H12"),
        ("x<sub>1</sub> + x<sub>i+1</sub>, log<sub>2</sub>", "x_1 + x_(i+1), log_2"),
        ("10<sup></sup>8", "108"),  # nothing is raised
        (f"a<sup>{'small print ' * 9}</sup>", f"a{'small print ' * 9}".strip()),
    ],
)
def test_raised_and_lowered_signs_are_no_digits_of_the_number_before_them(markup, text):
    assert text_of(f"<p>{markup}</p>") == text


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("Havana<sup>[1]</sup>, in 2008<sup>[12]</sup>", "Havana, in 2008"),
        ('2,130<sup><a href="#cite_note-1">[1]</a></sup> people', "2,130 people"),
        ('2008<sup class=reference><a href="/wiki/Cuba#cite_note-1"><span>[</span>7<span>]</span></a></sup>', "2008"),
        ('2008<sup><a href="#fn2">2</a></sup>.', "2008."),
        ('2008<a href="#fn2"><sup>2</sup></a>.', "2008."),
        ('2008<a href="#fn2">2</a>.', "2008."),
        ("old<sup>[<a href=/w>citation needed</a>]</sup>", "old"),
        ("Havana<sup>3</sup> is old.<sup>12</sup> Or<sup>1,2</sup>", "Havana[3] is old.[12] Or^(1,2)"),
        ("<sup>3</sup> A note", "[3] A note"),
        ('Fig.<a href="#f3">3</a>, Eq.<a href="#eq2">2</a>, Table<a href="#t1">1</a>', "Fig.3, Eq.2, Table1"),
        ('see section <a href="#s5">5</a> of <a href="/5">5</a>', "see section 5 of 5"),
    ],
)
def test_marks_of_footnotes_are_left_out_or_bracketed(markup, text):
    assert text_of(f"<p>{markup}</p>") == text


SQUARE = "<msup><mi>c</mi><mn>2</mn></msup>"
TEX = "<annotation encoding='application/x-tex'>{\\displaystyle E=mc^{2}}</annotation>"


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        (f"<math><mi>E</mi><mo>=</mo><mi>m</mi>{SQUARE}</math>", "E=mc^2"),
        ("<math><msubsup><mi>x</mi><mn>1</mn><mn>2</mn></msubsup></math>", "x_1^2"),
        ("<math><msup><mi>x</mi><mfrac><mn>1</mn><mn>2</mn></mfrac></msup></math>", "x^(1/2)"),
        ("<math><mn>2</mn><mfrac><mn>1</mn><mn>2</mn></mfrac></math>", "2 1/2"),
        ("<math><mroot><mn>8</mn><mn>3</mn></mroot></math>", "root(3, 8)"),
        ("<m:math><m:msup><m:mn>10</m:mn><m:mn>8</m:mn></m:msup></m:math>", "10^8"),
        (f"<math><msup><mi>e</mi>{SQUARE}</msup></math>", "e^(c^2)"),
        (
            "<math><mfrac><mrow><mi>a</mi><mo>+</mo><mi>b</mi></mrow><mn>2</mn></mfrac><msqrt><mi>x</mi></msqrt></math>",
            "(a+b)/2√(x)",
        ),
        ("<math><mtable><mtr><mtd>1</mtd><mtd>2</mtd></mtr><mtr><mtd>3</mtd></mtr></mtable></math>", "1 2 ; 3 ;"),
        (f"<math><semantics><mi>E</mi>{TEX}</semantics></math>", "\\(E=mc^{2}\\)"),
        ("<math alttext='E=mc^2'><mi>E</mi></math>", "\\(E=mc^2\\)"),
        (f"<span style='display: none;'><math><semantics><mi>E</mi>{TEX}</semantics></math></span>", "\\(E=mc^{2}\\)"),
        (f"<math><semantics>{TEX}</semantics></math><span class=katex-html>E=mc2</span>", "\\(E=mc^{2}\\)"),
    ],
)
def test_formulas_are_shown_as_latex_or_by_their_signs(markup, text):
    assert text_of(f"<p>So {markup}</p>") == f"So {text}"
    assert beside_an_article(f"<div>So {markup}</div>") == [f"So {text}"]


# Code


@pytest.mark.parametrize(
    ("markup", "lines"),
    [
        ("<pre>def f():\n    if x:\n\n        return\t1\n</pre>", ["def f():", "    if x:", "", "        return\t1"]),
        ("<pre>\n  a\n    b</pre>", ["  a", "    b"]),
        ("<pre><code><span>if</span> x:\n  <b>y</b></code></pre>", ["if x:", "  y"]),
        ("<pre>a<br>  b<br>&nbsp;&nbsp;c</pre>", ["a", "  b", "  c"]),
        ("<pre><div>a</div><div>  b</div></pre>", ["a", "  b"]),
        ("<pre>x<sup>2</sup>  H<sub>2</sub></pre>", ["x^2  H2"]),
        ("<ul><li>Code:<pre>a\n  b</pre></li></ul>", ["- Code: ", "a", "  b"]),
        ("<figure><pre>a\n  b</pre></figure>", ["a", "  b"]),
        ("<p>one\n     two</p>", ["one two"]),
    ],
)
def test_code_keeps_its_lines_and_indentation_and_other_text_does_not(markup, lines):
    assert beside_an_article(markup) == lines


def test_a_page_of_code_alone_keeps_its_indentation_also_if_it_is_read_plainly():
    page = "<p>Use   it:</p><pre>def f():\n    return   1</pre><p>10<sup>8</sup></p>"
    for plain in (False, True):
        assert text_of(page, plain) == "Use it:\ndef f():\n    return   1\n10^8"


# Blocks


@pytest.mark.parametrize(
    ("markup", "lines"),
    [
        ("<div>Is it old? <b>Yes</b>, of 1519.</div>", ["Is it old? Yes, of 1519."]),
        ("<div><div>Question?</div><div>Answer.</div></div>", ["Question?", "Answer."]),
        ("<div>Before <ul><li>item</li></ul> after 10<sup>3</sup></div>", ["Before", "- item", "after 10^3"]),
        ("<section>In a <i>section</i><p>paragraph</p></section>", ["In a section", "paragraph"]),
        ("<span>Loose <div>in a div</div> text</span>", ["Loose", "in a div", "text"]),
        ("<faq-item>Custom text</faq-item>", ["Custom text"]),
        ("<figure><img src=x><figcaption>The harbour.</figcaption></figure>", ["The harbour."]),
        ("<p class=wp-caption-text>The harbour.</p>", ["The harbour."]),
        ("<details><summary>When?</summary>In 1519.</details>", ["When?", "In 1519."]),
        ("<details><summary>Who?</summary><div>Velázquez.</div></details>", ["Who?", "Velázquez."]),
        ("<h3><button>When?</button></h3><div>In 1519.</div>", ["When?", "In 1519."]),
        ("<dl><dt>Area</dt><dd><div>728 km</div></dd><dt>Mayor</dt></dl>", ["- Area", "- 728 km", "- Mayor"]),
        ("<p>It was on <time datetime=x>5 May 2020</time>.</p>", ["It was on 5 May 2020."]),
    ],
)
def test_visible_text_of_any_block_stands_beside_the_paragraphs(markup, lines):
    assert beside_an_article(markup) == lines


@pytest.mark.parametrize(
    "markup",
    [
        "<div hidden>secret</div>",
        "<p hidden>secret</p>",
        "<div style='color: red; DISPLAY:NONE'><div>secret</div></div>",
        "<p style='visibility: hidden'>secret</p>",
        "<dialog>secret</dialog>",
        "<template><div>secret</div></template>",
        "<div><script>secret()</script></div>",
        "<div class=cookie-banner>We use cookies. <button>Accept</button></div>",
        "<div id=consent><div>We value your privacy.</div></div>",
        "<div role=dialog><div>Subscribe now.</div></div>",
        "<nav>Menu</nav><footer>Imprint</footer><aside>Read more</aside>",
        "<div><a href=/1>Next</a> | <a href=/2>Last</a></div>",
        "<form><label>Name</label><button>Send</button></form>",
    ],
)
def test_hidden_text_notices_and_navigation_stay_out(markup):
    assert beside_an_article(markup) == []


@pytest.mark.parametrize(
    ("container", "stays"),
    [
        ("article class='post hentry tag-python category-share'", True),
        ("div class='comments-open has-sidebar tag-share'", True),
        ("div class=elementor-widget-container", True),
        ("main class=content-with-comments", True),
        ("div class='share-buttons social-links'", False),
        ("div id=comments class=commentList", False),
        ("div class='widget widget_recent_entries'", False),
        ("div class='author-box postMeta'", False),
        ("div class='newsletter_signup sign-up'", False),
    ],
)
def test_a_block_is_a_notice_by_whole_words_of_its_name(container, stays):
    assert beside_an_article(f"<{container}><div>Answer.</div></{container.split()[0]}>") == ["Answer."] * stays


@pytest.mark.parametrize("name", ["recommended", "login", "promotion"])
def test_what_holds_most_of_a_page_is_no_notice(name):
    within = f"<div class={name}>{ARTICLE}<div>Plain answer.</div>{ARTICLE}</div>"
    assert "Plain answer." in text_of(f"<article>{ARTICLE}{within}</article>")


def test_a_page_that_hides_itself_until_its_scripts_run_is_read():
    assert text_of(f"<div style='visibility: hidden'>{ARTICLE}</div><div>Loading</div>").startswith(SENTENCES[0])
    assert text_of("<p>Shown, and longer.</p><div hidden>secret</div>") == "Shown, and longer."


def test_tables_keep_every_column_also_a_page_that_is_one_table():
    rows = "".join(f"<tr><td>Row {n}</td><td></td><td>{n} m<sup>2</sup></td></tr>" for n in range(30))
    lines = text_of(f"<table><tr><th></th><th>A</th><th>B</th></tr>{rows}</table>").split("\n")
    assert lines[:3] == ["| | A | B |", "|---|---|---|", "| Row 0 | | 0 m^2 |"] and len(lines) == 32
    assert beside_an_article("<table><tr><td><div>a</div></td><td>b</td></tr></table>") == ["| a | b |"]


def test_a_page_of_divs_alone_is_read():
    text = text_of("".join(f"<div>{sentence} 10<sup>3</sup></div>" for sentence in SENTENCES))
    assert text.split("\n") == [f"{sentence} 10^3" for sentence in SENTENCES]


@pytest.mark.parametrize(
    "markup",
    [
        "<p>" + "x<sup>2</sup>" * 10_000,
        "<p>" + "x<b hidden>y</b>" * 10_000,
        "<p>" + "<math><msup><mi>a</mi><mn>2</mn></msup></math>" * 5_000,
        "<p>" + ("<math><mfrac>" * 100 + "x" + "</mfrac></math>" * 100) * 50,
        "<div>" + "a<b>c</b><div>b</div>" * 5_000,
        ("<div><pre>" * 100 + "x" + "</pre></div>" * 100) * 50,
    ],
)
def test_signs_and_blocks_are_rewritten_in_linear_time(markup):
    import trafilatura

    from trl_agentic.tools.web.page_text import blocks, notation

    tree = trafilatura.load_html(f"<html><body>{markup}</body></html>")
    start = time.process_time()
    for rewrite in (notation.write_formulas, blocks.empty_hidden, notation.write_scripts, blocks.hold_code):
        rewrite(tree)
    blocks.mark_paragraphs(tree)
    assert time.process_time() - start < 2.0  # some 0.2 s; quadratic ones take 5 s and more
