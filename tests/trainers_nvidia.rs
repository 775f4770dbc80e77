//! Settings of ModelOpt and of NeMo Automodel one by one: what becomes of those that need more than a name.
use std::path::Path;

use spectrain::trainers::{Translated, translate};

use crate::translated::{has, lacks, nemo, of, tells};

#[test]
fn modelopts_own_sizes_are_its_defaults() {
    let recipe = |kind: &str, rest: &str| {
        let text = format!(
            "metadata:\n  recipe_type: speculative_{kind}\nmodel:\n  model_name_or_path: Qwen/Qwen3-8B\ndata:\n  data_path: a.jsonl\n  \
             sample_size: 50\ntraining:\n  save_total_limit: 3\n  eval_steps: 70\n  optim: adafactor\n{rest}"
        );
        of("a.yaml", &text)
    };
    let found = recipe(
        "eagle",
        "eagle:\n  eagle_base_lora: true\n  eagle_base_lora_rank: 8\n",
    );
    has(
        &found,
        &[
            "drafter.d_ff=14336",
            "drafter.heads=32",
            "drafter.kv_heads=8",
            "data.max_samples=50",
            "train.keep=3",
            "train.validate_every=70",
        ],
    );
    tells(&found, &["rope_theta = 10000`", "1000000"]);
    tells(
        &found,
        &["`eagle.eagle_base_lora = true`", "stays as it is"],
    );
    tells(&found, &["`training.optim = adafactor`", "AdamW"]);
    let found = recipe(
        "dflash",
        "dflash:\n  dflash_architecture_config:\n    target_layer_ids: [1, 5]\n  dflash_export_rope_scaling:\n    type: yarn\n",
    );
    has(
        &found,
        &[
            "drafter.d_ff=22016",
            "drafter.kv_heads=32",
            "drafter.captured_layers=[1, 5]",
        ],
    );
    tells(
        &found,
        &["`dflash.dflash_export_rope_scaling.type = yarn`", "rotary"],
    );
    let found = recipe("medusa", "medusa:\n  medusa_num_heads: 3\n");
    assert_eq!(found.recipe, "medusa");
    has(&found, &["drafter.medusa_heads=3", "drafter.head_layers=1"]);
}

/// Settings of ModelOpt for a drafter of blocks, with lines of `training` and of `dflash`.
fn modelopt(training: &str, dflash: &str) -> Translated {
    let text = format!(
        "metadata:\n  recipe_type: speculative_dflash\nmodel:\n  model_name_or_path: Qwen/Qwen3-8B\ndata:\n  data_path: a.jsonl\n\
         training:\n  training_seq_len: 64\n{training}dflash:\n  dflash_block_size: 16\n{dflash}"
    );
    of("a.yaml", &text)
}

#[test]
fn dflash_2_of_modelopt_has_its_convolutions_and_its_selector() {
    let architecture = "  dflash_architecture_config:\n    projector_type: dflash2\n    conv_kernel_size: 2\n    conv_group_size: 16\n    \
                        selector_rank: 256\n    selector_top_k: 12\n";
    let even = format!(
        "  dflash_loss_objective: decay\n  dflash_self_logit_distillation: false\n{architecture}"
    );
    let found = modelopt("", &even);
    assert_eq!(found.recipe, "dflash");
    has(
        &found,
        &[
            "drafter.conv_taps=2",
            "drafter.conv_group=16",
            "drafter.selector_rank=256",
            "drafter.selector_top_k=12",
            "objective.selector_weight=1.0",
            "objective.inject=false",
            "objective.label_weight=1.0",
            "objective.slot_weights=\"uniform\"",
        ],
    );
    let told = |found: &Translated, part: &str| found.notes.iter().any(|note| note.contains(part));
    let [alone, even_slots] = [
        "among the candidates, here by all",
        "all slots count the same",
    ];
    tells(&found, &["dflash_selector_loss_alpha = 1.0`", alone]);
    assert!(!told(&found, even_slots), "{:?}", found.notes);
    let found = modelopt("", &format!("  dflash_selector_loss_alpha: 0\n{even}"));
    assert!(!told(&found, "selector"), "{:?}", found.notes);
    // There the selector's slots all count the same, whatever those of the layers do.
    let falls = format!(
        "  dflash_selector_loss_alpha: 0.5\n  dflash_loss_decay_factor: 7.0\n  dflash_lk_loss_type: lambda\n  \
         dflash_lk_ce_decay: 2.0\n{even}"
    );
    let found = modelopt("", &falls);
    has(
        &found,
        &[
            "objective.selector_weight=0.5",
            "objective.slot_weights=\"exponential\"",
        ],
    );
    tells(
        &found,
        &["dflash_selector_loss_alpha = 0.5`", alone, even_slots],
    );
    tells(
        &found,
        &[
            "dflash_lk_loss_type = lambda`",
            "cross-entropy with the text",
        ],
    );
}

#[test]
fn lilicorr_of_modelopt_is_a_lattice_beside_dflash() {
    let sizes = "  dflash_architecture_config:\n    projector_type: lilicorr\n    lilicorr_candidate_topk: 4\n    \
        lilicorr_hidden_size: 256\n    lilicorr_num_layers: 3\n    lilicorr_num_heads: 4\n    lilicorr_mlp_ratio: 1.5\n    \
        lilicorr_factor_dim: 128\n    lilicorr_logit_scale: 6.0\n    lilicorr_vector_eps: 1.0e-3\n    conv_kernel_size: 2\n";
    let weights = "  dflash_lilicorr_w_ce: 0.125\n  dflash_lilicorr_w_margin: 0.125\n  dflash_lilicorr_w_pen: 0.25\n  \
        dflash_lilicorr_margin: 3.0\n  dflash_loss_objective: decay\n  dflash_loss_decay_factor: 7.0\n  \
        dflash_self_logit_distillation: false\n";
    let found = modelopt("", &format!("{weights}{sizes}"));
    assert_eq!(found.recipe, "dflash");
    has(
        &found,
        &[
            "drafter.lattice.top_k=4",
            "drafter.lattice.d_model=256",
            "drafter.lattice.layers=3",
            "drafter.lattice.heads=4",
            "drafter.lattice.d_ff=384",
            "drafter.lattice.rank=128",
            "drafter.lattice.scale=6.0",
            "drafter.lattice.epsilon=0.001",
            "drafter.conv_taps=2",
            "objective.paths.weight=0.125",
            "objective.paths.hinge_weight=0.125",
            "objective.paths.penalty_weight=0.25",
            "objective.paths.hinge=3.0",
            "objective.slot_weights=\"exponential\"",
            "objective.decay_slots=7.0",
            "objective.label_weight=1.0",
        ],
    );
    tells(&found, &["lilicorr_w_ce", "the end of a reply cuts"]);
    // A width that is left out is the drafter's, and then of both.
    let narrow = "  dflash_architecture_config:\n    projector_type: lilicorr\n    lilicorr_mlp_ratio: 2.0\n";
    let found = modelopt("", narrow);
    has(&found, &["drafter.lattice.d_model=0"]);
    lacks(&found, "drafter.lattice.d_ff");
}

#[test]
fn what_only_other_drafters_of_modelopt_read_is_told() {
    let found = modelopt(
        "",
        "  dflash_selector_loss_alpha: 0.5\n  dflash_lk_loss_type: tv\n  dflash_lilicorr_x: 1\n",
    );
    lacks(&found, "objective.selector_weight");
    lacks(&found, "objective.inject");
    for (setting, kind) in [
        ("dflash_selector_loss_alpha = 0.5`", "DFlash 2"),
        ("dflash_lk_loss_type = tv`", "DFlash 2"),
        ("dflash_lilicorr_x = 1`", "LiLiCorr"),
    ] {
        tells(&found, &[setting, &format!("only {kind} reads it")]);
    }
}

#[test]
fn a_rate_of_transformers_that_falls_at_the_end_falls_over_its_last_steps() {
    let training = |kwargs: &str| {
        format!(
            "  lr_scheduler_type: warmup_stable_decay\n  lr_scheduler_kwargs:\n    num_decay_steps: 300\n{kwargs}"
        )
    };
    let steps = "  max_steps: 2000\n";
    let found = modelopt(&format!("{}{steps}", training("")), "");
    has(
        &found,
        &[
            "train.schedule=\"wsd\"",
            "train.decay_ratio=0.15",
            "train.decay_shape=\"cosine\"",
        ],
    );
    let rooted = training("    decay_type: 1-sqrt\n    min_lr_ratio: 0.1\n");
    let found = modelopt(&format!("{rooted}{steps}"), "");
    has(
        &found,
        &["train.decay_shape=\"minus_sqrt\"", "train.min_lr_ratio=0.1"],
    );
    // A share that is rounded down would be 299 of these steps.
    let found = modelopt(&format!("{}  max_steps: 7000\n", training("")), "");
    has(&found, &["train.decay_ratio=0.042858"]);
    let found = modelopt(&training(""), "");
    has(&found, &["train.schedule=\"wsd\""]);
    lacks(&found, "train.decay_ratio");
    tells(
        &found,
        &["warmup_stable_decay`", "`train.decay_ratio`", "not known"],
    );
}

#[test]
fn a_recipe_of_nemo_is_read_with_its_data_and_its_optimiser() {
    let found = nemo(
        "TrainEagle3Recipe",
        "  ttt_steps: 4\n  lk_loss_type: lambda\n",
    );
    has(
        &found,
        &[
            "objective.draft_steps=4",
            "objective.divergence=\"lk_hybrid\"",
            "data.max_samples=70000",
            "data.max_length=1024",
            "train.batch_tokens=2048",
            "train.beta2=0.99",
            "train.min_lr_ratio=0.1",
            "train.learning_rate=0.0006",
        ],
    );
    assert!(!found.notes.iter().any(|note| note.contains("lk_loss")));
    assert_eq!(found.train, Some("hf://org/chats:train".into()));
}

#[test]
fn recipes_of_nemo_are_known_by_their_class() {
    let parallel = "  parallel_drafting: true\n  mask_token_id: 9\n";
    for (class, rest, recipe, settings) in [
        (
            "TrainEagle3Recipe",
            parallel,
            "peagle",
            &[
                "objective.keep=0.7",
                "drafter.layers=1",
                "drafter.mask_token=9",
            ][..],
        ),
        (
            "nemo_automodel.recipes.llm.train_eagle2.TrainEagle2Recipe",
            "",
            "eagle1",
            &[
                "objective.regression_weight=1.0",
                "objective.class_weight=0.1",
            ][..],
        ),
        (
            "TrainDFlash2Recipe",
            "",
            "dflash",
            &[
                "objective.inject=false",
                "drafter.selector_rank=256",
                "objective.slot_weights=\"exponential\"",
            ][..],
        ),
        (
            "TrainDSparkRecipe",
            "  loss_decay_gamma: 4.0\n",
            "dflash",
            &[
                "drafter.block_size=7",
                "objective.decay_slots=4.0",
                "objective.teacher_weight=1.8",
                "drafter.confidence=true",
            ][..],
        ),
        (
            "TrainJetSpecRecipe",
            "",
            "dflash",
            &[
                "drafter.causal=true",
                "objective.teacher_weight=1.0",
                "objective.slot_weights=\"uniform\"",
            ][..],
        ),
    ] {
        let found = nemo(class, rest);
        assert_eq!(found.recipe, recipe, "{class}");
        has(&found, settings);
    }
}

#[test]
fn a_recipe_of_nemo_for_another_kind_of_drafter_is_refused() {
    let refused = "recipe: TrainViSpecRecipe\nrecipe_args:\n  target_model_name_or_path: a\n";
    let refused = translate(refused, Path::new("a.yaml"));
    let error = refused.err().unwrap().to_string();
    assert!(error.contains("calls `TrainViSpecRecipe`"), "{error}");
}

#[test]
fn noise_of_nemo_is_of_one_width_for_all_samples() {
    let found = nemo("TrainEagle1Recipe", "  feature_noise: 0.05\n");
    let mut settings = found.settings.iter();
    let noise = settings.find(|set| set.starts_with("objective.noise="));
    let noise = noise.unwrap();
    for part in ["kind = \"uniform\"", "std = 0.1", "length_ref = 0"] {
        assert!(noise.contains(part), "{noise}");
    }
}

#[test]
fn automodel_takes_its_file_without_a_flag() {
    let folder = tempfile::tempdir().unwrap();
    let file = "recipe: TrainDFlashRecipe\nrecipe_args:\n  target_model_name_or_path: a/b\n  train_data_path: a.jsonl\n  seq_length: 64\n";
    std::fs::write(folder.path().join("x.yaml"), file).unwrap();
    let script = "automodel x.yaml --nproc-per-node 4 --recipe_args.seq_length=128\n";
    let found = translate(script, &folder.path().join("a.sh")).unwrap();
    has(
        &found,
        &[
            "data.max_length=128",
            "train.gradient_accumulation=4",
            "objective.decay_slots=7.0",
        ],
    );
}

#[test]
fn processes_that_share_a_target_read_the_same_rows() {
    let found = nemo(
        "TrainDFlashRecipe",
        "nproc_per_node: 8\ndistributed:\n  tp_size: 4\n",
    );
    has(&found, &["train.gradient_accumulation=2"]);
}
