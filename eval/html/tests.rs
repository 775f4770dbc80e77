use super::*;
use crate::curves::ValidationPoint;
use crate::groups::GroupReport;
use crate::reliability::{CalibrationReport, Reliability};
use crate::report::SettingReport;
use crate::report::examples;
use crate::sample::report::{SamplePass, SampleReport};
use crate::token_class::{ClassReport, TokenClass};

/// A name that would end whatever it stands in.
const HOSTILE: &str = "\"'><script>alert(1)</script><!-- ]]> &amp; \u{202e}\u{0} </style>`|";

/// A report all of whose texts are hostile.
fn hostile() -> Report {
    let mut report = examples::report();
    let text = || HOSTILE.to_owned();
    report.spectrain = text();
    report.recipe = serde_json::json!({"name": HOSTILE, HOSTILE: [HOSTILE]});
    report.target.model = text();
    report.target.revision = Some(text());
    report.target.sha256 = text();
    report.target.dtype = text();
    report.drafter.kind = text();
    report.drafter.path = text();
    report.drafter.sha256 = text();
    report.device.insert(text(), HOSTILE.into());
    report.seeds.insert(text(), 1);
    let pass = SamplePass {
        accepted: text(),
        rejected: text(),
        bonus: text(),
        tokens: [1, 1, 1],
    };
    report.samples = vec![SampleReport {
        setting: text(),
        dataset: text(),
        prompt: 1,
        before: text(),
        passes: vec![pass],
    }];
    report.settings_recommended = examples::recommended();
    for one in &mut report.settings_recommended {
        one.target = Some(text());
        if let Some(best) = &mut one.best {
            best.commands = vec![text()];
        }
    }
    report.settings.iter_mut().for_each(make_hostile);
    let free = SettingReport {
        drafter: Some(text()),
        ..report.settings[0].clone()
    };
    report.settings.push(free);
    report
}

fn make_hostile(setting: &mut SettingReport) {
    let text = || HOSTILE.to_owned();
    setting.verifier = text();
    setting.overall.name = text();
    setting.datasets[0].name = text();
    let class = |class: TokenClass| ClassReport {
        name: class.name().into(),
        judged: 4,
        accepted: 1,
        alpha: 0.25,
        alpha_ci95: Some([0.125, 0.5]),
    };
    setting.token_classes = TokenClass::ALL.map(class).to_vec();
    let mut steps = Reliability::default();
    steps.add(0.25, 8.0, 4.0);
    steps.add(0.75, 8.0, 6.0);
    setting.calibration = CalibrationReport::of(&[[&steps, &steps]], 1);
    for column in [
        "category",
        "language",
        "prompt_length",
        "turn",
        "part",
        "position",
    ] {
        let group = |tau| GroupReport {
            name: text(),
            tau: Some(tau),
            tau_ci95: Some([tau - 0.5, tau + 0.5]),
            ..GroupReport::default()
        };
        setting
            .groups
            .insert(column.into(), vec![group(2.0), group(3.0)]);
    }
}

/// A training all of whose texts are hostile.
fn trained() -> (String, Vec<Curves>) {
    let point = |step: u64| ValidationPoint {
        step,
        loss: Some(2.0),
        tau: Some(2.5),
        tau_ci95: Some([2.0, 3.0]),
    };
    let curves = Curves {
        stage: HOSTILE.to_owned(),
        begun: 0.0,
        loss: vec![(1, 3.0), (2, 2.5)],
        validations: vec![point(1), point(2)],
    };
    (HOSTILE.to_owned(), vec![curves.clone(), curves])
}

/// The start tags of a page, and whether all elements are closed in order.
fn tags(page: &str) -> Vec<&str> {
    const VOID: [&str; 2] = ["meta", "!DOCTYPE"];
    let (mut open, mut found, mut rest) = (Vec::new(), Vec::new(), page);
    while let Some(at) = rest.find('<') {
        rest = &rest[at + 1..];
        let end = rest.find('>').unwrap();
        let tag = &rest[..end];
        let name = tag
            .split([' ', '/', '\n'])
            .find(|part| !part.is_empty())
            .unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "{tag} at {}", &page[..40]);
        } else {
            found.push(tag);
            if !tag.ends_with('/') && !VOID.contains(&name) {
                open.push(name);
            }
        }
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty(), "not closed: {open:?}");
    found
}

#[test]
fn texts_of_a_report_are_never_markup() {
    let one = (HOSTILE.to_owned(), hostile());
    for reports in [vec![one.clone()], vec![one.clone(), one]] {
        let trainings = vec![trained(); reports.len()];
        let page = page_with_curves(&reports, &[HOSTILE.to_owned()], &trainings);
        for tag in tags(&page) {
            let name = tag.split(' ').next().unwrap();
            assert!(
                !["script", "!--", "iframe", "img", "link", "a"].contains(&name),
                "{tag}"
            );
        }
        assert_eq!(page.matches("</style>").count(), 1);
        assert!(!page.contains("alert(1)</script>") && page.contains("&lt;script&gt;"));
        assert!(!page.contains(['\u{202e}', '\u{0}']));
    }
}

#[test]
fn the_page_loads_nothing_and_names_every_chart() {
    let page = page_with_curves(&[("a".into(), hostile())], &[], &[trained()]);
    for what in [
        "src=", "href=", "url(", "@import", "http://", "https://", "<script",
    ] {
        assert!(!page.contains(what), "{what}");
    }
    let charts: Vec<&str> = tags(&page)
        .into_iter()
        .filter(|tag| tag.starts_with("svg "))
        .collect();
    let named: Vec<&&str> = charts
        .iter()
        .filter(|tag| tag.contains("role=\"img\""))
        .collect();
    // How deep, how many, five columns of groups, the place in the output, the token, the drafter's confidence and its head's,
    // and what to deploy; of each of two stages two curves.
    assert_eq!(named.len(), 2 + 5 + 1 + 1 + 2 + 1 + 2 * 2);
    let decoration = charts
        .iter()
        .filter(|tag| tag.contains("aria-hidden=\"true\""));
    assert_eq!(decoration.count() + named.len(), charts.len());
    let mut ids = Vec::new();
    for tag in tags(&page) {
        if let Some((_, id)) = tag.split_once(" id=\"") {
            ids.push(id.split('"').next().unwrap());
        }
    }
    let all = ids.len();
    ids.sort();
    ids.dedup();
    assert_eq!(all, ids.len(), "an id twice");
    for tag in named {
        for attribute in ["aria-labelledby=\"", "aria-describedby=\""] {
            let id = tag
                .split_once(attribute)
                .unwrap()
                .1
                .split('"')
                .next()
                .unwrap();
            assert!(ids.contains(&id), "{id}");
        }
    }
}

#[test]
fn the_figures_are_those_of_the_report() {
    let page = page(&[("a".into(), examples::report())], &[]);
    for told in [
        "<h1>Acceptance of a</h1>",
        "τ</abbr> 2.50<small> [2.25, 2.75]</small>",
        "<dt>speed-up</dt><dd>1.50 [1.25, 1.75] ×</dd>",
        "Lossless in every test",
        "0 of 4 outputs differ",
        "<td class=\"n\">1.62</td>",
        // All passes, half of them and all of them: s₁ is 1, s₂ one half.
        "points=\"60.0,12.0 243.0,12.0 426.0,122.0\"",
        // No pass without an accepted token, and half of them with one and two each.
        "<td class=\"n\">0</td><td class=\"n\">50</td><td class=\"n\">50</td>",
    ] {
        assert!(page.contains(told), "no {told}: {page}");
    }
}

#[test]
fn confidence_is_drawn_against_the_diagonal_with_its_counts() {
    let page = page(&[("a".into(), hostile())], &[]);
    for told in [
        "class=\"diagonal\"",
        // Confidence of a quarter is half right: above the diagonal. Three quarters are three quarters right: on it.
        "points=\"143.0,152.0 325.0,82.0\"",
        "<td class=\"n\">8</td>",
        "expected calibration error 0.125, 16 steps",
        "<td class=\"n\">25.0</td><td class=\"n\">50.0</td>",
        "<h2 id=\"confidence\">Does the drafter know itself?</h2>",
    ] {
        assert!(page.contains(told), "no {told}: {page}");
    }
    let without = super::page(&[("a".into(), examples::report())], &[]);
    assert!(!without.contains("id=\"confidence\""));
}

#[test]
fn classes_of_tokens_have_a_bar_each() {
    let page = page(&[("a".into(), hostile())], &[]);
    for told in [
        "α by what the target&#39;s token is",
        ">part of a character</text>",
        "<td class=\"n\">4</td><td class=\"n\">1</td><td class=\"n\">25 [12, 50]</td>",
    ] {
        assert!(page.contains(told), "no {told}: {page}");
    }
}

#[test]
fn reports_that_are_compared_have_a_colour_each_and_notes() {
    let of_target = |sha256: &str| {
        let mut report = examples::report();
        report.target.sha256 = sha256.into();
        report
    };
    let page = page(
        &[
            ("a".into(), of_target("one")),
            ("b".into(), of_target("other")),
        ],
        &["Stale: a: `x`.".into()],
    );
    assert_eq!(
        page.matches("id=\"survival-0\"").count() + page.matches("id=\"survival-0-title\"").count(),
        1
    );
    for told in [
        "Acceptance compared: a, b",
        "Stale: a: <code>x</code>.",
        "Not comparable",
        "class=\"curve c2\"",
        "<h3>b</h3>",
    ] {
        assert!(page.contains(told), "no {told}: {page}");
    }
}

#[test]
fn a_report_without_settings_is_a_page_too() {
    let report = Report::new(Default::default(), Default::default(), Vec::new());
    let page = page(&[("a".into(), report)], &[]);
    assert!(
        !page.contains("<svg") && !page.contains("id=\"headline\""),
        "{page}"
    );
    tags(&page);
}
