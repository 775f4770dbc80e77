//! Values with their intervals, in the words of every table.

/// A value with two digits, and its interval where it has one; a dash where there is none.
pub(crate) fn with_interval(value: Option<f64>, interval: Option<[f64; 2]>) -> String {
    with_digits(value, interval, 2)
}

/// The same with so many digits.
pub(crate) fn with_digits(value: Option<f64>, interval: Option<[f64; 2]>, digits: usize) -> String {
    match (value, interval) {
        (Some(value), Some([low, high])) => {
            format!("{value:.digits$} [{low:.digits$}, {high:.digits$}]")
        }
        (Some(value), None) => format!("{value:.digits$}"),
        (None, _) => "–".into(),
    }
}

/// A difference with its sign, and its interval where it has one.
pub(crate) fn with_signs(difference: f64, interval: Option<[f64; 2]>, digits: usize) -> String {
    match interval {
        Some([low, high]) => {
            format!("{difference:+.digits$} [{low:+.digits$}, {high:+.digits$}]")
        }
        None => format!("{difference:+.digits$}"),
    }
}
