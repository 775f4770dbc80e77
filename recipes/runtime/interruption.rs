//! Ctrl-C: asked for in one place, noticed by whatever takes long.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Asks long stages to stop at the next point from which they can go on.
pub fn interrupt() {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Whether the user asked to stop.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}

/// The user asked to stop.
#[derive(Debug, thiserror::Error)]
pub enum Interrupted {
    /// A command that starts anew the next time.
    #[error("interrupted")]
    Command,
    /// What goes on the next time.
    #[error("interrupted; the same command goes on from here")]
    Run,
}

/// Fails if the user asked to stop.
pub fn check_interrupted() -> Result<()> {
    if interrupted() {
        Err(Interrupted::Command.into())
    } else {
        Ok(())
    }
}

/// The error itself, or, where it says no more than that the user asked to stop, `said`.
pub fn or_interrupted(error: anyhow::Error, said: Interrupted) -> anyhow::Error {
    use spectrain_eval::Error as Decoding;
    use spectrain_train::Error as Training;
    let asked_to_stop = error.chain().any(|cause| {
        let decoding = cause.downcast_ref::<Decoding>();
        cause.is::<Interrupted>()
            || decoding.is_some_and(Decoding::is_interruption)
            || matches!(cause.downcast_ref(), Some(Training::Interrupted))
    });
    if asked_to_stop { said.into() } else { error }
}
