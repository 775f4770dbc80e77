//! What this program and its libraries log, as `spectrain` would print it with the lowest level.

use std::io::Write;
use std::sync::{Mutex, OnceLock};

/// Of all tests that share a process.
static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

pub(super) struct Log(());

impl Log {
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&LOG.lock().unwrap()).into_owned()
    }
}

/// The log from now on.
pub(super) fn capture() -> &'static Log {
    static CAPTURED: OnceLock<Log> = OnceLock::new();
    CAPTURED.get_or_init(|| {
        // For the whole process: of subscribers for one thread, tracing may forget what other threads called first.
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_writer(|| Line)
            .init();
        Log(())
    })
}

struct Line;

impl Write for Line {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        LOG.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
