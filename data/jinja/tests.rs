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
