//! Rows kept for the evaluation where there are none of their own: a share of the prompts, whatever their order.

use std::time::SystemTime;

use sha2::{Digest, Sha256};

use crate::conversation::{Content, Row};
use crate::error::{Error, Result};
use crate::mask::prompt_text;
use crate::prepare::first_bytes;
use crate::rows::LocatedRow;
use crate::template::ChatTemplate;
use crate::unusable::Unusable;

/// The fewest prompts that are held out, as long as they are no more than [`LARGEST_SHARE`].
pub const FEWEST: usize = 64;
/// The most prompts that are held out.
pub const MOST: usize = 2000;
/// The largest share of the prompts that is held out.
pub const LARGEST_SHARE: f64 = 0.2;

/// Which rows are held out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldOut {
    /// Those that can be read; one that cannot be rendered is not held out.
    rows: Vec<bool>,
    prompts: usize,
    unusable: Unusable,
}

impl HeldOut {
    /// Holds out a share of the prompts: those with the smallest hashes.
    ///
    /// A prompt is what the target sees before the last answer, tools included and as of one fixed day; rows with the same
    /// prompt stay together.
    ///
    /// # Errors
    /// A row cannot be read or rendered and is not to be left out, or there are fewer than two prompts.
    pub fn of(
        rows: impl IntoIterator<Item = Result<LocatedRow>>,
        share: f64,
        (template, unusable): (Option<&ChatTemplate>, Unusable),
    ) -> Result<Self> {
        // Of a template that prints the date, prompts would be others each day, and so would be the choice.
        let template = template.map(|template| template.clone().at(SystemTime::UNIX_EPOCH));
        let template = template.as_ref();
        let hashes = unusable.without(rows.into_iter()).map(|row| {
            let LocatedRow { location, row, .. } = row?;
            match hash(&row, template).map_err(Error::at(&location)) {
                Err(error) if unusable.drops(&error) => Ok(None),
                hash => hash.map(Some),
            }
        });
        let hashes: Vec<Option<u128>> = hashes.collect::<Result<_>>()?;
        let mut prompts: Vec<u128> = hashes.iter().copied().flatten().collect();
        prompts.sort_unstable();
        prompts.dedup();
        let count = count(prompts.len(), share);
        let Some(&last) = count.checked_sub(1).and_then(|last| prompts.get(last)) else {
            return Err(Error::NothingToHoldOut {
                prompts: prompts.len(),
            });
        };
        Ok(Self {
            rows: hashes
                .iter()
                .map(|hash| hash.is_some_and(|hash| hash <= last))
                .collect(),
            prompts: count,
            unusable,
        })
    }

    /// Prompts held out.
    pub fn prompts(&self) -> usize {
        self.prompts
    }

    /// Rows held out.
    pub fn rows(&self) -> usize {
        self.rows.iter().filter(|&&held| held).count()
    }

    /// Of the same rows in the same order, those that are left to train on, and those that cannot be used.
    pub fn left(
        &self,
        rows: impl Iterator<Item = Result<LocatedRow>>,
    ) -> impl Iterator<Item = Result<LocatedRow>> {
        self.on_side(rows, false)
    }

    /// Of the same rows in the same order, those that are held out, each once.
    pub fn held(
        &self,
        rows: impl Iterator<Item = Result<LocatedRow>>,
    ) -> impl Iterator<Item = Result<LocatedRow>> {
        self.on_side(self.unusable.without(rows), true)
            .map(|row| row.map(|row| LocatedRow { copies: 1, ..row }))
    }

    fn on_side(
        &self,
        rows: impl Iterator<Item = Result<LocatedRow>>,
        side: bool,
    ) -> impl Iterator<Item = Result<LocatedRow>> {
        let mut sides = self.rows.iter();
        // A row that cannot be read has no side of its own: it ended the first reading, or is left out by who reads.
        rows.filter(move |row| row.is_err() || sides.next().copied().unwrap_or(false) == side)
    }
}

/// How many of so many prompts are held out; none of fewer than two.
fn count(prompts: usize, share: f64) -> usize {
    if prompts < 2 {
        return 0;
    }
    let wanted = ((prompts as f64 * share).round() as usize).clamp(FEWEST, MOST);
    let largest = (prompts as f64 * LARGEST_SHARE) as usize;
    wanted.min(largest).max(1)
}

fn hash(row: &Row, template: Option<&ChatTemplate>) -> Result<u128> {
    let mut hash = Sha256::new();
    match (&row.content, template) {
        (Content::Conversation(conversation), Some(template)) => {
            hash.update(prompt_text(conversation, template)?);
        }
        (Content::Conversation(conversation), None) => {
            // Preparation will say that there is no template.
            conversation
                .messages
                .iter()
                .for_each(|message| hash.update(&message.content));
        }
        (Content::Tokens(sample), _) => {
            let tokens = match sample.prompt() {
                [] => &sample.tokens,
                prompt => prompt,
            };
            tokens
                .iter()
                .for_each(|token| hash.update(token.to_le_bytes()));
        }
    }
    Ok(first_bytes(&hash.finalize()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Duration;

    use super::*;
    use crate::conversation::{Conversation, Message};
    use crate::rows::Location;
    use crate::template::GenerationPrompt;
    use crate::template::tests::CHATML;

    fn rows(questions: &[usize]) -> Vec<LocatedRow> {
        let row = |(at, question): (usize, &usize)| {
            let messages = vec![
                Message::new("user", format!("question {question}")),
                Message::new("assistant", format!("answer {at}")),
            ];
            LocatedRow::new(Location::new("rows", at + 1), Conversation::new(messages))
        };
        questions.iter().enumerate().map(row).collect()
    }

    fn given(rows: &[LocatedRow]) -> impl Iterator<Item = Result<LocatedRow>> {
        rows.iter().cloned().map(Ok)
    }

    /// The questions held out and those left.
    fn sides(questions: &[usize], share: f64) -> [BTreeSet<String>; 2] {
        let template = ChatTemplate::from_source(CHATML, None, None).unwrap();
        sides_with(&template, questions, share)
    }

    fn sides_with(
        template: &ChatTemplate,
        questions: &[usize],
        share: f64,
    ) -> [BTreeSet<String>; 2] {
        let rows = rows(questions);
        let split = HeldOut::of(given(&rows), share, (Some(template), Unusable::Refuse)).unwrap();
        let question = |row: Result<LocatedRow>| match row.unwrap().row.content {
            Content::Conversation(conversation) => conversation.messages[0].content.clone(),
            Content::Tokens(_) => panic!("no tokens were given"),
        };
        let held: BTreeSet<String> = split.held(given(&rows)).map(question).collect();
        assert_eq!(held.len(), split.prompts());
        [held, split.left(given(&rows)).map(question).collect()]
    }

    #[test]
    fn a_prompt_is_on_one_side_whatever_the_order_and_however_often_it_is_there() {
        let once: Vec<usize> = (0..1000).collect();
        let [held, left] = sides(&once, 0.1);
        assert_eq!((held.len(), left.len()), (100, 900));
        let twice: Vec<usize> = once.iter().rev().chain(&once).copied().collect();
        assert_eq!(sides(&twice, 0.1), [held, left]);
    }

    #[test]
    fn the_day_does_not_change_which_prompts_are_held_out() {
        let source = format!("{{{{ strftime_now('%d %b %Y') }}}}{CHATML}");
        let [one, other] = [0, 20_000].map(|days| {
            let moment = SystemTime::UNIX_EPOCH + Duration::from_secs(days * 86_400);
            let template = ChatTemplate::from_source(&source, None, None).unwrap();
            template.at(moment)
        });
        let message = [Message::new("user", "question")];
        let [first, second] =
            [&one, &other].map(|template| template.render(&message[..], GenerationPrompt::With));
        assert_ne!(first.unwrap(), second.unwrap());
        let questions: Vec<usize> = (0..1000).collect();
        let split = sides_with(&one, &questions, 0.1);
        assert_eq!(sides_with(&other, &questions, 0.1), split);
    }

    #[test]
    fn as_many_are_held_out_as_the_share_and_the_limits_say() {
        let counts =
            [0, 1, 2, 10, 100, 1000, 10_000, 1_000_000].map(|prompts| count(prompts, 0.02));
        assert_eq!(counts, [0, 0, 1, 2, 20, 64, 200, 2000]);
    }

    #[test]
    fn rows_that_cannot_be_used_are_on_the_side_of_training_alone() {
        let source = "{% for m in messages %}{{ m.content }}{% if m.content == 'question 5' %}{{ raise_exception('no') }}{% endif %}{% endfor %}";
        let template = ChatTemplate::from_source(source, None, None).unwrap();
        let rows = rows(&(0..100).collect::<Vec<_>>());
        let broken = || Error::NotJson {
            location: "rows row 1".into(),
            fault: "cut".into(),
        };
        let given = || [Err(broken())].into_iter().chain(given(&rows));
        let refused = HeldOut::of(given(), 0.1, (Some(&template), Unusable::Refuse));
        assert!(matches!(refused, Err(Error::NotJson { .. })));
        let split = HeldOut::of(given(), 0.1, (Some(&template), Unusable::Drop)).unwrap();
        let (held, left): (Vec<_>, Vec<_>) =
            (split.held(given()).collect(), split.left(given()).collect());
        assert_eq!((held.len(), left.len()), (split.rows(), 101 - split.rows()));
        assert!(held.iter().all(|row| row.is_ok()));
        assert!(left.iter().flatten().any(|row| row.location.row == 6));
    }

    #[test]
    fn one_prompt_cannot_be_divided() {
        let template = ChatTemplate::from_source(CHATML, None, None).unwrap();
        let with = (Some(&template), Unusable::Refuse);
        let error = HeldOut::of(given(&rows(&[7, 7, 7])), 0.5, with).unwrap_err();
        let message = error.to_string();
        assert!(
            message.contains("at least 2") && message.contains("found 1"),
            "{message}"
        );
    }
}
