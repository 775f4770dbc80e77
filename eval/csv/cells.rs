//! Values as the cells of a line.
use serde_json::Value;

use crate::report::words::plain;

/// Cells as a line.
pub(crate) fn line(cells: &[String]) -> String {
    let cells: Vec<String> = cells.iter().map(|cell| quoted(cell)).collect();
    cells.join(",") + "\r\n"
}

/// Values one after the other in one cell.
pub(crate) fn listed(values: &[impl ToString]) -> String {
    let values: Vec<String> = values.iter().map(ToString::to_string).collect();
    values.join(" ")
}

/// A value and the ends of its interval.
pub(crate) fn measured(value: Option<f64>, interval: Option<[f64; 2]>) -> [String; 3] {
    let [low, high] = ends(interval);
    [optional(value), low, high]
}

/// The ends of an interval.
pub(super) fn ends(interval: Option<[f64; 2]>) -> [String; 2] {
    interval
        .map_or([None, None], |ends| ends.map(Some))
        .map(optional)
}

/// A value, or nothing.
pub(crate) fn optional(value: Option<impl ToString>) -> String {
    value.map_or(String::new(), |value| value.to_string())
}

/// A cell, within quotes where it holds what would end it.
fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell.to_owned()
    }
}

/// A value in a cell: a string as it is, lists as JSON, and nothing for what is not there.
pub(super) fn said(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(value) => plain(value),
    }
}
