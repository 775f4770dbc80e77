//! `spectrain generate`: one answer, with the tokens that were drafted marked.

use std::io::IsTerminal as _;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use rand::{SeedableRng, rngs::StdRng};
use spectrain_checkpoints::ModelFolder;
use spectrain_data::Message;
use spectrain_data::template::{ChatTemplate, GenerationPrompt};
use spectrain_data::tokenizer::{Special, Tokenizer};
use spectrain_eval::{DecodeSettings, Decoder, DraftChoice, Generation, Reach, VerifierChoice};
use spectrain_models::{Capture, DraftShape, Proposer, Sampling, Target as _, load_target};

use crate::cli::arguments::{TargetDevice, TemplateArgument, draft};
use crate::errors::Misuse;
use crate::families::registry::open_drafter;
use crate::progress::{Output, counted, has_colours, print, tell};
use crate::recipe::tables::EvaluateTable;
use crate::runtime::interruption::interrupted;
use crate::runtime::pair::with_way_out;
use crate::runtime::target;
use crate::stages::drafter_at;

/// Arguments of `spectrain generate`.
#[derive(Debug, clap::Args)]
pub struct GenerateArguments {
    /// The target: a hub id or a folder
    #[arg(long)]
    target: String,
    /// The drafter: its folder, a run or its folder, or a hub id, `owner/name` or `owner/name@revision`; without one the
    /// target decodes alone
    #[arg(long, value_name = "DRAFTER")]
    drafter: Option<String>,
    /// The folder of runs
    #[arg(long, value_name = "DIR", default_value = "runs")]
    runs: PathBuf,
    /// The user's message; a target without a chat template continues it as plain text
    #[arg(long, value_name = "TEXT")]
    prompt: String,
    /// The most tokens in the answer
    #[arg(long, value_name = "TOKENS", default_value_t = 128)]
    max_new_tokens: usize,
    /// Temperature; 0 takes the most likely token
    #[arg(
        long,
        value_name = "T",
        default_value_t = 0.0,
        allow_negative_numbers = true
    )]
    temperature: f64,
    /// Length of the draft in tokens; 0 takes the drafter's own length
    #[arg(long, value_name = "TOKENS", default_value_t = 0, requires = "drafter")]
    draft_length: usize,
    /// A draft of another shape: `dynamic:60`, `static:eagle-25`, or as in a recipe, `{ shape = "dynamic", nodes = 60 }`
    #[arg(long, value_name = "SHAPE", value_parser = draft, conflicts_with = "draft_length", requires = "drafter")]
    draft: Option<DraftChoice>,
    /// Accept a drafter that was trained for a target other than this one
    #[arg(long, requires = "drafter")]
    other_target: bool,
    /// Seed of sampling
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    template: TemplateArgument,
    #[command(flatten)]
    device: TargetDevice,
}

/// Runs the command.
pub fn run(arguments: &GenerateArguments) -> Result<()> {
    check_settings(arguments)?;
    let asked = choice(arguments)?;
    let drafter = arguments.drafter.as_ref();
    let drafter = drafter.map(|given| drafter_at::folder_of(given, &arguments.runs));
    let drafter = drafter.transpose()?;
    let (device, held) = arguments.device.open()?;
    let folder = target::resolve(&arguments.target, None)?;
    if let (Some(drafter), false) = (&drafter, arguments.other_target) {
        check_target(drafter, &folder, &arguments.target)?;
    }
    let variables = match &drafter {
        Some(drafter) => arguments.template.with_those_of(drafter)?,
        None => arguments.template.given(),
    };
    let (tokenizer, template) = target::text(&folder, None, &variables)?;
    let prompt = prompt(&arguments.prompt, &tokenizer, template.as_ref())?;
    let model = ModelFolder::open(&folder)?;
    let loaded = load_target(&model, &device, held)?;
    let mut rng = StdRng::seed_from_u64(arguments.seed);
    let open = |path: PathBuf| open_drafter(&path, &loaded.parts(), &device).map_err(with_way_out);
    let drafter = drafter.map(open).transpose()?;
    let capture = match &drafter {
        Some(drafter) => drafter.capture()?,
        None => Capture::default(),
    };
    let mut session = drafter.map(|drafter| drafter.held_in(loaded.dtype()).session());
    let draft = match &session {
        Some(session) => shape(asked, session.as_ref())?,
        None => DraftShape::Chain { length: 1 },
    };
    let settings = DecodeSettings {
        max_new_tokens: arguments.max_new_tokens,
        draft,
        sampling: Sampling::at(arguments.temperature),
        stop: target::stop_tokens(&model)?,
        shadow: None,
    };
    let decoder = Decoder::new(&loaded, &capture).unless(&interrupted);
    let generation = match &mut session {
        None => decoder.plain(&prompt, &settings, &mut rng)?,
        Some(session) => {
            let verifier = VerifierChoice::Exact.at(&settings.sampling);
            decoder.generate(session.as_mut(), verifier, &prompt, &settings, &mut rng)?
        }
    };
    let pieces = pieces(&tokenizer, &generation)?;
    let shown = show(&pieces, has_colours(std::io::stdout().is_terminal()));
    print(format!("{shown}\n"))?;
    tell(summary(&generation, session.is_some()));
    if let Some(cut) = cut(&generation, &settings, loaded.spec().max_positions) {
        Output::detect().warn(cut);
    }
    Ok(())
}

/// Fails on settings that `evaluate` refuses too.
fn check_settings(arguments: &GenerateArguments) -> Result<()> {
    EvaluateTable {
        temperatures: vec![arguments.temperature],
        draft_lengths: vec![arguments.draft_length],
        drafts: arguments.draft.clone().into_iter().collect(),
        max_new_tokens: arguments.max_new_tokens,
        ..EvaluateTable::default()
    }
    .check()
    .map_err(Misuse::from)?;
    Ok(())
}

/// That an answer ends where the target's context of so many tokens does, and not where it was to end.
fn cut(generation: &Generation, settings: &DecodeSettings, places: usize) -> Option<String> {
    let tokens = &generation.tokens;
    let stops = tokens
        .last()
        .is_some_and(|last| settings.stop.contains(last));
    (!stops && tokens.len() < settings.max_new_tokens).then(|| {
        format!(
            "the answer ends after {} of at most {} tokens: the target's context of {places} tokens is full",
            tokens.len(),
            settings.max_new_tokens
        )
    })
}

/// Fails where a drafter that reads a target's hidden states says that it was trained for another than the one in `folder`, which
/// the user calls `name`.
fn check_target(drafter: &Path, folder: &Path, name: &str) -> Result<()> {
    let Some(named) = target::other_target(&ModelFolder::open(drafter)?, folder)? else {
        return Ok(());
    };
    bail!(
        "{}; decode with it all the same with `--other-target`",
        named.is_not(drafter, name)
    )
}

/// A question as tokens, rendered where the target has a template.
fn prompt(
    question: &str,
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
) -> Result<Vec<u32>> {
    let text = match template {
        Some(template) => template.render(
            &[Message::new("user", question)][..],
            GenerationPrompt::With,
        )?,
        None => {
            Output::detect().warn(
                "the target has no chat template: the prompt is continued as plain text, not answered",
            );
            question.to_owned()
        }
    };
    Ok(tokenizer.encode(&text)?.ids)
}

/// The shape that a drafter drafts where `asked` is asked for, or else a chain of its own length.
fn shape(asked: Option<DraftChoice>, drafter: &dyn Proposer) -> Result<DraftShape> {
    let reach = Reach::of(drafter);
    let asked = asked.unwrap_or_else(|| DraftChoice::chain(drafter.draft_length()));
    asked.suits(&reach)?;
    let drafted = asked.within(&reach);
    if let (Some(longest), true) = (reach.longest, drafted != asked) {
        Output::detect().warn(format!(
            "this drafter drafts at most {longest} tokens, fewer than were asked for"
        ));
    }
    drafted.shape().context("a draft of a known shape")
}

/// The draft that is asked for; `None` for a chain as long as the drafter's own.
fn choice(arguments: &GenerateArguments) -> Result<Option<DraftChoice>> {
    match (&arguments.draft, arguments.draft_length) {
        (None, 0) => Ok(None),
        (None, length) => Ok(Some(DraftChoice::chain(length))),
        (Some(choice), _) => match choice.shape() {
            Some(_) => Ok(Some(choice.clone())),
            None => {
                let message = "`--draft`: expected a tree or threshold that is already known; `spectrain evaluate` \
                               calibrates trees and tunes thresholds, and its report has them";
                Err(Misuse(message.into()).into())
            }
        },
    }
}

fn summary(generation: &Generation, drafted: bool) -> String {
    let (tokens, passes) = (generation.tokens.len(), generation.passes.len());
    let seconds = generation.seconds().total();
    let rate = tokens.saturating_sub(1) as f64 / seconds.max(1e-9);
    let mut text = format!("{}, {rate:.1} tokens/s", counted(tokens as u64, "token"));
    if drafted && passes > 0 {
        let emitted: usize = generation.passes.iter().map(|pass| pass.emitted).sum();
        let accepted: usize = generation.passes.iter().map(|pass| pass.accepted).sum();
        let tau = emitted as f64 / passes as f64;
        text.push_str(&format!(
            ", {accepted} of them drafted, {}, τ {tau:.2}",
            counted(passes as u64, "target pass")
        ));
    }
    text
}

/// A part of the answer, and whether it was drafted and accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Piece {
    text: String,
    drafted: bool,
}

/// Whether each token was drafted: every pass emits the drafted tokens that it accepts and then one of the target's.
fn drafted(generation: &Generation) -> Vec<bool> {
    let mut drafted = vec![false];
    for pass in &generation.passes {
        drafted.extend(std::iter::repeat_n(true, pass.accepted));
        drafted.extend(std::iter::repeat_n(false, pass.emitted - pass.accepted));
    }
    drafted.resize(generation.tokens.len(), false);
    drafted
}

/// The text by runs of drafted and other tokens. A character of several tokens belongs to the last of them.
fn pieces(tokenizer: &Tokenizer, generation: &Generation) -> Result<Vec<Piece>> {
    let drafted = drafted(generation);
    let tokens = &generation.tokens;
    let decode = |of: Range<usize>| tokenizer.decode(&tokens[of], Special::Skip);
    let mut pieces: Vec<Piece> = Vec::new();
    // Tokens are decoded with the last ones before them that have a text, on which a first space or a character may hang, and with
    // no others: `before` is where those begin, `shown` where they end, and `known` their text.
    let (mut before, mut shown, mut known) = (0, 0, String::new());
    for end in 1..=tokens.len() {
        let text = decode(before..end)?;
        if text.ends_with('\u{FFFD}') && end < tokens.len() {
            continue;
        }
        // Bytes that turn out to be no character take those before them along, which may be shown already.
        let new = (known.len()..text.len()).find(|&at| text.is_char_boundary(at));
        let new = new.map_or(String::new(), |start| text[start..].to_owned());
        if !new.is_empty() {
            (before, shown) = (shown, end);
            known = decode(before..shown)?;
        }
        let drafted = drafted[end - 1];
        match pieces.last_mut() {
            Some(last) if last.drafted == drafted => last.text.push_str(&new),
            _ => pieces.push(Piece { text: new, drafted }),
        }
    }
    Ok(pieces)
}

/// Drafted parts are green and underlined on a terminal and between brackets elsewhere.
fn show(pieces: &[Piece], terminal: bool) -> String {
    let (open, close) = if terminal {
        ("\u{1b}[4;32m", "\u{1b}[0m")
    } else {
        ("[", "]")
    };
    let part = |piece: &Piece| {
        if piece.drafted && !piece.text.is_empty() {
            format!("{open}{}{close}", piece.text)
        } else {
            piece.text.clone()
        }
    };
    pieces.iter().map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;
    use serde_json::json;
    use spectrain_data::tokenizer::train_byte_level_bpe;
    use spectrain_eval::PassRecord;

    fn pass(accepted: usize, emitted: usize) -> PassRecord {
        PassRecord {
            accepted,
            emitted,
            ..PassRecord::default()
        }
    }

    #[test]
    fn every_pass_emits_its_accepted_tokens_before_the_targets_own() {
        let generation = Generation {
            tokens: vec![1, 2, 3, 4, 5, 6],
            passes: vec![pass(2, 3), pass(0, 1), pass(0, 1)],
            shadows: Vec::new(),
            prompt_seconds: 0.0,
        };
        assert_eq!(
            drafted(&generation),
            [false, true, true, false, false, false]
        );
    }

    #[test]
    fn one_token_and_one_pass_are_not_called_several() {
        let generation = Generation {
            tokens: vec![1],
            passes: vec![pass(0, 1)],
            ..Generation::default()
        };
        let told = summary(&generation, true);
        assert!(told.starts_with("1 token, "), "{told}");
        assert!(told.contains(", 1 target pass, "), "{told}");
    }

    #[test]
    fn an_answer_that_the_context_cuts_is_told_from_one_that_ends() {
        let settings = DecodeSettings {
            max_new_tokens: 3,
            draft: DraftShape::Chain { length: 1 },
            sampling: Sampling::GREEDY,
            stop: vec![9],
            shadow: None,
        };
        let of = |tokens: &[u32]| {
            let generation = Generation {
                tokens: tokens.to_vec(),
                ..Generation::default()
            };
            cut(&generation, &settings, 64)
        };
        assert_eq!((of(&[1, 2, 3]), of(&[1, 9])), (None, None));
        let told = of(&[1]).unwrap();
        assert!(told.contains("after 1 of at most 3 tokens"), "{told}");
        assert!(told.contains("context of 64 tokens"), "{told}");
    }

    #[test]
    fn a_draft_of_no_drafter_is_refused() {
        let given = ["spectrain", "generate", "--target", "t", "--prompt", "p"];
        for draft in [["--draft-length", "3"], ["--draft", "dynamic:60"]] {
            let alone = [&given[..], &draft].concat();
            let refused = crate::cli::Arguments::try_parse_from(&alone).unwrap_err();
            assert!(refused.to_string().contains("--drafter"), "{refused}");
            let with = [&alone[..], &["--drafter", "d"]].concat();
            crate::cli::Arguments::try_parse_from(with).unwrap();
        }
        crate::cli::Arguments::try_parse_from(given).unwrap();
    }

    #[test]
    fn drafted_parts_are_marked_with_and_without_a_terminal() {
        let piece = |text: &str, drafted| Piece {
            text: text.into(),
            drafted,
        };
        let pieces = [
            piece("The", false),
            piece(" cat", true),
            piece(" sat", false),
            piece("", true),
        ];
        assert_eq!(show(&pieces, false), "The[ cat] sat");
        assert_eq!(show(&pieces, true), "The\u{1b}[4;32m cat\u{1b}[0m sat");
    }

    /// The pieces of an answer of which each pass had two drafted tokens accepted; every text is decoded from the start.
    fn pieces_of_whole_texts(tokenizer: &Tokenizer, generation: &Generation) -> Vec<Piece> {
        let (mut pieces, mut shown): (Vec<Piece>, usize) = (Vec::new(), 0);
        let tokens = &generation.tokens;
        for (end, drafted) in (1..).zip(drafted(generation)) {
            let text = tokenizer.decode(&tokens[..end], Special::Skip).unwrap();
            if text.ends_with('\u{FFFD}') && end < tokens.len() {
                continue;
            }
            let new = text[shown..].to_owned();
            shown = text.len();
            match pieces.last_mut() {
                Some(last) if last.drafted == drafted => last.text.push_str(&new),
                _ => pieces.push(Piece { text: new, drafted }),
            }
        }
        pieces
    }

    fn answer(tokens: Vec<u32>) -> Generation {
        Generation {
            passes: vec![pass(2, 3); tokens.len() / 3],
            tokens,
            ..Generation::default()
        }
    }

    fn assert_shown_as_whole(tokenizer: &Tokenizer, tokens: &[u32]) {
        for from in 0..tokens.len() {
            let generation = answer(tokens[from..].to_vec());
            let found = pieces(tokenizer, &generation).unwrap();
            let expected = pieces_of_whole_texts(tokenizer, &generation);
            assert_eq!(found, expected, "from token {from}");
        }
    }

    #[test]
    fn characters_of_several_tokens_are_shown_as_in_the_whole_text() {
        // Every byte is a token.
        let texts = std::iter::once("one two".to_owned());
        let tokenizer = train_byte_level_bpe(texts, 257, &["<|im_end|>"]).unwrap();
        let text = "Größe: 東京 und 👍🏽, naïve<|im_end|> — fertig";
        let tokens = tokenizer.encode(text).unwrap().ids;
        assert!(tokens.len() > 45, "{tokens:?}");
        assert_shown_as_whole(&tokenizer, &tokens);
        // A long answer takes no longer for each token than a short one.
        let long = answer(tokens.repeat(10_000 / tokens.len()));
        let shown = pieces(&tokenizer, &long).unwrap();
        let shown: String = shown.into_iter().map(|piece| piece.text).collect();
        let whole = tokenizer.decode(&long.tokens, Special::Skip).unwrap();
        assert_eq!(shown, whole);
    }

    #[test]
    fn bytes_that_stand_in_for_unknown_characters_are_shown_as_in_the_whole_text() {
        let known = [
            "<unk>", "▁a", "b", "▁", "<0xE6>", "<0x9D>", "<0xB1>", "<0xC3>", "<0xA9>",
        ];
        let vocab: serde_json::Map<_, _> = (known.iter().zip(0..))
            .map(|(token, id)| ((*token).to_owned(), json!(id)))
            .collect();
        let tokenizer = json!({
            "version": "1.0",
            "added_tokens": [],
            "decoder": {"type": "Sequence", "decoders": [
                {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0},
            ]},
            "model": {"type": "BPE", "unk_token": "<unk>", "byte_fallback": true, "vocab": vocab, "merges": []},
        });
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("tokenizer.json");
        std::fs::write(file, tokenizer.to_string()).unwrap();
        let tokenizer = Tokenizer::from_folder(folder.path()).unwrap();
        // " a", a space, "東" and "é" twice, "b" and " a".
        let tokens = [1, 3, 4, 5, 6, 7, 8, 4, 5, 6, 7, 8, 2, 3, 3, 1];
        let whole = tokenizer.decode(&tokens, Special::Skip).unwrap();
        assert_eq!(whole, "a 東é東éb   a");
        for from in [0, 1, 2, 7, 12, 13] {
            let generation = answer(tokens[from..].to_vec());
            let found = pieces(&tokenizer, &generation).unwrap();
            assert_eq!(found, pieces_of_whole_texts(&tokenizer, &generation));
        }
        // Bytes of half a character are shown as unknown ones, and what follows them is not lost.
        for tokens in [&[1, 4, 5, 2][..], &[7, 8, 7, 1], &[7, 8, 7, 1, 2, 3]] {
            let found = pieces(&tokenizer, &answer(tokens.to_vec())).unwrap();
            let shown: String = found.into_iter().map(|piece| piece.text).collect();
            let whole = tokenizer.decode(tokens, Special::Skip).unwrap();
            let end = whole.rsplit('\u{FFFD}').next().unwrap();
            assert!(
                shown.contains('\u{FFFD}') && shown.ends_with(end),
                "{shown} {whole}"
            );
        }
    }
}
