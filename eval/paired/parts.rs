//! Everything that two reports have in common, by pairs: what was decoded here, and what servers did.
use super::{PairedReports, paired};
use crate::error::{Error, Result};
use crate::paired::matched::alone;
use crate::report::Report;
use crate::served::paired::{has_runs, paired_runs, runs_alone};

/// Every way of decoding and every run on a server that `report` shares with `baseline`, on the same prompts, and where their
/// drafters share no way of decoding the chain that each has; `among` so many reports that are compared with it. Where both were decoded here and served, it is enough if one of these can be compared.
/// What one of them alone has is among the remarks.
///
/// # Errors
/// They share none, were judged by different targets, or on other prompts; or one was decoded here and the other served.
pub fn paired_parts(baseline: &Report, report: &Report, among: usize) -> Result<PairedReports> {
    let both = |has: fn(&Report) -> bool| has(baseline) && has(report);
    let of_each = |alone: fn(&Report, &Report) -> Vec<String>| {
        [alone(baseline, report), alone(report, baseline)]
    };
    let decoded = || {
        let found = paired(baseline, report, among).map(PairedReports::from)?;
        let found = found.and_lengths(baseline, report);
        Ok(found.and_alone(of_each(alone)))
    };
    let served = || {
        let found = paired_runs(baseline, report, among)?;
        Ok(found.and_alone(of_each(runs_alone)))
    };
    let found = match (both(is_decoded), both(has_runs)) {
        (true, false) => decoded().map(|found| found.and_alone(of_each(runs_alone))),
        (false, true) => served().map(|found| found.and_alone(of_each(alone))),
        (true, true) => either(decoded(), served()),
        (false, false) => Err(other_kind(baseline, report)),
    };
    found.map(|found| found.and_trainings(baseline, report))
}

/// Whether it has figures of what was decoded here.
fn is_decoded(report: &Report) -> bool {
    !report.settings.is_empty()
}

/// Both parts, or one with the reason why the other is missing.
fn either(decoded: Result<PairedReports>, served: Result<PairedReports>) -> Result<PairedReports> {
    let without = |mut found: PairedReports, what: &str, why: &Error| {
        let remark = format!("{what} is not compared: {why}");
        found.remarks.insert(0, remark);
        found.uncompared.push(what.to_owned());
        found
    };
    match (decoded, served) {
        (Ok(decoded), Ok(served)) => Ok(PairedReports {
            found: [decoded.found, served.found].concat(),
            remarks: [decoded.remarks, served.remarks].concat(),
            uncompared: [decoded.uncompared, served.uncompared].concat(),
        }),
        (Ok(found), Err(why)) => Ok(without(found, "what servers did", &why)),
        (Err(why), Ok(found)) => Ok(without(found, "what was decoded here", &why)),
        (Err(why), Err(_)) => Err(why),
    }
}

/// That one was decoded here and the other served, or that one has neither.
fn other_kind(baseline: &Report, report: &Report) -> Error {
    let expected = if has_runs(baseline) {
        "figures of a server, as the baseline has (`spectrain evaluate --server URL` for both drafters)"
    } else if is_decoded(baseline) {
        "outputs that spectrain decoded itself, as the baseline has (`spectrain evaluate --drafter DRAFTER` for both drafters)"
    } else {
        return Error::unpaired("a report with figures", "one without any");
    };
    let counted = "engines do not count drafts as spectrain does, so the two are not compared";
    let found = if has_runs(report) {
        format!("only figures of a server: {counted}")
    } else if is_decoded(report) {
        format!("only outputs that spectrain decoded itself: {counted}")
    } else {
        "no figures".to_owned()
    };
    Error::unpaired(expected, found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paired::ONE_TRAINING;
    use crate::paired::tests::{of, report};
    use crate::report::DatasetReport;
    use crate::served::paired::tests::served;

    #[test]
    fn what_was_decoded_and_what_was_served_are_not_compared_and_it_is_said_what_to_do() {
        let decoded = report(vec![of(40); 4], "p", "t");
        let in_server = served(4, &[40; 4]);
        let refused = |baseline: &Report, report: &Report| {
            paired_parts(baseline, report, 1).unwrap_err().to_string()
        };
        let told = refused(&decoded, &in_server);
        assert!(
            told.contains("`spectrain evaluate --drafter DRAFTER`"),
            "{told}"
        );
        assert!(told.contains("found only figures of a server"), "{told}");
        let told = refused(&in_server, &decoded);
        assert!(told.contains("`spectrain evaluate --server URL`"), "{told}");
        assert!(
            told.contains("found only outputs that spectrain decoded itself"),
            "{told}"
        );
        let empty = Report::new(Default::default(), Default::default(), Vec::new());
        assert!(refused(&empty, &decoded).contains("a report with figures"));
        assert!(refused(&decoded, &empty).ends_with("found no figures"));
    }

    #[test]
    fn a_verdict_on_two_trainings_says_what_it_leaves_out() {
        let of_weights = |passes: u64, sha256: &str| {
            let mut report = report(vec![of(passes); 24], "p", "t");
            report.drafter.sha256 = sha256.into();
            report
        };
        let one = of_weights(60, "a");
        let remarks = |other: &Report| paired_parts(&one, other, 1).unwrap().remarks;
        assert_eq!(remarks(&of_weights(40, "b")), [ONE_TRAINING]);
        // No verdict, and no second training.
        assert!(remarks(&of_weights(60, "b")).is_empty());
        assert!(remarks(&of_weights(40, "a")).is_empty());
        assert!(remarks(&of_weights(40, "")).is_empty());
    }

    #[test]
    fn of_reports_with_both_parts_one_that_can_be_compared_is_enough() {
        let with_both = |prompts: &str, tokens: usize| {
            let mut both = report(vec![of(40); 4], prompts, "t");
            both.served = served(tokens, &[40; 4]).served;
            both
        };
        let one = with_both("p", 4);
        let all = paired_parts(&one, &with_both("p", 4), 1).unwrap();
        let settings: Vec<&str> = all.found.iter().map(|pair| &*pair.setting).collect();
        assert_eq!(settings, ["T=0, greedy, chain 5", "served, T=0, 1 at once"]);
        assert!(all.remarks.is_empty(), "{:?}", all.remarks);
        assert!(all.uncompared.is_empty(), "{:?}", all.uncompared);
        let decoded = paired_parts(&one, &with_both("p", 8), 1).unwrap();
        assert_eq!(decoded.found.len(), 1);
        assert!(decoded.remarks[0].starts_with("what servers did is not compared"));
        assert_eq!(decoded.uncompared, ["what servers did"]);
        let in_server = paired_parts(&one, &with_both("q", 4), 1).unwrap();
        assert_eq!(in_server.found[0].setting, "served, T=0, 1 at once");
        assert!(in_server.remarks[0].starts_with("what was decoded here is not compared"));
        assert_eq!(in_server.uncompared, ["what was decoded here"]);
        assert!(paired_parts(&one, &with_both("q", 8), 1).is_err());
    }

    #[test]
    fn what_only_one_report_has_is_told_and_what_only_the_baseline_has_is_uncompared() {
        let cold = report(vec![of(40); 4], "p", "t");
        let mut both = cold.clone();
        let mut warm = cold.settings[0].clone();
        warm.temperature = 1.0;
        both.settings.push(warm);
        both.settings[0].datasets.push(DatasetReport {
            name: "code".into(),
            prompts_sha256: Some("q".into()),
            ..DatasetReport::default()
        });
        both.served = served(4, &[40; 4]).served;
        let of_baseline = [
            "T=0, greedy, chain 5 on `code`",
            "T=1, greedy, chain 5",
            "served, T=0, 1 at once",
        ];
        let found = paired_parts(&both, &cold, 1).unwrap();
        assert_eq!(found.found.len(), 1);
        assert_eq!(found.uncompared, of_baseline);
        assert_eq!(
            found.remarks,
            of_baseline.map(|way| format!("only the baseline has {way}"))
        );
        let found = paired_parts(&cold, &both, 1).unwrap();
        assert_eq!(found.found.len(), 1);
        assert!(found.uncompared.is_empty(), "{:?}", found.uncompared);
        assert_eq!(
            found.remarks,
            of_baseline.map(|way| format!("the baseline does not have {way}"))
        );
    }
}
