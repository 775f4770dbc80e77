//! Answers of servers that hand out the hidden states of what they write, so that a text is gone through once.

use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, bail};
use serde_json::{Map, Value, json};
use spectrain_checkpoints::DType;
use spectrain_checkpoints::{ModelFolder, hash};
use spectrain_data::conversation::{Content, Exchange};
use spectrain_data::dataset::Dataset;
use spectrain_data::day::Day;
use spectrain_data::features::{FeatureHeader, FeatureWriter, set_aside};
use spectrain_data::regenerate::{Answer, Answers, Failure, Request, Truncated, Written};
use spectrain_data::rows::LocatedRow;
use spectrain_data::template::{ChatTemplate, GenerationPrompt};
use spectrain_data::tokenizer::Tokenizer;
use spectrain_data::unusable::Unusable;
use spectrain_data::{Error, mask};
use spectrain_models::{Sampling, load_parts};

use super::arguments::RegenerateArguments;
use crate::errors::Misuse;
use crate::progress::Output;
use crate::recipe::read::read_file;
use crate::recipe::resolved::ResolvedRecipe;
use crate::recipe::tables::DataTable;
use crate::runs::hashes::{HASHES, HashMemory};
use crate::runs::run_folder::lock_for;
use crate::runtime::answered;
use crate::runtime::answerer::decoder::sampling;
use crate::runtime::capture::in_order::Asking;
use crate::runtime::capture::server::{Answering, Asked, Captured};
use crate::runtime::capture::servers::{PROVEN, Servers};
use crate::runtime::capture::stored::digest;
use crate::runtime::interruption::check_interrupted;
use crate::runtime::model_files::part_files;
use crate::runtime::server::client::{Client, lasting};
use crate::runtime::server::pool::Pool;
use crate::runtime::server::waiting::Waiting;
use crate::runtime::{device, target};

/// The features that are kept.
struct Kept {
    writer: FeatureWriter,
    /// Digests of the texts that they are of, by earlier runs too: where a turn fails, those before it are asked for again.
    texts: HashSet<String>,
    /// Where they are, and what is known of their files there.
    folder: PathBuf,
    memory: HashMemory,
}

/// Servers of a target, and where the features of what they write are kept.
pub struct CapturedAnswers {
    servers: Servers,
    /// Who of them is asked.
    pool: Pool,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    sampling: Sampling,
    stop: Vec<u32>,
    longest_answer: usize,
    seed: u64,
    settings: Map<String, Value>,
    truncated: Truncated,
    /// Gone once it is closed.
    features: Mutex<Option<Kept>>,
    /// Held so that nobody else writes into the folder.
    _lock: File,
}

impl CapturedAnswers {
    /// Finds and proves the servers of a recipe, and opens the folder of features.
    pub(super) fn open(
        arguments: &RegenerateArguments,
        (recipe, data): (&Path, &Dataset),
        folder: &Path,
        output: Output,
    ) -> Result<Self> {
        let recipe = read_file(recipe, &[])?;
        let target = target_of(&recipe)?;
        let mut variables = recipe.data.template_variables.clone();
        variables.extend(arguments.template.given());
        let (tokenizer, template, day) = text_of(&target, &recipe.data, &variables)?;
        let waiting = arguments.waiting(recipe.features.wait, output);
        let mut servers = servers(&recipe, &target, waiting)?;
        let model = ModelFolder::open_some(&target, &|_| false)?;
        let own = model.generation_config();
        let sampling = sampling(own, [arguments.temperature, arguments.top_p]);
        let longest_answer = arguments.longest_answer();
        let target_sha256 = HashMemory::default().of_all(&part_files(&target)?)?;
        let seed = arguments.seed.unwrap_or_default();
        let stop = target::stop_tokens(&model)?;
        let mut settings = json!({
            "target": target_sha256,
            "layers": servers.layers.layers,
            "template": template_sha256(&template, &tokenizer),
            "tokenizer": tokenizer.fingerprint(),
            "stop_tokens": stop,
            "sampling": sampling,
            "max_tokens": longest_answer,
            "seed": seed,
            "template_variables": variables,
        });
        if let Some(day) = day {
            settings["date"] = json!(day);
        }
        let header = FeatureHeader {
            target_sha256,
            captured_layers: servers.layers.layers.clone(),
            d_model: servers.target.spec.d_model,
            tokens_fingerprint: hash::sha256_bytes(settings.to_string().as_bytes()),
            dtype: recipe.features.dtype,
        };
        let texts = first_texts(data, arguments.unusable.unusable, (&tokenizer, &template))?;
        if texts.is_empty() {
            bail!("{data} holds no conversation");
        }
        servers.prove(&texts, output)?;
        let per_shard = recipe.features.samples_per_shard;
        let (lock, features) = locked(folder, header, (per_shard, arguments.fresh), output)?;
        let per_server = arguments.concurrency.into();
        Ok(Self {
            pool: Pool::new(servers.servers.len(), per_server, waiting),
            servers,
            tokenizer,
            template,
            sampling,
            stop,
            longest_answer,
            seed,
            settings: settings.as_object().cloned().unwrap_or_default(),
            truncated: arguments.truncated,
            features: Mutex::new(Some(features)),
            _lock: lock,
        })
    }

    /// Who of the servers is asked.
    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Everything that the answers depend on.
    pub(super) fn settings(&self) -> Map<String, Value> {
        self.settings.clone()
    }

    /// Closes the folder of features, and says how many samples it holds. One that is not complete, or holds nothing, is gone on
    /// with by the next run.
    pub(super) fn close(&self, is_complete: bool) -> Result<u64> {
        let features = self
            .features
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        let Some(Kept {
            writer,
            folder,
            mut memory,
            ..
        }) = features
        else {
            return Ok(0);
        };
        let samples = writer.next_sample();
        let written = match is_complete && samples > 0 {
            true => writer.finish()?,
            false => writer.pause()?,
        };
        memory.remember_written(&folder, &written);
        memory.write()?;
        Ok(samples)
    }

    fn prompt(&self, request: &Request) -> Result<Vec<u32>> {
        let text = mask::prompt_to_answer(request.exchange, &self.template)?;
        Ok(self.tokenizer.encode(&text)?.ids)
    }

    fn keep(&self, captured: &Captured, prompt: usize) -> Result<()> {
        let found = self.servers.bits(captured)?;
        let mut loss_mask = vec![0; prompt];
        loss_mask.resize(captured.tokens.len(), 1);
        let mut features = self.features.lock().unwrap_or_else(PoisonError::into_inner);
        let features = features
            .as_mut()
            .context("the folder of features is closed")?;
        let text = digest(&captured.tokens);
        if !features.texts.contains(&text) {
            features
                .writer
                .push(&found.sample(&captured.tokens, &loss_mask))?;
            features.texts.insert(text);
        }
        Ok(())
    }
}

impl Answers for CapturedAnswers {
    fn answer(&self, request: &Request) -> Result<Answer, Failure> {
        let prompt = self.prompt(request).map_err(|error| lasting(&error))?;
        let servers = &self.servers.servers;
        let clients: Vec<&Client> = servers.iter().map(|server| server.client()).collect();
        let ask = |server: usize| self.answer_of(server, &prompt, request);
        self.pool.ask(request, &clients, &ask)
    }
}

impl CapturedAnswers {
    /// The answer of one server to a prompt, whose features are kept.
    fn answer_of(
        &self,
        number: usize,
        prompt: &[u32],
        request: &Request,
    ) -> Result<Answer, Failure> {
        let server = &self.servers.servers[number];
        let room = server
            .longest
            .map_or(usize::MAX, |longest| longest.saturating_sub(prompt.len()));
        if room == 0 {
            return Err(Failure::Lasting {
                reason: format!(
                    "the prompt has {} tokens, which leaves no room for an answer in the `max_model_len` of the server",
                    prompt.len()
                ),
            });
        }
        let captured = server.capture(&Asked {
            tokens: prompt.to_vec(),
            answer: Some(Answering {
                max_new_tokens: self.longest_answer.min(room),
                sampling: self.sampling,
                seed: request.seed(self.seed),
                stop: self.stop.clone(),
            }),
            log_probabilities: false,
        });
        if let Err(Failure::Lasting { reason }) = &captured
            && server.is_lost()
        {
            let why = format!("`{}`: {reason}", server.url());
            self.pool.leave_out(number, &why);
        }
        let captured = captured?;
        let answer = captured.tokens[prompt.len()..].to_vec();
        let Some(last) = answer.last() else {
            return Err(Failure::Passing {
                reason: "the answer is empty: it has no token".into(),
                wait: None,
            });
        };
        let truncated = !self.stop.contains(last);
        let is_whole = !truncated || self.truncated == Truncated::Keep;
        if is_whole && request.trained {
            self.keep(&captured, prompt.len())
                .map_err(|error| lasting(&error))?;
        }
        let message = answered::message(&answer, &self.stop, &self.tokenizer);
        Ok(Answer {
            message: message.map_err(|error| lasting(&error.into()))?,
            truncated,
            written: Some(Written {
                prompt: prompt.to_vec(),
                answer,
            }),
        })
    }
}

/// A folder of features, in which nobody else writes as long as the lock is held. What was in it is moved aside where one starts
/// anew.
fn locked(
    folder: &Path,
    header: FeatureHeader,
    (samples_per_shard, starts_anew): (usize, bool),
    output: Output,
) -> Result<(File, Kept)> {
    let lock = lock_for(folder, "choose another `--capture`")?;
    if starts_anew {
        set_aside(folder)?;
    }
    let kept = Kept::open(folder, header, samples_per_shard)?;
    for amiss in kept.writer.amiss() {
        output.warn(amiss);
    }
    Ok((lock, kept))
}

impl Kept {
    /// Begins a folder, or goes on with it.
    fn open(folder: &Path, header: FeatureHeader, samples_per_shard: usize) -> Result<Self> {
        let mut memory = HashMemory::read(&folder.join(HASHES));
        let per_shard = samples_per_shard as u64;
        let opened =
            FeatureWriter::open_with(folder, header, per_shard, None, |files| memory.prove(files));
        // What was read until it was stopped is known the next time.
        memory.write()?;
        let mut writer = opened?;
        // Answers come as they are written, so that what is lost does not come again.
        writer.cut()?;
        let mut texts = HashSet::new();
        writer.each_sample(&mut |_, sample| {
            check_interrupted()?;
            texts.insert(digest(sample.tokens));
            anyhow::Ok(())
        })?;
        Ok(Self {
            writer,
            texts,
            folder: folder.to_owned(),
            memory,
        })
    }
}

/// The servers that a recipe names, for the layers that its drafters read of the target in a folder.
fn servers(recipe: &ResolvedRecipe, target: &Path, waiting: Waiting) -> Result<Servers> {
    let layers = recipe.method.capture(&target::spec(target)?)?;
    let device = device::device("cpu")?;
    let parts = load_parts(target, &device, DType::F32)?;
    let asking = Asking { ranks: 1, waiting };
    Servers::connect(&recipe.target, &recipe.features, layers, parts, asking)
}

/// SHA-256 of a chat template and the special tokens that it writes.
fn template_sha256(template: &ChatTemplate, tokenizer: &Tokenizer) -> String {
    let special = [tokenizer.bos_token(), tokenizer.eos_token()];
    let text = json!([template.source(), special]).to_string();
    hash::sha256_bytes(text.as_bytes())
}

/// What turns conversations into texts of the target in a folder, with these variables, as of the day in the recipe; and that day,
/// where the chat template prints it.
fn text_of(
    target: &Path,
    data: &DataTable,
    variables: &Map<String, Value>,
) -> Result<(Tokenizer, ChatTemplate, Option<Day>)> {
    let (tokenizer, template) = target::text(target, data.template.as_deref(), variables)?;
    let Some(template) = template else {
        bail!(
            "the target `{}` has no chat template, which conversations need",
            target.display()
        );
    };
    Ok(match data.date.filter(|_| template.reads_date()) {
        Some(day) => (tokenizer, template.at(day.begin()), Some(day)),
        None => (tokenizer, template, None),
    })
}

/// The folder of a recipe's target; of its weights what a drafter shares.
fn target_of(recipe: &ResolvedRecipe) -> Result<std::path::PathBuf> {
    let Some(model) = recipe.model() else {
        return Err(Misuse(
            "`--recipe`: expected a recipe with `target.model`, the model that the servers run"
                .into(),
        )
        .into());
    };
    target::resolve_parts(model, recipe.target.revision.as_deref())
}

/// Conversations by which servers are proven.
fn first_texts(
    data: &Dataset,
    unusable: Unusable,
    (tokenizer, template): (&Tokenizer, &ChatTemplate),
) -> Result<Vec<Vec<u32>>> {
    let mut texts = Vec::new();
    for row in unusable.without(data.rows()?) {
        let LocatedRow { location, row, .. } = row?;
        let Content::Conversation(conversation) = row.or_conversation().content else {
            continue;
        };
        // Rows with tools are not asked, and a template may fail on their definitions.
        let shown = Exchange {
            tools: &[],
            ..Exchange::from(&conversation)
        };
        let text = template.render(shown, GenerationPrompt::Without);
        let text = match text.map_err(Error::at(&location)) {
            Err(error) if unusable.drops(&error) => continue,
            text => text?,
        };
        let mut tokens = tokenizer.encode(&text)?.ids;
        tokens.truncate(MOST_PROVEN);
        texts.push(tokens);
        if texts.len() == PROVEN {
            break;
        }
    }
    Ok(texts)
}

/// Tokens of a text by which servers are proven, at most.
const MOST_PROVEN: usize = 256;

#[cfg(test)]
mod tests {
    use spectrain_data::Message;

    use super::*;

    #[test]
    fn a_template_is_rendered_as_of_the_recipes_day_which_counts_where_it_is_printed() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/chat_tokenizer");
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("template.jinja");
        let mut data = DataTable {
            template: Some(file.clone()),
            ..DataTable::default()
        };
        let day: Day = "2024-02-29".parse().unwrap();
        let said = [Message::new("user", "one")];
        for (source, expected, counts) in [
            ("{{ strftime_now('%d %B') }}", "29 February", true),
            ("{{ messages[0].content }}", "one", false),
        ] {
            std::fs::write(&file, source).unwrap();
            data.date = Some(day);
            let (_, template, found) = text_of(&golden, &data, &Map::new()).unwrap();
            let text = template.render(&said[..], GenerationPrompt::With);
            assert_eq!(text.unwrap(), expected);
            assert_eq!(found, counts.then_some(day));
            data.date = None;
            let (_, _, found) = text_of(&golden, &data, &Map::new()).unwrap();
            assert_eq!(found, None);
        }
    }

    #[test]
    fn servers_are_proven_on_rows_with_tools_that_the_template_refuses() {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/chat_tokenizer");
        let tokenizer = Tokenizer::from_folder(&golden).unwrap();
        let source = "{% if tools %}{{ raise_exception('no tools') }}{% endif %}\
                      {% for m in messages %}{{ m.content }}{% endfor %}";
        let template = ChatTemplate::from_source(source, None, None).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("rows.jsonl");
        let said = json!([{"role": "user", "content": "one"}]);
        let row = json!({"messages": said, "tools": [{"type": "function"}]});
        std::fs::write(&file, format!("{row}\n")).unwrap();
        let with = (&tokenizer, &template);
        let texts = first_texts(&file.into(), Unusable::Refuse, with).unwrap();
        assert_eq!(texts, [tokenizer.encode("one").unwrap().ids]);
    }
}
