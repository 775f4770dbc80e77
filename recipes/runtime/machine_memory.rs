//! How much memory this machine has.

use std::fs::read_to_string;
use std::path::{Component, Path, PathBuf};

/// Bytes of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MachineMemory {
    /// What there is.
    pub(crate) total: u64,
    /// What programs can still have of it.
    pub(crate) free: u64,
}

impl MachineMemory {
    /// The memory of this machine, or of the container or job if that may have less; none where the system does not say.
    pub(crate) fn here() -> Option<Self> {
        Self::of(Path::new("/"))
    }

    /// The memory of the system whose files are under `root`.
    fn of(root: &Path) -> Option<Self> {
        let text = read_to_string(root.join("proc/meminfo")).ok()?;
        let machine = Self {
            total: line(&text, "MemTotal")?,
            free: line(&text, "MemAvailable")?,
        };
        let groups = read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let limits = [V2, V1].map(|version| version.limits(root, &groups));
        Some(limits.concat().iter().fold(machine, |all, limit| Self {
            total: all.total.min(limit.total),
            free: all.free.min(limit.free),
        }))
    }
}

/// Where a version of Linux' control groups says how much memory the processes of a group may have, and have.
struct Version {
    /// The folder of the group of all processes.
    folder: &'static str,
    /// What `/proc/self/cgroup` calls this version's groups.
    controller: &'static str,
    /// Files of a group: the most bytes, and those in use.
    limit: &'static str,
    used: &'static str,
    /// The lines of the file `memory.stat` with the bytes of files that are used, too, and given up where others need them: those
    /// of files that were read once and several times.
    cache: [&'static str; 2],
}

/// <https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files>.
const V2: Version = Version {
    folder: "sys/fs/cgroup",
    controller: "",
    limit: "memory.max",
    used: "memory.current",
    cache: ["inactive_file", "active_file"],
};

/// <https://docs.kernel.org/admin-guide/cgroup-v1/memory.html>.
const V1: Version = Version {
    folder: "sys/fs/cgroup/memory",
    controller: "memory",
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cache: ["total_inactive_file", "total_active_file"],
};

impl Version {
    /// The limits of the group that a process is in by its `/proc/self/cgroup`, and of all groups around it. Of a path outside of a
    /// container only the last of these is here.
    fn limits(&self, root: &Path, groups: &str) -> Vec<MachineMemory> {
        let top = root.join(self.folder);
        let group = top.join(self.group(groups));
        let around = group
            .ancestors()
            .take_while(|group| group.starts_with(&top));
        around.filter_map(|group| self.limit(group)).collect()
    }

    /// The path of a process's group in the folder of all; that folder itself where the path leads out of it, as a container's may.
    fn group(&self, groups: &str) -> PathBuf {
        let path = groups.lines().find_map(|line| {
            let (_, line) = line.split_once(':')?;
            let (controllers, path) = line.split_once(':')?;
            let mut controllers = controllers.split(',');
            controllers
                .any(|name| name == self.controller)
                .then(|| Path::new(path))
        });
        let parts = path.into_iter().flat_map(Path::components);
        if parts.clone().any(|part| part == Component::ParentDir) {
            return PathBuf::new();
        }
        parts
            .filter(|part| matches!(part, Component::Normal(_)))
            .collect()
    }

    /// The limit of one group; none where it has none.
    fn limit(&self, group: &Path) -> Option<MachineMemory> {
        let read = |name: &str| read_to_string(group.join(name)).ok();
        let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
        let total = number(self.limit)?;
        let used = number(self.used).unwrap_or(0);
        let stat = read("memory.stat").unwrap_or_default();
        let cache = stat.lines().filter_map(|line| {
            let (name, bytes) = line.split_once(' ')?;
            let bytes = bytes.parse::<u64>().ok();
            bytes.filter(|_| self.cache.contains(&name))
        });
        let held = used.saturating_sub(cache.sum());
        Some(MachineMemory {
            total,
            free: total.saturating_sub(held),
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
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn memory_is_read_in_bytes() {
        let text = "MemTotal:       24630256 kB\nMemAvailable:   23 kB\n";
        assert_eq!(line(text, "MemAvailable"), Some(23 << 10));
        assert_eq!(line(text, "Mem"), None);
        assert_eq!(line("MemTotal: many kB", "MemTotal"), None);
    }

    /// Total and free memory, in GiB, of a machine with 64 GiB, of which 48 are free, and these files.
    fn found(files: &[(&str, String)]) -> [u64; 2] {
        let root = tempfile::tempdir().unwrap();
        let meminfo = format!("MemTotal: {} kB\nMemAvailable: {} kB\n", 64 << 20, 48 << 20);
        let machine = ("proc/meminfo", meminfo);
        for (name, text) in [machine].iter().chain(files) {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let found = MachineMemory::of(root.path()).unwrap();
        [found.total, found.free].map(|bytes| {
            assert_eq!(bytes % GIB, 0, "{bytes}");
            bytes / GIB
        })
    }

    fn bytes(gib: u64) -> String {
        format!("{}\n", gib * GIB)
    }

    #[test]
    fn a_machine_without_limits_has_all_of_it() {
        assert_eq!(found(&[]), [64, 48]);
        let none = ("proc/self/cgroup", "0::/user.slice/a.scope\n".to_owned());
        let limit = ("sys/fs/cgroup/user.slice/memory.max", "max\n".to_owned());
        assert_eq!(found(&[none, limit]), [64, 48]);
        // What version 1 calls no limit.
        let none = (
            "sys/fs/cgroup/memory/memory.limit_in_bytes",
            "9223372036854771712\n".to_owned(),
        );
        assert_eq!(found(&[none]), [64, 48]);
    }

    #[test]
    fn the_smallest_of_what_the_groups_around_a_job_leave_free_is_free() {
        let job = |group: &str| {
            [
                (
                    "proc/self/cgroup",
                    format!("1:name=systemd:/x\n0::{group}\n"),
                ),
                ("sys/fs/cgroup/slurm/memory.max", bytes(32)),
                ("sys/fs/cgroup/slurm/memory.current", bytes(30)),
                (
                    "sys/fs/cgroup/slurm/memory.stat",
                    format!("anon 7\nactive_file {}inactive_file {}", bytes(3), bytes(5)),
                ),
                ("sys/fs/cgroup/slurm/job_7/memory.max", bytes(16)),
                ("sys/fs/cgroup/slurm/job_7/memory.current", bytes(1)),
                (
                    "sys/fs/cgroup/slurm/job_7/task_0/memory.max",
                    "max\n".into(),
                ),
                ("sys/fs/cgroup/slurm/job_7/task_0/memory.current", bytes(1)),
            ]
        };
        // The job leaves 15 free, those around it 32 - (30 - 8).
        assert_eq!(found(&job("/slurm/job_7/task_0")), [16, 10]);
        assert_eq!(found(&job("/slurm")), [32, 10]);
        assert_eq!(found(&job("/other")), [64, 48]);
    }

    #[test]
    fn a_container_has_what_its_own_group_has_whatever_it_is_called_outside() {
        for group in ["/", "/docker/5a", "/../../a"] {
            let files = [
                ("proc/self/cgroup", format!("0::{group}\n")),
                ("sys/fs/cgroup/memory.max", bytes(8)),
                ("sys/fs/cgroup/memory.current", bytes(10)),
                (
                    "sys/fs/cgroup/memory.stat",
                    format!("inactive_file {}", bytes(7)),
                ),
            ];
            assert_eq!(found(&files), [8, 5], "{group}");
        }
    }

    #[test]
    fn groups_of_version_1_are_read_too() {
        let files = [
            (
                "proc/self/cgroup",
                "4:cpu,memory:/slurm/job_7\n1:cpuset:/other\n0::/\n".to_owned(),
            ),
            (
                "sys/fs/cgroup/memory/slurm/job_7/memory.limit_in_bytes",
                bytes(16),
            ),
            (
                "sys/fs/cgroup/memory/slurm/job_7/memory.usage_in_bytes",
                bytes(6),
            ),
            (
                "sys/fs/cgroup/memory/slurm/job_7/memory.stat",
                format!(
                    "inactive_file 5\ntotal_inactive_file {}total_active_file {}",
                    bytes(2),
                    bytes(1)
                ),
            ),
        ];
        assert_eq!(found(&files), [16, 13]);
    }
}
