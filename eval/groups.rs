//! Acceptance broken down: by the labels of prompts, by their length and turn, by the place in the output, and by whether
//! the target is thinking.
//!
//! The prompts or passes of a column's groups are those of the whole setting, each in one group. Intervals are over
//! conversations.
use std::collections::BTreeMap;
use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::bootstrap::bootstrap;
use crate::counts::Counts;
use crate::interval::with_interval;
use crate::prompts::{Answer, Prompt, PromptSet, conversations};
use crate::speculate::PassRecord;

/// What prompts without a label that others have are called.
const UNLABELLED: &str = "none";
/// The last token of each range of places in the output but the last, whose end is open.
const PLACES: [usize; 4] = [64, 256, 1024, 4096];
/// The longest prompts that are in one range.
const SHORTEST: usize = 32;
/// What stands in a cell of a table.
const FIGURES: &str = "τ (prompts, tokens)";

/// Acceptance over some of the prompts or passes of a setting.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GroupReport {
    /// What they have in common.
    pub name: String,
    /// Prompts, each turn of a conversation being one; in columns of passes those with such passes.
    pub prompts: u64,
    /// Decoding passes of the target.
    pub passes: u64,
    /// Tokens that these emitted.
    pub tokens: u64,
    /// Mean acceptance length τ, `tokens / passes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tau: Option<f64>,
    /// Its 95 % interval over conversations, where it is of several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tau_ci95: Option<[f64; 2]>,
    /// Acceptance rate α of the draft steps judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alpha: Option<f64>,
}

/// The groups of a setting by the column that they are of: `category`, `language`, `prompt_length` (tokens), `turn`,
/// `position` (in the output, of the first token of a pass) and `part` (`thinking` or `answer`).
pub type Groups = BTreeMap<String, Vec<GroupReport>>;

/// The tokens that begin and end what the target thinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Thinking {
    /// `<think>`.
    pub begins: u32,
    /// `</think>`.
    pub ends: u32,
}

impl Thinking {
    /// How many tokens of an answer are thought, with the one that ends it.
    fn thought(self, answer: &Answer) -> usize {
        let output = &answer.generation.tokens;
        if let Some(end) = output.iter().rposition(|&token| token == self.ends) {
            return end + 1;
        }
        // Cut off while it thinks; chat templates may have opened it in the prompt.
        let text = [&answer.prompt[..], output].concat();
        let last = text
            .iter()
            .rfind(|token| [self.begins, self.ends].contains(token));
        if last == Some(&self.begins) {
            output.len()
        } else {
            0
        }
    }
}

/// Breaks down what each set of prompts was answered. Columns of which all is in one group are left out, but for labels.
pub(crate) fn groups(
    sets: &[PromptSet],
    answers: &[Vec<Answer>],
    thinking: Option<Thinking>,
    seed: u64,
) -> Groups {
    let all = All { sets, answers };
    let label = |of: fn(&Prompt) -> Option<&String>| {
        let mut prompts = sets.iter().flat_map(|set| &set.prompts);
        prompts.any(|prompt| of(prompt).is_some()).then(|| {
            all.by_prompt(|prompt, _| of(prompt).map_or(UNLABELLED, String::as_str).to_owned())
        })
    };
    let several = |table: Table| (table.0.len() > 1).then_some(table);
    let columns = [
        ("category", label(|prompt| prompt.category.as_ref())),
        ("language", label(|prompt| prompt.language.as_ref())),
        (
            "prompt_length",
            several(
                all.by_prompt(|_, answer| length(answer.prompt.len()))
                    .ascending(),
            ),
        ),
        (
            "turn",
            several(
                all.by_prompt(|_, answer| (1 + answer.turn).to_string())
                    .ascending(),
            ),
        ),
        (
            "position",
            several(all.by_pass(|_| (), |_, at| place(at)).ascending()),
        ),
        (
            "part",
            thinking.and_then(|tokens| {
                let part = |&thought: &usize, at| if at < thought { "thinking" } else { "answer" };
                several(all.by_pass(
                    |answer| tokens.thought(answer),
                    |thought, at| part(thought, at).to_owned(),
                ))
            }),
        ),
    ];
    let found = columns
        .into_iter()
        .filter_map(|(column, table)| Some((column, table?)));
    found
        .map(|(column, table)| (column.to_owned(), table.reports(seed)))
        .collect()
}

/// The range of powers of two that a prompt's length is in, as `65–128`.
fn length(tokens: usize) -> String {
    if tokens <= SHORTEST {
        return format!("1–{SHORTEST}");
    }
    let end = tokens.next_power_of_two();
    format!("{}–{end}", end / 2 + 1)
}

/// The range that a place in the output, counted from 0, is in.
fn place(at: usize) -> String {
    let number = at + 1;
    let place = PLACES.partition_point(|&end| end < number);
    let start = place.checked_sub(1).map_or(1, |before| PLACES[before] + 1);
    match PLACES.get(place) {
        Some(end) => format!("{start}–{end}"),
        None => format!("from {start}"),
    }
}

/// The answers to all sets.
struct All<'a> {
    sets: &'a [PromptSet],
    answers: &'a [Vec<Answer>],
}

impl All<'_> {
    /// Calls `each` with all answers and the conversation that they belong to.
    fn each(&self, mut each: impl FnMut(usize, &Prompt, &Answer)) {
        let sets = self.sets.iter().zip(self.answers);
        let all = sets.flat_map(|(set, answers)| {
            conversations(answers).map(move |turns| (&set.prompts[turns[0].conversation], turns))
        });
        for (cluster, (prompt, turns)) in all.enumerate() {
            turns
                .iter()
                .for_each(|answer| each(cluster, prompt, answer));
        }
    }

    fn by_prompt(&self, name: impl Fn(&Prompt, &Answer) -> String) -> Table {
        let mut table = Table::default();
        self.each(|cluster, prompt, answer| {
            let group = table.group(name(prompt, answer));
            group.prompts += 1;
            group.add(cluster, &answer.generation.passes);
        });
        table
    }

    /// `name` is called with what `of` says of the answer and the place in the output of the first token of each pass, from 0.
    fn by_pass<T>(&self, of: impl Fn(&Answer) -> T, name: impl Fn(&T, usize) -> String) -> Table {
        let mut table = Table::default();
        self.each(|cluster, _, answer| {
            let of = of(answer);
            // The first token comes from the prompt's pass.
            let mut at = 1;
            let mut seen = Vec::new();
            for pass in &answer.generation.passes {
                let name = name(&of, at);
                let group = table.group(name.clone());
                group.add(cluster, std::slice::from_ref(pass));
                if !seen.contains(&name) {
                    group.prompts += 1;
                    seen.push(name);
                }
                at += pass.emitted;
            }
        });
        table
    }
}

/// The groups of a column, by their names.
#[derive(Default)]
struct Table(Vec<(String, Group)>);

impl Table {
    fn group(&mut self, name: String) -> &mut Group {
        let known = self.0.iter().position(|(known, _)| *known == name);
        let at = known.unwrap_or_else(|| {
            self.0.push((name, Group::default()));
            self.0.len() - 1
        });
        &mut self.0[at].1
    }

    /// By the first number in their names.
    fn ascending(mut self) -> Self {
        self.0.sort_by_key(|(name, _)| {
            let digits = name.trim_start_matches(|letter: char| !letter.is_ascii_digit());
            let end = digits.find(|letter: char| !letter.is_ascii_digit());
            digits[..end.unwrap_or(digits.len())].parse::<usize>().ok()
        });
        self
    }

    fn reports(self, seed: u64) -> Vec<GroupReport> {
        let groups = self.0.into_iter();
        groups
            .map(|(name, group)| group.report(name, seed))
            .collect()
    }
}

#[derive(Default)]
struct Group {
    prompts: u64,
    accepted: u64,
    tested: u64,
    /// Each conversation with what was counted in it.
    clusters: Vec<(usize, Counts)>,
}

impl Group {
    fn add(&mut self, cluster: usize, passes: &[PassRecord]) {
        let sum = |count: fn(&PassRecord) -> usize| passes.iter().map(count).sum::<usize>() as u64;
        self.accepted += sum(|pass| pass.accepted);
        self.tested += sum(|pass| pass.tested);
        if self
            .clusters
            .last()
            .is_none_or(|(last, _)| *last != cluster)
        {
            self.clusters.push((cluster, Counts::default()));
        }
        if let Some((_, counts)) = self.clusters.last_mut() {
            counts.tokens += sum(|pass| pass.emitted) as f64;
            counts.passes += passes.len() as f64;
        }
    }

    fn report(self, name: String, seed: u64) -> GroupReport {
        let all: Counts = self.clusters.iter().map(|(_, counts)| *counts).sum();
        let pooled = |drawn: &[&(usize, Counts)]| {
            drawn
                .iter()
                .map(|(_, counts)| *counts)
                .sum::<Counts>()
                .tau()
        };
        // Of one conversation nobody knows how others are.
        let several = self.clusters.len() > 1;
        GroupReport {
            name,
            prompts: self.prompts,
            passes: all.passes as u64,
            tokens: all.tokens as u64,
            tau: all.tau(),
            tau_ci95: several
                .then(|| bootstrap(&self.clusters, seed, pooled))
                .flatten(),
            alpha: (self.tested > 0).then(|| self.accepted as f64 / self.tested as f64),
        }
    }
}

/// Tables of τ, one for each column that any setting was broken down by, with prompts and tokens, in a column for each setting
/// under its heading.
pub(crate) fn tables<'a>(settings: &[(String, &'a Groups)]) -> String {
    let mut text = String::new();
    let columns = settings.iter().flat_map(|(_, groups)| groups.keys());
    let columns: std::collections::BTreeSet<&String> = columns.collect();
    for column in columns {
        let of = |groups: &'a Groups| groups.get(column).map_or(&[][..], Vec::as_slice);
        let mut rows: Vec<&GroupReport> = Vec::new();
        for group in settings.iter().flat_map(|(_, groups)| of(groups)) {
            if rows.iter().all(|row| row.name != group.name) {
                rows.push(group);
            }
        }
        let headings: Vec<&str> = settings.iter().map(|(name, _)| name.as_str()).collect();
        let rule = "---|".repeat(headings.len());
        _ = write!(
            text,
            "\n| {} | {FIGURES}: {} |\n|---|{rule}\n",
            column.replace('_', " "),
            headings.join(&format!(" | {FIGURES}: "))
        );
        for row in rows {
            let figure = |(_, groups): &(String, &'a Groups)| {
                let found = of(groups).iter().find(|group| group.name == row.name);
                let Some(group) = found else {
                    return with_interval(None, None);
                };
                let tau = with_interval(group.tau, group.tau_ci95);
                format!("{tau} ({}, {})", group.prompts, group.tokens)
            };
            let figures: Vec<String> = settings.iter().map(figure).collect();
            let name = row.name.replace('|', "\\|");
            _ = writeln!(text, "| {name} | {} |", figures.join(" | "));
        }
    }
    text
}

#[cfg(test)]
mod tests;
