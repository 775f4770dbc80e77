//! Signals: those that ask the program to stop, and one that would end it.

use anyhow::{Context as _, Result};
#[cfg(unix)]
use nix::sys::signal::{SigHandler, Signal, signal};

use crate::progress::tell;
use crate::runtime::interruption::{
    INTERRUPTED_STATUS, Interrupted, interrupt, interrupted, is_asking,
};

/// Listens for all of them.
pub(super) fn listen() -> Result<()> {
    let ignored = ignored()?;
    listen_for_stop()?;
    keep_ignoring(&ignored)?;
    outlive_file_limit()
}

/// The first Ctrl-C or SIGTERM asks to stop where the run can go on later, the second one stops at once. So does the first one where a question
/// waits for its answer.
fn listen_for_stop() -> Result<()> {
    ctrlc::set_handler(|| {
        let is_second = interrupted();
        interrupt();
        if is_asking() {
            // The question has no answer behind it that ended its line.
            tell(format!("\nerror: {}", Interrupted::Command));
        } else if !is_second {
            tell("stopping at the next safe point; a second Ctrl-C or SIGTERM stops at once");
            return;
        }
        std::process::exit(INTERRUPTED_STATUS.into());
    })
    .context("cannot listen for Ctrl-C")
}

/// Those that the program is to ignore, as who started it has set: SIGHUP under `nohup`, SIGINT of what a script starts with `&`.
///
/// Reading is setting: until a handler is there, all are ignored.
#[cfg(unix)]
fn ignored() -> Result<Vec<Signal>> {
    let mut found = Vec::new();
    for signal in [Signal::SIGHUP, Signal::SIGINT] {
        if matches!(ignore(signal)?, SigHandler::SigIgn) {
            found.push(signal);
        }
    }
    Ok(found)
}

/// Ignores again what was ignored before there was a handler for it.
#[cfg(unix)]
fn keep_ignoring(ignored: &[Signal]) -> Result<()> {
    ignored
        .iter()
        .try_for_each(|&signal| ignore(signal).map(drop))
}

/// Ignores a signal, and returns what was done about it before.
#[cfg(unix)]
fn ignore(of: Signal) -> Result<SigHandler> {
    #[expect(
        unsafe_code,
        reason = "what handles a signal may run anywhere in the program; here nothing handles it"
    )]
    // SAFETY: no function becomes a handler, and the one that was there is only returned.
    let before = unsafe { signal(of, SigHandler::SigIgn) };
    before.with_context(|| format!("cannot ignore {of}"))
}

#[cfg(not(unix))]
fn ignored() -> Result<()> {
    Ok(())
}

#[cfg(not(unix))]
fn keep_ignoring((): &()) -> Result<()> {
    Ok(())
}

/// Lets a write that would make a file larger than the system allows fail as one on a full disk does: unheard, the signal that comes
/// with it ends the program without a word.
#[cfg(unix)]
fn outlive_file_limit() -> Result<()> {
    use signal_hook::consts::SIGXFSZ;
    // What it says is not of interest: the write itself fails.
    signal_hook::flag::register(SIGXFSZ, Default::default())
        .map(drop)
        .context("cannot listen for the signal of a limit on files")
}

#[cfg(not(unix))]
fn outlive_file_limit() -> Result<()> {
    Ok(())
}
