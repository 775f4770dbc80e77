//! What every drawing is made of: axes, lines and text as SVG.
use std::fmt::Write;

use spectrain_checkpoints::printable;

/// A stretch of a picture in which values run from `low` to `high`.
pub(crate) struct Axis {
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) low: f64,
    pub(crate) high: f64,
}

impl Axis {
    /// Where a value is.
    pub(crate) fn at(&self, value: f64) -> f64 {
        let share = (value - self.low) / (self.high - self.low);
        self.from + share * (self.to - self.from)
    }
}

/// A line; `paint` is what its attributes say of colour and width.
pub(crate) fn line(svg: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64), paint: &str) {
    _ = writeln!(
        svg,
        "<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" {paint}/>"
    );
}

/// A line through several points.
pub(crate) fn polyline(svg: &mut String, points: impl Iterator<Item = (f64, f64)>, paint: &str) {
    let points: Vec<String> = points.map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let points = points.join(" ");
    _ = writeln!(svg, "<polyline points=\"{points}\" fill=\"none\" {paint}/>");
}

/// Text whose `anchor` (start, middle or end) is at a place.
pub(crate) fn label(svg: &mut String, (x, y): (f64, f64), anchor: &str, text: &str) {
    let text = escape(text);
    _ = writeln!(
        svg,
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
    );
}

/// Text of others as it may stand in markup, within quotes too. Control characters, which markup may not hold, are spelled out.
pub(crate) fn escape(text: &str) -> String {
    printable(text)
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;")
        .replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_in_a_text_is_markup() {
        assert_eq!(
            escape("<a href='x' on=\"y\">&amp;\u{1b}\u{202e}"),
            "&lt;a href=&#39;x&#39; on=&quot;y&quot;&gt;&amp;amp;\\u{1b}\\u{202e}"
        );
    }
}
