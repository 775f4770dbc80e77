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
