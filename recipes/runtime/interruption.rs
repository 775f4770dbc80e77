//! Ctrl-C: asked for in one place, noticed by whatever takes long.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;

/// How the program ends when the user stops it, as shells say that Ctrl-C ended a command.
pub const INTERRUPTED_STATUS: u8 = 130;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static ASKING: AtomicBool = AtomicBool::new(false);

/// Asks long stages to stop at the next point from which they can go on.
pub fn interrupt() {
    INTERRUPTED.store(true, Ordering::SeqCst);
}

/// Whether the user asked to stop.
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// Asks the user something and reads the answer. Reading does not end where the user asks to stop; meanwhile [`is_asking`].
///
/// # Errors
/// The user asked to stop before anything was asked.
pub fn asking<T>(ask: impl FnOnce() -> T) -> Result<T> {
    // The handler of a signal stores and looks in the other order, so one of the two sees the other.
    ASKING.store(true, Ordering::SeqCst);
    let answer = check_interrupted().map(|()| ask());
    ASKING.store(false, Ordering::SeqCst);
    answer
}

/// Whether a question waits for the user's answer, so that nothing else would notice that the user asks to stop.
pub fn is_asking() -> bool {
    ASKING.load(Ordering::SeqCst)
}

/// The user asked to stop.
#[derive(Debug, thiserror::Error)]
pub enum Interrupted {
    /// A command that starts anew the next time.
    #[error("interrupted")]
    Command,
    /// A stage of a run that starts over the next time; what the stages before it have left stays.
    #[error("interrupted; the same command starts this stage over")]
    Stage,
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

/// The error itself, or, where it says no more than that the user asked to stop, `said`. What a stage has said of itself stays.
pub fn or_interrupted(error: anyhow::Error, said: Interrupted) -> anyhow::Error {
    use spectrain_eval::Error as Decoding;
    use spectrain_train::Error as Training;
    if matches!(error.downcast_ref(), Some(Interrupted::Stage)) {
        return error;
    }
    let asked_to_stop = error.chain().any(|cause| {
        let decoding = cause.downcast_ref::<Decoding>();
        cause.is::<Interrupted>()
            || decoding.is_some_and(Decoding::is_interruption)
            || matches!(cause.downcast_ref(), Some(Training::Interrupted))
    });
    if asked_to_stop { said.into() } else { error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_interrupted_stage_says_of_itself_is_not_said_otherwise_by_its_run() {
        let told = |error: anyhow::Error| or_interrupted(error, Interrupted::Run).to_string();
        let goes_on = "interrupted; the same command goes on from here";
        assert_eq!(told(Interrupted::Command.into()), goes_on);
        let of_stage = or_interrupted(Interrupted::Command.into(), Interrupted::Stage);
        assert_eq!(
            told(of_stage),
            "interrupted; the same command starts this stage over"
        );
        let other = or_interrupted(anyhow::anyhow!("no room"), Interrupted::Stage);
        assert_eq!(told(other), "no room");
    }
}
