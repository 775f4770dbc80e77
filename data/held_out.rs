//! Rows kept for the evaluation where there are none of their own: a share of the prompts, whatever their order.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::SystemTime;

use sha2::{Digest, Sha256};

use crate::conversation::{
    CONVERSATION, CUT_OFF, Content, Conversation, Message, Row, Sample, TRAINED,
};
use crate::error::{Error, Result};
use crate::in_order::{InOrder, threads};
use crate::mask::before_answer;
use crate::prepare::{bytes_of, first_bytes};
use crate::rows::LocatedRow;
use crate::template::{ChatTemplate, GenerationPrompt};
use crate::unusable::Unusable;

mod shown;

use shown::shown;

/// The fewest prompts that are held out, as long as they are no more than [`LARGEST_SHARE`]: an evaluation takes 64 of them unless it is
/// told otherwise, and validations choose weights by others.
pub const FEWEST: usize = 96;
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
    /// Holds out a share of the prompts: those with the smallest hashes, where they stand alone.
    ///
    /// A prompt is what the target sees before the last answer, tools included and as of one fixed day; rows with the same
    /// prompt stay together. So do conversations of which one goes on from the prompt of the other, rows of tokens that follow each
    /// other and do so, and those that are of one conversation by their key [`CONVERSATION`]: else what is evaluated would have been
    /// trained on. Rows that the weight of their source passes over are neither counted nor held out.
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
        let mut openings = Openings::default();
        let (mut hashes, mut taken) = (Vec::new(), Vec::new());
        let in_order = InOrder {
            threads: threads(),
            weight: bytes_of,
            work: |row: Result<LocatedRow>| row.map(|located| Begun::of(located, template)),
        };
        let mut add = |begun: Result<Begun>| -> Result<()> {
            let Begun {
                row,
                copies,
                hash,
                openings: begun,
            } = begun?;
            let hash = match hash {
                Err(error) if unusable.drops(&error) => None,
                hash => Some(hash?),
            };
            openings.add(&row, begun);
            hashes.push(hash);
            taken.push(hash.filter(|_| copies > 0));
            Ok(())
        };
        in_order.run(unusable.without(rows.into_iter()), &mut add)?;
        let of_rows = openings.groups(&hashes);
        let mut groups: BTreeMap<usize, BTreeSet<u128>> = BTreeMap::new();
        for (group, hash) in of_rows.iter().zip(&taken) {
            if let Some(hash) = hash {
                groups.entry(*group).or_default().insert(*hash);
            }
        }
        let held = chosen(&groups, share);
        if held.is_empty() {
            return Err(Error::NothingToHoldOut {
                prompts: groups.len(),
            });
        }
        let is_held =
            |(group, hash): (&usize, &Option<u128>)| hash.is_some() && held.contains(group);
        Ok(Self {
            rows: of_rows.iter().zip(&taken).map(is_held).collect(),
            prompts: held.iter().map(|group| groups[group].len()).sum(),
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

    /// Of the same rows in the same order, those that are left to train on, those that are passed over, and those that cannot be
    /// used.
    pub fn left(
        &self,
        rows: impl Iterator<Item = Result<LocatedRow>>,
    ) -> impl Iterator<Item = Result<LocatedRow>> {
        self.on_side(rows, false)
    }

    /// Of the same rows in the same order, those that are held out, each once, also where copies of it follow.
    pub fn held(
        &self,
        rows: impl Iterator<Item = Result<LocatedRow>>,
    ) -> impl Iterator<Item = Result<LocatedRow>> {
        let mut last = None;
        let is_new = move |row: &Result<LocatedRow>| {
            let row = row.as_ref().ok().map(|located| located.row.clone());
            let is_new = row.is_none() || row != last;
            last = row;
            is_new
        };
        self.on_side(self.unusable.without(rows), true)
            .filter(is_new)
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
pub fn count(prompts: usize, share: f64) -> usize {
    if prompts < 2 {
        return 0;
    }
    let wanted = ((prompts as f64 * share).round() as usize).clamp(FEWEST, MOST);
    let largest = (prompts as f64 * LARGEST_SHARE) as usize;
    wanted.min(largest).max(1)
}

/// How a row begins.
struct Begun {
    row: Row,
    copies: usize,
    /// That of its prompt.
    hash: Result<u128>,
    /// Those of what stands before each answer of a conversation; see [`openings`].
    openings: Vec<u128>,
}

impl Begun {
    fn of(located: LocatedRow, template: Option<&ChatTemplate>) -> Self {
        let LocatedRow {
            location,
            row,
            copies,
        } = located;
        Self {
            hash: hash(&row, template).map_err(Error::at(&location)),
            openings: match &row.content {
                Content::Conversation(conversation) => {
                    openings(conversation, template, &message_text)
                }
                Content::Tokens(_) => Vec::new(),
            },
            row,
            copies,
        }
    }
}

/// How rows begin, and so which of them go on from the prompt of another.
#[derive(Default)]
struct Openings {
    /// The conversation that is the prompt of this hash, the first of several.
    prompts: HashMap<u128, usize>,
    /// What rows begin with that may be the prompt of another: row and hash.
    begun: Vec<(usize, u128)>,
    /// The first row of tokens of each conversation that has a name, by a digest of that.
    conversations: HashMap<u128, usize>,
    /// Rows of tokens, each with an earlier one of its conversation.
    joined: Vec<(usize, usize)>,
    /// The prompt of the last row, where that is tokens.
    last: Option<Vec<u32>>,
    rows: usize,
}

impl Openings {
    /// Adds a row with the [`openings`] of its conversation.
    fn add(&mut self, row: &Row, mut openings: Vec<u128>) {
        let at = self.rows;
        self.rows += 1;
        let before = self.last.take();
        match &row.content {
            Content::Conversation(_) => {
                if let Some(prompt) = openings.pop() {
                    self.prompts.entry(prompt).or_insert(at);
                }
                self.begun
                    .extend(openings.into_iter().map(|opening| (at, opening)));
            }
            Content::Tokens(sample) => {
                let before = before.filter(|before| !before.is_empty());
                if before.is_some_and(|before| sample.tokens.starts_with(&before)) {
                    self.joined.push((at, at - 1));
                }
                // A table has a column for rows without a name, too.
                let is_name =
                    |(key, value): &&(String, String)| key == CONVERSATION && value != "null";
                if let Some((_, name)) = row.extra.iter().find(is_name) {
                    let name = first_bytes(&Sha256::digest(name));
                    let first = *self.conversations.entry(name).or_insert(at);
                    self.joined.push((at, first));
                }
                self.last = Some(sample.prompt().to_vec());
            }
        }
    }

    /// The group of each row, by the first of its rows.
    fn groups(self, hashes: &[Option<u128>]) -> Vec<usize> {
        let mut groups: Vec<usize> = (0..self.rows).collect();
        let mut join = |row: usize, other: usize| {
            let [one, other] = [row, other].map(|row| root(&mut groups, row));
            groups[one.max(other)] = one.min(other);
        };
        let mut firsts: HashMap<u128, usize> = HashMap::new();
        for (row, hash) in hashes.iter().enumerate() {
            if let Some(hash) = hash {
                join(row, *firsts.entry(*hash).or_insert(row));
            }
        }
        for (row, other) in &self.joined {
            join(*row, *other);
        }
        for (row, opening) in &self.begun {
            if let Some(from) = self.prompts.get(opening) {
                join(*row, *from);
            }
        }
        (0..self.rows).map(|row| root(&mut groups, row)).collect()
    }
}

/// The first row of a group, to which the way is shorter afterwards.
fn root(groups: &mut [usize], mut row: usize) -> usize {
    while groups[row] != row {
        groups[row] = groups[groups[row]];
        row = groups[row];
    }
    row
}

/// Hashes of what stands before each answer of a conversation, from the first one on; the last is of its prompt. `said` is what
/// counts of a message. Variables count before the answers before which the template renders something else without them.
pub(crate) fn openings(
    conversation: &Conversation,
    template: Option<&ChatTemplate>,
    said: &dyn Fn(&Message) -> String,
) -> Vec<u128> {
    let Conversation {
        messages, tools, ..
    } = conversation;
    let prompts = prompts(messages);
    let shown = template.map(|template| shown(conversation, &prompts, template));
    let shown = shown.unwrap_or_default();
    let mut hash = Sha256::new();
    tools.iter().for_each(|tool| hash.update(tool.to_string()));
    let mut begun = 0;
    let mut found = Vec::with_capacity(prompts.len());
    for (number, &count) in prompts.iter().enumerate() {
        let new = messages[begun..count].iter();
        new.for_each(|message| hash.update(said(message)));
        begun = count;
        let mut hash = hash.clone();
        for change in shown.iter().filter(|change| change.from <= number) {
            hash.update(serde_json::json!([change.name, change.value]).to_string());
        }
        found.push(first_bytes(&hash.finalize()));
    }
    found
}

/// How many messages stand before each answer of a conversation, from the first one on; the last is of its prompt.
fn prompts(messages: &[Message]) -> Vec<usize> {
    let whole = messages.len();
    let is_answer = |at: &usize| messages[*at].is_assistant() && (*at > 0 || whole == 1);
    let answers = (0..whole).filter(is_answer);
    let is_open = messages.last().is_some_and(|last| !last.is_assistant());
    answers.chain(is_open.then_some(whole)).collect()
}

/// What is said in a message, without what its keys say of how it is trained on.
fn message_text(message: &Message) -> String {
    let Message {
        role,
        content,
        parts: _,
        extra,
    } = message;
    let is_said = |key: &str| key != CUT_OFF && !TRAINED.contains(&key);
    let extra: BTreeMap<_, _> = extra.iter().filter(|(key, _)| is_said(key)).collect();
    serde_json::json!([role, content, extra]).to_string()
}

pub(crate) fn of_tokens(tokens: &[u32]) -> u128 {
    let mut hash = Sha256::new();
    tokens
        .iter()
        .for_each(|token| hash.update(token.to_le_bytes()));
    first_bytes(&hash.finalize())
}

/// The groups that are held out: by the hashes of their prompts, as long as these are not more than the share; of groups that are all
/// larger the smallest one.
fn chosen(groups: &BTreeMap<usize, BTreeSet<u128>>, share: f64) -> BTreeSet<usize> {
    let all: usize = groups.values().map(BTreeSet::len).sum();
    let wanted = count(all, share);
    // The least of several hashes is small.
    let rank = |prompts: &BTreeSet<u128>| match prompts.first() {
        Some(least) if prompts.len() > 1 => first_bytes(&Sha256::digest(least.to_le_bytes())),
        least => least.copied().unwrap_or_default(),
    };
    let mut ranked: Vec<_> = groups
        .iter()
        .map(|(group, prompts)| (rank(prompts), *group, prompts.len()))
        .collect();
    ranked.sort_unstable();
    let mut left = wanted;
    let mut held = BTreeSet::new();
    for &(_, group, prompts) in &ranked {
        if prompts <= left {
            left -= prompts;
            held.insert(group);
        }
    }
    if held.is_empty() && wanted > 0 && groups.len() > 1 {
        let smallest = ranked.iter().min_by_key(|(_, _, prompts)| *prompts);
        held.extend(smallest.map(|(_, group, _)| *group));
    }
    held
}

fn hash(row: &Row, template: Option<&ChatTemplate>) -> Result<u128> {
    let mut hash = Sha256::new();
    match (&row.content, template) {
        (Content::Tokens(sample), _) => return Ok(of_tokens(prompt_of(sample))),
        (Content::Conversation(conversation), Some(template)) => {
            // As the messages stand: another form of reasoning in them would be another choice.
            hash.update(template.render(before_answer(conversation), GenerationPrompt::With)?);
        }
        (Content::Conversation(conversation), None) => {
            // Preparation will say that there is no template.
            conversation
                .messages
                .iter()
                .for_each(|message| hash.update(&message.content));
        }
    }
    Ok(first_bytes(&hash.finalize()))
}

/// What is asked; of tokens that are all trained on, all of them.
fn prompt_of(sample: &Sample) -> &[u32] {
    match sample.prompt() {
        [] => &sample.tokens,
        prompt => prompt,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;
    use crate::conversation::{Conversation, Message};
    use crate::mask::prompt_text;
    use crate::rows::Location;
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

    #[test]
    fn the_form_in_which_samples_have_reasoning_is_no_part_of_the_choice() {
        let source = CHATML.replace(r"assistant\n", r"assistant\n<think>\n");
        let template = ChatTemplate::from_source(&source, None, None).unwrap();
        let said = [("user", "a"), ("assistant", "b</think>c"), ("user", "d")];
        let said = said.map(|(role, content)| Message::new(role, content));
        let conversation = Conversation::new(said.to_vec());
        let plain = template.render(&conversation, GenerationPrompt::With);
        let plain = plain.unwrap();
        assert_ne!(prompt_text(&conversation, &template).unwrap(), plain);
        let found = hash(&conversation.into(), Some(&template)).unwrap();
        assert_eq!(found, first_bytes(&Sha256::digest(plain)));
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
    fn what_goes_on_from_a_prompt_is_on_its_side() {
        let template = ChatTemplate::from_source(CHATML, None, None).unwrap();
        let said = |number: usize, turns: usize| {
            let turn = |turn: usize| {
                let question = Message::new("user", format!("question {number} {turn}"));
                [
                    question,
                    Message::new("assistant", format!("answer {turn}")),
                ]
            };
            Row::from(Conversation::new((0..turns).flat_map(turn).collect()))
        };
        // Every conversation is there up to each of its answers, shuffled: the longest first, or last.
        let orders = [[3, 1, 2], [1, 2, 3]];
        let texts = orders.map(|lengths| {
            let each = lengths.map(|turns| (0..300).map(move |number| (number, turns)));
            let rows = each.into_iter().flatten();
            rows.map(|(number, turns)| (number, said(number, turns)))
                .collect::<Vec<_>>()
        });
        // Answers of a conversation that follow each other, as tokens.
        let tokens = (0..300).flat_map(|number: u32| {
            let tokens: Vec<u32> = [number, 7, 8, number, 9, 9].to_vec();
            [1, 4].map(|prompt| {
                let loss_mask = (0..prompt + 2).map(|at| at >= prompt).collect();
                let tokens = tokens[..prompt + 2].to_vec();
                (
                    number as usize,
                    Row {
                        content: Content::Tokens(Sample { tokens, loss_mask }),
                        extra: Vec::new(),
                    },
                )
            })
        });
        let [one, other] = texts;
        for rows in [one, other, tokens.collect()] {
            let given = || {
                let each = rows.iter().enumerate();
                each.map(|(at, (_, row))| {
                    Ok(LocatedRow::new(Location::new("rows", at + 1), row.clone()))
                })
            };
            let split = HeldOut::of(given(), 0.16, (Some(&template), Unusable::Refuse)).unwrap();
            let numbers = |side: &mut dyn Iterator<Item = Result<LocatedRow>>| {
                let rows = side.map(|row| rows[row.unwrap().location.row - 1].0);
                rows.collect::<BTreeSet<usize>>()
            };
            let (held, left) = (
                numbers(&mut split.held(given())),
                numbers(&mut split.left(given())),
            );
            assert!(held.is_disjoint(&left), "{held:?}");
            // As many prompts as are asked for, of 900 or 600.
            assert_eq!((held.len(), left.len()), (48, 252));
        }
    }

    #[test]
    fn answers_of_one_conversation_are_on_one_side_whatever_becomes_of_its_generation_prompt() {
        // The prompt ends with 8, for which later rows have 9.
        let row = |(number, turn): (u32, usize)| {
            let tokens = [[number, 8, 5].to_vec(), [number, 9, 5, 7, 8, 5].to_vec()];
            let tokens = tokens[turn].clone();
            let prompt = tokens.len() - 1;
            let loss_mask = (0..tokens.len()).map(|at| at >= prompt).collect();
            let name = format!("\"conversation {number}\"");
            let row = Row {
                content: Content::Tokens(Sample { tokens, loss_mask }),
                extra: vec![(CONVERSATION.into(), name)],
            };
            LocatedRow::new(Location::new("rows", number as usize), row)
        };
        let following = (0..300).flat_map(|number| [(number, 0), (number, 1)]);
        let apart = [0, 1].into_iter();
        let apart = apart.flat_map(|turn| (0..300).rev().map(move |number| (number, turn)));
        for rows in [following.collect::<Vec<_>>(), apart.collect()] {
            let rows: Vec<LocatedRow> = rows.into_iter().map(row).collect();
            let split = HeldOut::of(given(&rows), 0.1, (None, Unusable::Refuse)).unwrap();
            let numbers = |row: Result<LocatedRow>| row.unwrap().location.row;
            let held: BTreeSet<usize> = split.held(given(&rows)).map(numbers).collect();
            let left: BTreeSet<usize> = split.left(given(&rows)).map(numbers).collect();
            assert!(held.is_disjoint(&left), "{held:?}");
            // Of 600 prompts at least 96 are held out.
            assert_eq!((held.len(), left.len()), (48, 252));
        }
    }

    #[test]
    fn rows_without_the_name_of_a_conversation_are_not_of_one() {
        let row = |number: u32| {
            let row = Row {
                content: Content::Tokens(Sample {
                    tokens: vec![number, 5],
                    loss_mask: vec![false, true],
                }),
                extra: vec![(CONVERSATION.into(), "null".into())],
            };
            LocatedRow::new(Location::new("rows", number as usize), row)
        };
        let rows: Vec<LocatedRow> = (1..=1000).map(row).collect();
        let split = HeldOut::of(given(&rows), 0.1, (None, Unusable::Refuse)).unwrap();
        assert_eq!(split.prompts(), 100);
    }

    #[test]
    fn what_a_weight_passes_over_is_not_counted_and_not_held_out_but_joins_others() {
        let template = ChatTemplate::from_source(CHATML, None, None).unwrap();
        let with = || (Some(&template), Unusable::Refuse);
        let held = |rows: &[LocatedRow]| {
            let split = HeldOut::of(given(rows), 0.1, with()).unwrap();
            let held = split.held(given(rows)).map(|row| row.unwrap().row);
            let held: Vec<Row> = held.collect();
            assert_eq!((held.len(), held.len()), (split.rows(), split.prompts()));
            held
        };
        let taken = rows(&(0..1000).collect::<Vec<_>>());
        let mut all = taken.clone();
        all.extend(rows(&(500..5000).collect::<Vec<_>>()));
        for row in &mut all[1000..] {
            row.copies = 0;
        }
        let expected = held(&taken);
        assert_eq!((expected.len(), held(&all)), (100, expected));
        // Two that go on from the prompt of one that is passed over are on one side.
        let mut all = rows(&(0..300).collect::<Vec<_>>());
        let begun = all.clone();
        for row in &mut all {
            row.copies = 0;
        }
        let longer = |(row, end): (&LocatedRow, &str)| {
            let Content::Conversation(conversation) = &row.row.content else {
                panic!("no tokens were given");
            };
            let more = [Message::new("user", end), Message::new("assistant", "a")];
            let messages = [&conversation.messages[..], &more].concat();
            LocatedRow::new(row.location.clone(), Conversation::new(messages))
        };
        for end in ["one", "other"] {
            all.extend(begun.iter().map(|row| longer((row, end))));
        }
        let split = HeldOut::of(given(&all), 0.1, with()).unwrap();
        let number = |row: Result<LocatedRow>| row.unwrap().location.row;
        let held: Vec<usize> = split.held(given(&all)).map(number).collect();
        let once: BTreeSet<usize> = held.iter().copied().collect();
        assert_eq!((held.len(), once.len()), (96, 48), "{held:?}");
    }

    #[test]
    fn a_prompt_that_many_rows_go_on_from_takes_them_all_or_none() {
        let template = ChatTemplate::from_source(CHATML, None, None).unwrap();
        let located = |at: usize, messages: Vec<Message>| {
            LocatedRow::new(Location::new("rows", at + 1), Conversation::new(messages))
        };
        let greeting = || {
            vec![
                Message::new("user", "hi"),
                Message::new("assistant", "hello"),
            ]
        };
        let mut rows: Vec<LocatedRow> = rows(&(0..500).collect::<Vec<_>>());
        // Twice with other answers, and the beginning of as many rows as there are without.
        rows.push(located(500, greeting()));
        let mut other = greeting();
        other[1].content = "good day".into();
        rows.push(located(501, other));
        for at in 502..1000 {
            let more = [
                Message::new("user", format!("question {at}")),
                Message::new("assistant", "a"),
            ];
            rows.push(located(at, [greeting(), more.to_vec()].concat()));
        }
        for (share, expected) in [(0.1, 100), (0.2, 199)] {
            let split =
                HeldOut::of(given(&rows), share, (Some(&template), Unusable::Refuse)).unwrap();
            let held: Vec<usize> = split
                .held(given(&rows))
                .map(|row| row.unwrap().location.row)
                .collect();
            assert!(held.iter().all(|row| *row <= 500), "{held:?}");
            // Of 999 prompts.
            assert_eq!(held.len(), expected);
        }
        // A copy of a row is asked once.
        let twice: Vec<LocatedRow> = rows
            .iter()
            .flat_map(|row| [row.clone(), row.clone()])
            .collect();
        let split = HeldOut::of(given(&twice), 0.1, (Some(&template), Unusable::Refuse)).unwrap();
        assert_eq!(
            (split.rows(), split.held(given(&twice)).count()),
            (2 * split.prompts(), split.prompts())
        );
    }

    /// A row of so many turns about a question, with variables of its own.
    fn talk(at: usize, question: usize, variables: &Value, turns: usize) -> LocatedRow {
        let turn = |turn: usize| {
            let question = Message::new("user", format!("question {question} {turn}"));
            let answer = Message::new("assistant", format!("answer {turn}"));
            [question, answer]
        };
        let mut conversation = Conversation::new((0..turns).flat_map(turn).collect());
        conversation.variables = variables.as_object().unwrap().clone();
        LocatedRow::new(Location::new("rows", at + 1), conversation)
    }

    /// The places of the rows that are held out, and how many prompts there are of all, by a template that reads the variable `quiet`.
    fn held_by_variables(rows: &[LocatedRow]) -> (BTreeSet<usize>, usize) {
        let source = format!("{CHATML}{{% if quiet %}}!{{% endif %}}");
        let template = ChatTemplate::from_source(&source, None, None).unwrap();
        let with = (Some(&template), Unusable::Refuse);
        let split = HeldOut::of(given(rows), 0.1, with).unwrap();
        let numbers = |row: Result<LocatedRow>| row.unwrap().location.row - 1;
        let held: BTreeSet<usize> = split.held(given(rows)).map(numbers).collect();
        (held, split.prompts())
    }

    #[test]
    fn rows_with_variables_of_their_own_are_where_they_are_rendered_alike() {
        let [none, quiet, unread] = [json!({}), json!({"quiet": true}), json!({"other": true})];
        let pairs = |first: &Value, second: &Value| -> Vec<LocatedRow> {
            let pair = |question: usize| {
                let rows = [(2 * question, first), (2 * question + 1, second)];
                rows.map(|(at, variables)| talk(at, question, variables, 1))
            };
            (0..500).flat_map(pair).collect()
        };
        // One that the template does not read makes no other prompt of a question.
        let (rows, prompts) = held_by_variables(&pairs(&none, &unread));
        assert_eq!((rows.len(), prompts), (2 * 96, 96));
        assert!(rows.iter().all(|row| rows.contains(&(row ^ 1))));
        let (rows, prompts) = held_by_variables(&pairs(&none, &quiet));
        assert_eq!((rows.len(), prompts), (100, 100));
        assert!(!rows.iter().all(|row| rows.contains(&(row ^ 1))));
        // Nor does one that is read and changes nothing.
        let loud = json!({"quiet": false});
        let (rows, prompts) = held_by_variables(&pairs(&none, &loud));
        assert_eq!((rows.len(), prompts), (2 * 96, 96));
        assert!(rows.iter().all(|row| rows.contains(&(row ^ 1))));
    }

    #[test]
    fn what_goes_on_from_a_prompt_is_with_the_one_that_is_rendered_like_its_beginning() {
        let [none, quiet, loud] = [json!({}), json!({"quiet": true}), json!({"quiet": false})];
        for (first, second) in [(&none, &loud), (&loud, &none), (&quiet, &quiet)] {
            let pair = |question: usize| {
                let at = 2 * question;
                let short = talk(at, question, first, 1);
                [short, talk(at + 1, question, second, 2)]
            };
            let rows: Vec<LocatedRow> = (0..300).flat_map(pair).collect();
            let (rows, _) = held_by_variables(&rows);
            let is_paired = rows.iter().all(|row| rows.contains(&(row ^ 1)));
            assert!(is_paired, "{first} {second}");
        }
        let talks = |question: usize| {
            let at = 3 * question;
            [
                talk(at, question, &none, 1),
                talk(at + 1, question, &quiet, 1),
                talk(at + 2, question, &quiet, 2),
            ]
        };
        let rows: Vec<LocatedRow> = (0..300).flat_map(talks).collect();
        let (held, _) = held_by_variables(&rows);
        for question in 0..300 {
            let [short, long] = [1, 2].map(|at| held.contains(&(3 * question + at)));
            assert_eq!(short, long, "{question}");
        }
    }

    #[test]
    fn what_keys_say_of_how_an_answer_is_trained_on_is_not_said_in_it() {
        let template = ChatTemplate::from_source(CHATML, None, None).unwrap();
        // A conversation up to its second answer, of which that one alone is trained on, and the whole.
        let talk = |number: usize, turns: usize, extra: &serde_json::Value| {
            let turn = |turn: usize| {
                let question = Message::new("user", format!("question {number} {turn}"));
                let mut answer = Message::new("assistant", format!("answer {turn}"));
                if turn + 1 < turns {
                    answer.extra = extra.as_object().unwrap().clone();
                }
                [question, answer]
            };
            Conversation::new((0..turns).flat_map(turn).collect())
        };
        for extra in [
            serde_json::json!({"weight": 0}),
            serde_json::json!({"train": false, "training": false}),
            serde_json::json!({"truncated": true}),
        ] {
            let pair = |number: usize| {
                let begun = talk(number, 2, &extra);
                let whole = talk(number, 3, &serde_json::json!({}));
                let at = 2 * number;
                [(at, begun), (at + 1, whole)]
            };
            let rows = (0..300).flat_map(pair);
            let rows = rows.map(|(at, talk)| LocatedRow::new(Location::new("rows", at + 1), talk));
            let rows: Vec<LocatedRow> = rows.collect();
            let with = (Some(&template), Unusable::Refuse);
            let split = HeldOut::of(given(&rows), 0.1, with).unwrap();
            let held = split.held(given(&rows));
            let held: BTreeSet<usize> = held.map(|row| row.unwrap().location.row - 1).collect();
            assert!(!held.is_empty());
            assert!(held.iter().all(|row| held.contains(&(row ^ 1))), "{extra}");
        }
    }

    #[test]
    fn questions_behind_the_same_examples_are_apart() {
        let template = ChatTemplate::from_source(CHATML, None, None).unwrap();
        let row = |number: usize| {
            let messages = vec![
                Message::new("user", "an example"),
                Message::new("assistant", "its answer"),
                Message::new("user", format!("question {number}")),
                Message::new("assistant", "answer"),
            ];
            LocatedRow::new(
                Location::new("rows", number + 1),
                Conversation::new(messages),
            )
        };
        let rows: Vec<LocatedRow> = (0..1000).map(row).collect();
        let split = HeldOut::of(given(&rows), 0.1, (Some(&template), Unusable::Refuse)).unwrap();
        assert_eq!((split.rows(), split.prompts()), (100, 100));
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
        assert_eq!(counts, [0, 0, 1, 2, 20, 96, 200, 2000]);
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
