//! A progress bar on standard error, for as long as a file takes.

use indicatif::{ProgressBar, ProgressStyle};

use crate::printable::printable;

const TEMPLATE: &str = "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}";

/// The bar of one file. It goes when it is dropped.
pub(super) struct Bar(ProgressBar);

impl Bar {
    pub(super) fn new(file: &str, total: u64, done: u64) -> Self {
        let bar = ProgressBar::new(total);
        if let Ok(style) = ProgressStyle::with_template(TEMPLATE) {
            bar.set_style(style);
        }
        bar.set_message(printable(file));
        bar.set_position(done);
        // The rate and the time left are those of this download.
        bar.reset_eta();
        Bar(bar)
    }

    pub(super) fn advance(&self, bytes: u64) {
        self.0.inc(bytes);
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
