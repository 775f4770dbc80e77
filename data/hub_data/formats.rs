//! Which files of a dataset on the hub hold rows that are read here.

/// Files that describe a dataset and hold no rows of it.
const DESCRIPTIONS: [&str; 5] = [
    "config.json",
    "dataset_dict.json",
    "dataset_info.json",
    "dataset_infos.json",
    "state.json",
];

/// Endings of what is read, the best first.
const ENDINGS: [&[&str]; 3] = [
    &[".parquet"],
    &[".jsonl", ".jsonl.gz", ".jsonl.zst"],
    &[".json", ".json.gz", ".json.zst"],
];

/// How good the format of a file is, 0 the best; `None` for one that is not read.
pub(super) fn rank(path: &str) -> Option<usize> {
    let name = path.rsplit('/').next().unwrap_or(path);
    let is_hidden = path.split('/').any(|part| part.starts_with(['.', '_']));
    if is_hidden || DESCRIPTIONS.contains(&name) {
        return None;
    }
    let is_of = |endings: &&[&str]| endings.iter().any(|ending| name.ends_with(ending));
    ENDINGS.iter().position(is_of)
}

/// Of several paths those of the best format that is among them.
pub(super) fn best<'p>(paths: impl Iterator<Item = &'p str> + Clone) -> Vec<&'p str> {
    let best = paths.clone().filter_map(rank).min();
    paths
        .filter(|path| best.is_some() && rank(path) == best)
        .collect()
}

/// The endings of files, for an error, each once.
pub(super) fn endings<'p>(paths: impl Iterator<Item = &'p str>) -> String {
    let mut endings: Vec<&str> = paths
        .filter_map(|path| path.rsplit('/').next()?.rsplit_once('.'))
        .map(|(_, ending)| ending)
        .collect();
    endings.sort_unstable();
    endings.dedup();
    let listed: Vec<String> = endings
        .iter()
        .take(10)
        .map(|ending| format!("`.{ending}`"))
        .collect();
    listed.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_read_before_lines_and_descriptions_not_at_all() {
        let paths = [
            "a/x.json",
            "README.md",
            "a/y.jsonl.gz",
            "dataset_infos.json",
            ".git/z.jsonl",
        ];
        assert_eq!(best(paths.into_iter()), ["a/y.jsonl.gz"]);
        assert_eq!(
            best(["state.json", "a.csv"].into_iter()),
            Vec::<&str>::new()
        );
        assert_eq!(
            best(["b.parquet", "a.jsonl", "c.parquet"].into_iter()),
            ["b.parquet", "c.parquet"]
        );
        assert_eq!(
            endings(["a.csv", "b/c.csv", "d", "e.py"].into_iter()),
            "`.csv`, `.py`"
        );
    }
}
