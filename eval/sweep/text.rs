//! The tables of a sweep on a terminal.
use std::fmt::Write as _;

use spectrain_checkpoints::columns::wrapped;
use spectrain_checkpoints::printable;

use crate::interval::{with_interval, with_signs};
use crate::paired::difference::PairedVerdict;
use crate::sweep::table::{SeedTau, Sweep, SweepRow, SweepTable};

/// Columns of the names of variations that stand before their figures.
const NAMES: usize = 30;

impl Sweep {
    /// Its tables, and what must be known to read them.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        for table in &self.tables {
            text += &heading(table);
            let second = match self.first {
                Some(_) => "against the first",
                None => "prompts",
            };
            text += &line("", ["τ [95 % CI]", second, "training"]);
            let drafts_differ = |of: &SweepRow| of.draft != table.rows[0].draft;
            let of_drafts = table.rows.iter().any(drafts_differ);
            for row in &table.rows {
                let name = match of_drafts {
                    true => format!("{} ({})", row.variation, row.draft),
                    false => row.variation.clone(),
                };
                text += &self.shown(&printable(&name), row);
            }
            if !table.not_judged.is_empty() {
                let names = table.not_judged.join("; ");
                text += &wrapped(&format!("    not judged so: {names}"), "      ");
            }
        }
        for note in &self.notes {
            _ = write!(text, "\n{}", wrapped(note, ""));
        }
        text
    }

    /// A row, with what else is known of it in a line below.
    fn shown(&self, name: &str, row: &SweepRow) -> String {
        let second = match (&self.first, &row.against_first) {
            (None, _) => row.conversations.to_string(),
            (Some(_), None) if row.is_first => "the first".into(),
            (Some(_), None) => with_interval(None, None),
            (Some(_), Some(found)) => {
                let mark = match found.verdict {
                    PairedVerdict::NotToldApart | PairedVerdict::TooFew => String::new(),
                    verdict => format!(" {verdict}"),
                };
                with_signs(found.difference, found.ci95, 2) + &mark
            }
        };
        let tau = with_interval(row.tau, row.tau_ci95);
        let mut training = row
            .training_seconds
            .map_or(with_interval(None, None), |seconds| {
                format!("{seconds:.0} s")
            });
        if let Some(times) = row.times_first {
            _ = write!(training, ", ×{times:.2}");
        }
        let below = below(row);
        let text = line(name, [&tau, &second, &training]);
        match below.is_empty() {
            true => text,
            false => text + &wrapped(&format!("    {below}"), "      "),
        }
    }
}

/// The line above a table.
fn heading(table: &SweepTable) -> String {
    let target = table.target.iter().map(|name| format!("{name}: "));
    let dataset = table.dataset.iter().map(|name| format!(" on `{name}`"));
    let words = target.chain([table.setting.clone()]).chain(dataset);
    format!("\n{}\n", printable(&words.collect::<String>()))
}

/// What else is known of a variation: α, its speed-up, and τ of each of several seeds.
fn below(row: &SweepRow) -> String {
    let mut parts = Vec::new();
    parts.extend(row.alpha.map(|alpha| format!("α {alpha:.2}")));
    parts.extend(row.speedup.map(|speedup| format!("speed-up {speedup:.2}")));
    if row.seeds.len() + row.failed_seeds.len() > 1 {
        let each = row.seeds.iter();
        let each =
            each.map(|SeedTau { seed, tau }| format!("{seed}: {}", with_interval(*tau, None)));
        let each: Vec<String> = each.collect();
        let failed = match &row.failed_seeds[..] {
            [] => String::new(),
            [seed] => format!(" (seed {seed} failed)"),
            seeds => format!(" (seeds {} failed)", seeds.join(", ")),
        };
        parts.push(format!("seeds {}{failed}", each.join(", ")));
    }
    parts.join("; ")
}

fn line(name: &str, [tau, second, training]: [&str; 3]) -> String {
    let (before, name) = match name.chars().count() {
        0..NAMES => (String::new(), name),
        _ => (format!("{name}\n"), ""),
    };
    let line = format!("{before}{name:NAMES$}{tau:19}{second:30}{training}");
    format!("{}\n", line.trim_end())
}
