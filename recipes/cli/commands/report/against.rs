//! Reports against a baseline, by pairs of prompts: as text and for programs, and whether τ has fallen.

use anyhow::{Context as _, Result, anyhow, bail};
use serde_json::{Value, json};
use spectrain_checkpoints::printable;
use spectrain_eval::{
    Error as EvalError, PairedReport, PairedReports, PairedVerdict, Report, paired_parts,
};

use super::same_prompts;
use crate::progress::tell;

/// A report's name, and its differences from the baseline.
pub(super) type Compared = (String, PairedReports);

/// Each of `reports` against `baseline`, as one among all of them, which is how their page has it, too.
pub(super) fn compared(baseline: &Report, reports: &[(String, Report)]) -> Result<Vec<Compared>> {
    let of_each = |(name, report): &(String, Report)| -> Result<Compared> {
        let pairs = paired_parts(baseline, report, reports.len()).map_err(|error| match error {
            EvalError::OtherPrompts { .. } => {
                anyhow!("{error}; {}", same_prompts::commands(baseline, report))
            }
            error => error.into(),
        });
        let pairs = pairs.with_context(|| format!("the report `{name}`"))?;
        Ok((name.clone(), pairs))
    };
    reports.iter().map(of_each).collect()
}

/// The differences as text.
pub(super) fn told(compared: &[Compared]) -> String {
    let mut text = String::new();
    for (name, pairs) in compared {
        text.push_str(&format!("{name}:\n"));
        for pair in &pairs.found {
            text.push_str(&format!("- {}\n", printable(&pair.to_string())));
        }
        for remark in &pairs.remarks {
            text.push_str(&format!("- note: {}\n", printable(remark)));
        }
    }
    text
}

/// The differences from the report called `baseline`, and what was noticed, as JSON.
pub(super) fn as_json(baseline: &str, compared: &[Compared], remarks: &[String]) -> Result<String> {
    let of_each = |(name, pairs): &Compared| -> Result<Value> {
        let found = pairs.found.iter().map(with_verdict);
        Ok(json!({
            "name": name,
            "differences": found.collect::<Result<Vec<Value>>>()?,
            "notes": pairs.remarks,
            "not_compared": pairs.uncompared,
        }))
    };
    let reports = compared.iter().map(of_each);
    let all = json!({
        "baseline": baseline,
        "reports": reports.collect::<Result<Vec<Value>>>()?,
        "remarks": remarks,
    });
    Ok(serde_json::to_string_pretty(&all)? + "\n")
}

/// A difference, with what it says.
fn with_verdict(pair: &PairedReport) -> Result<Value> {
    let mut value = serde_json::to_value(pair)?;
    value["verdict"] = json!(pair.verdict().to_string());
    value["choice"] = json!(pair.choice().to_string());
    Ok(value)
}

/// Fails where τ has fallen below `least`, or may have: something of the baseline is not compared, or by too few conversations. A
/// warning names datasets of too few where all prompts together are enough.
pub(super) fn judge(least: f64, compared: &[Compared]) -> Result<()> {
    let (mut fallen, mut few, mut beside) = (Vec::new(), Vec::new(), Vec::new());
    let mut uncompared = Vec::new();
    for (name, pairs) in compared {
        let heading = |pair: &PairedReport| format!("{name}, {}", printable(&pair.heading()));
        let of_this = pairs.found.iter().filter(|pair| pair.falls_below(least));
        fallen.extend(of_this.map(heading));
        let of_this = pairs.found.iter();
        for pair in of_this.filter(|pair| !pair.other_lengths && !is_judged(pair)) {
            let mut others = pairs.found.iter();
            let is_beside = others.any(|other| other.setting == pair.setting && is_judged(other));
            let told = if is_beside { &mut beside } else { &mut few };
            told.push(format!("{} ({})", heading(pair), pair.conversations));
        }
        let of_this = pairs.uncompared.iter();
        uncompared.extend(of_this.map(|way| format!("{name}, {}", printable(way))));
    }
    let enough = PairedReport::LEAST;
    if !beside.is_empty() {
        let all = beside.join("; ");
        tell(format!(
            "warning: `--fail-below` does not judge datasets of fewer than {enough} conversations by themselves: {all}"
        ));
    }
    let mut found = Vec::new();
    if !fallen.is_empty() {
        let all = fallen.join("; ");
        found.push(format!("τ has fallen by more than {}: {all}", least.abs()));
    }
    if !few.is_empty() {
        let all = few.join("; ");
        found.push(format!(
            "`--fail-below`: expected {enough} conversations or more to judge by, found fewer for {all}"
        ));
    }
    if !uncompared.is_empty() {
        let all = uncompared.join("; ");
        found.push(format!(
            "`--fail-below`: expected everything that the baseline has, found nothing to compare with it for {all}"
        ));
    }
    match found.is_empty() {
        true => Ok(()),
        false => bail!(found.join("; ")),
    }
}

/// Whether there are conversations enough to say anything of it by itself, as a bound does.
fn is_judged(pair: &PairedReport) -> bool {
    pair.alone() != PairedVerdict::TooFew
}
