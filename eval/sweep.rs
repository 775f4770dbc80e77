//! Variations of one training side by side: τ of each, and how it differs from that of the first, by pairs of prompts.
use std::fmt::Write as _;

use spectrain_checkpoints::Mismatch;
use spectrain_checkpoints::columns::wrapped;

use crate::bootstrap::bootstrap;
use crate::counts::Counts;
use crate::error::{Error, Result};
use crate::interval::{with_interval, with_signs};
use crate::paired::difference::{FEWEST, PairedReport, PairedVerdict};
use crate::paired::matched::{check_same, pairs, same_prompts};
use crate::report::{Report, SettingReport};

/// Columns of the names of variations that stand before their figures.
const NAMES: usize = 30;
/// Seed of the intervals.
const SEED: u64 = 0;

/// A variation, which may have been trained with several seeds.
#[derive(Debug, Clone)]
pub struct Variation {
    /// What is different in it.
    pub name: String,
    /// Seconds of the training of each seed.
    pub seconds: Vec<f64>,
    /// The report of each seed.
    pub reports: Vec<Report>,
}

impl Variation {
    /// Of the training of a seed, on average.
    fn mean_seconds(&self) -> f64 {
        self.seconds.iter().sum::<f64>() / self.seconds.len() as f64
    }
}

/// A row of the table.
struct Row<'a> {
    variation: &'a Variation,
    /// Of all seeds pooled.
    tau: Option<f64>,
    ci95: Option<[f64; 2]>,
    /// τ of each seed.
    each: Vec<f64>,
    /// Against the first variation; none for itself.
    difference: Option<PairedReport>,
    /// How many times as long as that of the first variation the training took; none for itself.
    times: Option<f64>,
}

/// A table of `variations` for each way of decoding, the largest τ first. Of runs that were judged by different targets or on
/// other prompts there is τ of each, without differences, and why.
pub fn sweep(variations: &[Variation]) -> String {
    compared(variations).unwrap_or_else(|why| apart(variations, &why))
}

/// τ of each run by itself, in the order in which they are given.
fn apart(variations: &[Variation], why: &Error) -> String {
    let mut runs: Vec<(String, f64, &Report)> = Vec::new();
    for variation in variations {
        let all = variation.seconds.iter().zip(&variation.reports);
        for (number, (&seconds, report)) in all.enumerate() {
            let name = match variation.reports.len() {
                1 => variation.name.clone(),
                _ => format!("{} ({})", variation.name, number + 1),
            };
            runs.push((name, seconds, report));
        }
    }
    let mut text = String::new();
    for (number, (_, _, report)) in runs.iter().enumerate() {
        for setting in &report.settings {
            let mut before = runs[..number].iter();
            if before.any(|(_, _, earlier)| earlier.like(setting).is_some()) {
                continue;
            }
            text += &heading(report, setting);
            text += &line("", ["τ [95 % CI]", "prompts", "training"]);
            for (name, seconds, report) in &runs[number..] {
                let Some(own) = report.like(setting) else {
                    continue;
                };
                let counts: Vec<Counts> = counts(own).collect();
                let (tau, ci95) = pooled_tau(&counts);
                let tau = with_interval(tau, ci95);
                let [prompts, seconds] = [counts.len().to_string(), format!("{seconds:.0} s")];
                text += &line(name, [&tau, &prompts, &seconds]);
            }
        }
    }
    let told = format!("No differences are shown, as the runs cannot be paired: {why}.");
    format!("{text}\n{}", wrapped(&told, ""))
}

/// The line above the table of a setting.
fn heading(report: &Report, setting: &SettingReport) -> String {
    let target = match &setting.target {
        Some(_) => format!("{}: ", report.target_of(setting)),
        None => String::new(),
    };
    format!("\n{target}{}\n", setting.heading())
}

/// τ of these conversations together, with its 95 % interval.
fn pooled_tau(counts: &[Counts]) -> (Option<f64>, Option<[f64; 2]>) {
    let tau = |drawn: &[&Counts]| drawn.iter().copied().copied().sum::<Counts>().tau();
    let all: Vec<&Counts> = counts.iter().collect();
    (tau(&all), bootstrap(counts, SEED, tau))
}

/// The table of runs that were judged by the same.
///
/// # Errors
/// They were judged by different targets or on other prompts.
fn compared(variations: &[Variation]) -> Result<String> {
    let pooled = variations.iter().map(|variation| pool(&variation.reports));
    let pooled = pooled.collect::<Result<Vec<_>>>()?;
    let Some(first) = pooled.first() else {
        return Ok(String::new());
    };
    for other in &pooled[1..] {
        check_same(first, other)?;
    }
    let mut text = String::new();
    let mut verdicts = Vec::new();
    for setting in &first.settings {
        let mut rows: Vec<Row> = Vec::new();
        for (number, (variation, pooled)) in variations.iter().zip(&pooled).enumerate() {
            let Some(own) = pooled.like(setting) else {
                continue;
            };
            let difference = match number {
                0 => None,
                _ => {
                    let pairs = pairs(first, (setting, own))?;
                    PairedReport::of(setting.heading(), &pairs, variations.len() - 1)
                }
            };
            let counts: Vec<Counts> = counts(own).collect();
            let (tau, ci95) = pooled_tau(&counts);
            let of_seed = |report: &Report| {
                let own = report.like(setting)?;
                self::counts(own).sum::<Counts>().tau()
            };
            rows.push(Row {
                variation,
                tau,
                ci95,
                each: variation.reports.iter().filter_map(of_seed).collect(),
                difference,
                times: (number > 0)
                    .then(|| variation.mean_seconds() / variations[0].mean_seconds()),
            });
        }
        rows.sort_by(|one, other| {
            let tau = |row: &Row| row.tau.unwrap_or_default();
            tau(other).total_cmp(&tau(one))
        });
        text += &heading(first, setting);
        text += &line("", ["τ [95 % CI]", "against the first", "training"]);
        text.extend(rows.iter().map(shown));
        verdicts.extend(rows.into_iter().filter_map(|row| row.difference));
    }
    Ok(text + &on_verdicts(&verdicts))
}

/// What there is to know of the verdicts in a table.
fn on_verdicts(differences: &[PairedReport]) -> String {
    let Some(fewest) = differences.iter().map(|of| of.conversations).min() else {
        return String::new();
    };
    let compared = differences.iter().map(|of| of.among).max().unwrap_or(1);
    let told = if fewest < FEWEST {
        format!(
            "No variation is called better or worse: {fewest} prompts are too few to choose by. Judge them on {FEWEST} or more \
             (`evaluate.prompts`, of named sets `evaluate.count`)."
        )
    } else if compared > 1 {
        format!(
            "\"better\" and \"worse\" allow for {compared} comparisons: they stand where the interval of {:.1} % leaves out 0.",
            100.0 - 5.0 / compared as f64
        )
    } else {
        return String::new();
    };
    format!("\n{}", wrapped(&told, ""))
}

fn shown(row: &Row) -> String {
    let difference = match &row.difference {
        None => "the first".into(),
        Some(found) => {
            let mark = match found.choice() {
                PairedVerdict::NotToldApart | PairedVerdict::TooFew => String::new(),
                verdict => format!(" {verdict}"),
            };
            with_signs(found.difference, found.ci95, 2) + &mark
        }
    };
    let tau = with_interval(row.tau, row.ci95);
    let mut seconds = format!("{:.0} s", row.variation.mean_seconds());
    if let Some(times) = row.times.filter(|times| times.is_finite()) {
        _ = write!(seconds, ", ×{times:.2}");
    }
    let mut text = line(&row.variation.name, [&tau, &difference, &seconds]);
    if row.each.len() > 1 {
        let each: Vec<String> = row.each.iter().map(|tau| format!("{tau:.2}")).collect();
        _ = writeln!(text, "    seeds: {}", each.join(", "));
    }
    text
}

fn line(name: &str, [tau, difference, seconds]: [&str; 3]) -> String {
    let (before, name) = match name.chars().count() {
        0..NAMES => (String::new(), name),
        _ => (format!("{name}\n"), ""),
    };
    let line = format!("{before}{name:NAMES$}{tau:19}{difference:30}{seconds}");
    format!("{}\n", line.trim_end())
}

/// The first report with the counts of all: what is drawn anew for an interval are conversations, each with all its drafters.
fn pool(reports: &[Report]) -> Result<Report> {
    let [first, others @ ..] = reports else {
        return Err(other("a report", "none"));
    };
    let mut pooled = first.clone();
    for report in others {
        check_same(first, report)?;
        for setting in &mut pooled.settings {
            let Some(more) = report.like(setting) else {
                return Err(other(&setting.of_target(), "no such setting"));
            };
            for (place, dataset) in setting.datasets.iter_mut().enumerate() {
                let Some(same) = same_prompts(more, place, dataset) else {
                    let name = format!("the prompts of `{}`", dataset.name);
                    return Err(other(&name, "no such prompts"));
                };
                for (sum, more) in dataset.counts.iter_mut().zip(&same.counts) {
                    *sum = *sum + *more;
                }
            }
        }
    }
    Ok(pooled)
}

/// Of each conversation.
fn counts(setting: &SettingReport) -> impl Iterator<Item = Counts> {
    setting
        .datasets
        .iter()
        .flat_map(|of| of.counts.iter().copied())
}

fn other(expected: &str, found: &str) -> Error {
    Error::Setting {
        key: "sweep",
        mismatch: Mismatch::new(expected, found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::DraftReport;
    use crate::paired::tests::{of, report};

    fn variation(name: &str, passes: &[u64]) -> Variation {
        let of_seed = |&passes: &u64| report(vec![of(passes), of(2 * passes)], "p", "t");
        Variation {
            name: name.into(),
            seconds: vec![12.4; passes.len()],
            reports: passes.iter().map(of_seed).collect(),
        }
    }

    #[test]
    fn variations_stand_by_their_tau_against_the_first() {
        let table = sweep(&[
            variation("lr=1", &[40, 60]),
            variation("lr=2", &[40, 40]),
            variation("a name that has a line of its own", &[60, 60]),
        ]);
        let expected = "
T=0, greedy, chain 5
                              τ [95 % CI]        against the first             training
lr=2                          2.00 [1.50, 3.00]  +0.40 [+0.30, +0.60]          12 s, ×1.00
    seeds: 2.00, 2.00
lr=1                          1.60 [1.20, 2.40]  the first                     12 s
    seeds: 2.00, 1.33
a name that has a line of its own
                              1.33 [1.00, 2.00]  -0.27 [-0.40, -0.20]          12 s, ×1.00
    seeds: 1.33, 1.33

No variation is called better or worse: 2 prompts are too few to choose by.
Judge them on 20 or more (`evaluate.prompts`, of named sets `evaluate.count`).
";
        assert_eq!(table, expected);
    }

    #[test]
    fn the_more_variations_are_compared_the_surer_one_must_be() {
        // Of three conversations two gain and one loses.
        let of_three = |name: String, passes: [u64; 3]| Variation {
            name,
            seconds: vec![1.0],
            reports: vec![report(passes.map(of).repeat(14), "p", "t")],
        };
        let table = |others: usize| {
            let others = (0..others).map(|at| of_three(format!("other {at}"), [56, 57, 63]));
            let first = of_three("first".into(), [60; 3]);
            sweep(&[first].into_iter().chain(others).collect::<Vec<_>>())
        };
        let one = table(1);
        assert!(one.contains("] better "), "{one}");
        assert!(!one.contains("comparisons"), "{one}");
        let many = table(50);
        assert!(!many.contains("] better"), "{many}");
        let words = many.split_whitespace().collect::<Vec<_>>().join(" ");
        let told =
            "allow for 50 comparisons: they stand where the interval of 99.9 % leaves out 0.";
        assert!(words.ends_with(told), "{many}");
    }

    #[test]
    fn datasets_of_one_name_are_pooled_each_with_its_own() {
        let of_seed = |passes: [u64; 2]| {
            let mut report = report(vec![of(passes[0])], "code", "t");
            let mut math = report.settings[0].datasets[0].clone();
            math.prompts_sha256 = Some("math".into());
            math.counts = vec![of(passes[1])];
            report.settings[0].datasets.push(math);
            report
        };
        let pooled = pool(&[of_seed([10, 100]), of_seed([20, 200])]).unwrap();
        let passes: Vec<f64> = counts(&pooled.settings[0]).map(|of| of.passes).collect();
        assert_eq!(passes, [30.0, 300.0]);
        let mut one = of_seed([1, 1]);
        one.settings[0].datasets.pop();
        for reports in [[one.clone(), of_seed([1, 1])], [of_seed([1, 1]), one]] {
            let refused = pool(&reports).unwrap_err().to_string();
            assert!(refused.contains("other prompts"), "{refused}");
        }
    }

    #[test]
    fn trees_of_one_size_have_a_table_each() {
        let trees = ["[[0], [1], [2]]", "[[0], [0, 0], [0, 0, 0]]"];
        let with = |passes: [u64; 2]| {
            let mut report = report(vec![of(1); 2], "p", "t");
            let mut second = report.settings[0].clone();
            for (setting, (tree, passes)) in [&mut report.settings[0], &mut second]
                .into_iter()
                .zip(trees.iter().zip(passes))
            {
                setting.draft = DraftReport::Static {
                    tree: serde_json::from_str(tree).unwrap(),
                    nodes: 3,
                    children: Default::default(),
                };
                setting.datasets[0].counts = vec![of(passes); 2];
            }
            report.settings.push(second);
            report
        };
        let variations = ["a", "b"].map(|name| Variation {
            name: name.into(),
            seconds: vec![1.0; 2],
            reports: vec![with([40, 60]); 2],
        });
        let table = sweep(&variations);
        assert_eq!(table.matches("seeds: 3.00, 3.00").count(), 2, "{table}");
        assert_eq!(table.matches("seeds: 2.00, 2.00").count(), 2, "{table}");
    }

    #[test]
    fn runs_that_were_judged_otherwise_stand_by_themselves_with_the_reason() {
        let mut foreign = variation("lr=2", &[40, 40]);
        foreign.reports[1] = report(vec![of(40), of(80)], "p", "u");
        let table = sweep(&[variation("lr=1", &[60]), foreign]);
        let words = table.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in [
            "T=0, greedy, chain 5 τ [95 % CI] prompts training lr=1 1.33 [1.00, 2.00] 2 12 s lr=2 (1) 2.00",
            "lr=2 (2) 2.00 [1.50, 3.00] 2 12 s No differences are shown",
            "weights of the target",
        ] {
            assert!(words.contains(part), "no `{part}`: {table}");
        }
        assert!(!table.contains("the first"), "{table}");

        // Of other prompts, too.
        let mut other = variation("data=b", &[40]);
        other.reports[0] = report(vec![of(40), of(80), of(40)], "q", "t");
        let table = sweep(&[variation("data=a", &[40]), other]);
        let words = table.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("with other prompts"), "{table}");
        assert!(
            words.contains("data=b") && words.contains("data=a"),
            "{table}"
        );
    }
}
