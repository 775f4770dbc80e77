//! Conversations as samples: one each, or one for each answer where a chat template rewrites what was said before.

use crate::conversation::{Conversation, Exchange, Message, Sample};
use crate::error::Result;
use crate::mask::{Masking, OtherPrompt, Tokenized, tokenized};
use crate::prepare::category::Category;
use crate::prepare::settings::{PrepareSettings, Turns};
use crate::rows::Location;
use crate::template::{ChatTemplate, GenerationPrompt};
use crate::thought;
use crate::tokenizer::Tokenizer;
use crate::turns::Conversed;

/// The samples of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Samples {
    /// Those that are made.
    pub(crate) made: Vec<Sample>,
    /// The places among the messages of the answers that these are of, where each is of one; empty where a sample is of all answers.
    answers: Vec<usize>,
    /// How many more there are, whose answers begin beyond the maximum length.
    pub(crate) beyond: usize,
    /// Those of each sample that is made; see [`Tokenized::other_prompts`].
    pub(crate) other_prompts: Vec<Vec<OtherPrompt>>,
}

impl Samples {
    /// A single one.
    pub(crate) fn one(sample: Sample) -> Self {
        Self {
            made: vec![sample],
            answers: Vec::new(),
            beyond: 0,
            other_prompts: vec![Vec::new()],
        }
    }

    /// The answers of its conversation on which the sample of this number is to be trained, as messages and mask say; none where that is
    /// every token, whatever they say.
    pub(crate) fn trained_answers<'a>(
        &self,
        number: usize,
        messages: &'a [Message],
        masking: Masking,
    ) -> Vec<&'a Message> {
        let mut answers = match self.answers.get(number) {
            Some(&answer) => vec![&messages[answer]],
            None => masking.asked_answers(messages),
        };
        answers.retain(|answer| answer.is_trained_on());
        answers
    }
}

/// Counts those of a sample's answers behind other prompts than those of engines that begin within so many of its tokens, in the row
/// at a place.
pub(crate) fn add_other_prompts(
    (answers, taken): (&[OtherPrompt], usize),
    location: &Location,
    counted: &mut Category,
) {
    for answer in answers.iter().filter(|answer| answer.token < taken) {
        counted.add(format!("{location}: {}", answer.differs));
    }
}

/// The samples of a conversation.
pub(crate) fn samples(
    conversation: &Conversation,
    (template, tokenizer): (&ChatTemplate, &Tokenizer),
    settings: &PrepareSettings,
) -> Result<Samples> {
    let ended = thought::ended(conversation.into(), template);
    let exchange = thought::with(conversation.into(), ended.as_deref());
    let messages = exchange.messages;
    let answers: Vec<usize> = (0..messages.len())
        .filter(|&index| messages[index].is_assistant())
        .collect();
    let is_trained_on = |index: &&usize| messages[**index].is_trained_on();
    let trained: Vec<usize> = answers.iter().filter(is_trained_on).copied().collect();
    let expands = settings.masking == Masking::Assistant
        && answers.len() > 1
        && !trained.is_empty()
        && match settings.turns {
            Turns::Joined => false,
            Turns::Expand => true,
            Turns::Auto => is_rewritten(exchange, &trained, (template, tokenizer))?,
        };
    if !expands {
        let made = tokenized(exchange, (template, tokenizer), settings.masking)?;
        return Ok(Samples {
            other_prompts: vec![made.other_prompts],
            ..Samples::one(made.sample)
        });
    }
    each(exchange, &answers, (template, tokenizer), settings)
}

/// A sample for each of these answers that is trained on and begins within the maximum length.
fn each(
    exchange: Exchange<'_>,
    answers: &[usize],
    with: (&ChatTemplate, &Tokenizer),
    settings: &PrepareSettings,
) -> Result<Samples> {
    let messages = exchange.messages;
    let is_trained_on = |answer: &&usize| messages[**answer].is_trained_on();
    let wanted = answers.iter().filter(is_trained_on).count();
    let mut made = Vec::with_capacity(wanted);
    let mut of = Vec::with_capacity(wanted);
    let mut other_prompts = Vec::new();
    let mut is_beyond = false;
    for &answer in answers {
        let opens = opens_a_turn(&messages[..answer]);
        // Between two questions prompts only grow.
        is_beyond &= !opens;
        if is_beyond || !messages[answer].is_trained_on() {
            continue;
        }
        let Tokenized {
            sample,
            other_prompts: others,
        } = tokenized(exchange.first(answer + 1), with, Masking::LastTurn)?;
        is_beyond = sample.prompt().len() > settings.max_length;
        if !is_beyond {
            made.push(sample);
            of.push(answer);
            other_prompts.push(others);
        } else if opens {
            // The reasoning of earlier turns is gone by now. What is left stands before all later answers, too.
            break;
        }
    }
    let beyond = wanted - made.len();
    Ok(Samples {
        made,
        answers: of,
        beyond,
        other_prompts,
    })
}

/// Whether what is said last is a question of the user, to which templates show no reasoning of earlier turns. Qwen3 takes results of
/// tools for none, whoever says them.
fn opens_a_turn(said: &[Message]) -> bool {
    said.last().is_some_and(|last| {
        last.role == "user" && !last.content.trim_start().starts_with("<tool_response>")
    })
}

/// Whether the conversation up to one of its answers is rendered otherwise than it begins when rendered as a whole.
fn is_rewritten(
    exchange: Exchange<'_>,
    answers: &[usize],
    (template, tokenizer): (&ChatTemplate, &Tokenizer),
) -> Result<bool> {
    let text = template.render(exchange, GenerationPrompt::Without)?;
    let conversed = Conversed {
        exchange,
        text: &text,
        render: &|exchange, generation| template.render(exchange, generation),
        special: tokenizer.special_texts(),
    };
    conversed.is_rewritten(answers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prepare::settings::Overlong;
    use crate::template::tests::CHATML;
    use crate::tokenizer::Special;
    use crate::tokenizer::tests::small;
    use crate::turns::tests::LAST_SYSTEM;
    use crate::unusable::Unusable;

    /// Reasoning is kept in the last answer alone, as Qwen3 does.
    const REASONS: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n\
        {% if m.role == 'assistant' and not loop.last %}{{ m.content.split('</think>')[-1] }}\
        {% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

    fn dialogue(contents: &[&str]) -> Conversation {
        let roles = ["user", "assistant"].into_iter().cycle();
        let messages = contents.iter().zip(roles);
        Conversation::new(
            messages
                .map(|(content, role)| Message::new(role, *content))
                .collect(),
        )
    }

    fn settings(turns: Turns, masking: Masking) -> PrepareSettings {
        PrepareSettings {
            max_length: 100,
            overlong: Overlong::Drop,
            masking,
            turns,
            min_trained_tokens: 1,
            unusable: Unusable::Refuse,
            vocab: 320,
        }
    }

    /// Each sample's text, with what is trained on between brackets.
    fn shown(source: &str, contents: &[&str], settings: &PrepareSettings) -> Vec<String> {
        shown_of(source, &dialogue(contents), settings)
    }

    fn shown_of(
        source: &str,
        conversation: &Conversation,
        settings: &PrepareSettings,
    ) -> Vec<String> {
        let (template, tokenizer) = (
            ChatTemplate::from_source(source, None, None).unwrap(),
            small(),
        );
        let samples = samples(conversation, (&template, &tokenizer), settings).unwrap();
        let text = |tokens: &[u32]| tokenizer.decode(tokens, Special::Keep).unwrap();
        let show = |sample: &Sample| {
            let mut start = 0;
            let runs = sample.loss_mask.chunk_by(|one, two| one == two).map(|run| {
                let part = text(&sample.tokens[start..start + run.len()]);
                start += run.len();
                if run[0] { format!("[{part}]") } else { part }
            });
            runs.collect::<String>()
                .replace("<|im_start|>", "")
                .replace("<|im_end|>\n", ";")
                .replace("<|im_end|>", "")
        };
        samples.made.iter().map(show).collect()
    }

    #[test]
    fn an_answer_that_is_rewritten_later_gets_a_row_as_it_was_given() {
        let contents = ["a", "x</think>b", "c", "y</think>d", "e"];
        let expanded = [
            "user\na;assistant\n[x</think>b]\n",
            "user\na;assistant\nb;user\nc;assistant\n[y</think>d]\n",
        ];
        let auto = settings(Turns::Auto, Masking::Assistant);
        assert_eq!(shown(REASONS, &contents, &auto), expanded);
        let joined = settings(Turns::Joined, Masking::Assistant);
        assert_eq!(
            shown(REASONS, &contents, &joined),
            ["user\na;assistant\n[b]\nuser\nc;assistant\n[d]\nuser\ne;"]
        );
    }

    #[test]
    fn an_answer_to_a_question_that_is_rewritten_behind_it_gets_a_row_as_it_was_asked() {
        let mut messages = vec![Message::new("system", "s")];
        messages.extend(dialogue(&["a", "b", "c", "d"]).messages);
        let auto = settings(Turns::Auto, Masking::Assistant);
        let expanded = ["(s: a)[ b]", "(a) b(s: c)[ d]"];
        let found = shown_of(LAST_SYSTEM, &Conversation::new(messages.clone()), &auto);
        assert_eq!(found, expanded);
        // So do many, which are looked for in steps.
        let more = dialogue(&["e", "f"]).messages.into_iter().cycle();
        messages.extend(more.take(6));
        let found = shown_of(LAST_SYSTEM, &Conversation::new(messages), &auto);
        assert_eq!(found[..2], expanded);
        assert_eq!(found.len(), 5);
    }

    #[test]
    fn an_answer_that_is_only_context_gets_no_sample_of_its_own() {
        let with_context = |places: &[usize]| {
            let mut conversation = dialogue(&["a", "x</think>b", "c", "y</think>d"]);
            for &place in places {
                let extra = &mut conversation.messages[place].extra;
                extra.insert("weight".into(), 0.into());
            }
            conversation
        };
        let auto = settings(Turns::Auto, Masking::Assistant);
        let expand = settings(Turns::Expand, Masking::Assistant);
        for settings in [&auto, &expand] {
            let shown = |places: &[usize]| shown_of(REASONS, &with_context(places), settings);
            // The first one is rewritten where it is not the last.
            assert_eq!(shown(&[3]), ["user\na;assistant\n[x</think>b]\n"]);
            assert_eq!(
                shown(&[1]),
                ["user\na;assistant\nb;user\nc;assistant\n[y</think>d]\n"]
            );
            // It is there, so that it is counted.
            let none = "user\na;assistant\nb;user\nc;assistant\ny</think>d;";
            assert_eq!(shown(&[1, 3]), [none]);
        }
    }

    #[test]
    fn what_is_not_rewritten_stays_together_unless_asked_for() {
        let contents = ["a", "b", "c", "d"];
        let joined = ["user\na;assistant\n[b]\nuser\nc;assistant\n[d]\n"];
        for source in [CHATML, REASONS] {
            let auto = settings(Turns::Auto, Masking::Assistant);
            assert_eq!(shown(source, &contents, &auto), joined, "{source}");
        }
        let expand = settings(Turns::Expand, Masking::Assistant);
        assert_eq!(
            shown(CHATML, &contents, &expand),
            [
                "user\na;assistant\n[b]\n",
                "user\na;assistant\nb;user\nc;assistant\n[d]\n"
            ]
        );
    }

    #[test]
    fn other_masks_are_of_the_whole_conversation() {
        let contents = ["a", "x</think>b", "c", "y</think>d"];
        let last = settings(Turns::Auto, Masking::LastTurn);
        assert_eq!(
            shown(REASONS, &contents, &last),
            ["user\na;assistant\nb;user\nc;assistant\n[y</think>d]\n"]
        );
        assert_eq!(
            shown(REASONS, &contents, &settings(Turns::Auto, Masking::All)).len(),
            1
        );
    }

    #[test]
    fn a_long_conversation_is_not_expanded_beyond_the_maximum_length() {
        let (template, tokenizer) = (
            ChatTemplate::from_source(CHATML, None, None).unwrap(),
            small(),
        );
        let contents = ["the cat sat on the mat"; 400];
        let expand = settings(Turns::Expand, Masking::Assistant);
        let samples = samples(&dialogue(&contents), (&template, &tokenizer), &expand).unwrap();
        assert_eq!(samples.made.len() + samples.beyond, 200);
        let longest = samples
            .made
            .iter()
            .map(|sample| sample.prompt().len())
            .max();
        assert!(samples.made.len() < 10 && longest.unwrap() <= expand.max_length);
    }

    /// Reasoning is shown from the last question on, as Qwen3 does within a loop of tools.
    const REASONS_IN_LOOP: &str = "{% set ns = namespace(last=0) %}{% for m in messages %}\
        {% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}\
        {% for m in messages %}<|im_start|>{{ m.role }}\n\
        {% if m.role == 'assistant' and loop.index0 < ns.last %}{{ m.content.split('</think>')[-1] }}\
        {% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}\
        {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

    #[test]
    fn an_answer_behind_long_reasoning_of_an_earlier_turn_is_made() {
        let reasoning = format!("{}</think>call", "the cat sat on the mat ".repeat(100));
        let said = [
            ("user", "a"),
            ("assistant", reasoning.as_str()),
            ("tool", "result"),
            ("assistant", "b"),
            ("tool", "result"),
            ("assistant", "c"),
            ("user", "d"),
            ("assistant", "e"),
        ];
        let messages = said.map(|(role, content)| Message::new(role, content));
        let (template, tokenizer) = (
            ChatTemplate::from_source(REASONS_IN_LOOP, None, None).unwrap(),
            small(),
        );
        let auto = PrepareSettings {
            max_length: 200,
            ..settings(Turns::Auto, Masking::Assistant)
        };
        let conversation = Conversation::new(messages.to_vec());
        let samples = samples(&conversation, (&template, &tokenizer), &auto).unwrap();
        assert_eq!((samples.made.len(), samples.beyond), (2, 2));
        let answer = |number| {
            let messages = &conversation.messages;
            samples.trained_answers(number, messages, Masking::Assistant)
        };
        assert_eq!(answer(0), [&conversation.messages[1]]);
        assert_eq!(answer(1), [&conversation.messages[7]]);
        let text = |sample: &Sample| tokenizer.decode(&sample.tokens, Special::Keep).unwrap();
        assert!(text(&samples.made[0]).contains("</think>call"));
        let last = text(&samples.made[1]);
        assert!(
            last.ends_with("e<|im_end|>\n") && !last.contains("</think>"),
            "{last}"
        );
    }
}
