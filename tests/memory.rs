//! The memory that a plan promises, against what training really allocates.
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::module::Param;
use burn::prelude::*;
use burn::tensor::DType;
use spectrain::families::registry::{self, RECIPES, Recipe};
use spectrain::plan;
use spectrain::plan::preflight::Asked;
use spectrain::progress::Output;
use spectrain::recipe::tables::FeatureMode;
use spectrain::recipe::{self, ResolvedRecipe};
use spectrain::runs::run_folder::{Existing, RunFolder};
use spectrain::runtime::device::{memory_of, target_type};
use spectrain::stages::{self, StageContext};
use spectrain_checkpoints::{ModelFolder, state};
use spectrain_models::device::{is_cpu, test_device};
use spectrain_models::{Linear, TransformerConfig, product};

use crate::allocation::{alone, peak_during};
use crate::campaign;
use crate::numbers::{drafter_keys, tokens};
use crate::samples::chosen;
use crate::workspace::{Workspace, conversation};

/// Sizes of a target and of a batch.
#[derive(Debug, Clone, Copy)]
struct Sizes {
    d_model: usize,
    d_ff: usize,
    heads: usize,
    d_head: usize,
    row: usize,
    rows: usize,
    vocab: usize,
}

const BASE: Sizes = Sizes {
    d_model: 64,
    d_ff: 192,
    heads: 4,
    d_head: 16,
    row: 256,
    rows: 4,
    vocab: 304,
};

fn workspace(sizes: Sizes) -> Workspace {
    let workspace = Workspace::of("");
    workspace.write_target_of("target", 7, |spec| {
        spec.layers = 4;
        spec.d_model = sizes.d_model;
        spec.d_ff = sizes.d_ff;
        spec.heads = sizes.heads;
        spec.kv_heads = sizes.heads / 2;
        spec.d_head = sizes.d_head;
        spec.vocab = sizes.vocab;
    });
    let answer = "one two three ".repeat(sizes.row);
    let rows = |first: usize, count: usize| {
        let rows = (first..first + count).map(|number| conversation(number, &answer));
        rows.collect::<Vec<_>>().join("\n")
    };
    workspace.write("train.jsonl", rows(0, 10));
    workspace.write("eval.jsonl", rows(10, 4));
    workspace
}

/// The keys that a kind of recipe does not do without, and what keeps it small.
fn needed(kind: &Recipe) -> String {
    let [drafter, objective] = match kind.name {
        "dflash" | "dflash-deer" => ["layers = 2\nblock_size = 8\n", "anchors = 32\n"],
        "peagle" => ["layers = 2\n", ""],
        "deer" => ["", "span = 16\n"],
        _ => ["", ""],
    };
    let (keys, _) = drafter_keys(kind);
    // What a language model starts from.
    let fresh = match keys.contains_key("fresh") {
        true => "[drafter.fresh]\n",
        false => "",
    };
    let tokens = tokens(kind, BASE.vocab);
    format!("{tokens}{drafter}{fresh}[objective]\n{objective}")
}

/// What a training stage was planned to take and took, in bytes, and how many values the optimiser was planned to keep and kept.
#[derive(Debug, Clone, Copy)]
struct Found {
    stage: &'static str,
    planned: u64,
    measured: u64,
    /// What the device held of its memory, where that is not the host's.
    reserved: u64,
    moments: [u64; 2],
}

impl Found {
    fn ratio(&self) -> f64 {
        self.planned as f64 / self.measured as f64
    }
}

fn text(kind: &Recipe, tables: &str, sizes: Sizes, workspace: &Workspace) -> String {
    let [target, train, eval] =
        ["target", "train.jsonl", "eval.jsonl"].map(|name| workspace.path(name));
    format!(
        "recipe = {:?}\nname = \"a\"\n[target]\nmodel = {target:?}\n\
         [data]\ntrain = {train:?}\neval = {eval:?}\nmax_length = {}\noverlong = \"truncate\"\nmask = \"all\"\n\
         [train]\nsteps = 2\nbatch_tokens = {}\ndecode_prompts = 1\ndecode_tokens = 4\nvalidate_samples = 2\n{}",
        kind.name,
        sizes.row,
        sizes.row * sizes.rows,
        tables
    )
}

/// Trains each stage of a kind of recipe with some settings changed.
fn trained(kind: &Recipe, sizes: Sizes, changes: &[&str]) -> Vec<Found> {
    trained_with((kind, &needed(kind)), sizes, changes)
}

/// The same with these tables of its own.
fn trained_with((kind, tables): (&Recipe, &str), sizes: Sizes, changes: &[&str]) -> Vec<Found> {
    let workspace = workspace(sizes);
    let changes: Vec<String> = changes.iter().map(|&change| change.to_owned()).collect();
    let recipe = recipe::read(&text(kind, tables, sizes, &workspace), &changes).unwrap();
    let runs = workspace.path("runs");
    let device = std::env::var("SPECTRAIN_TEST_DEVICE").unwrap_or_else(|_| "cpu".into());
    let asked = Asked {
        recipe: &recipe,
        runs: &runs,
        existing: Existing::Continue,
        device: &device,
        ranks: 1,
        only: &[],
        parts: None,
    };
    let held = target_type(recipe.target.dtype, &device);
    let estimate = plan::estimate(&asked).unwrap().unwrap();
    let run = RunFolder::open(asked.run(), &recipe.toml, Existing::Continue).unwrap();
    let context = StageContext {
        recipe: &recipe,
        run: &run,
        device: test_device(),
        // Of others than the CPU it is first asked whether they compute as the CPU does.
        device_name: "cpu".into(),
        target_type: held,
        output: Output::Quiet,
        array: Default::default(),
        group: None,
    };
    let only = |stage: &str| stages::run(&context, &[stage.to_owned()]).unwrap();
    only("prepare");
    if recipe.features.mode == FeatureMode::Stored {
        only("features");
    }
    multiply_on_all_threads();
    let stages = recipe.training_stages().into_iter();
    let each = stages.map(|stage| {
        let [measured, reserved] = match is_cpu(&context.device) {
            true => [peak_during(|| only(stage)) as u64, 0],
            false => peak_on(&context.device, || only(stage)),
        };
        let mut planned = estimate.peaks.iter();
        Found {
            stage,
            planned: planned.find(|(name, _)| *name == stage).unwrap().1,
            measured,
            reserved,
            moments: [planned_moments(&recipe, stage), kept(&run.stage(stage))],
        }
    });
    each.collect()
}

/// Each thread that multiplies keeps a buffer of the size of its processor's second cache for as long as it lives. Some had theirs
/// from capturing features and others not, and a training's peak was that of its machine.
fn multiply_on_all_threads() {
    let multiply = || {
        let x = Tensor::<2>::ones([256, 256], &Device::flex());
        let _ = product(x.clone(), x);
    };
    multiply();
    rayon::broadcast(|_| multiply());
}

/// The most bytes that tensors take on a device while something is done, and the most that are held for them.
fn peak_on(device: &Device, work: impl FnOnce()) -> [u64; 2] {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looking = scope.spawn(|| {
            let mut most = [0; 2];
            while !is_done.load(Ordering::Relaxed) {
                let found = memory_of(device).unwrap();
                most = [most[0].max(found.in_use), most[1].max(found.reserved)];
            }
            most
        });
        // What earlier work has left is given back first.
        device.memory_cleanup();
        work();
        is_done.store(true, Ordering::Relaxed);
        looking.join().unwrap()
    })
}

fn planned_moments(recipe: &ResolvedRecipe, stage: &str) -> u64 {
    let model = ModelFolder::open(recipe.model().unwrap()).unwrap();
    let file = model.path().join("config.json");
    let target = TransformerConfig::read(model.config(), &file).unwrap().spec;
    let footprint = recipe.method.footprint(&target).unwrap();
    footprint.kept_by(&recipe.training(stage).optimizer())
}

/// Values that the optimiser has kept in the last state of a stage.
fn kept(folder: &Path) -> u64 {
    let saved = state::list(folder).unwrap();
    let state = state::load(&saved.last().unwrap().path).unwrap();
    let kept = state.tensors["optimizer"].iter();
    kept.map(|tensor| tensor.shape.iter().product::<usize>() as u64)
        .sum()
}

/// With stored features nothing but the training step and the validation takes memory, one after the other.
const STORED: &str = "features.mode=stored";

fn within_a_fifth(kind: &Recipe, sizes: Sizes, changes: &[&str]) {
    let changes = [&[STORED][..], changes].concat();
    for found in trained(kind, sizes, &changes) {
        let ratio = found.ratio();
        let (name, stage) = (kind.name, found.stage);
        let [planned, kept] = found.moments;
        assert_eq!(planned, kept, "{name}, {stage}: values that are kept");
        assert!(
            (0.8..1.2).contains(&ratio),
            "{name}, {stage}, {sizes:?}, {changes:?}: {found:?}: {ratio:.2}"
        );
    }
}

#[test]
fn a_plan_knows_the_memory_of_every_kind_of_training_to_a_fifth() {
    alone(|| {
        for kind in RECIPES {
            within_a_fifth(kind, BASE, &[]);
        }
    });
}

#[test]
fn it_does_for_long_rows_and_many_heads() {
    alone(|| {
        let sizes = Sizes {
            row: 384,
            heads: 8,
            ..BASE
        };
        RECIPES
            .iter()
            .for_each(|kind| within_a_fifth(kind, sizes, &[]));
    });
}

#[test]
fn it_does_for_wide_layers_and_large_vocabularies() {
    alone(|| {
        let sizes = Sizes {
            d_model: 128,
            d_ff: 320,
            vocab: 1200,
            ..BASE
        };
        RECIPES
            .iter()
            .for_each(|kind| within_a_fifth(kind, sizes, &[]));
    });
}

#[test]
fn it_does_for_parameters_that_outweigh_the_activations() {
    alone(|| {
        RECIPES
            .iter()
            .for_each(|kind| within_a_fifth(kind, HEAVY, &[]));
    });
}

/// Parameters, and what is kept of their gradients, outweigh the activations.
const HEAVY: Sizes = Sizes {
    d_model: 256,
    d_ff: 512,
    row: 64,
    rows: 1,
    ..BASE
};

#[test]
fn it_does_for_muon_which_keeps_half_as_much_of_matrices() {
    alone(|| {
        for kind in RECIPES {
            within_a_fifth(kind, HEAVY, &["train.optimizer=muon"]);
        }
    });
}

const LATENT: [&str; 4] = [
    "drafter.latent.q_rank=96",
    "drafter.latent.kv_rank=48",
    "drafter.latent.d_fixed=24",
    "drafter.latent.d_turned=8",
];

const LATTICE: [&str; 3] = [
    "drafter.lattice.d_model=32",
    "drafter.lattice.rank=48",
    "objective.teacher_weight=1.0",
];

#[test]
fn it_does_for_the_settings_that_change_it_most() {
    alone(|| {
        let cases: [(&str, &[&str]); 22] = [
            ("eagle3", &["objective.recompute=false"]),
            ("eagle3", &["drafter.layers=3"]),
            ("eagle3", &["train.ema_decay=0.9"]),
            ("eagle3", &["drafter.d_head=64"]),
            ("eagle3", &LATENT),
            (
                "eagle3",
                &[
                    &LATENT[..],
                    &["drafter.layers=2", "objective.recompute=false"],
                ]
                .concat(),
            ),
            (
                "eagle3",
                &["objective.draft_steps=2", "drafter.head=shared"],
            ),
            ("eagle1", &["objective.passes=3"]),
            (
                "medusa",
                &["drafter.medusa_heads=8", "objective.teacher_weight=1.0"],
            ),
            ("hydra", &["drafter.prefix_layer=true"]),
            (
                "redrafter",
                &["drafter.head_layers=4", "objective.teacher_weight=1.0"],
            ),
            ("dflash", &["objective.anchors=64", "drafter.layers=3"]),
            (
                "dflash",
                &["drafter.conv_taps=2", "drafter.selector_rank=16"],
            ),
            (
                "dflash",
                &["drafter.selector_rank=16", "objective.teacher_weight=1.0"],
            ),
            ("dflash", &["drafter.markov_rank=16"]),
            ("dflash", &LATTICE),
            ("dflash", &["drafter.d_head=64"]),
            ("peagle", &["drafter.d_head=64"]),
            ("pard", &["objective.draft_tokens=4"]),
            ("deer", &["drafter.context=causal", "objective.cuts=4"]),
            (
                "distillspec",
                &["objective.divergence=tv", "drafter.fresh.layers=4"],
            ),
            ("distillspec", &["drafter.lora.rank=8"]),
        ];
        for (kind, changes) in cases {
            within_a_fifth(registry::find(kind).unwrap(), BASE, changes);
        }
    });
}

#[test]
fn live_features_take_at_most_what_is_planned_for_them_beside_a_step() {
    alone(|| {
        for kind in RECIPES {
            // How much of the next batch is being made at the peak of a step is a matter of time.
            let stored = trained(kind, BASE, &[STORED]);
            for (live, stored) in trained(kind, BASE, &[]).iter().zip(stored) {
                let name = kind.name;
                assert!(
                    live.planned >= stored.planned && live.ratio() > 0.8,
                    "{name}: {live:?}"
                );
                let least = 0.8 * stored.planned as f64;
                assert!(live.measured as f64 > least, "{name}: {live:?}, {stored:?}");
            }
        }
    });
}

/// As an unrolled drafter goes through its layers on a GPU.
#[test]
fn passes_in_bf16_keep_no_copies_of_the_weights_in_f32_that_they_share() {
    const WIDTH: usize = 512;
    alone(|| {
        let device = Device::flex().autodiff();
        let layer = Linear {
            weight: Param::from_tensor(Tensor::ones([WIDTH, WIDTH], &device)),
            bias: None,
            lora: None,
        };
        let peak = |passes: usize| {
            peak_during(|| {
                let row = Tensor::<2>::ones([1, WIDTH], (&device, DType::BF16));
                let out = (0..passes).fold(row, |x, _| layer.forward(x));
                let gradients = out.sum().backward();
                let gradient = layer.weight.val().grad(&gradients).unwrap();
                assert_eq!(gradient.dtype(), DType::F32);
            })
        };
        // What is set up once.
        peak(2);
        // Behind the second of three, rows have a gradient while the weight has one already.
        let (few, many) = (peak(3), peak(10));
        let copy = WIDTH * WIDTH * DType::BF16.size();
        assert!(many < few + copy, "{few} {many}");
    });
}

/// Where little of a device's memory is lost to the sizes that it is given out in.
const LARGE: Sizes = Sizes {
    d_model: 1024,
    d_ff: 3072,
    heads: 16,
    d_head: 64,
    row: 1024,
    rows: 4,
    vocab: 16_000,
};

/// `SPECTRAIN_TEST_DEVICE=cuda:0 TEST_BINARY memory::on_a_device --nocapture` shows the table, on a GPU or in a rehearsal (`tests/README.md`).
#[test]
fn on_a_device_the_plan_of_every_kind_is_shown_beside_what_training_takes() {
    if is_cpu(&test_device()) {
        return;
    }
    println!("| family | stage | planned, MiB | in use, MiB | ratio | reserved, MiB |");
    println!("|---|---|--:|--:|--:|--:|");
    let mut far = Vec::new();
    for kind in RECIPES.iter().filter(|kind| chosen(kind.name)) {
        for found in trained(kind, LARGE, &[STORED]) {
            let ratio = found.ratio();
            let [planned, measured, reserved] =
                [found.planned, found.measured, found.reserved].map(|bytes| bytes as f64 / MIB);
            let line = format!(
                "| {} | {} | {planned:.0} | {measured:.0} | {ratio:.2} | {reserved:.0} |",
                kind.name, found.stage
            );
            println!("{line}");
            if !(0.8..1.2).contains(&ratio) {
                far.push(line);
            }
        }
    }
    assert!(far.is_empty(), "{}", far.join("\n"));
}

const MIB: f64 = 1024.0 * 1024.0;

/// The trials of the registry with tokens that no text holds.
fn of_trial(tables: &str) -> String {
    let tokens = [
        ("mask_token = 47", "mask_token = 303"),
        ("separator_token = 46", "separator_token = 302"),
    ];
    let known = |text: String, (small, large): (&str, &str)| text.replace(small, large);
    tokens.into_iter().fold(tables.to_owned(), known)
}

/// `SPECTRAIN_CAMPAIGN=2 cargo nextest run --workspace --no-capture -E 'test(plan_of_every_trial)'` shows the table. In the ordinary suite
/// it is that of AdamW: a test above has every kind of training with Muon.
#[test]
fn the_plan_of_every_trial_is_shown_beside_what_training_takes() {
    alone(|| {
        println!("| family | trial | stage | optimiser | planned, MiB | measured, MiB | ratio |");
        println!("|---|--:|---|---|--:|--:|--:|");
        let mut far = Vec::new();
        let optimizers = match campaign::times(1) {
            1 => &["adamw"][..],
            _ => &["adamw", "muon"],
        };
        for kind in RECIPES.iter().filter(|kind| chosen(kind.name)) {
            for (number, tables) in kind.trials.iter().enumerate() {
                for optimizer in optimizers {
                    let change = format!("train.optimizer={optimizer}");
                    let found = trained_with((kind, &of_trial(tables)), BASE, &[STORED, &change]);
                    for found in found {
                        let ratio = found.ratio();
                        let [planned, measured] =
                            [found.planned, found.measured].map(|bytes| bytes as f64 / MIB);
                        let line = format!(
                            "| {} | {} | {} | {optimizer} | {planned:.1} | {measured:.1} | {ratio:.2} |",
                            kind.name,
                            number + 1,
                            found.stage
                        );
                        println!("{line}");
                        let [planned, kept] = found.moments;
                        if planned != kept || !(0.8..1.2).contains(&ratio) {
                            far.push(format!("{line} moments: {planned} planned, {kept} kept"));
                        }
                    }
                }
            }
        }
        assert!(far.is_empty(), "{}", far.join("\n"));
    });
}
