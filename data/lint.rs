//! What is wrong with a dataset, found before a drafter is trained on it: empty masks, duplicates, leaks, coverage.

mod checks;
mod report;

use std::collections::HashSet;

use crate::conversation::{Content, Message, Row, Sample};
use crate::error::{Error, Result};
use crate::expand::{Samples, add_other_prompts};
use crate::held_out;
use crate::prepare::{Category, Preparation, PrepareSettings, digest};
use crate::rows::{LocatedRow, Location};
use crate::template::ChatTemplate;
use crate::tokenizer::{Special, Tokenizer};

pub use report::{Coverage, CutOff, FlawedRow, LintReport, Quantiles, SetReport, ShownSample};

/// Sizes of draft vocabulary to give the coverage of where no others are asked for.
pub const DRAFT_VOCABULARIES: [usize; 5] = [1024, 8192, 16_384, 32_000, 64_000];

/// Tokens of a shown sample that are printed at most.
const SHOWN_TOKENS: usize = 400;

/// How rows become samples, and what to look at.
#[derive(Debug, Clone, Copy)]
pub struct Linter<'a> {
    /// Needed where rows hold messages.
    pub template: Option<&'a ChatTemplate>,
    /// The target's.
    pub tokenizer: &'a Tokenizer,
    /// As the samples would be prepared.
    pub settings: &'a PrepareSettings,
    /// The tokens at which the target stops; without any, nothing is said of them.
    pub stop_tokens: &'a [u32],
    /// Sizes of draft vocabulary to give the coverage of, as far as they are below the target's.
    pub draft_vocabularies: &'a [usize],
    /// Training samples to show with their mask.
    pub shown: usize,
    /// Whether the report is to know every row with a flaw, and not the first few of each kind alone.
    pub lists_rows: bool,
}

/// Reads a training set and an evaluation set (which may be empty) and reports on both.
///
/// A row that cannot be used is counted and the others are still looked at; a training set without rows is an error.
pub fn lint(
    train: impl IntoIterator<Item = Result<LocatedRow>>,
    eval: impl IntoIterator<Item = Result<LocatedRow>>,
    linter: &Linter<'_>,
) -> Result<LintReport> {
    let mut counts = vec![0_u64; linter.settings.vocab];
    let mut shown = Vec::new();
    let mut prompts = HashSet::new();
    let train = survey(train, linter, |location, row, samples| {
        prompts.extend(openings(row, linter.template));
        for sample in samples {
            for (&token, _) in sample
                .tokens
                .iter()
                .zip(&sample.loss_mask)
                .filter(|&(_, &trained)| trained)
            {
                counts[token as usize] += 1;
            }
            if shown.len() < linter.shown {
                shown.push(ShownSample {
                    location: location.to_string(),
                    text: with_visible_mask(sample, linter.tokenizer)?,
                });
            }
        }
        Ok(())
    })?;
    let mut overlap = Category::new(linter.lists_rows);
    let eval = survey(eval, linter, |location, row, _| {
        let prompt = openings(row, linter.template).pop();
        if prompt.is_some_and(|prompt| prompts.contains(&prompt)) {
            overlap.add(location);
        }
        Ok(())
    })?;
    let template = linter.template.map(ChatTemplate::unread_variables);
    Ok(LintReport {
        masking: linter.settings.masking,
        template: template.unwrap_or_default(),
        train,
        eval,
        overlap,
        coverage: coverage(counts, linter.draft_vocabularies),
        shown,
    })
}

/// What is found in a set of rows; `look` is shown each row that can be used, with its samples. What the weight of its source passes
/// over is counted and not looked at.
fn survey(
    rows: impl IntoIterator<Item = Result<LocatedRow>>,
    linter: &Linter<'_>,
    mut look: impl FnMut(&Location, &Row, &[Sample]) -> Result<()>,
) -> Result<SetReport> {
    let preparation = Preparation {
        template: linter.template,
        tokenizer: linter.tokenizer,
        settings: linter.settings,
    };
    let mut report = SetReport::new(linter.lists_rows);
    let (mut lengths, mut shares) = (Vec::new(), Vec::new());
    let mut seen = HashSet::new();
    for row in rows {
        if row.as_ref().is_ok_and(|row| row.copies == 0) {
            report.passed_over += 1;
            continue;
        }
        let used = row.and_then(|LocatedRow { location, row, .. }| {
            report.roles.add(&row.content);
            report.beside_tokens += u64::from(row.has_conversation_beside());
            let samples = preparation.samples(&location, &row)?;
            Ok((location, row, samples))
        });
        let (location, row, samples) = match used {
            Ok(used) => used,
            Err(error @ Error::EmptyDataset { .. }) => return Err(error),
            Err(error) if error.is_of_file() => {
                report.unreadable.add(error);
                continue;
            }
            Err(error) => {
                report.refused.add(error);
                continue;
            }
        };
        report.rows += 1;
        linter.look_at_row(&mut report, &location, &row);
        for _ in 0..samples.beyond {
            report.overlong.add(&location);
        }
        report.samples += samples.beyond as u64;
        for (number, sample) in samples.made.iter().enumerate() {
            let (length, trained) = (sample.tokens.len(), sample.trained_tokens());
            lengths.push(length as f64);
            shares.push(trained as f64 / length.max(1) as f64);
            linter.look_at_sample(&mut report, &location, &row, (&samples, number));
            if !seen.insert(digest(sample)) {
                report.duplicates.add(&location);
            }
        }
        look(&location, &row, &samples.made)?;
    }
    report.length = Quantiles::of(lengths);
    report.trained_share = Quantiles::of(shares);
    Ok(report)
}

impl Linter<'_> {
    /// What is wrong with a row, whatever samples it has.
    fn look_at_row(&self, report: &mut SetReport, location: &Location, row: &Row) {
        let (Content::Conversation(conversation), Some(template)) = (&row.content, self.template)
        else {
            return;
        };
        report.own_variables += u64::from(!conversation.variables.is_empty());
        for answer in self.settings.masking.asked_answers(&conversation.messages) {
            let is_trained_on = answer.is_trained_on();
            report.context_answers += u64::from(!is_trained_on);
            report.cut_off.answers += u64::from(is_trained_on && answer.is_cut_off());
        }
        let unread = template.unread(&conversation.variables);
        if !unread.is_empty() {
            let named = format!("{location}: {}", unread.join(" and "));
            report.unread_variables.add(named);
        }
        for (applies, category) in [
            (
                checks::hides_tools(conversation, template),
                &mut report.hidden_tools,
            ),
            (
                checks::hides_reasoning(conversation, template),
                &mut report.hidden_reasoning,
            ),
            (
                checks::hides_calls(conversation, template),
                &mut report.hidden_calls,
            ),
            (
                checks::has_empty_answer(conversation),
                &mut report.empty_answers,
            ),
            (checks::is_unasked(conversation), &mut report.unasked),
        ] {
            if applies {
                category.add(location);
            }
        }
    }

    /// Behind what the answers of the sample of this number stand, as far as it is kept to be trained on.
    fn look_at_prompts(
        &self,
        report: &mut SetReport,
        location: &Location,
        (samples, number): (&Samples, usize),
    ) {
        let sample = &samples.made[number];
        let kept = self.settings.kept(sample).unwrap_or_default();
        let trained = sample.loss_mask[..kept].iter();
        if trained.filter(|&&trained| trained).count() >= self.settings.min_trained_tokens {
            let others = (&samples.other_prompts[number][..], kept);
            add_other_prompts(others, location, &mut report.other_prompts);
        }
    }

    /// What is in the sample of this number, and what is wrong with it.
    fn look_at_sample(
        &self,
        report: &mut SetReport,
        location: &Location,
        row: &Row,
        (samples, number): (&Samples, usize),
    ) {
        let sample = &samples.made[number];
        let (length, trained) = (sample.tokens.len(), sample.trained_tokens());
        self.look_at_prompts(report, location, (samples, number));
        report.samples += 1;
        report.tokens += length as u64;
        report.trained_tokens += trained as u64;
        let conversation = match &row.content {
            Content::Conversation(conversation) => Some(conversation),
            Content::Tokens(_) => None,
        };
        let answers = conversation.map_or_else(Vec::new, |conversation| {
            samples.trained_answers(number, &conversation.messages, self.settings.masking)
        });
        let is_stopped = !answers.is_empty() && answers.iter().all(|answer| answer.is_cut_off());
        let is_lost = trained == 0 && is_stopped;
        report.cut_off.untrained += u64::from(is_lost);
        let conversation = conversation.filter(|_| trained > 0);
        let ends = conversation.is_some() && !self.stop_tokens.is_empty();
        let is_ended = ends && checks::is_trained_on(sample, self.stop_tokens);
        report.ended += u64::from(is_ended);
        // Where no answer has an end that the target wrote, none is missing.
        let is_endless = ends && !is_ended;
        report.cut_off.unending += u64::from(is_endless && is_stopped);
        let tokens = (self.tokenizer, self.stop_tokens);
        let ends_inside = conversation
            .is_some_and(|conversation| checks::ends_inside(conversation, sample, tokens));
        for (applies, category) in [
            (trained == 0 && !is_lost, &mut report.all_zero),
            (trained == length && length > 0, &mut report.all_one),
            (length > self.settings.max_length, &mut report.overlong),
            (is_endless && !is_stopped, &mut report.unending),
            (ends_inside, &mut report.inner_ends),
        ] {
            if applies {
                category.add(location);
            }
        }
    }
}

/// Digests of what is said before each answer of a row, whatever the system message; the last is of the prompt that is evaluated
/// with. For rows of tokens, of what comes before the first trained token.
fn openings(row: &Row, template: Option<&ChatTemplate>) -> Vec<u128> {
    let said = |message: &Message| match message.role.as_str() {
        "system" | "developer" => String::new(),
        role => format!("{role}\0{}\0", message.content.trim()),
    };
    match &row.content {
        Content::Conversation(conversation) => {
            let mut messages = conversation.messages.iter();
            if messages.any(|message| message.role == "user") {
                held_out::openings(conversation, template, &said)
            } else {
                Vec::new()
            }
        }
        Content::Tokens(sample) => match sample.prompt() {
            [] => Vec::new(),
            prompt => vec![held_out::of_tokens(prompt)],
        },
    }
}

/// The coverage by sizes below that of the whole vocabulary; none where nothing is trained on.
fn coverage(mut counts: Vec<u64>, sizes: &[usize]) -> Vec<Coverage> {
    counts.sort_unstable_by(|one, two| two.cmp(one));
    let total: u64 = counts.iter().sum();
    let share = |size: usize| counts.iter().take(size).sum::<u64>() as f64 / total as f64;
    let sizes = sizes.iter().copied();
    sizes
        .filter(|&size| total > 0 && size < counts.len())
        .map(|size| Coverage {
            size,
            share: share(size),
        })
        .collect()
}

fn with_visible_mask(sample: &Sample, tokenizer: &Tokenizer) -> Result<String> {
    let length = sample.tokens.len().min(SHOWN_TOKENS);
    let mut text = String::new();
    let mut start = 0;
    for run in sample.loss_mask[..length].chunk_by(|one, two| one == two) {
        let tokens = &sample.tokens[start..start + run.len()];
        let part = tokenizer.decode(tokens, Special::Keep)?;
        if run[0] {
            text.push_str(&format!("⟦{part}⟧"));
        } else {
            text.push_str(&part);
        }
        start += run.len();
    }
    if length < sample.tokens.len() {
        text.push('…');
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
