//! Acceptance by what the target's token is at each place: where a drafter is good, and where it guesses.
use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::bootstrap::bootstrap;
use crate::interval::with_interval;
use crate::prompts::{Answer, conversations};

/// What stands for the part of a character that a token of bytes is.
const BROKEN: char = '\u{fffd}';

/// Kinds of tokens, by the text that they add.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TokenClass {
    /// White space, then letters first.
    WordStart,
    /// Letters first: the rest of a word, or a word with no space before it.
    WordContinuation,
    /// Letters of a script that is written without spaces, such as Chinese, Japanese or Thai.
    Unspaced,
    /// Digits and other numerals, with or without a space.
    Number,
    /// Neither letters nor numerals, with or without a space: punctuation and symbols.
    Punctuation,
    /// White space with a line break.
    LineBreak,
    /// White space without one.
    Space,
    /// A part of a character.
    Bytes,
    /// A token that stands for no text, such as the end of a turn.
    Special,
    /// What begins with a sign and goes on with letters or numerals, such as `(x`, and all else.
    Other,
}

impl TokenClass {
    /// All, in the order of reports.
    pub const ALL: [Self; 10] = [
        Self::WordStart,
        Self::WordContinuation,
        Self::Unspaced,
        Self::Number,
        Self::Punctuation,
        Self::LineBreak,
        Self::Space,
        Self::Bytes,
        Self::Special,
        Self::Other,
    ];

    /// That of a token which adds this text.
    pub fn of(text: &str) -> Self {
        let core = text.trim();
        let Some(first) = core.chars().next() else {
            return match text {
                "" => Self::Other,
                _ if text.contains(['\n', '\r']) => Self::LineBreak,
                _ => Self::Space,
            };
        };
        if text.contains(BROKEN) {
            Self::Bytes
        } else if core.chars().all(char::is_numeric) {
            Self::Number
        } else if !core.chars().any(char::is_alphanumeric) {
            Self::Punctuation
        } else if is_unspaced(first) {
            Self::Unspaced
        } else if !first.is_alphabetic() {
            Self::Other
        } else if text.starts_with(char::is_whitespace) {
            Self::WordStart
        } else {
            Self::WordContinuation
        }
    }

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::WordStart => "word start",
            Self::WordContinuation => "word continuation",
            Self::Unspaced => "unspaced script",
            Self::Number => "number",
            Self::Punctuation => "punctuation",
            Self::LineBreak => "line break",
            Self::Space => "space",
            Self::Bytes => "part of a character",
            Self::Special => "special",
            Self::Other => "other",
        }
    }
}

/// Whether words of this letter's script are not set apart: Thai to Burmese, Khmer, kana, Han.
fn is_unspaced(letter: char) -> bool {
    matches!(letter,
        '\u{e00}'..='\u{eff}'
        | '\u{1000}'..='\u{109f}'
        | '\u{1780}'..='\u{17ff}'
        | '\u{3005}'..='\u{3007}'
        | '\u{3040}'..='\u{30ff}'
        | '\u{3400}'..='\u{4dbf}'
        | '\u{4e00}'..='\u{9fff}'
        | '\u{f900}'..='\u{faff}'
        | '\u{20000}'..='\u{3ffff}')
}

/// The class of each token, by its id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenClasses(Vec<TokenClass>);

impl FromIterator<TokenClass> for TokenClasses {
    fn from_iter<T: IntoIterator<Item = TokenClass>>(classes: T) -> Self {
        Self(classes.into_iter().collect())
    }
}

impl TokenClasses {
    /// That of a token; [`TokenClass::Other`] of one that is not known.
    fn of(&self, token: u32) -> TokenClass {
        let known = self.0.get(token as usize).copied();
        known.unwrap_or(TokenClass::Other)
    }
}

/// Acceptance of the steps at which the target's token is of one class.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ClassReport {
    /// The class.
    pub name: String,
    /// Draft steps that were judged.
    pub judged: u64,
    /// Those that were accepted.
    pub accepted: u64,
    /// Acceptance rate α, `accepted / judged`.
    pub alpha: f64,
    /// Its 95 % interval over conversations, where there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alpha_ci95: Option<[f64; 2]>,
}

/// Accepted and judged steps by class, of one conversation.
type Counts = [[u64; 2]; TokenClass::ALL.len()];

/// Acceptance by class over the answers to all sets, of classes with a step that was judged.
pub(crate) fn by_class(
    answers: &[Vec<Answer>],
    classes: &TokenClasses,
    seed: u64,
) -> Vec<ClassReport> {
    let all = answers.iter().flat_map(|answers| conversations(answers));
    let counts: Vec<Counts> = all.map(|turns| count(turns, classes)).collect();
    let of = |class: TokenClass| {
        let at = class as usize;
        let sum = |which: usize| counts.iter().map(|counts| counts[at][which]).sum::<u64>();
        let (accepted, judged) = (sum(0), sum(1));
        // Of one conversation nobody knows how others are.
        let held = counts.iter().filter(|counts| counts[at][1] > 0).count();
        let interval = (held > 1).then(|| bootstrap(&counts, seed, |drawn| rate(drawn, at)));
        (judged > 0).then(|| ClassReport {
            name: class.name().into(),
            judged,
            accepted,
            alpha: accepted as f64 / judged as f64,
            alpha_ci95: interval.flatten(),
        })
    };
    TokenClass::ALL.into_iter().filter_map(of).collect()
}

fn rate(drawn: &[&Counts], class: usize) -> Option<f64> {
    let sum = |which: usize| drawn.iter().map(|counts| counts[class][which]).sum::<u64>();
    let (accepted, judged) = (sum(0), sum(1));
    (judged > 0).then(|| accepted as f64 / judged as f64)
}

/// A pass behind `at` tokens emits the accepted ones and one more, which stands where the step was rejected, if one was. The last
/// token of an output is left out: kept, it counts as the bonus token and as no step, so that it would only count where it was
/// rejected.
fn count(turns: &[Answer], classes: &TokenClasses) -> Counts {
    let mut counts = Counts::default();
    for turn in turns {
        let output = &turn.generation;
        // The first token comes from the prompt's pass.
        let mut at = 1;
        for pass in &output.passes {
            let judged = pass.tested.min(output.tokens.len() - 1 - at);
            for (step, &token) in output.tokens[at..].iter().take(judged).enumerate() {
                let [accepted, judged] = &mut counts[classes.of(token) as usize];
                *accepted += u64::from(step < pass.accepted);
                *judged += 1;
            }
            at += pass.emitted;
        }
    }
    counts
}

/// A table of α by class, with the steps judged, in a column for each setting under its heading. Nothing where no setting has
/// classes.
pub(crate) fn table(settings: &[(String, &[ClassReport])]) -> String {
    let found = |name: &str, classes: &[ClassReport]| {
        classes.iter().find(|class| class.name == name).cloned()
    };
    let mut rows = String::new();
    for class in TokenClass::ALL {
        let known: Vec<Option<ClassReport>> = settings
            .iter()
            .map(|(_, classes)| found(class.name(), classes))
            .collect();
        if known.iter().all(Option::is_none) {
            continue;
        }
        let cell = |class: &Option<ClassReport>| match class {
            Some(class) => {
                let alpha = with_interval(Some(class.alpha), class.alpha_ci95);
                format!("{alpha} ({})", class.judged)
            }
            None => with_interval(None, None),
        };
        let cells: Vec<String> = known.iter().map(cell).collect();
        _ = writeln!(rows, "| {} | {} |", class.name(), cells.join(" | "));
    }
    if rows.is_empty() {
        return rows;
    }
    let headings: Vec<&str> = settings.iter().map(|(name, _)| name.as_str()).collect();
    let rule = "---|".repeat(headings.len());
    format!(
        "\n| token of the target | α (steps judged): {} |\n|---|{rule}\n{rows}",
        headings.join(" | α (steps judged): ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::speculate::{Generation, PassRecord};

    #[test]
    fn texts_have_the_class_of_what_they_are() {
        use TokenClass::*;
        for (text, class) in [
            (" the", WordStart),
            ("\tübung", WordStart),
            ("ing", WordContinuation),
            ("x1", WordContinuation),
            ("東京", Unspaced),
            (" ไทย", Unspaced),
            ("한국", WordContinuation),
            ("42", Number),
            (" ٣", Number),
            ("½", Number),
            (");\n", Punctuation),
            (" =", Punctuation),
            ("🦀", Punctuation),
            ("\n\n    ", LineBreak),
            ("    ", Space),
            ("\u{fffd}", Bytes),
            (" \u{fffd}", Bytes),
            ("(self", Other),
            ("_1", Other),
            ("", Other),
        ] {
            assert_eq!(TokenClass::of(text), class, "{text:?}");
        }
        let places = TokenClass::ALL.iter().enumerate();
        assert!(places.into_iter().all(|(at, &class)| class as usize == at));
    }

    fn answer(conversation: usize, tokens: &[u32], passes: &[[usize; 3]]) -> Answer {
        let pass = |&[drafted, tested, accepted]: &[usize; 3]| PassRecord {
            drafted,
            depth: drafted,
            tested,
            accepted,
            emitted: accepted + 1,
            ..PassRecord::default()
        };
        Answer {
            conversation,
            turn: 0,
            prompt: vec![0],
            generation: Generation {
                tokens: tokens.to_vec(),
                passes: passes.iter().map(pass).collect(),
                ..Generation::default()
            },
        }
    }

    #[test]
    fn a_step_is_counted_at_the_targets_token_whether_it_was_kept_or_not() {
        let classes: TokenClasses = [" a", "1", "b"].map(TokenClass::of).into_iter().collect();
        // The first token is of no pass. Of the first one a word and a number are kept and a word is not; of the second a number
        // is not; the third has no draft; of the fourth all is kept, and the bonus token was not judged.
        let one = answer(
            0,
            &[1, 0, 1, 0, 1, 2, 0, 2],
            &[[3, 3, 2], [3, 1, 0], [0, 0, 0], [1, 1, 1]],
        );
        // The end of an output is no step, kept or not.
        let two = answer(1, &[0, 7, 0, 2], &[[1, 1, 1], [1, 1, 0]]);
        let found = by_class(&[vec![one], vec![two]], &classes, 1);
        let named: Vec<_> = found
            .iter()
            .map(|class| (&*class.name, class.judged, class.accepted))
            .collect();
        assert_eq!(
            named,
            [("word start", 3, 2), ("number", 2, 1), ("other", 1, 1)]
        );
        assert_eq!(found[1].alpha, 0.5);
        assert_eq!(found[1].alpha_ci95, None);
        // The steps of a setting are its own.
        let warm = [ClassReport {
            judged: 9,
            ..found[1].clone()
        }];
        let text = table(&[("T=0".into(), &found), ("T=1".into(), &warm)]);
        let expected = "
| token of the target | α (steps judged): T=0 | α (steps judged): T=1 |
|---|---|---|
| word start | 0.67 (3) | – |
| number | 0.50 (2) | 0.50 (9) |
| other | 1.00 (1) | – |
";
        assert_eq!(text, expected);
        assert_eq!(table(&[("T=0".into(), &[])]), "");
    }
}
