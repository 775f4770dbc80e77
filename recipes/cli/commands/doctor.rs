//! `spectrain doctor`: what the program stands on, and what to do where that is not as it should be.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::json;
use spectrain_checkpoints::columns::listed;

use crate::progress::{print, print_json};
use crate::runtime::doctor::{Finding, State, look};

/// Arguments of `spectrain doctor`.
#[derive(Debug, Args)]
pub struct DoctorArguments {
    /// Check that the hub answers
    #[arg(long)]
    online: bool,
    /// Print what was found as JSON
    #[arg(long)]
    json: bool,
    /// The folder of runs
    #[arg(long, value_name = "DIR", default_value = "runs")]
    runs: PathBuf,
}

/// Runs the command. Fails where something gets in the way.
pub fn run(arguments: &DoctorArguments) -> Result<()> {
    let found = look(&arguments.runs, arguments.online);
    if arguments.json {
        print_json(&json!({ "findings": found }))?;
    } else {
        print(shown(&found))?;
    }
    match found.iter().filter(|of| of.state == State::Problem).count() {
        0 => Ok(()),
        1 => bail!("1 problem was found, with what to do about it"),
        several => bail!("{several} problems were found, with what to do about each"),
    }
}

fn shown(found: &[Finding]) -> String {
    listed(found.iter().map(|finding| {
        let advice = finding.advice.as_deref().unwrap_or_default();
        let what = match finding.state {
            State::Good => finding.found.clone(),
            State::Note => format!("{} (note: {advice})", finding.found),
            State::Problem => format!("PROBLEM: {}. What to do: {advice}", finding.found),
        };
        (&finding.name, what)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_stands_out_with_what_to_do_about_it() {
        let found = [
            Finding::good("cpu", "computes"),
            Finding::good("cache", "full").problem("make room"),
        ];
        let text = shown(&found);
        let expected = "cpu    computes\ncache  PROBLEM: full. What to do: make room\n";
        assert_eq!(text, expected);
    }
}
