//! Numbers as a plan shows them.

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
