//! A target, and the drafters that are judged with it: the one of the report, and those without training.

use std::path::Path;

use anyhow::{Context as _, Result};
use burn::prelude::Device;
use spectrain_checkpoints::ModelFolder;
use spectrain_eval::{Contender, Decoder, DraftChoice, DrafterReport};
use spectrain_models::{Capture, FrozenType, Proposer, Transformer, USUAL_DRAFT, load_target};

use crate::families::trained::Trained;
use crate::recipe::tables::EvaluateTable;
use crate::runtime::interruption::interrupted;
use crate::runtime::pair::Pair;
use crate::runtime::target;

/// A target in memory, and the drafter of the report, where there is one.
pub(super) struct Opened {
    target: Transformer,
    /// Tokens at which the target stops.
    pub(super) stop: Vec<u32>,
    /// The drafter, held in the target's type.
    pub(super) drafter: Option<Box<dyn Trained>>,
    /// What it reads.
    capture: Capture,
}

/// A drafter with what it is asked for.
pub(super) struct Session<'a> {
    name: Option<String>,
    /// Puts it to work on one more sequence.
    sessions: Box<dyn Fn() -> Box<dyn Proposer> + 'a>,
    capture: &'a Capture,
    drafts: Vec<DraftChoice>,
}

/// What a report says of a drafter; its path and hash are still to be filled in.
pub(super) fn drafter_report(drafter: &dyn Trained) -> DrafterReport {
    DrafterReport {
        kind: drafter.kind().into(),
        parameters: drafter.parameters(),
        one_pass: drafter.session().passes(2) == 1,
        ..DrafterReport::default()
    }
}

/// What drafters without training read.
const NOTHING: &Capture = &Capture { layers: Vec::new() };

impl Opened {
    /// The target in a folder, and the drafter in another, where one is given.
    pub(super) fn new(
        target: &Path,
        drafter: Option<&Path>,
        device: &Device,
        target_type: FrozenType,
    ) -> Result<Self> {
        if let Some(drafter) = drafter {
            let pair = Pair::open(target, drafter, device, target_type)?;
            return Ok(Self {
                target: pair.target,
                stop: pair.stop,
                drafter: Some(pair.drafter),
                capture: pair.capture,
            });
        }
        let model = ModelFolder::open(target)?;
        Ok(Self {
            stop: target::stop_tokens(&model)?,
            target: load_target(&model, device, target_type)?,
            drafter: None,
            capture: Capture::default(),
        })
    }

    /// What a report says of the drafter, where there is one.
    pub(super) fn report(&self) -> DrafterReport {
        let drafter = self.drafter.as_deref();
        drafter.map(drafter_report).unwrap_or_default()
    }

    /// The decoder.
    pub(super) fn decoder(&self) -> Decoder<'_> {
        Decoder::new(&self.target, &self.capture).unless(&interrupted)
    }

    /// All drafters, that of the report first.
    pub(super) fn sessions<'a>(&'a self, table: &'a EvaluateTable) -> Result<Vec<Session<'a>>> {
        let mut sessions = Vec::new();
        let mut own = USUAL_DRAFT;
        if let Some(drafter) = &self.drafter {
            own = drafter.session().draft_length();
            sessions.push(Session {
                name: None,
                sessions: Box::new(|| drafter.session()),
                capture: &self.capture,
                drafts: table.choices(own),
            });
        }
        for free in &table.training_free {
            let at_work = || free.proposer(&self.target);
            at_work().with_context(|| format!("the drafter `{free}`"))?;
            sessions.push(Session {
                name: Some(free.to_string()),
                sessions: Box::new(move || match at_work() {
                    Ok(proposer) => proposer,
                    Err(error) => unreachable!("it was put to work before: {error}"),
                }),
                capture: NOTHING,
                drafts: table.choices_of(free, own),
            });
        }
        Ok(sessions)
    }
}

impl Session<'_> {
    /// It as the evaluation takes it.
    pub(super) fn contender(&self) -> Contender<'_, 'static> {
        Contender {
            name: self.name.clone(),
            sessions: &self.sessions,
            capture: self.capture,
            drafts: self.drafts.clone(),
        }
    }
}
