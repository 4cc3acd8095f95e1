"""Code as models write it: what is taken off, what is not, and what a model is told that takes this for a notebook."""

import ast

import pytest

from trl_agentic.tools.python_sandbox.notations import advice, parse, shows_figure

FENCE = "`" * 3


def lines_of(code: str) -> list[tuple[int, str]]:
    """Each statement with the number of its line in what the model wrote."""
    return [(statement.lineno, ast.unparse(statement)) for statement in parse(code).body]


@pytest.mark.parametrize(
    ("code", "statements"),
    [
        # a margin
        ("    x = 1\n    x\n", [(1, "x = 1"), (2, "x")]),
        ("\tif x:\n\t\ty\n", [(1, "if x:\n    y")]),
        ("  x = 1\r\n  x\r\n", [(1, "x = 1"), (2, "x")]),
        ("x = 1\n    y = 2\n    y", [(1, "x = 1"), (2, "y = 2"), (3, "y")]),  # as `str.strip` leaves it
        ("    x = '''\n    a\n    '''", [(1, "x = '\\na\\n'")]),
        # a fence
        (f"{FENCE}python\nx\n{FENCE}", [(2, "x")]),
        (f"\n{FENCE}\nx\n{FENCE}\n", [(3, "x")]),
        ("~~~~ {.python}\nx\n~~~~", [(2, "x")]),
        (f"{FENCE}py\r\nx\r\n{FENCE}\r\n", [(2, "x")]),
        (f"    {FENCE}tool_code\n    x\n    {FENCE}", [(2, "x")]),
        (f"{FENCE}python\nx", [(2, "x")]),
        (f"x\n{FENCE}\n", [(1, "x")]),
        (f"Let's see:\n{FENCE}python\nx\n{FENCE}\nThat is it.", [(3, "x")]),
        (f"{FENCE}python\nx\n{FENCE}\nThen\n{FENCE}python\ny\n{FENCE}\n{FENCE}\n42\n{FENCE}", [(2, "x"), (6, "y")]),
        (f"````\nx = '''\n{FENCE}\n'''\n````", [(2, f"x = '\\n{FENCE}\\n'")]),
        # prompts
        (">>> x = 1\n>>> x\n1", [(1, "x = 1"), (2, "x")]),
        (">>> for x in y:\n...     x\n...\n1\n2\n>>> 'a'\n'a'\n", [(1, "for x in y:\n    x"), (6, "'a'")]),
        ("  >>> x = '''\n  ... a'''\n", [(1, "x = '\\na'")]),
        (">>>x\r\n1\r\n", [(1, "x")]),
        ("In [1]: for x in y:\n   ...:     x\n   ...: \nOut[1]: 3", [(1, "for x in y:\n    x")]),
        # one inside the other
        (f"{FENCE}python\n    >>> x\n    1\n{FENCE}", [(2, "x")]),
        (f"1. Compute:\n   {FENCE}python\n   x = 1\n   x\n   {FENCE}", [(3, "x = 1"), (4, "x")]),
    ],
)
def test_margin_fence_and_prompts_are_taken_off_and_lines_keep_their_number(code, statements):
    assert lines_of(code) == statements


@pytest.mark.parametrize(
    "code",
    [
        "",
        "x = '''\n    >>> y\n'''",
        f"x = '''\n{FENCE}python\ny\n{FENCE}\n'''",
        "x = (17\n% 5)",
        "x = f'{y!r} {y!s:>5}'",
        "if x:\n\ty = '''\n    z'''\r\n",
        "async def f():\n    await x",
        "x = 1  # >>> y",
        "...",
    ],
)
def test_code_that_is_python_is_left_alone(code):
    assert ast.dump(parse(code), include_attributes=True) == ast.dump(ast.parse(code), include_attributes=True)


@pytest.mark.parametrize(
    ("code", "line", "message"),
    [
        ("def f(:\n    return 1", 1, "invalid syntax"),
        ("x = (", 1, "'(' was never closed"),
        ("class A:\n  x = 1\n y = 2", 3, "unindent does not match any outer indentation level"),
        ("x = 1\n  y = (", 2, "'(' was never closed"),
        ("Let's see:\nx = 1", 1, "unterminated string literal (detected at line 1)"),
        ("x = 1\n>>> y = 2", 2, "invalid syntax"),  # else the first line would be lost
        (f"{FENCE}python\nx = 'a\n{FENCE}", 2, "unterminated string literal (detected at line 2)"),
        # what stands inside a text is not run in the place of the program
        (f"x = '''\n{FENCE}python\ny\n{FENCE}\n'''\nz = (", 6, "'(' was never closed"),
        ("x = '''\n>>> y\n'''\nz = (", 4, "'(' was never closed"),
        (f"{FENCE}\n{FENCE}", 1, "invalid syntax"),
    ],
)
def test_what_is_no_python_either_way_is_an_error_at_its_line(code, line, message):
    with pytest.raises(SyntaxError) as error:
        parse(code)
    assert (error.value.lineno, error.value.msg) == (line, message)
    assert advice(error.value) is None


@pytest.mark.parametrize(
    ("code", "line", "words"),
    [
        ("!pip install sympy", 1, "nothing can be installed"),
        ("import math\n%pip install -q sympy", 2, "nothing can be installed"),
        ("pip install sympy", 1, "nothing can be installed"),
        (f"{FENCE}bash\npython3 -m pip install sympy\n{FENCE}", 2, "nothing can be installed"),
        ("!apt-get -y install gcc", 1, "nothing can be installed"),
        ("!ls", 1, "no shell"),
        ("files = !ls", 1, "no shell"),
        ("!echo 'a", 1, "no shell"),
        ("%matplotlib inline\nx", 1, "leave the line out"),
        ("x = 1\n%%time\nx", 2, "leave the line out"),
        ("for x in y:\n    %timeit x", 2, "leave the line out"),
        ("await x", 1, "asyncio.run(main())"),
        ("x = 1\nasync with x:\n    pass", 2, "asyncio.run(main())"),
        ("[x async for x in y]", 1, "asyncio.run(main())"),
        ("def f():\n    await x", 2, "asyncio.run(main())"),
    ],
)
def test_what_a_notebook_alone_understands_is_answered_with_what_to_do_instead(code, line, words):
    with pytest.raises(SyntaxError) as error:
        compile(parse(code), "<python>", "exec")
    assert error.value.lineno == line and words in advice(error.value)


@pytest.mark.parametrize(
    "code", ["x = (17 +\n% 5)", "x = (17\n% 5x)", "return 1", "yield", "if x = 1:\n    y", "print 1"]
)
def test_other_errors_keep_their_own_words(code):
    with pytest.raises(SyntaxError) as error:
        compile(parse(code), "<python>", "exec")
    assert advice(error.value) is None


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("plt.show()", True),
        ("def f():\n    pyplot.show(block=False)", True),
        ("fig.show()", True),
        ("plt.show", False),
        ("# plt.show()\n'plt.show()'", False),
        ("table.show()", False),
    ],
)
def test_a_figure_is_shown_where_plt_show_is_called(code, expected):
    assert shows_figure(parse(code)) is expected
