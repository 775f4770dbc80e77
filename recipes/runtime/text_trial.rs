//! A drafter judged by stored features of the target's own texts, without the target's layers.

use std::path::Path;

use anyhow::Result;
use burn::prelude::Device;
use spectrain_checkpoints::DType;
use spectrain_eval::{DrafterReport, SettingReport, TextSettings, Texts, TextsReport};
use spectrain_models::{Proposer, TargetParts, load_parts};

use crate::families::registry::open_drafter;
use crate::families::trained::Trained;
use crate::progress::{Output, counted};
use crate::runtime::contenders::drafter_report;
use crate::runtime::interruption::check_interrupted;
use crate::runtime::pair::with_way_out;
use crate::runtime::texts::StoredTexts;

/// A drafter with what it needs of its target.
pub struct Parts {
    /// The pieces of the target that a drafter shares.
    pub target: TargetParts,
    /// The drafter, held in the target's type.
    pub drafter: Box<dyn Trained>,
}

impl Parts {
    /// Loads both.
    pub fn open(target: &Path, drafter: &Path, device: &Device, dtype: DType) -> Result<Self> {
        let target = load_parts(target, device, dtype)?;
        let drafter = open_drafter(drafter, &target, device).map_err(with_way_out)?;
        let compute = target.dtype();
        Ok(Self {
            drafter: drafter.held_in(compute),
            target,
        })
    }
}

impl Parts {
    /// What a report says of the drafter; its path and hash are still to be filled in.
    pub fn drafter_report(&self) -> DrafterReport {
        drafter_report(self.drafter.as_ref())
    }
}

/// What the drafter `proposer` makes of the conversations in `chosen`, with answers cut after `longest` tokens.
pub fn judge(
    texts: &StoredTexts,
    (chosen, longest): (&[usize], Option<usize>),
    proposer: &dyn Proposer,
    settings: &TextSettings,
    (name, output): (&str, Output),
) -> Result<(Vec<SettingReport>, TextsReport)> {
    let mut judged = Texts::new(name, proposer, settings)?;
    let mut progress = output.start("evaluate", chosen.len() as u64);
    for (done, &conversation) in chosen.iter().enumerate() {
        check_interrupted()?;
        let answers = texts.answers(conversation, longest);
        // Where it is known how long answers may be, what has none is compared, too.
        if !answers.is_empty() || settings.ends.is_some() {
            judged.add(&texts.asked(conversation), &answers)?;
        }
        progress.set(1 + done as u64, "conversations");
    }
    progress.finish(counted(chosen.len() as u64, "conversation"));
    Ok(judged.finish()?)
}
