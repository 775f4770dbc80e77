//! Sends a run's figures while it runs, from a thread of its own: a server that is slow or away costs the run nothing.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use super::sync::sync;
use crate::recipe::resolved::ResolvedRecipe;
use crate::recipe::tables::TrackTable;

/// The time between two looks at what there is to send.
const PACE: Duration = Duration::from_secs(15);
/// How long the end of a run waits for the last of it.
const PATIENCE: Duration = Duration::from_secs(20);

/// A run's figures on their way.
pub struct Live {
    stop: Sender<()>,
    done: Receiver<()>,
    run: PathBuf,
}

impl Live {
    /// Begins to send, where the recipe says where to. Reads the recipe's text again: it is of another thread.
    pub fn begin(run: PathBuf, recipe: &ResolvedRecipe) -> Option<Self> {
        let track = recipe.track.clone()?;
        let (stop, stopped) = channel();
        let (tell, done) = channel();
        let (toml, folder) = (recipe.toml.clone(), run.clone());
        thread::spawn(move || {
            send(&toml, &folder, &track, &stopped);
            // Whoever waits may have gone.
            let _ = tell.send(());
        });
        Some(Self { stop, done, run })
    }

    /// Sends what is left, for a while at most.
    pub fn finish(self) {
        drop(self.stop);
        if self.done.recv_timeout(PATIENCE).is_err() {
            tracing::warn!(
                "not all figures have been sent; `spectrain track sync {}` sends them",
                self.run.display()
            );
        }
    }
}

fn send(toml: &str, run: &std::path::Path, track: &TrackTable, stopped: &Receiver<()>) {
    let Ok(recipe) = crate::recipe::read(toml, &[]) else {
        return;
    };
    let mut was_told = false;
    loop {
        let is_last = matches!(
            stopped.recv_timeout(PACE),
            Err(RecvTimeoutError::Disconnected)
        );
        // A file is written once, at the end.
        let is_due = is_last || !track.wandb;
        if is_due
            && let Err(error) = sync(run, &recipe, track)
            && (!was_told || is_last)
        {
            was_told = true;
            tracing::warn!(
                "tracking: {error:#}; the run goes on, and `spectrain track sync {}` sends its figures later",
                run.display()
            );
        }
        if is_last {
            return;
        }
    }
}
