"""Chat templates: Jinja kept within bounds, the environment templates expect, typed control tokens that
stay text."""

import json
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from engine import budget
from engine.errors import TemplateError
from engine.sandbox import compile_template
from engine.source import DirectorySource
from engine.template import ChatTemplate
from engine.tokenizer import Tokenizer


def render(source: str, **variables: Any) -> str:
    return compile_template(source)(variables)


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{% for i in range(3) %}{{ i }}{% if not loop.last %},{% endif %}{% endfor %}", "0,1,2"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("a\n  {%- if true %}\n  b\n  {% endif %}\nc", "a  b\nc"),
        ("{{ {'b': 'ü<&', 'a': [1]} | tojson }}", '{"b": "ü<&", "a": [1]}'),
        ("{{ [1, 2] | tojson(indent=1) }}", "[\n 1,\n 2\n]"),
        ("{% generation %}x{% endgeneration %}y", "xy"),
        ("{{ 'a' ~ 1 ~ none }}", "a1None"),
        ("{{ 'x' * 3 + 'y' }}", "xxxy"),
        ("{{ 'a-b-a'.replace('a', 'cc') }}{{ 'aa'|replace('a','b',1) }}", "cc-b-ccba"),
        ("{{ ', '.join(['a', 'b']) }}", "a, b"),
        ("{% macro m(x) %}[{{ x }}]{% endmacro %}{{ m('q') }}", "[q]"),
        (
            "{% set s = namespace(n=0) %}{% for i in [1,2] %}{% set s.n = s.n + i %}{% endfor %}{{ s.n }}",
            "3",
        ),
        ("{{ messages[0].role }}{{ messages[-1]['content'][:2] }}", "userhe"),
        ("{{ strftime_now('%Y')|length }}", "4"),
        ("{{ '%s=%d' % ('a', 3) }}", "a=3"),
        ("{{ '{}={x:>3}'.format('a', x=3) }}", "a=  3"),
        ("{{ messages|map(attribute='role')|join('+') }}{{ messages|join('+', 'role') }}", "useruser"),
        ("{{ [3, 1, 2]|sort|join }}{{ [1, 2]|sum }}{{ messages|sum('n', 5) }}", "123310"),
        ("{{ messages|selectattr('role', 'equalto', 'user')|list|length }}", "1"),
        (
            "{{ 'a b  c'.split() }}{{ 'a-b'.split('-', 1)[1] }}{{ 'a\nb'.splitlines()|length }}",
            "['a', 'b', 'c']b2",
        ),
        ("{{ ('a' ~ ('b' ~ 1)) ~ ['c', {'d': none}] }}", "ab1['c', {'d': None}]"),
        ("{{ messages[::-1][0].get('content')[1:3]|upper|indent(2, true) }}", "  EL"),
        ("{% set x %}a{{ 1 }}{% endset %}{% filter upper %}{{ x }}{% endfilter %}", "A1"),
        (
            "{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}{{ {'b': 2}|items|list }}",
            "a1[('b', 2)]",
        ),
        ("{% set n = namespace(a=1) %}{{ n is defined }}{{ n.a == 1 }}{{ 'a' in ['a'] }}", "TrueTrueTrue"),
        (
            "{{ missing }}{{ missing is defined }}{{ missing|default('d') }}",
            "Falsed",
        ),
        ("{% macro m() %}{{ caller() }}!{% endmacro %}{% call m() %}c{% endcall %}", "c!"),
        ("{{ '<'|e }}{{ ('<'|e + '<') }}{{ '<b>'|safe }}", "&lt;&lt;&lt;<b>"),
    ],
)
def test_what_templates_use(source: str, text: str) -> None:
    assert render(source, messages=[{"role": "user", "content": "hello", "n": 5}]) == text


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% for a in range(10**9) %}{% endfor %}",
        "{{ 'x' * 10**9 }}",
        "{{ 10**9 * 'x' }}",
        "{% set a = namespace(s='xxxxxxxx') %}{% for i in range(99) %}{% set a.s = a.s + a.s %}{% endfor %}",
        "{% set a = namespace(s='xxxxxxxx') %}{% for i in range(99) %}{% set a.s = a.s ~ a.s %}{% endfor %}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set x = 'a' * 9999 %}{{ x.replace('a', x) }}",
        "{% set x = 'a' * 9999 %}{{ x|replace('a', x) }}",
        "{% set x = 'a' * 999999 %}{{ x.join(range(999)) }}",
        "{% set x = 'a' * 999999 %}{{ range(999)|join(x) }}",
        "{{ '%999999999d' % 1 }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ 'x'.ljust(10**9) }}",
        "{{ 9**9**9**9 }}",
        "{% for i in range(9999) %}{{ 'x' * 9999 }}{% endfor %}",
        "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__.sys }}",
        "{{ messages.append(1) }}",
        "{{ undefined.attribute.more }}",
        "{{ 1 / 0 }}",
        "{{ [1]|tojson(indent=10**9) }}",
        "{% if %}",
        "{{ strftime_now('%Y' * 1000) }}",
        "{{ '%*d' % (10**9, 1) }}",
        "{{ '{:{}}'.format(1, 10**9) }}",
        "{{ '\t'.expandtabs(tabsize=10**9) }}",
        "{{ 'a'.translate({97: 'b' * 99}) }}",
        "{{ (5).to_bytes(10**9, 'big') }}",
        "{{ {}.fromkeys([1]) }}",
        "{{ 'x'.encode() }}",
        "{{ [1]|batch(10**9, 'x')|list }}",
        "{{ [1]|slice(10**9)|list }}",
        "{{ 1|round(10**9, 'ceil') }}",
        "{{ 'x'|indent(10**8) }}",
        "{{ 'x'.__class__ }}{{ ''|attr('__class__') }}",
        "{% for i in 5 %}{% endfor %}",
        "{{ '\ud800' * 2 ~ 10**9|int * 'x' }}",
        "{% for a in [1] %}" * 30 + "{% endfor %}" * 30,
        "{{ 1" + "0" * 5000 + " }}",
        "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}",
        "x" * (1 << 20),
    ],
)
def test_what_a_template_cannot_do(source: str) -> None:
    with pytest.raises(TemplateError):
        render(source, messages=[])


def test_a_template_that_only_takes_time_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "LONGEST_TIME_S", -1.0)
    with pytest.raises(TemplateError, match="does not come to an end"):
        render("{% for i in range(5000) %}{% endfor %}")


TEXT = "{% set x = 'ab ' * 5000000 %}"  # 15 MB
NESTED = "{% set n = namespace(a=['x']) %}{% for i in range(60) %}{% set n.a = (n.a, n.a) %}{% endfor %}"
OTHER = "{% set m = namespace(a=['x']) %}{% for i in range(60) %}{% set m.a = (m.a, m.a) %}{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [
        TEXT + "{% set y = x|upper|lower %}" * 300,
        TEXT + "{% for i in range(10**5) %}{% if x.upper() == 'a' %}{% endif %}{% endfor %}",
        TEXT + "{% if (x ~ 'a') in x %}{% endif %}" * 2000,
        TEXT
        + "{% set n = namespace(l=[]) %}{% for i in range(999) %}{% set n.l = n.l + [x[1:]] %}{% endfor %}",
        TEXT + "{% macro m() %}{{ x }}{% endmacro %}{% set y = [m()] %}" * 99,
        TEXT + "{% set y %}{{ x }}{% endset %}" * 99,
        TEXT + "{{ x.split()|length }}",
        TEXT + "{{ x|list|length }}",
        TEXT + "{{ x|title|length }}",
        TEXT + "{{ x|sort|length }}",
        TEXT + "{{ (x|e ~ x)|length }}",
        TEXT + "{{ '%s%s' % (x, x) }}",
        TEXT + "{{ ('%s' * 9999) % ((x,) * 9999) }}",
        TEXT + "{{ '{0}{0}'.format(x) }}",
        TEXT + "{{ ([x] * 9999)|sort|length }}",
        TEXT + "{{ ([x] * 9999)|tojson|length }}",
        TEXT + "{{ ([x] * 9999)|string|length }}",
        TEXT + "{{ [x] * 9999 ~ '' }}",
        TEXT + "{{ [1, 2]|tojson(separators=[x, x]) }}",
        TEXT + "{{ x|indent(99)|length }}",
        "{{ ([3, 1, 2] * 10**7)|sort|length }}",
        "{{ ([[1] * 9999] * 9999)|sum(start=[])|length }}",
        NESTED + "{{ n.a }}",
        NESTED + "{{ n.a|string|length }}",
        NESTED + "{{ n.a ~ '' }}",
        NESTED + "{{ [n.a]|join }}",
        NESTED + "{{ '%s' % (n.a,) }}",
        NESTED + "{{ n.a|tojson|length }}",
        NESTED + OTHER + "{{ n.a == m.a }}",
        NESTED + OTHER + "{{ n.a in [m.a] }}",
        NESTED + OTHER + "{{ [n.a].index(m.a) }}",
        NESTED + OTHER + "{{ [n.a]|select('equalto', m.a)|list|length }}",
        NESTED + "{{ {n.a: 1}|length }}",
        NESTED + "{{ {}[n.a] }}",
        NESTED + "{{ [n.a]|map('first')|unique|list|length }}",
        "{% set n = namespace(x=3) %}{% for i in range(99) %}{% set n.x = n.x * n.x %}{% endfor %}",
        "{% set n = namespace(a=[]) %}{% for i in range(9999) %}{% set n.a = [n.a] %}{% endfor %}{{ n.a }}",
    ],
)
def test_time_and_memory_of_a_rendering_are_bounded(source: str) -> None:
    rendered = compile_template(source)
    tracemalloc.start()
    started = time.process_time()
    try:
        with pytest.raises(TemplateError):
            rendered({"messages": []})
        took, most = time.process_time() - started, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert took < 2 * budget.LONGEST_TIME_S
    assert most < 2 * budget.MOST_BYTES


def test_a_long_conversation_is_within_the_bounds() -> None:
    source = (
        "{% for m in messages[::-1] %}{% set last = messages|length - loop.index0 %}{% endfor %}"
        "{% for m in messages %}{% set text = m.content.split('</think>')[-1].lstrip('\n') %}"
        "{{ '<|im_start|>' + m.role + '\n' + text + '<|im_end|>\n' }}{% endfor %}"
    )
    messages = [{"role": "user", "content": "<think>a</think>\n" + "wörter " * 400}] * 3000
    assert len(render(source, messages=messages)) > 8_000_000


def test_a_template_may_refuse_in_its_own_words() -> None:
    with pytest.raises(TemplateError, match="roles must alternate"):
        render("{{ raise_exception('roles must alternate') }}")


@pytest.fixture
def tokenizer(oracle: Path) -> Tokenizer:
    tokenizer = Tokenizer.open(DirectorySource(oracle / "olmoe"))
    assert tokenizer is not None
    return tokenizer


def marks(tokenizer: Tokenizer, ids: list[int]) -> int:
    return sum(ident in tokenizer.control.values() for ident in ids)


PARTS = (
    "{% for m in messages %}<|im_start|>"
    "{% for p in m.content %}{{ p.text }}{% endfor %}<|im_end|>{% endfor %}"
)


@pytest.mark.parametrize(
    "parts",
    [
        ["<|im_end|>"],
        ["<|im_", "end|>"],
        ["<", "|im_end|>"],
        ["<|im_end|", ">"],
        ["<", "|", "im_end", "|", ">"],
        ["<|im_<|im_end|>end|>"],
        ["\U00100000im_end|>", "<|im_end|>"],
    ],
)
def test_no_arrangement_of_typed_text_makes_a_control_token(tokenizer: Tokenizer, parts: list[str]) -> None:
    template = ChatTemplate(PARTS, tokenizer)
    prompt = template.prompt([{"role": "user", "content": [{"text": part} for part in parts]}])
    assert marks(tokenizer, prompt.ids) == 2
    assert prompt.text == "<|im_start|>" + "".join(parts) + "<|im_end|>"
    assert tokenizer.decode(prompt.ids) == "".join(parts)


def test_tools_and_further_variables_reach_the_template(tokenizer: Tokenizer) -> None:
    template = ChatTemplate(
        "{{ tools|tojson }}{{ enable_thinking }}{{ bos_token }}{{ eos_token }}", tokenizer
    )
    prompt = template.prompt([], tools=[{"name": "f", "description": "<|im_end|> ü"}], enable_thinking=False)
    assert prompt.text == '[{"name": "f", "description": "<|im_end|> ü"}]False<|im_end|>'
    assert marks(tokenizer, prompt.ids) == 1


def test_a_role_is_a_word(tokenizer: Tokenizer) -> None:
    template = ChatTemplate("{{ messages[0].role }}", tokenizer)
    for role in ("<|im_end|>", "", None, "user\n", "a b"):
        with pytest.raises(TemplateError, match="is no role"):
            template.prompt([{"role": role, "content": "x"}])


def folder(path: Path, oracle: Path, config: dict[str, Any] | None, jinja: str | None = None) -> Path:
    (path / "tokenizer.json").write_bytes((oracle / "olmoe" / "tokenizer.json").read_bytes())
    if config is not None:
        (path / "tokenizer_config.json").write_text(json.dumps(config))
    if jinja is not None:
        (path / "chat_template.jinja").write_text(jinja)
    return path


@pytest.mark.parametrize(
    ("config", "jinja", "text"),
    [
        ({"chat_template": "one"}, None, "one"),
        ({"chat_template": "one"}, "file", "file"),
        (
            {"chat_template": [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]},
            None,
            "d",
        ),
        ({"chat_template": {"only": "o"}}, None, "o"),
        (None, None, "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"),
    ],
)
def test_where_the_template_comes_from(
    tmp_path: Path, oracle: Path, config: dict[str, Any] | None, jinja: str | None, text: str
) -> None:
    source = DirectorySource(folder(tmp_path, oracle, config, jinja))
    tokenizer = Tokenizer.open(source)
    assert tokenizer is not None
    template = ChatTemplate.open(source, tokenizer)
    assert template is not None
    assert template.prompt([{"role": "user", "content": "hi"}]).text == text
    if text == "d":
        assert template.prompt([{"role": "user", "content": "hi"}], tools=[{"name": "f"}]).text == "t"
    override = ChatTemplate.open(source, tokenizer, override="own")
    assert override is not None
    assert override.prompt([]).text == "own"
