//! The embedded default: conversations, a tokenizer that has learnt them, and a small target that has too, left as an
//! ordinary folder in the Hugging Face layout.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use serde_json::{Value, json};
use spectrain_checkpoints::{DType, atomic, language_model, write_folder};
use spectrain_data::conversation::{Conversation, Row};
use spectrain_data::mask::{Masking, tokenize};
use spectrain_data::synthetic::split;
use spectrain_data::template::ChatTemplate;
use spectrain_data::tokenizer::{Tokenizer, train_byte_level_bpe};
use spectrain_data::tokens::{TokenShards, TokenWriter};
use spectrain_models::{
    RandomWeights, RopeConfig, RopeScaling, Scope, TargetSpec, Transformer, TransformerConfig,
};
use spectrain_train::{
    Defaults, Fit, FitSummary, NextToken, Samples, Together, TokensOnly, Train, TrainConfig,
    Trainee, Validation, fit,
};

use crate::progress::counted;
use crate::recipe::tables::{MADE_POSITIONS, SyntheticTable};
use crate::runs::places::MADE_TARGET;
use crate::runs::stage_names;
use crate::runtime::device::{graph_device, memory_of};
use crate::runtime::interruption::{check_interrupted, interrupted};
use crate::stages::context::StageContext;

const END_OF_TEXT: &str = "<|endoftext|>";
const START: &str = "<|im_start|>";
const END: &str = "<|im_end|>";
/// ChatML, with the assistant's turns marked.
const TEMPLATE: &str = "\
{%- for message in messages %}
{{- '<|im_start|>' + message['role'] + '\\n' }}
{%- if message['role'] == 'assistant' %}
{%- generation %}{{- message['content'] + '<|im_end|>' }}{%- endgeneration %}
{%- else %}
{{- message['content'] + '<|im_end|>' }}
{%- endif %}
{{- '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
";
const TOKENS_PER_SHARD: usize = 4_000_000;
/// Held-out conversations of a validation.
const VALIDATED: usize = 64;

/// Runs the stage.
pub fn run(context: &StageContext) -> Result<Value> {
    let Some(table) = &context.recipe.synthetic else {
        bail!("the recipe has no table `[synthetic]`");
    };
    let folder = context.folder(stage_names::SYNTHETIC);
    let made = split(context.recipe.seed, table.conversations, table.held_out);
    write_conversations(&folder.join("train.jsonl"), &made.train)?;
    write_conversations(&folder.join("eval.jsonl"), &made.eval)?;

    let template = ChatTemplate::from_source(TEMPLATE, None, Some(END))?;
    let tokenizer = train_tokenizer(&made.train, table.vocab)?;
    let text = Text {
        template,
        tokenizer,
    };
    let write = |name: &str, purpose: &str, of: &[Conversation]| {
        let (tokens, left_out) = text.write_tokens(&folder.join(name), of, table.max_length)?;
        if left_out > 0 {
            context.output.say(format!(
                "synthetic: the target's {purpose} leaves out {left_out} of {}, which have more than `synthetic.max_length` = {} tokens",
                counted(of.len() as u64, "conversation"),
                table.max_length
            ));
        }
        anyhow::Ok(tokens)
    };
    let tokens = write("tokens", "training", &made.train)?;
    let held_out = write("held-out", "validation", &made.eval)?;
    let (target, summary) = train(
        context,
        table,
        text.tokenizer.vocab_size(),
        tokens,
        held_out,
    )?;
    check_interrupted()?;
    context.make_room(MADE_TARGET)?;
    text.write_target(&target, &folder.join("target"))?;
    let loss = summary.best.as_ref().map(|(_, best)| best.loss);
    context.output.say(format!(
        "synthetic: {} conversations; target of {} parameters trained for {} in {:.0} s, held-out loss {:.3} nats per token",
        made.train.len(),
        spectrain_models::weights::export(&target).iter().map(|t| t.shape.iter().product::<usize>()).sum::<usize>(),
        counted(summary.steps as u64, "step"),
        summary.seconds,
        loss.unwrap_or(f64::NAN),
    ));
    Ok(json!({ "fit": summary, "conversations": made.train.len(), "held_out": made.eval.len() }))
}

fn write_conversations(path: &Path, conversations: &[Conversation]) -> Result<()> {
    let mut lines = String::new();
    for conversation in conversations {
        lines.push_str(&Row::from(conversation.clone()).to_json());
        lines.push('\n');
    }
    Ok(atomic::write_file(path, lines.as_bytes())?)
}

fn train_tokenizer(conversations: &[Conversation], vocab: usize) -> Result<Tokenizer> {
    let texts: Vec<String> = conversations
        .iter()
        .flat_map(|conversation| &conversation.messages)
        .map(|message| message.content.clone())
        .collect();
    let tokenizer = train_byte_level_bpe(texts.into_iter(), vocab, &[END_OF_TEXT, START, END])?;
    Ok(tokenizer.with_special_tokens(None, Some(END)))
}

/// What turns conversations into tokens.
struct Text {
    template: ChatTemplate,
    tokenizer: Tokenizer,
}

impl Text {
    /// Writes the conversations of at most `longest` tokens. Also returns how many are longer.
    fn write_tokens(
        &self,
        folder: &Path,
        conversations: &[Conversation],
        longest: usize,
    ) -> Result<(Arc<TokenShards>, usize)> {
        let mut writer = TokenWriter::create(folder, TOKENS_PER_SHARD)?;
        let (mut left_out, mut shortest) = (0, usize::MAX);
        for conversation in conversations {
            let sample = tokenize(conversation, &self.template, &self.tokenizer, Masking::All)?;
            shortest = shortest.min(sample.tokens.len());
            match sample.tokens.len() <= longest {
                true => writer.push(&sample)?,
                false => left_out += 1,
            }
        }
        if left_out == conversations.len() {
            bail!(
                "`synthetic.max_length`: expected at least {shortest}, as many tokens as the shortest of {} has, found {longest}",
                counted(left_out as u64, "conversation")
            );
        }
        writer.finish(serde_json::Map::new())?;
        Ok((Arc::new(TokenShards::open(folder)?), left_out))
    }

    fn write_target(&self, target: &Transformer, folder: &Path) -> Result<()> {
        let eos: Vec<u32> = [END, END_OF_TEXT]
            .iter()
            .filter_map(|token| self.tokenizer.token_id(token))
            .collect();
        let tensors = language_model::named(spectrain_models::weights::export(target));
        let texts = tempfile::tempdir().context("cannot create a temporary folder")?;
        self.tokenizer.save(texts.path())?;
        let mut files = vec![
            (
                "chat_template.jinja".to_owned(),
                TEMPLATE.as_bytes().to_vec(),
            ),
            (
                "generation_config.json".to_owned(),
                json!({ "eos_token_id": eos }).to_string().into_bytes(),
            ),
        ];
        for entry in std::fs::read_dir(texts.path())? {
            let entry = entry?;
            files.push((
                entry.file_name().to_string_lossy().into_owned(),
                std::fs::read(entry.path())?,
            ));
        }
        let files: Vec<(&str, &[u8])> = files
            .iter()
            .map(|(name, bytes)| (name.as_str(), bytes.as_slice()))
            .collect();
        let mut config = target.config().to_json()?;
        config["eos_token_id"] = json!(eos);
        config["torch_dtype"] = json!("float32");
        Ok(write_folder(folder, &config, &tensors, &files)?)
    }
}

fn train(
    context: &StageContext,
    table: &SyntheticTable,
    vocab: usize,
    tokens: Arc<TokenShards>,
    held_out: Arc<TokenShards>,
) -> Result<(Transformer, FitSummary)> {
    let config = train_config(table);
    let device = graph_device(&context.device, &config);
    let mut random = RandomWeights::new(context.recipe.seed);
    let mut scope = Scope::root(&mut random, &device, DType::F32);
    let model = Transformer::new(&mut scope, target_config(table, vocab))?;
    let mut trainee = Trainee::new(model, NextToken, config.optimizer());
    let rows = config.batch_tokens / table.max_length;
    let samples = Samples::new(tokens.clone(), table.max_length, rows, context.recipe.seed);
    let held_out = Samples::new(held_out, table.max_length, rows, context.recipe.seed);
    let mut validate = |trainee: &dyn Train, _: usize, _: Option<&Validation>, _: &mut Together| {
        let mut source = TokensOnly {
            samples: held_out.clone(),
            device: context.device.clone(),
        };
        let (mut loss, mut positions, mut seen) = (0.0, 0, 0);
        for packed in held_out.epoch(0)? {
            if seen >= VALIDATED {
                break;
            }
            seen += packed.rows.iter().map(Vec::len).sum::<usize>();
            let report =
                trainee.measure(&spectrain_train::BatchSource::batch(&mut source, packed)?);
            loss += report.steps.iter().map(|step| step.loss).sum::<f64>();
            positions += report.steps.iter().map(|step| step.count).sum::<usize>();
        }
        Ok(Validation {
            loss: loss / positions.max(1) as f64,
            ..Validation::default()
        })
    };
    let identity =
        json!({ "seed": context.recipe.seed, "synthetic": table, "tokens": tokens.fingerprint() });
    let summary = fit(
        &mut trainee,
        Fit {
            config: &config,
            source: Box::new(TokensOnly {
                samples: samples.clone(),
                device: context.device.clone(),
            }),
            samples,
            folder: context.folder(stage_names::SYNTHETIC).join("training"),
            identity,
            defaults: Defaults::default(),
            interrupted: &interrupted,
            on_policy: None,
            begins_trained: false,
            validate: &mut validate,
            memory: &|| memory_of(&context.device),
            ranks: None,
        },
    )?;
    Ok((trainee.model(), summary))
}

fn train_config(table: &SyntheticTable) -> TrainConfig {
    TrainConfig {
        steps: table.steps,
        // Whole rows.
        batch_tokens: table.batch_tokens / table.max_length * table.max_length,
        learning_rate: table.learning_rate,
        warmup_steps: table.warmup_steps.min(table.steps),
        max_grad_norm: 1.0,
        min_lr_ratio: 0.1,
        validate_every: table.steps,
        log_every: 20,
        save_every: table.steps.div_ceil(2),
        keep: 1,
        ..TrainConfig::default()
    }
}

fn target_config(table: &SyntheticTable, vocab: usize) -> TransformerConfig {
    let spec = TargetSpec {
        layers: table.layers,
        d_model: table.d_model,
        d_ff: table.d_ff,
        heads: table.heads,
        kv_heads: table.kv_heads,
        d_head: table.d_head,
        vocab,
        norm_epsilon: 1e-6,
        rope: RopeConfig {
            theta: 10_000.0,
            scaling: RopeScaling::Default,
        },
        max_positions: MADE_POSITIONS,
        routing: None,
    };
    TransformerConfig {
        tied_head: true,
        ..TransformerConfig::qwen3(spec)
    }
}
