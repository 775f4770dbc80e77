//! Turns the rows of a dataset into samples fit for training, and counts everything it leaves out.

use std::collections::HashSet;
use std::fmt;
use std::num::NonZero;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::conversation::{Content, Row, Sample};
use crate::error::{Error, Result};
use crate::expand::{Samples, add_other_prompts, samples};
use crate::in_order::InOrder;
use crate::mask::Masking;
use crate::roles::Roles;
use crate::rows::{LocatedRow, Location};
use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;
use crate::words::{by_count, counted};

pub(crate) mod category;
pub(crate) mod settings;

pub use category::Category;
pub(crate) use category::parts;
pub use settings::{Overlong, PrepareSettings, Turns};

/// What became of every row: the [samples](Self::samples) made of them are `kept` and all that was left out.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrepareReport {
    /// Rows read.
    pub read: u64,
    /// Of these, the ones that the weight of their source passes over.
    pub passed_over: u64,
    /// Of these, the ones left out because they cannot be read or rendered, with the reason.
    #[serde(default)]
    pub unusable: Category,
    /// Rows read by their tokens, beside which a conversation stands that is not read.
    #[serde(default)]
    pub beside_tokens: u64,
    /// Conversations with a sample for each answer that is trained on.
    pub expanded: u64,
    /// Samples that they are more than one each.
    pub added: u64,
    /// Samples kept, each counted once.
    pub kept: u64,
    /// Further copies of them, by the weights of their sources.
    pub copies: u64,
    /// Kept samples whose end was cut off.
    pub truncated: Category,
    /// Left out: longer than allowed.
    pub overlong: Category,
    /// Left out: too few trained tokens (after cutting).
    pub untrained: Category,
    /// Samples equal to an earlier one, which are kept.
    pub duplicates: Category,
    /// Answers trained on behind something else than the prompt that engines render for them, with how the two differ.
    #[serde(default)]
    pub other_prompts: Category,
    /// Tokens kept, those of copies included.
    pub tokens: u64,
    /// Of these, how many are trained on.
    pub trained_tokens: u64,
}

impl PrepareReport {
    /// Samples made of the rows.
    pub fn samples(&self) -> u64 {
        self.read - self.passed_over - self.unusable.count + self.added
    }

    /// How much was kept.
    pub fn totals(&self) -> String {
        let share = 100.0 * self.trained_tokens as f64 / self.tokens.max(1) as f64;
        let mut totals = format!(
            "{} of {} kept\n{} tokens, {} of them trained on ({share:.1} %)",
            self.kept,
            counted(self.samples(), "sample"),
            self.tokens,
            self.trained_tokens
        );
        if self.beside_tokens > 0 {
            totals += &format!("\n{}", beside(self.beside_tokens));
        }
        if self.expanded > 0 {
            let expanded = counted(self.expanded, "conversation");
            let added = counted(self.added, "sample");
            totals += &format!(
                "\n{expanded} expanded to a sample for each answer that is trained on, which adds {added}"
            );
        }
        if self.passed_over + self.copies > 0 {
            let rows = counted(self.passed_over, "row");
            let were = by_count(self.passed_over, ["was", "were"]);
            let copies = by_count(self.copies, ["copy", "copies"]);
            totals += &format!(
                "\nby weight {rows} {were} passed over and {} {copies} made",
                self.copies
            );
        }
        totals
    }

    /// What was left out, cut or is there twice, and where: a line for each kind.
    pub fn remarks(&self) -> Vec<String> {
        let unusable = [
            "row that cannot be used, left out",
            "rows that cannot be used, left out",
        ];
        let unusable = by_count(self.unusable.count, unusable);
        let other_prompts = [
            "answer trained on behind something else than the prompt that engines render for it",
            "answers trained on behind something else than the prompts that engines render for them",
        ];
        let other_prompts = by_count(self.other_prompts.count, other_prompts);
        let kinds = [
            (unusable, &self.unusable),
            ("cut to the maximum length", &self.truncated),
            ("left out, too long", &self.overlong),
            ("left out, too few trained tokens", &self.untrained),
            ("equal to an earlier sample", &self.duplicates),
            (other_prompts, &self.other_prompts),
        ];
        let found = kinds.iter().filter(|(_, category)| !category.is_none());
        found
            .map(|(what, category)| format!("{} {what}: {}", category.count, category.places()))
            .collect()
    }
}

/// What to say of so many rows of tokens beside which conversations stand.
pub(crate) fn beside(rows: u64) -> String {
    let read = by_count(
        rows,
        [
            "row read by its `input_ids` and mask; the conversation beside it is not read",
            "rows read by their `input_ids` and mask; the conversations beside them are not read",
        ],
    );
    format!("{rows} {read}")
}

impl fmt::Display for PrepareReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.totals())?;
        let remarks = self.remarks();
        remarks
            .iter()
            .try_for_each(|remark| write!(f, "\n{remark}"))
    }
}

/// How a row becomes samples.
#[derive(Debug, Clone, Copy)]
pub struct Preparation<'a> {
    /// What conversations are rendered with. Rows of tokens need none.
    pub template: Option<&'a ChatTemplate>,
    /// Of the target.
    pub tokenizer: &'a Tokenizer,
    /// Lengths, masks and what is left out.
    pub settings: &'a PrepareSettings,
}

impl Preparation<'_> {
    /// The tokens and masks of a row, of any length, with ids that the target has.
    pub(crate) fn samples(&self, location: &Location, row: &Row) -> Result<Samples> {
        let made = match (&row.content, self.template) {
            (Content::Tokens(sample), _) => Samples::one(remasked(sample, self.settings.masking)),
            (Content::Conversation(conversation), Some(template)) => {
                let made = samples(conversation, (template, self.tokenizer), self.settings);
                made.map_err(Error::at(location))?
            }
            (Content::Conversation(_), None) => {
                return Err(Error::NoTemplate {
                    location: location.to_string(),
                });
            }
        };
        for sample in &made.made {
            check_tokens(location, &sample.tokens, self.settings.vocab)?;
        }
        Ok(made)
    }
}

/// Fails where a token is none of a target with so many.
pub fn check_tokens(location: &Location, tokens: &[u32], vocab: usize) -> Result<()> {
    match tokens.iter().find(|&&token| token as usize >= vocab) {
        Some(&token) => Err(Error::TokenOutsideVocabulary {
            location: location.to_string(),
            token,
            vocab,
        }),
        None => Ok(()),
    }
}

/// A sample that came with its mask: the last turn is the last run of trained tokens.
fn remasked(sample: &Sample, masking: Masking) -> Sample {
    let mut sample = sample.clone();
    let mask = &mut sample.loss_mask;
    match masking {
        Masking::Assistant => {}
        Masking::All => mask.fill(true),
        Masking::LastTurn => {
            let end = mask
                .iter()
                .rposition(|&trained| trained)
                .map_or(0, |last| last + 1);
            let start = mask[..end]
                .iter()
                .rposition(|&trained| !trained)
                .map_or(0, |before| before + 1);
            mask[..start].fill(false);
        }
    }
    sample
}

/// A digest by which equal samples are recognised.
pub(crate) fn digest(sample: &Sample) -> u128 {
    let mut hash = Sha256::new();
    for (token, trained) in sample.tokens.iter().zip(&sample.loss_mask) {
        hash.update(token.to_le_bytes());
        hash.update([u8::from(*trained)]);
    }
    first_bytes(&hash.finalize())
}

/// The first 16 bytes of a SHA-256, enough to tell samples apart.
pub(crate) fn first_bytes(hash: &[u8]) -> u128 {
    hash.iter()
        .take(16)
        .fold(0, |value, byte| value << 8 | u128::from(*byte))
}

/// What was made of a row; nothing of one that could not be read or is passed over.
type Made = (Result<LocatedRow>, Option<Result<Samples>>);

impl Preparation<'_> {
    /// Passes every sample worth training on to `sink`, in order, and says what became of the others.
    ///
    /// Conversations need a template; rows of tokens do not. A row that cannot be read or rendered is an error unless it is to be
    /// [dropped](crate::unusable::Unusable::Drop), and so is a dataset of which nothing is left.
    ///
    /// Several threads read some rows ahead; what comes to `sink`, what is reported and which error it is do not depend on how many
    /// they are. With one thread no row is read before the samples of the one before it are passed on.
    pub fn prepare(
        &self,
        rows: impl IntoIterator<Item = Result<LocatedRow>>,
        threads: NonZero<usize>,
        sink: &mut dyn FnMut(Sample) -> Result<()>,
    ) -> Result<PrepareReport> {
        let mut sieve = Sieve {
            settings: self.settings,
            report: PrepareReport::default(),
            seen: HashSet::new(),
            roles: Roles::default(),
            context_answers: 0,
            cut_off_answers: 0,
        };
        let in_order = InOrder {
            threads,
            weight: |row: &Result<LocatedRow>| self.weight(row),
            work: |row| self.made(row),
        };
        in_order.run(rows.into_iter(), &mut |made| sieve.take(made, sink))?;
        sieve.finish()
    }

    /// About how many bytes of text the samples of a row have: each of its answers may become one, with all that was said before.
    fn weight(&self, row: &Result<LocatedRow>) -> usize {
        let samples = match row.as_ref().map(|located| &located.row.content) {
            Ok(Content::Conversation(conversation)) if self.settings.turns != Turns::Joined => {
                let said = conversation.messages.iter();
                said.filter(|message| message.is_assistant()).count()
            }
            _ => 1,
        };
        bytes_of(row).saturating_mul(samples.max(1))
    }

    fn made(&self, row: Result<LocatedRow>) -> Made {
        let located = row.as_ref().ok().filter(|located| located.copies > 0);
        let made = located.map(|located| self.samples(&located.location, &located.row));
        (row, made)
    }
}

/// About how many bytes of text a row has, with what a chat template may show beside what is said.
pub(crate) fn bytes_of(row: &Result<LocatedRow>) -> usize {
    match row.as_ref().map(|located| &located.row.content) {
        Ok(Content::Conversation(conversation)) => {
            let said = conversation.messages.iter();
            let said = said.map(|message| message.content.len() + bytes_of_keys(&message.extra));
            let tools = conversation.tools.iter().map(bytes_of_value);
            said.chain(tools).sum::<usize>() + bytes_of_keys(&conversation.variables)
        }
        Ok(Content::Tokens(sample)) => size_of::<u32>() * sample.tokens.len(),
        Err(_) => 0,
    }
}

fn bytes_of_keys(keys: &Map<String, Value>) -> usize {
    let each = keys.iter();
    each.map(|(key, value)| key.len() + bytes_of_value(value))
        .sum()
}

fn bytes_of_value(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(values) => values.iter().map(bytes_of_value).sum(),
        Value::Object(keys) => bytes_of_keys(keys),
        Value::Null | Value::Bool(_) | Value::Number(_) => size_of::<u64>(),
    }
}

/// Lets through what is worth training on and counts the rest.
struct Sieve<'a> {
    settings: &'a PrepareSettings,
    report: PrepareReport,
    seen: HashSet<u128>,
    roles: Roles,
    /// Answers that the mask asks for and that are only context, as their messages say.
    context_answers: u64,
    /// Those that are trained on and were cut off.
    cut_off_answers: u64,
}

impl Sieve<'_> {
    /// Counts what was made of a row, and passes what is worth training on to `sink`.
    fn take(
        &mut self,
        (located, made): Made,
        sink: &mut dyn FnMut(Sample) -> Result<()>,
    ) -> Result<()> {
        let Some(located) = self.usable(located)? else {
            return Ok(());
        };
        let Some(made) = made else {
            self.report.passed_over += 1;
            return Ok(());
        };
        let LocatedRow {
            location,
            row,
            copies,
        } = located;
        self.report.beside_tokens += u64::from(row.has_conversation_beside());
        self.look_at(&row.content);
        let Some(samples) = self.or_drop(made)? else {
            return Ok(());
        };
        let Samples {
            made,
            beyond,
            other_prompts,
            ..
        } = samples;
        let count = (made.len() + beyond) as u64;
        if count > 1 {
            self.report.expanded += 1;
            self.report.added += count - 1;
        }
        for (sample, others) in made.into_iter().zip(other_prompts) {
            let Some(sample) = self.sift(&location, sample) else {
                continue;
            };
            let others = (&others[..], sample.tokens.len());
            add_other_prompts(others, &location, &mut self.report.other_prompts);
            self.count(&sample, copies);
            for _ in 1..copies {
                sink(sample.clone())?;
            }
            sink(sample)?;
        }
        for _ in 0..beyond {
            self.leave_out_beyond(&location);
        }
        Ok(())
    }

    /// Counts what a row that is not passed over holds, to say why nothing is left where that is so.
    fn look_at(&mut self, content: &Content) {
        self.roles.add(content);
        let Content::Conversation(conversation) = content else {
            return;
        };
        let masking = self.settings.masking;
        for answer in masking.asked_answers(&conversation.messages) {
            self.context_answers += u64::from(!answer.is_trained_on());
            self.cut_off_answers += u64::from(answer.is_trained_on() && answer.is_cut_off());
        }
    }

    /// The row, unless it is left out.
    fn usable(&mut self, row: Result<LocatedRow>) -> Result<Option<LocatedRow>> {
        if row.is_ok() || row.as_ref().is_err_and(Error::is_of_row) {
            self.report.read += 1;
        }
        self.or_drop(row)
    }

    /// What was made of a row, unless the row is left out.
    fn or_drop<T>(&mut self, made: Result<T>) -> Result<Option<T>> {
        match made {
            Ok(made) => Ok(Some(made)),
            Err(error) if self.settings.unusable.drops(&error) => {
                self.report.unusable.add(error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The sample, cut where it has to be, unless it is left out.
    fn sift(&mut self, location: &Location, mut sample: Sample) -> Option<Sample> {
        let (settings, report) = (self.settings, &mut self.report);
        let Some(kept) = settings.kept(&sample) else {
            report.overlong.add(location);
            return None;
        };
        let overlong = sample.tokens.len() > kept;
        sample.tokens.truncate(kept);
        sample.loss_mask.truncate(kept);
        if sample.trained_tokens() < settings.min_trained_tokens {
            report.untrained.add(location);
            return None;
        }
        if !self.seen.insert(digest(&sample)) {
            report.duplicates.add(location);
        }
        if overlong {
            report.truncated.add(location);
        }
        Some(sample)
    }

    fn count(&mut self, sample: &Sample, copies: usize) {
        let copies = copies as u64;
        self.report.kept += 1;
        self.report.copies += copies - 1;
        self.report.tokens += copies * sample.tokens.len() as u64;
        self.report.trained_tokens += copies * sample.trained_tokens() as u64;
    }

    /// Counts a sample whose answer begins beyond the maximum length.
    fn leave_out_beyond(&mut self, location: &Location) {
        match self.settings.overlong {
            Overlong::Drop => self.report.overlong.add(location),
            Overlong::Truncate => self.report.untrained.add(location),
        }
    }

    /// What became of all rows, unless nothing is left of them.
    fn finish(self) -> Result<PrepareReport> {
        let report = self.report;
        if report.kept > 0 {
            return Ok(report);
        }
        let mut reasons = format!(
            "{} too long, {} with too few trained tokens",
            report.overlong.count, report.untrained.count
        );
        if report.passed_over > 0 {
            reasons += &format!(
                ", {} in rows that the `weight` of their source passes over",
                report.passed_over
            );
        }
        if !report.unusable.is_none() {
            let (count, places) = (report.unusable.count, report.unusable.places());
            reasons += &format!(", {count} in rows that cannot be used: {places}");
        }
        if self.settings.masking != Masking::All {
            let of_answers = [
                (
                    self.context_answers,
                    "only context, as their messages say (`weight`, `train`, `training`)",
                ),
                (
                    self.cut_off_answers,
                    "cut off, so that only what the chat template shows of them as the target wrote it is trained on",
                ),
            ];
            for (count, what) in of_answers.into_iter().filter(|(count, _)| *count > 0) {
                reasons += &format!("; answers that are {what}: {count}");
            }
            if let Some(lack) = self.roles.lack() {
                reasons += "; ";
                reasons += &lack;
            }
        }
        Err(Error::NothingKept {
            read: report.read,
            reasons,
        })
    }
}

#[cfg(test)]
mod tests;
