//! The part of a report that is of servers.
use crate::chosen::chosen;
use crate::interval::with_digits;
use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use super::asked::AskedReport;
use super::counters::Engine;
use super::figures::{CountedBy, ServedFigures};
use super::latency::Latency;
use super::outputs::ServedOutputs;

/// What a server does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It serves the target with the drafter.
    Drafter,
    /// It serves the target alone.
    Baseline,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Self::Drafter => "drafter",
            Self::Baseline => "baseline",
        }
    }
}

/// A server at one temperature, with some number of requests under way: all prompts, once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ServedReport {
    /// What it does.
    pub role: Role,
    /// Its address.
    pub url: String,
    /// The model's name there.
    pub model: String,
    /// The engine, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub engine: Option<Engine>,
    /// Temperature; 0 is greedy.
    pub temperature: f64,
    /// Most likely tokens kept, where sampling was restricted to them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<usize>,
    /// Probability kept, where sampling was restricted to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// Requests under way at a time, at most.
    pub concurrency: usize,
    /// Prompts; of a conversation of several turns each.
    pub prompts: u64,
    /// What was asked; of reports of earlier versions it is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked: Option<AskedReport>,
    /// What was measured. Left out where the run came to no end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub figures: Option<ServedFigures>,
    /// Why the run came to no end; nothing of it is in `figures`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// Greedy outputs against others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outputs: Option<ServedOutputs>,
    /// What this program found for the same prompts and drafts, where the same command decoded them too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub in_tree: Option<InTree>,
    /// What must be known to read the figures, such as the traffic of others.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Acceptance as this program's own decoder counts it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InTree {
    /// The setting of this report.
    pub setting: String,
    /// Its target, where there were several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<String>,
    /// Mean acceptance length.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tau: Option<f64>,
    /// Its 95 % interval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tau_ci95: Option<[f64; 2]>,
    /// `s_k` from `k = 1`.
    pub survival: Vec<f64>,
}

impl ServedReport {
    /// How tokens were chosen.
    fn setting(&self) -> String {
        chosen(self.temperature, self.top_k, self.top_p)
    }

    /// The run in a few words.
    pub(crate) fn heading(&self) -> String {
        format!("{}, {}", self.role.name(), self.way())
    }

    /// How its server was asked, in a few words.
    fn way(&self) -> String {
        format!("{}, {} at once", self.setting(), self.concurrency)
    }

    /// The same among what was decoded here.
    pub(crate) fn way_served(&self) -> String {
        format!("served, {}", self.way())
    }

    /// Whether another server was asked in the same way.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        let way = |run: &Self| (run.temperature, run.top_k, run.top_p, run.concurrency);
        way(self) == way(other)
    }

    fn row(&self) -> String {
        let (role, setting) = (self.role.name(), self.setting());
        let begin = format!("| {role} | {setting} | {} |", self.concurrency);
        let Some(found) = &self.figures else {
            return format!("{begin} failed | | | | | | | |\n");
        };
        let shares: Vec<String> = found.survival.iter().map(|s| format!("{s:.2}")).collect();
        let in_tree = self.in_tree.as_ref();
        let cells = [
            found.tokens.to_string(),
            with_digits(found.tau, found.tau_ci95, 2),
            with_digits(
                in_tree.and_then(|found| found.tau),
                in_tree.and_then(|found| found.tau_ci95),
                2,
            ),
            shares.join(" "),
            with_digits(
                Some(found.tokens_per_second),
                found.tokens_per_second_ci95,
                1,
            ),
            with_digits(found.speedup, found.speedup_ci95, 2),
            times(found.first_token.as_ref()),
            times(found.between_tokens.as_ref()),
        ];
        format!("{begin} {} |\n", cells.join(" | "))
    }

    /// Everything that the row has no room for.
    pub(crate) fn lines(&self) -> String {
        let heading = self.heading();
        let mut text = String::new();
        if let Some(failed) = &self.failed {
            _ = writeln!(
                text,
                "- {heading}: failed, and nothing of this run is counted: {failed}"
            );
        }
        for note in &self.notes {
            _ = writeln!(text, "- {heading}: {note}");
        }
        if let Some(outputs) = &self.outputs {
            text += &outputs.lines(&format!("- {heading}"));
        }
        text
    }
}

/// What is drawn anew for the intervals.
pub(crate) const INTERVALS: &str =
    "Intervals are over conversations; a prompt of one turn counts as one.";

/// A table with a row for each, and below it what must be said of them.
pub(crate) fn to_markdown(served: &[ServedReport]) -> String {
    if served.is_empty() {
        return String::new();
    }
    let mut text = String::from("\nAs served:\n\n");
    text += "| server | setting | at once | tokens | τ [95 % CI] | τ in-tree | at least 1, 2, … accepted | tokens/s [95 % CI] | \
             speed-up [95 % CI] | first token, ms | each further token, ms |\n";
    text += "|---|---|--:|--:|---|---|---|---|---|---|---|\n";
    text.extend(served.iter().map(ServedReport::row));
    text += "\nTimes: the mean with its interval, the median, and what 99 of 100 do not exceed. ";
    text += INTERVALS;
    if served.iter().any(counts_runs_only) {
        text += " A server's counters cover a whole run, so a τ made from them has no interval, except with one request at a time.";
    }
    if served.iter().any(|report| report.in_tree.is_some()) {
        text += " τ in-tree is of drafts that get shorter where an output ends; engines draft in full there, and cut off.";
    }
    text += "\n\n";
    text.extend(served.iter().map(ServedReport::lines));
    text
}

fn counts_runs_only(report: &ServedReport) -> bool {
    let figures = report.figures.as_ref();
    figures.is_some_and(|found| found.counted_by == Some(CountedBy::CountersAroundAll))
}

/// Mean, median and 99th percentile in milliseconds.
fn times(latency: Option<&Latency>) -> String {
    let Some(found) = latency else {
        return "–".into();
    };
    let milliseconds = |seconds: f64| 1000.0 * seconds;
    let mean = with_digits(
        Some(milliseconds(found.mean)),
        found.mean_ci95.map(|ends| ends.map(milliseconds)),
        1,
    );
    let [median, p99] = [found.median, found.p99].map(milliseconds);
    format!("{mean}, {median:.1}, {p99:.1}")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::served::acceptance::DraftCounts;
    use crate::served::outputs::ComparedWith;

    fn figures() -> ServedFigures {
        let drafts = DraftCounts::of_histogram(&[2, 1, 1], Some(8));
        ServedFigures {
            tokens: 12,
            seconds: 0.5,
            under_way: 3.5,
            counted_by: Some(CountedBy::Answer),
            tau: drafts.tau(),
            tau_ci95: Some([1.5, 2.0]),
            survival: drafts.survival(),
            conditional: drafts.conditional(),
            draft_tokens_per_pass: drafts.draft_tokens_per_pass(),
            drafts: Some(drafts),
            counts: vec![[4.0, 2.0].into(), [3.0, 2.0].into()],
            tokens_per_second: 24.0,
            tokens_per_second_ci95: Some([20.0, 28.25]),
            first_token: Some(Latency {
                mean: 0.0305,
                mean_ci95: Some([0.025, 0.0375]),
                median: 0.03,
                median_ci95: None,
                p99: 0.0401,
                p99_ci95: None,
            }),
            between_tokens: None,
            between_chunks: None,
            speedup: Some(1.5),
            speedup_ci95: Some([1.25, 1.75]),
        }
    }

    /// A run that is as plain as one can be, with these figures.
    pub(crate) fn run(role: Role, concurrency: usize, figures: ServedFigures) -> ServedReport {
        ServedReport {
            role,
            url: "http://a:8000".into(),
            model: "m".into(),
            engine: Some(Engine::Vllm),
            temperature: 0.0,
            top_k: None,
            top_p: None,
            concurrency,
            prompts: 2,
            asked: None,
            figures: Some(figures),
            failed: None,
            outputs: None,
            in_tree: None,
            notes: Vec::new(),
        }
    }

    fn reports() -> Vec<ServedReport> {
        let drafter = ServedReport {
            asked: Some(AskedReport {
                prompts_sha256: "ab".into(),
                max_new_tokens: 8,
                stop: Vec::new(),
            }),
            outputs: Some(ServedOutputs {
                with: ComparedWith::Baseline,
                outputs: 2,
                differ: 0,
                tokens: 12,
                differences: Vec::new(),
            }),
            in_tree: Some(InTree {
                setting: "T=0, greedy, chain 2".into(),
                target: None,
                tau: Some(1.75),
                tau_ci95: Some([1.5, 2.0]),
                survival: vec![0.5, 0.25],
            }),
            notes: vec!["others had it generate 7 tokens meanwhile".into()],
            ..run(Role::Drafter, 4, figures())
        };
        let baseline = ServedReport {
            role: Role::Baseline,
            temperature: 0.6,
            top_p: Some(0.95),
            figures: None,
            failed: Some("prompt 1 of `eval`: status 500".into()),
            outputs: None,
            in_tree: None,
            notes: Vec::new(),
            ..drafter.clone()
        };
        vec![drafter, baseline]
    }

    #[test]
    fn what_is_missing_is_said_below_the_table() {
        let expected = "
As served:

| server | setting | at once | tokens | τ [95 % CI] | τ in-tree | at least 1, 2, … accepted | tokens/s [95 % CI] | \
speed-up [95 % CI] | first token, ms | each further token, ms |
|---|---|--:|--:|---|---|---|---|---|---|---|
| drafter | T=0 | 4 | 12 | 1.75 [1.50, 2.00] | 1.75 [1.50, 2.00] | 0.50 0.25 | 24.0 [20.0, 28.2] | 1.50 [1.25, 1.75] | \
30.5 [25.0, 37.5], 30.0, 40.1 | – |
| baseline | T=0.6 top-p=0.95 | 4 | failed | | | | | | | |

Times: the mean with its interval, the median, and what 99 of 100 do not exceed. Intervals are over conversations; a prompt of one turn counts as \
one. τ in-tree is of drafts that get shorter \
where an output ends; engines draft in full there, and cut off.

- drafter, T=0, 4 at once: others had it generate 7 tokens meanwhile
- drafter, T=0, 4 at once: 0 of 2 outputs differ from those of the baseline server (12 tokens compared).
- baseline, T=0.6 top-p=0.95, 4 at once: failed, and nothing of this run is counted: prompt 1 of `eval`: status 500
";
        assert_eq!(to_markdown(&reports()), expected);
        assert_eq!(to_markdown(&[]), "");
    }

    #[test]
    fn reports_survive_json_and_leave_out_what_is_not_known() {
        let reports = reports();
        let text = serde_json::to_string(&reports).unwrap();
        let read: Vec<ServedReport> = serde_json::from_str(&text).unwrap();
        assert_eq!(read, reports);
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(json[0]["figures"]["counted_by"], "answer");
        assert_eq!(json[0]["engine"], "vllm");
        assert_eq!(json[0]["figures"]["counts"].to_string(), "[[4,2],[3,2]]");
        assert!(json[0]["asked"].get("stop").is_none());
        assert!(json[1].get("figures").is_none() && json[0].get("failed").is_none());
    }

    #[test]
    fn reports_of_earlier_versions_are_read() {
        let mut json = serde_json::to_value(reports()).unwrap();
        json[0].as_object_mut().unwrap().remove("asked");
        json[0]["figures"].as_object_mut().unwrap().remove("counts");
        let read: Vec<ServedReport> = serde_json::from_value(json).unwrap();
        assert!(read[0].asked.is_none() && read[0].figures.as_ref().unwrap().counts.is_empty());
    }
}
