//! How tokens are chosen, in the words of every heading.
use std::fmt::Write as _;

/// A temperature, and what of the target's tokens was kept.
pub(crate) fn chosen(temperature: f64, top_k: Option<usize>, top_p: Option<f64>) -> String {
    let mut text = format!("T={temperature}");
    if let Some(top_k) = top_k {
        _ = write!(text, " top-k={top_k}");
    }
    if let Some(top_p) = top_p {
        _ = write!(text, " top-p={top_p}");
    }
    text
}
