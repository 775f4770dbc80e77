//! The commands that serve a target with a block drafter.

use std::path::Path;

use crate::beside::TARGET_SCALES_LOGITS;
use crate::dflash::family::Family;
use crate::dflash::lattice::fits_kernels as fits_kernels_of_lattice;
use crate::dialect::settings::Settings;
use crate::launch::{self, Choosing, Launch};

const NO_ENGINE: &str = "no serving engine loads block drafters with these parts; this program decodes with them: \
    `spectrain generate`, `spectrain evaluate`";

const IN_BF16: &str = "SGLang takes Domino in bf16 alone: the target, and the drafter by `--dtype bf16` or `dtype = \"bf16\"`";

const FROM_VLLM_0_33: &str = "vLLM has XPress from 0.33 on";

const SCALED: &str = "the target multiplies its head's logits by a factor of its configuration, which engines leave out where they add \
    this drafter's bias to them; this program decodes with it: `spectrain generate`, `spectrain evaluate`";

const ODD_SIZES: &str = "vLLM's kernels for XPress take a `markov_rank` that is a power of two, 16 or more, and a `markov_d_ff` that 64 \
    divides; this program decodes with any: `spectrain generate`, `spectrain evaluate`";

const ODD_CANDIDATES: &str = "vLLM and SGLang take a power of two up to 16 for `lattice.top_k`; this program decodes with any: \
    `spectrain generate`, `spectrain evaluate`";

/// How SGLang is told to draw the tokens of LiLiCorr.
const DRAWS_PATHS: Choosing = Choosing::LikeliestUnless("`SGLANG_ENABLE_LILICORR_SAMPLING=1`");

/// One command for each engine. `draft_tokens` is the length of the draft, at most that of a trained block.
pub(super) fn launch_lines(
    settings: &Settings,
    dir: &Path,
    target: &str,
    draft_tokens: usize,
) -> Vec<Launch> {
    let whole = settings.size("block_size") - usize::from(!settings.flag("sample_from_anchor"));
    let family = Family::of(settings);
    // The order of the head's logits alone is right with any factor.
    if settings.flag(TARGET_SCALES_LOGITS) && !matches!(family, Family::DFlash) {
        return vec![Launch::remark(SCALED)];
    }
    let draft_tokens = match family {
        Family::DFlash => draft_tokens.min(whole),
        // SGLang counts one less than the places of a block, whichever of them predicts first.
        Family::Domino => settings.size("block_size") - 1,
        // What they have beside layers takes the block to be as long as the draft.
        _ => whole,
    };
    let llama_cpp = |kind| launch::llama_cpp(dir, kind, target, draft_tokens, true);
    match family {
        Family::DFlash | Family::DFlash2 if settings.flag("sinks") => {
            vec![launch::vllm(dir, "dflash", target, draft_tokens)]
        }
        Family::DFlash | Family::DFlash2 => of_layers(settings, dir, target, draft_tokens),
        Family::DSpark => {
            let vllm = launch::vllm(dir, "dspark", target, draft_tokens);
            let sglang = launch::sglang_dspark(dir, target, draft_tokens);
            match (settings.word("markov") == "vanilla", settings.flag("sinks")) {
                (true, false) if settings.flag("causal") => vec![vllm, sglang],
                (true, false) => vec![vllm, sglang, llama_cpp("draft-dspark")],
                (true, true) => vec![vllm],
                (false, false) => vec![sglang],
                (false, true) => vec![Launch::remark(NO_ENGINE)],
            }
        }
        Family::Domino if settings.size("markov_from") == 1 && !settings.flag("sinks") => {
            let sglang = launch::sglang_block(dir, "DFLASH", target, draft_tokens);
            vec![Launch::remark(IN_BF16), sglang]
        }
        Family::XPress if !fits_kernels(settings) => vec![Launch::remark(ODD_SIZES)],
        // What it is told of drawing changes how drafts are judged, and not what is drafted.
        Family::XPress => {
            let vllm = launch::vllm(dir, "dflash", target, draft_tokens).likeliest_alone();
            vec![Launch::remark(FROM_VLLM_0_33), vllm]
        }
        Family::LiLiCorr if !fits_kernels_of_lattice(settings) => {
            vec![Launch::remark(ODD_CANDIDATES)]
        }
        Family::LiLiCorr => {
            let mut lines = vec![launch::vllm(dir, "dflash", target, draft_tokens)];
            if !settings.flag("sinks") {
                let sglang = launch::sglang_block(dir, "DFLASH", target, draft_tokens);
                lines.push(sglang.choosing(DRAWS_PATHS));
            }
            lines
        }
        Family::Domino | Family::Own => vec![Launch::remark(NO_ENGINE)],
    }
}

/// Whether vLLM's kernels read the matrices of XPress' head in whole tiles: of others they would read what is behind them.
fn fits_kernels(settings: &Settings) -> bool {
    let rank = settings.size("markov_rank");
    let d_ff = match settings.size("markov_d_ff") {
        // A recipe may leave it out.
        0 => 2 * rank,
        given => given,
    };
    rank >= 16 && rank.is_power_of_two() && d_ff.is_multiple_of(64)
}

/// Those for a drafter that is its layers, or DFlash 2.
fn of_layers(settings: &Settings, dir: &Path, target: &str, draft_tokens: usize) -> Vec<Launch> {
    let family = Family::of(settings);
    let is_mixed = !settings.sizes("full_layers").is_empty();
    let sglang = launch::sglang_block(dir, "DFLASH", target, draft_tokens);
    let mut lines = vec![
        launch::vllm(dir, "dflash", target, draft_tokens),
        match family {
            Family::DFlash2 => sglang.choosing(Choosing::Drawn),
            _ => sglang,
        },
    ];
    // llama.cpp keeps a slot's candidates and the scores of all their pairs in a row as wide as the model.
    let candidates = match family {
        Family::DFlash2 => settings.size("selector_top_k"),
        _ => 0,
    };
    // In most of its versions a place sees its whole block, whatever the folder says.
    if !settings.flag("causal") && candidates + candidates * candidates <= settings.size("d_model")
    {
        lines.push(launch::llama_cpp(
            dir,
            "draft-dflash",
            target,
            draft_tokens,
            true,
        ));
    }
    // Nobody knows whether TensorRT-LLM reads the types of layers.
    if family == Family::DFlash && !is_mixed {
        let captured = settings.sizes("captured_layers");
        let captured = format!(", target_layer_ids: {captured:?}");
        lines.push(launch::tensorrt(dir, "DFlash", draft_tokens, &captured));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::Server;

    #[test]
    fn xpress_is_offered_to_vllm_where_its_kernels_take_the_sizes_of_the_head() {
        let lines = |rank: usize, d_ff: Option<usize>| {
            let mut settings = Settings::default();
            settings.set("block_size", 8);
            settings.set("markov", "xpress");
            settings.set("markov_rank", rank);
            settings.set("markov_d_ff", d_ff);
            launch_lines(&settings, Path::new("d"), "t", 7)
        };
        for (rank, d_ff) in [(16, Some(64)), (32, None), (256, None), (256, Some(192))] {
            let found = lines(rank, d_ff);
            let [version, line] = &found[..] else {
                panic!("expected a remark and a command");
            };
            assert_eq!(version, &Launch::remark(FROM_VLLM_0_33));
            assert_eq!(line.server, Some(Server::Vllm("dflash")), "{rank} {d_ff:?}");
            assert!(line.text.starts_with("vllm serve t "), "{}", line.text);
        }
        // The width that is left out is twice the rank.
        for (rank, d_ff) in [(16, None), (8, Some(64)), (48, Some(64)), (256, Some(100))] {
            assert_eq!(
                lines(rank, d_ff),
                [Launch::remark(ODD_SIZES)],
                "{rank} {d_ff:?}"
            );
        }
    }
}
