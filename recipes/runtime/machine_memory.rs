//! How much memory this machine has.

use std::fs::read_to_string;

/// Bytes of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MachineMemory {
    /// What there is.
    pub(crate) total: u64,
    /// What programs can still have of it.
    pub(crate) free: u64,
}

impl MachineMemory {
    /// The memory of this machine, or of the container if that may have less; none where the system does not say.
    pub(crate) fn here() -> Option<Self> {
        let text = read_to_string("/proc/meminfo").ok()?;
        let limit = read_to_string("/sys/fs/cgroup/memory.max").ok();
        let limit = limit.and_then(|limit| limit.trim().parse().ok());
        let (total, free) = (line(&text, "MemTotal")?, line(&text, "MemAvailable")?);
        let total = limit.unwrap_or(total).min(total);
        Some(Self {
            total,
            free: free.min(total),
        })
    }
}

/// The bytes in a line `NAME:  N kB`.
fn line(text: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines();
    let rest = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kibibytes: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kibibytes << 10)
}

#[cfg(test)]
mod tests {
    use super::line;

    #[test]
    fn memory_is_read_in_bytes() {
        let text = "MemTotal:       24630256 kB\nMemAvailable:   23 kB\n";
        assert_eq!(line(text, "MemAvailable"), Some(23 << 10));
        assert_eq!(line(text, "Mem"), None);
        assert_eq!(line("MemTotal: many kB", "MemTotal"), None);
    }
}
