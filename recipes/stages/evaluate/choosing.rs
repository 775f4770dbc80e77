//! Evaluated prompts by which a training has chosen its weights: the evaluation left them over then, or leaves over none.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::Result;
use spectrain_eval::{ChoosingPrompts, Prompt};

use crate::runs::files::entries;
use crate::runs::run_folder::RunFolder;
use crate::runs::run_folder::aside::is_aside;
use crate::stages::answers::{digest_of, validated};

/// How many of these prompts the run in a folder has chosen its weights by, whichever of its stages trained them; none where
/// there are none.
pub(crate) fn choosing_prompts<'a>(
    run: &Path,
    prompts: impl Iterator<Item = &'a Prompt>,
) -> Result<Option<ChoosingPrompts>> {
    let stages = entries(run)?.into_iter().filter(|name| !is_aside(name));
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

/// The same of the run that has its drafter in a folder, `RUN/STAGE/drafter`; none where it is of no run.
pub(crate) fn choosing_of_drafter<'a>(
    folder: &Path,
    prompts: impl Iterator<Item = &'a Prompt>,
) -> Result<Option<ChoosingPrompts>> {
    RunFolder::of_drafter(folder).map_or(Ok(None), |run| choosing_prompts(run, prompts))
}
