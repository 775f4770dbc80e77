//! Tables and words of the page, every text of others escaped.
use std::fmt::Write;

use crate::draw::escape;
use crate::interval::with_digits;

/// A table.
pub(crate) struct Table {
    /// What it is of.
    pub(crate) caption: String,
    /// The heads of its columns.
    pub(crate) head: Vec<String>,
    /// How many of the first columns are words; all others are figures.
    pub(crate) words: usize,
    /// Its cells.
    pub(crate) rows: Vec<Vec<String>>,
}

impl Table {
    /// One without rows.
    pub(crate) fn new(caption: &str, words: usize, head: &[&str]) -> Self {
        Self {
            caption: caption.to_owned(),
            head: head.iter().map(|&head| head.to_owned()).collect(),
            words,
            rows: Vec::new(),
        }
    }

    /// The table in a box of its own, which scrolls where the table is wider than the page.
    pub(crate) fn html(&self) -> String {
        let caption = escape(&self.caption);
        let mut text = format!(
            "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{caption}\"><table>\
             <caption>{caption}</caption>\n<thead><tr>"
        );
        for (at, head) in self.head.iter().enumerate() {
            let class = self.class(at);
            _ = write!(text, "<th scope=\"col\"{class}>{}</th>", escape(head));
        }
        text.push_str("</tr></thead>\n<tbody>\n");
        for row in &self.rows {
            text.push_str("<tr>");
            for (at, cell) in row.iter().enumerate() {
                let (class, cell) = (self.class(at), escape(cell));
                _ = match at {
                    0 => write!(text, "<th scope=\"row\">{cell}</th>"),
                    _ => write!(text, "<td{class}>{cell}</td>"),
                };
            }
            text.push_str("</tr>\n");
        }
        text + "</tbody></table></div>\n"
    }

    fn class(&self, column: usize) -> &'static str {
        if column < self.words {
            ""
        } else {
            " class=\"n\""
        }
    }
}

/// A part of the page under its heading; nothing where there is nothing in it.
pub(crate) fn section(id: &str, heading: &str, body: &str) -> String {
    if body.is_empty() {
        return String::new();
    }
    let heading = escape(heading);
    format!(
        "<section aria-labelledby=\"{id}\">\n<h2 id=\"{id}\">{heading}</h2>\n{body}</section>\n"
    )
}

/// A paragraph or the item of a list, what is between backticks as code.
pub(crate) fn prose(text: &str) -> String {
    let escaped = escape(text);
    let mut parts = escaped.split('`').peekable();
    let mut html = String::new();
    let mut code = false;
    while let Some(part) = parts.next() {
        // A backtick without a partner is itself.
        match (code, parts.peek()) {
            (true, Some(_)) => _ = write!(html, "<code>{part}</code>"),
            (true, None) => _ = write!(html, "`{part}"),
            (false, _) => html.push_str(part),
        }
        code = !code;
    }
    html
}

/// The same as a percentage of one.
pub(crate) fn percent(share: Option<f64>, interval: Option<[f64; 2]>) -> String {
    let hundred = |value: f64| 100.0 * value;
    with_digits(
        share.map(hundred),
        interval.map(|ends| ends.map(hundred)),
        0,
    )
}

/// Values one after the other.
pub(crate) fn values(all: &[f64]) -> String {
    let all: Vec<String> = all.iter().map(|value| format!("{value:.2}")).collect();
    all.join(" ")
}

/// The first letters of a text that is too long for its place.
pub(crate) fn short(text: &str, letters: usize) -> String {
    if text.chars().count() <= letters {
        return text.to_owned();
    }
    let start: String = text.chars().take(letters.saturating_sub(1)).collect();
    start + "…"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_captions_and_prose_are_text() {
        let mut table = Table::new("<i>", 1, &["<b>", "τ"]);
        table.rows = vec![vec!["<script>".into(), "\"2\"".into()]];
        let html = table.html();
        for (raw, held) in [
            ("<i>", "aria-label=\"&lt;i&gt;\""),
            ("<b>", "<th scope=\"col\">&lt;b&gt;</th>"),
            ("<script>", "<th scope=\"row\">&lt;script&gt;</th>"),
            ("\"2\"", "<td class=\"n\">&quot;2&quot;</td>"),
        ] {
            assert!(html.contains(held) && !html.contains(raw), "{html}");
        }
        assert_eq!(
            prose("`a<b` and `c"),
            "<code>a&lt;b</code> and `c",
            "an open backtick stays"
        );
    }

    #[test]
    fn figures_are_rounded_with_their_intervals() {
        assert_eq!(
            with_digits(Some(2.345), Some([2.0, 3.0]), 2),
            "2.35 [2.00, 3.00]"
        );
        assert_eq!(percent(Some(0.25), None), "25");
        assert_eq!(with_digits(None, None, 2), "–");
        assert_eq!(short("abcdef", 4), "abc…");
    }
}
