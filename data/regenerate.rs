//! Answers the turns of conversations anew, with the answers of the target in the place of the dataset's.
//!
//! A conversation is answered turn by turn, every turn with the new answers to those before it. Several are answered at
//! a time; what is finished goes to a journal, and at the end the conversations are written in the order
//! of the dataset. Only the conversations under way are in memory.
//!
//! # Files
//! Beside `OUT` stand `OUT.journal`, with the conversations that are answered, from which an interrupted run goes on,
//! and `OUT.report`, the [`RegenerateReport`] as JSON. Neither is taken for data where the folder is read as a dataset.

use std::collections::BTreeSet;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use spectrain_checkpoints::hash::hex;

use crate::conversation::{CONVERSATION, Content, KEYS, REASONING, Row};
use crate::dataset::{Dataset, Located};
use crate::durable::{PendingFile, old_name, write_whole};
use crate::error::{Error, Result};
use crate::prepare::Category;
use crate::rows::{LocatedRow, Location};
pub use crate::tool_calls::TOOL_CALLS;
use crate::unusable::Unusable;

mod answers;
mod journal;
mod listed;
mod report;
mod retry;
#[cfg(test)]
mod tests;
mod tools;
mod trained;
mod turns;
mod workers;

pub use answers::{Answer, Answers, Failure, Request, ToolRows, Truncated, Written};
use journal::{Entry, Journal};
pub use listed::ListedRows;
pub use report::{Failed, RegenerateReport, UnchangedRows};
pub use retry::{Pace, Retry};
pub use trained::check_trained;
pub use turns::Unchanged;
use turns::{Cut, Talk, planned};
pub use workers::Work;
use workers::{Ended, Pending, Shared};

/// What happens to a journal and an output that are there already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExistingAnswers {
    /// It is gone on with if it is of the same answers, else refused.
    Continue,
    /// They get another name.
    SetAside,
}

/// What the answers are of: another value makes another journal.
#[derive(Debug, Clone)]
pub struct RegenerateSettings<'a> {
    /// Conversations.
    pub data: &'a Dataset,
    /// The `.jsonl` file to write.
    pub out: &'a Path,
    /// Everything else that the answers depend on, such as the model and the temperature.
    pub settings: Map<String, Value>,
    /// What happens when an answer is cut off.
    pub truncated: Truncated,
    /// What happens to rows with tools. Who answers has to take tools where these are answered.
    pub tools: ToolRows,
    /// What happens to rows that cannot be read.
    pub unusable: Unusable,
}

/// Conversations to be answered, and what is answered of them.
pub struct Job {
    data: Dataset,
    out: PathBuf,
    truncated: Truncated,
    tools: ToolRows,
    unusable: Unusable,
    sha256: String,
    passed_over: BTreeSet<u64>,
    report: RegenerateReport,
    journal: Journal,
}

impl Job {
    /// Reads the dataset through, and opens the journal or begins it.
    ///
    /// # Errors
    /// A row cannot be understood, the journal is of something else, or the output is there without a journal.
    pub fn open(wanted: &RegenerateSettings, existing: ExistingAnswers) -> Result<Self> {
        let scan = scan(wanted)?;
        let journal_path = beside(wanted.out, ".journal");
        if existing == ExistingAnswers::SetAside {
            Journal::check_free(&journal_path)?;
            for path in [&journal_path, wanted.out, &beside(wanted.out, ".report")] {
                set_aside(path)?;
            }
        } else if wanted.out.exists() && !journal_path.exists() {
            let path = wanted.out.to_owned();
            return Err(Error::ForeignOutput { path });
        }
        let mut settings = wanted.settings.clone();
        settings.insert("truncated".into(), json!(wanted.truncated));
        // A limit that leaves nothing out is none.
        let limit = wanted.data.left_out().and(wanted.data.most());
        let header = journal::header((&scan.sha256, limit), scan.rows, &settings);
        let rows = usize::try_from(scan.rows).unwrap_or(usize::MAX);
        let journal = Journal::open(&journal_path, &header, rows)?;
        Ok(Self {
            data: wanted.data.clone(),
            out: wanted.out.to_owned(),
            truncated: wanted.truncated,
            tools: wanted.tools,
            unusable: wanted.unusable,
            sha256: scan.sha256,
            report: RegenerateReport {
                rows: scan.rows,
                passed_over: scan.passed_over.len() as u64,
                unchanged: scan.unchanged,
                unusable: scan.unusable,
                left_out: wanted.data.left_out(),
                datasets: wanted.data.of_hub().cloned().collect(),
                from_journal: (1..=scan.rows)
                    .filter(|row| journal.holds(*row) && !scan.passed_over.contains(row))
                    .count() as u64,
                damaged_lines: journal.unreadable,
                ..RegenerateReport::default()
            },
            passed_over: scan.passed_over,
            journal,
        })
    }

    /// Conversations that are to be answered, those included that are.
    pub fn conversations(&self) -> u64 {
        self.report.conversations()
    }

    /// Conversations that an earlier run has answered.
    pub fn finished(&self) -> u64 {
        self.report.from_journal
    }

    /// Answers what is not answered yet and writes the output and its report; none if it was interrupted.
    ///
    /// `progress` is told how many conversations are done, and how many of these failed.
    ///
    /// # Errors
    /// The dataset has changed, or a file cannot be read or written. What the journal holds by then is kept. A turn
    /// that is not answered is no error but stands in the report.
    pub fn run(
        mut self,
        answers: &dyn Answers,
        work: &Work,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Option<RegenerateReport>> {
        if !self.answer_all(answers, work, progress)? {
            return Ok(None);
        }
        self.assemble()?;
        let path = beside(&self.out, ".report");
        let text = serde_json::to_vec_pretty(&self.report)
            .map_err(|source| Error::write(&path, source))?;
        write_whole(&path, &text)?;
        Ok(Some(self.report))
    }

    /// False if it was interrupted.
    fn answer_all(
        &mut self,
        answers: &dyn Answers,
        work: &Work,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<bool> {
        let rows = 1..=self.report.rows;
        let done = rows.map(|row| self.journal.holds(row)).collect();
        let rows = self.unusable.without(self.data.whole_rows()?);
        let pending = Pending::new(Box::new(rows), done, self.tools);
        let shared = Shared::new(answers, work, self.truncated, pending);
        let taken = std::thread::scope(|scope| {
            let workers = work.concurrency.max(1);
            let (sender, receiver) = sync_channel(workers);
            for worker in 0..workers {
                let (shared, sender) = (&shared, sender.clone());
                scope.spawn(move || shared.work_off(worker as u64, &sender));
            }
            drop(sender);
            let taken = self.take_in(&receiver, progress);
            // The workers end, whose messages would have no reader otherwise.
            if taken.is_err() {
                shared.stop();
            }
            drop(receiver);
            taken
        });
        taken?;
        self.report.failed.sort_by_key(|failed| failed.row);
        self.report.requests = shared.requests.into_inner();
        self.report.retried = shared.retried.into_inner();
        let done = (1..=self.report.rows)
            .filter(|row| self.journal.holds(*row) && !self.passed_over.contains(row))
            .count() as u64;
        let complete = done + self.report.failed.len() as u64 == self.conversations();
        // What is missing otherwise is noticed when the conversations are written.
        Ok(complete || !(work.interrupted)())
    }

    /// Writes to the journal what the workers finish, all that is there at once.
    fn take_in(
        &mut self,
        results: &Receiver<Result<Ended>>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<()> {
        let mut done = self.report.from_journal;
        while let Ok(first) = results.recv() {
            let mut entries = Vec::new();
            let mut broken = None;
            for result in std::iter::once(first).chain(results.try_iter()) {
                done += 1;
                match result {
                    Ok(Ended::Answered(entry)) => entries.push(entry),
                    Ok(Ended::Failed(failed)) => self.report.failed.push(failed),
                    Err(error) => broken = Some(error),
                }
            }
            // What is answered is kept, whatever else went wrong.
            self.journal.append(&entries)?;
            if let Some(error) = broken {
                return Err(error);
            }
            progress(done, self.report.failed.len() as u64);
        }
        Ok(())
    }

    /// Writes the conversations in the order of the dataset, each as often as the weight of its source says.
    fn assemble(&mut self) -> Result<()> {
        let failed = |source| Error::write(&self.out, source);
        let names: Vec<String> = self.data.each().iter().map(Located::to_string).collect();
        let name = PathBuf::from(names.join(", "));
        let changed =
            |found: &str| Error::altered(&name, "sha256 of the rows", &self.sha256, found);
        let mut digest = Sha256::new();
        let mut out = BufWriter::new(PendingFile::create(&self.out)?);
        let rows = self.unusable.without(self.data.whole_rows()?);
        for (number, row) in (1..).zip(rows) {
            let LocatedRow {
                location: place,
                row,
                copies,
            } = row?;
            let row = row.or_conversation();
            digest.update(line(&row));
            if copies == 0 {
                continue;
            }
            let rows = match plan(&row, self.tools) {
                Err(_) => vec![row],
                Ok(_) => match self.journal.entry(number)? {
                    None if self.report.failed_at(number) => continue,
                    None => return Err(changed("another row")),
                    Some(entry) => self.report.take(entry, (row, &place), self.tools),
                },
            };
            for row in rows {
                let lines = line(&row).repeat(copies);
                out.write_all(lines.as_bytes()).map_err(failed)?;
            }
        }
        let sha256 = hex(&digest.finalize());
        if sha256 != self.sha256 {
            return Err(changed(&sha256));
        }
        let out = out
            .into_inner()
            .map_err(|error| failed(error.into_error()))?;
        out.commit()?;
        Ok(())
    }
}

impl RegenerateReport {
    /// Whether the conversation of a row failed.
    fn failed_at(&self, row: u64) -> bool {
        let found = self.failed.binary_search_by_key(&row, |failed| failed.row);
        found.is_ok()
    }

    /// Counts the answers of a conversation, and returns it with them unless it is left out. Where the tokens of all answers are
    /// known, each answer becomes a row of tokens with what it answers.
    fn take(
        &mut self,
        mut entry: Entry,
        (mut row, place): (Row, &Location),
        tools: ToolRows,
    ) -> Vec<Row> {
        if entry.dropped {
            self.dropped.add(place);
            return Vec::new();
        }
        let mut kept = entry.answers.len();
        if let Content::Conversation(conversation) = &mut row.content
            && let Ok(mut talk) = Talk::of(conversation, tools)
        {
            for answer in &mut entry.answers {
                if talk.asks() {
                    if !talk.trains() {
                        answer.leave_out();
                    }
                    talk.take(answer.marked());
                }
            }
            let (messages, answers, cut) = talk.end();
            (conversation.messages, kept) = (messages, answers);
            match cut {
                Some(Cut::Unpaired) => self.ended_at_call.add(place),
                Some(Cut::Unreadable) => self.unreadable_calls.add(place),
                None => {}
            }
        }
        let mut answers = entry.answers;
        answers.truncate(kept);
        if answers.is_empty() {
            self.without_answer.add(place);
            return Vec::new();
        }
        self.count(&answers);
        if answers.iter().any(|answer| answer.truncated) {
            self.cut_off.add(place);
        }
        if answers.iter().all(|answer| answer.written.is_some()) {
            return of_tokens(answers, row.extra);
        }
        vec![row]
    }

    /// Counts the answers of a conversation.
    fn count(&mut self, answers: &[Answer]) {
        let count = |picked: fn(&Answer) -> bool| {
            answers.iter().filter(|answer| picked(answer)).count() as u64
        };
        self.regenerated += 1;
        self.answers += answers.len() as u64;
        self.truncated += count(|answer| answer.truncated);
        self.calls += count(|answer| answer.message.extra.contains_key(TOOL_CALLS));
        self.empty += count(|answer| {
            answer.message.content.is_empty() && !answer.message.extra.contains_key(TOOL_CALLS)
        });
        self.context += count(|answer| !answer.message.is_trained_on());
        self.with_reasoning += count(|answer| answer.message.extra.contains_key(REASONING));
    }
}

/// A row for each answer of a conversation that is trained on and whose tokens are known, with the conversation's other keys and the
/// one by which they are known to be of one.
fn of_tokens(answers: Vec<Answer>, mut extra: Vec<(String, String)>) -> Vec<Row> {
    extra.retain(|(key, _)| !KEYS.contains(&key.as_str()) && key != CONVERSATION);
    let mut written = answers.iter().filter_map(|answer| answer.written.as_ref());
    if let Some(first) = written.next() {
        let first: Vec<u8> = first
            .prompt
            .iter()
            .flat_map(|token| token.to_le_bytes())
            .collect();
        let name = json!(hex(&Sha256::digest(first)));
        extra.push((CONVERSATION.into(), name.to_string()));
    }
    let of_tokens = |written: Written| Row {
        content: Content::Tokens(written.sample()),
        extra: extra.clone(),
    };
    let trained = answers.into_iter();
    let trained = trained.filter(|answer| answer.message.is_trained_on());
    let written = trained.filter_map(|answer| answer.written);
    written.map(of_tokens).collect()
}

/// Why a row is copied as it is, where it is.
fn plan(row: &Row, tools: ToolRows) -> Result<(), Unchanged> {
    match &row.content {
        Content::Conversation(conversation) => planned(conversation, tools).map(drop),
        Content::Tokens(_) => Err(Unchanged::Tokens),
    }
}

/// A row as a line of a dataset.
fn line(row: &Row) -> String {
    format!("{}\n", row.to_json())
}

/// What is known of a dataset from reading it through.
struct Scan {
    rows: u64,
    sha256: String,
    unchanged: UnchangedRows,
    /// Rows that the weight of their source leaves out.
    passed_over: BTreeSet<u64>,
    unusable: Category,
}

fn scan(wanted: &RegenerateSettings) -> Result<Scan> {
    let RegenerateSettings {
        data,
        unusable,
        tools,
        ..
    } = wanted;
    let mut digest = Sha256::new();
    let mut unchanged = UnchangedRows::default();
    let mut left_out = Category::default();
    let mut passed_over = BTreeSet::new();
    let mut rows = 0;
    for row in data.whole_rows()? {
        let LocatedRow {
            location: place,
            row,
            copies,
        } = match row {
            Ok(row) => row,
            Err(error) if unusable.drops(&error) => {
                left_out.add(error);
                continue;
            }
            Err(error) => return Err(error),
        };
        let row = row.or_conversation();
        rows += 1;
        digest.update(line(&row));
        if copies == 0 {
            passed_over.insert(rows);
        } else if let Err(why) = plan(&row, *tools) {
            unchanged.add(&place, why);
        }
    }
    left_out.take(data.unusable());
    Ok(Scan {
        rows,
        sha256: hex(&digest.finalize()),
        unchanged,
        passed_over,
        unusable: left_out,
    })
}

/// The path with `ending` added to its name.
fn beside(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

fn set_aside(path: &Path) -> Result<()> {
    if !path.exists() {
        return Ok(());
    }
    std::fs::rename(path, old_name(path)).map_err(|source| Error::write(path, source))
}
