use super::*;
use crate::groups::GroupReport;
use crate::report::examples;
use crate::spread::SpreadReport;
use spectrain_checkpoints::columns::COLUMNS;

fn fits(text: &str) {
    for line in text.lines() {
        assert!(line.chars().count() <= COLUMNS, "{line}");
    }
}

#[test]
fn a_report_is_told_in_eighty_columns() {
    let mut report = examples::report();
    report.settings[0].overall.spread = SpreadReport {
        tau_worst_tenth: Some(1.25),
        slowed: Some(0.125),
        ..SpreadReport::default()
    };
    let group = |name: &str, tau| GroupReport {
        name: name.into(),
        tau: Some(tau),
        ..GroupReport::default()
    };
    let groups = vec![group("easy", 3.0), group("ha\u{1b}[31mrd", 1.5)];
    report.settings[0].groups.insert("category".into(), groups);
    let text = summary(&[("a".into(), report)]);
    fits(&text);
    let expected = "\
eagle3 drafter runs/a/train (1234 parameters) for Qwen/Qwen3-0.6B
prompts: 2 of gsm8k, 0 of mt-bench

                                  τ [95 % CI]        α      speed-up [95 % CI]
T=0.6 top-p=0.95, rejection, chain 2 drawn
                                  2.50 [2.25, 2.75]  0.69   1.50 [1.25, 1.75]
  gsm8k                           2.50 [2.25, 2.75]  0.69   1.50 [1.25, 1.75]
  mt-bench                        –                  –      –

T=0.6 top-p=0.95, rejection, chain 2 drawn: τ of the worst tenth 1.25; 12 %
  slowed; least in category ha\\u{1b}[31mrd, τ 1.50.
";
    assert!(text.starts_with(expected), "{text}");
    assert!(
        text.contains("Greedy output: 0 of 4 outputs differ"),
        "{text}"
    );
}

#[test]
fn reports_of_one_way_of_decoding_stand_together() {
    let report = examples::report();
    let long = "a-name-that-is-longer-than-there-is-room-before-the-figures";
    let text = summary(&[("a".into(), report.clone()), (long.into(), report)]);
    fits(&text);
    let rows = format!(
        "T=0.6 top-p=0.95, rejection, chain 2 drawn\n  a{}2.50 [2.25, 2.75]  0.69   1.50 [1.25, 1.75]\n  {long}\n",
        " ".repeat(NAMES - 3)
    );
    assert!(text.contains(&rows), "{text}");
}

#[test]
fn a_report_of_nothing_is_only_named() {
    let report = Report::new(Default::default(), Default::default(), Vec::new());
    assert_eq!(summary(&[("a".into(), report)]), "drafter at for\n");
}
