//! The targets of an evaluation: their folders, and what a report says of them.

use std::path::Path;

use anyhow::{Result, bail};
use spectrain_checkpoints::ModelFolder;
use spectrain_checkpoints::known::{dialect_of, open_folder};
use spectrain_checkpoints::launch::{Choosing, Server};
use spectrain_eval::TargetReport;
use spectrain_models::FrozenType;

use crate::families::described::reading_for;
use crate::runtime::target;
use crate::runtime::text::Text;
use crate::runtime::trial::TrialTarget;

/// The variable by which chat templates turn thinking off.
const THINKING: &str = "enable_thinking";

/// These targets, downloaded where they are not here; `held` is how they are where something is `decoded` here, else none of their
/// weights need be there.
pub(super) fn targets(
    models: &[String],
    held: FrozenType,
    is_decoded: bool,
) -> Result<Vec<TrialTarget>> {
    let resolved = |model: &String| {
        let (folder, dtype) = match is_decoded {
            true => (target::resolve(model, None)?, held.name().to_lowercase()),
            false => {
                let folder = target::resolve_some("target", model, None, &|_| false)?;
                (folder, String::new())
            }
        };
        let is_whole = is_decoded || ModelFolder::open(&folder).is_ok();
        let report = TargetReport {
            model: model.clone(),
            revision: None,
            sha256: match is_whole {
                true => target::sha256(&folder)?,
                false => String::new(),
            },
            dtype,
        };
        Ok(TrialTarget { folder, report })
    };
    models.iter().map(resolved).collect()
}

/// What to say where a server of `target` is asked whose template would let it think, or not, and nobody says which.
pub(super) fn on_thinking(target: &str, text: &Text) -> Option<String> {
    let template = text.template.as_ref()?;
    let is_open =
        template.source().contains(THINKING) && !template.variables().contains_key(THINKING);
    is_open.then(|| {
        format!(
            "the chat template of `{target}` reads `{THINKING}`, and neither `--template-variable` nor a drafter sets it, so the \
             template decides whether the target thinks: `--template-variable {THINKING}=false` asks for answers without \
             thinking, `{THINKING}=true` for those with it"
        )
    })
}

/// Fails where a drafter that reads a target's hidden states says that it was trained for none of these.
pub(super) fn check_target(drafter: &Path, targets: &[TrialTarget]) -> Result<()> {
    let model = ModelFolder::open(drafter)?;
    let Some(named) = target::trained_for(&model) else {
        return Ok(());
    };
    let is_it = |target: &TrialTarget| target.report.sha256 == named.sha256;
    if target::drafts_by_text(&model) || targets.iter().any(is_it) {
        return Ok(());
    }
    bail!(
        "{}; judge it all the same with `--other-target`",
        named.is_not(drafter, &targets[0].report.model)
    )
}

/// What SGLang drafts above temperature 0 with the drafter in this folder, as its launch commands say; none where it does not run it.
pub(super) fn choosing_in_sglang(drafter: &Path, target: &Path) -> Option<Choosing> {
    // A folder that cannot be read is an error where it is decoded with.
    let model = open_folder(drafter).ok()?;
    let dialect = dialect_of(&model).ok()?;
    let reading = reading_for(&target::spec(target).ok()?);
    let opened = dialect.open(&model, reading).ok()?;
    let lines = dialect.launch_lines(&opened.settings, drafter, "", 1);
    let is_sglang = |server: Option<Server>| matches!(server, Some(Server::Sglang(_)));
    lines.iter().find(|line| is_sglang(line.server))?.choosing
}
