//! DFlash drafters: their folders, their engines and what a step of their training keeps.

use anyhow::Result;
use spectrain_checkpoints::dflash::DFLASH;
use spectrain_checkpoints::dflash::speculators::SPECULATORS;
use spectrain_checkpoints::dflash::transformers::TRANSFORMERS;
use spectrain_checkpoints::dialect::Dialect;
use spectrain_models::TargetSpec;
use spectrain_models::dflash::{DFlash, DFlashConfig, MarkovKind};
use spectrain_train::{WorkRows, Workload};

use crate::families::drafter_folder::tokens_of;
use crate::families::family::Family;
use crate::families::footprint::{Activations, Attended, LayerSizes, Packed, decoder};
use crate::families::shipped::Shipped;
use crate::recipe::tables::Engine;

impl Family for DFlash {
    const KIND: &'static str = "dflash";
    const ENGINES: &'static [Engine] = &[
        Engine::Vllm,
        Engine::Sglang,
        Engine::LlamaCpp,
        Engine::TensorrtLlm,
        Engine::Speculators,
        Engine::Hf,
    ];
    const DIALECTS: &'static [(&'static Dialect, Option<Engine>)] = &[
        (&DFLASH, None),
        (&SPECULATORS, Some(Engine::Speculators)),
        (&TRANSFORMERS, Some(Engine::Hf)),
    ];
    const SAMPLES: &'static [&'static str] = &[
        "layers = 2\nblock_size = 4\nmask_token = 5",
        "layers = 2\nblock_size = 4\nmask_token = 5\ncaptured_layers = [0, 2]\nwindow = 9\ncausal = true\nd_ff = 24\nheads = 2\nkv_heads = 1",
        "layers = 2\nblock_size = 4\nmask_token = 5\nwindow = 9",
        "layers = 2\nblock_size = 4\nmask_token = 5\ncausal = true",
        "layers = 2\nblock_size = 4\nmask_token = 5\nconv_taps = 2\nconv_group = 4\nselector_rank = 3\nselector_top_k = 4",
        "layers = 2\nblock_size = 4\nmask_token = 5\nmarkov_rank = 3\nmarkov = \"vanilla\"\nconfidence = true\nsample_from_anchor = true",
        "layers = 2\nblock_size = 4\nmask_token = 5\nmarkov_rank = 3\nmarkov = \"gated\"\nconfidence = true\nsample_from_anchor = true",
        "layers = 2\nblock_size = 4\nmask_token = 5\nmarkov_rank = 3\nmarkov = \"rnn\"\nconfidence = true\nsample_from_anchor = true",
        "layers = 2\nblock_size = 4\nmask_token = 5\nmarkov_rank = 3",
        "layers = 2\nblock_size = 4\nmask_token = 5\ncontext = \"tokens\"",
        "layers = 2\nblock_size = 4\nmask_token = 5\nconv_taps = 2\nmarkov_rank = 3",
        "layers = 2\nblock_size = 4\nmask_token = 5\nwindow = 9\nsinks = true",
        "layers = 2\nblock_size = 4\nmask_token = 5\nsinks = true\nmarkov_rank = 3\nconfidence = true\nsample_from_anchor = true",
        "layers = 2\nblock_size = 4\nmask_token = 5\nwindow = 9\nfull_layers = [1]\ncausal = true\nfull_layers_see_block = true",
        "layers = 2\nblock_size = 4\nmask_token = 5\nwindow = 9\nfull_layers = [0]",
        "layers = 2\nblock_size = 4\nmask_token = 5\nmarkov_rank = 3\nmarkov = \"domino\"\nmarkov_state = 6\nsample_from_anchor = true",
        "layers = 2\nblock_size = 4\nmask_token = 5\nmarkov_rank = 3\nmarkov = \"domino\"\nmarkov_state = 6\nmarkov_from = 0\nconfidence = true",
        "layers = 2\nblock_size = 4\nmask_token = 5\nmarkov_rank = 3\nmarkov = \"xpress\"",
        "layers = 2\nblock_size = 4\nmask_token = 5\nwindow = 9\nmarkov_rank = 4\nmarkov = \"xpress\"\nmarkov_d_ff = 5\nmarkov_passes = 2",
        "layers = 2\nblock_size = 4\nmask_token = 5\nconv_taps = 2\nmarkov_rank = 3\nmarkov = \"xpress\"\nmarkov_passes = 1",
        "layers = 2\nblock_size = 4\nmask_token = 5\nmarkov_rank = 16\nmarkov = \"xpress\"\nmarkov_d_ff = 64",
    ];

    fn activations(
        config: &DFlashConfig,
        target: &TargetSpec,
        work: &Workload,
        batch: Packed,
    ) -> Result<Activations> {
        let layer = LayerSizes::of(target, [config.d_ff, config.heads, config.kv_heads])?;
        let (size, layers) = (config.block_size as u64, config.layers as u64);
        let blocks = match work.rows {
            WorkRows::Blocks(most) => (most as u64).min(batch.length),
            _ => 1,
        };
        let positions = batch.positions() as f64;
        let places = (batch.rows * blocks * size) as f64;
        // Scores within blocks are kept, those of the context are not.
        let attended = Attended {
            rows: places,
            queries: (blocks * size) as f64,
            keys: batch.length as f64,
            kept: places * size as f64,
        };
        let all = decoder(&layer, layers, work, attended);
        // The context's norm, and its keys and values for every layer.
        let context = positions * (2 * layer.d_model + 3 * layers * layer.keys()) as f64;
        let convolved = match config.conv_taps as u64 {
            0 => 0,
            taps => 4 * layers * (taps + 1) * layer.d_model,
        };
        let rank = config.markov_rank as u64;
        let ranks = 2 * config.selector_rank as u64 + 4 * rank;
        let (again, guessed) = match config.markov {
            MarkovKind::Xpress if rank > 0 => (work.again as u64, work.guessed as u64),
            _ => (0, 0),
        };
        let of_head = match config.markov {
            // Both products' three parts, what is made of them, and what the two matrices read.
            MarkovKind::Domino => 14 * config.markov_state as u64 + 2 * layer.d_model,
            // Of the text's tokens and of those of each round what the matrices read and the gated unit has; of each round and of the
            // guesses the gradient of what the output layer reads.
            MarkovKind::Xpress if rank > 0 => {
                let d_ff = config.refiner_width() as u64;
                (1 + again) * (6 * rank + 3 * d_ff)
                    + again * (layer.d_model + rank)
                    + guessed * layer.d_model
            }
            _ => 0,
        };
        Ok(Activations {
            kept: all.kept + context + places * (convolved + ranks + of_head) as f64,
            again: (again + guessed) as f64,
            selects: config.selector_rank > 0,
            ..all
        })
    }
}

impl Shipped for DFlash {
    fn unheld(config: &DFlashConfig) -> Vec<(&'static str, u32)> {
        tokens_of([("mask_token", config.mask_token)])
    }
}

#[cfg(test)]
mod tests {
    use spectrain_models::{RopeConfig, RopeScaling};
    use spectrain_train::{BlockLoss, BlockLossConfig, Objective as _};

    use super::*;

    #[test]
    fn slots_of_xpress_alone_are_judged_again_in_each_round_and_as_they_are_guessed() {
        let target = TargetSpec {
            layers: 4,
            d_model: 16,
            d_ff: 32,
            heads: 4,
            kv_heads: 2,
            d_head: 4,
            vocab: 100,
            norm_epsilon: 1e-6,
            rope: RopeConfig {
                theta: 10_000.0,
                scaling: RopeScaling::Default,
            },
            max_positions: 64,
            routing: None,
        };
        let batch = Packed {
            rows: 1,
            length: 32,
        };
        let again = |markov: MarkovKind, objective: &BlockLossConfig| {
            let config = DFlashConfig {
                mask_token: Some(5),
                markov_rank: 4,
                markov,
                ..DFlashConfig::default()
            };
            let work = BlockLoss::workload(objective, "train");
            let found = DFlash::activations(&config, &target, &work, batch);
            found.unwrap().again
        };
        let default = BlockLossConfig::default();
        assert_eq!(again(MarkovKind::Xpress, &default), 4.0);
        assert_eq!(again(MarkovKind::Vanilla, &default), 0.0);
        let rounds_alone = BlockLossConfig {
            consistency_passes: Some(2),
            guess_weight: Some(0.0.into()),
            ..default
        };
        assert_eq!(again(MarkovKind::Xpress, &rounds_alone), 2.0);
    }
}
