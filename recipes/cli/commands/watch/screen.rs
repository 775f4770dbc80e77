//! A terminal that shows the dashboard, and is left as it was.

use std::io::{Write as _, stdout};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use crossterm::event::{Event, KeyCode, KeyEvent, KeyModifiers, poll, read};
use crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode,
    enable_raw_mode, size,
};
use crossterm::{cursor, execute, queue, style};

/// A terminal whose own contents come back when the value is dropped, a panic or not.
pub(super) struct Screen;

/// What ends the time between two pictures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// It is over, or the terminal has another size.
    Draw,
    /// The user has seen enough.
    Leave,
}

impl Screen {
    pub(super) fn enter() -> Result<Self> {
        enable_raw_mode().context("cannot use the terminal")?;
        // From here on whatever fails is undone.
        let screen = Self;
        execute!(stdout(), EnterAlternateScreen, cursor::Hide)
            .context("cannot use the terminal")?;
        Ok(screen)
    }

    /// Columns and rows of the terminal.
    pub(super) fn size() -> (u16, u16) {
        let (columns, rows) = size().unwrap_or((80, 24));
        (columns.max(1), rows.max(1))
    }

    /// Shows these lines and nothing else.
    pub(super) fn show(&self, lines: &[String]) -> Result<()> {
        let mut out = stdout().lock();
        let mut shown = || -> std::io::Result<()> {
            for (row, line) in (0..).zip(lines) {
                queue!(
                    out,
                    cursor::MoveTo(0, row),
                    style::Print(line),
                    Clear(ClearType::UntilNewLine)
                )?;
            }
            queue!(out, Clear(ClearType::FromCursorDown))?;
            out.flush()
        };
        shown().context("cannot write to the terminal")
    }

    /// Waits so long, or until something happens.
    pub(super) fn wait(&self, time: Duration) -> Result<Next> {
        let until = Instant::now() + time;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if !poll(left).context("cannot read from the terminal")? {
                return Ok(Next::Draw);
            }
            match read().context("cannot read from the terminal")? {
                Event::Key(key) if leaves(key) => return Ok(Next::Leave),
                Event::Resize(..) => return Ok(Next::Draw),
                _ => {}
            }
        }
    }
}

/// `q`, Esc, and Ctrl-C, which the terminal hands over as a key.
fn leaves(key: KeyEvent) -> bool {
    let with_control = key.modifiers.contains(KeyModifiers::CONTROL);
    matches!(
        (key.code, with_control),
        (KeyCode::Char('q') | KeyCode::Esc, false) | (KeyCode::Char('c'), true)
    )
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Where the terminal is gone there is nothing to restore.
        let _ = execute!(stdout(), cursor::Show, LeaveAlternateScreen);
        let _ = disable_raw_mode();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn q_escape_and_control_c_leave_and_other_keys_do_not() {
        let key = |code, modifiers| leaves(KeyEvent::new(code, modifiers));
        assert!(key(KeyCode::Char('q'), KeyModifiers::NONE));
        assert!(key(KeyCode::Esc, KeyModifiers::NONE));
        assert!(key(KeyCode::Char('c'), KeyModifiers::CONTROL));
        assert!(!key(KeyCode::Char('c'), KeyModifiers::NONE));
        assert!(!key(KeyCode::Enter, KeyModifiers::NONE));
    }
}
