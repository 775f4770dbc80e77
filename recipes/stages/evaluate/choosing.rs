//! Evaluated prompts by which a training has chosen its weights: the evaluation left them over then, or leaves over none.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
use spectrain_eval::{ChoosingPrompts, Prompt};

use crate::runs::curves::curves_in;
use crate::runs::files::entries;
use crate::runs::run_folder::RunFolder;
use crate::runs::run_folder::aside::is_aside;
use crate::stages::answers::{digest_of, validated};

/// How many of these prompts the run in a folder has chosen its weights by, whichever of its stages trained them; none where
/// there are none, or where there was nothing to choose from.
pub(crate) fn choosing_prompts<'a>(
    run: &Path,
    prompts: impl Iterator<Item = &'a Prompt>,
) -> Result<Option<ChoosingPrompts>> {
    let stages = entries(run)?.into_iter();
    let stages = stages.filter(|name| !is_aside(name) && may_have_chosen(run, name));
    let choosing: BTreeSet<String> = stages
        .flat_map(|stage| validated(&run.join(stage)))
        .collect();
    let (mut chose, mut of) = (0, 0);
    for prompt in prompts {
        of += 1;
        chose += u64::from(choosing.contains(&digest_of(&prompt.tokens)));
    }
    Ok((chose > 0).then_some(ChoosingPrompts { chose, of }))
}

/// How a run leaves prompts to validations: with fewer in `key` than `all`, those that there are, or with more in `data.eval`.
pub(crate) fn leave_some(key: &str, all: &str) -> String {
    format!(
        "before a training set `{key}` to fewer than {all}, or `data.eval` to conversations with more"
    )
}

/// Whether a training may have chosen among weights: by its log it did not validate once alone. What cannot be read of a log does not say
/// so.
fn may_have_chosen(run: &Path, stage: &str) -> bool {
    let curves = curves_in(run, stage).ok().flatten();
    curves.is_none_or(|curves| curves.validations.len() != 1)
}

/// The same of the run that has its drafter in a folder, `RUN/STAGE/drafter`; none where it is of no run.
pub(crate) fn choosing_of_drafter<'a>(
    folder: &Path,
    prompts: impl Iterator<Item = &'a Prompt>,
) -> Result<Option<ChoosingPrompts>> {
    RunFolder::of_drafter(folder).map_or(Ok(None), |run| choosing_prompts(run, prompts))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::*;
    use crate::stages::answers::ANSWERS;

    #[test]
    fn a_training_that_validated_once_has_chosen_by_no_prompt() {
        let root = tempfile::tempdir().unwrap();
        let prompts: [Vec<u32>; 2] = [vec![1, 2], vec![3]];
        let kept = json!({"of": "", "answers": [], "validated": [digest_of(&prompts[1])]});
        let prompts = prompts.map(Prompt::from);
        let stage = root.path().join("train");
        fs::create_dir_all(stage.join("events")).unwrap();
        fs::write(stage.join(ANSWERS), kept.to_string()).unwrap();
        let chosen_by = || choosing_prompts(root.path(), prompts.iter()).unwrap();
        let one = Some(ChoosingPrompts { chose: 1, of: 2 });
        // Nothing says how often it validated.
        assert_eq!(chosen_by(), one);
        let log = |steps: &[u64]| {
            let line = |step: &u64| {
                let line = json!({"step": step, "time": 0.0, "validation/tau": 2.0});
                format!("{line}\n")
            };
            let lines: String = steps.iter().map(line).collect();
            fs::write(stage.join("events/metrics.jsonl"), lines).unwrap();
        };
        log(&[40]);
        assert_eq!(chosen_by(), None);
        log(&[20, 40]);
        assert_eq!(chosen_by(), one);
    }
}
