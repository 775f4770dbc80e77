//! Numbers and parts as a plan shows them.
use std::fmt::Write as _;

/// A part of a plan under its name; nothing where it has no lines.
pub(super) fn part(name: &str, lines: &[String]) -> String {
    let mut text = String::new();
    if !lines.is_empty() {
        text = format!("\n{name}:\n");
    }
    for line in lines {
        _ = writeln!(text, "  {line}");
    }
    text
}

/// A number for people.
pub(super) fn count(number: u64) -> String {
    let number = number as f64;
    match number {
        n if n >= 1e9 => format!("{:.2} G", n / 1e9),
        n if n >= 1e6 => format!("{:.2} M", n / 1e6),
        n if n >= 1e4 => format!("{:.1} k", n / 1e3),
        n => format!("{n:.0}"),
    }
}

/// FLOP/s for people.
pub(super) fn flops(number: f64) -> String {
    match number {
        n if n >= 1e15 => format!("{:.1} PFLOP/s", n / 1e15),
        n if n >= 1e12 => format!("{:.0} TFLOP/s", n / 1e12),
        n => format!("{:.0} GFLOP/s", n / 1e9),
    }
}

/// A whole number in groups of three digits.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let places = digits.len();
    let each = digits.chars().enumerate().map(|(at, digit)| {
        let comma = at > 0 && (places - at).is_multiple_of(3);
        format!("{}{digit}", if comma { "," } else { "" })
    });
    each.collect()
}

/// How often something is taken, with a digit behind the point where that says something.
pub(super) fn times(number: f64) -> String {
    match number {
        n if n >= 100.0 => grouped(n.round() as u64),
        n => format!("{n:.1}"),
    }
}

/// Bytes for people.
pub(super) fn bytes(number: u64) -> String {
    let number = number as f64;
    match number / 1024.0 / 1024.0 {
        mebibytes if mebibytes >= 1024.0 => format!("{:.1} GiB", mebibytes / 1024.0),
        mebibytes => format!("{mebibytes:.1} MiB"),
    }
}

/// Seconds for people.
pub(super) fn duration(seconds: f64) -> String {
    match seconds {
        s if s >= 5400.0 => format!("{:.1} h", s / 3600.0),
        s if s >= 90.0 => format!("{:.1} min", s / 60.0),
        s => format!("{s:.1} s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_numbers_are_grouped_and_rounded() {
        let found = [0, 20, 999, 4096, 81_920, 1_000_000].map(grouped);
        assert_eq!(found, ["0", "20", "999", "4,096", "81,920", "1,000,000"]);
        let found = [1.5, 99.94, 100.1, 8004.1].map(times);
        assert_eq!(found, ["1.5", "99.9", "100", "8,004"]);
        let found = [78.4e9, 400e12, 3.2e15].map(flops);
        assert_eq!(found, ["78 GFLOP/s", "400 TFLOP/s", "3.2 PFLOP/s"]);
    }
}
