//! What a run need not make again, since another run has made it from the same.

use std::path::PathBuf;

use crate::runs::run_folder::Status;
use crate::runs::run_folder::linked::link_stage;
use crate::stages::context::StageContext;
use crate::stages::order;
use crate::stages::stage::Stage;

/// Takes over what the runs in `others` have done before their training and this run has not begun, as far as it is what this recipe
/// wants. What cannot be taken over the run makes itself.
pub fn borrow(context: &StageContext, others: &[PathBuf]) {
    // What there might be to take over is found by hashes of all that is read before.
    if others.iter().all(|other| other == context.run.path()) {
        return;
    }
    let trains = |stage: &Stage| context.recipe.method.stages().contains(&stage.name);
    for stage in order::of(context.recipe) {
        if trains(&stage) {
            return;
        }
        match context.run.manifest(stage.name) {
            Ok(None) => {}
            Ok(Some(manifest)) if manifest.status == Status::Done => continue,
            // The run has begun it, or will say what is wrong with it, and what comes after reads what it leaves.
            _ => return,
        }
        let Ok(Some(other)) = context.done_in(others, &stage) else {
            return;
        };
        if let Err(error) = link_stage(context.run, stage.name, other) {
            let name = stage.name;
            (context.output).warn(format!("{name}: not taken from another run: {error:#}"));
            return;
        }
        (context.output).say(format!(
            "{}: the same as in `{}`, so taken from there",
            stage.name,
            other.display()
        ));
    }
}
