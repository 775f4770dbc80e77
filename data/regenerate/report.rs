//! What became of every conversation.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::listed::{EXAMPLES, ListedRows};
use super::turns::Unchanged;
use crate::dataset::LeftOut;
use crate::hub_data::FetchedData;
use crate::prepare::Category;
use crate::rows::Location;
use crate::words::{by_count, counted};

/// A conversation without its answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failed {
    /// Its row among those that can be used, from 1.
    pub row: u64,
    /// File and line or row where it stands.
    pub place: String,
    /// The turn of the user that was not answered, from 1.
    pub turn: usize,
    /// How often it was tried.
    pub tries: u32,
    /// Why the last try failed.
    pub reason: String,
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let times = by_count(self.tries.into(), ["try", "tries"]);
        write!(
            f,
            "{}, turn {}, after {} {times}: {}",
            self.place, self.turn, self.tries, self.reason
        )
    }
}

/// Rows that were copied as they are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnchangedRows {
    /// With tools.
    pub tools: ListedRows,
    /// Without a turn of the user.
    pub no_user: ListedRows,
    /// Of tokens.
    pub tokens: ListedRows,
}

impl UnchangedRows {
    pub(super) fn add(&mut self, place: &Location, why: Unchanged) {
        match why {
            Unchanged::Tools => &mut self.tools,
            Unchanged::NoUser => &mut self.no_user,
            Unchanged::Tokens => &mut self.tokens,
        }
        .add(place);
    }

    /// How many.
    pub fn count(&self) -> u64 {
        [&self.tools, &self.no_user, &self.tokens]
            .map(ListedRows::count)
            .iter()
            .sum()
    }
}

/// What became of every row: `rows` is `regenerated`, `dropped`, `without_answer`, `unchanged`, `passed_over` and `failed` together.
/// Rows are listed by the files that they stand in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegenerateReport {
    /// Rows of the dataset.
    pub rows: u64,
    /// Rows that the weight of their source leaves out.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub passed_over: u64,
    /// Conversations with new answers.
    pub regenerated: u64,
    /// Of these and of those left out, the ones that an earlier run had finished.
    pub from_journal: u64,
    /// New answers.
    pub answers: u64,
    /// Of these, the ones cut off at the longest answer.
    pub truncated: u64,
    /// Of these, the ones that call tools.
    #[serde(default)]
    pub calls: u64,
    /// Of all, the ones that say and call nothing.
    pub empty: u64,
    /// Of all, the ones with reasoning apart from what is said, kept as `reasoning_content`.
    pub with_reasoning: u64,
    /// Of all, the ones that are only context, like those that they replace.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub context: u64,
    /// Requests made by this run.
    pub requests: u64,
    /// Of these, the further tries.
    pub retried: u64,
    /// Damaged lines of the journal; their conversations were asked for again.
    pub damaged_lines: u64,
    /// Conversations with an answer that was cut off, whose end is not trained on.
    #[serde(default, skip_serializing_if = "ListedRows::is_empty")]
    pub cut_off: ListedRows,
    /// Conversations left out because an answer was cut off.
    pub dropped: ListedRows,
    /// Conversations kept up to an answer that calls a tool as the data does not, so that what the tool says is not known.
    #[serde(default, skip_serializing_if = "ListedRows::is_empty")]
    pub ended_at_call: ListedRows,
    /// Conversations kept up to before a call of a tool that cannot be read.
    #[serde(default, skip_serializing_if = "ListedRows::is_empty")]
    pub unreadable_calls: ListedRows,
    /// Of these, the ones left out, as there is no answer before.
    #[serde(default, skip_serializing_if = "ListedRows::is_empty")]
    pub without_answer: ListedRows,
    /// Rows copied as they are.
    pub unchanged: UnchangedRows,
    /// Conversations left out because a turn was not answered, by row.
    pub failed: Vec<Failed>,
    /// Rows that cannot be used; they are none of `rows`.
    #[serde(default, skip_serializing_if = "Category::is_none")]
    pub unusable: Category,
    /// What of the dataset was not read, as more was there than asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<LeftOut>,
    /// What of the dataset is of the hub.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub datasets: Vec<FetchedData>,
}

impl RegenerateReport {
    /// Conversations that were to be answered, those included that were not.
    pub fn conversations(&self) -> u64 {
        self.rows - self.unchanged.count() - self.passed_over
    }

    /// Rows that became something else than whole regenerated conversations, and what.
    fn lists(&self) -> [(&ListedRows, &'static str); 8] {
        [
            (
                &self.cut_off,
                "kept with an answer that was cut off, whose end is not trained on",
            ),
            (&self.dropped, "left out, as an answer was cut off"),
            (
                &self.ended_at_call,
                "ended at a call of a tool that the data does not have in this turn, or has with other arguments",
            ),
            (
                &self.unreadable_calls,
                "ended before a call of a tool that cannot be read (an engine may lack the parser of this model's calls)",
            ),
            (
                &self.without_answer,
                "of these left out, as nothing was answered before",
            ),
            (
                &self.unchanged.tools,
                "copied unchanged, with tools or an unknown role",
            ),
            (
                &self.unchanged.no_user,
                "copied unchanged, without a message of the user",
            ),
            (
                &self.unchanged.tokens,
                "copied unchanged, as they are rows of tokens",
            ),
        ]
    }
}

impl fmt::Display for RegenerateReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} of {} regenerated with {}, {} of them by an earlier run\n{}, {} of them repeated ones",
            self.regenerated,
            counted(self.rows, "conversation"),
            counted(self.answers, "answer"),
            self.from_journal,
            counted(self.requests, "request"),
            self.retried
        )?;
        for (count, unit, what) in [
            (self.passed_over, "conversation", "passed over, by weight"),
            (self.truncated, "answer", "cut off at the maximum length"),
            (self.calls, "answer", "with calls of tools"),
            (self.empty, "answer", "without a text or a call"),
            (
                self.with_reasoning,
                "answer",
                "with reasoning, kept separately as `reasoning_content`",
            ),
            (
                self.context,
                "answer",
                "not trained on, like what was replaced",
            ),
            (
                self.damaged_lines,
                "damaged line",
                "of the journal, asked for again",
            ),
        ] {
            if count > 0 {
                write!(f, "\n{} {what}", counted(count, unit))?;
            }
        }
        for (rows, what) in self.lists() {
            if !rows.is_empty() {
                write!(f, "\n{} {what}: {rows}", rows.count())?;
            }
        }
        if let Some(left_out) = &self.left_out {
            write!(f, "\n{left_out}")?;
        }
        if self.unusable.count > 0 {
            write!(f, "\n{}", self.unusable.left_out())?;
        }
        if !self.failed.is_empty() {
            write!(f, "\n{} failed:", self.failed.len())?;
        }
        for failed in self.failed.iter().take(EXAMPLES) {
            write!(f, "\n  {failed}")?;
        }
        match self.failed.len().checked_sub(EXAMPLES) {
            Some(more @ 1..) => write!(f, "\n  and {more} more"),
            _ => Ok(()),
        }
    }
}

fn is_zero(count: &u64) -> bool {
    *count == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_a_thing_is_not_called_several() {
        let text = |count: u64| {
            let mut cut_off = ListedRows::default();
            for row in 1..=count as usize {
                cut_off.add(&Location::new("a.jsonl", row));
            }
            let report = RegenerateReport {
                rows: count,
                regenerated: count,
                answers: count,
                truncated: count,
                empty: count,
                requests: count,
                cut_off,
                ..RegenerateReport::default()
            };
            report.to_string()
        };
        assert_eq!(
            text(1),
            "1 of 1 conversation regenerated with 1 answer, 0 of them by an earlier run\n1 request, 0 of them repeated ones\n\
             1 answer cut off at the maximum length\n1 answer without a text or a call\n\
             1 kept with an answer that was cut off, whose end is not trained on: `a.jsonl` row 1"
        );
        assert_eq!(
            text(2),
            "2 of 2 conversations regenerated with 2 answers, 0 of them by an earlier run\n2 requests, 0 of them repeated ones\n\
             2 answers cut off at the maximum length\n2 answers without a text or a call\n\
             2 kept with an answer that was cut off, whose end is not trained on: `a.jsonl` rows 1, 2"
        );
    }
}
