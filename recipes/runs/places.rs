//! Where the stages of a run leave a drafter, by the path within the run.

/// Where `synthetic` leaves the target that it makes, within the run.
pub const MADE_TARGET: &str = "synthetic/target";

/// Where `regenerate` leaves conversations, within the run.
pub const REGENERATED: &str = "regenerate/train.jsonl";

/// Where a training stage leaves the drafter, in f32, within the run.
pub fn trained(stage: &str) -> String {
    format!("{stage}/drafter")
}

/// Where `export` leaves the drafter that engines load, within the run.
pub const EXPORTED: &str = "export/drafter";

/// Where `import` leaves the drafter, within the run.
pub const IMPORTED: &str = "import/drafter";
