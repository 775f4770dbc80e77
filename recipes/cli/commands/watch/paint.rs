//! Cells of a terminal as text.

use std::fmt::Write as _;

use ratatui::buffer::Buffer;
use ratatui::style::{Color, Modifier, Style};

/// A space at which no line ends.
pub(super) const TIED: &str = "\u{a0}";

/// The lines of the cells, without the empty ends of lines; with colours where they are wanted.
pub(super) fn lines(buffer: &Buffer, colours: bool) -> Vec<String> {
    let rows = buffer.area.rows();
    rows.map(|row| {
        let cells = row.columns().filter_map(|at| buffer.cell((at.x, at.y)));
        let cells: Vec<_> = cells.collect();
        let is_empty = |symbol: &str| symbol.trim().is_empty();
        let end = cells.iter().rposition(|cell| !is_empty(cell.symbol()));
        let mut line = String::new();
        let mut before = Style::new();
        for cell in &cells[..end.map_or(0, |end| end + 1)] {
            let style = cell.style();
            if colours && code(style) != code(before) {
                _ = write!(line, "\x1b[{}m", code(style));
            }
            before = style;
            // What keeps words together is of no use behind the end of a line.
            line.push_str(if cell.symbol() == TIED {
                " "
            } else {
                cell.symbol()
            });
        }
        if colours && code(before) != code(Style::new()) {
            line.push_str("\x1b[0m");
        }
        line
    })
    .collect()
}

/// The terminal's code of a style, of those that the dashboard has.
fn code(style: Style) -> &'static str {
    match style.fg {
        _ if style.add_modifier.contains(Modifier::BOLD) => "0;1",
        Some(Color::Cyan) => "0;36",
        Some(Color::Green) => "0;32",
        Some(Color::Yellow) => "0;33",
        Some(Color::DarkGray) => "0;90",
        _ => "0",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::layout::Rect;

    #[test]
    fn colours_end_where_their_text_does_and_are_left_out_where_none_are_wanted() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 8, 2));
        buffer.set_string(0, 0, "a", Style::new());
        buffer.set_string(1, 0, "bc", Style::new().fg(Color::Green));
        assert_eq!(lines(&buffer, false), ["abc", ""]);
        assert_eq!(lines(&buffer, true), ["a\x1b[0;32mbc\x1b[0m", ""]);
    }
}
