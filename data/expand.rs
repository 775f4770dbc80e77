//! Conversations as samples: one each, or one for each answer where a chat template rewrites what was said before.

use crate::conversation::{Conversation, Exchange, Sample};
use crate::error::Result;
use crate::mask::{Masking, tokenize};
use crate::prepare::settings::{PrepareSettings, Turns};
use crate::template::{ChatTemplate, GenerationPrompt};
use crate::tokenizer::Tokenizer;
use crate::turns::Conversed;

/// The samples of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Samples {
    /// Those that are made.
    pub(crate) made: Vec<Sample>,
    /// How many more there are, whose answers begin beyond the maximum length.
    pub(crate) beyond: usize,
}

impl Samples {
    /// A single one.
    pub(crate) fn one(sample: Sample) -> Self {
        Self {
            made: vec![sample],
            beyond: 0,
        }
    }
}

/// The samples of a conversation.
pub(crate) fn samples(
    conversation: &Conversation,
    (template, tokenizer): (&ChatTemplate, &Tokenizer),
    settings: &PrepareSettings,
) -> Result<Samples> {
    let messages = &conversation.messages;
    let answers: Vec<usize> = (0..messages.len())
        .filter(|&index| messages[index].is_assistant())
        .collect();
    let expands = settings.masking == Masking::Assistant
        && answers.len() > 1
        && match settings.turns {
            Turns::Joined => false,
            Turns::Expand => true,
            Turns::Auto => is_rewritten(conversation.into(), &answers, (template, tokenizer))?,
        };
    if !expands {
        return tokenize(conversation, template, tokenizer, settings.masking).map(Samples::one);
    }
    let mut made = Vec::with_capacity(answers.len());
    for (place, &answer) in answers.iter().enumerate() {
        let exchange = Exchange::from(conversation).first(answer + 1);
        let sample = tokenize(exchange, template, tokenizer, Masking::LastTurn)?;
        let prompt = sample.prompt().len();
        made.push(sample);
        // What was said before an answer is said before all later ones too, so these begin still later.
        if prompt > settings.max_length {
            return Ok(Samples {
                made,
                beyond: answers.len() - place - 1,
            });
        }
    }
    Ok(Samples { made, beyond: 0 })
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
    use crate::conversation::Message;
    use crate::prepare::settings::Overlong;
    use crate::template::tests::CHATML;
    use crate::tokenizer::Special;
    use crate::tokenizer::tests::small;
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
        let (template, tokenizer) = (
            ChatTemplate::from_source(source, None, None).unwrap(),
            small(),
        );
        let samples = samples(&dialogue(contents), (&template, &tokenizer), settings).unwrap();
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
        assert!(samples.made.len() < 10 && longest.unwrap() > expand.max_length);
    }
}
