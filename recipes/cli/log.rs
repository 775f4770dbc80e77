//! How what is logged stands on the terminal: as what the program says itself.

use std::fmt;

use spectrain_checkpoints::printable_lines;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::FmtContext;
use tracing_subscriber::fmt::format::{FormatEvent, FormatFields, Writer};
use tracing_subscriber::registry::LookupSpan;

/// A warning begins as one of [`Output::warn`](crate::progress::Output::warn), and what is only told stands alone.
pub(super) struct Plain;

impl<S, N> FormatEvent<S, N> for Plain
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut text = String::new();
        let fields = context.field_format();
        fields.format_fields(Writer::new(&mut text), event)?;
        let begin = match *event.metadata().level() {
            Level::ERROR => "error: ",
            Level::WARN => "warning: ",
            Level::INFO => "",
            _ => "debug: ",
        };
        writeln!(writer, "{begin}{}", printable_lines(&text))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<u8>>>);

    impl Write for Log {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn what_is_logged_begins_as_what_the_program_says() {
        let log = Log::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .with_ansi(false)
            .event_format(Plain)
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            tracing::warn!("slow: {}", 3);
            tracing::info!("step 3\u{1b}[2J");
        });
        let told = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
        let [warned, said] = told.lines().collect::<Vec<_>>()[..] else {
            panic!("{told:?}");
        };
        assert_eq!(warned, "warning: slow: 3");
        assert!(said.starts_with("step 3"), "{told:?}");
        assert!(!told.contains('\u{1b}'), "{told:?}");
    }
}
