//! Turns the rows of a dataset into samples fit for training, and counts everything it leaves out.

use std::collections::HashSet;
use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::conversation::{Content, Row, Sample};
use crate::error::{Error, Result};
use crate::expand::{Samples, samples};
use crate::mask::Masking;
use crate::roles::Roles;
use crate::rows::{LocatedRow, Location};
use crate::template::ChatTemplate;
use crate::tokenizer::Tokenizer;
use crate::words::counted;

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
            let (expanded, added) = (self.expanded, self.added);
            totals += &format!(
                "\n{expanded} conversations expanded to a sample for each answer that is trained on, which adds {added} samples"
            );
        }
        if self.passed_over + self.copies > 0 {
            let (passed_over, copies) = (self.passed_over, self.copies);
            totals += &format!(
                "\nby weight {passed_over} rows were passed over and {copies} copies made"
            );
        }
        totals
    }

    /// What was left out, cut or is there twice, and where: a line for each kind.
    pub fn remarks(&self) -> Vec<String> {
        let kinds = [
            ("rows that cannot be used, left out", &self.unusable),
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
    format!(
        "{rows} rows read by their `input_ids` and mask; the conversations beside them are not read"
    )
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
/// [dropped](crate::unusable::Unusable::Drop), and so is a dataset of which nothing is left.
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
    let mut sieve = Sieve {
        settings,
        report: PrepareReport::default(),
        seen: HashSet::new(),
        roles: Roles::default(),
    };
    for located in rows {
        let Some(located) = sieve.usable(located)? else {
            continue;
        };
        let LocatedRow {
            location,
            row,
            copies,
        } = located;
        if copies == 0 {
            sieve.report.passed_over += 1;
            continue;
        }
        sieve.report.beside_tokens += u64::from(row.has_conversation_beside());
        sieve.roles.add(&row.content);
        let made = preparation.samples(&location, &row);
        let Some(Samples { made, beyond }) = sieve.or_drop(made)? else {
            continue;
        };
        let count = (made.len() + beyond) as u64;
        if count > 1 {
            sieve.report.expanded += 1;
            sieve.report.added += count - 1;
        }
        for sample in made {
            let Some(sample) = sieve.sift(&location, sample) else {
                continue;
            };
            sieve.count(&sample, copies);
            for _ in 1..copies {
                sink(sample.clone())?;
            }
            sink(sample)?;
        }
        for _ in 0..beyond {
            sieve.leave_out_beyond(&location);
        }
    }
    sieve.finish()
}

/// Lets through what is worth training on and counts the rest.
struct Sieve<'a> {
    settings: &'a PrepareSettings,
    report: PrepareReport,
    seen: HashSet<u128>,
    roles: Roles,
}

impl Sieve<'_> {
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
        let reads_roles = self.settings.masking != Masking::All;
        if let Some(lack) = self.roles.lack().filter(|_| reads_roles) {
            reasons += "; ";
            reasons += &lack;
        }
        Err(Error::NothingKept {
            read: report.read,
            reasons,
        })
    }
}

#[cfg(test)]
mod tests {
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
            "no sample is left of the 1 rows read: 0 too long, 1 with too few trained tokens"
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
