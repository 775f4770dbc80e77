//! What is put where, and what is refused.

use super::super::accounts::{COUNTED, MODULO, SLICE, TEXT};
use super::*;

fn woven(source: &str) -> String {
    // Shorter names keep the expected texts readable.
    let mut woven = guarded(source).unwrap();
    for (name, short) in [
        (COUNTED, "C"),
        (KEPT, "K"),
        (SLICE, "S"),
        (TEXT, "X"),
        (TIMED, "T"),
        (MODULO, "M"),
    ] {
        woven = woven.replace(name, short);
    }
    woven
}

#[test]
fn operands_and_results_of_operators_are_counted() {
    assert_eq!(woven("a{{- a.b + 'c' }}"), "a{{- T(C(C(a.b) + C('c'))) }}");
    assert_eq!(
        woven("{{ a ~ b * -c ~ d }}"),
        "{{ T(C(X(a) ~ X(C(C(b) * C(-c))) ~ X(d))) }}"
    );
    assert_eq!(
        woven("{{ (a + b)|trim if c == d else e }}"),
        "{{ T((C(C(a) + C(b)))|trim if c == d else e) }}"
    );
    assert_eq!(
        woven("{{ f(x + 1, y=a ~ b, *c) }}"),
        "{{ T(f(C(C(x) + C(1)), y=C(X(a) ~ X(b)), *c)) }}"
    );
    assert_eq!(
        woven("{{ a is divisibleby 2 + b }}"),
        "{{ T(C(C(a is divisibleby 2) + C(b))) }}"
    );
}

#[test]
fn what_a_percent_sign_stands_between_is_passed_to_a_call() {
    assert_eq!(woven("{{ a * b%c }}"), "{{ T(C(M(C(a) * C(b),C(c)))) }}");
    assert_eq!(
        woven("{{ 'x' % (a, b[0]) + 'y' }}"),
        "{{ T(C(C(M(C('x') , C((a, b[0])), true)) + C('y'))) }}"
    );
    assert_eq!(
        woven("{{ a % (b) % [c, d] }}"),
        "{{ T(C(M(M(C(a) , C((b))) , C(K([c, d]))))) }}"
    );
}

#[test]
fn slices_lists_and_mappings_are_calls() {
    assert_eq!(
        woven("{{ m[::-1] }}"),
        "{{ T(S(m, none, none-1)) }}".replace("none-1", "none, -1")
    );
    assert_eq!(
        woven("{{ m[1:].x[2][:n + 1] }}"),
        "{{ T(S(S(m, 1, none).x[2], none, C(C(n) + C(1)))) }}"
    );
    assert_eq!(
        woven("{{ [1, {'a': b[0]}] }}"),
        "{{ T(K([1, K({'a': b[0]})])) }}"
    );
}

#[test]
fn statements_keep_their_form() {
    assert_eq!(
        woven("{% set ns.x = y %}{% set z = 1, 2 %}{%- if a and not b -%}{% elif c %}{% endif %}"),
        "{% set ns.x = K(y) %}{% set z = T(1), T(2) %}{%- if T(a and not b) -%}{% elif T(c) %}{% endif %}"
    );
    assert_eq!(
        woven("{% for a, b in x.items() if a %}text{% endfor %}{% call(u) m(1) %}{% endcall %}"),
        "{% for a, b in T(x.items()) if T(a) %}text{% endfor %}{% call(u) m(1) %}{% endcall %}"
    );
    assert_eq!(
        woven(
            "{% macro m(a, b=[]) %}{% for x in a %}text{% endfor %}{% endmacro %}{% set v | upper %}{% endset %}"
        ),
        "{% macro m(a, b=T(K([]))) %}{% for x in T(a, 4) %}text{% endfor %}{% endmacro %}{% set v | upper %}{% endset %}"
    );
    let untouched = "{% generation %}{# {{ a + b }} #}{% raw %}{{ a + b }}{% endraw %}{% endgeneration %}{% break %}";
    assert_eq!(woven(untouched), untouched);
}

#[test]
fn what_would_go_too_deep_is_refused_by_its_line() {
    let refused = |source: String| guarded(&source).unwrap_err().to_string();
    let elifs = format!("{{% if a %}}{}{{% endif %}}", "{% elif a %}".repeat(50_000));
    assert!(refused(elifs).contains("1000 branches"));
    let sums = format!("\n{{{{ 1{} }}}}", "+1".repeat(100_000));
    assert!(
        refused(sums).starts_with("chat template line 2: expected a tag of at most 4096 parts")
    );
    let brackets = format!("{{{{ {}1{} }}}}", "[".repeat(100), "]".repeat(100));
    assert!(refused(brackets).contains("30 brackets"));
    assert!(refused("x".repeat(LONGEST_SOURCE + 1)).contains("1048576 bytes"));
}

#[test]
fn what_minijinja_would_do_without_accounts_is_refused() {
    let refused = |source: &str| guarded(source).unwrap_err().to_string();
    assert!(refused("{% for x in y recursive %}{% endfor %}").contains("`recursive`"));
    assert!(refused("{% for x in y if x recursive %}{% endfor %}").contains("`recursive`"));
    guarded("{% for x in recursive %}{% endfor %}").unwrap();
    assert!(refused("{% include 'chat' %}").contains("`include`"));
    assert!(refused(&format!("{{% set {COUNTED} = 1 %}}")).contains("kept for the program"));
    for source in [
        "{{ }}",
        "{{ a[1:2:3:4] }}",
        "{{ a[1 2] }}",
        "{{ (a }}",
        "{{ a. }}",
        "{{ a b ) }}",
        "{{ a | }}",
        "{% set x = %}",
        "{% macro m(a %}{% endmacro %}",
    ] {
        let compiled = crate::template::ChatTemplate::from_source(source, None, None);
        assert!(compiled.is_err(), "{source}");
    }
}
