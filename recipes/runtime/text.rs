//! Conversations as a target's tokens.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow};
use serde_json::{Map, json};
use spectrain_data::Error;
use spectrain_data::conversation::{Content, Sample};
use spectrain_data::in_order::threads;
use spectrain_data::lint::{DRAFT_VOCABULARIES, LintReport, Linter, lint};
use spectrain_data::mask;
use spectrain_data::prepare::{Preparation, PrepareReport, PrepareSettings, check_tokens};
use spectrain_data::prompts::Asked;
use spectrain_data::roles::Roles;
use spectrain_data::rows::{LocatedRow, read_rows};
use spectrain_data::template::ChatTemplate;
use spectrain_data::tokenizer::Tokenizer;
use spectrain_data::tokens::TokenWriter;
use spectrain_data::unusable::Unusable;

use spectrain_eval::{Later, Prompt};

use crate::recipe::tables::DataTable;
use crate::runtime::conversation::{LaterTurns, Renderer};
use crate::runtime::interruption::{check_interrupted, interrupted};
use crate::runtime::prompts::without_prompt;
use crate::runtime::target::{self, TEMPLATE_VARIABLES};

/// Tokens of one shard.
const TOKENS_PER_SHARD: usize = 4_000_000;

/// Rows of each set that are linted where they are prepared: tokenising everything twice would double the time.
pub(crate) const LINTED_ROWS: usize = 20_000;

/// Rows, whatever they come from.
pub(crate) type RowsOf<'a> = Box<dyn Iterator<Item = spectrain_data::Result<LocatedRow>> + 'a>;

/// What turns conversations into tokens.
pub struct Text {
    /// The target's.
    pub tokenizer: Tokenizer,
    /// The recipe's, else the target's, if it has one.
    pub template: Option<ChatTemplate>,
    /// What a sample must be.
    pub settings: PrepareSettings,
}

/// Evaluation prompts.
#[derive(Default)]
pub struct Prompts {
    /// Those that are not too long.
    pub prompts: Vec<Prompt>,
    /// How many were left out.
    pub too_long: usize,
    /// Rows of tokens that are trained on from their first token, so that nothing of them is a prompt.
    pub all_trained: usize,
    /// The roles of all their messages.
    pub roles: Roles,
}

impl Prompts {
    /// That there is none of at most so many tokens, and why.
    fn lack(&self, longest: usize) -> anyhow::Error {
        match without_prompt("rows", self.all_trained) {
            Some(told) if self.too_long == 0 => anyhow!(
                "it holds no prompt; {told}; expected conversations, or tokens whose mask begins with 0"
            ),
            _ => anyhow!("it holds no prompt of at most {longest} tokens"),
        }
    }
}

/// What is said where texts may be longer, by the key or option `longest_by`, than the positions that the target was made for.
pub(crate) fn longer_texts(longest_by: &str, longest: usize, positions: usize) -> Option<String> {
    (longest > positions).then(|| {
        format!(
            "`{longest_by}` is {longest}, but the target's `max_position_embeddings` is {positions}: in longer texts the target \
             computes with positions that it was not made for, and prompts of that length are not decoded"
        )
    })
}

impl Text {
    /// Reads tokenizer and template of the target in `folder`. To the template it is the day that `data` names, or else today.
    pub fn of(folder: &Path, data: &DataTable) -> Result<Self> {
        let (tokenizer, template) =
            target::text(folder, data.template.as_deref(), &data.template_variables)?;
        let template = template.map(|template| match data.date {
            Some(day) => template.at(day.begin()),
            None => template,
        });
        let settings = PrepareSettings {
            max_length: data.max_length,
            overlong: data.overlong,
            masking: data.mask,
            turns: data.turns,
            min_trained_tokens: data.min_trained_tokens,
            unusable: data.unusable,
            vocab: target::spec(folder)?.vocab,
        };
        Ok(Self {
            tokenizer,
            template,
            settings,
        })
    }

    /// The tokens at which the target in `folder` stops; one without weights does at the token that ends a text.
    pub(crate) fn stop_tokens(&self, folder: &Path) -> Vec<u32> {
        target::stop_tokens_in(folder).unwrap_or_else(|_| {
            let eos = self.tokenizer.eos_token();
            let token = eos.and_then(|eos| self.tokenizer.token_id(eos));
            token.into_iter().collect()
        })
    }

    /// What is said where the target in `folder` has no stop token.
    pub(crate) fn endless(&self, folder: &Path) -> Option<String> {
        let stops = target::stop_tokens_by_text(folder).ok()?;
        stops.is_empty().then(|| {
            "the target has no stop token, so its texts end at their greatest length alone: expected `eos_token_id` in its \
             `generation_config.json` or `config.json`, or `eos_token` in its `tokenizer_config.json`"
                .to_owned()
        })
    }

    /// How rows become samples.
    pub(crate) fn preparation(&self) -> Preparation<'_> {
        Preparation {
            template: self.template.as_ref(),
            tokenizer: &self.tokenizer,
            settings: &self.settings,
        }
    }

    /// Writes the token shards of the rows of a file, folder or pattern to `folder`.
    pub fn write_file(&self, data: &Path, folder: &Path) -> Result<PrepareReport> {
        self.write(Box::new(read_rows(data)?), folder, &mut |_| Ok(()))
            .with_context(|| format!("cannot prepare `{}`", data.display()))
    }

    /// Writes the token shards of rows to `folder`; `sample` is called with each sample in them.
    pub(crate) fn write(
        &self,
        rows: RowsOf<'_>,
        folder: &Path,
        sample: &mut dyn FnMut(&Sample) -> spectrain_data::Result<()>,
    ) -> Result<PrepareReport> {
        let mut writer = TokenWriter::create(folder, TOKENS_PER_SHARD)?;
        let report = self.preparation().prepare(
            rows.take_while(|_| !interrupted()),
            threads(),
            &mut |kept| {
                writer.push(&kept)?;
                sample(&kept)
            },
        );
        check_interrupted()?;
        let report = report?;
        let mut extra = Map::new();
        extra.insert("tokenizer".into(), json!(self.tokenizer.fingerprint()));
        extra.insert("settings".into(), json!(self.settings));
        let variables = self.template.as_ref().map(ChatTemplate::variables);
        extra.insert(TEMPLATE_VARIABLES.into(), json!(variables));
        writer.finish(extra)?;
        Ok(report)
    }

    /// What is wrong with the first rows that are trained on and evaluated with, of the target in `folder`.
    pub(crate) fn lint(&self, folder: &Path, sets: [RowsOf<'_>; 2]) -> Result<LintReport> {
        let linter = Linter {
            template: self.template.as_ref(),
            tokenizer: &self.tokenizer,
            settings: &self.settings,
            stop_tokens: &self.stop_tokens(folder),
            draft_vocabularies: &DRAFT_VOCABULARIES,
            shown: 2,
            lists_rows: false,
        };
        let [train, eval] = sets.map(|rows| rows.take(LINTED_ROWS).take_while(|_| !interrupted()));
        let report = lint(train, eval, &linter);
        check_interrupted()?;
        Ok(report?)
    }

    /// Fails where there is no prompt among rows; of more than `most` rows nothing is known where there is none in the first of them.
    pub(crate) fn check_prompts(&self, rows: RowsOf<'_>, most: usize) -> Result<()> {
        let unusable = self.settings.unusable;
        let mut prompts = Prompts::default();
        let mut renderer = None;
        for (number, row) in unusable.without(rows).enumerate() {
            if number == most {
                return Ok(());
            }
            self.add(row?.into(), &mut prompts, (unusable, &mut renderer))?;
            if !prompts.prompts.is_empty() {
                return Ok(());
            }
        }
        Err(prompts.lack(self.settings.max_length))
    }

    /// The prompts of rows that were made samples: each conversation up to its last answer. What cannot be used was counted then.
    pub(crate) fn prompts(&self, rows: RowsOf<'_>) -> Result<Prompts> {
        let rows = rows.map(|row| row.map(Asked::from));
        self.asked_with(rows, self.settings.unusable)
    }

    /// The same of rows of which it is known what is asked. Prompts count by their first turn for being too long.
    pub(crate) fn asked(
        &self,
        rows: impl Iterator<Item = spectrain_data::Result<Asked>>,
    ) -> Result<Prompts> {
        self.asked_with(rows, Unusable::Refuse)
    }

    fn asked_with(
        &self,
        rows: impl Iterator<Item = spectrain_data::Result<Asked>>,
        unusable: Unusable,
    ) -> Result<Prompts> {
        let mut prompts = Prompts::default();
        let mut renderer = None;
        for row in unusable.without(rows) {
            check_interrupted()?;
            self.add(row?, &mut prompts, (unusable, &mut renderer))?;
        }
        if prompts.prompts.is_empty() {
            Err(prompts.lack(self.settings.max_length))
        } else {
            Ok(prompts)
        }
    }

    /// Adds what is asked to the prompts, or counts why it is none of them.
    fn add(
        &self,
        asked: Asked,
        prompts: &mut Prompts,
        (unusable, renderer): (Unusable, &mut Option<Arc<Renderer>>),
    ) -> Result<()> {
        prompts.roles.add(&asked.content);
        let tokens = match self.prompt(&asked) {
            Err(error) if unusable.drops(&error) => return Ok(()),
            tokens => tokens?,
        };
        match tokens.len() {
            0 if matches!(asked.content, Content::Tokens(_)) => prompts.all_trained += 1,
            0 => {}
            length if length > self.settings.max_length => prompts.too_long += 1,
            _ => prompts.prompts.push(Prompt {
                tokens,
                category: asked.labels.category,
                language: asked.labels.language,
                later: self.later(asked.content, asked.later, renderer),
            }),
        }
        Ok(())
    }

    /// The tokens of a prompt.
    fn prompt(&self, asked: &Asked) -> spectrain_data::Result<Vec<u32>> {
        let location = &asked.location;
        let tokens = match (&asked.content, &self.template) {
            (Content::Tokens(sample), _) => sample.prompt().to_vec(),
            (Content::Conversation(conversation), Some(template)) => {
                mask::prompt(conversation, template, &self.tokenizer)
                    .map_err(Error::at(location))?
            }
            (Content::Conversation(_), None) => {
                let location = location.to_string();
                return Err(Error::NoTemplate { location });
            }
        };
        check_tokens(location, &tokens, self.settings.vocab)?;
        Ok(tokens)
    }

    /// What follows the first answer of a conversation. All share one `renderer`.
    fn later(
        &self,
        content: Content,
        turns: Vec<String>,
        renderer: &mut Option<Arc<Renderer>>,
    ) -> Option<Arc<dyn Later>> {
        let (Content::Conversation(opening), Some(template)) = (content, &self.template) else {
            return None;
        };
        if turns.is_empty() {
            return None;
        }
        let renderer = renderer.get_or_insert_with(|| {
            Arc::new(Renderer {
                tokenizer: self.tokenizer.clone(),
                template: template.clone(),
                vocab: self.settings.vocab,
            })
        });
        Some(Arc::new(LaterTurns {
            renderer: renderer.clone(),
            opening,
            turns,
        }))
    }
}
