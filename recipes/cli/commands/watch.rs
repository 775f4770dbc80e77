//! `spectrain watch`: what a run is doing, on the terminal.

use std::io::{IsTerminal as _, stdin, stdout};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use clap::Args;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use spectrain_checkpoints::columns::COLUMNS;

use crate::progress::{has_colours, print};
use crate::runs::run_folder::RunFolder;
use crate::runtime::interruption::interrupted;

mod dashboard;
mod figures;
mod last_written;
mod paint;
mod screen;
mod snapshot;

use screen::{Next, Screen};
use snapshot::Watched;

/// Time between two pictures.
const EVERY: Duration = Duration::from_secs(1);

/// Arguments of `spectrain watch`.
#[derive(Debug, Args)]
pub struct WatchArguments {
    /// The run: its name, or its folder
    run: String,
    /// Print the current state once and exit, as always happens without a terminal
    #[arg(long)]
    once: bool,
    /// The folder of runs
    #[arg(long, value_name = "DIR", default_value = "runs")]
    runs: PathBuf,
}

/// Runs the command. The run itself is not touched, nor is it stopped when the dashboard is left.
pub fn run(arguments: &WatchArguments) -> Result<()> {
    let folder = RunFolder::find(&arguments.runs, &arguments.run)?;
    let mut watched = Watched::new(folder);
    let colours = has_colours(stdout().is_terminal());
    // Keys are read from the terminal, too.
    if arguments.once || !stdout().is_terminal() || !stdin().is_terminal() {
        let lines = picture(&mut watched, (COLUMNS as u16, dashboard::ROWS), colours)?;
        let end = lines.iter().rposition(|line| !line.is_empty());
        let lines = &lines[..end.map_or(0, |end| end + 1)];
        return print(lines.join("\n") + "\n");
    }
    // What is wrong with the run is told before the terminal is taken.
    watched.look()?;
    let screen = Screen::enter()?;
    loop {
        let (columns, rows) = Screen::size();
        let mut lines = picture(
            &mut watched,
            (columns, rows.saturating_sub(1).max(1)),
            colours,
        )?;
        let hint = "q or Ctrl-C leaves this; the run goes on";
        if rows > 1 {
            lines.push(hint.chars().take(columns.into()).collect());
        }
        screen.show(&lines)?;
        if screen.wait(EVERY)? == Next::Leave || interrupted() {
            return Ok(());
        }
    }
}

/// The lines that show a run now, on so many columns and rows.
fn picture(
    watched: &mut Watched,
    (columns, rows): (u16, u16),
    colours: bool,
) -> Result<Vec<String>> {
    let snapshot = watched.look()?;
    let mut buffer = Buffer::empty(Rect::new(0, 0, columns, rows));
    dashboard::draw(&snapshot, now(), &mut buffer);
    Ok(paint::lines(&buffer, colours))
}

/// Seconds since 1970.
fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0.0, |since| since.as_secs_f64())
}
