//! Turns the rows of a dataset into samples fit for training, and counts everything it leaves out.

use std::collections::HashSet;
use std::fmt;
use std::num::NonZero;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::conversation::{Content, Row, Sample};
use crate::error::{Error, Result};
use crate::expand::{Samples, samples};
use crate::in_order::{InOrder, threads};
use crate::mask::Masking;
use crate::roles::Roles;
use crate::rows::{LocatedRow, Location};
use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;
use crate::words::{by_count, counted};

mod category;
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
        let kinds = [
            (unusable, &self.unusable),
            ("cut to the maximum length", &self.truncated),
            ("left out, too long", &self.overlong),
            ("left out, too few trained tokens", &self.untrained),
            ("equal to an earlier sample", &self.duplicates),
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
pub(crate) struct Preparation<'a> {
    pub(crate) template: Option<&'a ChatTemplate>,
    pub(crate) tokenizer: &'a Tokenizer,
    pub(crate) settings: &'a PrepareSettings,
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

/// Passes every sample worth training on to `sink`, in order, and says what became of the others.
///
/// Conversations need a template; rows of tokens do not. A row that cannot be read or rendered is an error unless it is to be
/// [dropped](crate::unusable::Unusable::Drop), and so is a dataset of which nothing is left. No row is read before the samples of the
/// one before it are passed on.
pub fn prepare(
    rows: impl IntoIterator<Item = Result<LocatedRow>>,
    template: Option<&ChatTemplate>,
    tokenizer: &Tokenizer,
    settings: &PrepareSettings,
    sink: &mut dyn FnMut(Sample) -> Result<()>,
) -> Result<PrepareReport> {
    let preparation = Preparation {
        template,
        tokenizer,
        settings,
    };
    preparation.prepare(rows, NonZero::<usize>::MIN, sink)
}

/// The same by all [`threads`], which read some rows ahead: what comes to `sink`, what is reported and which error it is do not
/// depend on how many they are.
pub fn prepare_together(
    rows: impl IntoIterator<Item = Result<LocatedRow>>,
    template: Option<&ChatTemplate>,
    tokenizer: &Tokenizer,
    settings: &PrepareSettings,
    sink: &mut dyn FnMut(Sample) -> Result<()>,
) -> Result<PrepareReport> {
    let preparation = Preparation {
        template,
        tokenizer,
        settings,
    };
    preparation.prepare(rows, threads(), sink)
}

/// What was made of a row; nothing of one that could not be read or is passed over.
type Made = (Result<LocatedRow>, Option<Result<Samples>>);

impl Preparation<'_> {
    fn prepare(
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
        let Some(Samples { made, beyond, .. }) = self.or_drop(made)? else {
            return Ok(());
        };
        let count = (made.len() + beyond) as u64;
        if count > 1 {
            self.report.expanded += 1;
            self.report.added += count - 1;
        }
        for sample in made {
            let Some(sample) = self.sift(&location, sample) else {
                continue;
            };
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
        let overlong = sample.tokens.len() > settings.max_length;
        if overlong {
            if settings.overlong == Overlong::Drop {
                report.overlong.add(location);
                return None;
            }
            sample.tokens.truncate(settings.max_length);
            sample.loss_mask.truncate(settings.max_length);
        }
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
mod tests {
    use std::iter::repeat_n;

    use super::*;
    use crate::conversation::{Conversation, Message};
    use crate::template::tests::CHATML;
    use crate::tokenizer::tests::small;
    use crate::unusable::Unusable;

    fn settings() -> PrepareSettings {
        PrepareSettings {
            max_length: 6,
            overlong: Overlong::Drop,
            masking: Masking::Assistant,
            turns: Turns::Auto,
            min_trained_tokens: 1,
            unusable: Unusable::Refuse,
            vocab: 320,
        }
    }

    fn tokens(tokens: &[u32], mask: &[u8]) -> Row {
        Row::from(Sample {
            tokens: tokens.to_vec(),
            loss_mask: mask.iter().map(|&bit| bit == 1).collect(),
        })
    }

    fn run(rows: Vec<Row>, settings: &PrepareSettings) -> Result<(Vec<Sample>, PrepareReport)> {
        let mut samples = Vec::new();
        let rows = rows
            .into_iter()
            .zip(1..)
            .map(|(row, at)| Ok(LocatedRow::new(Location::new("rows.jsonl", at), row)));
        let report = prepare(rows, None, &small(), settings, &mut |sample| {
            samples.push(sample);
            Ok(())
        })?;
        Ok((samples, report))
    }

    fn mixed() -> Vec<Row> {
        vec![
            tokens(&[1, 2, 3], &[0, 1, 1]),
            tokens(&[1, 2, 3, 4, 5, 6, 7], &[0, 0, 1, 0, 1, 1, 1]),
            tokens(&[9, 9], &[0, 0]),
            tokens(&[1, 2, 3], &[0, 1, 1]),
            tokens(&[1, 2, 3, 4, 5, 6, 7], &[0, 0, 0, 0, 0, 0, 1]),
        ]
    }

    #[test]
    fn one_sample_is_not_called_several() {
        let totals = |kept: u64| {
            let report = PrepareReport {
                read: kept,
                kept,
                ..PrepareReport::default()
            };
            report.totals()
        };
        assert!(totals(1).starts_with("1 of 1 sample kept\n"));
        assert!(totals(2).starts_with("2 of 2 samples kept\n"));
        let text = |count: u64| {
            let mut unusable = Category::default();
            (0..count).for_each(|row| unusable.add(format!("`a` row {row}")));
            let report = PrepareReport {
                read: 3 * count,
                passed_over: count,
                copies: count,
                expanded: count,
                added: count,
                beside_tokens: count,
                unusable,
                ..PrepareReport::default()
            };
            report.to_string()
        };
        let (one, two) = (text(1), text(2));
        for (text, parts) in [
            (
                &one,
                [
                    "\n1 row read by its `input_ids` and mask; the conversation beside it is not read\n",
                    "\n1 conversation expanded to a sample for each answer that is trained on, which adds 1 sample\n",
                    "\nby weight 1 row was passed over and 1 copy made\n",
                    "\n1 row that cannot be used, left out: `a` row 0",
                ],
            ),
            (
                &two,
                [
                    "\n2 rows read by their `input_ids` and mask; the conversations beside them are not read\n",
                    "\n2 conversations expanded to a sample for each answer that is trained on, which adds 2 samples\n",
                    "\nby weight 2 rows were passed over and 2 copies made\n",
                    "\n2 rows that cannot be used, left out: `a` rows 0, 1",
                ],
            ),
        ] {
            for part in parts {
                assert!(text.contains(part), "{part:?} not in {text}");
            }
        }
    }

    #[test]
    fn every_row_is_kept_or_counted_with_its_place() {
        let (samples, report) = run(mixed(), &settings()).unwrap();
        assert_eq!((report.read, report.kept, samples.len()), (5, 2, 2));
        assert_eq!((report.tokens, report.trained_tokens), (6, 4));
        assert_eq!(
            report.overlong.examples,
            ["`rows.jsonl` row 2", "`rows.jsonl` row 5"]
        );
        assert_eq!(report.untrained.examples, ["`rows.jsonl` row 3"]);
        assert_eq!(report.duplicates.count, 1);
        let text = report.to_string();
        assert!(
            text.starts_with("2 of 5 samples kept\n6 tokens, "),
            "{text}"
        );
        assert!(
            text.contains("\n2 left out, too long: `rows.jsonl` rows 2, 5\n"),
            "{text}"
        );
    }

    /// Conversations and rows of tokens by turns, of several weights.
    fn mixed_row(at: usize) -> LocatedRow {
        let said = ["the cat", "the", "a cat"][at % 3];
        let mut answer = Message::new("assistant", said.repeat(1 + at % 4));
        answer.extra.insert("at".into(), at.into());
        let turns = vec![Message::new("user", "the"), answer];
        let row = match at % 7 {
            3 => tokens(&[1, 2, at as u32 % 5], &[0, 1, 1]),
            _ => Conversation::new(turns).into(),
        };
        let located = LocatedRow::new(Location::new("rows.jsonl", at), row);
        let copies = at % 5;
        LocatedRow { copies, ..located }
    }

    #[test]
    fn a_row_weighs_what_is_made_of_it_and_not_only_what_is_said() {
        let mut answer = Message::new("assistant", "12345");
        answer
            .extra
            .insert("reasoning".into(), "1".repeat(100).into());
        let turns = [Message::new("user", "123"), answer];
        let turns: Vec<Message> = repeat_n(turns, 50).flatten().collect();
        let conversation = Conversation {
            tools: vec![serde_json::json!({"name": ["1".repeat(46)]})],
            ..Conversation::new(turns)
        };
        let bytes = 50 * (3 + 5 + 9 + 100) + 50;
        let row = LocatedRow::new(Location::new("rows.jsonl", 1), Row::from(conversation));
        let weight = |turns: Turns| {
            let settings = PrepareSettings {
                turns,
                ..settings()
            };
            let preparation = Preparation {
                template: None,
                tokenizer: &small(),
                settings: &settings,
            };
            preparation.weight(&Ok(row.clone()))
        };
        assert_eq!(weight(Turns::Joined), bytes);
        for turns in [Turns::Auto, Turns::Expand] {
            assert_eq!(weight(turns), 50 * bytes);
        }
    }

    #[test]
    fn as_much_is_made_of_rows_by_several_threads_and_the_first_error_is_the_same() {
        let rows = |unreadable: &'static [usize]| {
            (1..=400).map(move |at| match unreadable.contains(&at) {
                true => Err(Error::NotJson {
                    location: format!("`rows.jsonl` row {at}"),
                    fault: String::new(),
                }),
                false => Ok(mixed_row(at)),
            })
        };
        // It refuses some rows.
        let refusing = "{% for m in messages if m.at is defined and m.at % 97 == 96 %}\
            {{ raise_exception('no ' ~ m.at) }}{% endfor %}";
        let source = format!("{refusing}{CHATML}");
        let template = ChatTemplate::from_source(&source, None, None).unwrap();
        let tokenizer = small();
        let made = |threads: usize, unreadable: &'static [usize], settings: &PrepareSettings| {
            let preparation = Preparation {
                template: Some(&template),
                tokenizer: &tokenizer,
                settings,
            };
            let mut kept = Vec::new();
            let threads = NonZero::new(threads).unwrap();
            let report = preparation.prepare(rows(unreadable), threads, &mut |sample| {
                kept.push(sample);
                Ok(())
            });
            (kept, report.map_err(|error| error.to_string()))
        };
        let refusing = PrepareSettings {
            max_length: 40,
            ..settings()
        };
        let dropping = PrepareSettings {
            unusable: Unusable::Drop,
            ..refusing.clone()
        };
        const UNREADABLE: [&[usize]; 3] = [&[], &[90, 93, 200], &[201]];
        for settings in [&refusing, &dropping] {
            for unreadable in UNREADABLE {
                let alone = made(1, unreadable, settings);
                for threads in [2, 5] {
                    assert_eq!(made(threads, unreadable, settings), alone);
                }
            }
        }
        let (kept, report) = made(5, &[90, 200], &dropping);
        assert_eq!(report.unwrap().unusable.count, 5);
        assert!(kept.len() > 50, "{}", kept.len());
        let (_, refused) = made(5, &[200], &refusing);
        assert!(refused.unwrap_err().contains("row 96: chat template: "));
        let (_, refused) = made(5, &[90], &refusing);
        assert!(refused.unwrap_err().contains("row 90 is not JSON"));
    }

    #[test]
    fn truncation_keeps_the_beginning_and_may_leave_nothing_to_train() {
        let settings = PrepareSettings {
            overlong: Overlong::Truncate,
            ..settings()
        };
        let (samples, report) = run(mixed(), &settings).unwrap();
        assert_eq!(samples[1].tokens, [1, 2, 3, 4, 5, 6]);
        assert_eq!(
            (report.kept, report.truncated.count, report.untrained.count),
            (3, 1, 2)
        );
        assert_eq!((report.overlong.count, report.duplicates.count), (0, 1));
    }

    #[test]
    fn masking_applies_to_rows_of_tokens_too() {
        let row = tokens(&[1, 2, 3, 4, 5], &[1, 1, 0, 1, 0]);
        let mask = |masking| {
            let (samples, _) = run(
                vec![row.clone()],
                &PrepareSettings {
                    masking,
                    ..settings()
                },
            )
            .unwrap();
            samples[0]
                .loss_mask
                .iter()
                .map(|&trained| u8::from(trained))
                .collect::<Vec<_>>()
        };
        assert_eq!(mask(Masking::Assistant), [1, 1, 0, 1, 0]);
        assert_eq!(mask(Masking::LastTurn), [0, 0, 0, 1, 0]);
        assert_eq!(mask(Masking::All), [1; 5]);
    }

    #[test]
    fn a_token_the_target_lacks_is_an_error() {
        let error = run(vec![tokens(&[1, 320], &[1, 1])], &settings())
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with(
                "`rows.jsonl` row 1: token 320 is outside the target's vocabulary of 320"
            ),
            "{error}"
        );
    }

    #[test]
    fn nothing_left_is_an_error_that_says_why() {
        let error = run(vec![tokens(&[1], &[0])], &settings())
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            "no sample is left of the 1 row read: 0 too long, 1 with too few trained tokens"
        );
        let passed_over = (1..=2).map(|at| {
            let row = LocatedRow::new(Location::new("rows.jsonl", at), tokens(&[1], &[1]));
            Ok(LocatedRow { copies: 0, ..row })
        });
        let found = prepare(passed_over, None, &small(), &settings(), &mut |_| Ok(()));
        let error = found.unwrap_err().to_string();
        assert!(
            error.ends_with(", 2 in rows that the `weight` of their source passes over"),
            "{error}"
        );
    }

    #[test]
    fn conversations_are_rendered_and_failures_say_where() {
        let rows = |content: &str| {
            let messages = vec![
                Message::new("user", "the"),
                Message::new("assistant", content),
            ];
            [Ok(LocatedRow::new(
                Location::new("chat.jsonl", 7),
                Conversation::new(messages),
            ))]
        };
        let settings = PrepareSettings {
            max_length: 100,
            ..settings()
        };
        let tokenizer = small();
        let run = |template: Option<&str>| {
            let template =
                template.map(|source| ChatTemplate::from_source(source, None, None).unwrap());
            prepare(
                rows("cat"),
                template.as_ref(),
                &tokenizer,
                &settings,
                &mut |_| Ok(()),
            )
        };
        let report = run(Some(CHATML)).unwrap();
        assert!(report.trained_tokens >= 2 && report.trained_tokens < report.tokens);
        let refused = run(Some("{{ raise_exception('no') }}"))
            .unwrap_err()
            .to_string();
        assert!(
            refused.starts_with("`chat.jsonl` row 7: chat template: "),
            "{refused}"
        );
        let missing = run(None).unwrap_err().to_string();
        assert!(
            missing.starts_with("`chat.jsonl` row 7: a conversation needs a chat template")
                && missing.contains("`data.template = \"FILE\"`")
                && missing.contains("`chat_template.jinja`"),
            "{missing}"
        );
    }

    #[test]
    fn nothing_left_counts_answers_that_are_only_context_or_were_cut_off() {
        let row = |(at, key, value): (usize, &str, serde_json::Value)| {
            let mut answer = Message::new("assistant", "the cat");
            answer.extra.insert(key.into(), value);
            let asked = Message::new("user", "the");
            let messages = vec![asked.clone(), answer.clone(), asked, answer];
            LocatedRow::new(Location::new("chat.jsonl", at), Conversation::new(messages))
        };
        let rows: [(usize, &str, serde_json::Value); 3] = [
            (1, "weight", 0.into()),
            (2, "train", false.into()),
            (3, "truncated", true.into()),
        ];
        // It shows something else than the answer that was cut off.
        let source = CHATML.replace("message.content", "message.content|upper");
        let template = ChatTemplate::from_source(&source, None, None).unwrap();
        let refused = |masking, max_length| {
            let settings = PrepareSettings {
                max_length,
                masking,
                ..settings()
            };
            let rows = rows.clone().map(row).map(Ok);
            let found = prepare(rows, Some(&template), &small(), &settings, &mut |_| Ok(()));
            found.unwrap_err().to_string()
        };
        assert_eq!(
            refused(Masking::Assistant, 100),
            "no sample is left of the 3 rows read: 0 too long, 3 with too few trained tokens; answers that are only context, as \
             their messages say (`weight`, `train`, `training`): 4; answers that are cut off, so that only what the chat template \
             shows of them as the target wrote it is trained on: 2"
        );
        // Of these the mask asks for one a row.
        let last = refused(Masking::LastTurn, 100);
        let counted =
            last.contains("`training`): 2; answers that are cut off") && last.ends_with(": 1");
        assert!(counted, "{last}");
        let all = refused(Masking::All, 1);
        assert!(all.ends_with("0 with too few trained tokens"), "{all}");
    }

    #[test]
    fn nothing_left_names_the_roles_where_none_is_the_assistants() {
        let rows = || {
            let row = |at| {
                let messages = vec![Message::new("User", "the"), Message::new("bot", "cat")];
                LocatedRow::new(Location::new("chat.jsonl", at), Conversation::new(messages))
            };
            (1..=2).map(row).map(Ok)
        };
        let template = ChatTemplate::from_source(CHATML, None, None).unwrap();
        let refused = |settings: &PrepareSettings| {
            let found = prepare(rows(), Some(&template), &small(), settings, &mut |_| Ok(()));
            found.unwrap_err().to_string()
        };
        let long = PrepareSettings {
            max_length: 100,
            ..settings()
        };
        assert_eq!(
            refused(&long),
            "no sample is left of the 2 rows read: 0 too long, 2 with too few trained tokens; no message has the role `assistant`; \
             roles found: `User` 2, `bot` 2; did you mean `assistant`?"
        );
        let all = PrepareSettings {
            max_length: 1,
            masking: Masking::All,
            ..settings()
        };
        assert!(refused(&all).ends_with("2 too long, 0 with too few trained tokens"));
    }
}
