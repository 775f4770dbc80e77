//! What the tests of a report say together: whether the output is the target's own.
use super::{LosslessReport, Report};
use crate::chi_square::LEVEL;

/// What tests say together, the worst last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verdict {
    /// Nothing was tested.
    Untested,
    /// No test found a difference.
    Same,
    /// Greedy outputs differ, all of them first where the target's own arithmetic decides.
    Ties,
    /// Sampled output strays so far that chance is no likely reason.
    Unlikely,
    /// Greedy outputs differ elsewhere.
    Differs,
}

impl Verdict {
    fn of(lossless: &LosslessReport) -> Self {
        let greedy = match (lossless.greedy_tokens, lossless.greedy_mismatches) {
            (0, _) => Self::Untested,
            (_, 0) => Self::Same,
            (_, mismatches) if mismatches == lossless.greedy_ties => Self::Ties,
            _ => Self::Differs,
        };
        let tested = |p_value: f64| {
            if p_value < LEVEL {
                Self::Unlikely
            } else {
                Self::Same
            }
        };
        let sampling = lossless.sampling.filter(|sampling| sampling.each.dof > 0);
        let sampled = sampling.map_or(Self::Untested, |sampling| {
            let tuples = sampling.tuples.map_or(1.0, |tuples| tuples.test.p_value);
            tested(sampling.each.p_value).max(tested(tuples))
        });
        greedy.max(sampled)
    }

    /// It in words, without a full stop.
    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Untested => "Not tested whether anything is lost",
            Self::Same => "Lossless in every test",
            Self::Ties => "Lossless but for ties of the target's own arithmetic",
            Self::Unlikely => "Sampled output strays further than chance often does",
            Self::Differs => "Output differs from plain decoding",
        }
    }
}

impl Report {
    /// What its tests say together; none where nothing was decoded.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        let is_decoded = !self.settings.is_empty() && self.texts.is_empty();
        is_decoded.then(|| Verdict::of(&self.lossless))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::html::page;
    use crate::report::examples;
    use crate::summary::summary;

    #[test]
    fn the_verdict_is_the_same_in_every_output_and_stands_with_its_threshold() {
        let judged = |p_value: f64, mismatches: u64, ties: u64| {
            let mut report = examples::report();
            report.lossless.greedy_mismatches = mismatches;
            report.lossless.greedy_ties = ties;
            let sampling = report.lossless.sampling.as_mut().unwrap();
            sampling.each.p_value = p_value;
            report
        };
        for (report, verdict) in [
            (judged(0.023, 0, 0), Verdict::Same),
            (judged(0.5, 1, 1), Verdict::Ties),
            (judged(0.009, 1, 1), Verdict::Unlikely),
            (judged(0.009, 2, 1), Verdict::Differs),
        ] {
            assert_eq!(report.verdict(), Some(verdict));
            let reports = [("a".to_owned(), report)];
            let all = [
                summary(&reports),
                reports[0].1.to_markdown(),
                page(&reports, &[]).replace("&#39;", "'"),
            ];
            for text in all {
                let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
                for told in [
                    verdict.words(),
                    "A p below 0.01 would count as a difference.",
                ] {
                    assert!(text.contains(told), "no `{told}`: {text}");
                }
            }
        }
        let nothing = Report::new(Default::default(), Default::default(), Vec::new());
        assert_eq!(nothing.verdict(), None);
    }
}
