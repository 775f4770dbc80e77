//! What is wrong with a dataset, found before a drafter is trained on it: empty masks, duplicates, leaks, coverage.

mod report;

use std::collections::HashSet;

use sha2::{Digest, Sha256};

use crate::conversation::{Content, Conversation, Row, Sample};
use crate::error::{Error, Result};
use crate::prepare::{Category, Preparation, PrepareSettings, digest, first_bytes};
use crate::rows::{LocatedRow, Location};
use crate::template::ChatTemplate;
use crate::tokenizer::{Special, Tokenizer};

pub use report::{Coverage, LintReport, Quantiles, SetReport, ShownSample};

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
    /// Sizes of draft vocabulary to give the coverage of.
    pub draft_vocabularies: &'a [usize],
    /// Training samples to show with their mask.
    pub shown: usize,
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
    let train = survey(train, linter, |location, row, sample| {
        prompts.extend(prompt_digest(row, sample));
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
        Ok(())
    })?;
    let mut overlap = Category::default();
    let eval = survey(eval, linter, |location, row, sample| {
        if prompt_digest(row, sample).is_some_and(|prompt| prompts.contains(&prompt)) {
            overlap.add(location);
        }
        Ok(())
    })?;
    Ok(LintReport {
        masking: linter.settings.masking,
        train,
        eval,
        overlap,
        coverage: coverage(counts, linter.draft_vocabularies),
        shown,
    })
}

fn survey(
    rows: impl IntoIterator<Item = Result<LocatedRow>>,
    linter: &Linter<'_>,
    mut look: impl FnMut(&Location, &Row, &Sample) -> Result<()>,
) -> Result<SetReport> {
    let preparation = Preparation {
        template: linter.template,
        tokenizer: linter.tokenizer,
        settings: linter.settings,
    };
    let mut report = SetReport::default();
    let (mut lengths, mut shares) = (Vec::new(), Vec::new());
    let mut seen = HashSet::new();
    for row in rows {
        let used = row.and_then(|LocatedRow { location, row, .. }| {
            let samples = preparation.samples(&location, &row)?;
            let hides_tools = preparation.hides_tools(&row);
            Ok((location, row, samples, hides_tools))
        });
        let (location, row, samples, hides_tools) = match used {
            Ok(used) => used,
            Err(error @ Error::EmptyDataset { .. }) => return Err(error),
            Err(error) => {
                report.refused.add(error);
                continue;
            }
        };
        if hides_tools {
            report.hidden_tools.add(&location);
        }
        for _ in 0..samples.beyond {
            report.overlong.add(&location);
        }
        report.samples += samples.beyond as u64;
        for sample in samples.made {
            let (length, trained) = (sample.tokens.len(), sample.trained_tokens());
            report.samples += 1;
            report.tokens += length as u64;
            report.trained_tokens += trained as u64;
            lengths.push(length as f64);
            shares.push(trained as f64 / length.max(1) as f64);
            for (applies, category) in [
                (trained == 0, &mut report.all_zero),
                (trained == length && length > 0, &mut report.all_one),
                (length > linter.settings.max_length, &mut report.overlong),
                (!seen.insert(digest(&sample)), &mut report.duplicates),
            ] {
                if applies {
                    category.add(&location);
                }
            }
            look(&location, &row, &sample)?;
        }
    }
    report.length = Quantiles::of(lengths);
    report.trained_share = Quantiles::of(shares);
    Ok(report)
}

/// What the user says before the first answer, whatever the system message; for rows of tokens, what comes before the
/// first trained token.
fn prompt_digest(row: &Row, sample: &Sample) -> Option<u128> {
    let mut hash = Sha256::new();
    let mut any = false;
    match &row.content {
        Content::Conversation(Conversation { messages, .. }) => {
            for message in messages
                .iter()
                .take_while(|message| !message.is_assistant())
            {
                if message.role == "user" {
                    any = true;
                    hash.update(message.content.trim());
                    hash.update([0]);
                }
            }
        }
        Content::Tokens(_) => {
            for token in sample.prompt() {
                any = true;
                hash.update(token.to_le_bytes());
            }
        }
    }
    any.then(|| first_bytes(&hash.finalize()))
}

fn coverage(mut counts: Vec<u64>, sizes: &[usize]) -> Vec<Coverage> {
    counts.sort_unstable_by(|one, two| two.cmp(one));
    let total: u64 = counts.iter().sum();
    let share = |size: usize| counts.iter().take(size).sum::<u64>() as f64 / total.max(1) as f64;
    sizes
        .iter()
        .map(|&size| Coverage {
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
mod tests {
    use super::*;
    use crate::conversation::Message;
    use crate::mask::Masking;
    use crate::prepare::{Overlong, Turns};
    use crate::template::tests::CHATML;
    use crate::tokenizer::tests::small;

    fn chat(user: &str, assistant: &str) -> Row {
        let messages = vec![
            Message::new("user", user),
            Message::new("assistant", assistant),
        ];
        Conversation::new(messages).into()
    }

    fn tokens(tokens: &[u32], trained: bool) -> Row {
        Row::from(Sample {
            tokens: tokens.to_vec(),
            loss_mask: vec![trained; tokens.len()],
        })
    }

    fn located(file: &'static str, rows: Vec<Row>) -> impl Iterator<Item = Result<LocatedRow>> {
        rows.into_iter()
            .zip(1..)
            .map(move |(row, at)| Ok(LocatedRow::new(Location::new(file, at), row)))
    }

    fn report(train: Vec<Row>, eval: Vec<Row>, masking: Masking) -> LintReport {
        let settings = PrepareSettings {
            max_length: 30,
            overlong: Overlong::Truncate,
            masking,
            turns: Turns::Auto,
            min_trained_tokens: 1,
            vocab: 320,
        };
        let template = ChatTemplate::from_source(CHATML, None, None).unwrap();
        let linter = Linter {
            template: Some(&template),
            tokenizer: &small(),
            settings: &settings,
            draft_vocabularies: &[1, 2, 320],
            shown: 1,
        };
        lint(located("train", train), located("eval", eval), &linter).unwrap()
    }

    #[test]
    fn clean_data_has_no_problems_and_a_visible_mask() {
        let report = report(
            vec![chat("the dog", "the cat")],
            vec![chat("a mat", "ran")],
            Masking::Assistant,
        );
        assert_eq!(report.problems(), [""; 0]);
        assert_eq!(
            report.shown[0].text,
            "<|im_start|>user\nthe dog<|im_end|>\n<|im_start|>assistant\n⟦the cat<|im_end|>⟧\n"
        );
        assert!(report.to_string().ends_with("no problems found"));
    }

    #[test]
    fn every_kind_of_damage_is_reported_with_its_place() {
        let train = vec![
            chat("the dog", "the cat"),
            chat("the dog", "the cat"),
            tokens(&[1, 2], false),
            tokens(&[1, 2], true),
            tokens(&[999], true),
            tokens(&[7; 31], true),
        ];
        let report = report(
            train,
            vec![chat(" the dog\n", "something else")],
            Masking::Assistant,
        );
        let problems = report.problems().join("\n");
        for expected in [
            "1 training row cannot be used: `train` row 5: token 999",
            "1 training sample has nothing to train on: `train` row 3",
            "2 training samples are trained on from end to end, prompt included: `train` row 4; `train` row 6",
            "1 training sample repeats an earlier one: `train` row 2",
            "1 training sample is longer than `max_length`: `train` row 6",
            "1 evaluation prompt also occurs in the training data: `eval` row 1",
        ] {
            assert!(
                problems.contains(expected),
                "{expected}\nnot in\n{problems}"
            );
        }
        assert_eq!((report.train.samples, report.train.refused.count), (5, 1));
    }

    #[test]
    fn coverage_is_the_share_of_the_most_frequent_trained_tokens() {
        let report = report(
            vec![tokens(&[5, 5, 5, 6, 7], true), tokens(&[8; 9], false)],
            vec![],
            Masking::Assistant,
        );
        let shares: Vec<f64> = report
            .coverage
            .iter()
            .map(|coverage| coverage.share)
            .collect();
        assert_eq!(shares, [0.6, 0.8, 1.0]);
    }

    #[test]
    fn tools_that_the_template_does_not_show_are_reported() {
        let tools = vec![serde_json::json!({"type": "function"})];
        let with_tools = |user: &str| {
            let mut row = chat(user, "the cat");
            if let Content::Conversation(conversation) = &mut row.content {
                conversation.tools = tools.clone();
            }
            row
        };
        let found = report(
            vec![with_tools("the dog"), chat("x", "y")],
            vec![],
            Masking::Assistant,
        );
        assert_eq!(found.train.hidden_tools.count, 1);
        let problem =
            "1 training row defines tools that the chat template does not show: `train` row 1";
        assert_eq!(found.problems(), [problem]);
    }

    #[test]
    fn a_full_mask_is_no_problem_when_it_was_asked_for() {
        let report = report(vec![chat("the dog", "the cat")], vec![], Masking::All);
        assert_eq!(report.train.all_one.count, 1);
        assert_eq!(report.problems(), [""; 0]);
    }
}
