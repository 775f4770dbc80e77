//! The tables of a sweep as rows of comma-separated values.
use crate::csv::cells::{line, listed, measured, optional};
use crate::sweep::table::{Sweep, SweepRow, SweepTable};

/// The names of the columns.
const COLUMNS: [&str; 24] = [
    "variation",
    "target",
    "setting",
    "dataset",
    "draft",
    "conversations",
    "seeds",
    "failed_seeds",
    "tau",
    "tau_low",
    "tau_high",
    "tau_of_seeds",
    "alpha",
    "speedup",
    "training_seconds",
    "times_first",
    "compared_with",
    "difference",
    "difference_low",
    "difference_high",
    "joint_low",
    "joint_high",
    "comparisons",
    "verdict",
];

impl Sweep {
    /// One row for each variation in each table; the dataset of all prompts together is `overall`. What is not known is empty, and so
    /// is the target where there is one alone. Seeds, and τ of each, stand one after the other in one cell.
    pub fn to_csv(&self) -> String {
        let mut text = COLUMNS.join(",") + "\r\n";
        for table in &self.tables {
            let rows = table.rows.iter().map(|row| line(&self.cells(table, row)));
            text.extend(rows);
        }
        text
    }

    fn cells(&self, table: &SweepTable, row: &SweepRow) -> Vec<String> {
        let seeds: Vec<&str> = row.seeds.iter().map(|of| of.seed.as_str()).collect();
        let each: Vec<String> = row.seeds.iter().map(|of| optional(of.tau)).collect();
        let mut cells = vec![
            row.variation.clone(),
            table.target.clone().unwrap_or_default(),
            table.setting.clone(),
            table.dataset.clone().unwrap_or_else(|| "overall".into()),
            row.draft.clone(),
            row.conversations.to_string(),
            listed(&seeds),
            listed(&row.failed_seeds),
        ];
        cells.extend(measured(row.tau, row.tau_ci95));
        cells.push(listed(&each));
        cells.extend(
            [
                row.alpha,
                row.speedup,
                row.training_seconds,
                row.times_first,
            ]
            .map(optional),
        );
        let found = row.against_first.as_ref();
        cells.push(optional(found.and(self.first.as_ref())));
        cells.extend(measured(
            found.map(|of| of.difference),
            found.and_then(|of| of.ci95),
        ));
        let joint = found.and_then(|of| of.joint95);
        cells.extend([joint.map(|[low, _]| low), joint.map(|[_, high]| high)].map(optional));
        cells.push(optional(found.map(|_| self.comparisons)));
        cells.push(optional(found.map(|of| of.verdict)));
        cells
    }
}
