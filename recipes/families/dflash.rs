//! DFlash drafters: their folders, their engines and what a step of their training keeps.

use anyhow::Result;
use spectrain_checkpoints::dflash::DFLASH;
use spectrain_checkpoints::dflash::speculators::SPECULATORS;
use spectrain_checkpoints::dflash::transformers::TRANSFORMERS;
use spectrain_checkpoints::dialect::Dialect;
use spectrain_models::TargetSpec;
use spectrain_models::dflash::{DFlash, DFlashConfig, LatticeTable, MarkovKind};
use spectrain_train::{WorkRows, Workload};

use crate::families::drafter_folder::tokens_of;
use crate::families::family::Family;
use crate::families::footprint::{Activations, Attended, LayerSizes, Packed, decoder};
use crate::families::shipped::Shipped;
use crate::recipe::tables::Engine;

const WITHOUT_BIAS: &str = "the drafter has no bias by the tokens before (`drafter.markov_rank`)";

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
        "layers = 2\nblock_size = 4\nmask_token = 5\nd_head = 6",
        "layers = 2\nblock_size = 4\nmask_token = 5\nlattice = { top_k = 4, d_model = 8, layers = 1, heads = 2, rank = 6 }",
        "layers = 2\nblock_size = 5\nmask_token = 5\nwindow = 9\nconv_taps = 2\nconv_group = 4\n\
         lattice = { top_k = 3, d_model = 0, layers = 2, heads = 4, d_ff = 20, rank = 7, scale = 5.0 }",
    ];

    fn activations(
        config: &DFlashConfig,
        target: &TargetSpec,
        work: &Workload,
        batch: Packed,
    ) -> Result<Activations> {
        let target = &target.with_heads(config.d_head)?;
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
        let slots = (batch.rows * blocks * (size - 1)) as f64;
        let lattice = config.lattice.as_ref();
        let lattice =
            lattice.map(|table| OfLattice::new(&table.filled(target.d_model), target, size));
        let lattice = lattice.unwrap_or_default();
        Ok(Activations {
            kept: all.kept
                + context
                + places * (convolved + ranks + of_head) as f64
                + slots * lattice.kept,
            again: (again + guessed) as f64,
            selects: config.selector_rank > 0 || config.lattice.is_some(),
            further: slots * lattice.further,
            ..all
        })
    }
}

/// What a lattice takes for each slot of a block.
#[derive(Default)]
struct OfLattice {
    /// Values that the backward pass keeps.
    kept: f64,
    /// Multiplications of a forward pass.
    further: f64,
}

impl OfLattice {
    /// That of a lattice, with all sizes, for this target and blocks of so many places.
    fn new(table: &LatticeTable, target: &TargetSpec, block: u64) -> Self {
        let [top_k, width, d_ff, rank] =
            [table.top_k, table.d_model, table.d_ff, table.rank].map(|size| size as f64);
        let [layers, heads, d_model] =
            [table.layers, table.heads, target.d_model].map(|size| size as f64);
        let seen = (block - 1) as f64 * top_k;
        let projects = f64::from(u8::from(table.d_model != target.d_model));
        // Of each candidate the column of the head and the embedding that are read, what is known of it besides, and what the layers, the
        // two vectors and their pairs keep.
        let layer = 9.0 * width + 3.0 * d_ff + heads * seen;
        let of_vectors = 8.0 * width + 8.0 * rank + 4.0 * top_k;
        let read = (1.0 + projects) * d_model + 3.0 * width + 15.0;
        // Attention takes products with all other candidates; the head makes the likeliest tokens, and the mean of its columns.
        let in_layer = 4.0 * width * width + 2.0 * width * d_ff + 2.0 * seen * width;
        let ends = projects * d_model * width + 3.0 * width * width + 2.0 * width * rank;
        let by_head = 2.0 * (target.vocab * target.d_model) as f64 / 3.0;
        Self {
            kept: top_k * (read + layers * layer + of_vectors),
            further: (top_k - 1.0) * (layers * in_layer + ends) + top_k * top_k * rank + by_head,
        }
    }
}

impl Shipped for DFlash {
    fn unheld(config: &DFlashConfig) -> Vec<(&'static str, u32)> {
        tokens_of([("mask_token", config.mask_token)])
    }

    fn explicit(config: &DFlashConfig) -> DFlashConfig {
        let refines = config.refines();
        DFlashConfig {
            markov_d_ff: refines.then(|| config.refiner_width()),
            markov_passes: refines.then(|| config.refining_passes()),
            ..config.clone()
        }
    }

    fn idle_keys(config: &Self::Config) -> Vec<(&'static str, &'static str)> {
        let (has_bias, usual) = (config.markov_rank > 0, DFlashConfig::default());
        let of = |kind: MarkovKind| has_bias && config.markov == kind;
        let [domino, xpress] = [MarkovKind::Domino, MarkovKind::Xpress].map(of);
        // What only XPress reads is refused beside another kind.
        let keys = [
            ("markov", config.markov != usual.markov, has_bias),
            (
                "markov_state",
                config.markov_state != usual.markov_state,
                domino,
            ),
            (
                "markov_from",
                config.markov_from != usual.markov_from,
                domino,
            ),
            ("markov_d_ff", config.markov_d_ff.is_some(), xpress),
            ("markov_passes", config.markov_passes.is_some(), xpress),
        ];
        let why = match has_bias {
            true => "`drafter.markov` is not `\"domino\"`",
            false => WITHOUT_BIAS,
        };
        let idle = keys
            .into_iter()
            .filter(|(_, is_set, is_read)| *is_set && !is_read);
        idle.map(|(key, ..)| (key, why)).collect()
    }

    fn unread(config: &DFlashConfig) -> Vec<(&'static str, &'static str)> {
        let has_bias = config.markov_rank > 0;
        let refines = config.refines();
        let parts: [(bool, &str, &[&str]); 5] = [
            (
                config.selector_rank > 0,
                "the drafter has no selector (`drafter.selector_rank`)",
                &["selector_weight", "inject"],
            ),
            (
                config.confidence,
                "the drafter has no confidence head (`drafter.confidence`)",
                &["confidence_weight"],
            ),
            (has_bias, WITHOUT_BIAS, &["base_weight", "base_until"]),
            (
                refines,
                "the drafter has no passes that refine its drafts (`drafter.markov = \"xpress\"` with a `drafter.markov_rank`)",
                &["consistency_weight", "consistency_passes", "guess_weight"],
            ),
            (
                config.lattice.is_some(),
                "the drafter has no lattice (`drafter.lattice`)",
                &["paths"],
            ),
        ];
        let absent = parts.into_iter().filter(|(is_there, ..)| !is_there);
        absent
            .flat_map(|(_, why, keys)| keys.iter().map(move |key| (*key, why)))
            .collect()
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
