//! Templates that mean harm, and what stays as it is for the others.

use serde_json::json;

use crate::conversation::Message;
use crate::template::{ChatTemplate, GenerationPrompt};

fn rendered(source: &str) -> Result<String, String> {
    let mut message = Message::new("user", "  it's  ");
    message
        .extra
        .insert("calls".into(), json!([{"a": 1.5, "b": [null, "é"]}]));
    let messages = [message, Message::new("assistant", "yes")];
    let template = ChatTemplate::from_source(source, Some("<s>"), None);
    let text =
        template.and_then(|template| template.render(&messages[..], GenerationPrompt::Without));
    text.map_err(|error| error.to_string())
}

/// Fails with a message that contains `part`.
fn stopped(part: &str, source: &str) {
    let shown: String = source.chars().take(200).collect();
    match rendered(source) {
        Ok(text) => panic!("{shown} gave {} bytes", text.len()),
        Err(message) => assert!(message.contains(part), "{shown}\ngave\n{message}"),
    }
}

const GROWING: &str = "{% set ns = namespace(x='0123456789') %}{% for i in range(90) %}";
const LARGE: &str = "{% set x = 'a' * 10000000 %}";

#[test]
fn an_empty_text_is_counted_and_replaced_as_in_python() {
    // Expected: `'aé'.count('')` and `'aé'.replace('', '-')` in Python.
    let source = "{{ 'aé'.count('') }} {{ 'aé'.replace('', '-') }} {{ 'aaa'.count('aa') }} {{ 'aaa'.replace('a', 'b', 2) }}";
    assert_eq!(rendered(source).unwrap(), "3 -a-é- 1 bba");
}

/// Each of these prints what stands behind it.
fn print_as_expected(table: &[(&str, &str)]) {
    for (source, expected) in table {
        assert_eq!(rendered(source).as_deref(), Ok(*expected), "{source}");
    }
}

// Expected in the tables: Jinja 3.1 on CPython 3.11, as `transformers` 5 sets it up.
#[test]
fn texts_are_searched_by_characters() {
    print_as_expected(&[
        (
            "{{ 'héllo é'.find('é') }} {{ 'héllo é'.find('é', 2) }} {{ 'héllo é'.find('é', -1) }}",
            "1 6 6",
        ),
        (
            "{{ 'héllo é'.find('é', 0, 1) }} {{ 'héllo é'.find('q') }} {{ 'abc'.find('b', none, 2) }}",
            "-1 -1 1",
        ),
        (
            "{{ 'héllo é'.rfind('é') }} {{ 'héllo é'.rfind('é', 0, 6) }} {{ 'abc'.rfind('') }}",
            "6 1 3",
        ),
        (
            "{{ 'abc'.find('', 3) }} {{ 'abc'.find('', 4) }} {{ 'abc'.find('b', 2, 1) }}",
            "3 -1 -1",
        ),
        (
            "{{ 'héllo é'.index('é', 2) }} {{ 'héllo é'.rindex('l') }} {{ [3, 1].index(1) }}",
            "6 3 1",
        ),
        (
            "{{ 'a é a'.count('a', 1) }} {{ 'aaa'.count('', 1, 2) }}",
            "1 2",
        ),
        (
            "{{ 'abc'.startswith(('x', 'a')) }} {{ 'abc'.startswith('b', 1) }} {{ 'ébc'.startswith('b', 1) }}",
            "True True True",
        ),
        (
            "{{ 'abc'.endswith(('b', 'c')) }} {{ 'abc'.endswith('b', 0, 2) }} {{ 'abc'.endswith('bc', -2) }}",
            "True True True",
        ),
        (
            "{{ 'abc'.startswith('', 4) }} {{ 'abc'.endswith('b') }}",
            "False False",
        ),
    ]);
    for source in ["{{ 'abc'.index('z') }}", "{{ [1].index(2) }}"] {
        assert!(
            rendered(source).unwrap_err().contains("has no such"),
            "{source}"
        );
    }
}

#[test]
fn texts_are_cut_from_both_ends() {
    print_as_expected(&[
        (
            "{{ 'a.b.c'.rsplit('.') }} {{ 'a.b.c'.rsplit('.', 1) }}",
            "['a', 'b', 'c'] ['a.b', 'c']",
        ),
        (
            "{{ ' a  b c '.rsplit() }} {{ ' a  b c '.rsplit(maxsplit=1) }}",
            "['a', 'b', 'c'] [' a  b', 'c']",
        ),
        (
            "{{ ' a  b '.rsplit(none, 1) }} {{ 'a  b '.split(none, 1) }} {{ '  '.split() }}",
            "[' a', 'b'] ['a', 'b '] []",
        ),
        (
            "{{ 'a.b.c'.split('.', maxsplit=1) }} {{ ' a  b c '.split(maxsplit=1) }}",
            "['a', 'b.c'] ['a', 'b c ']",
        ),
        (
            "{{ 'a.b.c'.split(sep='.') }} {{ 'a.b'.split('.', -1) }}",
            "['a', 'b', 'c'] ['a', 'b']",
        ),
        (
            "{{ 'a.b'.split('.', 0) }} {{ 'a b c'.split(none, 0) }}",
            "['a.b'] ['a b c']",
        ),
        (
            "{{ 'a=b=c'.partition('=')|join('|') }} {{ 'abc'.partition('=')|join('|') }}",
            "a|=|b=c abc||",
        ),
        (
            "{{ 'a=b=c'.rpartition('=')|join('|') }} {{ 'abc'.rpartition('=')|join('|') }}",
            "a=b|=|c ||abc",
        ),
        (
            "{{ 'abc'.removeprefix('a') }} {{ 'abc'.removeprefix('b') }} {{ 'abc'.removesuffix('c') }}",
            "bc abc ab",
        ),
        (
            "{{ '7'.zfill(3) }} {{ '-7'.zfill(4) }} {{ '+7'.zfill(4) }} {{ 'é'.zfill(3) }} {{ 'abcd'.zfill(2) }}",
            "007 -007 +007 00é abcd",
        ),
        (
            "{{ 'a\nb'|indent('>>') }}|{{ 'a\nb'|indent('>>', true) }}|{{ 'a\n\nb'|indent(2) }}",
            "a\n>>b|>>a\n>>b|a\n\n  b",
        ),
        (
            "{{ 'a\n\nb'|indent('> ', blank=true) }}|{{ 'a\n'|indent(2) }}|{{ ''|indent(2, true) }}|",
            "a\n> \n> b|a\n|  |",
        ),
    ]);
}

#[test]
fn numbers_are_read_rounded_and_summed_as_in_jinja() {
    print_as_expected(&[
        (
            "{{ 'x'|int }} {{ 'x'|int(5) }} {{ 'x'|int(default=7) }} {{ none|int }} {{ [1]|int }}",
            "0 5 7 0 0",
        ),
        (
            "{{ '3.9'|int }} {{ ' 42 '|int }} {{ 3.7|int }} {{ 'ff'|int(0, 16) }}",
            "3 42 3 255",
        ),
        (
            "{{ '0x1f'|int(0, 16) }} {{ '-0B11'|int(0, 2) }} {{ '0o17'|int(base=8) }} {{ '0x1f'|int }} {{ '0x-1'|int(7, 16) }}",
            "31 -3 15 0 7",
        ),
        (
            "{{ 'x'|int(none) }} {{ 'x'|int(default=none) }} {{ 'x'|float(none) }}",
            "None None None",
        ),
        (
            "{{ 'x'|float }} {{ 'x'|float(1.5) }} {{ ' 2.5 '|float }} {{ '3'|float }}",
            "0.0 1.5 2.5 3.0",
        ),
        (
            "{{ nope|length }} {{ nope|count }} {{ 'aé'|length }}",
            "0 0 2",
        ),
        (
            "{{ 2.5|round }} {{ 3.5|round }} {{ -0.5|round }} {{ 42|round }} {{ true|round }}",
            "2.0 4.0 -0.0 42 1",
        ),
        (
            "{{ 2.567|round(2) }} {{ 2.675|round(2) }} {{ 0.285|round(2) }} {{ 1e300|round(2) }}",
            "2.57 2.67 0.28 1e+300",
        ),
        (
            "{{ 42.55|round(1, 'floor') }} {{ 42.51|round(1, 'ceil') }} {{ 2.5|round(method='ceil') }}",
            "42.5 42.6 3.0",
        ),
        (
            "{{ 1250|round(-2) }} {{ 25|round(-1) }} {{ 35|round(-1) }} {{ 1234.5|round(-2) }}",
            "1200 20 40 1200.0",
        ),
        (
            "{{ [{'n': 1}, {'n': 2}]|sum(attribute='n') }} {{ [{'n': {'m': 2.5}}]|sum(attribute='n.m') }}",
            "3 2.5",
        ),
        (
            "{{ [[1, 2], [3, 4]]|sum(attribute=0) }} {{ [1]|sum(start=5) }} {{ [true, 2]|sum }} {{ []|sum }}",
            "4 6 3 0",
        ),
        (
            "{{ 7 % 3 }} {{ -7 % 3 }} {{ 5 % 3.5 }} {{ 2 * 7 % 4 }}",
            "1 2 1.5 2",
        ),
    ]);
    stopped("a division by zero", "{{ 7 % 0 }}");
}

#[test]
fn formats_take_values_behind_a_percent_sign() {
    print_as_expected(&[
        (
            "{{ '%s' % 'x' }} {{ '%s-%d' % ('a', 3) }} {{ '%d%%' % 5 }} {{ '%.2f' % 1.5 }}",
            "x a-3 5% 1.50",
        ),
        (
            "{{ '%s' % [1, 2] }} {{ '%s' % none }} {{ '%s' % true }} {{ '%s'|format(none) }}",
            "[1, 2] None True None",
        ),
        (
            "{{ 'x' ~ '%s' % 1 ~ 'y' }} {{ '%s' % 'a' + 'b' }}",
            "x1y ab",
        ),
        (
            "{{ '%d'|format(true) }} {{ '%5.2f'|format(true) }} {{ '%d' % 3.7 }} {{ '%i' % -3.7 }} {{ '%x' % 255 }}",
            "1  1.00 3 -3 ff",
        ),
        (
            "{{ '%s' % 3.14159265 }} {{ '%s' % 1234567.5 }} {{ '%.3s|%5s|%-3s' % ('abcd', 1.5, 'e') }}|",
            "3.14159265 1234567.5 abc|  1.5|e  |",
        ),
        (
            "{{ '%(a)s %(b)d' % {'a': none, 'b': 2.5} }} {{ '%(a)s'|format(a=[true]) }} {{ '%s' % {'a': none} }}",
            "None 2 [True] {'a': None}",
        ),
        (
            "{{ '%r' % 'a' }} {{ '%r' % none }} {{ '%05d' % 42 }} {{ '%+.1e' % 12345 }} {{ '%g' % 0.5 }} {{ '%c%c' % ('a', 66) }}",
            "'a' None 00042 +1.2e+04 0.5 aB",
        ),
        (
            "{{ '%.f' % 2.6 }} {{ '%ld' % 7 }} {{ 'x' % [1] }} {{ 'x' % {'a': 1} }}",
            "3 7 x x",
        ),
        (
            "{% for kv in {'b': 2, 'a': 1}|dictsort %}{{ '%s=%s;' % kv }}{% endfor %}",
            "a=1;b=2;",
        ),
        (
            "{{ 'December 2023 %s' % 'x' }} {{ '20231231 {} {:3d}'.format('y', 5) }} {{ '{:.1f} in 2023'.format(0.5) }}",
            "December 2023 x 20231231 y   5 0.5 in 2023",
        ),
    ]);
    for (part, source) in [
        ("more fields than", "{{ '%s %s' % 'a' }}"),
        ("fewer fields than", "{{ '%s' % ('a', 'b') }}"),
        ("expected a number", "{{ '%d' % 'a' }}"),
        ("expected an integer", "{{ '%x' % 1.5 }}"),
        ("does not have", "{{ '%(b)s' % {'a': 1} }}"),
        ("expects a mapping", "{{ '%(b)s' % 1 }}"),
        ("unknown conversion", "{{ '%y' % 1 }}"),
        ("ends inside of a field", "{{ '100%' % 1 }}"),
    ] {
        stopped(part, source);
    }
    stopped("stopped: ", "{{ '%1000000000d' % 1 }}");
    stopped(
        "stopped: ",
        &format!("{GROWING}{{% set ns.x = '%s%s' % (ns.x, ns.x) %}}{{% endfor %}}"),
    );
}

#[test]
fn kinds_of_values_are_those_of_jinja() {
    print_as_expected(&[
        (
            "{{ 'a' is sequence }} {{ {'a': 1} is sequence }} {{ [1] is sequence }}",
            "True True True",
        ),
        (
            "{{ 1 is sequence }} {{ none is sequence }} {{ nope is sequence }}",
            "False False True",
        ),
        (
            "{{ true is number }} {{ 1.5 is number }} {{ '1' is number }} {{ none is number }}",
            "True True False False",
        ),
        (
            "{{ raise_exception is callable }} {{ range is callable }} {{ nope is callable }}",
            "True True True",
        ),
        (
            "{{ 'a' is callable }} {{ none is callable }} {{ [1] is callable }}",
            "False False False",
        ),
    ]);
}

#[test]
fn a_text_that_doubles_is_stopped() {
    for step in [
        "{% set ns.x = ns.x + ns.x %}",
        "{% set ns.x = ns.x ~ ns.x %}",
        "{% set ns.x = ns.x * 2 %}",
        "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}",
        "{% set ns.x = [ns.x, ns.x]|join %}",
        "{% set ns.x = ns.x.replace('0', '00').replace('1', '11') %}",
        "{% set ns.x = ns.x|replace('0', ns.x) %}",
        "{% set ns.x = '{0}{0}'.format(ns.x) %}",
        "{% set ns.x = '%s%s'|format(ns.x, ns.x) %}",
        "{% set ns.x = ns.x|upper ~ ns.x|title %}",
        "{% set ns.x = [ns.x, ns.x]|tojson %}",
        "{% set ns.x = [ns.x, ns.x]|string %}",
    ] {
        stopped("stopped: ", &format!("{GROWING}{step}{{% endfor %}}"));
    }
}

#[test]
fn a_list_that_grows_or_nests_is_stopped() {
    let many = "{% for i in range(100000) %}";
    for (start, step) in [
        (GROWING, "{% set ns.x = [ns.x, ns.x] %}"),
        (GROWING, "{% set ns.x = dict(a=ns.x, b=ns.x) %}"),
        (GROWING, "{% set ns.x = ns.x|list + ns.x|list %}"),
        (GROWING, "{% set ns.x = ns.x|list * 2 %}"),
        (
            many,
            "{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}",
        ),
        (
            many,
            "{% set ns = namespace(x=[1]) %}{% for i in range(100000) %}{% set ns.x = ns.x|batch(1) %}{% endfor %}",
        ),
    ] {
        stopped("stopped: ", &format!("{start}{step}{{% endfor %}}"));
    }
}

#[test]
fn one_call_cannot_make_gigabytes() {
    for source in [
        "{{ messages|tojson(indent=1000000000) }}",
        "{{ messages[0].content|indent(1000000000) }}",
        "{{ messages[0].content|indent(width=1000000000) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:}>1000000000}'.format(1) }}",
        "{{ '{:{>1000000000}'.format(1) }}",
        "{{ ('{:999}' * 1000000).format(1) }}",
        "{{ ('{0}' * 10000).format('x' * 30000000) }}",
        "{{ ('{a}' * 10000).format(a='x' * 30000000) }}",
        "{{ ('{0[a]}' * 10000).format({'a': 'x' * 30000000}) }}",
        "{{ ('%(a)s' * 10000) % {'a': 'x' * 30000000} }}",
        "{{ ('%(a)s' * 10000)|format(a='x' * 30000000) }}",
        "{{ ('%999d' * 100000) % ([1] * 100000) }}",
        "{{ '%1000000000d'|format(1) }}",
        "{{ '%*d'|format(1000000000, 1) }}",
        "{{ [1]|batch(1000000000, 2) }}",
        "{{ [1]|slice(1000000000) }}",
        "{{ 'a' * 100000000 }}",
        "{{ ['a' * 100000000, 'a' * 100000000, 'a' * 100000000, 'a' * 100000000] }}",
        "{{ strftime_now('%B' * 10000) }}",
        &format!("{LARGE}{{{{ x.replace('a', x) }}}}"),
        &format!("{LARGE}{{{{ x|replace('a', x) }}}}"),
        &format!("{LARGE}{{{{ x.join(range(100000)) }}}}"),
        &format!("{LARGE}{{{{ range(100000)|join(x) }}}}"),
        &format!("{LARGE}{{% set y = x * 3 %}}{{{{ y.split('a') }}}}"),
        &format!("{LARGE}{{% set y = x * 3 %}}{{{{ y|list }}}}"),
        &format!("{LARGE}{{{{ x.strip(x) }}}}"),
        &format!("{LARGE}{{{{ x|trim(x) }}}}"),
    ] {
        stopped("stopped: ", source);
    }
}

#[test]
fn a_long_text_is_not_read_again_and_again() {
    for filter in ["int", "float", "length", "count"] {
        let source =
            format!("{{% set x = '0' * 30000000 %}}{{{{ ([x] * 100000)|map('{filter}')|list }}}}");
        stopped("exceeds 512 MiB", &source);
    }
}

#[test]
fn text_between_tags_is_bounded_where_it_is_printed_and_where_it_is_kept() {
    let text = "a line of the template\n".repeat(1000);
    let loops = "{% for i in range(100000) %}{% for j in range(100000) %}";
    let ends = "{% endfor %}{% endfor %}";
    stopped("prints more than 256 MiB", &format!("{loops}{text}{ends}"));
    for (open, close) in [
        ("{% set x %}", "{% endset %}"),
        ("{% filter upper %}", "{% endfilter %}"),
        ("{% macro m() %}", "{% endmacro %}{{ m() }}"),
        (
            "{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}",
            "{% endcall %}",
        ),
    ] {
        stopped(
            "exceeds 512 MiB",
            &format!("{open}{loops}{text}{ends}{close}"),
        );
    }
    stopped(
        "exceeds 512 MiB",
        &format!(
            "{GROWING}{{% for j in range(100000) %}}{{% set y %}}{text}{{% endset %}}{{% set ns.x = [y] + ns.x|list %}}{{% endfor %}}{{% endfor %}}"
        ),
    );
}

#[test]
fn nothing_goes_round_in_circles() {
    let refused = "namespace inside of another value";
    stopped(
        refused,
        "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns.x|tojson }}",
    );
    stopped(
        refused,
        "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns.x == ns.x }}",
    );
    stopped(
        refused,
        "{% set ns = namespace() %}{% set ns.x = dict(a=ns) %}{{ ns }}",
    );
    stopped(
        "recursion limit",
        "{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}",
    );
    stopped(
        "loops without end",
        "{% for a in range(9000) %}{% for b in range(9000) %}{% set c = a %}{% endfor %}{% endfor %}",
    );
}

#[test]
fn a_namespace_prints_and_passes_through_filters() {
    let source = "{% set ns = namespace(a=1) %}{% set ns.b = [2] %}{{ ns }} {{ ns|tojson }} {{ ns.b|length }}";
    assert_eq!(
        rendered(source).unwrap(),
        "{'a': 1, 'b': [2]} {\"a\": 1, \"b\": [2]} 1"
    );
}

#[test]
fn a_reversed_slice_of_nothing_is_nothing() {
    assert_eq!(
        rendered("{% for m in messages[5:][::-1] %}x{% endfor %}|{{ ''[::-1] }}|").unwrap(),
        "||"
    );
}

#[test]
fn what_harmless_templates_do_stays_as_it_is() {
    // Expected: Jinja 3.1 with `trim_blocks` and `lstrip_blocks`, as `transformers` sets it up.
    let source = "\
{%- macro twice(x, sep='-') -%}
    {{ x ~ sep ~ x }}
{%- endmacro -%}
{%- set ns = namespace(n=0, seen=[]) -%}
{%- for m in messages[::-1] -%}
    {%- set ns.n = ns.n + m.content|length * 2 -%}
    {%- set ns.seen = ns.seen + [m.role] -%}
{%- endfor -%}
{{ ns.n }} {{ ns.seen|join(',') }} {{ ns.seen[-1][1:3] }}{{ 'ab' * 2 }}
{% for key, value in messages[0].items() if key != 'role' and not loop_ is defined %}
    {{- loop.index ~ ':' ~ key + '=' }}{{ value if value is string else value|tojson }};
{% endfor %}
{{ twice('a') }}{{ twice(x='b', sep='' ~ (1 + 2 * -3)) }} {{ -5 // 2 }} {{ 2 ** 3 ** 1 }} {{ [1, [2]] + [{'k': none}] }}
{% set text %}
  x{{ '}}' }}{# {{ 1 + 1 }} #}
{% endset %}
{{- text|trim }}{% raw %}{{ a + b }}{% endraw %} {{ 'a' 'b' if bos_token == '<s>' else 'c' }} {{ messages[0].calls[0].b }}";
    let expected = "22 assistant,user seabab\n\
                    1:content=  it's  ;\n\
                    2:calls=[{\"a\": 1.5, \"b\": [null, \"é\"]}];\n\
                    a-ab-5b -3 8 [1, [2], {'k': None}]\n\
                    x}}{{ a + b }} ab [None, 'é']";
    assert_eq!(rendered(source).unwrap(), expected);
}
